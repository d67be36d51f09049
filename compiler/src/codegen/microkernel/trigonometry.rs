//! Sine, cosine and inverse trigonometric functions of `f32` vectors, within [`super::math::MAX_ULP`].
//!
//! Sine and cosine subtract the nearest multiple of π/2 in steps whose products are exact (Cody and Waite). The rest
//! is within ±π/4, where each is a short polynomial. Arguments from [`MAX_SIMPLE`] on, which are rare, take double
//! precision. The coefficients are minimax fits, as those of [`super::math`].

use super::{
    math::{abs, neg, polynomial, with_sign},
    wide,
};
use crate::codegen::vector::{
    Builder,
    vcode::{Mask, ShiftOp, VBinary, VUnary, Vector},
};
use crate::scalar::{CompareOp, UnaryOp};
use std::f32::consts::{FRAC_2_PI, FRAC_PI_2};

/// Arguments from here on are not simple. Below, quotients by π/2 have at most 13 bits.
const MAX_SIMPLE: f32 = 10_000.0;

/// π/2 as a sum of floats, the first of which is the float below it. With fused multiply-add, each difference that
/// cancels is exact. Positive parts keep the sign of a zero.
const FRAC_PI_2_FUSED: [f32; 3] = [f32::from_bits(0x3fc9_0fda), 7.549_789_4e-8, 5.390_302_5e-15];

/// The same. All but the last have 11 bits, so their products with 13 bits are exact.
const FRAC_PI_2_SHORT: [f32; 4] = [1.570_312_5, 4.837_513e-4, 7.549_533_6e-8, 2.563_344e-12];

/// π/2 without the float nearest to it.
const FRAC_PI_2_LO: f32 = -4.371_139e-8;

/// `(sin r - r) / r³` in `r²` on |r| <= 0.7866.
const SIN: [f32; 3] = [-1.666_665_5e-1, 8.332_186e-3, -1.951_77e-4];
/// `(cos r - 1 + r² / 2) / r⁴` in `r²` on |r| <= 0.7866.
const COS: [f32; 3] = [4.166_664_6e-2, -1.388_731e-3, 2.443_232_2e-5];
/// `(asin x - x) / x³` in `x²` on |x| <= 0.5.
const ASIN: [f32; 5] = [1.666_675_4e-1, 7.495_249e-2, 4.547_688e-2, 2.414_545e-2, 4.222_743e-2];
/// `(atan x - x) / x³` in `x²` on |x| <= 1.
const ATAN: [f32; 8] = [
    -3.333_315_3e-1,
    1.999_376_7e-1,
    -1.421_100_3e-1,
    1.066_578_6e-1,
    -7.551_729e-2,
    4.320_597_3e-2,
    -1.636_423_7e-2,
    2.919_756_3e-3,
];

/// Sine.
pub(super) fn sin(b: &mut Builder, x: Vector) -> Vector {
    circular(b, UnaryOp::Sin, x)
}

/// Cosine.
pub(super) fn cos(b: &mut Builder, x: Vector) -> Vector {
    circular(b, UnaryOp::Cos, x)
}

fn circular(b: &mut Builder, op: UnaryOp, x: Vector) -> Vector {
    let simple = circular_of_simple(b, op, x);
    let result = b.variable(simple);

    // NaN counts as simple and stays NaN.
    let magnitude = abs(b, x);
    let limit = b.float(MAX_SIMPLE);
    let is_large = b.compare(CompareOp::Ge, magnitude, limit);
    let any = b.any_lane(is_large);
    b.begin_when(CompareOp::Ne, any, 0);
    let large = wide::float_unary(b, op, x);
    let merged = b.select(is_large, large, simple);
    b.set(result, merged);
    b.end_when();
    result
}

/// The function of a number whose magnitude is below [`MAX_SIMPLE`].
fn circular_of_simple(b: &mut Builder, op: UnaryOp, x: Vector) -> Vector {
    // The last place of this float is 1, so that the sum is rounded to an integer, whose low bits are those of the sum.
    let integers = b.float(1.5 * (1u32 << 23) as f32);
    let scale = b.float(FRAC_2_PI);
    let low_bits = b.fma(x, scale, integers);
    let n = b.binary(VBinary::Sub, low_bits, integers);
    let r = if b.shape().fma { rest_fused(b, x, n) } else { rest(b, x, n) };

    // The sum with 0 keeps the sign of a zero in the last step.
    let square = b.binary(VBinary::Mul, r, r);
    let zero = b.float(0.0);
    let tail = polynomial(b, square, &SIN);
    let tail = b.fma(tail, square, zero);
    let sin = b.fma(tail, r, r);

    let tail = polynomial(b, square, &COS);
    let minus_half = b.float(-0.5);
    let slope = b.fma(tail, square, minus_half);
    let one = b.float(1.0);
    let cos = b.fma(slope, square, one);

    // A cosine is the sine of the next quadrant.
    let first_bit = b.bits(1);
    let quadrant = if op == UnaryOp::Cos { b.binary(VBinary::AddInt, low_bits, first_bit) } else { low_bits };
    let odd_bit = b.binary(VBinary::And, quadrant, first_bit);
    let is_odd = b.compare_int(CompareOp::Eq, odd_bit, first_bit);
    let value = b.select(is_odd, cos, sin);
    let second_bit = b.bits(2);
    let sign = b.binary(VBinary::And, quadrant, second_bit);
    let sign = b.shift(ShiftOp::Left, sign, 30);
    b.binary(VBinary::Xor, value, sign)
}

/// `x - n π/2`, where a product and a sum are rounded once.
fn rest_fused(b: &mut Builder, x: Vector, n: Vector) -> Vector {
    FRAC_PI_2_FUSED.iter().fold(x, |rest, part| {
        let part = b.float(-part);
        b.fma(n, part, rest)
    })
}

/// `x - n π/2`, where products are rounded too.
fn rest(b: &mut Builder, x: Vector, n: Vector) -> Vector {
    let [first, second, third, last] = FRAC_PI_2_SHORT.map(|part| {
        let part = b.float(part);
        b.binary(VBinary::Mul, n, part)
    });
    let exact = b.binary(VBinary::Sub, x, first);
    let exact = b.binary(VBinary::Sub, exact, second);

    // The third difference is rounded. Its error enters with the last part, so the sum is rounded once.
    let rounded = b.binary(VBinary::Sub, exact, third);
    let taken = b.binary(VBinary::Sub, exact, rounded);
    let error = b.binary(VBinary::Sub, taken, third);
    let low = b.binary(VBinary::Sub, last, error);
    b.binary(VBinary::Sub, rounded, low)
}

/// The parts of an inverse sine or cosine.
struct InverseParts {
    magnitude: Vector,
    /// Whether the magnitude of the argument is above 1/2. It is `1 - 2 s²` then, and `s` the sine of half the angle.
    is_large: Mask,
    s: Vector,
    /// `asin w / w - 1`, where `w` is `s` of a large argument and the argument itself of others.
    tail: Vector,
}

fn inverse_parts(b: &mut Builder, x: Vector) -> InverseParts {
    let magnitude = abs(b, x);
    let half = b.float(0.5);
    let is_large = b.compare(CompareOp::Gt, magnitude, half);
    let minus_half = b.float(-0.5);
    let large_square = b.fma(magnitude, minus_half, half);
    let s = b.unary(VUnary::Sqrt, large_square);
    let small_square = b.binary(VBinary::Mul, x, x);
    let square = b.select(is_large, large_square, small_square);
    let tail = polynomial(b, square, &ASIN);
    InverseParts { magnitude, is_large, s, tail: b.binary(VBinary::Mul, tail, square) }
}

/// Inverse sine.
pub(super) fn asin(b: &mut Builder, x: Vector) -> Vector {
    let InverseParts { magnitude, is_large, s, tail } = inverse_parts(b, x);
    let small = b.fma(tail, magnitude, magnitude);

    // π/2 - 2 asin s, with the rounding error of the first difference.
    let minus_two = b.float(-2.0);
    let twice = b.binary(VBinary::Mul, s, minus_two);
    let hi = b.float(FRAC_PI_2);
    let lo = b.float(FRAC_PI_2_LO);
    let first = b.binary(VBinary::Add, twice, hi);
    let taken = b.binary(VBinary::Sub, first, hi);
    let error = b.binary(VBinary::Sub, twice, taken);
    let lo = b.binary(VBinary::Add, error, lo);
    let rest = b.fma(twice, tail, lo);
    let large = b.binary(VBinary::Add, first, rest);

    let value = b.select(is_large, large, small);
    with_sign(b, value, x)
}

/// Inverse cosine.
pub(super) fn acos(b: &mut Builder, x: Vector) -> Vector {
    let InverseParts { is_large, s, tail, .. } = inverse_parts(b, x);

    // π/2 - asin w: the angle of a small argument, and half of that of a large negative one.
    let w = b.select(is_large, s, x);
    let minus_w = neg(b, w);
    let hi = b.float(FRAC_PI_2);
    let lo = b.float(FRAC_PI_2_LO);
    let first = b.binary(VBinary::Add, minus_w, hi);
    let rest = b.fma(minus_w, tail, lo);
    let complement = b.binary(VBinary::Add, first, rest);

    let angle = b.fma(tail, s, s);
    let zero = b.float(0.0);
    let is_positive = b.compare(CompareOp::Gt, x, zero);
    let half = b.select(is_positive, angle, complement);
    let large = b.binary(VBinary::Add, half, half);
    b.select(is_large, large, complement)
}

/// Inverse tangent.
pub(super) fn atan(b: &mut Builder, x: Vector) -> Vector {
    let magnitude = abs(b, x);
    let one = b.float(1.0);
    let is_large = b.compare(CompareOp::Gt, magnitude, one);

    // atan x = π/2 + atan(-1 / x) for positive x.
    let minus_one = b.float(-1.0);
    let inverse = b.binary(VBinary::Div, minus_one, magnitude);
    let t = b.select(is_large, inverse, magnitude);
    let zero = b.float(0.0);
    let hi = b.float(FRAC_PI_2);
    let hi = b.select(is_large, hi, zero);
    let lo = b.float(FRAC_PI_2_LO);
    let lo = b.select(is_large, lo, zero);

    let square = b.binary(VBinary::Mul, t, t);
    let tail = polynomial(b, square, &ATAN);
    let cube = b.binary(VBinary::Mul, square, t);
    let rest = b.fma(tail, cube, lo);
    let rest = b.binary(VBinary::Add, rest, t);
    let value = b.binary(VBinary::Add, rest, hi);
    with_sign(b, value, x)
}
