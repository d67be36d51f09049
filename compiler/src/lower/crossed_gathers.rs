//! Gathers that are read across: along another axis than their innermost one.
//!
//! The scores of some transformers have a term whose rows are gathered by keys, and which is then transposed to rows of
//! queries. If its readers gathered the elements, each lane of a vector would load its address, and then its element,
//! from another row. So such a gather is stored in row-major order, by lanes that read one row, and its readers move
//! the elements.
//!
//! The opposite is a gather that reads a view in a row, whose elements are not adjacent in an input. Then the view is
//! stored in row-major order.

use super::index::innermost;
use crate::graph::{Graph, Op, Value, axis};
use std::collections::HashSet;
use symshape::Dim;

/// The gathers that views read across.
pub(super) fn crossed_gathers(graph: &Graph) -> HashSet<Value> {
    let nodes = graph.nodes.iter().map(|(_, node)| node);
    let views = nodes.filter(|node| matches!(node.op, Op::View { .. }));
    let crossing = views.filter(|view| {
        matches!(graph.op(view.operands[0]), Op::Gather { .. }) && crosses(graph, view.results[0])
    });
    crossing.map(|view| view.operands[0]).collect()
}

/// The views of inputs whose elements gathers read in a row, see `opt/gathered_channels.rs`.
pub(super) fn gathered_views(graph: &Graph) -> HashSet<Value> {
    let gathers = graph.nodes.values().filter(|node| matches!(node.op, Op::Gather { .. }));
    let is_crossed = |view: &Value| {
        let is_view = matches!(graph.op(*view), Op::View { .. });
        is_view && matches!(graph.op(graph.operands(*view)[0]), Op::Input(_)) && crosses(graph, *view)
    };
    gathers.map(|node| node.operands[0]).filter(is_crossed).collect()
}

/// Whether the innermost axis of a view moves along other axes of its operand than the innermost one.
fn crosses(graph: &Graph, view: Value) -> bool {
    let Op::View { index, .. } = graph.op(view) else { return false };
    let [inner, operand_inner] =
        [view, graph.operands(view)[0]].map(|value| innermost(graph.shape(value), 0..graph.rank(value)));
    let (Some(inner), Some(operand_inner)) = (inner, operand_inner) else { return false };
    let is_moved = |dim: &Dim| dim.contains(&axis(inner));
    index.iter().any(is_moved) && !is_moved(&index[operand_inner])
}
