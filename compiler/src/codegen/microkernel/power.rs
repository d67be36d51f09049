//! Powers of `f32` vectors.
//!
//! `x^y = 2^(y log2 x)` needs the logarithm to more bits than a float has, as many as the exponent of the result has. It
//! stands in two floats here, and factors are cut after [`CUT`]'s bits where their products must be exact, so that nothing
//! depends on fused multiply-add. With `x = 2^e m` and `m` in √½..√2,
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

/// Largest error, in units in the last place of the exact result; it is reached where that is nearly too large or too small
/// for a float.
pub const POWER_ULP: f64 = 2.5;

/// The bits that a factor keeps: 12 of its significand, so that products of two such factors are exact.
const CUT: u32 = 0xffff_f000;

/// `2 / ln 2` in two parts, the first cut.
const SLOPE_HI: f32 = 2.884_765_6;
const SLOPE_LO: f32 = 6.244_568e-4;

/// `Q`, error relative to `2 r / ln 2` at most 2^-32.
const LOG2: [f32; 4] = [0.961_796_7, 0.577_082_9, 0.411_704_4, 0.340_257_88];

/// Exponents beyond this act as this one does: the least `|log2 x|` but 0 is about 2^-24.
const MOST: f32 = 8_589_934_592.0;

/// Powers of two beyond this are 0 or infinite.
const LARGEST_POWER: f32 = 200.0;

/// `x` cut, and what is left of it.
fn cut(b: &mut Builder, x: Vector) -> (Vector, Vector) {
    let mask = b.bits(CUT);
    let high = b.binary(VBinary::And, x, mask);
    (high, b.binary(VBinary::Sub, x, high))
}

/// `log2 a` in two floats, for positive finite `a`.
fn log2(b: &mut Builder, a: Vector) -> (Vector, Vector) {
    let (m, exponent) = mantissa_and_exponent(b, a);
    let one = b.float(1.0);
    let (f, d) = (b.binary(VBinary::Sub, m, one), b.binary(VBinary::Add, m, one));
    // m + 1 exactly.
    let (d_high, _) = cut(b, d);
    let below = b.binary(VBinary::Sub, one, d_high);
    let d_low = b.binary(VBinary::Add, below, m);
    let r = b.binary(VBinary::Div, f, d);
    let (r_high, r_rest) = cut(b, r);
    let taken = b.binary(VBinary::Mul, r_high, d_high);
    let left = b.binary(VBinary::Sub, f, taken);
    let taken = b.binary(VBinary::Mul, r_high, d_low);
    let left = b.binary(VBinary::Sub, left, taken);
    let r_low = b.binary(VBinary::Div, left, d);
    let square = b.binary(VBinary::Mul, r, r);
    let tail = polynomial(b, square, &LOG2);
    let tail = b.binary(VBinary::Mul, square, tail);
    let (slope_high, slope_low) = (b.float(SLOPE_HI), b.float(SLOPE_LO));
    let low = b.binary(VBinary::Mul, r, slope_low);
    let low = b.fma(r_low, slope_high, low);
    // What rounding changed r by changes its cube three times as much.
    let (missing, three) = (b.binary(VBinary::Sub, r_low, r_rest), b.float(3.0));
    let missing = b.binary(VBinary::Mul, missing, three);
    let low = b.fma(missing, tail, low);
    let low = b.fma(r, tail, low);
    let steep = b.binary(VBinary::Mul, r_high, slope_high);
    let (high, lost) = sum(b, exponent, steep);
    let low = b.binary(VBinary::Add, low, lost);
    sum(b, high, low)
}

/// `x + y`, and what is lost in rounding it, where `x` is 0 or no smaller than `y`.
fn sum(b: &mut Builder, x: Vector, y: Vector) -> (Vector, Vector) {
    let sum = b.binary(VBinary::Add, x, y);
    let kept = b.binary(VBinary::Sub, sum, x);
    (sum, b.binary(VBinary::Sub, y, kept))
}

/// `a^y` for positive finite `a`.
fn magnitude(b: &mut Builder, a: Vector, y: Vector) -> Vector {
    let (log, log_low) = log2(b, a);
    let y = clamp(b, y, -MOST, MOST);
    let ((y_high, y_low), (log_high, rest)) = (cut(b, y), cut(b, log));
    let log_low = b.binary(VBinary::Add, rest, log_low);
    let high = b.binary(VBinary::Mul, y_high, log_high);
    let low = b.binary(VBinary::Mul, y_high, log_low);
    let low = b.fma(y_low, log, low);
    let (size, limit, zero) = (abs(b, high), b.float(LARGEST_POWER), b.float(0.0));
    let is_far = b.compare(CompareOp::Gt, size, limit);
    let low = b.select(is_far, zero, low);
    let high = clamp(b, high, -LARGEST_POWER, LARGEST_POWER);
    let power = b.binary(VBinary::Add, high, low);
    let n = b.unary(VUnary::Nearest, power);
    let rest = b.binary(VBinary::Sub, high, n);
    let rest = b.binary(VBinary::Add, rest, low);
    let (ln2, one) = (b.float(std::f32::consts::LN_2), b.float(1.0));
    let rest = b.binary(VBinary::Mul, rest, ln2);
    let near = expm1_near(b, rest);
    let value = b.binary(VBinary::Add, near, one);
    scale_by_power(b, value, n)
}

/// `x^y`.
pub fn pow(b: &mut Builder, x: Vector, y: Vector) -> Vector {
    let a = abs(b, x);
    let (zero, one, infinity) = (b.float(0.0), b.float(1.0), b.float(f32::INFINITY));
    let value = magnitude(b, a, y);
    // 0 and infinity go to the one or the other.
    let falls = b.compare(CompareOp::Lt, y, zero);
    let (of_zero, of_infinity) = (b.select(falls, infinity, zero), b.select(falls, zero, infinity));
    let is_zero = b.compare(CompareOp::Eq, a, zero);
    let value = b.select(is_zero, of_zero, value);
    let is_infinite = b.compare(CompareOp::Eq, a, infinity);
    let value = b.select(is_infinite, of_infinity, value);
    let value = signed(b, (x, a), y, value);
    let nan = is_nan(b, x);
    let value = b.select(nan, x, value);
    let nan = is_nan(b, y);
    let value = b.select(nan, y, value);
    // Whatever the other one is.
    let (is_one, is_flat) = (b.compare(CompareOp::Eq, x, one), b.compare(CompareOp::Eq, y, zero));
    let value = b.select(is_one, one, value);
    b.select(is_flat, one, value)
}

/// Powers of a negative number: none but integral ones, of which the odd ones are negative.
fn signed(b: &mut Builder, (x, a): (Vector, Vector), y: Vector, value: Vector) -> Vector {
    let (zero, half, infinity) = (b.float(0.0), b.float(0.5), b.float(f32::INFINITY));
    let (halved, nan) = (b.binary(VBinary::Mul, y, half), b.float(f32::NAN));
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
