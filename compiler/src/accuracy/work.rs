//! Estimate of the work of a call.

use crate::graph::{Graph, Node, Op, Value};
use num_traits::ToPrimitive;
use std::ops::Add;
use symshape::{Dim, Symbol};
use symshape_runtime::Model;

/// Value of data-dependent sizes in an estimate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnknownSizes {
    /// Each counts as 1.
    One,
    /// Each counts as its upper bound over all dims.
    UpperBound,
}

/// Scalar operations.
#[derive(Clone, Copy, Default)]
pub(crate) struct Work {
    /// Multiplications of contractions.
    pub multiplications: f64,
    /// Elements computed by other operations.
    pub elements: f64,
}

/// Multiplications of contractions that take as long as computing one element by another operation.
const MULTIPLICATIONS_PER_ELEMENT: f64 = 16.0;

impl Work {
    /// The multiplications that take as long.
    pub(crate) fn in_multiplications(self) -> f64 {
        self.multiplications + MULTIPLICATIONS_PER_ELEMENT * self.elements
    }
}

impl Add for Work {
    type Output = Work;
    fn add(self, other: Work) -> Work {
        Work {
            multiplications: self.multiplications + other.multiplications,
            elements: self.elements + other.elements,
        }
    }
}

/// The work of a call at these dims, one for each symbol of the model. Loops count with their largest trip count.
pub(crate) fn work(graph: &Graph, model: &Model, dims: &[i64], unknown: UnknownSizes) -> Work {
    let value = |symbol: &Symbol| {
        let position = model.symbols().iter().position(|info| info.name() == symbol.name())?;
        dims.get(position).copied()
    };
    of_graph(graph, &value, unknown)
}

/// The work of a call with these values of the symbols.
pub(crate) fn of_graph(graph: &Graph, value: &dyn Fn(&Symbol) -> Option<i64>, unknown: UnknownSizes) -> Work {
    let size = |dim: &Dim| match dim.eval_i64(value) {
        Ok(size) => size as f64,
        Err(_) if unknown == UnknownSizes::One => 1.0,
        Err(_) => graph.facts.bounds(dim).hi.and_then(|hi| hi.to_f64()).unwrap_or(f64::INFINITY),
    };

    let elems = |value: Value| graph.shape(value).iter().map(size).product::<f64>();
    let other = |elements: f64| Work { elements, ..Work::default() };

    let node = |node: &Node| match &node.op {
        Op::Const(_) | Op::Input(_) => Work::default(),
        Op::Contraction { lhs, out, .. } => {
            let lhs_shape = graph.shape(node.operands[0]);
            let summed = lhs.iter().zip(lhs_shape).filter(|(label, _)| !out.contains(label));
            let multiplications = elems(node.results[0]) * summed.map(|(_, dim)| size(dim)).product::<f64>();
            Work { multiplications, ..Work::default() }
        }
        Op::Reduce { .. } | Op::ArgReduce { .. } => other(elems(node.operands[0])),
        Op::Loop { max_iterations, body, .. } => {
            let trips = size(max_iterations);
            let body = of_graph(body, value, unknown);
            Work { multiplications: trips * body.multiplications, elements: trips * body.elements }
        }
        op => {
            let inside = op.regions().into_iter().map(|(_, inside)| of_graph(inside, value, unknown));
            inside.fold(other(node.results.iter().map(|result| elems(*result)).sum()), Work::add)
        }
    };

    graph.nodes.values().map(node).fold(Work::default(), Work::add)
}

/// The multiplications of the contractions that `counts` selects, with these values of the symbols. Loops count with
/// their largest trip count.
pub(crate) fn multiplications(
    graph: &Graph,
    value: &dyn Fn(&Symbol) -> Option<i64>,
    counts: &dyn Fn(&Node) -> bool,
) -> f64 {
    let size = |dim: &Dim| match dim.eval_i64(value) {
        Ok(size) => size as f64,
        Err(_) => graph.facts.bounds(dim).hi.and_then(|hi| hi.to_f64()).unwrap_or(1.0),
    };
    let of = |node: &Node| {
        let inside: f64 =
            node.op.regions().into_iter().map(|(_, region)| multiplications(region, value, counts)).sum();
        match &node.op {
            Op::Loop { max_iterations, .. } => size(max_iterations) * inside,
            Op::Contraction { lhs, out, .. } if counts(node) => {
                let summed = lhs.iter().zip(graph.shape(node.operands[0]));
                let depth: f64 =
                    summed.filter(|(label, _)| !out.contains(label)).map(|(_, dim)| size(dim)).product();
                depth * graph.shape(node.results[0]).iter().map(size).product::<f64>()
            }
            _ => inside,
        }
    };
    graph.nodes.values().map(of).sum()
}
