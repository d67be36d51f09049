//! The orders that contractions with constant weights prefer for their varying operands.

use super::reads::ReadSearch;
use crate::{
    graph::{Graph, Label, Op, Value, axis},
    lower::{
        fuse::{Fusion, through_views},
        index::{AxisOrder, identity, natural, substitute},
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
    graph.as_constant(through_views(graph, graph.operands(sum)[operand])).is_some()
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
        let Preference { base, order, has_windows, inner_row } =
            preference(graph, fusion, operand, labels, weights, out);
        match graph.op(base) {
            Op::Const(_) => {}
            Op::Input(_) => {
                // With the weights as its left operand, the product reads the input and writes the result along memory.
                // At lower precisions, weights that are packed at compile time are worth more.
                let is_f32 = matches!(precision, Precision::F32 | Precision::Full);
                let is_last = !multiplied.contains(&sum);
                let inner = (0..out.len()).rfind(|k| graph.shape(sum)[*k].as_i64() != Some(1));
                let stays_inside = inner.is_some_and(|k| inner_row == Some(out[k]));
                if is_f32 && is_last && stays_inside && are_floats(graph, operand, weight) {
                    in_place.insert(sum);
                }
            }
            _ if !has_windows && mixes_few_channels(graph, weight, weights, labels, out) => {
                in_place.insert(sum);
            }
            _ => demands.entry(base).or_insert(Demand { order, sums: Vec::new() }).sums.push(sum),
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
    let constant = graph.as_constant(through_views(graph, weight));
    is_f32 && constant.is_some_and(|constant| constant.few_bits().is_none())
}

/// The order that one contraction prefers for its varying operand.
struct Preference {
    /// The value that the operand views.
    base: Value,
    order: AxisOrder,
    /// Whether an axis of `base` is moved by rows and by the reduction, as in a convolution.
    has_windows: bool,
    /// The row axis that alone moves the innermost axis of `base` as a row-major value, one element at a time.
    inner_row: Option<Label>,
}

/// The preferred order of the value of `operand` in a contraction: rows outside, then axes that rows and reduction
/// share (windows), then channels. Channels that a gather scatters are outside of those that it reads in a row.
fn preference(
    graph: &Graph,
    fusion: &Fusion,
    operand: Value,
    labels: &[Label],
    weights: &[Label],
    out: &[Label],
) -> Preference {
    let mut base = operand;
    let mut index: Vec<Dim> = identity(labels.len());
    while let Op::View { index: map, .. } = graph.op(base) {
        index = substitute(map, &index);
        base = graph.operands(base)[0];
    }
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
    let moves = |k: &usize| graph.shape(operand)[*k].as_i64() != Some(1);
    let moving: Vec<usize> = (0..labels.len()).filter(moves).collect();
    let inner = inner_axis(graph, base, &index, &moving).map(|k| labels[k]);
    let inner_row = inner.filter(|label| out.contains(label) && !weights.contains(label));
    Preference { base, order, has_windows, inner_row }
}

/// The one of the axes `moving` that alone moves the innermost axis of `base` as a row-major value, one element at a
/// time. `index` are the coordinates of `base`.
fn inner_axis(graph: &Graph, base: Value, index: &[Dim], moving: &[usize]) -> Option<usize> {
    let shape = graph.shape(base);
    let at = &index[(0..shape.len()).rfind(|k| shape[*k].as_i64() != Some(1))?];
    let mut moving = moving.iter().filter(|k| at.contains(&axis(**k)));
    let (Some(k), None) = (moving.next(), moving.next()) else { return None };
    let (step, _) = graph.facts.linear_in(at, &axis(*k))?;
    (step.as_i64() == Some(1)).then_some(*k)
}

/// The axes along which the definition of `value` reads at loaded coordinates.
fn scattered_axes(graph: &Graph, fusion: &Fusion, value: Value) -> HashSet<usize> {
    let rank = graph.rank(value);
    let mut search =
        ReadSearch { graph, is_stored: &|value| fusion.is_root(value), rank, loaded: Vec::new(), main: None };
    search.visit(value, &identity(rank), true);
    search.loaded.into_iter().flat_map(|coordinate| coordinate.axes).collect()
}
