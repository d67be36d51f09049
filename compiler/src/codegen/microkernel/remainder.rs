//! Remainders of floats, which are exact.
//!
//! Operands are doubles, whose quotient is rounded to an integer. While the quotient has few bits, its product with the
//! divisor is exact, so the remainder is exact too, once a quotient that was rounded up is corrected.
//!
//! Larger quotients are rare. If a lane has one, all lanes divide by multiples of the divisor first, from the largest
//! multiple that any two floats need down to the divisor. Each such quotient has few bits again. This is long division,
//! with digits of [`DIGIT_BITS`] bits.

use super::{
    formulas::SIGN,
    wide::{magnitude, narrowed, widened},
};
use crate::{
    codegen::vector::{
        Builder,
        vcode::{MaskOp, VBinary, Vector, WideBinary, WideUnary},
    },
    scalar::{BinaryOp, CompareOp},
};

/// The bits of a quotient whose product with a float is an exact double: 53 bits without the 24 of a float.
const DIGIT_BITS: i32 = 28;

/// The digits of the largest quotient of two floats, which is below `2^277`.
const DIGITS: i32 = 10;

/// `x % y`, with the sign of `x` for [`BinaryOp::Rem`], and of `y` for [`BinaryOp::Mod`].
pub(super) fn of_floats(b: &mut Builder, op: BinaryOp, x: Vector, y: Vector) -> Vector {
    let dividends = widened(b, WideUnary::FloatsToDoubles, x);
    let divisors = widened(b, WideUnary::FloatsToDoubles, y);
    let sizes = dividends.map(|x| magnitude(b, x));
    let steps = divisors.map(|y| magnitude(b, y));

    let rests = [0, 1].map(|half| {
        let rest = reduced(b, sizes[half], steps[half]);
        b.variable(rest)
    });
    let limit = b.double(2f64.powi(DIGIT_BITS));
    let [first, second] = [0, 1].map(|half| {
        let limit = b.wide_binary(WideBinary::Mul, steps[half], limit);
        b.wide_compare(CompareOp::Ge, sizes[half], limit)
    });
    let is_large = b.mask_op(MaskOp::Or, first, second);
    let any = b.any_lane(is_large);
    b.begin_when(CompareOp::Ne, any, 0);
    for half in [0, 1] {
        let mut rest = sizes[half];
        for digit in (0..=DIGITS).rev() {
            let scale = b.double(2f64.powi(DIGIT_BITS * digit));
            let step = b.wide_binary(WideBinary::Mul, steps[half], scale);
            rest = reduced(b, rest, step);
        }
        b.set(rests[half], rest);
    }
    b.end_when();

    let results = [0, 1].map(|half| {
        let sign = sign(b, dividends[half]);
        let rest = b.binary(VBinary::Or, rests[half], sign);
        if op == BinaryOp::Mod { with_sign_of(b, rest, divisors[half]) } else { rest }
    });
    narrowed(b, WideUnary::DoublesToFloats, results)
}

/// The remainder of two numbers that are not negative, if their quotient has at most [`DIGIT_BITS`] bits.
fn reduced(b: &mut Builder, x: Vector, y: Vector) -> Vector {
    let quotient = b.wide_binary(WideBinary::Div, x, y);
    let quotient = b.wide_unary(WideUnary::Trunc, quotient);
    let product = b.wide_binary(WideBinary::Mul, quotient, y);
    let rest = b.wide_binary(WideBinary::Sub, x, product);

    let zero = b.double(0.0);
    let is_exceeded = b.wide_compare(CompareOp::Lt, rest, zero);
    let corrected = b.wide_binary(WideBinary::Add, rest, y);
    let rest = b.wide_select(is_exceeded, corrected, rest);
    // The product of zero and an infinite divisor is NaN.
    let is_below = b.wide_compare(CompareOp::Lt, x, y);
    b.wide_select(is_below, x, rest)
}

/// A remainder with the sign of the dividend, as one with the sign of the divisor.
fn with_sign_of(b: &mut Builder, rest: Vector, divisor: Vector) -> Vector {
    let zero = b.double(0.0);
    let signs = b.binary(VBinary::Xor, rest, divisor);
    let signs = sign(b, signs);
    let one = b.double(1.0);
    let differ = b.binary(VBinary::Or, signs, one);
    let differ = b.wide_compare(CompareOp::Lt, differ, zero);
    let shifted = b.wide_binary(WideBinary::Add, rest, divisor);
    let result = b.wide_select(differ, shifted, rest);

    let is_zero = b.wide_compare(CompareOp::Eq, rest, zero);
    let signed_zero = sign(b, divisor);
    b.wide_select(is_zero, signed_zero, result)
}

fn sign(b: &mut Builder, x: Vector) -> Vector {
    let sign = b.wide_bits(SIGN);
    b.binary(VBinary::And, x, sign)
}
