//! Keeps contractions in `f32` at [`Precision::Bf16x3`] where bf16 would save next to no time.
//!
//! This holds for contractions that take a negligible part of a model's time, and for those that bf16 would not speed
//! up. The precision of the former is often worth more than their time. For example, the product of pooled pixels in a
//! squeeze-and-excitation block scales whole channels. Its error affects all elements of a channel alike, and does not
//! average out in the sums that follow.

use crate::{
    graph::{Graph, NodeId, Op},
    scalar::Precision,
};
use num_bigint::BigInt;
use num_traits::ToPrimitive;
use std::collections::{BTreeMap, BTreeSet};
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

/// The largest fraction of all multiplications that these contractions make up together, at each corner of the ranges.
const MAX_SHARE: f64 = 1.0 / 64.0;

/// Multiplications by constants per element of the other operand and of the result. Below this, reading, splitting and
/// writing these elements takes as long as the contraction in `f32`.
const MIN_WORK: f64 = 16.0;

/// Runs the pass, for machines with tile registers. Each loop body and branch is treated as a model.
pub(crate) fn keep_f32(graph: &mut Graph) {
    graph.nodes.values_mut().flat_map(|node| node.op.regions_mut()).for_each(keep_f32);
    let mut works: Vec<Work> = graph.nodes.keys().filter_map(|id| Work::of(graph, id)).collect();
    let symbols: BTreeSet<Symbol> = works.iter().flat_map(Work::symbols).collect();
    for corner in corners(graph, &symbols) {
        let at = |count: &Dim| {
            let count = count.eval(&|symbol| corner.get(symbol).cloned());
            count.ok().and_then(|count| count.to_f64()).unwrap_or(0.0)
        };
        let all: f64 = works.iter().map(|work| at(&work.multiplications)).sum();
        for work in &mut works {
            let own = at(&work.multiplications);
            let elems = work.elems.as_ref().map_or(0.0, at);
            work.share = work.share.max(own / all.max(1.0));
            work.per_elem = work.per_elem.max(own / elems.max(1.0));
        }
    }

    works.sort_by(|a, b| a.share.total_cmp(&b.share));
    let mut left = MAX_SHARE;
    for work in works {
        if work.elems.is_none() || work.per_elem >= MIN_WORK {
            left -= work.share;
            if left < 0.0 {
                continue;
            }
        }
        if let Op::Contraction { precision, .. } = &mut graph.nodes[work.node].op {
            *precision = Precision::Full;
        }
    }
}

/// A contraction that may have a lower precision.
struct Work {
    node: NodeId,
    multiplications: Dim,
    /// Elements of the other operand and of the result, if one operand is constant.
    elems: Option<Dim>,
    /// The largest fraction of all multiplications at any corner, and the largest number of multiplications per
    /// element.
    share: f64,
    per_elem: f64,
}

impl Work {
    fn of(graph: &Graph, id: NodeId) -> Option<Work> {
        let node = &graph.nodes[id];
        let Op::Contraction { lhs, rhs, dtype: DType::F32, precision: Precision::Bf16x3, .. } = &node.op
        else {
            return None;
        };

        let labels = [lhs, rhs].into_iter().zip(&node.operands);
        let extents = labels.flat_map(|(labels, operand)| labels.iter().zip(graph.shape(*operand)));
        let extents: BTreeMap<_, _> = extents.collect();
        let multiplications = Dim::product(extents.into_values().cloned());

        let constant = node.operands.iter().position(|operand| graph.as_constant(*operand).is_some());
        let elems = constant.map(|constant| {
            let tensors = [node.operands[1 - constant], node.results[0]];
            Dim::sum(tensors.map(|tensor| Dim::product(graph.shape(tensor).iter().cloned())))
        });

        Some(Work { node: id, multiplications, elems, share: 0.0, per_elem: 0.0 })
    }

    fn symbols(&self) -> BTreeSet<Symbol> {
        self.multiplications.symbols().into_iter().chain(self.elems.iter().flat_map(Dim::symbols)).collect()
    }
}

/// All symbols at their minimum, all at their maximum, and each at its maximum with the others at their minimum.
fn corners(graph: &Graph, symbols: &BTreeSet<Symbol>) -> Vec<BTreeMap<Symbol, BigInt>> {
    let end = |symbol: &Symbol, is_high: bool| {
        let bounds = graph.facts.bounds(&symbol.into());
        let min = bounds.lo.unwrap_or_default();
        if is_high { bounds.hi.unwrap_or(min) } else { min }
    };
    let corner = |is_high: &dyn Fn(&Symbol) -> bool| {
        symbols.iter().map(|symbol| (symbol.clone(), end(symbol, is_high(symbol)))).collect()
    };
    let mut all: Vec<_> = symbols.iter().map(|high| corner(&|symbol| symbol == high)).collect();
    all.extend([corner(&|_| false), corner(&|_| true)]);
    all
}
