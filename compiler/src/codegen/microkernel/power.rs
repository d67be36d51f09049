//! Powers of `f32` vectors.
//!
//! `x^y = 2^(y log2 x)` needs a logarithm that has more bits than a float: as many more as the exponent of the result
//! has. The logarithm is the sum of two floats. Factors whose products must be exact are truncated to [`KEPT_BITS`],
//! so no result depends on fused multiply-add. With `x = 2^e m` and `m` in √½..√2,
//!
//! ```text
//! log2 x = e + log2((1 + r) / (1 - r)),  r = (m - 1) / (m + 1)
//!        = e + 2 r / ln 2 + r³ Q(r²)
//! ```

use super::math::{abs, clamp, expm1_near, is_nan, mantissa_and_exponent, polynomial, scale_by_power};
use crate::codegen::vector::{
    Builder,
    vcode::{Mask, MaskOp, VBinary, VUnary, Vector},
};
use crate::scalar::CompareOp;

/// Largest error in units in the last place of the exact result. It occurs near overflow and underflow.
pub const POWER_ULP: f64 = 2.5;

/// The bits that a truncated factor keeps: 12 of its significand, so the product of two such factors is exact.
const KEPT_BITS: u32 = 0xffff_f000;

/// `2 / ln 2` as the sum of two floats, the first of which is truncated.
const SLOPE_HI: f32 = 2.884_765_6;
const SLOPE_LO: f32 = 6.244_568e-4;

/// `Q`; the error relative to `2 r / ln 2` is at most 2^-32.
const LOG2: [f32; 4] = [0.961_796_7, 0.577_082_9, 0.411_704_4, 0.340_257_88];

/// Larger exponents give the same results as this one, because the smallest `|log2 x|` except 0 is about 2^-24.
const MAX_EXPONENT: f32 = 8_589_934_592.0;

/// Larger powers of two are 0 or infinite.
const LARGEST_POWER: f32 = 200.0;

/// Splits `x` into its truncation and the remainder.
fn truncate(b: &mut Builder, x: Vector) -> (Vector, Vector) {
    let mask = b.bits(KEPT_BITS);
    let high = b.binary(VBinary::And, x, mask);
    (high, b.binary(VBinary::Sub, x, high))
}

/// `log2 a` as the sum of two floats, for positive finite `a`.
fn log2(b: &mut Builder, a: Vector) -> (Vector, Vector) {
    let (m, exponent) = mantissa_and_exponent(b, a);
    let one = b.float(1.0);
    let f = b.binary(VBinary::Sub, m, one);
    let d = b.binary(VBinary::Add, m, one);

    // d_high + d_low is m + 1 exactly.
    let (d_high, _) = truncate(b, d);
    let below = b.binary(VBinary::Sub, one, d_high);
    let d_low = b.binary(VBinary::Add, below, m);

    // r_high + r_low is the quotient f / (m + 1) to twice the precision.
    let r = b.binary(VBinary::Div, f, d);
    let (r_high, r_rest) = truncate(b, r);
    let taken = b.binary(VBinary::Mul, r_high, d_high);
    let left = b.binary(VBinary::Sub, f, taken);
    let taken = b.binary(VBinary::Mul, r_high, d_low);
    let left = b.binary(VBinary::Sub, left, taken);
    let r_low = b.binary(VBinary::Div, left, d);

    let square = b.binary(VBinary::Mul, r, r);
    let tail = polynomial(b, square, &LOG2);
    let tail = b.binary(VBinary::Mul, square, tail);
    let slope_high = b.float(SLOPE_HI);
    let slope_low = b.float(SLOPE_LO);
    let low = b.binary(VBinary::Mul, r, slope_low);
    let low = b.fma(r_low, slope_high, low);

    // An error of r enters the cubic term three times.
    let missing = b.binary(VBinary::Sub, r_low, r_rest);
    let three = b.float(3.0);
    let missing = b.binary(VBinary::Mul, missing, three);
    let low = b.fma(missing, tail, low);
    let low = b.fma(r, tail, low);

    let steep = b.binary(VBinary::Mul, r_high, slope_high);
    let (high, lost) = sum(b, exponent, steep);
    let low = b.binary(VBinary::Add, low, lost);
    sum(b, high, low)
}

/// `x + y` and its rounding error, where `x` is 0 or |x| >= |y|.
fn sum(b: &mut Builder, x: Vector, y: Vector) -> (Vector, Vector) {
    let sum = b.binary(VBinary::Add, x, y);
    let kept = b.binary(VBinary::Sub, sum, x);
    (sum, b.binary(VBinary::Sub, y, kept))
}

/// `a^y` for positive finite `a`.
fn magnitude(b: &mut Builder, a: Vector, y: Vector) -> Vector {
    let (log, log_low) = log2(b, a);
    let y = clamp(b, y, -MAX_EXPONENT, MAX_EXPONENT);
    let (y_high, y_low) = truncate(b, y);
    let (log_high, rest) = truncate(b, log);
    let log_low = b.binary(VBinary::Add, rest, log_low);
    let high = b.binary(VBinary::Mul, y_high, log_high);
    let low = b.binary(VBinary::Mul, y_high, log_low);
    let low = b.fma(y_low, log, low);

    // Far beyond the range of floats the low part must not turn infinity into NaN.
    let size = abs(b, high);
    let limit = b.float(LARGEST_POWER);
    let zero = b.float(0.0);
    let is_far = b.compare(CompareOp::Gt, size, limit);
    let low = b.select(is_far, zero, low);
    let high = clamp(b, high, -LARGEST_POWER, LARGEST_POWER);

    let power = b.binary(VBinary::Add, high, low);
    let n = b.unary(VUnary::Nearest, power);
    let rest = b.binary(VBinary::Sub, high, n);
    let rest = b.binary(VBinary::Add, rest, low);
    let ln2 = b.float(std::f32::consts::LN_2);
    let one = b.float(1.0);
    let rest = b.binary(VBinary::Mul, rest, ln2);
    let near = expm1_near(b, rest);
    let value = b.binary(VBinary::Add, near, one);
    scale_by_power(b, value, n)
}

/// `x^y`.
pub(super) fn pow(b: &mut Builder, x: Vector, y: Vector) -> Vector {
    let a = abs(b, x);
    let zero = b.float(0.0);
    let one = b.float(1.0);
    let infinity = b.float(f32::INFINITY);
    let value = magnitude(b, a, y);

    // Powers of 0 and infinity are 0 or infinite.
    let falls = b.compare(CompareOp::Lt, y, zero);
    let of_zero = b.select(falls, infinity, zero);
    let of_infinity = b.select(falls, zero, infinity);
    let is_zero = b.compare(CompareOp::Eq, a, zero);
    let value = b.select(is_zero, of_zero, value);
    let is_infinite = b.compare(CompareOp::Eq, a, infinity);
    let value = b.select(is_infinite, of_infinity, value);
    let value = signed(b, x, a, y, value);
    let nan = is_nan(b, x);
    let value = b.select(nan, x, value);
    let nan = is_nan(b, y);
    let value = b.select(nan, y, value);

    // 1^y and x^0 are 1, even for NaN.
    let is_one = b.compare(CompareOp::Eq, x, one);
    let is_flat = b.compare(CompareOp::Eq, y, zero);
    let value = b.select(is_one, one, value);
    b.select(is_flat, one, value)
}

/// Corrects `value = a^y` for negative finite `x = -a`: odd powers are negative, and powers that are not integral are
/// NaN.
fn signed(b: &mut Builder, x: Vector, a: Vector, y: Vector, value: Vector) -> Vector {
    let zero = b.float(0.0);
    let half = b.float(0.5);
    let infinity = b.float(f32::INFINITY);
    let halved = b.binary(VBinary::Mul, y, half);

    let nan = b.float(f32::NAN);
    let integral = is_integral(b, y);
    let even = is_integral(b, halved);

    let bits = b.bits(0x8000_0000);
    let sign = b.binary(VBinary::And, x, bits);
    let negative = b.binary(VBinary::Or, value, sign);
    let odd = b.mask_op(MaskOp::Xor, integral, even);
    let value = b.select(odd, negative, value);

    let below = b.compare(CompareOp::Lt, x, zero);
    let finite = b.compare(CompareOp::Lt, a, infinity);
    let below = b.mask_op(MaskOp::And, below, finite);
    let real = b.select(integral, value, nan);

    b.select(below, real, value)
}

fn is_integral(b: &mut Builder, x: Vector) -> Mask {
    let nearest = b.unary(VUnary::Nearest, x);
    b.compare(CompareOp::Eq, x, nearest)
}
