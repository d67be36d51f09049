//! Drops the terms of a convolution that always multiply padding.
//!
//! The windows of a dilated convolution can reach past both ends of a small image: at a dilation of 24 and at most 16
//! rows, only the middle tap meets the image. All other taps add zero, so the kernel is sliced, and the padding that no
//! window reads any more goes with them. The slice is the smallest range of taps that contains all that may meet the
//! image.

use super::{rebuild::rebuild, views::compose};
use crate::{
    error::Result,
    graph::{Graph, Label, Node, Op, Value, axis},
    scalar::Scalar,
    tensor::Tensor,
};
use std::ops::Range;
use symshape::{Dim, Facts};

/// Longer axes are not windows. Each tap costs a proof.
const MAX_TAPS: i64 = 64;

/// Runs the pass.
///
/// # Errors
/// None.
pub(crate) fn padded_taps(graph: &mut Graph) -> Result<()> {
    rebuild(graph, |new, node| {
        let Op::Contraction { lhs, rhs, out, .. } = &node.op else { return Ok(None) };
        let labels = [lhs, rhs];
        for (data, weights) in [(0, 1), (1, 0)] {
            let Some(weight) = new.as_constant(node.operands[weights]).cloned() else { continue };
            let Some(mut window) = Window::of(new, node.operands[data]) else { continue };
            let kept = window.narrow(new, labels[data], out);
            if kept.is_empty() || !is_finite(&weight) {
                continue;
            }

            let mut operands = node.operands.clone();
            operands[data] = window.build(new)?;
            operands[weights] = sliced(new, node, weights, labels[weights], &kept)?;
            return Ok(Some(vec![new.push(node.op.clone(), &operands)?]));
        }
        Ok(None)
    })?;
    super::dead::dead(graph)
}

/// Zero times an infinity is not zero.
fn is_finite(tensor: &Tensor) -> bool {
    !tensor.dtype().is_float() || (0..tensor.elems()).all(|k| tensor.get(k).as_f64().is_finite())
}

/// A view of an image with zeros around it.
struct Window {
    image: Value,
    lo: Vec<Dim>,
    hi: Vec<Dim>,
    zero: Scalar,
    shape: Vec<Dim>,
    /// The coordinates in the padded image.
    index: Vec<Dim>,
}

impl Window {
    fn of(graph: &Graph, value: Value) -> Option<Window> {
        let Op::View { shape, index } = graph.op(value) else { return None };
        let padded = graph.operands(value)[0];
        let Op::Pad { lo, hi, value: zero } = graph.op(padded) else { return None };
        (zero.as_f64() == 0.0).then(|| Window {
            image: graph.operands(padded)[0],
            lo: lo.clone(),
            hi: hi.clone(),
            zero: *zero,
            shape: shape.clone(),
            index: index.clone(),
        })
    }

    /// Slices the reduced axes to the taps that may meet the image. Returns the labels of the axes that became shorter,
    /// with the taps that are left.
    fn narrow(&mut self, graph: &Graph, labels: &[Label], out: &[Label]) -> Vec<(Label, Range<i64>)> {
        let facts = graph.index_facts(&self.shape);
        let mut kept = Vec::new();
        for (k, label) in labels.iter().enumerate().filter(|(_, label)| !out.contains(label)) {
            let Some(taps) = self.taps(graph, &facts, k) else { continue };
            let mut by: Vec<Dim> = (0..self.shape.len()).map(|k| Dim::from(axis(k))).collect();
            let is_single = taps.end - taps.start == 1;
            by[k] = if is_single { Dim::from(taps.start) } else { &by[k] + taps.start };
            self.index = compose(&self.index, &by);
            self.shape[k] = Dim::from(taps.end - taps.start);
            kept.push((*label, taps));
        }
        kept
    }

    /// The taps of axis `k` from the first to the last that may meet the image, if these are not all.
    fn taps(&self, graph: &Graph, facts: &Facts, k: usize) -> Option<Range<i64>> {
        let extent = self.shape[k].as_i64().filter(|extent| (2..=MAX_TAPS).contains(extent))?;
        let tap = axis(k);
        let is_padded = |a: &usize| [&self.lo[*a], &self.hi[*a]].into_iter().any(|n| n.as_i64() != Some(0));
        let moved: Vec<usize> =
            (0..self.index.len()).filter(|a| self.index[*a].contains(&tap)).filter(is_padded).collect();
        let meets = |t: &i64| {
            !moved.iter().any(|a| {
                let at = self.index[*a].substitute(&|symbol| (*symbol == tap).then(|| Dim::from(*t)));
                let end = &self.lo[*a] + &graph.shape(self.image)[*a];
                facts.prove_lt(&at, &self.lo[*a]).is_yes() || facts.prove_le(&end, &at).is_yes()
            })
        };

        // One tap stays if none meets the image, because a sum has terms.
        let first = (0..extent).find(meets).unwrap_or(0);
        let last = (first..extent).rev().find(meets).unwrap_or(first);
        (first > 0 || last + 1 < extent).then_some(first..last + 1)
    }

    /// The view, without the padding of axes along which it stays in the image.
    fn build(mut self, graph: &mut Graph) -> Result<Value> {
        let facts = graph.index_facts(&self.shape);
        for a in 0..self.index.len() {
            let end = &self.lo[a] + &graph.shape(self.image)[a];
            let at = &self.index[a];
            if facts.prove_le(&self.lo[a], at).is_yes() && facts.prove_lt(at, &end).is_yes() {
                self.index[a] = at - &self.lo[a];
                self.lo[a] = Dim::zero();
                self.hi[a] = Dim::zero();
            }
        }
        let index = self.index.iter().map(|at| facts.simplify(at)).collect();
        let padded = graph.pad(self.image, &self.lo, &self.hi, self.zero)?;
        graph.view(padded, self.shape, index)
    }
}

/// Operand `k` of a contraction, with only the taps that are kept.
fn sliced(
    graph: &mut Graph,
    node: &Node,
    k: usize,
    labels: &[Label],
    kept: &[(Label, Range<i64>)],
) -> Result<Value> {
    let mut value = node.operands[k];
    for (label, taps) in kept {
        if let Some(a) = labels.iter().position(|other| other == label) {
            value = graph.slice(value, a, Dim::from(taps.start), Dim::from(taps.end - taps.start), 1)?;
        }
    }
    Ok(value)
}
