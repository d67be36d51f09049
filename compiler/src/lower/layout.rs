//! Chooses the order of the axes of each root in memory.
//!
//! An order lists a value's axes from the outermost to the innermost. A contraction prefers the reduction axes of its
//! varying operand innermost, which for convolutions means channels last. Its result has the columns of the constant
//! operand innermost, except that a short axis that is reduced next goes outside of them. Every other value keeps the
//! order of its operands. So the layouts of a convolutional net are channels-last from end to end, and those of a
//! transformer row-major, although no rule names either.

use super::{
    fuse::{Fusion, sum_index, through_views},
    index::{AxisOrder, address, elems, estimate, identity, natural, strides, substitute},
};
use crate::graph::{Coord, Graph, Label, Op, Value, axis};
use std::collections::{HashMap, HashSet};
use symshape::{Dim, Symbol};

/// An axis with at most this many elements is short.
const SHORT: i64 = 4;

/// The orders of all roots. Inputs, outputs and constants are row-major.
pub(super) fn orders(graph: &Graph, fusion: &Fusion) -> HashMap<Value, AxisOrder> {
    let demands = demands(graph);
    let short = short_reductions(graph);

    let mut orders: HashMap<Value, AxisOrder> = HashMap::new();
    for value in graph.values.keys().filter(|value| fusion.is_root(*value)) {
        let parent = fusion.placed_in(value).map(|(parent, _)| parent);
        let demanded = parent.and_then(|parent| demands.get(&parent)).or_else(|| demands.get(&value));
        let order = match demanded {
            Some(order) => order.clone(),
            None => inherited(graph, fusion, (&orders, &short), value),
        };
        orders.insert(value, order);
    }

    orders
}

/// The preferred orders of values that contractions read, through views, as their varying operand.
fn demands(graph: &Graph) -> HashMap<Value, AxisOrder> {
    let mut demands = HashMap::new();
    for (_, node) in &graph.nodes {
        let Op::Contraction { lhs, rhs, out, .. } = &node.op else { continue };
        let lhs_is_fixed = graph.as_constant(through_views(graph, node.operands[0])).is_some();
        let (data, weights) = if lhs_is_fixed { (1, lhs) } else { (0, rhs) };
        let labels = if lhs_is_fixed { rhs } else { lhs };
        let fixed = graph.as_constant(through_views(graph, node.operands[1 - data])).is_some();
        if !fixed {
            continue;
        }
        if let Some((base, order)) = demand(graph, node.operands[data], labels, weights, out) {
            demands.entry(base).or_insert(order);
        }
    }

    demands
}

/// The preferred order of the value of `operand` in a contraction: rows outside, then axes that rows and reduction
/// share (windows), then channels.
fn demand(
    graph: &Graph,
    operand: Value,
    labels: &[Label],
    weights: &[Label],
    out: &[Label],
) -> Option<(Value, AxisOrder)> {
    let mut base = operand;
    let mut index: Vec<Dim> = identity(labels.len());
    while let Op::View { index: map, .. } = graph.op(base) {
        index = substitute(map, &index);
        base = graph.operands(base)[0];
    }
    if matches!(graph.op(base), Op::Input(_) | Op::Const(_)) {
        return None;
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

    let mut order = natural(index.len());

    // An axis of extent 1 has no index expression, and its position doesn't matter.
    order.sort_by_key(|k| if index[*k].as_i64().is_some() { 0 } else { class(&index[*k]) });
    Some((base, order))
}

/// The order that `value` inherits from its operands.
fn inherited(
    graph: &Graph,
    fusion: &Fusion,
    (orders, short): (&HashMap<Value, AxisOrder>, &HashSet<(Value, usize)>),
    value: Value,
) -> AxisOrder {
    let shape = graph.shape(value);
    let row_major = natural(shape.len());
    if let Some(sum) = fusion.absorbed_by(value) {
        let Some(index) = sum_index(graph, fusion, value, sum) else { return row_major };
        return order_of_address(graph, shape, graph.shape(sum), &contract_order(graph, sum, short), &index);
    }

    match graph.op(value) {
        Op::Contraction { .. } => contract_order(graph, value, short),
        Op::Pad { .. } | Op::Concat { .. } | Op::Scan { .. } | Op::Scatter { .. } | Op::Sort { .. } => {
            orders.get(&graph.operands(value)[0]).cloned().unwrap_or(row_major)
        }
        Op::Reduce { axes, .. } => reduced_order(graph, orders, value, axes),
        Op::ArgReduce { axis, .. } => reduced_order(graph, orders, value, &[*axis]),
        Op::Map(_) | Op::View { .. } | Op::Gather { .. } => {
            let index: Vec<Dim> = identity(shape.len());
            let mut main = None;
            main_operand(graph, orders, value, &index, true, &mut main);
            match main {
                Some((_, source, index)) => {
                    let order = orders.get(&source).cloned();
                    let order = order.unwrap_or_else(|| natural(graph.rank(source)));
                    order_of_address(graph, shape, graph.shape(source), &order, &index)
                }
                None => row_major,
            }
        }
        Op::Input(_) | Op::Const(_) | Op::Index { .. } => row_major,
        Op::Bind { .. } | Op::If { .. } | Op::Loop { .. } | Op::Call { .. } | Op::Fail { .. } => row_major,
    }
}

/// The short axes of contractions that their readers reduce, such as the parts of complex numbers whose squares are
/// added. If such an axis were innermost, each result would be a very short sum along memory.
fn short_reductions(graph: &Graph) -> HashSet<(Value, usize)> {
    let mut short = HashSet::new();
    for (_, node) in &graph.nodes {
        let Op::Reduce { axes, .. } = &node.op else { continue };
        let operand = node.operands[0];
        let is_short = |k: &&usize| graph.shape(operand)[**k].as_i64().is_some_and(|n| n <= SHORT);
        let reduced: Vec<Dim> = axes.iter().filter(is_short).map(|k| Dim::from(axis(*k))).collect();

        let mut open: Vec<(Value, Vec<Dim>)> = vec![(operand, identity(graph.rank(operand)))];
        while let Some((value, index)) = open.pop().filter(|_| !reduced.is_empty()) {
            let operands = graph.operands(value);
            match graph.op(value) {
                Op::Map(_) => open.extend(operands.first().map(|operand| (*operand, index))),
                Op::View { index: map, .. } => open.push((operands[0], substitute(map, &index))),
                Op::Contraction { .. } => {
                    let axes = index.iter().enumerate().filter(|(_, at)| reduced.contains(at));
                    short.extend(axes.map(|(k, _)| (value, k)));
                }
                _ => {}
            }
        }
    }

    short
}

/// Rows first, then the axes of the constant operand (or the right one) only: its batch labels, its columns.
fn contract_order(graph: &Graph, sum: Value, short: &HashSet<(Value, usize)>) -> AxisOrder {
    let Op::Contraction { lhs, rhs, out, .. } = graph.op(sum) else { return natural(graph.rank(sum)) };
    let operands = graph.operands(sum);
    let is_fixed = |operand: usize| graph.as_constant(through_views(graph, operands[operand])).is_some();
    let (data, weights) = match (is_fixed(0), is_fixed(1)) {
        (true, false) => (rhs, lhs),
        (false, true) => (lhs, rhs),
        _ => return natural(out.len()),
    };

    let mut order = natural(out.len());
    order.sort_by_key(|k| match (data.contains(&out[*k]), weights.contains(&out[*k])) {
        (_, false) => 0,
        (true, true) => 1,
        (false, true) if short.contains(&(sum, *k)) => 2,
        (false, true) => 3,
    });
    order
}

/// The operand's order without the reduced axes.
fn reduced_order(
    graph: &Graph,
    orders: &HashMap<Value, AxisOrder>,
    value: Value,
    axes: &[usize],
) -> AxisOrder {
    let operand = graph.operands(value)[0];
    let rank = graph.rank(operand);
    let index: Vec<Dim> = identity(rank);
    let mut main = None;
    main_operand(graph, orders, operand, &index, !orders.contains_key(&operand), &mut main);

    let inner = match main {
        Some((_, source, index)) => {
            let order = orders.get(&source).cloned().unwrap_or_else(|| natural(graph.rank(source)));
            order_of_address(graph, graph.shape(operand), graph.shape(source), &order, &index)
        }
        None => natural(rank),
    };

    let left: Vec<usize> = (0..rank).filter(|k| !axes.contains(k)).collect();
    inner.iter().filter_map(|k| left.iter().position(|kept| kept == k)).collect()
}

/// Finds the stored value with the most elements that the definition of `value` reads, and the index of the read.
fn main_operand(
    graph: &Graph,
    orders: &HashMap<Value, AxisOrder>,
    value: Value,
    index: &[Dim],
    is_start: bool,
    main: &mut Option<(i64, Value, Vec<Dim>)>,
) {
    let is_stored = orders.contains_key(&value) || matches!(graph.op(value), Op::Input(_));
    if is_stored && !is_start {
        let size = estimate(&graph.facts, &elems(graph.shape(value)));
        if main.as_ref().is_none_or(|(largest, ..)| size > *largest) {
            *main = Some((size, value, index.to_vec()));
        }
        return;
    }

    let operands = graph.operands(value);
    match graph.op(value) {
        Op::Map(_) => {
            for operand in operands {
                main_operand(graph, orders, *operand, index, false, main);
            }
        }
        Op::View { index: map, .. } => {
            main_operand(graph, orders, operands[0], &substitute(map, index), false, main);
        }
        Op::Gather { coords, .. } => {
            let index: Vec<Dim> = coords
                .iter()
                .map(|coord| match coord {
                    Coord::At(expr) => substitute(std::slice::from_ref(expr), index).remove(0),
                    Coord::Load { .. } => Dim::zero(),
                })
                .collect();
            main_operand(graph, orders, operands[0], &index, false, main);
        }
        _ => {}
    }
}

/// Orders the axes `$k` of `shape` by the distance in `source` between neighbouring elements along each, read at
/// `index`.
fn order_of_address(
    graph: &Graph,
    shape: &[Dim],
    source: &[Dim],
    order: &[usize],
    index: &[Dim],
) -> AxisOrder {
    let mut facts = graph.facts.clone();
    for (k, dim) in shape.iter().enumerate() {
        facts.declare_index(&axis(k), dim);
    }
    let strides = strides(source, order);
    let address = address(Dim::zero(), &strides, index);

    let at = |moved: Option<usize>| {
        let value = |symbol: &Symbol| {
            let k = (0..shape.len()).find(|k| axis(*k) == *symbol);
            Some(match k {
                Some(k) => i64::from(moved == Some(k)),
                None => estimate(&graph.facts, &Dim::from(symbol)),
            })
        };
        address.eval_i64(&value).unwrap_or(0)
    };

    let origin = at(None);
    let mut by_step: Vec<(i64, usize)> = (0..shape.len())
        .map(|k| {
            let step = if shape[k].as_i64() == Some(1) { i64::MAX } else { (at(Some(k)) - origin).abs() };
            (step, k)
        })
        .collect();

    // Axes that don't move the source address are repeated. They go outside, where they cost nothing.
    by_step.sort_by_key(|(step, k)| (if *step == 0 { i64::MIN } else { -step }, *k));
    by_step.into_iter().map(|(_, k)| k).collect()
}
