//! Values of 64 bits: two vectors, the first half of the iterations and the second.

use super::{
    formulas::{self, SIGN},
    op::Ty,
};
use crate::{
    codegen::vector::{
        Builder,
        vcode::{Int, IntOp, Mask, MaskOp, Mem, VBinary, Vector, WideBinary, WideUnary},
    },
    scalar::{BinaryOp, CompareOp, UnaryOp},
};

/// The two vectors of a value.
pub(super) type Wide = [Vector; 2];

/// Bytes of an element in memory.
const BYTES: usize = 8;

/// The address of the second half of a vector's elements.
fn second(b: &Builder, mem: Mem) -> Mem {
    mem.plus(BYTES / 2 * b.lanes())
}

/// All elements from consecutive memory.
pub(super) fn load(b: &mut Builder, mem: Mem) -> Wide {
    [b.load(mem), b.load(second(b, mem))]
}

/// The numbers of 32-bit lanes that the first `n` elements take in each half.
fn counts(b: &mut Builder, n: Int) -> [Int; 2] {
    let first = b.int_op(IntOp::Add, n, n);
    [first, b.int_op(IntOp::Sub, first, b.lanes() as i32)]
}

/// The first `n` elements from consecutive memory; the others are undefined.
pub(super) fn load_first(b: &mut Builder, mem: Mem, n: Int) -> Wide {
    let halves = [mem, second(b, mem)];
    let counts = counts(b, n);
    [0, 1].map(|half| {
        let mask = b.mask_first(counts[half]);
        b.load_first(halves[half], counts[half], mask)
    })
}

/// One element in all lanes.
pub(super) fn broadcast(b: &mut Builder, mem: Mem) -> Wide {
    [b.wide_broadcast(mem); 2]
}

/// The addresses of both halves of each element.
fn words(addresses: &[Mem]) -> Vec<Mem> {
    addresses.iter().flat_map(|mem| [*mem, mem.plus(BYTES / 2)]).collect()
}

/// Each element from its own address.
pub(super) fn load_lanes(b: &mut Builder, addresses: &[Mem]) -> Wide {
    let (first, second) = addresses.split_at(b.lanes() / 2);
    [first, second].map(|addresses| b.load_lanes(words(addresses)))
}

/// All elements to consecutive memory.
pub(super) fn store(b: &mut Builder, mem: Mem, value: Wide) {
    b.store(mem, value[0]);
    b.store(second(b, mem), value[1]);
}

/// The first `n` elements to consecutive memory.
pub(super) fn store_first(b: &mut Builder, mem: Mem, value: Wide, n: Int) {
    let halves = [mem, second(b, mem)];
    let counts = counts(b, n);
    for half in [0, 1] {
        let mask = b.mask_first(counts[half]);
        b.store_first(halves[half], value[half], counts[half], Some(mask));
    }
}

/// The first element to memory.
pub(super) fn store_one(b: &mut Builder, mem: Mem, value: Wide) {
    b.store_lanes(words(&[mem]), value[0]);
}

/// Each element to its own address.
pub(super) fn store_lanes(b: &mut Builder, addresses: &[Mem], value: Wide) {
    let (first, second) = addresses.split_at(b.lanes() / 2);
    b.store_lanes(words(first), value[0]);
    b.store_lanes(words(second), value[1]);
}

/// These bits in all lanes.
pub(super) fn bits(b: &mut Builder, bits: u64) -> Wide {
    [b.wide_bits(bits); 2]
}

/// `first` where the mask holds, else `second`.
pub(super) fn select(b: &mut Builder, mask: Mask, first: Wide, second: Wide) -> Wide {
    let masks = b.mask_halves(mask);
    [0, 1].map(|half| b.wide_select(masks[half], first[half], second[half]))
}

/// See [`CompareOp`].
pub(super) fn compare(b: &mut Builder, op: CompareOp, ty: Ty, x: Wide, y: Wide) -> Mask {
    let masks = [0, 1].map(|half| match ty {
        Ty::F64 => b.wide_compare(op, x[half], y[half]),
        _ => b.wide_compare_int(op, x[half], y[half]),
    });
    b.join_masks(masks)
}

/// See [`UnaryOp`]; the result is a truth value.
pub(super) fn predicate(b: &mut Builder, op: UnaryOp, x: Wide) -> Mask {
    let infinity = b.double(f64::INFINITY);
    let masks = x.map(|x| match op {
        UnaryOp::IsNan => b.wide_compare(CompareOp::Ne, x, x),
        _ => {
            let magnitude = magnitude(b, x);
            b.wide_compare(CompareOp::Eq, magnitude, infinity)
        }
    });
    b.join_masks(masks)
}

/// See [`UnaryOp`].
pub(super) fn unary(b: &mut Builder, op: UnaryOp, ty: Ty, x: Wide) -> Wide {
    x.map(|x| if ty == Ty::F64 { double_unary(b, op, x, false) } else { int_unary(b, op, x) })
}

/// A function of floats that is computed in double precision.
pub(super) fn float_unary(b: &mut Builder, op: UnaryOp, x: Vector) -> Vector {
    let wide = widened(b, WideUnary::FloatsToDoubles, x).map(|x| double_unary(b, op, x, true));
    narrowed(b, WideUnary::DoublesToFloats, wide)
}

/// A function of two floats that is computed in double precision.
pub(super) fn float_binary(b: &mut Builder, op: BinaryOp, x: Vector, y: Vector) -> Vector {
    let x = widened(b, WideUnary::FloatsToDoubles, x);
    let y = widened(b, WideUnary::FloatsToDoubles, y);
    let wide = binary(b, op, Ty::F64, x, y);
    narrowed(b, WideUnary::DoublesToFloats, wide)
}

/// See [`BinaryOp`].
pub(super) fn binary(b: &mut Builder, op: BinaryOp, ty: Ty, x: Wide, y: Wide) -> Wide {
    [0, 1].map(|half| vector_binary(b, op, ty, x[half], y[half]))
}

/// [`binary`] of one of the two vectors.
pub(super) fn vector_binary(b: &mut Builder, op: BinaryOp, ty: Ty, x: Vector, y: Vector) -> Vector {
    match op {
        BinaryOp::And => b.binary(VBinary::And, x, y),
        BinaryOp::Or => b.binary(VBinary::Or, x, y),
        BinaryOp::Xor => b.binary(VBinary::Xor, x, y),
        _ if ty == Ty::F64 => double_binary(b, op, x, y),
        _ => int_binary(b, op, x, y),
    }
}

pub(super) fn magnitude(b: &mut Builder, x: Vector) -> Vector {
    let mask = b.wide_bits(!SIGN);
    b.binary(VBinary::And, x, mask)
}

fn negated(b: &mut Builder, x: Vector) -> Vector {
    let sign = b.wide_bits(SIGN);
    b.binary(VBinary::Xor, x, sign)
}

/// `in_f32` says that all arguments are representable in `f32`.
fn double_unary(b: &mut Builder, op: UnaryOp, x: Vector, in_f32: bool) -> Vector {
    match op {
        UnaryOp::Neg => negated(b, x),
        UnaryOp::Abs => magnitude(b, x),
        UnaryOp::Sign => {
            let one = b.double(1.0);
            let zero = b.double(0.0);
            let sign = b.wide_bits(SIGN);
            let sign = b.binary(VBinary::And, x, sign);
            let unit = b.binary(VBinary::Or, sign, one);
            let magnitude = magnitude(b, x);
            let nonzero = b.wide_compare(CompareOp::Gt, magnitude, zero);
            b.wide_select(nonzero, unit, x)
        }
        UnaryOp::Floor => b.wide_unary(WideUnary::Floor, x),
        UnaryOp::Ceil => b.wide_unary(WideUnary::Ceil, x),
        UnaryOp::Round => b.wide_unary(WideUnary::Nearest, x),
        UnaryOp::Trunc => b.wide_unary(WideUnary::Trunc, x),
        UnaryOp::Sqrt => b.wide_unary(WideUnary::Sqrt, x),
        UnaryOp::Recip => {
            let one = b.double(1.0);
            b.wide_binary(WideBinary::Div, one, x)
        }
        _ => formulas::unary(b, op, x, in_f32),
    }
}

fn double_binary(b: &mut Builder, op: BinaryOp, x: Vector, y: Vector) -> Vector {
    match op {
        BinaryOp::Add => b.wide_binary(WideBinary::Add, x, y),
        BinaryOp::Sub => b.wide_binary(WideBinary::Sub, x, y),
        BinaryOp::Mul => b.wide_binary(WideBinary::Mul, x, y),
        BinaryOp::Div => b.wide_binary(WideBinary::Div, x, y),
        BinaryOp::Min => smaller(b, x, y),
        BinaryOp::Max => {
            let x = negated(b, x);
            let y = negated(b, y);
            let smaller = smaller(b, x, y);
            negated(b, smaller)
        }
        BinaryOp::Pow => formulas::pow(b, x, y),
        BinaryOp::Atan2 => formulas::atan2(b, x, y),
        _ => unreachable!("`Body::push` refuses {op:?}"),
    }
}

/// The smaller operand, with `-0 < 0`; NaN if either operand is NaN. See `math::min`.
fn smaller(b: &mut Builder, x: Vector, y: Vector) -> Vector {
    let one = b.wide_binary(WideBinary::Min, x, y);
    let other = b.wide_binary(WideBinary::Min, y, x);
    b.binary(VBinary::Or, one, other)
}

fn int_unary(b: &mut Builder, op: UnaryOp, x: Vector) -> Vector {
    let zero = b.wide_bits(0);
    match op {
        UnaryOp::Neg => b.wide_binary(WideBinary::SubInt, zero, x),
        UnaryOp::Abs => {
            let opposite = b.wide_binary(WideBinary::SubInt, zero, x);
            let negative = b.wide_compare_int(CompareOp::Lt, x, zero);
            b.wide_select(negative, opposite, x)
        }
        UnaryOp::Sign => {
            let one = b.wide_bits(1);
            let minus_one = b.wide_bits(u64::MAX);
            let positive = b.wide_compare_int(CompareOp::Gt, x, zero);
            let sign = b.wide_select(positive, one, zero);
            let negative = b.wide_compare_int(CompareOp::Lt, x, zero);
            b.wide_select(negative, minus_one, sign)
        }
        UnaryOp::Not => {
            let all = b.wide_bits(u64::MAX);
            b.binary(VBinary::Xor, x, all)
        }
        _ => x,
    }
}

fn int_binary(b: &mut Builder, op: BinaryOp, x: Vector, y: Vector) -> Vector {
    match op {
        BinaryOp::Add => b.wide_binary(WideBinary::AddInt, x, y),
        BinaryOp::Sub => b.wide_binary(WideBinary::SubInt, x, y),
        BinaryOp::Mul => b.wide_mul(x, y),
        BinaryOp::Min => {
            let less = b.wide_compare_int(CompareOp::Lt, x, y);
            b.wide_select(less, x, y)
        }
        BinaryOp::Max => {
            let less = b.wide_compare_int(CompareOp::Lt, x, y);
            b.wide_select(less, y, x)
        }
        _ => unreachable!("`Body::push` refuses {op:?}"),
    }
}

/// Both halves of 32-bit lanes, converted to 64 bits.
pub(super) fn widened(b: &mut Builder, op: WideUnary, x: Vector) -> Wide {
    let first = b.wide_unary(op, x);
    let second = b.wide_unary(WideUnary::SecondHalf, x);
    [first, b.wide_unary(op, second)]
}

/// Both halves, converted to 32-bit lanes.
pub(super) fn narrowed(b: &mut Builder, op: WideUnary, x: Wide) -> Vector {
    let [first, second] = x.map(|x| b.wide_unary(op, x));
    b.wide_binary(WideBinary::JoinHalves, first, second)
}

/// A truth value as 0 or 1.
pub(super) fn from_truth(b: &mut Builder, to: Ty, mask: Mask) -> Wide {
    let one = if to == Ty::F64 { 1f64.to_bits() } else { 1 };
    let one = bits(b, one);
    let zero = bits(b, 0);
    select(b, mask, one, zero)
}

/// Lanes of 32 bits, floats or integers as `from` says, as a 64-bit type.
pub(super) fn from_lanes(b: &mut Builder, from: Ty, to: Ty, x: Vector) -> Wide {
    match (from, to) {
        (Ty::F32 | Ty::Bf16 | Ty::F16, Ty::F64) => widened(b, WideUnary::FloatsToDoubles, x),
        (Ty::F32 | Ty::Bf16 | Ty::F16, _) => {
            widened(b, WideUnary::FloatsToDoubles, x).map(|x| b.double_to_int(x))
        }
        (_, Ty::F64) => widened(b, WideUnary::IntsToDoubles, x),
        _ => widened(b, WideUnary::ExtendInts, x),
    }
}

/// A 64-bit type as another.
pub(super) fn cast(b: &mut Builder, from: Ty, to: Ty, x: Wide) -> Wide {
    match (from, to) {
        (Ty::F64, Ty::I64) => x.map(|x| b.double_to_int(x)),
        (Ty::I64, Ty::F64) => x.map(|x| b.int_to_double(x)),
        _ => x,
    }
}

/// A 64-bit type as floats.
pub(super) fn to_floats(b: &mut Builder, from: Ty, x: Wide) -> Vector {
    match from {
        Ty::F64 => narrowed(b, WideUnary::DoublesToFloats, x),
        _ if b.shape().long_ints => narrowed(b, WideUnary::LongsToFloats, x),
        _ => ints_to_floats(b, x),
    }
}

/// Integers as floats, rounded once. Integers from 2^53 on are rounded as doubles already, so they take another way.
fn ints_to_floats(b: &mut Builder, x: Wide) -> Vector {
    let doubles = x.map(|x| b.int_to_double(x));
    let floats = narrowed(b, WideUnary::DoublesToFloats, doubles);
    let result = b.variable(floats);

    let limit = b.double(2f64.powi(53));
    let [first, second] = doubles.map(|x| {
        let magnitude = magnitude(b, x);
        b.wide_compare(CompareOp::Ge, magnitude, limit)
    });
    let large = b.mask_op(MaskOp::Or, first, second);
    let any = b.any_lane(large);
    b.begin_when(CompareOp::Ne, any, 0);
    let doubles = x.map(|x| int_to_odd_double(b, x));
    let floats = narrowed(b, WideUnary::DoublesToFloats, doubles);
    b.set(result, floats);
    b.end_when();
    result
}

/// Integers as doubles that round to the same floats.
///
/// Integers from 2^53 on lose their low 11 bits first. If any of these is set, the lowest remaining bit is set, which
/// is far below the last bit of the float.
fn int_to_odd_double(b: &mut Builder, x: Vector) -> Vector {
    let low_mask = b.wide_bits(0x7ff);
    let high_mask = b.wide_bits(!0x7ff);
    let low = b.binary(VBinary::And, x, low_mask);
    let carried = b.wide_binary(WideBinary::AddInt, low, low_mask);
    let sticky = b.binary(VBinary::Or, x, carried);
    let odd = b.binary(VBinary::And, sticky, high_mask);

    let shift = b.wide_bits(1 << 53);
    let limit = b.wide_bits(1 << 54);
    let zero = b.wide_bits(0);
    let shifted = b.wide_binary(WideBinary::AddInt, x, shift);
    let above = b.wide_compare_int(CompareOp::Gt, shifted, limit);
    let below = b.wide_compare_int(CompareOp::Lt, shifted, zero);
    let rounded = b.wide_select(above, odd, x);
    let rounded = b.wide_select(below, odd, rounded);
    b.int_to_double(rounded)
}

/// A 64-bit type as integers of at most 32 bits, whose range is `lo..=hi`. Doubles are truncated and saturated, NaN
/// gives 0. Integers lose their high halves, and may still be outside of the range.
pub(super) fn to_ints(b: &mut Builder, from: Ty, [lo, hi]: [f64; 2], x: Wide) -> Vector {
    if from == Ty::I64 {
        return narrowed(b, WideUnary::LowInts, x);
    }
    let lo = b.double(lo);
    let hi = b.double(hi);
    let zero = b.double(0.0);
    let bounded = x.map(|x| {
        let nan = b.wide_compare(CompareOp::Ne, x, x);
        let x = b.wide_select(nan, zero, x);
        let x = b.wide_binary(WideBinary::Max, x, lo);
        b.wide_binary(WideBinary::Min, x, hi)
    });
    narrowed(b, WideUnary::DoublesToInts, bounded)
}

/// Whether the value is not zero.
pub(super) fn to_truth(b: &mut Builder, from: Ty, x: Wide) -> Mask {
    let zero = bits(b, 0);
    compare(b, CompareOp::Ne, from, x, zero)
}
