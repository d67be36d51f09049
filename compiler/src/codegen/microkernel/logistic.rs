//! Logistic functions: `1 / (1 + e^-x)`, and `y / (1 + e^-x)`. Sigmoid, SiLU and the gates of recurrent layers have
//! them.
//!
//! In the sum, no subnormal power matters, so the exponential has fewer instructions: one fused multiply-add multiplies
//! by the power of two and adds 1. With `n` the integer nearest to `-x log2 e`, and `s = x log2 e + n`,
//!
//! ```text
//! 1 + e^-x = 2^n 2^-s + 1
//! ```

use super::{
    matches::Matches,
    math,
    op::{Body, Op, Ty},
};
use crate::{
    codegen::vector::{
        Builder, VectorShape,
        vcode::{ShiftOp, VBinary, VUnary, Vector},
    },
    scalar::{BinaryOp, CompareOp, UnaryOp},
};

/// Largest error of both forms in units in the last place.
pub const LOGISTIC_ULP: f64 = 4.0;

/// The result is zero below: the reciprocal would be subnormal.
pub const ZERO_BELOW: f32 = -87.3;

/// Larger `x` give 1 too. Here the power is still a normal float.
const ONE_ABOVE: f32 = 87.0;

/// The power is infinite here, and its exponent has 8 bits.
const INFINITE_POWER: f32 = -88.5;

/// Adding it rounds a float to an integer. The low bits of the sum are that integer, with the bias of exponents.
const ROUND_AND_BIAS: f32 = 12_582_912.0 + 127.0;

/// `log2 e` as the sum of two floats.
const LOG2_E: [f32; 2] = [std::f32::consts::LOG2_E, 1.925_963e-8];

/// `(2^-s - 1) / s` on |s| <= 1/2; the error is weighted by `s / 2^-s`.
const EXP2: [f32; 5] =
    [-std::f32::consts::LN_2, 2.402_228_1e-1, -5.550_559e-2, 9.669_792e-3, -1.330_052_8e-3];

/// A logistic function.
pub(super) struct Logistic {
    x: u32,
    dividend: Option<u32>,
}

/// The logistic functions of a body.
pub(super) type Logistics = Matches<Logistic>;

impl Matches<Logistic> {
    /// Finds them in a body.
    pub(super) fn of(body: &Body, shape: &VectorShape) -> Logistics {
        Matches::find(body, |uses, idx| shape.fma.then(|| Logistic::of(body, uses, idx)).flatten())
    }

    /// Emits the quotient at `idx` if it is such a function. `value` gives the values of earlier instructions.
    pub(super) fn emit(&self, b: &mut Builder, idx: usize, value: impl Fn(u32) -> Vector) -> Option<Vector> {
        let logistic = self.at(idx)?;
        Some(quotient_by_sum(b, logistic.dividend.map(&value), value(logistic.x)))
    }
}

impl Logistic {
    /// The quotient at `idx`, and the instructions that only it reads: the sum, the power and its exponent.
    fn of(body: &Body, uses: &[usize], idx: usize) -> Option<(Logistic, Vec<u32>)> {
        let (dividend, sum) = match body.insts[idx] {
            (Op::Unary(UnaryOp::Recip, sum), Ty::F32) => (None, sum),
            (Op::Binary(BinaryOp::Div, dividend, sum), Ty::F32) => {
                (Some(dividend).filter(|reg| body.constant(*reg) != Some(1.0)), sum)
            }
            _ => return None,
        };
        let is_power =
            |reg: u32| body.ty(reg) == Ty::F32 && matches!(body.op(reg), Op::Unary(UnaryOp::Exp, _));
        let (power, one) = body.term(sum as usize, uses, is_power)?;
        let Op::Unary(_, minus) = body.op(power) else { return None };
        let Op::Unary(UnaryOp::Neg, x) = body.op(minus) else { return None };
        let is_alone = uses[sum as usize] == 1 && uses[minus as usize] == 1;
        let matches = is_alone && body.constant(one) == Some(1.0);
        matches.then(|| (Logistic { x, dividend }, vec![sum, power, minus]))
    }
}

/// `dividend / (1 + e^-x)`. Without a dividend, the reciprocal. With an estimate, the quotient is `dividend` times zero
/// where the reciprocal would be subnormal.
fn quotient_by_sum(b: &mut Builder, dividend: Option<Vector>, x: Vector) -> Vector {
    if !has_estimates(b) {
        let x = math::max_constant(b, x, INFINITE_POWER);
        let sum = one_plus_power(b, x);
        let dividend = dividend.unwrap_or_else(|| b.float(1.0));
        return b.binary(VBinary::Div, dividend, sum);
    }
    let sum = one_plus_power(b, x);
    let reciprocal = estimated_reciprocal(b, sum);
    let lowest = b.float(ZERO_BELOW);
    let zero = b.float(0.0);
    let is_below = b.compare(CompareOp::Lt, x, lowest);
    let reciprocal = b.select(is_below, zero, reciprocal);
    dividend.map_or(reciprocal, |dividend| b.binary(VBinary::Mul, dividend, reciprocal))
}

/// `1 + e^-x` for `x` from [`INFINITE_POWER`] on; NaN stays NaN.
fn one_plus_power(b: &mut Builder, x: Vector) -> Vector {
    let x = math::min_constant(b, x, ONE_ABOVE);
    let [high, low] = LOG2_E.map(|part| b.float(part));
    let minus_high = b.float(-LOG2_E[0]);
    let round = b.float(ROUND_AND_BIAS);
    let biased = b.fma(x, minus_high, round);
    let n = b.binary(VBinary::Sub, biased, round);
    let s = b.fma(x, high, n);
    let s = b.fma(x, low, s);

    let one = b.float(1.0);
    let factor = math::polynomial(b, s, &EXP2);
    let near = b.fma(factor, s, one);
    let power = b.shift(ShiftOp::Left, biased, 23);
    b.fma(near, power, one)
}

/// Whether an estimate takes less time than a division. On Emerald Rapids, a division of 512 bits takes 3.4 ns, and one
/// of 256 bits 1.7 ns.
fn has_estimates(b: &Builder) -> bool {
    b.lanes() == 16
}

/// The reciprocal of a vector of normal floats whose reciprocals are normal, or NaN. A step of Newton's method squares
/// the error of the estimate to 2^-28. Only if [`has_estimates`].
fn estimated_reciprocal(b: &mut Builder, x: Vector) -> Vector {
    let estimate = b.unary(VUnary::ReciprocalEstimate, x);
    let minus_x = math::neg(b, x);
    let one = b.float(1.0);
    let error = b.fma(minus_x, estimate, one);
    b.fma(estimate, error, estimate)
}
