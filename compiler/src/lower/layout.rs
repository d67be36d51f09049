//! Chooses the order of the axes of each root in memory.
//!
//! An order lists a value's axes from the outermost to the innermost. A contraction prefers the reduction axes of its
//! varying operand innermost, which for convolutions means channels last. Its result has the columns of the constant
//! operand innermost, except that a short axis that is reduced next goes outside of them. Every other value keeps the
//! order of its operands. So the layouts of a convolutional net are channels-last from end to end, and those of a
//! transformer row-major, although no rule names either.
//!
//! A product of two varying operands has its batch axes outermost, because sums along a batch axis are no matrix
//! multiplication. A contraction that would move them inside, or that mixes a few channels only, takes its varying
//! operand as it is in memory: so attention scores are mixed across heads in place.

use super::{
    fuse::{Fusion, sum_index, through_views},
    index::{AxisOrder, address, elems, estimate, identity, natural, strides, substitute},
};
use crate::graph::{Coord, Graph, Label, Op, Value, axis};
use std::collections::{HashMap, HashSet};
use symshape::{Dim, Symbol};

/// An axis with at most this many elements is short.
const SHORT: i64 = 4;

/// A contraction of at most this many channels into at most as many is as fast in any order of axes.
const FEW_CHANNELS: i64 = 32;

/// The order that contractions with constant weights prefer for a value.
struct Demand {
    order: AxisOrder,
    /// The contractions that read the value.
    sums: Vec<Value>,
}

/// The decisions that the order of a result depends on.
struct Context<'a> {
    graph: &'a Graph,
    fusion: &'a Fusion,
    /// Contractions with constant weights that take the order of their varying operand.
    in_place: HashSet<Value>,
    short: HashSet<(Value, usize)>,
}

/// The orders of all roots. Inputs, outputs and constants are row-major.
pub(super) fn orders(graph: &Graph, fusion: &Fusion) -> HashMap<Value, AxisOrder> {
    let (demands, in_place) = demands(graph);
    let short = short_reductions(graph);
    let mut context = Context { graph, fusion, in_place, short };

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

/// Whether operand `operand` of a contraction is a constant, possibly through views.
fn is_fixed(graph: &Graph, sum: Value, operand: usize) -> bool {
    graph.as_constant(through_views(graph, graph.operands(sum)[operand])).is_some()
}

/// The preferred orders of values that contractions read, through views, as their varying operand, and the contractions
/// that have no preference.
fn demands(graph: &Graph) -> (HashMap<Value, Demand>, HashSet<Value>) {
    let mut demands: HashMap<Value, Demand> = HashMap::new();
    let mut in_place = HashSet::new();
    for (_, node) in &graph.nodes {
        let Op::Contraction { lhs, rhs, out, .. } = &node.op else { continue };
        let sum = node.results[0];
        let lhs_is_fixed = is_fixed(graph, sum, 0);
        let (data, weights) = if lhs_is_fixed { (1, lhs) } else { (0, rhs) };
        let labels = if lhs_is_fixed { rhs } else { lhs };
        if !is_fixed(graph, sum, 1 - data) {
            continue;
        }
        let Some(Preference { base, order, has_windows }) =
            preference(graph, node.operands[data], labels, weights, out)
        else {
            continue;
        };
        if !has_windows && mixes_few_channels(graph, node.operands[1 - data], weights, labels, out) {
            in_place.insert(sum);
        } else {
            demands.entry(base).or_insert(Demand { order, sums: Vec::new() }).sums.push(sum);
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
    let moves = |k: &&usize| graph.shape(base)[**k].as_i64() != Some(1);
    let (Some(index), Some(inner)) = (index, order.iter().rev().find(moves)) else { return false };
    let moved = out.iter().zip(&index).rfind(|(_, at)| at.contains(&axis(*inner)));
    moved.is_some_and(|(label, _)| gathers_along(graph, orders, sum, *label))
}

/// Whether `label` is a batch axis of a product of two varying operands, and innermost in neither.
fn gathers_along(graph: &Graph, orders: &HashMap<Value, AxisOrder>, sum: Value, label: Label) -> bool {
    let Op::Contraction { lhs, rhs, .. } = graph.op(sum) else { return false };
    let varies = !is_fixed(graph, sum, 0) && !is_fixed(graph, sum, 1);
    let is_innermost = |(operand, labels): (&Value, &Vec<Label>)| {
        let shape = graph.shape(*operand);
        let stored = stored_order(graph, orders, *operand);
        let last = stored.into_iter().rfind(|k| shape[*k].as_i64() != Some(1));
        last.is_some_and(|k| labels[k] == label)
    };
    varies
        && lhs.contains(&label)
        && rhs.contains(&label)
        && !graph.operands(sum).iter().zip([lhs, rhs]).any(is_innermost)
}

/// The order that one contraction prefers for its varying operand.
struct Preference {
    /// The value that the operand views.
    base: Value,
    order: AxisOrder,
    /// Whether an axis of `base` is moved by rows and by the reduction, as in a convolution.
    has_windows: bool,
}

/// The preferred order of the value of `operand` in a contraction: rows outside, then axes that rows and reduction
/// share (windows), then channels.
fn preference(
    graph: &Graph,
    operand: Value,
    labels: &[Label],
    weights: &[Label],
    out: &[Label],
) -> Option<Preference> {
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
    let has_windows = index.iter().any(|expr| class(expr) == 1);
    Some(Preference { base, order, has_windows })
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
        );
    }

    match graph.op(value) {
        Op::Contraction { .. } => contract_order(context, orders, value),
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
                // A value that repeats all that it reads has no order of its own, and its readers mostly none either.
                Some((.., index)) if matches!(graph.op(value), Op::Map(_)) && repeats(shape, &index) => {
                    row_major
                }
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

/// Whether an axis of `shape` does not occur in `index`.
fn repeats(shape: &[Dim], index: &[Dim]) -> bool {
    let is_repeated = |k: usize| {
        let occurs = index.iter().any(|at| at.contains(&axis(k)));
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
        let reduced = labels.iter().filter(|label| !out.contains(label)).filter_map(place).min();
        order.sort_by_key(|k| place(&out[*k]).or(reduced));
        return order;
    }

    order.sort_by_key(|k| match (labels.contains(&out[*k]), weights.contains(&out[*k])) {
        (_, false) => 0,
        (true, true) => 1,
        (false, true) if short.contains(&(sum, *k)) => 2,
        (false, true) => 3,
    });
    order
}

/// The order of a product of two varying operands. A batch axis is innermost only if an operand has it innermost, so
/// that strips along it read adjacent elements.
fn product_order(graph: &Graph, orders: &HashMap<Value, AxisOrder>, sum: Value) -> AxisOrder {
    let Op::Contraction { lhs, rhs, out, .. } = graph.op(sum) else { return natural(graph.rank(sum)) };
    let mut order = natural(out.len());
    let inner = order.iter().copied().rfind(|k| graph.shape(sum)[*k].as_i64() != Some(1));
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

/// The order in which the axes of `operand` are in memory, from the stored value that it mainly reads.
fn stored_order(graph: &Graph, orders: &HashMap<Value, AxisOrder>, operand: Value) -> AxisOrder {
    let rank = graph.rank(operand);
    let index: Vec<Dim> = identity(rank);
    let mut main = None;
    main_operand(graph, orders, operand, &index, !orders.contains_key(&operand), &mut main);

    match main {
        Some((_, source, index)) => {
            let order = orders.get(&source).cloned().unwrap_or_else(|| natural(graph.rank(source)));
            order_of_address(graph, graph.shape(operand), graph.shape(source), &order, &index)
        }
        None => natural(rank),
    }
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
