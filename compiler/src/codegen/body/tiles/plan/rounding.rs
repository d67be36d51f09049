//! How a left operand of `f32` is rounded to 8 bits, on each ISA.

use super::isa::Isa;
use crate::{
    codegen::microkernel::contraction::BlockDot,
    kernel::{Contraction, Rhs, rounded_rows::RoundedRows},
};

/// How rows of `f32` are rounded to 8 bits.
#[derive(Clone, Copy)]
pub(crate) struct Rounding {
    /// Bits of a code of rhs.
    pub(super) bits: u8,
    /// The multiplication of codes.
    pub(super) dot: BlockDot,
    /// Elements of a block.
    pub(crate) block: i64,
}

impl Rounding {
    /// The rounding of the lhs of panels, and the words of a row. `None` if it is not rounded.
    pub(super) fn of(contraction: &Contraction, isa: &Isa) -> Option<(Rounding, i64)> {
        let Rhs::FewBits(panels) = &contraction.rhs else { return None };
        let form = panels.form;
        let rows = RoundedRows::of(form, contraction.depth().as_i64()?).filter(|_| form.rounds_lhs)?;
        let dot = if isa.shape.vnni {
            BlockDot::Bytes
        } else if isa.shape.signed_dots {
            BlockDot::Signed
        } else if isa.shape.byte_pairs && form.bits <= 4 {
            BlockDot::BytePairs
        } else {
            BlockDot::Pairs
        };
        let rounding = Rounding { bits: form.bits as u8, dot, block: i64::from(form.block) };
        Some((rounding, rows.words(dot.codes_of_word() as i64)))
    }
}
