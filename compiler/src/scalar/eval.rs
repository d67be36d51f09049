//! The meaning of every scalar operator, bit for bit. The interpreters of both IRs share it.
//!
//! Floats of every type are computed in double precision and rounded once to their type. For `+ - * /` and `sqrt` of
//! the shorter types this is the correctly rounded result. Integers wrap to their width. Nothing here fails, because
//! types are checked where bodies are built.

use super::{BinaryOp, Body, CompareOp, ReduceOp, Reg, Scalar, Step, UnaryOp, precision};
use std::cmp::Ordering;
use symshape_runtime::DType;

/// See [`UnaryOp`].
pub fn unary(op: UnaryOp, x: Scalar) -> Scalar {
    match x.dtype() {
        dtype if dtype.is_float() => match op {
            UnaryOp::IsNan => Scalar::bool(x.as_f64().is_nan()),
            UnaryOp::IsInf => Scalar::bool(x.as_f64().is_infinite()),
            _ => Scalar::from_f64(dtype, float_unary(op, x.as_f64())),
        },
        DType::Bool => Scalar::bool(!x.is_true()),
        dtype => int_unary(op, x, dtype),
    }
}

fn float_unary(op: UnaryOp, x: f64) -> f64 {
    match op {
        UnaryOp::Neg => -x,
        UnaryOp::Abs => x.abs(),
        UnaryOp::Sign if x == 0.0 || x.is_nan() => x,
        UnaryOp::Sign => x.signum(),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Round => x.round_ties_even(),
        UnaryOp::Trunc => x.trunc(),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Recip => 1.0 / x,
        UnaryOp::Exp => x.exp(),
        UnaryOp::Expm1 => x.exp_m1(),
        UnaryOp::Log => x.ln(),
        UnaryOp::Log1p => x.ln_1p(),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Tan => x.tan(),
        UnaryOp::Asin => x.asin(),
        UnaryOp::Acos => x.acos(),
        UnaryOp::Atan => x.atan(),
        UnaryOp::Sinh => x.sinh(),
        UnaryOp::Cosh => x.cosh(),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Asinh => libm::asinh(x),
        // Below 1, libm returns values other than NaN.
        UnaryOp::Acosh if x < 1.0 => f64::NAN,
        UnaryOp::Acosh => libm::acosh(x),
        UnaryOp::Atanh => libm::atanh(x),
        UnaryOp::Erf => libm::erf(x),
        UnaryOp::RoundBf16 => precision::high(x as f32).into(),
        UnaryOp::Not | UnaryOp::IsNan | UnaryOp::IsInf => x,
    }
}

fn int_unary(op: UnaryOp, x: Scalar, dtype: DType) -> Scalar {
    let value = x.as_i64();
    let negative = dtype.is_signed_int() && value < 0;
    let result = match op {
        UnaryOp::Neg => value.wrapping_neg(),
        UnaryOp::Abs if negative => value.wrapping_neg(),
        UnaryOp::Sign if negative => -1,
        UnaryOp::Sign => i64::from(value != 0),
        UnaryOp::Not => !value,
        _ => value,
    };
    Scalar::from_bits(dtype, result as u64)
}

/// See [`BinaryOp`].
pub fn binary(op: BinaryOp, x: Scalar, y: Scalar) -> Scalar {
    match x.dtype() {
        dtype if dtype.is_float() => Scalar::from_f64(dtype, float_binary(op, x.as_f64(), y.as_f64())),
        dtype => Scalar::from_bits(dtype, int_binary(op, x, y, dtype)),
    }
}

fn float_binary(op: BinaryOp, x: f64, y: f64) -> f64 {
    match op {
        BinaryOp::Add => x + y,
        BinaryOp::Sub => x - y,
        BinaryOp::Mul => x * y,
        BinaryOp::Div => x / y,
        BinaryOp::Rem => x % y,
        BinaryOp::Mod => float_mod(x, y),
        BinaryOp::Pow => x.powf(y),
        BinaryOp::Min => float_min(x, y),
        BinaryOp::Max => -float_min(-x, -y),
        BinaryOp::Atan2 => x.atan2(y),
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor | BinaryOp::Shl | BinaryOp::Shr => x,
    }
}

fn float_mod(x: f64, y: f64) -> f64 {
    let rest = x % y;
    match rest {
        _ if rest == 0.0 => 0f64.copysign(y),
        _ if (rest < 0.0) != (y < 0.0) => rest + y,
        _ => rest,
    }
}

fn float_min(x: f64, y: f64) -> f64 {
    if x.is_nan() || y.is_nan() {
        f64::NAN
    } else if x < y || (x == y && x.is_sign_negative()) {
        x
    } else {
        y
    }
}

/// The value of an integer, including a `u64` that does not fit in an `i64`.
fn wide(x: Scalar) -> i128 {
    match x.dtype() {
        DType::U64 => i128::from(x.bits()),
        _ => i128::from(x.as_i64()),
    }
}

fn int_binary(op: BinaryOp, x: Scalar, y: Scalar, dtype: DType) -> u64 {
    let a = wide(x);
    let b = wide(y);

    match op {
        BinaryOp::Add => a.wrapping_add(b) as u64,
        BinaryOp::Sub => a.wrapping_sub(b) as u64,
        BinaryOp::Mul => (a as u64).wrapping_mul(b as u64),
        BinaryOp::Div => a.checked_div(b).unwrap_or(0) as u64,
        BinaryOp::Rem => a.checked_rem(b).unwrap_or(0) as u64,
        BinaryOp::Mod => {
            a.checked_rem(b).map_or(0, |r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r }) as u64
        }
        BinaryOp::Pow => int_pow(a, b),
        BinaryOp::Min => a.min(b) as u64,
        BinaryOp::Max => a.max(b) as u64,
        BinaryOp::And => (a & b) as u64,
        BinaryOp::Or => (a | b) as u64,
        BinaryOp::Xor => (a ^ b) as u64,
        BinaryOp::Shl if (0..width(dtype)).contains(&b) => (a << b) as u64,
        BinaryOp::Shl => 0,
        BinaryOp::Shr if (0..width(dtype)).contains(&b) => (a >> b) as u64,
        BinaryOp::Shr => (a >> 127) as u64,
        BinaryOp::Atan2 => a as u64,
    }
}

fn width(dtype: DType) -> i128 {
    8 * dtype.size_bytes() as i128
}

/// A negative exponent gives the truncated quotient `1 / x^-e`, and 0 if `x = 0`.
fn int_pow(x: i128, exponent: i128) -> u64 {
    if exponent < 0 {
        return match x {
            1 => 1,
            -1 if exponent % 2 == 0 => 1,
            -1 => u64::MAX,
            _ => 0,
        };
    }

    let mut base = x as u64;
    let mut left = exponent as u64;
    let mut power = 1u64;
    while left > 0 {
        if left & 1 == 1 {
            power = power.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        left >>= 1;
    }
    power
}

/// See [`CompareOp`].
pub fn compare(op: CompareOp, x: Scalar, y: Scalar) -> bool {
    let order =
        if x.dtype().is_float() { x.as_f64().partial_cmp(&y.as_f64()) } else { Some(wide(x).cmp(&wide(y))) };
    match op {
        CompareOp::Eq => order.is_some_and(|order| order.is_eq()),
        CompareOp::Ne => order.is_none_or(|order| order.is_ne()),
        CompareOp::Lt => order.is_some_and(|order| order.is_lt()),
        CompareOp::Le => order.is_some_and(|order| order.is_le()),
        CompareOp::Gt => order.is_some_and(|order| order.is_gt()),
        CompareOp::Ge => order.is_some_and(|order| order.is_ge()),
    }
}

/// See [`Step::Cast`].
pub fn cast(to: DType, x: Scalar) -> Scalar {
    match (x.dtype(), to) {
        (from, _) if from == to => x,
        (_, DType::Bool) => Scalar::bool(x.is_true()),
        (from, _) if from.is_float() => Scalar::from_f64(to, x.as_f64()),
        (DType::U64, DType::F32) => Scalar::f32(x.bits() as f32),
        (DType::U64, _) if to.is_float() => Scalar::from_f64(to, x.bits() as f64),
        _ => Scalar::from_i64(to, x.as_i64()),
    }
}

/// See [`Step::Bits`].
pub fn bits(to: DType, x: Scalar) -> Scalar {
    match to {
        DType::Bool => Scalar::bool(x.bits() & 1 == 1),
        _ => Scalar::from_bits(to, x.bits()),
    }
}

/// Combines two values in a reduction.
pub fn combine(op: ReduceOp, x: Scalar, y: Scalar) -> Scalar {
    binary(op.binary(), x, y)
}

/// The initial value of a reduction.
pub fn neutral(op: ReduceOp, dtype: DType) -> Scalar {
    match op {
        ReduceOp::Sum => Scalar::from_i64(dtype, 0),
        ReduceOp::Prod => Scalar::from_i64(dtype, 1),
        ReduceOp::Min => largest(dtype),
        ReduceOp::Max => smallest(dtype),
    }
}

fn largest(dtype: DType) -> Scalar {
    match dtype {
        DType::Bool => Scalar::bool(true),
        _ if dtype.is_float() => Scalar::from_f64(dtype, f64::INFINITY),
        _ if dtype.is_signed_int() => Scalar::from_bits(dtype, (1 << (width(dtype) - 1)) - 1),
        _ => Scalar::from_bits(dtype, u64::MAX),
    }
}

fn smallest(dtype: DType) -> Scalar {
    match dtype {
        _ if dtype.is_float() => Scalar::from_f64(dtype, f64::NEG_INFINITY),
        _ if dtype.is_signed_int() => Scalar::from_bits(dtype, 1 << (width(dtype) - 1)),
        _ => Scalar::from_bits(dtype, 0),
    }
}

impl Body {
    /// The result for these arguments. Calls may share `regs` as scratch.
    ///
    /// ```
    /// use symshape_compiler::scalar::{Body, Reg, Scalar, Step, UnaryOp};
    /// use symshape_runtime::DType;
    /// let body = Body { params: vec![DType::F32], steps: vec![Step::Unary(UnaryOp::Sqrt, Reg(0))], result: Reg(1) };
    /// assert_eq!(body.eval(&[Scalar::f32(9.0)], &mut Vec::new()), Scalar::f32(3.0));
    /// ```
    ///
    /// # Panics
    /// On a body that [`crate::graph::infer::check_body`] rejects.
    pub fn eval(&self, args: &[Scalar], regs: &mut Vec<Scalar>) -> Scalar {
        self.eval_with(args, regs, eval_step)
    }

    /// As [`Body::eval`], but each inexact `f32` is rounded to the float on the other side of the exact result. The
    /// error is as large as that of code that approximates a function, or rounds a product and its sum once.
    ///
    /// ```
    /// use symshape_compiler::scalar::{Body, Reg, Scalar, Step, UnaryOp};
    /// use symshape_runtime::DType;
    /// let body = Body { params: vec![DType::F32], steps: vec![Step::Unary(UnaryOp::Recip, Reg(0))], result: Reg(1) };
    /// let third = body.eval_rounded_away(&[Scalar::f32(3.0)], &mut Vec::new());
    /// assert_eq!(third, Scalar::f32((1.0_f32 / 3.0).next_down()));
    /// ```
    ///
    /// # Panics
    /// As [`Body::eval`].
    pub fn eval_rounded_away(&self, args: &[Scalar], regs: &mut Vec<Scalar>) -> Scalar {
        self.eval_with(args, regs, |step, regs| {
            let nearest = eval_step(step, regs);
            exact(step, regs).map_or(nearest, |exact| other_side(nearest, exact))
        })
    }

    fn eval_with(
        &self,
        args: &[Scalar],
        regs: &mut Vec<Scalar>,
        eval: impl Fn(&Step, &[Scalar]) -> Scalar,
    ) -> Scalar {
        regs.clear();
        regs.extend_from_slice(args);
        for step in &self.steps {
            let value = eval(step, regs);
            regs.push(value);
        }
        regs[self.result.0 as usize]
    }
}

/// The result of a step in double precision, if it is an `f32` that is rounded from a double.
fn exact(step: &Step, regs: &[Scalar]) -> Option<f64> {
    let of = |reg: &Reg| Some(regs[reg.0 as usize]).filter(|x| x.dtype() == DType::F32).map(Scalar::as_f64);
    match step {
        Step::Unary(UnaryOp::RoundBf16 | UnaryOp::IsNan | UnaryOp::IsInf, _) => None,
        Step::Unary(op, x) => Some(float_unary(*op, of(x)?)),
        Step::Binary(op, x, y) => Some(float_binary(*op, of(x)?, of(y)?)),
        _ => None,
    }
}

/// The float next to `nearest` on the other side of `exact`. `nearest` itself if it is exact, or if there is none.
fn other_side(nearest: Scalar, exact: f64) -> Scalar {
    let near = nearest.as_f64();
    let other = match exact.partial_cmp(&near) {
        Some(Ordering::Greater) => (near as f32).next_up(),
        Some(Ordering::Less) => (near as f32).next_down(),
        _ => return nearest,
    };
    if other.is_finite() && near.is_finite() { Scalar::f32(other) } else { nearest }
}

fn eval_step(step: &Step, regs: &[Scalar]) -> Scalar {
    let of = |reg: &Reg| regs[reg.0 as usize];
    match step {
        Step::Const(value) => *value,
        Step::Unary(op, x) => unary(*op, of(x)),
        Step::Binary(op, x, y) => binary(*op, of(x), of(y)),
        Step::Compare(op, x, y) => Scalar::bool(compare(*op, of(x), of(y))),
        Step::Select(c, x, y) => of(if of(c).is_true() { x } else { y }),
        Step::Cast(to, x) => cast(*to, of(x)),
        Step::Bits(to, x) => bits(*to, of(x)),
    }
}
