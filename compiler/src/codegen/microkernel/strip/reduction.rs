//! Running reductions of strips: several vectors of partial results, combined at the end.

use crate::codegen::microkernel::{body_value::BodyValue, math, op::Ty, wide};
use crate::codegen::vector::{
    Builder,
    vcode::{Mask, VBinary, Vector},
};
use crate::scalar::ReduceOp;
use std::ops::RangeInclusive;

/// A running reduction.
pub(super) struct Reduction {
    pub(super) op: ReduceOp,
    ty: Ty,
    /// The scalar variable that gets the result.
    pub(super) var: u32,
    /// Whether the partial results are the minimum of negated elements, see [`math::max`].
    is_negated: bool,
    /// Vectors of partial results: two for each of a type of 64 bits.
    partials: Vec<Vector>,
    neutral: Vector,
}

/// The values of an integer type.
fn range(ty: Ty) -> RangeInclusive<i32> {
    match ty {
        Ty::I32 => i32::MIN..=i32::MAX,
        Ty::U8 => 0..=i32::from(u8::MAX),
        Ty::I8 => i32::from(i8::MIN)..=i32::from(i8::MAX),
        Ty::I16 => i32::from(i16::MIN)..=i32::from(i16::MAX),
        Ty::U16 => 0..=i32::from(u16::MAX),
        Ty::F32 => unreachable!("floats start from infinity"),
        Ty::RoundToBf16 | Ty::ClampToI8 | Ty::ClampToU8 => unreachable!("no instruction has this type"),
        Ty::Bf16 | Ty::F16 | Ty::Bool | Ty::I64 | Ty::F64 => {
            unreachable!("`Body::push` refuses their reductions")
        }
    }
}

/// The bits of the result of no elements.
fn neutral_bits(op: ReduceOp, ty: Ty) -> u32 {
    match (op, ty) {
        (ReduceOp::Sum, _) => 0,
        (ReduceOp::Prod, _) => 1f32.to_bits(),
        (ReduceOp::Max, Ty::F32) => f32::NEG_INFINITY.to_bits(),
        (ReduceOp::Min, Ty::F32) => f32::INFINITY.to_bits(),
        // The extremum of no elements is the bound of the element type.
        (ReduceOp::Min, ty) => *range(ty).end() as u32,
        (ReduceOp::Max, ty) => *range(ty).start() as u32,
    }
}

/// [`neutral_bits`] of a type of 64 bits.
fn wide_neutral_bits(op: ReduceOp, ty: Ty) -> u64 {
    match (op, ty) {
        (ReduceOp::Sum, _) => 0,
        (ReduceOp::Prod, _) => 1f64.to_bits(),
        (ReduceOp::Max, Ty::F64) => f64::NEG_INFINITY.to_bits(),
        (ReduceOp::Min, Ty::F64) => f64::INFINITY.to_bits(),
        (ReduceOp::Min, _) => i64::MAX as u64,
        (ReduceOp::Max, _) => i64::MIN as u64,
    }
}

impl Reduction {
    /// A reduction that has seen no elements.
    pub(super) fn start(b: &mut Builder, op: ReduceOp, ty: Ty, var: u32, partials: usize) -> Reduction {
        let is_negated = (op, ty) == (ReduceOp::Max, Ty::F32) && math::prefers_min(b);
        let neutral = match ty {
            _ if ty.is_wide() => b.wide_bits(wide_neutral_bits(op, ty)),
            _ if is_negated => b.bits(neutral_bits(ReduceOp::Min, ty)),
            _ => b.bits(neutral_bits(op, ty)),
        };
        let partials = (0..partials * vectors(ty)).map(|_| b.variable(neutral)).collect();
        Reduction { op, ty, var, is_negated, partials, neutral }
    }

    fn combine(&self, b: &mut Builder, x: Vector, y: Vector) -> Vector {
        match (self.op, self.ty) {
            (op, ty) if ty.is_wide() => wide::vector_binary(b, op.binary(), ty, x, y),
            (ReduceOp::Sum, Ty::F32) => b.binary(VBinary::Add, x, y),
            (ReduceOp::Prod, _) => b.binary(VBinary::Mul, x, y),
            (ReduceOp::Max, Ty::F32) if !self.is_negated => math::max(b, x, y),
            (ReduceOp::Min | ReduceOp::Max, Ty::F32) => math::min(b, x, y),
            (ReduceOp::Sum, _) => b.binary(VBinary::AddInt, x, y),
            (ReduceOp::Min, _) => b.binary(VBinary::MinInt, x, y),
            (ReduceOp::Max, _) => b.binary(VBinary::MaxInt, x, y),
        }
    }

    /// Adds the lanes of the mask, or all lanes, to a partial result.
    pub(super) fn add(&self, b: &mut Builder, value: BodyValue, mask: Option<Mask>, partial: usize) {
        if self.ty.is_wide() {
            let value = match mask {
                Some(mask) => wide::select(b, mask, value.wide(), [self.neutral; 2]),
                None => value.wide(),
            };
            return value.into_iter().zip(2 * partial..).for_each(|(half, at)| self.add_to(b, half, at));
        }
        let value = value.lanes();
        let mut value = if self.is_negated { math::neg(b, value) } else { value };
        if let Some(mask) = mask {
            value = b.select(mask, value, self.neutral);
        }
        self.add_to(b, value, partial);
    }

    fn add_to(&self, b: &mut Builder, value: Vector, vector: usize) {
        let combined = self.combine(b, self.partials[vector], value);
        b.set(self.partials[vector], combined);
    }

    /// Combines all partial results into all lanes of `dst`.
    pub(super) fn finish(&self, b: &mut Builder, dst: Vector) {
        let mut partials = self.partials.clone();
        while partials.len() > 1 {
            partials = partials.chunks(2).map(|pair| self.combine(b, pair[0], pair[1])).collect();
        }

        let mut result = partials[0];
        let mut distance = b.lanes() / 2;
        while distance >= vectors(self.ty) {
            let other = b.butterfly(result, distance as u8);
            result = self.combine(b, result, other);
            distance /= 2;
        }

        let result = if self.is_negated { math::neg(b, result) } else { result };
        b.set(dst, result);
    }
}

/// Vectors of a value, which are also the lanes of 32 bits of an element.
fn vectors(ty: Ty) -> usize {
    if ty.is_wide() { 2 } else { 1 }
}
