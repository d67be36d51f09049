//! The algebraic laws of scalar operators, as a list. Each law says which step it replaces, on which types, and why it
//! is exact.
//!
//! A law holds bit for bit for every value of its domain, including NaNs (as NaNs) and negative zeros. A test checks
//! each law against the evaluator on a box of such values. So `x * 1 = x` holds for floats, and `x + 0 = x` does not,
//! because `-0 + 0` is 0.

use crate::scalar::{BinaryOp, Body, CompareOp, Reg, Scalar, Step, UnaryOp};
use symshape_runtime::DType;

/// A rewrite of one step to a register that exists already.
pub struct Law {
    /// The law as a formula, for messages.
    pub law: &'static str,
    /// The types on which it holds.
    pub domain: fn(DType) -> bool,
    /// The register that equals the step, if the law applies.
    pub apply: fn(&Body, &Step) -> Option<Reg>,
}

fn any(_: DType) -> bool {
    true
}

fn ints(dtype: DType) -> bool {
    dtype.is_int()
}

fn is_arithmetic(dtype: DType) -> bool {
    dtype != DType::Bool
}

/// All laws. The first that applies is used.
pub const LAWS: &[Law] = &[
    Law {
        law: "x * 1 = x",
        domain: is_arithmetic,
        apply: |body, step| either(body, step, BinaryOp::Mul, |c| c.as_f64() == 1.0),
    },
    Law {
        law: "x / 1 = x",
        domain: is_arithmetic,
        apply: |body, step| right(body, step, BinaryOp::Div, |c| c.as_f64() == 1.0),
    },
    Law {
        law: "x + 0 = x (integers); x + -0.0 = x (floats)",
        domain: is_arithmetic,
        apply: |body, step| {
            either(body, step, BinaryOp::Add, |c| {
                c.as_f64() == 0.0 && is_negative_zero(c) == c.dtype().is_float()
            })
        },
    },
    Law {
        law: "x - 0 = x",
        domain: is_arithmetic,
        apply: |body, step| right(body, step, BinaryOp::Sub, |c| c.as_f64() == 0.0 && !is_negative_zero(c)),
    },
    Law {
        law: "x ^ 1 = x",
        domain: ints,
        apply: |body, step| right(body, step, BinaryOp::Pow, |c| c.as_f64() == 1.0),
    },
    Law {
        law: "x min x = x max x = x and x = x or x = x",
        domain: any,
        apply: |_, step| match step {
            Step::Binary(BinaryOp::Min | BinaryOp::Max | BinaryOp::And | BinaryOp::Or, x, y) if x == y => {
                Some(*x)
            }
            _ => None,
        },
    },
    Law {
        law: "-(-x) = x; not not x = x",
        domain: any,
        apply: |body, step| match step {
            Step::Unary(op @ (UnaryOp::Neg | UnaryOp::Not), x) => match made_by(body, *x)? {
                Step::Unary(inner, y) if inner == op => Some(*y),
                _ => None,
            },
            _ => None,
        },
    },
    Law {
        law: "|(|x|)| = |x|; floor(floor x) = floor x, and so on",
        domain: any,
        apply: |body, step| match step {
            Step::Unary(op, x) if is_idempotent(*op) => match made_by(body, *x)? {
                Step::Unary(inner, _) if inner == op => Some(*x),
                _ => None,
            },
            _ => None,
        },
    },
    Law {
        law: "select(c, x, x) = x; select(true, x, y) = x; select(false, x, y) = y",
        domain: any,
        apply: |body, step| match step {
            Step::Select(_, x, y) if x == y => Some(*x),
            Step::Select(c, x, y) => constant(body, *c).map(|c| if c.is_true() { *x } else { *y }),
            _ => None,
        },
    },
    Law {
        law: "x as its own type = x; (x as wider) as before = x",
        domain: any,
        apply: |body, step| match step {
            Step::Cast(to, x) if type_of(body, *x) == *to => Some(*x),
            Step::Cast(to, x) => match made_by(body, *x)? {
                Step::Cast(wide, y) if type_of(body, *y) == *to && holds_all(*wide, *to) => Some(*y),
                _ => None,
            },
            _ => None,
        },
    },
    Law {
        law: "(b as a number) != 0 = b",
        domain: any,
        apply: |body, step| match step {
            Step::Compare(CompareOp::Ne, x, zero) if constant(body, *zero)?.as_f64() == 0.0 => {
                match made_by(body, *x)? {
                    Step::Cast(_, y) if type_of(body, *y) == DType::Bool => Some(*y),
                    _ => None,
                }
            }
            _ => None,
        },
    },
];

/// The register that equals `step` by one of the laws.
pub fn apply(body: &Body, step: &Step) -> Option<Reg> {
    let dtype = step.operands().first().map(|reg| type_of(body, *reg))?;
    LAWS.iter().filter(|law| (law.domain)(dtype)).find_map(|law| (law.apply)(body, step))
}

/// The constant in a register.
pub fn constant(body: &Body, reg: Reg) -> Option<Scalar> {
    match made_by(body, reg)? {
        Step::Const(value) => Some(*value),
        _ => None,
    }
}

fn made_by(body: &Body, reg: Reg) -> Option<&Step> {
    body.steps.get((reg.0 as usize).checked_sub(body.params.len())?)
}

fn type_of(body: &Body, reg: Reg) -> DType {
    body.types()[reg.0 as usize]
}

/// Replaces `x op c` by `x`.
fn right(body: &Body, step: &Step, op: BinaryOp, neutral: fn(Scalar) -> bool) -> Option<Reg> {
    match step {
        Step::Binary(actual, x, c) if *actual == op && constant(body, *c).is_some_and(neutral) => Some(*x),
        _ => None,
    }
}

/// Replaces `x op c` and `c op x` by `x`.
fn either(body: &Body, step: &Step, op: BinaryOp, neutral: fn(Scalar) -> bool) -> Option<Reg> {
    right(body, step, op, neutral).or_else(|| match step {
        Step::Binary(actual, c, x) if *actual == op && constant(body, *c).is_some_and(neutral) => Some(*x),
        _ => None,
    })
}

fn is_negative_zero(value: Scalar) -> bool {
    value.dtype().is_float() && value.as_f64() == 0.0 && value.as_f64().is_sign_negative()
}

fn is_idempotent(op: UnaryOp) -> bool {
    matches!(
        op,
        UnaryOp::Abs
            | UnaryOp::Floor
            | UnaryOp::Ceil
            | UnaryOp::Round
            | UnaryOp::Trunc
            | UnaryOp::Sign
            | UnaryOp::RoundBf16
    )
}

/// Whether type `wide` holds every value of type `narrow`.
fn holds_all(wide: DType, narrow: DType) -> bool {
    match narrow {
        DType::Bool => true,
        DType::F32 => wide == DType::F64,
        DType::F16 | DType::BF16 => matches!(wide, DType::F32 | DType::F64),
        DType::F64 => false,
        // Wrapping to a type of at least the same width and back is exact.
        _ if wide.is_int() => wide.size_bytes() >= narrow.size_bytes(),
        DType::U8 | DType::I8 => wide.is_float() && wide != DType::BF16,
        DType::U16 | DType::I16 => matches!(wide, DType::F32 | DType::F64),
        DType::U32 | DType::I32 => wide == DType::F64,
        _ => false,
    }
}
