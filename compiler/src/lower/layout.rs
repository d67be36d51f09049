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
    let (demands, in_place) = demands(graph, fusion);
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
fn demands(graph: &Graph, fusion: &Fusion) -> (HashMap<Value, Demand>, HashSet<Value>) {
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
            preference(graph, fusion, node.operands[data], labels, weights, out)
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
/// share (windows), then channels. Channels that a gather scatters are outside of those that it reads in a row.
fn preference(
    graph: &Graph,
    fusion: &Fusion,
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
    Some(Preference { base, order, has_windows })
}

/// The axes along which the definition of `value` reads at loaded coordinates.
fn scattered_axes(graph: &Graph, fusion: &Fusion, value: Value) -> HashSet<usize> {
    let rank = graph.rank(value);
    let mut search =
        ReadSearch { graph, is_stored: &|value| fusion.is_root(value), rank, loaded: Vec::new(), main: None };
    search.visit(value, &identity(rank), true);
    search.loaded.into_iter().flat_map(|coordinate| coordinate.axes).collect()
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
        Op::Map(_) | Op::View { .. } | Op::Gather { .. } => {
            let Some(main) = MainRead::find(graph, orders, value, true) else { return row_major };
            // A value that repeats all that it reads has no order of its own, and its readers mostly none either.
            if matches!(graph.op(value), Op::Map(_)) && repeats(shape, &main) {
                return row_major;
            }
            main.order(graph, orders, value)
        }
        Op::Input(_) | Op::Const(_) | Op::Index { .. } => row_major,
        Op::Bind { .. } | Op::If { .. } | Op::Loop { .. } | Op::Call { .. } | Op::Fail { .. } => row_major,
    }
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
    let main = MainRead::find(graph, orders, operand, !orders.contains_key(&operand));
    main.map_or_else(|| natural(graph.rank(operand)), |main| main.order(graph, orders, operand))
}

/// The read of the largest stored value by the definition of another value.
struct MainRead {
    source: Value,
    /// The index of the read, over the axes `$k` of the reader and the symbols of loaded coordinates.
    index: Vec<Dim>,
    loaded: Vec<LoadedCoordinate>,
}

/// A coordinate whose value is loaded.
#[derive(Clone)]
struct LoadedCoordinate {
    symbol: Symbol,
    /// The axes of the reader that move the address of the load.
    axes: Vec<usize>,
}

impl MainRead {
    /// The largest read in the definition of `value`. With `is_start`, a stored `value` is no read of itself.
    fn find(
        graph: &Graph,
        orders: &HashMap<Value, AxisOrder>,
        value: Value,
        is_start: bool,
    ) -> Option<MainRead> {
        let rank = graph.rank(value);
        let is_stored = &|value| orders.contains_key(&value);
        let mut search = ReadSearch { graph, is_stored, rank, loaded: Vec::new(), main: None };
        search.visit(value, &identity(rank), is_start);
        let (_, source, index) = search.main?;
        Some(MainRead { source, index, loaded: search.loaded })
    }

    /// The order of the axes of `reader` that the read suggests.
    fn order(&self, graph: &Graph, orders: &HashMap<Value, AxisOrder>, reader: Value) -> AxisOrder {
        let source = graph.shape(self.source);
        let order = orders.get(&self.source).cloned().unwrap_or_else(|| natural(source.len()));
        order_of_address(graph, graph.shape(reader), source, &order, &self.index, &self.loaded)
    }
}

/// The search for the largest stored value that a definition reads.
struct ReadSearch<'a> {
    graph: &'a Graph,
    /// Whether a value is in memory.
    is_stored: &'a dyn Fn(Value) -> bool,
    /// The rank of the reader.
    rank: usize,
    loaded: Vec<LoadedCoordinate>,
    /// Its elements, the value and the index of the read.
    main: Option<(i64, Value, Vec<Dim>)>,
}

impl ReadSearch<'_> {
    fn visit(&mut self, value: Value, index: &[Dim], is_start: bool) {
        let graph = self.graph;
        let is_stored = (self.is_stored)(value) || matches!(graph.op(value), Op::Input(_));
        if is_stored && !is_start {
            let size = estimate(&graph.facts, &elems(graph.shape(value)));
            if self.main.as_ref().is_none_or(|(largest, ..)| size > *largest) {
                self.main = Some((size, value, index.to_vec()));
            }
            return;
        }

        let operands = graph.operands(value);
        match graph.op(value) {
            Op::Map(_) => operands.iter().for_each(|operand| self.visit(*operand, index, false)),
            Op::View { index: map, .. } => self.visit(operands[0], &substitute(map, index), false),
            Op::Gather { coords, .. } => {
                let index: Vec<Dim> = coords
                    .iter()
                    .map(|coord| match coord {
                        Coord::At(expr) => substitute(std::slice::from_ref(expr), index).remove(0),
                        Coord::Load { at, .. } => self.loaded_coordinate(&substitute(at, index)),
                    })
                    .collect();
                self.visit(operands[0], &index, false);
            }
            _ => {}
        }
    }

    /// A symbol for a coordinate that is loaded at this index.
    fn loaded_coordinate(&mut self, at: &[Dim]) -> Dim {
        let uses = |symbol: &Symbol| at.iter().any(|expr| expr.contains(symbol));
        let mut axes: Vec<usize> = (0..self.rank).filter(|k| uses(&axis(*k))).collect();
        for earlier in self.loaded.iter().filter(|earlier| uses(&earlier.symbol)) {
            axes.extend(&earlier.axes);
        }
        let symbol = Symbol::new(&format!("$loaded{}", self.loaded.len()));
        self.loaded.push(LoadedCoordinate { symbol: symbol.clone(), axes });
        Dim::from(&symbol)
    }
}

/// Orders the axes `$k` of `shape` by the distance in `source` between neighbouring elements along each, read at
/// `index`. Elements along an axis that moves a loaded coordinate are at least one step of that coordinate apart.
fn order_of_address(
    graph: &Graph,
    shape: &[Dim],
    source: &[Dim],
    order: &[usize],
    index: &[Dim],
    loaded: &[LoadedCoordinate],
) -> AxisOrder {
    let mut facts = graph.facts.clone();
    for (k, dim) in shape.iter().enumerate() {
        facts.declare_index(&axis(k), dim);
    }
    let strides = strides(source, order);
    let address = address(Dim::zero(), &strides, index);

    let is_coordinate = |symbol: &Symbol| {
        let is_axis = (0..shape.len()).any(|k| axis(k) == *symbol);
        is_axis || loaded.iter().any(|coordinate| coordinate.symbol == *symbol)
    };
    let at = |moved: Option<&Symbol>| {
        let value = |symbol: &Symbol| {
            let is_moved = moved == Some(symbol);
            let is_fixed = || estimate(&graph.facts, &Dim::from(symbol));
            Some(if is_coordinate(symbol) { i64::from(is_moved) } else { is_fixed() })
        };
        address.eval_i64(&value).unwrap_or(0)
    };

    let origin = at(None);
    let distance = |symbol: &Symbol| (at(Some(symbol)) - origin).abs();
    let step = |k: usize| {
        let coordinates = loaded.iter().filter(|coordinate| coordinate.axes.contains(&k));
        let steps = coordinates.map(|coordinate| distance(&coordinate.symbol));
        steps.fold(distance(&axis(k)), i64::max)
    };
    let mut by_step: Vec<(i64, usize)> = (0..shape.len())
        .map(|k| (if shape[k].as_i64() == Some(1) { i64::MAX } else { step(k) }, k))
        .collect();

    // Axes that don't move the source address are repeated. They go outside, where they cost nothing.
    by_step.sort_by_key(|(step, k)| (if *step == 0 { i64::MIN } else { -step }, *k));
    by_step.into_iter().map(|(_, k)| k).collect()
}
