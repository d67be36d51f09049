//! The reasons why straight-line code has no vector form.

use super::op::{Body, Op};
use std::fmt::{self, Display, Formatter};
use symshape::Dim;
use symshape_runtime::DType;

/// The first reason why code has no vector form.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Obstacle {
    /// Elements of this type have no lanes.
    Type(DType),
    /// The address is not linear in the loops of the microkernel.
    Address(Dim),
    /// An index that is used as a value changes inside of the loops, or it does not fit into 32 bits.
    Index(Dim),
    /// Arithmetic on 64-bit integers.
    WideArithmetic,
    /// An address is loaded, as in a gather, in a form that no microkernel has.
    LoadedAddress,
    /// The sum has a type without accumulators, or the code has no sum.
    Sum,
    /// This operation has no vector form for the type of its operands.
    Operation(String),
    /// Too many loops, or scalar variables in an epilogue.
    Form,
}

impl Obstacle {
    /// The obstacle for an operation that microkernels don't support.
    pub(super) fn of_op(body: &Body, op: Op) -> Obstacle {
        let name = match op {
            Op::Unary(op, _) => op.to_string(),
            Op::Binary(op, ..) => op.to_string(),
            Op::Compare(op, ..) => op.to_string(),
            Op::Reduce(op, ..) => op.to_string(),
            Op::Select(..) => "select".to_string(),
            Op::Cast(_) => "cast".to_string(),
            Op::Bits(_) => "bits".to_string(),
            Op::Set(..) | Op::Get(_) => "set".to_string(),
            Op::Const(_)
            | Op::WideConst(_)
            | Op::Load(_)
            | Op::Gather(..)
            | Op::Column
            | Op::Repeat(..)
            | Op::Checked(..)
            | Op::Splat(_)
            | Op::Accumulator
            | Op::Store(..) => return Obstacle::Form,
        };
        let ty = op
            .operands()
            .last()
            .map_or(String::new(), |reg| format!(" of {:?}", body.ty(reg)).to_lowercase());
        Obstacle::Operation(format!("`{name}`{ty}"))
    }
}

impl Display for Obstacle {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Type(dtype) => write!(f, "{dtype} has no vector form"),
            Obstacle::Address(dim) => write!(f, "the address {dim} is not linear"),
            Obstacle::Index(dim) => write!(f, "the index {dim} is used as a value"),
            Obstacle::WideArithmetic => f.write_str("it computes with 64-bit integers"),
            Obstacle::LoadedAddress => f.write_str("an address is loaded for each element"),
            Obstacle::Sum => f.write_str("sums of this type have no vector form"),
            Obstacle::Operation(name) => write!(f, "{name} has no vector form"),
            Obstacle::Form => f.write_str("it has too many loops"),
        }
    }
}
