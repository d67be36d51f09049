//! Products of integers that fit 16 bits, in lanes of 32 bits.
//!
//! If the upper half of one operand is zero, the sum of the products of both halves is the product. On x86 that is one
//! multiplication ([`VBinary::DotPairs`]); a product of 32 bits takes two. Depthwise convolutions of bytes are such
//! products.

use super::op::{Body, Op, Ty};
use crate::{
    codegen::vector::{
        Builder,
        vcode::{VBinary, Vector},
    },
    scalar::BinaryOp,
};
use std::collections::HashMap;

/// The operands of a product, before their casts to 32 bits.
#[derive(Clone, Copy)]
struct NarrowProduct {
    /// The operand whose upper half must be zero.
    cleared: u32,
    other: u32,
}

/// The products of narrow integers of a body.
pub(super) struct NarrowProducts {
    /// At the index of each product.
    found: Vec<Option<NarrowProduct>>,
    /// The operands whose upper half was cleared, by their instruction.
    cleared: HashMap<u32, Vector>,
}

impl NarrowProducts {
    /// Finds them in a body. `slow_int_products` is that of the ISA; without it there are none.
    pub(super) fn of(body: &Body, slow_int_products: bool) -> NarrowProducts {
        let operands = |idx: usize| match body.insts[idx] {
            (Op::Binary(BinaryOp::Mul, x, y), Ty::I32) if slow_int_products => {
                Some([narrow(body, x)?, narrow(body, y)?])
            }
            _ => None,
        };
        let products: Vec<_> = (0..body.insts.len()).map(operands).collect();

        // An operand of more products is cleared for all of them.
        let mut uses = vec![0; body.insts.len()];
        products.iter().flatten().flatten().for_each(|reg| uses[*reg as usize] += 1);
        let is_cleared = |reg: u32| body.ty(reg) == Ty::U8;
        let choose = |[x, y]: [u32; 2]| {
            let is_first = is_cleared(x) || !is_cleared(y) && uses[x as usize] > uses[y as usize];
            let (cleared, other) = if is_first { (x, y) } else { (y, x) };
            NarrowProduct { cleared, other }
        };
        let found = products.into_iter().map(|product| product.map(choose)).collect();
        NarrowProducts { found, cleared: HashMap::new() }
    }

    /// Emits the product at `idx` if it is one of narrow integers. `value` gives the values of earlier instructions.
    pub(super) fn emit(
        &mut self,
        b: &mut Builder,
        body: &Body,
        idx: usize,
        value: impl Fn(u32) -> Vector,
    ) -> Option<Vector> {
        let NarrowProduct { cleared, other } = self.found[idx]?;
        let lower = *self.cleared.entry(cleared).or_insert_with(|| match body.ty(cleared) {
            Ty::U8 => value(cleared),
            _ => {
                let lower_half = b.bits(0xffff);
                b.binary(VBinary::And, value(cleared), lower_half)
            }
        });
        Some(b.binary(VBinary::DotPairs, value(other), lower))
    }
}

/// The operand of a cast to 32 bits, if 16 bits with a sign hold all its values.
fn narrow(body: &Body, reg: u32) -> Option<u32> {
    match body.op(reg) {
        Op::Cast(x) if matches!(body.ty(x), Ty::U8 | Ty::I8 | Ty::I16) => Some(x),
        _ => None,
    }
}
