//! Bounds of the floats that a body computes from integers and constants, as requantisation does.
//!
//! A bound is an upper limit of the magnitude of all lanes, NaN excluded. It is infinite if nothing is known.

use super::op::{Body, Op, Ty};
use crate::{
    kernel::{BufferId, MemorySpace, Program},
    scalar::{BinaryOp, UnaryOp},
};
use symshape_runtime::DType;

/// Floats below this limit are exact when they are rounded to 32-bit integers, and sums with zero points don't
/// overflow.
const LIMIT: f64 = (1 << 30) as f64;

/// Longer constants are not searched for their largest element.
const MAX_SEARCHED_ELEMS: usize = 1 << 16;

/// More than the rounding errors of a body add to a bound.
const SLACK: f64 = 1.0 + 1e-5;

/// The operands of rounding instructions that are below [`LIMIT`]. `streams` are the buffers of the body's streams.
pub(super) fn bounded(body: &Body, program: &Program, streams: &[BufferId]) -> Vec<u32> {
    let rounded = body.insts.iter().filter_map(|(op, ty)| match op {
        Op::Unary(UnaryOp::Round, x) if *ty == Ty::F32 => Some(*x),
        _ => None,
    });
    let rounded: Vec<u32> = rounded.collect();
    if rounded.is_empty() {
        return rounded;
    }

    let mut bounds: Vec<f64> = Vec::with_capacity(body.insts.len());
    for (op, ty) in &body.insts {
        let bound = bound_of(body, (*op, *ty), &bounds, program, streams);
        let limit = largest(*ty);
        // Results of integer types are in their range; larger floats would be infinite.
        bounds.push(match (bound * SLACK, *ty) {
            (bound, Ty::F32) if bound < limit => bound,
            (_, Ty::F32) => f64::INFINITY,
            (bound, _) => bound.min(limit),
        });
    }
    rounded.into_iter().filter(|x| bounds[*x as usize] < LIMIT).collect()
}

/// The largest magnitude of a type.
fn largest(ty: Ty) -> f64 {
    match ty {
        Ty::Bool => 1.0,
        Ty::U8 => 255.0,
        Ty::I8 => 128.0,
        Ty::I16 => 32768.0,
        Ty::U16 => 65535.0,
        Ty::I32 | Ty::ClampToI8 | Ty::ClampToU8 => 2f64.powi(31),
        Ty::F32 => f64::from(f32::MAX),
        Ty::I64 | Ty::F64 | Ty::Bf16 | Ty::F16 | Ty::RoundToBf16 => f64::INFINITY,
    }
}

/// The bound of one instruction, given those of the earlier ones.
fn bound_of(body: &Body, (op, ty): (Op, Ty), bounds: &[f64], program: &Program, streams: &[BufferId]) -> f64 {
    let of = |reg: u32| bounds[reg as usize];
    match op {
        Op::Const(bits) if ty == Ty::F32 => {
            let value = f64::from(f32::from_bits(bits)).abs();
            if value.is_nan() { f64::INFINITY } else { value }
        }
        Op::Const(bits) if ty == Ty::I32 => f64::from(bits as i32).abs(),
        Op::Load(stream) if ty == Ty::F32 => largest_constant(program, streams[stream as usize]),
        Op::Binary(BinaryOp::Add | BinaryOp::Sub, x, y) => of(x) + of(y),
        // A product of zero and an unknown bound is unknown.
        Op::Binary(BinaryOp::Mul, x, y) => of(x).max(f64::MIN_POSITIVE) * of(y).max(f64::MIN_POSITIVE),
        Op::Binary(BinaryOp::Div, x, y) => match body.constant(y) {
            Some(divisor) if divisor.is_normal() => of(x) / f64::from(divisor).abs(),
            _ => f64::INFINITY,
        },
        Op::Binary(BinaryOp::Min | BinaryOp::Max, x, y) => of(x).max(of(y)),
        Op::Unary(UnaryOp::Neg | UnaryOp::Abs, x) => of(x),
        Op::Unary(UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc, x) => of(x) + 1.0,
        Op::Select(_, x, y) => of(x).max(of(y)),
        Op::Cast(x) => of(x),
        _ => f64::INFINITY,
    }
}

/// The largest magnitude of a constant of floats.
fn largest_constant(program: &Program, buffer: BufferId) -> f64 {
    let buffer = &program.buffers[buffer];
    let MemorySpace::Const(tensor) = &buffer.space else { return f64::INFINITY };
    if buffer.dtype != DType::F32 || tensor.few_bits().is_some() || tensor.elems() > MAX_SEARCHED_ELEMS {
        return f64::INFINITY;
    }
    let magnitudes = tensor.bytes().chunks_exact(4).map(|four| {
        let value = f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
        if value.is_nan() { f64::INFINITY } else { f64::from(value).abs() }
    });
    magnitudes.fold(0.0, f64::max)
}
