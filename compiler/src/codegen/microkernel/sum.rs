//! Running reductions of strip leaves: several vectors of partial results, combined at the end.

use super::math;
use super::op::Ty;
use super::strip::ActiveLanes;
use crate::codegen::vector::{
    Builder,
    vcode::{VBinary, Vector},
};
use crate::scalar::ReduceOp;
use std::ops::RangeInclusive;

/// A running reduction.
pub(super) struct Sum {
    pub(super) op: ReduceOp,
    ty: Ty,
    pub(super) var: u32,
    /// What is combined; a maximum of floats is kept with its sign turned, see [`math::max`].
    parts: Vec<Vector>,
    neutral: Vector,
}

/// The values of an integer type.
fn range(ty: Ty) -> RangeInclusive<i32> {
    match ty {
        Ty::I32 => i32::MIN..=i32::MAX,
        Ty::U8 => 0..=i32::from(u8::MAX),
        Ty::I8 => i32::from(i8::MIN)..=i32::from(i8::MAX),
        Ty::I16 => i32::from(i16::MIN)..=i32::from(i16::MAX),
        Ty::F32 => unreachable!("floats begin with infinity"),
        Ty::Bf16 | Ty::Nearest | Ty::Bool => unreachable!("refused when the body was made"),
    }
}

impl Sum {
    pub(super) fn start(b: &mut Builder, op: ReduceOp, ty: Ty, var: u32, unroll: usize) -> Sum {
        let bits = match (op, ty) {
            (ReduceOp::Sum, _) => 0,
            (ReduceOp::Prod, _) => 1f32.to_bits(),
            (ReduceOp::Min | ReduceOp::Max, Ty::F32) => f32::INFINITY.to_bits(),
            // Of nothing it is what the element's own type has at its end.
            (ReduceOp::Min, ty) => *range(ty).end() as u32,
            (ReduceOp::Max, ty) => *range(ty).start() as u32,
        };
        let neutral = b.bits(bits);
        let parts = (0..unroll).map(|_| b.variable(neutral)).collect();
        Sum { op, ty, var, parts, neutral }
    }

    fn is_turned(&self) -> bool {
        (self.op, self.ty) == (ReduceOp::Max, Ty::F32)
    }

    fn combine(&self, b: &mut Builder, x: Vector, y: Vector) -> Vector {
        match (self.op, self.ty) {
            (ReduceOp::Sum, Ty::F32) => b.binary(VBinary::Add, x, y),
            (ReduceOp::Prod, _) => b.binary(VBinary::Mul, x, y),
            (ReduceOp::Min | ReduceOp::Max, Ty::F32) => math::min(b, x, y),
            (ReduceOp::Sum, _) => b.binary(VBinary::AddInt, x, y),
            (ReduceOp::Min, _) => b.binary(VBinary::MinInt, x, y),
            (ReduceOp::Max, _) => b.binary(VBinary::MaxInt, x, y),
        }
    }

    pub(super) fn add(&self, b: &mut Builder, value: Vector, part: ActiveLanes, unroll: usize) {
        let value = if self.is_turned() { math::neg(b, value) } else { value };
        let value = match part {
            ActiveLanes::Full => value,
            ActiveLanes::First(_, mask) | ActiveLanes::One(mask) => b.select(mask, value, self.neutral),
        };
        let sum = self.combine(b, self.parts[unroll], value);
        b.set(self.parts[unroll], sum);
    }

    /// Combines everything into `dst`, all lanes equal.
    pub(super) fn finish(&self, b: &mut Builder, dst: Vector) {
        let mut parts = self.parts.clone();
        while parts.len() > 1 {
            parts = parts.chunks(2).map(|pair| self.combine(b, pair[0], pair[1])).collect();
        }
        let mut sum = parts[0];
        let mut distance = b.lanes() / 2;
        while distance > 0 {
            let other = b.butterfly(sum, distance as u8);
            sum = self.combine(b, sum, other);
            distance /= 2;
        }
        let sum = if self.is_turned() { math::neg(b, sum) } else { sum };
        b.set(dst, sum);
    }
}
