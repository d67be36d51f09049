//! Running reductions of strips: several vectors of partial results, combined at the end.

use crate::codegen::microkernel::{math, op::Ty};
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
    /// Vectors of partial results.
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

impl Reduction {
    /// A reduction that has seen no elements.
    pub(super) fn start(b: &mut Builder, op: ReduceOp, ty: Ty, var: u32, partials: usize) -> Reduction {
        let is_negated = (op, ty) == (ReduceOp::Max, Ty::F32) && math::prefers_min(b);
        let bits = match (op, ty) {
            (ReduceOp::Sum, _) => 0,
            (ReduceOp::Prod, _) => 1f32.to_bits(),
            (ReduceOp::Max, Ty::F32) if !is_negated => f32::NEG_INFINITY.to_bits(),
            (ReduceOp::Min | ReduceOp::Max, Ty::F32) => f32::INFINITY.to_bits(),
            // The extremum of no elements is the bound of the element type.
            (ReduceOp::Min, ty) => *range(ty).end() as u32,
            (ReduceOp::Max, ty) => *range(ty).start() as u32,
        };
        let neutral = b.bits(bits);
        let partials = (0..partials).map(|_| b.variable(neutral)).collect();
        Reduction { op, ty, var, is_negated, partials, neutral }
    }

    fn combine(&self, b: &mut Builder, x: Vector, y: Vector) -> Vector {
        match (self.op, self.ty) {
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
    pub(super) fn add(&self, b: &mut Builder, value: Vector, mask: Option<Mask>, partial: usize) {
        let mut value = if self.is_negated { math::neg(b, value) } else { value };
        if let Some(mask) = mask {
            value = b.select(mask, value, self.neutral);
        }
        let combined = self.combine(b, self.partials[partial], value);
        b.set(self.partials[partial], combined);
    }

    /// Combines all partial results into all lanes of `dst`.
    pub(super) fn finish(&self, b: &mut Builder, dst: Vector) {
        let mut partials = self.partials.clone();
        while partials.len() > 1 {
            partials = partials.chunks(2).map(|pair| self.combine(b, pair[0], pair[1])).collect();
        }

        let mut result = partials[0];
        let mut distance = b.lanes() / 2;
        while distance > 0 {
            let other = b.butterfly(result, distance as u8);
            result = self.combine(b, result, other);
            distance /= 2;
        }

        let result = if self.is_negated { math::neg(b, result) } else { result };
        b.set(dst, result);
    }
}
