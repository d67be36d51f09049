//! How long a call takes, roughly.

use crate::graph::{Graph, Node, Op, Value};
use num_traits::ToPrimitive;
use std::ops::Add;
use symshape::{Dim, Symbol};
use symshape_runtime::Model;

/// What sizes count as that are found while running.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// 1.
    Least,
    /// Their upper bound, at any dims.
    Most,
}

/// Scalar operations.
#[derive(Clone, Copy, Default)]
pub(crate) struct Work {
    /// Multiplications of contractions.
    pub products: f64,
    /// Elements that are computed otherwise.
    pub others: f64,
}

impl Add for Work {
    type Output = Work;
    fn add(self, other: Work) -> Work {
        Work { products: self.products + other.products, others: self.others + other.others }
    }
}

/// What a call at these dims takes, one for each symbol of the model; loops count as all rounds that there may be.
pub(crate) fn work(graph: &Graph, model: &Model, dims: &[i64], found: Found) -> Work {
    let value = |symbol: &Symbol| {
        let position = model.symbols().iter().position(|info| info.name() == symbol.name())?;
        dims.get(position).copied()
    };
    of_graph(graph, &value, found)
}

fn of_graph(graph: &Graph, value: &dyn Fn(&Symbol) -> Option<i64>, found: Found) -> Work {
    let size = |dim: &Dim| match dim.eval_i64(value) {
        Ok(size) => size as f64,
        Err(_) if found == Found::Least => 1.0,
        Err(_) => graph.facts.bounds(dim).hi.and_then(|most| most.to_f64()).unwrap_or(f64::INFINITY),
    };
    let elems = |value: Value| graph.shape(value).iter().map(size).product::<f64>();
    let others = |others: f64| Work { others, ..Work::default() };
    let node = |node: &Node| match &node.op {
        Op::Const(_) | Op::Input(_) => Work::default(),
        Op::Contraction { lhs, out, .. } => {
            let lhs_shape = graph.shape(node.operands[0]);
            let summed = lhs.iter().zip(lhs_shape).filter(|(label, _)| !out.contains(label));
            let products = elems(node.results[0]) * summed.map(|(_, dim)| size(dim)).product::<f64>();
            Work { products, ..Work::default() }
        }
        Op::Reduce { .. } | Op::ArgReduce { .. } => others(elems(node.operands[0])),
        Op::Loop { most, body, .. } => {
            let (rounds, Work { products, others }) = (size(most), of_graph(body, value, found));
            Work { products: rounds * products, others: rounds * others }
        }
        op => {
            let inside = op.regions().into_iter().map(|(_, inside)| of_graph(inside, value, found));
            inside.fold(others(node.results.iter().map(|result| elems(*result)).sum()), Work::add)
        }
    };
    graph.nodes.values().map(node).fold(Work::default(), Work::add)
}
