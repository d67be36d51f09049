//! The values that are not stored, because the operators that read them can compute their elements.

use super::map::has_floats;
use crate::{
    graph::{Graph, Node, NodeId, Op, Value},
    scalar::Precision,
};
use std::collections::{BTreeMap, BTreeSet};
use symshape_runtime::DType;

/// How an operator reads an operand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// In blocks, in order.
    Blocks,
    /// Anywhere.
    Places,
    /// As a tensor.
    Whole,
}

/// The values of these nodes that need not be stored: views that are read in blocks or places, and elementwise
/// operators that one operator reads in blocks. So neither the windows of a convolution nor a repeated bias are copied.
pub(super) fn values(graph: &Graph, nodes: &BTreeSet<NodeId>, wanted: &[Value]) -> BTreeSet<Value> {
    let mut readings: BTreeMap<Value, Vec<Reading>> = BTreeMap::new();
    for node in nodes.iter().map(|id| &graph.nodes[*id]) {
        let reading = reading(graph, node);
        node.operands.iter().for_each(|operand| readings.entry(*operand).or_default().push(reading));
    }
    wanted.iter().for_each(|value| readings.entry(*value).or_default().push(Reading::Whole));
    let is_lazy = |value: &Value, readings: &[Reading]| match graph.op(*value) {
        Op::View { .. } => !readings.contains(&Reading::Whole),
        Op::Map(body) => body.dtype() == DType::F32 && readings == [Reading::Blocks],
        _ => false,
    };
    readings.iter().filter(|(value, readings)| is_lazy(value, readings)).map(|(value, _)| *value).collect()
}

fn reading(graph: &Graph, node: &Node) -> Reading {
    match &node.op {
        Op::Map(body) if has_floats(body) => Reading::Blocks,
        Op::Reduce { .. } if graph.dtype(node.operands[0]) == DType::F32 => Reading::Blocks,
        Op::Contraction { .. } if is_product(graph, node) => Reading::Places,
        _ => Reading::Whole,
    }
}

/// Whether an operator is a contraction that is computed by matrix multiplications.
pub(super) fn is_product(graph: &Graph, node: &Node) -> bool {
    matches!(node.op, Op::Contraction { dtype: DType::F32, precision, .. } if precision != Precision::Int8)
        && node.operands.iter().all(|operand| graph.dtype(*operand) == DType::F32)
}
