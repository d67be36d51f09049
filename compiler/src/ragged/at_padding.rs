//! What is known about scalars that are computed from padding: abstract evaluation of [`Body`].
//!
//! Values that are computed from tokens or padding are assumed to be finite. Where a mask is added to scores, the
//! scores of a row are assumed to differ by much less than the mask's smallest element, [`FAR_BELOW`] or less.

use crate::scalar::{BinaryOp, Body, ReduceOp, Scalar, Step, UnaryOp, eval};
use symshape_runtime::DType;

/// A value of at most this is far below all scores of tokens: its exponential, relative to theirs, is 0.
const FAR_BELOW: f64 = -9_990.0;

/// What is known about an element at a padded position.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum AtPadding {
    /// Nothing, but that it is finite.
    Any,
    /// It is this constant.
    Known(Scalar),
    /// It is at most [`FAR_BELOW`], or that much below all tokens of the row, or minus infinity.
    FarBelow,
}

impl AtPadding {
    /// Whether the element adds nothing to a sum: it is a zero of either sign.
    pub(super) fn is_zero(self) -> bool {
        matches!(self, AtPadding::Known(value) if value.as_f64() == 0.0)
    }

    /// Whether the element is smaller than all tokens of its row.
    pub(super) fn is_far_below(self) -> bool {
        match self {
            AtPadding::Any => false,
            AtPadding::Known(value) => value.dtype().is_float() && value.as_f64() <= FAR_BELOW,
            AtPadding::FarBelow => true,
        }
    }

    /// Whether a reduction over tokens and padding has the value of the reduction over the tokens alone.
    pub(super) fn is_neutral(self, op: ReduceOp) -> bool {
        let AtPadding::Known(value) = self else { return op == ReduceOp::Max && self.is_far_below() };
        match op {
            ReduceOp::Sum => self.is_zero(),
            ReduceOp::Max if self.is_far_below() => true,
            _ => value == op.neutral(value.dtype()),
        }
    }
}

/// The result of a body at a padded position, from its parameters there.
pub(super) fn body(body: &Body, params: &[AtPadding]) -> AtPadding {
    let types = body.types();
    let mut known = params.to_vec();
    for step in &body.steps {
        let dtype = types[known.len()];
        let of = |reg: &crate::scalar::Reg| known[reg.0 as usize];
        let result = match step {
            Step::Const(value) => AtPadding::Known(*value),
            Step::Unary(op, x) => unary(*op, of(x), dtype),
            Step::Binary(op, x, y) => binary(*op, of(x), of(y)),
            Step::Compare(op, x, y) => match (of(x), of(y)) {
                (AtPadding::Known(x), AtPadding::Known(y)) => {
                    AtPadding::Known(Scalar::bool(eval::compare(*op, x, y)))
                }
                _ => AtPadding::Any,
            },
            Step::Select(condition, x, y) => match of(condition) {
                AtPadding::Known(value) if value.as_i64() != 0 => of(x),
                AtPadding::Known(_) => of(y),
                _ => join(of(x), of(y)),
            },
            Step::Cast(to, x) => cast(*to, of(x)),
            Step::Bits(to, x) => match of(x) {
                AtPadding::Known(value) => AtPadding::Known(eval::bits(*to, value)),
                _ => AtPadding::Any,
            },
        };
        known.push(result);
    }
    known[body.result.0 as usize]
}

/// What is known about an element that is one of two.
pub(super) fn join(x: AtPadding, y: AtPadding) -> AtPadding {
    if x == y {
        x
    } else if x.is_far_below() && y.is_far_below() {
        AtPadding::FarBelow
    } else {
        AtPadding::Any
    }
}

fn unary(op: UnaryOp, x: AtPadding, dtype: DType) -> AtPadding {
    match (op, x) {
        (_, AtPadding::Known(value)) => AtPadding::Known(eval::unary(op, value)),
        // The row's largest element was subtracted before, or the exponential of the tokens would overflow.
        (UnaryOp::Exp, AtPadding::FarBelow) => AtPadding::Known(Scalar::from_i64(dtype, 0)),
        _ => AtPadding::Any,
    }
}

fn cast(to: DType, x: AtPadding) -> AtPadding {
    match x {
        AtPadding::Known(value) => AtPadding::Known(eval::cast(to, value)),
        AtPadding::FarBelow if to.is_float() => AtPadding::FarBelow,
        _ => AtPadding::Any,
    }
}

fn binary(op: BinaryOp, x: AtPadding, y: AtPadding) -> AtPadding {
    if let (AtPadding::Known(x), AtPadding::Known(y)) = (x, y) {
        return AtPadding::Known(eval::binary(op, x, y));
    }

    let is_bool = |x: AtPadding, wanted: bool| x == AtPadding::Known(Scalar::bool(wanted));
    match op {
        BinaryOp::Mul if x.is_zero() && y == AtPadding::Any => x,
        BinaryOp::Mul if y.is_zero() && x == AtPadding::Any => y,
        BinaryOp::Div if x.is_zero() && y == AtPadding::Any => x,
        BinaryOp::Add if x.is_far_below() && (y == AtPadding::Any || y.is_far_below()) => AtPadding::FarBelow,
        BinaryOp::Add if y.is_far_below() && x == AtPadding::Any => AtPadding::FarBelow,
        BinaryOp::Sub if x.is_far_below() && y == AtPadding::Any => AtPadding::FarBelow,
        BinaryOp::Min if x.is_far_below() || y.is_far_below() => AtPadding::FarBelow,
        BinaryOp::Max if x.is_far_below() && y.is_far_below() => AtPadding::FarBelow,
        BinaryOp::And if is_bool(x, false) => x,
        BinaryOp::And if is_bool(y, false) => y,
        BinaryOp::Or if is_bool(x, true) => x,
        BinaryOp::Or if is_bool(y, true) => y,
        _ => AtPadding::Any,
    }
}
