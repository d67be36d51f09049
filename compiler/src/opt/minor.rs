//! Products that take next to none of a model's time are `f32` at [`Precision::Bf16x3`], too.
//!
//! What they give is often worth more than their time: a product of pooled pixels, as in squeeze and excitation, weights
//! whole channels, and its error is that of all their elements at once, which does not average out in what adds them up.

use crate::{
    graph::{Graph, NodeId, Op},
    scalar::Precision,
};
use num_bigint::BigInt;
use num_traits::ToPrimitive;
use std::collections::{BTreeMap, BTreeSet};
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

/// The part of all multiplications that such products are together, at most, at each corner of the ranges.
const MOST: f64 = 1.0 / 64.0;

/// The pass, for machines with tile registers. Products in the bodies of loops and branches are not looked at.
pub fn minor(graph: &mut Graph) {
    let works: Vec<(NodeId, Dim)> =
        graph.nodes.keys().filter_map(|id| Some((id, work(graph, id)?))).collect();
    let symbols: BTreeSet<Symbol> = works.iter().flat_map(|(_, work)| work.symbols()).collect();
    let mut shares: Vec<(NodeId, f64)> = works.iter().map(|(id, _)| (*id, 0.0)).collect();
    for corner in corners(graph, &symbols) {
        let at = |work: &Dim| {
            work.eval(&|symbol| corner.get(symbol).cloned())
                .ok()
                .and_then(|work| work.to_f64())
                .unwrap_or(0.0)
        };
        let at_corner: Vec<f64> = works.iter().map(|(_, work)| at(work)).collect();
        let all: f64 = at_corner.iter().sum();
        for ((_, share), own) in shares.iter_mut().zip(at_corner).filter(|_| all > 0.0) {
            *share = share.max(own / all);
        }
    }
    shares.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    let mut left = MOST;
    for (id, share) in shares {
        left -= share;
        if left < 0.0 {
            break;
        }
        if let Op::Contract { precision, .. } = &mut graph.nodes[id].op {
            *precision = Precision::Full;
        }
    }
}

/// The multiplications of a product that may be less precise.
fn work(graph: &Graph, id: NodeId) -> Option<Dim> {
    let node = &graph.nodes[id];
    let Op::Contract { lhs, rhs, dtype: DType::F32, precision: Precision::Bf16x3, .. } = &node.op else {
        return None;
    };
    let labels = [lhs, rhs].into_iter().zip(&node.operands);
    let extents = labels.flat_map(|(labels, operand)| labels.iter().zip(graph.shape(*operand)));
    let extents: BTreeMap<_, _> = extents.collect();
    Some(Dim::product(extents.into_values().cloned()))
}

/// All symbols at their least and at their largest, and each at its largest with the others at their least.
fn corners(graph: &Graph, symbols: &BTreeSet<Symbol>) -> Vec<BTreeMap<Symbol, BigInt>> {
    let end = |symbol: &Symbol, is_high: bool| {
        let bounds = graph.facts.bounds(&symbol.into());
        let least = bounds.lo.unwrap_or_default();
        if is_high { bounds.hi.unwrap_or(least) } else { least }
    };
    let corner = |is_high: &dyn Fn(&Symbol) -> bool| {
        symbols.iter().map(|symbol| (symbol.clone(), end(symbol, is_high(symbol)))).collect()
    };
    let mut all: Vec<_> = symbols.iter().map(|high| corner(&|symbol| symbol == high)).collect();
    all.extend([corner(&|_| false), corner(&|_| true)]);
    all
}
