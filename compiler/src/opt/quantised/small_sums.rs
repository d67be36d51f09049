//! Multiplies small integers as floats, where no sum can leave the integers that an `f32` represents.
//!
//! Both operands are one-byte integers less a zero point, and both vary, as the queries and keys of attention do. If
//! the number of products times the largest product is at most 2^24, each product and each partial sum is an integer
//! that an `f32` holds exactly, in any order of evaluation:
//!
//! ```text
//! Σ x · y = i32(Σ f32(x) · f32(y))
//! ```
//!
//! Contractions of `f32` have microkernels, and are scheduled with the softmax between them; those of `i32` are not.

use super::real::{self, Real, Zero};
use crate::{
    error::Result,
    graph::{Graph, Label, Node, Op, Value},
    scalar::Precision,
};
use num_traits::ToPrimitive;
use symshape_runtime::DType;

/// All integers up to this magnitude are exact in `f32`.
const MAX_EXACT: i64 = 1 << 24;

/// Rewrites a contraction of two varying operands.
pub(super) fn contraction(new: &mut Graph, node: &Node) -> Result<Option<Value>> {
    let Op::Contraction { lhs, rhs, out, dtype: DType::I32, .. } = &node.op else { return Ok(None) };
    if node.operands.iter().any(|operand| real::is_fixed(new, *operand)) {
        return Ok(None);
    }
    let mut bound = max_terms(new, node.operands[0], lhs, out);
    for operand in &node.operands {
        let magnitude = max_magnitude(new, *operand)?;
        bound = bound.zip(magnitude).and_then(|(bound, magnitude)| bound.checked_mul(magnitude));
    }
    if bound.is_none_or(|bound| bound > MAX_EXACT) {
        return Ok(None);
    }

    let operands = [as_floats(new, node.operands[0])?, as_floats(new, node.operands[1])?];
    let op = Op::Contraction {
        lhs: lhs.clone(),
        rhs: rhs.clone(),
        out: out.clone(),
        dtype: DType::F32,
        precision: Precision::Full,
    };
    let sum = new.push(op, &operands)?;
    new.cast(DType::I32, sum).map(Some)
}

/// The largest number of terms of a sum. `None` without a bound.
fn max_terms(graph: &Graph, operand: Value, labels: &[Label], out: &[Label]) -> Option<i64> {
    let reduced = graph.shape(operand).iter().zip(labels).filter(|(_, label)| !out.contains(label));
    reduced.map(|(extent, _)| graph.facts.bounds(extent).hi?.to_i64()).product()
}

/// The largest magnitude of an element. `None` if it is not a one-byte integer less a zero point.
fn max_magnitude(new: &mut Graph, value: Value) -> Result<Option<i64>> {
    let Some(real) = Real::of(new, value, DType::I32)? else { return Ok(None) };
    let (lo, hi) = match new.dtype(real.stored) {
        DType::U8 => (0, 255),
        DType::I8 => (-128, 127),
        _ => return Ok(None),
    };
    Ok(match real.zero {
        Zero::Number(zero) => Some((lo - zero).abs().max((hi - zero).abs())),
        // A zero point that is data is an integer of one byte too, if it was converted from one.
        Zero::Found(zero) => {
            let narrow = real::cast(new, zero).map(|(_, x)| new.dtype(x));
            (narrow == Some(new.dtype(real.stored))).then_some(hi - lo)
        }
    })
}

/// The integers as `f32`, converted before views repeat them.
fn as_floats(new: &mut Graph, value: Value) -> Result<Value> {
    match new.op(value).clone() {
        Op::View { shape, index } => {
            let operand = as_floats(new, new.operands(value)[0])?;
            new.view(operand, shape, index)
        }
        _ => new.cast(DType::F32, value),
    }
}
