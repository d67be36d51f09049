//! What is known about scalars that are computed from padding: abstract evaluation of [`Body`].
//!
//! Values that are computed from tokens or padding are assumed to be finite. Where a mask is added to scores, the
//! scores of a row are assumed to differ by much less than the mask's smallest element, [`FAR_BELOW`] or less.

use crate::scalar::{BinaryOp, Body, CompareOp, ReduceOp, Scalar, Step, UnaryOp, eval};
use symshape_runtime::DType;

/// A value of at most this is far below all scores of tokens: its exponential, relative to theirs, is 0.
const FAR_BELOW: f64 = -9_990.0;

/// Largest distance from a position that is followed, so that sums do not overflow.
pub(super) const MAX_DISTANCE: i64 = 1 << 20;

/// What is known about an element at a padded position.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum AtPadding {
    /// Nothing, but that it is finite.
    Any,
    /// It is the position in the sequence and this number, as an integer or a float.
    Position(i64),
    /// It is the length of the sequence, at most `max`, as an integer or a float. The position of padding is at least
    /// that.
    Length { max: i64 },
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

    /// Whether the element has this value, where zeros of either sign are equal.
    pub(super) fn is_equal(self, value: Scalar) -> bool {
        self == AtPadding::Known(value) || (self.is_zero() && AtPadding::Known(value).is_zero())
    }

    /// Whether the element is smaller than all tokens of its row.
    pub(super) fn is_far_below(self) -> bool {
        match self {
            AtPadding::Any | AtPadding::Position(_) | AtPadding::Length { .. } => false,
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
                (AtPadding::Position(by), AtPadding::Length { .. }) => compare_with_length(*op, by),
                (AtPadding::Length { .. }, AtPadding::Position(by)) => compare_with_length(swapped(*op), by),
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

/// The result of `position + by OP length` at padding, whose position is at least the length.
fn compare_with_length(op: CompareOp, by: i64) -> AtPadding {
    let is_least = by == 0;
    let holds = match op {
        _ if by < 0 => return AtPadding::Any,
        CompareOp::Lt => false,
        CompareOp::Ge => true,
        CompareOp::Le | CompareOp::Eq if !is_least => false,
        CompareOp::Gt | CompareOp::Ne if !is_least => true,
        _ => return AtPadding::Any,
    };
    AtPadding::Known(Scalar::bool(holds))
}

/// The operator for operands in the other order.
fn swapped(op: CompareOp) -> CompareOp {
    match op {
        CompareOp::Lt => CompareOp::Gt,
        CompareOp::Le => CompareOp::Ge,
        CompareOp::Gt => CompareOp::Lt,
        CompareOp::Ge => CompareOp::Le,
        CompareOp::Eq | CompareOp::Ne => op,
    }
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

/// What is known about an element after a cast.
pub(super) fn cast(to: DType, x: AtPadding) -> AtPadding {
    match x {
        AtPadding::Known(value) => AtPadding::Known(eval::cast(to, value)),
        AtPadding::FarBelow if to.is_float() => AtPadding::FarBelow,
        AtPadding::Position(_) | AtPadding::Length { .. }
            if matches!(to, DType::I32 | DType::I64 | DType::F64) =>
        {
            x
        }
        // Rounding keeps the order of integers, but two of them may become equal.
        AtPadding::Position(0) | AtPadding::Length { .. } if to == DType::F32 => x,
        _ => AtPadding::Any,
    }
}

fn binary(op: BinaryOp, x: AtPadding, y: AtPadding) -> AtPadding {
    if let (AtPadding::Known(x), AtPadding::Known(y)) = (x, y) {
        return AtPadding::Known(eval::binary(op, x, y));
    }

    // Other operators know no more of positions and lengths than that they are finite.
    match (op, x, y) {
        (BinaryOp::Add, AtPadding::Position(by), AtPadding::Known(more))
        | (BinaryOp::Add, AtPadding::Known(more), AtPadding::Position(by))
            if more.dtype().is_int() =>
        {
            let by = by.checked_add(more.as_i64()).filter(|by| by.abs() <= MAX_DISTANCE);
            return by.map_or(AtPadding::Any, AtPadding::Position);
        }
        // Limits that no length exceeds.
        (BinaryOp::Min, AtPadding::Length { max }, AtPadding::Known(limit))
        | (BinaryOp::Min, AtPadding::Known(limit), AtPadding::Length { max })
            if limit.dtype().is_int() && limit.as_i64() >= max =>
        {
            return AtPadding::Length { max };
        }
        (BinaryOp::Max, AtPadding::Length { max }, AtPadding::Known(limit))
        | (BinaryOp::Max, AtPadding::Known(limit), AtPadding::Length { max })
            if limit.dtype().is_int() && limit.as_i64() <= 0 =>
        {
            return AtPadding::Length { max };
        }
        _ => {}
    }
    let [x, y] = [x, y].map(|value| match value {
        AtPadding::Position(_) | AtPadding::Length { .. } => AtPadding::Any,
        other => other,
    });
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
