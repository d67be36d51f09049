//! Mathematical functions as formulas in double precision.
//!
//! A formula is written once, over [`value::V`]. Its instructions go to a [`Sink`]: scalar code computes one number, a
//! microkernel the lanes of a vector.

mod erf;
mod exp;
mod pow;
mod trig;
mod value;

pub(crate) use value::{Binary, BranchCode, Handle, Kind, Sink, Table, Unary};

use crate::{
    error::{Error, Result},
    scalar::UnaryOp,
};
use value::V;

/// A function of doubles that has a formula.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Formula {
    /// A function of one argument.
    Unary(UnaryOp),
    /// Power.
    Pow,
    /// The angle of a point.
    Atan2,
}

/// The function as instructions of a sink. Functions of one argument ignore the second.
///
/// # Errors
/// `Internal` for operators that are instructions: a bug.
pub(crate) fn emit(formula: Formula, sink: &dyn Sink, x: Handle, y: Handle) -> Result<Handle> {
    let x = V::new(sink, x);
    let y = V::new(sink, y);
    let result = match formula {
        Formula::Pow => pow::pow(x, y),
        Formula::Atan2 => trig::atan2(x, y),
        Formula::Unary(op) => match op {
            UnaryOp::Exp => exp::exp(x),
            UnaryOp::Expm1 => exp::expm1(x),
            UnaryOp::Log => exp::log(x),
            UnaryOp::Log1p => exp::log1p(x),
            UnaryOp::Sinh => exp::sinh(x),
            UnaryOp::Cosh => exp::cosh(x),
            UnaryOp::Tanh => exp::tanh(x),
            UnaryOp::Asinh => exp::asinh(x),
            UnaryOp::Acosh => exp::acosh(x),
            UnaryOp::Atanh => exp::atanh(x),
            UnaryOp::Erf => erf::erf(x),
            UnaryOp::Sin => trig::sin(x)?,
            UnaryOp::Cos => trig::cos(x)?,
            UnaryOp::Tan => trig::tan(x)?,
            UnaryOp::Asin => trig::asin(x),
            UnaryOp::Acos => trig::acos(x),
            UnaryOp::Atan => trig::atan(x),
            _ => return Err(Error::internal(format!("{op:?} is not a function"))),
        },
    };

    Ok(result.handle())
}
