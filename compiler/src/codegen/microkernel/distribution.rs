//! Distribution functions: `1 + erf x`, which is twice that of the normal distribution, and `1 + tanh x`, which is
//! twice that of the logistic one. GELU has the first, and its approximation the second.
//!
//! The sum makes digits of `erf x` and `tanh x` near 0 superfluous, so half of their instructions suffice. Both are
//! formed from one exponential, which is small where the result is near 0 or 2.

use super::{
    matches::Matches,
    math,
    op::{Body, Op, Ty},
};
use crate::codegen::vector::{
    Builder,
    vcode::{VBinary, VUnary, Vector},
};
use crate::scalar::{BinaryOp, CompareOp, UnaryOp};

/// Largest error of the sums, absolute, for the argument of the function. It is that of the rounded functions and of
/// the addition. A quotient that becomes a product is rounded once more.
pub const MAX_ERROR: f64 = 3.0 * MAX_ROUNDING;

/// Largest error of rounding a float in 1..2.
const MAX_ROUNDING: f64 = f32::EPSILON as f64 / 2.0;

/// `log2(1 - erf x) / x` on 0..4.2; the error is weighted by `x (1 - erf x)`.
const LOG_ERFC: [f32; 8] = [
    -1.627_908_6,
    -9.184_164e-1,
    -1.484_815_9e-1,
    2.825_363_4e-2,
    -7.745_65e-4,
    -1.489_488e-3,
    4.455_242_3e-4,
    -4.536_092_5e-5,
];

/// `(2^r - 1) / r` on |r| <= 1/2; the error is weighted by `r / 2^r`.
const EXP2: [f32; 6] =
    [6.931_472e-1, 2.402_264_8e-1, 5.550_332_4e-2, 9.618_437e-3, 1.339_887_4e-3, 1.535_336_2e-4];

/// Powers of two below this one are as good as zero. Even times 2^-1/2 they are normal floats, which take no assist of
/// the core.
const LEAST_EXPONENT: f32 = -125.0;

/// A distribution function.
#[derive(Clone, Copy)]
pub(super) struct Distribution {
    function: UnaryOp,
    x: u32,
    /// The constant that `x` is divided by. A factor replaces it.
    divisor: Option<f32>,
}

/// The distribution functions of a body.
pub(super) type Distributions = Matches<Distribution>;

impl Matches<Distribution> {
    /// Finds them in a body.
    pub(super) fn of(body: &Body) -> Distributions {
        Matches::find(body, |uses, idx| Distribution::of(body, uses, idx))
    }

    /// Emits the sum at `idx` if it is such a function. `value` gives the values of earlier instructions.
    pub(super) fn emit(&self, b: &mut Builder, idx: usize, value: impl Fn(u32) -> Vector) -> Option<Vector> {
        let distribution = self.at(idx)?;
        let mut x = value(distribution.x);
        if let Some(divisor) = distribution.divisor {
            let factor = b.float(divisor.recip());
            x = b.binary(VBinary::Mul, x, factor);
        }
        Some(match distribution.function {
            UnaryOp::Erf => one_plus_erf(b, x),
            _ => one_plus_tanh(b, x),
        })
    }
}

impl Distribution {
    /// The sum at `idx`, and the instructions of the function and of the quotient.
    fn of(body: &Body, uses: &[usize], idx: usize) -> Option<(Distribution, Vec<u32>)> {
        let is_function = |reg: u32| {
            body.ty(reg) == Ty::F32 && matches!(body.op(reg), Op::Unary(UnaryOp::Erf | UnaryOp::Tanh, _))
        };
        let (inst, one) = body.term(idx, uses, is_function)?;
        let Op::Unary(function, x) = body.op(inst) else { return None };
        if body.constant(one) != Some(1.0) {
            return None;
        }

        // Hyperbolic tangents of quotients are rare, and their error has no room for that of another rounding.
        let replaces_quotient = function == UnaryOp::Erf && uses[x as usize] == 1;
        Some(match quotient_by_constant(body, x) {
            Some((dividend, divisor)) if replaces_quotient => {
                (Distribution { function, x: dividend, divisor: Some(divisor) }, vec![inst, x])
            }
            _ => (Distribution { function, x, divisor: None }, vec![inst]),
        })
    }
}

/// The dividend and the divisor of a quotient whose divisor has a reciprocal with all its bits.
fn quotient_by_constant(body: &Body, reg: u32) -> Option<(u32, f32)> {
    let Op::Binary(BinaryOp::Div, x, y) = body.op(reg) else { return None };
    let divisor = body.constant(y)?;
    (divisor.is_normal() && divisor.recip().is_normal()).then_some((x, divisor))
}

/// `1 + erf x`, from `1 - erf |x|`.
fn one_plus_erf(b: &mut Builder, x: Vector) -> Vector {
    let magnitude = math::abs(b, x);
    let factor = math::polynomial(b, magnitude, &LOG_ERFC);
    let exponent = b.binary(VBinary::Mul, factor, magnitude);
    let below = exp2_below_one(b, exponent);
    distribution(b, x, below)
}

/// `1 + tanh x`, from `1 - tanh |x| = e / (1/2 + e/2)` with `e` the exponential of `-2|x|`.
fn one_plus_tanh(b: &mut Builder, x: Vector) -> Vector {
    let magnitude = math::abs(b, x);
    let scale = b.float(-2.0 * std::f32::consts::LOG2_E);
    let exponent = b.binary(VBinary::Mul, magnitude, scale);
    let power = exp2_below_one(b, exponent);

    let half = b.float(0.5);
    let divisor = b.fma(power, half, half);
    let below = b.binary(VBinary::Div, power, divisor);
    distribution(b, x, below)
}

/// The sum at `x`, given that at `-|x|`: both add up to 2.
fn distribution(b: &mut Builder, x: Vector, below: Vector) -> Vector {
    let two = b.float(2.0);
    let above = b.binary(VBinary::Sub, two, below);
    let zero = b.float(0.0);
    let is_negative = b.compare(CompareOp::Lt, x, zero);
    b.select(is_negative, below, above)
}

/// `2^x` for negative `x`, and almost 0 where that is less than a normal float; NaN stays NaN.
fn exp2_below_one(b: &mut Builder, x: Vector) -> Vector {
    let x = math::max_constant(b, x, LEAST_EXPONENT);
    let n = b.unary(VUnary::Nearest, x);
    let r = b.binary(VBinary::Sub, x, n);
    let factor = math::polynomial(b, r, &EXP2);
    let one = b.float(1.0);
    let power = b.fma(factor, r, one);
    if b.lanes() == 16 {
        return b.binary(VBinary::Scale, power, n);
    }
    // One factor suffices, because the result is a normal float.
    let n = b.unary(VUnary::ToInt, n);
    let factor = math::power_of_two(b, n);
    b.binary(VBinary::Mul, power, factor)
}
