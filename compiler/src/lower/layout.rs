//! Chooses the order of the axes of each root in memory.
//!
//! An order lists a value's axes from the outermost to the innermost. A contraction prefers the reduction axes of its
//! varying operand innermost, which for convolutions means channels last. Its result has the columns of the constant
//! operand innermost, except that a short axis that is reduced next goes outside of them, and that columns that a
//! reader places between rows follow these rows. Every other value keeps the order of its operands. So the layouts of a
//! convolutional net are channels-last from end to end, and those of a transformer row-major, although no rule names
//! either.
//!
//! A product of two varying operands has its batch axes outermost, because sums along a batch axis are no matrix
//! multiplication. A contraction that would move them inside, or that mixes a few channels only, takes its varying
//! operand as it is in memory: so attention scores are mixed across heads in place.
//!
//! The last product with constant weights takes an input whose rows are innermost as it is, too: a convolution of one
//! point reads and writes images. So does a depthwise convolution of an input, and one with very few columns.

mod demands;
mod phases;
mod planes;
mod reads;

use super::{
    fuse::{Fusion, sum_index},
    index::{AxisOrder, identity, innermost, natural, substitute},
    nest::MIN_STRIP_ELEMS,
};
use crate::graph::{Graph, Label, Op, Value, axis};
use demands::is_fixed;
use reads::{MainRead, order_of_address, stored_order};
use std::collections::{HashMap, HashSet};
use symshape::Dim;

/// An axis with at most this many elements is short.
const SHORT: i64 = 4;

/// The decisions that the order of a result depends on.
struct Context<'a> {
    graph: &'a Graph,
    fusion: &'a Fusion,
    /// Contractions with constant weights that take the order of their varying operand.
    in_place: HashSet<Value>,
    /// Values that only callers read.
    results: HashSet<Value>,
    short: HashSet<(Value, usize)>,
    /// The columns of contractions that a reader places between rows, with the row axis of each.
    phases: HashMap<(Value, usize), usize>,
}

/// The orders of all roots. Inputs, outputs and constants are row-major.
pub(super) fn orders(graph: &Graph, fusion: &Fusion) -> HashMap<Value, AxisOrder> {
    let (demands, in_place) = demands::demands(graph, fusion);
    let short = short_reductions(graph);
    let mut context =
        Context { graph, fusion, in_place, results: results(graph), short, phases: phases::phases(graph) };

    let mut orders: HashMap<Value, AxisOrder> = HashMap::new();
    for value in graph.values.keys().filter(|value| fusion.is_root(*value)) {
        let parent = fusion.placed_in(value).map(|(parent, _)| parent);
        let of_parent = parent.and_then(|parent| demands.get(&parent));
        let order = match (of_parent, demands.get(&value)) {
            (Some(demand), _) => demand.order.clone(),
            (None, Some(demand)) if !interleaves_products(&context, &orders, value, &demand.order) => {
                demand.order.clone()
            }
            (None, demand) => {
                context.in_place.extend(demand.iter().flat_map(|demand| &demand.sums));
                inherited(&context, &orders, value)
            }
        };
        orders.insert(value, order);
    }

    orders
}

/// Whether the innermost axis of `base` in `order` is a batch axis of a product of two varying operands that would
/// gather them along it.
fn interleaves_products(
    context: &Context,
    orders: &HashMap<Value, AxisOrder>,
    base: Value,
    order: &[usize],
) -> bool {
    let Context { graph, fusion, .. } = *context;
    let sum = fusion.absorbed_by(base).unwrap_or(base);
    let Op::Contraction { out, .. } = graph.op(sum) else { return false };
    let index =
        if sum == base { Some(identity(graph.rank(base))) } else { sum_index(graph, fusion, base, sum) };
    let inner = innermost(graph.shape(base), order.iter().copied());
    let (Some(index), Some(inner)) = (index, inner) else { return false };
    let moved = out.iter().zip(&index).rfind(|(_, at)| at.contains(&axis(inner)));
    moved.is_some_and(|(label, _)| gathers_along(graph, orders, sum, *label))
}

/// Whether `label` is a batch axis of a product of two varying operands, and innermost in neither.
fn gathers_along(graph: &Graph, orders: &HashMap<Value, AxisOrder>, sum: Value, label: Label) -> bool {
    let Op::Contraction { lhs, rhs, .. } = graph.op(sum) else { return false };
    let varies = !is_fixed(graph, sum, 0) && !is_fixed(graph, sum, 1);
    let is_innermost = |(operand, labels): (&Value, &Vec<Label>)| {
        let stored = stored_order(graph, orders, *operand);
        innermost(graph.shape(*operand), stored).is_some_and(|k| labels[k] == label)
    };
    varies
        && lhs.contains(&label)
        && rhs.contains(&label)
        && !graph.operands(sum).iter().zip([lhs, rhs]).any(is_innermost)
}

/// The order that `value` inherits from its operands.
fn inherited(context: &Context, orders: &HashMap<Value, AxisOrder>, value: Value) -> AxisOrder {
    let Context { graph, fusion, .. } = *context;
    let shape = graph.shape(value);
    let row_major = natural(shape.len());
    if let Some(sum) = fusion.absorbed_by(value) {
        let Some(index) = sum_index(graph, fusion, value, sum) else { return row_major };
        return order_of_address(
            graph,
            shape,
            graph.shape(sum),
            &contract_order(context, orders, sum),
            &index,
            &[],
        );
    }

    match graph.op(value) {
        Op::Contraction { .. } => contract_order(context, orders, value),
        Op::Pad { .. } | Op::Concat { .. } | Op::Scan { .. } | Op::Scatter { .. } | Op::Sort { .. } => {
            orders.get(&graph.operands(value)[0]).cloned().unwrap_or(row_major)
        }
        Op::Reduce { axes, .. } => reduced_order(graph, orders, value, axes),
        Op::ArgReduce { axis, .. } => reduced_order(graph, orders, value, &[*axis]),
        // Callers want row-major tensors, and moving elements twice takes longer. Maps compute along the order of their
        // operands first.
        Op::View { .. } | Op::Gather { .. }
            if context.results.contains(&value) || fusion.is_row_major(value) =>
        {
            row_major
        }
        Op::Map(_) | Op::View { .. } | Op::Gather { .. } => {
            let Some(main) = MainRead::find(graph, orders, value, true) else { return row_major };
            // A value that repeats all that it reads has no order of its own, and its readers mostly none either.
            if matches!(graph.op(value), Op::Map(_)) && repeats(shape, &main) {
                return row_major;
            }
            let order = main.order(graph, orders, value);
            if adds_few_columns(graph, value, &main, &order) { row_major } else { order }
        }
        Op::Input(_) | Op::Const(_) | Op::Index { .. } => row_major,
        Op::Bind { .. } | Op::If { .. } | Op::Loop { .. } | Op::Call { .. } | Op::Fail { .. } => row_major,
    }
}

/// Whether `value` combines elements of one stored value at several places, and its strips would be short in `order`:
/// the sum of the taps of a convolution with a few channels.
fn adds_few_columns(graph: &Graph, value: Value, read: &MainRead, order: &[usize]) -> bool {
    let shape = graph.shape(value);
    let inner = innermost(shape, order.iter().copied()).and_then(|k| shape[k].as_i64());
    matches!(graph.op(value), Op::Map(_))
        && read.is_repeated
        && read.loaded.is_empty()
        && inner.is_some_and(|extent| extent < MIN_STRIP_ELEMS)
}

/// The outputs that no node reads.
fn results(graph: &Graph) -> HashSet<Value> {
    let read: HashSet<Value> = graph.nodes.values().flat_map(|node| node.operands.iter().copied()).collect();
    graph.outputs.iter().map(|(_, value)| *value).filter(|value| !read.contains(value)).collect()
}

/// Whether an axis of `shape` moves no coordinate of the read.
fn repeats(shape: &[Dim], read: &MainRead) -> bool {
    let is_repeated = |k: usize| {
        let occurs = read.index.iter().any(|at| at.contains(&axis(k)))
            || read.loaded.iter().any(|coordinate| coordinate.axes.contains(&k));
        shape[k].as_i64() != Some(1) && !occurs
    };
    (0..shape.len()).any(is_repeated)
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
fn contract_order(context: &Context, orders: &HashMap<Value, AxisOrder>, sum: Value) -> AxisOrder {
    let Context { graph, short, .. } = context;
    let Op::Contraction { lhs, rhs, out, .. } = graph.op(sum) else { return natural(graph.rank(sum)) };
    let operands = graph.operands(sum);
    let (data, weights) = match (is_fixed(graph, sum, 0), is_fixed(graph, sum, 1)) {
        (true, false) => (1, lhs),
        (false, true) => (0, rhs),
        (false, false) => return product_order(graph, orders, sum),
        (true, true) => return natural(out.len()),
    };
    let labels = [lhs, rhs][data];
    let mut order = natural(out.len());

    // The columns take the place of the reduced axes.
    if context.in_place.contains(&sum) {
        let stored = stored_order(graph, orders, operands[data]);
        let place = |label: &Label| stored.iter().position(|k| labels[*k] == *label);
        // An axis of one element may be anywhere in the stored order.
        let is_moved = |label: &&Label| {
            let axis = labels.iter().position(|other| other == *label);
            axis.is_some_and(|k| graph.shape(operands[data])[k].as_i64() != Some(1))
        };
        let reduced =
            labels.iter().filter(|label| !out.contains(label)).filter(is_moved).filter_map(place).min();
        order.sort_by_key(|k| place(&out[*k]).or(reduced));
        return order;
    }

    order.sort_by_key(|k| match (labels.contains(&out[*k]), weights.contains(&out[*k])) {
        (_, false) => 0,
        (true, true) => 1,
        (false, true) if short.contains(&(sum, *k)) => 2,
        (false, true) => 3,
    });
    phases::after_rows(graph, sum, &order, |k| context.phases.get(&(sum, k)).copied())
}

/// The order of a product of two varying operands. A batch axis is innermost only if an operand has it innermost, so
/// that strips along it read adjacent elements.
fn product_order(graph: &Graph, orders: &HashMap<Value, AxisOrder>, sum: Value) -> AxisOrder {
    let Op::Contraction { lhs, rhs, out, .. } = graph.op(sum) else { return natural(graph.rank(sum)) };
    let mut order = natural(out.len());
    let inner = innermost(graph.shape(sum), order.iter().copied());
    if inner.is_some_and(|k| gathers_along(graph, orders, sum, out[k])) {
        let is_batch = |label: &Label| lhs.contains(label) && rhs.contains(label);
        order.sort_by_key(|k| !is_batch(&out[*k]));
    }
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
    let left: Vec<usize> = (0..graph.rank(operand)).filter(|k| !axes.contains(k)).collect();
    let inner = stored_order(graph, orders, operand);
    inner.iter().filter_map(|k| left.iter().position(|kept| kept == k)).collect()
}
