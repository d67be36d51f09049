//! Elementary functions of f32 vectors, as polynomials written over the vector builder.
//!
//! Each is within [`MAX_ULP`] of the exact result, subnormal results included, and has the limits that
//! `scalar::eval` defines: NaN stays NaN, infinities and zeros go where the function goes. The coefficients are minimax
//! fits (least squares with Lawson's weights) to the interval named beside them.

use crate::codegen::vector::{
    Builder,
    vcode::{Mask, MaskOp, ShiftOp, VBinary, VUnary, Vector},
};
use crate::scalar::CompareOp;

/// Largest error of the functions here, in units in the last place of the exact result, on ISAs with fused multiply-add and
/// on those without.
pub const MAX_ULP: f64 = 2.0;

/// `ln 2` in two parts; the first has so few bits that its product with an exponent is exact.
const LN2_HI: f32 = 0.693_359_4;
const LN2_LO: f32 = -2.121_944_4e-4;

/// `(e^r - 1 - r) / r²` on |r| <= ln 2 / 2, error relative to `r`.
const EXP: [f32; 6] = [0.5, 1.666_666_7e-1, 4.166_635_5e-2, 8.333_273e-3, 1.394_105e-3, 1.991_422_9e-4];
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
/// `-ln(1 - erf x)` on 0.9..4, error weighted by `1 - erf x`.
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
pub fn abs(b: &mut Builder, x: Vector) -> Vector {
    let mask = b.bits(0x7fff_ffff);
    b.binary(VBinary::And, x, mask)
}

/// `-x`.
pub fn neg(b: &mut Builder, x: Vector) -> Vector {
    let sign = b.bits(0x8000_0000);
    b.binary(VBinary::Xor, x, sign)
}

/// `magnitude` with the sign of `x`; the magnitude must not be negative.
fn with_sign(b: &mut Builder, magnitude: Vector, x: Vector) -> Vector {
    let sign = b.bits(0x8000_0000);
    let sign = b.binary(VBinary::And, x, sign);
    b.binary(VBinary::Or, magnitude, sign)
}

/// NaN lanes.
pub fn is_nan(b: &mut Builder, x: Vector) -> Mask {
    b.compare(CompareOp::Ne, x, x)
}

/// Larger one; NaN if either is, and `-0 < 0`.
pub fn max(b: &mut Builder, x: Vector, y: Vector) -> Vector {
    // max(x, y) = -min(-x, -y), and min is cheap to make exact.
    let (x, y) = (neg(b, x), neg(b, y));
    let least = min(b, x, y);
    neg(b, least)
}

/// Smaller one; NaN if either is, and `-0 < 0`.
pub fn min(b: &mut Builder, x: Vector, y: Vector) -> Vector {
    // Both orders differ only where an operand is NaN or both are zero: there, or-ing keeps the NaN and the sign.
    let (one, other) = (b.binary(VBinary::Min, x, y), b.binary(VBinary::Min, y, x));
    b.binary(VBinary::Or, one, other)
}

/// [`max`] of `x` and a constant that is not NaN.
pub fn max_constant(b: &mut Builder, x: Vector, constant: f32) -> Vector {
    let bound = b.float(constant);
    let largest = b.binary(VBinary::Max, bound, x);
    if constant.to_bits() != 0 {
        return largest;
    }
    // Of two zeros the step returns `x`; adding 0 turns -0 into 0 and nothing else.
    b.binary(VBinary::Add, largest, bound)
}

/// [`min`] of `x` and a constant that is not NaN.
pub fn min_constant(b: &mut Builder, x: Vector, constant: f32) -> Vector {
    let bound = b.float(constant);
    if constant.to_bits() == 0x8000_0000 {
        return min(b, x, bound);
    }
    b.binary(VBinary::Min, bound, x)
}

/// `2^n` for integers `n` in -126..=127.
fn power_of_two(b: &mut Builder, n: Vector) -> Vector {
    let bias = b.bits(127);
    let biased = b.binary(VBinary::AddInt, n, bias);
    b.shift(ShiftOp::Left, biased, 23)
}

/// `n` (an integer as float) and `r` with `x = n ln 2 + r`, |r| <= ln 2 / 2.
fn reduce_exp(b: &mut Builder, x: Vector) -> (Vector, Vector) {
    let scale = b.float(std::f32::consts::LOG2_E);
    let n = b.binary(VBinary::Mul, x, scale);
    let n = b.unary(VUnary::Nearest, n);
    let (hi, lo) = (b.float(-LN2_HI), b.float(-LN2_LO));
    let r = b.fma(n, hi, x);
    (n, b.fma(n, lo, r))
}

/// `e^r - 1` for |r| <= ln 2 / 2.
pub(super) fn expm1_near(b: &mut Builder, r: Vector) -> Vector {
    let tail = polynomial(b, r, &EXP);
    let square = b.binary(VBinary::Mul, r, r);
    b.fma(tail, square, r)
}

/// `e^x`.
pub fn exp(b: &mut Builder, x: Vector) -> Vector {
    let x = clamp(b, x, -104.0, 89.0);
    let (n, r) = reduce_exp(b, x);
    let near = expm1_near(b, r);
    let one = b.float(1.0);
    let value = b.binary(VBinary::Add, near, one);
    scale_by_power(b, value, n)
}

/// `e^x` as a number near `one`, which is 1, and the power of two that it is to be multiply_parts by; for `x` whose power is
/// neither subnormal nor infinite.
fn exp_in_two(b: &mut Builder, x: Vector, one: Vector) -> (Vector, Vector) {
    let (n, r) = reduce_exp(b, x);
    let near = expm1_near(b, r);
    let near = b.binary(VBinary::Add, near, one);
    let n = b.unary(VUnary::ToInt, n);
    (near, power_of_two(b, n))
}

/// `x` within the bounds; NaN stays.
pub(super) fn clamp(b: &mut Builder, x: Vector, lo: f32, hi: f32) -> Vector {
    let (lo, hi) = (b.float(lo), b.float(hi));
    let x = b.binary(VBinary::Max, lo, x);
    b.binary(VBinary::Min, hi, x)
}

/// `value * 2^n` in two steps, so that subnormal results and those near the largest float are reached.
pub(super) fn scale_by_power(b: &mut Builder, value: Vector, n: Vector) -> Vector {
    let n = b.unary(VUnary::ToInt, n);
    let half = b.shift(ShiftOp::RightSigned, n, 1);
    let rest = b.binary(VBinary::SubInt, n, half);
    let (first, second) = (power_of_two(b, half), power_of_two(b, rest));
    let value = b.binary(VBinary::Mul, value, first);
    b.binary(VBinary::Mul, value, second)
}

/// `e^x - 1`.
pub fn expm1(b: &mut Builder, x: Vector) -> Vector {
    let clamped = clamp(b, x, -104.0, 88.7);
    let (n, r) = reduce_exp(b, clamped);
    let near = expm1_near(b, r);
    // 2^n (near + 1) - 1, with 2^(n - 1) because 2^128 is no float.
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
    // Above, the result is infinite; an exact -0 must stay.
    let (limit, infinity, zero) = (b.float(88.7), b.float(f32::INFINITY), b.float(0.0));
    let over = b.compare(CompareOp::Gt, x, limit);
    let full = exp(b, x);
    let value = b.select(over, full, value);
    let huge = b.compare(CompareOp::Eq, x, infinity);
    let value = b.select(huge, infinity, value);
    let null = b.compare(CompareOp::Eq, x, zero);
    b.select(null, x, value)
}

/// `m` in √½..√2 and an integer `e`, as a float, with `x = 2^e m`; for positive finite `x`.
pub(super) fn mantissa_and_exponent(b: &mut Builder, x: Vector) -> (Vector, Vector) {
    let smallest = b.float(f32::MIN_POSITIVE);
    let subnormal = b.compare(CompareOp::Lt, x, smallest);
    let scale = b.float((1u32 << 23) as f32);
    let scaled = b.binary(VBinary::Mul, x, scale);
    let normal = b.select(subnormal, scaled, x);
    // Subtracts the bits of √½ and splits.
    let root = b.bits(std::f32::consts::FRAC_1_SQRT_2.to_bits());
    let offset = b.binary(VBinary::SubInt, normal, root);
    let exponent = b.shift(ShiftOp::RightSigned, offset, 23);
    let exponent_bits = b.shift(ShiftOp::Left, exponent, 23);
    let mantissa = b.binary(VBinary::SubInt, normal, exponent_bits);
    let exponent = b.unary(VUnary::ToFloat, exponent);
    let (less, zero) = (b.float(-23.0), b.float(0.0));
    let correction = b.select(subnormal, less, zero);
    (mantissa, b.binary(VBinary::Add, exponent, correction))
}

/// `ln x`.
pub fn log(b: &mut Builder, x: Vector) -> Vector {
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
    let (hi, lo, minus_half) = (b.float(LN2_HI), b.float(LN2_LO), b.float(-0.5));
    let low = b.binary(VBinary::Mul, exponent, lo);
    let low = b.fma(tail, cube, low);
    let low = b.fma(square, minus_half, low);
    let low = b.binary(VBinary::Add, low, f);
    b.fma(exponent, hi, low)
}

/// The limits of a logarithm of `x`: -inf at 0, NaN below, inf and NaN as they are.
fn log_limits(b: &mut Builder, x: Vector, value: Vector) -> Vector {
    let (zero, infinity) = (b.float(0.0), b.float(f32::INFINITY));
    let (nan, minus_infinity) = (b.float(f32::NAN), b.float(f32::NEG_INFINITY));
    let below = b.compare(CompareOp::Lt, x, zero);
    let value = b.select(below, nan, value);
    let null = b.compare(CompareOp::Eq, x, zero);
    let value = b.select(null, minus_infinity, value);
    // Unordered or infinite: the operand itself.
    let finite = b.compare(CompareOp::Lt, x, infinity);
    b.select(finite, value, x)
}

/// `ln(1 + x)`.
pub fn log1p(b: &mut Builder, x: Vector) -> Vector {
    let one = b.float(1.0);
    let u = b.binary(VBinary::Add, x, one);
    let value = log(b, u);
    // What was lost in rounding 1 + x, relative to it: ln(u + d) = ln u + d / u.
    let kept = b.binary(VBinary::Sub, u, one);
    let lost = b.binary(VBinary::Sub, x, kept);
    let correction = b.binary(VBinary::Div, lost, u);
    let corrected = b.binary(VBinary::Add, value, correction);
    // Infinite results have no correction, and what rounds to 1 has itself as its logarithm.
    let (infinity, zero) = (b.float(f32::INFINITY), b.float(0.0));
    let magnitude = abs(b, value);
    let endless = b.compare(CompareOp::Eq, magnitude, infinity);
    let value = b.select(endless, value, corrected);
    let tiny = b.compare(CompareOp::Eq, kept, zero);
    b.select(tiny, x, value)
}

/// Hyperbolic tangent.
pub fn tanh(b: &mut Builder, x: Vector) -> Vector {
    let square = b.binary(VBinary::Mul, x, x);
    let tail = polynomial(b, square, &TANH);
    let cube = b.binary(VBinary::Mul, square, x);
    let near = b.fma(tail, cube, x);
    // 1 - 2 / (e^2|x| + 1).
    let magnitude = abs(b, x);
    let (nine, one, minus_two) = (b.float(9.1), b.float(1.0), b.float(-2.0));
    let bounded = b.binary(VBinary::Min, nine, magnitude);
    let double = b.binary(VBinary::Add, bounded, bounded);
    let (power, scale) = exp_in_two(b, double, one);
    let power = b.fma(power, scale, one);
    let quotient = b.binary(VBinary::Div, minus_two, power);
    let far = b.binary(VBinary::Add, quotient, one);
    let far = with_sign(b, far, x);
    let limit = b.float(0.625);
    let large = b.compare(CompareOp::Gt, magnitude, limit);
    b.select(large, far, near)
}

/// The error function.
pub fn erf(b: &mut Builder, x: Vector) -> Vector {
    let square = b.binary(VBinary::Mul, x, x);
    let factor = polynomial(b, square, &ERF_NEAR);
    let near = b.fma(factor, x, x);
    // 1 - e^-p(|x|).
    let magnitude = abs(b, x);
    let (four, one) = (b.float(4.0), b.float(1.0));
    let bounded = b.binary(VBinary::Min, four, magnitude);
    let exponent = polynomial(b, bounded, &ERF_FAR);
    let exponent = neg(b, exponent);
    let (power, scale) = exp_in_two(b, exponent, one);
    let power = b.binary(VBinary::Mul, power, scale);
    let far = b.binary(VBinary::Sub, one, power);
    let far = with_sign(b, far, x);
    let limit = b.float(0.92);
    let large = b.compare(CompareOp::Gt, magnitude, limit);
    b.select(large, far, near)
}

/// Float to integer toward zero, saturating; NaN gives 0.
pub fn to_int(b: &mut Builder, x: Vector) -> Vector {
    let value = b.unary(VUnary::ToInt, x);
    // Where it is too low all ISAs agree on the least integer; -2^31 itself fits.
    let (limit, most, least) = (b.float(2_147_483_648.0), b.bits(i32::MAX as u32), b.bits(i32::MIN as u32));
    let over = b.compare(CompareOp::Ge, x, limit);
    let value = b.select(over, most, value);
    let bottom = b.float(-2_147_483_648.0);
    let under = b.compare(CompareOp::Lt, x, bottom);
    let value = b.select(under, least, value);
    let (nan, zero) = (is_nan(b, x), b.bits(0));
    b.select(nan, zero, value)
}

/// Float to integer toward zero, brought between the bounds, of which the lower is not positive; NaN gives 0.
pub fn to_byte(b: &mut Builder, x: Vector, lo: f32, hi: f32) -> Vector {
    let (least, most, zero) = (b.float(lo), b.float(hi), b.float(0.0));
    let x = match lo == 0.0 {
        true => x,
        false => {
            let nan = is_nan(b, x);
            b.select(nan, zero, x)
        }
    };
    // Where `x` is NaN the step returns the bound, which is 0 then.
    let x = b.binary(VBinary::Max, x, least);
    let x = b.binary(VBinary::Min, x, most);
    b.unary(VUnary::ToInt, x)
}

/// -1, 0 or 1; NaN and zeros stay.
pub fn sign(b: &mut Builder, x: Vector) -> Vector {
    let (one, zero) = (b.float(1.0), b.float(0.0));
    let unit = with_sign(b, one, x);
    let magnitude = abs(b, x);
    let nonzero = b.compare(CompareOp::Gt, magnitude, zero);
    b.select(nonzero, unit, x)
}

/// Lanes that are infinite.
pub fn is_inf(b: &mut Builder, x: Vector) -> Mask {
    let (magnitude, infinity) = (abs(b, x), b.float(f32::INFINITY));
    b.compare(CompareOp::Eq, magnitude, infinity)
}

/// The opposite mask.
pub fn not(b: &mut Builder, mask: Mask) -> Mask {
    let zero = b.bits(0);
    let all = b.compare_int(CompareOp::Eq, zero, zero);
    b.mask_op(MaskOp::Xor, mask, all)
}
