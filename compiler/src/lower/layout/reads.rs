//! The stored values that the definitions of others read, and the orders of axes that these reads suggest.

use crate::{
    graph::{Coord, Graph, Op, Value, axis},
    lower::{
        fuse::Fusion,
        index::{AxisOrder, address, elems, estimate, identity, natural, strides, substitute},
    },
};
use std::collections::{HashMap, HashSet};
use symshape::{Dim, Symbol};

/// The logarithm of the largest number of neighbours along an axis that may read the same element, but not all do.
const MAX_REPEATED_LOG: u32 = 4;

/// The order in which the axes of `operand` are in memory, from the stored value that it mainly reads.
pub(super) fn stored_order(graph: &Graph, orders: &HashMap<Value, AxisOrder>, operand: Value) -> AxisOrder {
    let main = MainRead::find(graph, orders, operand, !orders.contains_key(&operand));
    main.map_or_else(|| natural(graph.rank(operand)), |main| main.order(graph, orders, operand))
}

/// The read of the largest stored value by the definition of another value.
pub(super) struct MainRead {
    pub(super) source: Value,
    /// The index of the read, over the axes `$k` of the reader and the symbols of loaded coordinates.
    pub(super) index: Vec<Dim>,
    pub(super) loaded: Vec<LoadedCoordinate>,
    /// Whether the definition reads the value at another index too.
    pub(super) is_repeated: bool,
}

/// A coordinate whose value is loaded.
#[derive(Clone)]
pub(super) struct LoadedCoordinate {
    symbol: Symbol,
    /// The axes of the reader that move the address of the load.
    pub(super) axes: Vec<usize>,
}

impl MainRead {
    /// The largest read in the definition of `value`. With `is_start`, `value` itself does not count, even if it
    /// is stored.
    pub(super) fn find(
        graph: &Graph,
        orders: &HashMap<Value, AxisOrder>,
        value: Value,
        is_start: bool,
    ) -> Option<MainRead> {
        let rank = graph.rank(value);
        let is_stored = &|value| orders.contains_key(&value);
        let mut search = ReadSearch { graph, is_stored, rank, loaded: Vec::new(), reads: Vec::new() };
        search.visit(value, &identity(rank), is_start);
        let ReadSearch { loaded, reads, .. } = search;
        let size = |value: Value| estimate(&graph.facts, &elems(graph.shape(value)));
        // The first one among those of the same size.
        let (source, index) = reads.iter().rev().max_by_key(|(value, _)| size(*value))?;
        let is_repeated = reads.iter().any(|(value, at)| value == source && at != index);
        Some(MainRead { source: *source, index: index.clone(), loaded, is_repeated })
    }

    /// The order of the axes of `reader` that the read suggests.
    pub(super) fn order(
        &self,
        graph: &Graph,
        orders: &HashMap<Value, AxisOrder>,
        reader: Value,
    ) -> AxisOrder {
        let source = graph.shape(self.source);
        let order = orders.get(&self.source).cloned().unwrap_or_else(|| natural(source.len()));
        order_of_address(graph, graph.shape(reader), source, &order, &self.index, &self.loaded)
    }
}

/// The axes along which the definition of `value` reads at loaded coordinates.
pub(super) fn scattered_axes(graph: &Graph, fusion: &Fusion, value: Value) -> HashSet<usize> {
    let rank = graph.rank(value);
    let is_stored = &|value| fusion.is_root(value);
    let mut search = ReadSearch { graph, is_stored, rank, loaded: Vec::new(), reads: Vec::new() };
    search.visit(value, &identity(rank), true);
    search.loaded.into_iter().flat_map(|coordinate| coordinate.axes).collect()
}

/// The search for the stored values that a definition reads.
struct ReadSearch<'a> {
    graph: &'a Graph,
    /// Whether a value is in memory.
    is_stored: &'a dyn Fn(Value) -> bool,
    /// The rank of the reader.
    rank: usize,
    loaded: Vec<LoadedCoordinate>,
    /// The stored values, with the index of each read.
    reads: Vec<(Value, Vec<Dim>)>,
}

impl ReadSearch<'_> {
    fn visit(&mut self, value: Value, index: &[Dim], is_start: bool) {
        let graph = self.graph;
        let is_stored = (self.is_stored)(value) || matches!(graph.op(value), Op::Input(_));
        if is_stored && !is_start {
            self.reads.push((value, index.to_vec()));
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
pub(super) fn order_of_address(
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
    let at = |moved: Option<&Symbol>, by: i64| {
        let value = |symbol: &Symbol| {
            let is_moved = moved == Some(symbol);
            let is_fixed = || estimate(&graph.facts, &Dim::from(symbol));
            Some(if !is_coordinate(symbol) {
                is_fixed()
            } else if is_moved {
                by
            } else {
                0
            })
        };
        address.eval_i64(&value).unwrap_or(0)
    };

    let origin = at(None, 0);
    // Where several neighbours read the same element, as in a picture that is enlarged, the next one counts.
    let distance = |symbol: &Symbol| {
        let mut neighbours = (0..=MAX_REPEATED_LOG).map(|log| 1 << log);
        let distance = |by: i64| (at(Some(symbol), by) - origin).abs();
        neighbours.find(|by| distance(*by) > 0).map_or(0, |by| (distance(by) / by).max(1))
    };
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
