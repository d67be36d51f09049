//! The orders that contractions with constant weights prefer for their varying operands.

use super::{planes::VaryingOperand, reads::scattered_axes};
use crate::{
    graph::{Graph, Label, Op, Value, axis},
    lower::{
        fuse::Fusion,
        index::{AxisOrder, identity, innermost, natural, substitute},
    },
    scalar::Precision,
};
use std::collections::{HashMap, HashSet};
use symshape::Dim;
use symshape_runtime::DType;

/// A contraction of at most this many channels into at most as many is as fast in any order of axes.
const FEW_CHANNELS: i64 = 32;

/// The order that contractions with constant weights prefer for a value.
pub(super) struct Demand {
    pub(super) order: AxisOrder,
    /// The contractions that read the value.
    pub(super) sums: Vec<Value>,
}

/// Whether operand `operand` of a contraction is a constant, possibly through views.
pub(super) fn is_fixed(graph: &Graph, sum: Value, operand: usize) -> bool {
    graph.viewed_constant(graph.operands(sum)[operand]).is_some()
}

/// The preferred orders of values that contractions read, through views, as their varying operand, and the contractions
/// that have no preference.
pub(super) fn demands(graph: &Graph, fusion: &Fusion) -> (HashMap<Value, Demand>, HashSet<Value>) {
    let mut demands: HashMap<Value, Demand> = HashMap::new();
    let mut in_place = HashSet::new();
    let multiplied = multiplied(graph);
    for (_, node) in &graph.nodes {
        let Op::Contraction { lhs, rhs, out, precision, .. } = &node.op else { continue };
        let sum = node.results[0];
        let lhs_is_fixed = is_fixed(graph, sum, 0);
        let (data, weights) = if lhs_is_fixed { (1, lhs) } else { (0, rhs) };
        let labels = if lhs_is_fixed { rhs } else { lhs };
        if !is_fixed(graph, sum, 1 - data) {
            continue;
        }
        let [operand, weight] = [node.operands[data], node.operands[1 - data]];
        let (base, index) = viewed(graph, operand);
        let varying = VaryingOperand { operand, base, index: &index, labels, weight, weights, out };
        let is_last = are_floats(graph, operand, weight) && !multiplied.contains(&sum);
        if is_last
            && (varying.has_planes(graph) || *precision == Precision::F32 && varying.has_few_columns(graph))
        {
            in_place.insert(sum);
            continue;
        }
        match graph.op(base) {
            Op::Const(_) => {}
            Op::Input(_) => {
                // With the weights as its left operand, the product reads the input and writes the result along memory.
                // At lower precisions, weights that are packed at compile time are worth more.
                let is_f32 = matches!(precision, Precision::F32 | Precision::Full);
                let inner = innermost(graph.shape(sum), 0..out.len()).map(|k| out[k]);
                let is_row = |label: &Label| labels.contains(label) && !weights.contains(label);
                let moves_alone = |label: Label| {
                    let moving = varying.inner_axis(graph, &|_| true);
                    moving.is_some_and(|(k, step)| labels[k] == label && step == 1)
                };
                if is_f32 && is_last && inner.is_some_and(|label| is_row(&label) && moves_alone(label)) {
                    in_place.insert(sum);
                }
            }
            _ => {
                let Preference { order, has_windows } =
                    preference(graph, fusion, base, &index, labels, weights, out);
                if !has_windows && mixes_few_channels(graph, weight, weights, labels, out) {
                    in_place.insert(sum);
                } else {
                    demands.entry(base).or_insert(Demand { order, sums: Vec::new() }).sums.push(sum);
                }
            }
        }
    }

    (demands, in_place)
}

/// Whether a contraction with these weights multiplies each element by a few numbers: a small matrix, the same for all
/// rows.
fn mixes_few_channels(
    graph: &Graph,
    weight: Value,
    weights: &[Label],
    labels: &[Label],
    out: &[Label],
) -> bool {
    let elems = |wanted: &dyn Fn(&Label) -> bool| {
        let extents = graph.shape(weight).iter().zip(weights).filter(|(_, label)| wanted(label));
        extents.map(|(extent, _)| extent.as_i64()).product::<Option<i64>>()
    };
    let is_few = |elems: Option<i64>| elems.is_some_and(|elems| elems <= FEW_CHANNELS);
    let is_matrix = weights.iter().all(|label| labels.contains(label) != out.contains(label));
    is_matrix && is_few(elems(&|label| labels.contains(label))) && is_few(elems(&|label| out.contains(label)))
}

/// The values that a contraction reads, possibly through other operators. Operators with regions count as contractions.
fn multiplied(graph: &Graph) -> HashSet<Value> {
    let mut found = HashSet::new();
    for node in graph.nodes.values().rev() {
        let multiplies = matches!(node.op, Op::Contraction { .. }) || !node.op.regions().is_empty();
        if multiplies || node.results.iter().any(|result| found.contains(result)) {
            found.extend(&node.operands);
        }
    }
    found
}

/// Whether both operands are `f32`, and the weights have no few bits.
fn are_floats(graph: &Graph, operand: Value, weight: Value) -> bool {
    let is_f32 = [operand, weight].iter().all(|value| graph.dtype(*value) == DType::F32);
    is_f32 && graph.viewed_constant(weight).is_some_and(|constant| constant.few_bits().is_none())
}

/// The value that `operand` views, and its coordinates over the axes of `operand`.
fn viewed(graph: &Graph, operand: Value) -> (Value, Vec<Dim>) {
    let mut base = operand;
    let mut index = identity(graph.rank(operand));
    while let Op::View { index: map, .. } = graph.op(base) {
        index = substitute(map, &index);
        base = graph.operands(base)[0];
    }
    (base, index)
}

/// The order that one contraction prefers for the value that its varying operand views.
struct Preference {
    order: AxisOrder,
    /// Whether an axis of the value is moved by rows and by the reduction, as in a convolution.
    has_windows: bool,
}

/// The preferred order of `base`, which is read at `index` over the axes of a varying operand: rows outside, then axes
/// that rows and reduction share (windows), then channels. Channels that a gather scatters are outside of those that it
/// reads in a row.
fn preference(
    graph: &Graph,
    fusion: &Fusion,
    base: Value,
    index: &[Dim],
    labels: &[Label],
    weights: &[Label],
    out: &[Label],
) -> Preference {
    let class = |expr: &Dim| {
        let used = |wanted: &dyn Fn(&Label) -> bool| {
            labels.iter().enumerate().any(|(k, label)| wanted(label) && expr.contains(&axis(k)))
        };
        let is_row = |label: &Label| !weights.contains(label);
        let is_reduced = |label: &Label| !out.contains(label);
        match (used(&is_row), used(&is_reduced)) {
            (true, false) => 0,
            (true, true) => 1,
            (false, _) => 2,
        }
    };

    let scattered = scattered_axes(graph, fusion, base);
    let place = |k: usize| match class(&index[k]) {
        // An axis of extent 1 has no index expression, and its position doesn't matter.
        _ if index[k].as_i64().is_some() => 0,
        2 if !scattered.contains(&k) => 3,
        class => class,
    };
    let mut order = natural(index.len());
    order.sort_by_key(|k| place(*k));
    let has_windows = index.iter().any(|expr| class(expr) == 1);
    Preference { order, has_windows }
}
