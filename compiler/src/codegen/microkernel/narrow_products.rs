//! Products of integers that fit 16 bits, in lanes of 32 bits.
//!
//! If the upper half of one operand is zero, the sum of the products of both halves is the product. On x86 that is one
//! multiplication ([`VBinary::DotPairs`]); a product of 32 bits takes two. With VNNI, a product and the sum of which it
//! is a term are one instruction. Depthwise convolutions of bytes are such sums.

use super::op::{Body, Op, Ty};
use crate::{
    codegen::vector::{
        Builder, VectorShape,
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

/// Terms of a sum that has several accumulators: one would wait for each product, as those of a 7×7 filter.
const MANY_TERMS: usize = 16;

/// A product that is added to a value.
#[derive(Clone, Copy)]
struct Term {
    product: NarrowProduct,
    addend: u32,
    /// Whether nothing else needs the value, nor its register.
    replaces_addend: bool,
    /// Whether it is one of at least [`MANY_TERMS`].
    is_of_many: bool,
    /// Whether the next term of the sum replaces the result.
    is_continued: bool,
}

/// The products of narrow integers of a body.
pub(super) struct NarrowProducts {
    /// At the index of each product.
    products: Vec<Option<NarrowProduct>>,
    /// At the index of each sum with such a term.
    terms: Vec<Option<Term>>,
    /// The products that are terms.
    skipped: Vec<bool>,
    /// The operands whose upper half was cleared, by their instruction.
    cleared: HashMap<u32, Vector>,
    /// The second accumulator of a sum that is continued, by its instruction.
    second: HashMap<u32, Vector>,
}

impl NarrowProducts {
    /// Finds them in a body. There are none if the ISA multiplies integers of 32 bits as fast.
    pub(super) fn of(body: &Body, shape: &VectorShape) -> NarrowProducts {
        let len = body.insts.len();
        let operands = |idx: usize| match body.insts[idx] {
            (Op::Binary(BinaryOp::Mul, x, y), Ty::I32) if shape.slow_int_products => {
                Some([narrow(body, x)?, narrow(body, y)?])
            }
            _ => None,
        };
        let operands: Vec<_> = (0..len).map(operands).collect();

        // An operand of more products is cleared for all of them.
        let mut uses = vec![0; len];
        operands.iter().flatten().flatten().for_each(|reg| uses[*reg as usize] += 1);
        let is_cleared = |reg: u32| body.ty(reg) == Ty::U8;
        let choose = |[x, y]: [u32; 2]| {
            let is_first = is_cleared(x) || !is_cleared(y) && uses[x as usize] > uses[y as usize];
            let (cleared, other) = if is_first { (x, y) } else { (y, x) };
            NarrowProduct { cleared, other }
        };
        let products = operands.into_iter().map(|operands| operands.map(choose)).collect();
        let mut found = NarrowProducts {
            products,
            terms: vec![None; len],
            skipped: vec![false; len],
            cleared: HashMap::new(),
            second: HashMap::new(),
        };
        if shape.vnni {
            found.find_terms(body);
        }
        found
    }

    /// Finds the sums with such a term. Of two such terms, the second is added to the first.
    fn find_terms(&mut self, body: &Body) {
        let uses = body.use_counts();
        for idx in 0..body.insts.len() {
            let is_product = |reg: u32| self.products[reg as usize].is_some();
            let Some((reg, addend)) = body.term(idx, &uses, is_product) else { continue };
            let product = self.products[reg as usize].expect("it is a product");
            let at = addend as usize;
            let has_own_register = self.products[at].is_some() || self.terms[at].is_some();
            let replaces_addend = has_own_register && uses[at] == 1;
            let term = Term { product, addend, replaces_addend, is_of_many: false, is_continued: false };
            self.terms[idx] = Some(term);
            self.skipped[reg as usize] = true;
        }
        self.find_long_sums();
    }

    /// Marks the terms of long sums, from the counts of terms up to each one.
    fn find_long_sums(&mut self) {
        let mut counts = vec![0; self.terms.len()];
        for idx in 0..self.terms.len() {
            let Some(Term { addend, replaces_addend, .. }) = self.terms[idx] else { continue };
            counts[idx] = 1 + if replaces_addend { counts[addend as usize] } else { 0 };
        }
        for idx in (0..self.terms.len()).rev() {
            let Some(term) = &mut self.terms[idx] else { continue };
            term.is_of_many |= counts[idx] >= MANY_TERMS;
            let Term { addend, replaces_addend, is_of_many, .. } = *term;
            if let Some(before) = self.terms[addend as usize].as_mut().filter(|_| replaces_addend) {
                before.is_of_many = is_of_many;
                before.is_continued = true;
            }
        }
    }

    /// Whether no emitted instruction needs the value of this one.
    pub(super) fn skips(&self, idx: usize) -> bool {
        self.skipped[idx]
    }

    /// Emits the instruction at `idx` if it is a product of narrow integers, or a sum with one. `value` gives the
    /// values of earlier instructions.
    pub(super) fn emit(
        &mut self,
        b: &mut Builder,
        body: &Body,
        idx: usize,
        value: impl Fn(u32) -> Vector,
    ) -> Option<Vector> {
        let NarrowProduct { cleared, other } =
            self.products[idx].or(self.terms[idx].map(|term| term.product))?;
        let lower = *self.cleared.entry(cleared).or_insert_with(|| match body.ty(cleared) {
            Ty::U8 => value(cleared),
            _ => {
                let lower_half = b.bits(0xffff);
                b.binary(VBinary::And, value(cleared), lower_half)
            }
        });
        let other = value(other);
        let Some(term) = self.terms[idx] else { return Some(b.binary(VBinary::DotPairs, other, lower)) };
        let addend = value(term.addend);
        let sum = if term.replaces_addend { addend } else { b.variable(addend) };
        if !term.is_of_many {
            b.add_dot_pairs(sum, other, lower);
            return Some(sum);
        }

        // Each term is added to the accumulator that the last one was not added to.
        let next = match self.second.remove(&term.addend) {
            Some(next) => {
                b.add_dot_pairs(next, other, lower);
                next
            }
            None => b.binary(VBinary::DotPairs, other, lower),
        };
        if term.is_continued {
            self.second.insert(idx as u32, sum);
            return Some(next);
        }
        Some(b.binary(VBinary::AddInt, sum, next))
    }
}

/// The operand of a cast to 32 bits, if 16 bits with a sign hold all its values.
fn narrow(body: &Body, reg: u32) -> Option<u32> {
    match body.op(reg) {
        Op::Cast(x) if matches!(body.ty(x), Ty::U8 | Ty::I8 | Ty::I16) => Some(x),
        _ => None,
    }
}
