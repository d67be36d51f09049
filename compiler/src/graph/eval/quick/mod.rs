//! Operators over `f32` in whole rows, for [`Rounding::Quick`](super::Rounding::Quick).
//!
//! The reference evaluator visits one element at a time. Trial runs need whole models at usual sizes, so the frequent
//! operators have a second form here: contractions are matrix multiplications, and elementwise operators, views and
//! reductions work on slices. Everything else is evaluated from its definition.

mod contraction;
mod map;
mod offsets;
mod reduce;

pub(super) use contraction::{Operand, contraction};
pub(super) use offsets::Offsets;

use super::binding::Binding;
use crate::{
    error::Result,
    graph::{Graph, Op, Value},
    scalar::Precision,
    tensor::Tensor,
};
use std::collections::BTreeSet;
use symshape_runtime::DType;

/// The result of `op`, which has this shape. `None` if the operator has no second form for these operands.
pub(super) fn eval(
    op: &Op,
    operands: &[Tensor],
    shape: &[usize],
    binding: &Binding,
) -> Result<Option<Tensor>> {
    let all_floats = operands.iter().all(|operand| operand.dtype() == DType::F32);
    match op {
        Op::Map(body) => map::map(body, operands, shape),
        Op::View { index, .. } => {
            let offsets = Offsets::of(index, &operands[0], shape, binding)?;
            offsets.map(|offsets| offsets.gather(&operands[0], shape)).transpose()
        }
        Op::Reduce { op, axes } if all_floats => reduce::reduce(*op, axes, &operands[0], shape).map(Some),
        _ => Ok(None),
    }
}

/// The views that only contractions with a second form read. These read the operand of the view in place, so that the
/// windows of a convolution are never copied as a whole.
pub(super) fn views_in_place(graph: &Graph) -> BTreeSet<Value> {
    let is_view = |value: &Value| matches!(graph.op(*value), Op::View { .. });
    let values = graph.nodes.values().flat_map(|node| &node.results);
    let mut views: BTreeSet<Value> = values.copied().filter(is_view).collect();
    for node in graph.nodes.values().filter(|node| !has_second_form(graph, &node.op, &node.operands)) {
        views.retain(|view| !node.operands.contains(view));
    }
    views.retain(|view| graph.outputs.iter().all(|(_, output)| output != view));
    views
}

/// Whether an operator is a contraction that [`contraction`] computes.
pub(super) fn has_second_form(graph: &Graph, op: &Op, operands: &[Value]) -> bool {
    matches!(op, Op::Contraction { dtype: DType::F32, precision, .. } if *precision != Precision::Int8)
        && operands.iter().all(|operand| graph.dtype(*operand) == DType::F32)
}
