//! Elementary functions of f32 vectors, as polynomials written over the vector builder.
//!
//! Each is within [`MAX_ULP`] of the exact result, subnormal results included. NaN, infinities and zeros give the
//! limits that `scalar::eval` defines. The coefficients are minimax fits (min squares with Lawson's weights) to the
//! interval in their comment.

use crate::codegen::vector::{
    Builder,
    vcode::{Mask, MaskOp, ShiftOp, VBinary, VUnary, Vector},
};
use crate::scalar::CompareOp;
use std::ops::RangeInclusive;

/// Largest error of these functions in units in the last place of the exact result, with or without fused multiply-add.
pub const MAX_ULP: f64 = 2.0;

/// Largest error of the functions that are computed in double precision (`op::is_computed_in_double`) and rounded
/// once: half a unit, and the error of the double.
pub const DOUBLE_ULP: f64 = 0.500_001;

/// Limits of [`exp_above`]: even half of the smallest power is a normal float.
pub(super) const LIMITS: RangeInclusive<f32> = -86.6..=0.0;

/// `e^x` is infinite here and above.
const LARGEST_EXP: f32 = 89.0;

/// `ln 2` as the sum of two floats. The first has few enough bits for an exact product with an exponent.
const LN2_HI: f32 = 0.693_359_4;
const LN2_LO: f32 = -2.121_944_4e-4;

/// `(e^r - 1 - r) / r²` on |r| <= ln 2 / 2; the error is relative to `e^r`.
const EXP: [f32; 5] = [4.999_999_4e-1, 1.666_652_1e-1, 4.166_839e-2, 8.368_745e-3, 1.381_454e-3];
/// The same function; the error is relative to `r`.
const EXPM1: [f32; 6] = [0.5, 1.666_666_7e-1, 4.166_635_5e-2, 8.333_273e-3, 1.394_105e-3, 1.991_422_9e-4];
/// `(ln(1 + f) - f + f² / 2) / f³` on 1 + f in √½..√2.
const LOG: [f32; 9] = [
    3.333_331e-1,
    -2.499_998_7e-1,
    2.000_222_7e-1,
    -1.666_925e-1,
    1.421_865_5e-1,
    -1.238_437e-1,
    1.187_301_65e-1,
    -1.178_969_6e-1,
    6.915_147e-2,
];
/// `(tanh x - x) / x³` in `x²` on |x| <= 0.65.
const TANH: [f32; 6] =
    [-3.333_332_8e-1, 1.333_315_8e-1, -5.394_056_4e-2, 2.166_634_6e-2, -8.091_968e-3, 2.064_665e-3];
/// `erf x / x - 1` in `x²` on |x| <= 0.95.
const ERF_NEAR: [f32; 7] = [
    1.283_791_7e-1,
    -3.761_263_2e-1,
    1.128_367_3e-1,
    -2.685_810_4e-2,
    5.197_797_4e-3,
    -8.105_966e-4,
    8.215_426e-5,
];
/// `-ln(1 - erf x)` on 0.9..4; the error is weighted by `1 - erf x`.
const ERF_FAR: [f32; 8] = [
    -1.692_039_5e-4,
    1.129_488_3,
    6.334_008_6e-1,
    1.082_203_7e-1,
    -2.508_060_6e-2,
    4.156_250_5e-3,
    -4.313_926e-4,
    2.082_853e-5,
];

/// `Σ coefficients[i] * x^i`.
pub(super) fn polynomial(b: &mut Builder, x: Vector, coefficients: &[f32]) -> Vector {
    let (last, rest) = coefficients.split_last().expect("a polynomial has coefficients");
    let mut sum = b.float(*last);
    for &coefficient in rest.iter().rev() {
        let coefficient = b.float(coefficient);
        sum = b.fma(sum, x, coefficient);
    }
    sum
}

/// `|x|`.
pub(super) fn abs(b: &mut Builder, x: Vector) -> Vector {
    let mask = b.bits(0x7fff_ffff);
    b.binary(VBinary::And, x, mask)
}

/// `-x`.
pub(super) fn neg(b: &mut Builder, x: Vector) -> Vector {
    let sign = b.bits(0x8000_0000);
    b.binary(VBinary::Xor, x, sign)
}

/// `magnitude`, which is not negative, with the sign of `x`.
pub(super) fn with_sign(b: &mut Builder, magnitude: Vector, x: Vector) -> Vector {
    let sign = b.bits(0x8000_0000);
    let sign = b.binary(VBinary::And, x, sign);
    b.binary(VBinary::Or, magnitude, sign)
}

/// The lanes that are NaN.
pub(super) fn is_nan(b: &mut Builder, x: Vector) -> Mask {
    b.compare(CompareOp::Ne, x, x)
}

/// Whether [`Builder::majority`] is one instruction.
fn has_majority(b: &Builder) -> bool {
    b.shape().registers >= 32 && b.lanes() == 16
}

/// Whether a minimum takes fewer instructions than a maximum, so that a maximum is that of negated operands.
pub(super) fn prefers_min(b: &Builder) -> bool {
    !b.shape().extrema && !has_majority(b)
}

/// The larger operand, with `-0 < 0`; NaN if either operand is NaN.
pub(super) fn max(b: &mut Builder, x: Vector, y: Vector) -> Vector {
    if b.shape().extrema {
        return b.binary(VBinary::Largest, x, y);
    }
    if has_majority(b) {
        // The two orders differ only where an operand is NaN or both are zero. There, a NaN keeps all of its bits but
        // the sign, and the sign of the result is set only if both signs are.
        let one = b.binary(VBinary::Max, x, y);
        let other = b.binary(VBinary::Max, y, x);
        let magnitude = b.bits(!(1 << 31));
        return b.majority(one, other, magnitude);
    }
    // max(x, y) = -min(-x, -y), and min is cheap to make exact.
    let x = neg(b, x);
    let y = neg(b, y);
    let smaller = min(b, x, y);
    neg(b, smaller)
}

/// The smaller operand, with `-0 < 0`; NaN if either operand is NaN.
pub(super) fn min(b: &mut Builder, x: Vector, y: Vector) -> Vector {
    if b.shape().extrema {
        return b.binary(VBinary::Smallest, x, y);
    }
    // The two orders differ only where an operand is NaN or both are zero. There, `Or` keeps the NaN and the sign.
    let one = b.binary(VBinary::Min, x, y);
    let other = b.binary(VBinary::Min, y, x);
    b.binary(VBinary::Or, one, other)
}

/// [`max`] of `x` and a constant that is not NaN.
pub(super) fn max_constant(b: &mut Builder, x: Vector, constant: f32) -> Vector {
    let bound = b.float(constant);
    if b.shape().extrema {
        return b.binary(VBinary::Largest, bound, x);
    }
    let largest = b.binary(VBinary::Max, bound, x);
    if constant.to_bits() != 0 {
        return largest;
    }
    // Of two zeros `Max` returns `x`. Adding 0 turns -0 into 0 and changes no other value.
    b.binary(VBinary::Add, largest, bound)
}

/// [`min`] of `x` and a constant that is not NaN.
pub(super) fn min_constant(b: &mut Builder, x: Vector, constant: f32) -> Vector {
    let bound = b.float(constant);
    if b.shape().extrema || constant.to_bits() == 0x8000_0000 {
        return min(b, x, bound);
    }
    b.binary(VBinary::Min, bound, x)
}

/// `2^n` for integers `n` in -126..=127, of which only the low nine bits count.
pub(super) fn power_of_two(b: &mut Builder, n: Vector) -> Vector {
    let bias = b.bits(127);
    let biased = b.binary(VBinary::AddInt, n, bias);
    b.shift(ShiftOp::Left, biased, 23)
}

/// The parts of `x = n ln 2 + r`, with an integer `n` and |r| <= ln 2 / 2.
struct ReducedExp {
    /// As float.
    n: Vector,
    /// An integer whose low nine bits are those of `n`.
    low_bits: Vector,
    r: Vector,
}

/// Splits `x`, whose magnitude is at most 1,000.
fn reduce_exp(b: &mut Builder, x: Vector) -> ReducedExp {
    // The last place of this float is 1, so that the sum is rounded to an integer. Its low nine bits are zero.
    let integers = b.float(1.5 * (1u32 << 23) as f32);
    let scale = b.float(std::f32::consts::LOG2_E);
    let low_bits = b.fma(x, scale, integers);
    let n = b.binary(VBinary::Sub, low_bits, integers);
    let hi = b.float(-LN2_HI);
    let lo = b.float(-LN2_LO);
    let r = b.fma(n, hi, x);
    ReducedExp { n, low_bits, r: b.fma(n, lo, r) }
}

/// `e^r` for |r| <= ln 2 / 2.
fn exp_near(b: &mut Builder, r: Vector) -> Vector {
    let tail = polynomial(b, r, &EXP);
    let one = b.float(1.0);
    let slope = b.fma(tail, r, one);
    b.fma(slope, r, one)
}

/// `e^r - 1` for |r| <= ln 2 / 2.
pub(super) fn expm1_near(b: &mut Builder, r: Vector) -> Vector {
    let tail = polynomial(b, r, &EXPM1);
    let square = b.binary(VBinary::Mul, r, r);
    b.fma(tail, square, r)
}

/// `e^x`.
pub(super) fn exp(b: &mut Builder, x: Vector) -> Vector {
    // Below, results are rounded to zero.
    let limit = -104.0;
    if b.lanes() == 16 {
        return scaled_exp(b, x, limit);
    }
    let x = clamp(b, x, limit, LARGEST_EXP);
    let ReducedExp { n, r, .. } = reduce_exp(b, x);
    let value = exp_near(b, r);
    scale_by_power(b, value, n)
}

/// `e^x`, and 0 for `x` below `limit`. The limit is one of [`LIMITS`], so that no result is subnormal.
pub(super) fn exp_above(b: &mut Builder, x: Vector, limit: f32) -> Vector {
    debug_assert!(LIMITS.contains(&limit));
    if b.lanes() == 16 {
        return scaled_exp(b, x, limit);
    }
    let clamped = clamp(b, x, limit, LARGEST_EXP);
    let ReducedExp { low_bits, r, .. } = reduce_exp(b, clamped);
    let value = exp_near(b, r);

    // 2^128 is not a float, but its half is.
    let bias = b.bits(126);
    let biased = b.binary(VBinary::AddInt, low_bits, bias);
    let half_power = b.shift(ShiftOp::Left, biased, 23);
    let half = b.binary(VBinary::Mul, value, half_power);
    let value = b.binary(VBinary::Add, half, half);

    let lowest = b.float(limit);
    let zero = b.float(0.0);
    let is_below = b.compare(CompareOp::Lt, x, lowest);
    b.select(is_below, zero, value)
}

/// `e^x`, and 0 for `x` below `limit`, with [`Builder::scale_unless_less`]. Where a scaled number is rounded to a
/// subnormal number or to zero, it takes over a hundred cycles on Intel's processors.
fn scaled_exp(b: &mut Builder, x: Vector, limit: f32) -> Vector {
    // Below the limit, the other parts may be anything.
    let bounded = min_constant(b, x, LARGEST_EXP);
    let ReducedExp { n, r, .. } = reduce_exp(b, bounded);
    let value = exp_near(b, r);
    let lowest = b.float(limit);
    b.scale_unless_less(value, n, x, lowest)
}

/// `e^x` as a float near 1 and a power of two to multiply it by. `e^x` must be neither subnormal nor infinite.
fn exp_in_two(b: &mut Builder, x: Vector) -> (Vector, Vector) {
    let ReducedExp { low_bits, r, .. } = reduce_exp(b, x);
    let near = exp_near(b, r);
    (near, power_of_two(b, low_bits))
}

/// `x` clamped to the bounds; NaN stays NaN.
pub(super) fn clamp(b: &mut Builder, x: Vector, lo: f32, hi: f32) -> Vector {
    let x = max_constant(b, x, lo);
    min_constant(b, x, hi)
}

/// `value * 2^n`, rounded once. Without an instruction these are two multiplications, of which the first is exact. They
/// reach subnormal results and results near the largest float.
pub(super) fn scale_by_power(b: &mut Builder, value: Vector, n: Vector) -> Vector {
    if b.lanes() == 16 {
        return b.binary(VBinary::Scale, value, n);
    }
    let n = b.unary(VUnary::ToInt, n);
    let half = b.shift(ShiftOp::RightSigned, n, 1);
    let rest = b.binary(VBinary::SubInt, n, half);
    let first = power_of_two(b, half);
    let second = power_of_two(b, rest);
    let value = b.binary(VBinary::Mul, value, first);
    b.binary(VBinary::Mul, value, second)
}

/// `e^x - 1`.
pub(super) fn expm1(b: &mut Builder, x: Vector) -> Vector {
    let clamped = clamp(b, x, -104.0, 88.7);
    let ReducedExp { n, r, .. } = reduce_exp(b, clamped);
    let near = expm1_near(b, r);

    // 2^n (near + 1) - 1, computed with 2^(n - 1) because 2^128 is not a float.
    let int = b.unary(VUnary::ToInt, n);
    let minus_one = b.bits(u32::MAX);
    let less = b.binary(VBinary::AddInt, int, minus_one);
    let floor = b.bits((-126i32) as u32);
    let less = b.binary(VBinary::MaxInt, less, floor);
    let half_power = power_of_two(b, less);
    let half = b.float(0.5);
    let rest = b.binary(VBinary::Sub, half_power, half);
    let value = b.fma(near, half_power, rest);
    let value = b.binary(VBinary::Add, value, value);

    // Larger arguments have infinite results. -0 stays -0.
    let limit = b.float(88.7);
    let infinity = b.float(f32::INFINITY);
    let zero = b.float(0.0);
    let over = b.compare(CompareOp::Gt, x, limit);
    let full = exp(b, x);
    let value = b.select(over, full, value);
    let huge = b.compare(CompareOp::Eq, x, infinity);
    let value = b.select(huge, infinity, value);
    let null = b.compare(CompareOp::Eq, x, zero);
    b.select(null, x, value)
}

/// Splits a positive finite `x = 2^e m` into `m` in √½..√2 and `e`, an integer as float.
pub(super) fn mantissa_and_exponent(b: &mut Builder, x: Vector) -> (Vector, Vector) {
    let smallest = b.float(f32::MIN_POSITIVE);
    let subnormal = b.compare(CompareOp::Lt, x, smallest);
    let scale = b.float((1u32 << 23) as f32);
    let scaled = b.binary(VBinary::Mul, x, scale);
    let normal = b.select(subnormal, scaled, x);

    // With the bits of √½ subtracted, the exponent field is `e`.
    let root = b.bits(std::f32::consts::FRAC_1_SQRT_2.to_bits());
    let offset = b.binary(VBinary::SubInt, normal, root);
    let exponent = b.shift(ShiftOp::RightSigned, offset, 23);
    let exponent_bits = b.shift(ShiftOp::Left, exponent, 23);
    let mantissa = b.binary(VBinary::SubInt, normal, exponent_bits);
    let exponent = b.unary(VUnary::ToFloat, exponent);
    let less = b.float(-23.0);
    let zero = b.float(0.0);
    let correction = b.select(subnormal, less, zero);
    (mantissa, b.binary(VBinary::Add, exponent, correction))
}

/// `ln x`.
pub(super) fn log(b: &mut Builder, x: Vector) -> Vector {
    let (mantissa, exponent) = mantissa_and_exponent(b, x);
    let one = b.float(1.0);
    let f = b.binary(VBinary::Sub, mantissa, one);
    let value = log_near(b, f, exponent);
    log_limits(b, x, value)
}

/// `ln(1 + f) + exponent * ln 2` for 1 + f in √½..√2.
fn log_near(b: &mut Builder, f: Vector, exponent: Vector) -> Vector {
    let tail = polynomial(b, f, &LOG);
    let square = b.binary(VBinary::Mul, f, f);
    let cube = b.binary(VBinary::Mul, square, f);
    let hi = b.float(LN2_HI);
    let lo = b.float(LN2_LO);
    let minus_half = b.float(-0.5);
    let low = b.binary(VBinary::Mul, exponent, lo);
    let low = b.fma(tail, cube, low);
    let low = b.fma(square, minus_half, low);
    let low = b.binary(VBinary::Add, low, f);
    b.fma(exponent, hi, low)
}

/// The limits of a logarithm of `x`: -inf at 0, NaN for negative `x`; inf and NaN stay.
fn log_limits(b: &mut Builder, x: Vector, value: Vector) -> Vector {
    let zero = b.float(0.0);
    let infinity = b.float(f32::INFINITY);
    let nan = b.float(f32::NAN);
    let minus_infinity = b.float(f32::NEG_INFINITY);
    let below = b.compare(CompareOp::Lt, x, zero);
    let value = b.select(below, nan, value);
    let null = b.compare(CompareOp::Eq, x, zero);
    let value = b.select(null, minus_infinity, value);
    // NaN and infinity are their own logarithm.
    let finite = b.compare(CompareOp::Lt, x, infinity);
    b.select(finite, value, x)
}

/// `ln(1 + x)`.
pub(super) fn log1p(b: &mut Builder, x: Vector) -> Vector {
    let one = b.float(1.0);
    let u = b.binary(VBinary::Add, x, one);
    let value = log(b, u);

    // The rounding error d of 1 + x enters as ln(u + d) = ln u + d / u.
    let kept = b.binary(VBinary::Sub, u, one);
    let lost = b.binary(VBinary::Sub, x, kept);
    let correction = b.binary(VBinary::Div, lost, u);
    let corrected = b.binary(VBinary::Add, value, correction);

    // Infinite results have no correction. Where 1 + x rounds to 1, the result is x.
    let infinity = b.float(f32::INFINITY);
    let zero = b.float(0.0);
    let magnitude = abs(b, value);
    let endless = b.compare(CompareOp::Eq, magnitude, infinity);
    let value = b.select(endless, value, corrected);
    let tiny = b.compare(CompareOp::Eq, kept, zero);
    b.select(tiny, x, value)
}

/// Hyperbolic tangent.
pub(super) fn tanh(b: &mut Builder, x: Vector) -> Vector {
    let square = b.binary(VBinary::Mul, x, x);
    let tail = polynomial(b, square, &TANH);
    // The sum with 0 keeps the sign of a zero in the next step.
    let zero = b.float(0.0);
    let tail = b.fma(tail, square, zero);
    let near = b.fma(tail, x, x);

    // 1 - 2 / (e^2|x| + 1).
    let magnitude = abs(b, x);
    let one = b.float(1.0);
    let minus_two = b.float(-2.0);
    let bounded = min_constant(b, magnitude, 9.1);
    let double = b.binary(VBinary::Add, bounded, bounded);
    let (power, scale) = exp_in_two(b, double);
    let power = b.fma(power, scale, one);
    let quotient = b.binary(VBinary::Div, minus_two, power);
    let far = b.binary(VBinary::Add, quotient, one);
    let far = with_sign(b, far, x);

    let limit = b.float(0.625);
    let large = b.compare(CompareOp::Gt, magnitude, limit);
    b.select(large, far, near)
}

/// The error function.
pub(super) fn erf(b: &mut Builder, x: Vector) -> Vector {
    let square = b.binary(VBinary::Mul, x, x);
    let factor = polynomial(b, square, &ERF_NEAR);
    let near = b.fma(factor, x, x);

    // 1 - e^-p(|x|).
    let magnitude = abs(b, x);
    let one = b.float(1.0);
    let bounded = min_constant(b, magnitude, 4.0);
    let exponent = polynomial(b, bounded, &ERF_FAR);
    let exponent = neg(b, exponent);
    let (power, scale) = exp_in_two(b, exponent);
    let power = b.binary(VBinary::Mul, power, scale);
    let far = b.binary(VBinary::Sub, one, power);
    let far = with_sign(b, far, x);

    let limit = b.float(0.92);
    let large = b.compare(CompareOp::Gt, magnitude, limit);
    b.select(large, far, near)
}

/// Converts floats to integers toward zero, saturating; NaN gives 0.
pub(super) fn to_int(b: &mut Builder, x: Vector) -> Vector {
    let value = b.unary(VUnary::ToInt, x);

    // -2^31 itself fits.
    let limit = b.float(2_147_483_648.0);
    let max = b.bits(i32::MAX as u32);
    let min = b.bits(i32::MIN as u32);
    let over = b.compare(CompareOp::Ge, x, limit);
    let value = b.select(over, max, value);

    let bottom = b.float(-2_147_483_648.0);
    let under = b.compare(CompareOp::Lt, x, bottom);
    let value = b.select(under, min, value);

    let nan = is_nan(b, x);
    let zero = b.bits(0);

    b.select(nan, zero, value)
}

/// Converts floats to integers toward zero, clamped to the bounds; NaN gives 0. `lo` is not positive.
pub(super) fn to_byte(b: &mut Builder, x: Vector, lo: f32, hi: f32) -> Vector {
    let min = b.float(lo);
    let max = b.float(hi);
    let zero = b.float(0.0);

    let mut x = x;
    if lo != 0.0 {
        let nan = is_nan(b, x);
        x = b.select(nan, zero, x);
    }

    // For NaN `Max` returns `lo`, which is 0 here.
    let x = b.binary(VBinary::Max, x, min);
    let x = b.binary(VBinary::Min, x, max);
    b.unary(VUnary::ToInt, x)
}

/// -1 or 1 with the sign of `x`; NaN and zeros stay.
pub(super) fn sign(b: &mut Builder, x: Vector) -> Vector {
    let one = b.float(1.0);
    let zero = b.float(0.0);
    let unit = with_sign(b, one, x);
    let magnitude = abs(b, x);
    let nonzero = b.compare(CompareOp::Gt, magnitude, zero);
    b.select(nonzero, unit, x)
}

/// The lanes that are infinite.
pub(super) fn is_inf(b: &mut Builder, x: Vector) -> Mask {
    let magnitude = abs(b, x);
    let infinity = b.float(f32::INFINITY);
    b.compare(CompareOp::Eq, magnitude, infinity)
}

/// The complement of a mask.
pub(super) fn not(b: &mut Builder, mask: Mask) -> Mask {
    let zero = b.bits(0);
    let all = b.compare_int(CompareOp::Eq, zero, zero);
    b.mask_op(MaskOp::Xor, mask, all)
}
