//! Narrows comparisons of indices with 64-bit integers to 32 bits, which vector lanes have. Masks of padded sequences
//! contain such comparisons.
//!
//! An index `i` has known bounds, `lo <= i <= hi`. Clamping the other side to `lo - 1..=hi + 1` changes the result of
//! no comparison, and both sides then fit 32 bits if the bounds do. The clamp is applied to the elements before a view
//! repeats them. Without such a view nothing would be gained.

use super::rebuild::rebuild;
use crate::{
    error::Result,
    graph::{Graph, Node, Op, Value},
    scalar::{BinaryOp, Reg, Scalar, Step},
};
use num_traits::ToPrimitive;
use symshape::Dim;
use symshape_runtime::DType;

/// Runs the pass.
///
/// # Errors
/// None.
pub(crate) fn clamp(graph: &mut Graph) -> Result<()> {
    rebuild(graph, |new, node| compared(new, node).map(|value| value.map(|value| vec![value])))?;
    super::dead::dead(graph)
}

fn compared(new: &mut Graph, node: &Node) -> Result<Option<Value>> {
    let Op::Map(body) = &node.op else { return Ok(None) };
    let ([a, b], [Step::Compare(op, x, y)]) = (&node.operands[..], &body.steps[..]) else { return Ok(None) };
    let flipped = (*x, *y) == (Reg(1), Reg(0));
    if !flipped && (*x, *y) != (Reg(0), Reg(1)) || new.dtype(*a) != DType::I64 {
        return Ok(None);
    }
    let both = [*a, *b].map(|value| bounds(new, value));
    let (index, other, (lo, hi)) = match both {
        [Some(bounds), None] => (0, 1, bounds),
        [None, Some(bounds)] => (1, 0, bounds),
        _ => return Ok(None),
    };

    let Some(narrow) = within(new, node.operands[other], lo, hi)? else { return Ok(None) };
    let Op::Index { shape, expr, .. } = new.op(node.operands[index]).clone() else { return Ok(None) };
    let mut operands = [narrow; 2];
    operands[index] = new.index(DType::I32, shape, expr)?;
    let (x, y) = if flipped { (operands[1], operands[0]) } else { (operands[0], operands[1]) };
    new.compare(*op, x, y).map(Some)
}

/// The smallest index less one, and the largest plus one, if both fit 32 bits.
fn bounds(graph: &Graph, value: Value) -> Option<(i64, i64)> {
    let Op::Index { shape, expr, .. } = graph.op(value) else { return None };
    let bounds = graph.index_facts(shape).bounds(expr);
    let lo = bounds.lo?.to_i64()?.checked_sub(1)?;
    let hi = bounds.hi?.to_i64()?.checked_add(1)?;
    (i32::try_from(lo).is_ok() && i32::try_from(hi).is_ok()).then_some((lo, hi))
}

/// The source of the view `value`, if it is computed: clamped to `lo` and `hi`, in 32 bits, and repeated by the same
/// view.
fn within(new: &mut Graph, value: Value, lo: i64, hi: i64) -> Result<Option<Value>> {
    let Op::View { shape, index } = new.op(value).clone() else { return Ok(None) };
    let base = new.operands(value)[0];
    let elems = |shape: &[Dim]| Dim::product(shape.iter().cloned());
    let is_spread = !new.facts.prove_le(&elems(&shape), &elems(new.shape(base))).is_yes();
    if !is_spread || new.contents(base).is_some() {
        return Ok(None);
    }

    let lo = new.scalar(Scalar::i64(lo))?;
    let hi = new.scalar(Scalar::i64(hi))?;
    let y = new.binary(BinaryOp::Max, base, lo)?;
    let y = new.binary(BinaryOp::Min, y, hi)?;
    let y = new.cast(DType::I32, y)?;
    new.view(y, shape, index).map(Some)
}
