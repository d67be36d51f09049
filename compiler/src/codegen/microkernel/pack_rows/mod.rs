//! The microkernel that packs rows of lhs contiguously, in the form that a tile multiplies.
//!
//! A row is a nest of reduction loops, as in the contraction tile. Its innermost loop runs over contiguous or strided
//! elements. The form is [`bytes`], [`floats`], or [`bf16`] for tile registers. Only memory of lhs is read.

mod bf16;
mod byte_form;
mod bytes;
mod floats;
mod rounded;
mod row_packer;

pub use byte_form::ByteForm;

use super::{contraction::BlockDot, op::Ty};
use crate::codegen::vector::{
    Builder, VectorShape,
    vcode::{Int, IntOp, NarrowInt, VCode},
};
use crate::scalar::CompareOp;
use bf16::Bf16;
use bytes::Bytes;
use floats::Floats;
use rounded::Rounded;
use row_packer::RowPacker;

/// The elements of rows before and after packing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RowForm {
    /// Bytes, as they are or as 16 bits each.
    Bytes {
        /// The element type.
        from: NarrowInt,
        /// The form of the packed bytes.
        to: ByteForm,
    },
    /// Floats, as `f32`.
    Floats {
        /// `f32` or bf16.
        from: Ty,
    },
    /// Floats, as bf16.
    Bf16 {
        /// `f32` or bf16.
        from: Ty,
        /// Parts of an element: one to three.
        parts: u8,
    },
    /// `f32`, rounded to 8 bits by blocks, see `kernel/rounded_rows.rs`.
    Rounded {
        /// Bits of a code of rhs.
        bits: u8,
        /// How the codes are multiplied.
        dot: BlockDot,
    },
}

/// Everything that the code depends on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PackRowsKey {
    /// The form of the elements.
    pub form: RowForm,
    /// Whether the elements of the innermost loop are contiguous.
    pub dense: bool,
    /// Number of reduction loops, at least one.
    pub levels: u8,
}

/// Slots of the argument block. Strides are in bytes.
impl PackRowsKey {
    /// Address of the first row of lhs.
    pub const FROM: usize = 0;
    /// From row to row of lhs.
    pub const FROM_ROW: usize = 1;
    /// Address of the first packed row.
    pub const TO: usize = 2;
    /// From row to row of the packed rows.
    pub const TO_ROW: usize = 3;
    /// Number of rows.
    pub const ROWS: usize = 4;
    /// Length of a plane of bf16: whole rows of a tile register, at least one.
    pub const PLANE: usize = 5;

    /// The slots of level `level` of the reduction, 0 being the innermost: its count, and the step of lhs.
    pub fn level(level: u8) -> usize {
        6 + 2 * level as usize
    }

    /// The slots of rounded rows: the elements of a row, those of a block, the number of blocks, and the address of a
    /// row of `f32` in scratch memory.
    pub(crate) fn rounding_slot(&self) -> usize {
        PackRowsKey::level(self.levels)
    }

    /// Length of the argument block.
    pub fn slots(&self) -> usize {
        self.rounding_slot() + if matches!(self.form, RowForm::Rounded { .. }) { 4 } else { 0 }
    }
}

/// The code on an ISA of this shape.
pub fn emit(key: &PackRowsKey, shape: VectorShape) -> VCode {
    if let RowForm::Rounded { bits, dot } = key.form {
        return emit_rounded(key, &Rounded { bits, dot }, shape);
    }
    let mut b = Builder::new(shape);
    let from = b.arg(PackRowsKey::FROM);
    let to = b.arg(PackRowsKey::TO);
    let rows = b.arg(PackRowsKey::ROWS);

    let packer: Box<dyn RowPacker> = match key.form {
        RowForm::Bytes { from, to } => Box::new(Bytes { from, to }),
        RowForm::Floats { from } => Box::new(Floats { from }),
        RowForm::Rounded { .. } => unreachable!("emitted above"),
        RowForm::Bf16 { from, parts } => Box::new(Bf16 { from, parts, plane: b.arg(PackRowsKey::PLANE) }),
    };

    b.repeat(rows, 1, |b| {
        let inner = b.copy(from);
        let place = b.copy(to);
        packer.begin(b, place);
        level(key, &*packer, b, key.levels - 1, inner, place);
        let step = b.arg(PackRowsKey::FROM_ROW);
        let place_step = b.arg(PackRowsKey::TO_ROW);
        b.advance(from, step);
        b.advance(to, place_step);
    });

    b.finish()
}

/// The code that rounds rows. Those whose elements are not adjacent are copied first.
fn emit_rounded(key: &PackRowsKey, rounded: &Rounded, shape: VectorShape) -> VCode {
    let mut b = Builder::new(shape);
    let slot = key.rounding_slot();
    let from = b.arg(PackRowsKey::FROM);
    let to = b.arg(PackRowsKey::TO);
    let rows = b.arg(PackRowsKey::ROWS);

    b.repeat(rows, 1, |b| {
        let row = b.copy(from);
        if key.levels > 1 || !key.dense {
            let copied = b.arg(slot + 3);
            level(key, &Floats { from: Ty::F32 }, b, key.levels - 1, row, copied);
            let copied = b.arg(slot + 3);
            b.set_copy(row, copied);
        }
        let place = b.copy(to);
        let count = b.arg(slot);
        let blocks = b.arg(slot + 2);
        b.repeat(blocks, 1, |b| {
            let elems = b.arg(slot + 1);
            b.when(CompareOp::Lt, count, elems, |b| b.set_copy(elems, count));
            b.set_int_op(IntOp::Sub, count, elems);
            rounded.block(b, elems, row, place);
        });
        let step = b.arg(PackRowsKey::FROM_ROW);
        let place_step = b.arg(PackRowsKey::TO_ROW);
        b.advance(from, step);
        b.advance(to, place_step);
    });
    b.finish()
}

/// Loop `number` of the reduction from `from` on; `to` advances past the packed elements.
fn level(key: &PackRowsKey, packer: &dyn RowPacker, b: &mut Builder, number: u8, from: Int, to: Int) {
    let count = b.arg(PackRowsKey::level(number));
    if number == 0 {
        if key.dense {
            return packer.contiguous(b, count, from, to);
        }
        let step = b.arg(PackRowsKey::level(0) + 1);
        return packer.strided(b, count, from, to, step);
    }

    b.repeat(count, 1, |b| {
        let inner = b.copy(from);
        level(key, packer, b, number - 1, inner, to);
        let step = b.arg(PackRowsKey::level(number) + 1);
        b.advance(from, step);
    });
}
