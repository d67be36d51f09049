//! Depthwise convolutions of inputs, whose images have planes of channels, and convolutions with few columns.
//!
//! Strips along the rows of a plane read the input and write the result as they are in memory. With channels innermost,
//! both would be transposed, which takes longer than the convolution.

use crate::{
    graph::{Graph, Label, Op, Value, axis},
    lower::{
        index::{innermost, is_long},
        windows::{MAX_STEP, MAX_WINDOW},
    },
};
use symshape::Dim;

/// The shortest row along which strips pay: its length for a window of no elements, and by how much it is longer for
/// four elements. Shorter rows fill only a part of their vectors, and a row of each plane needs its own address. The
/// more elements a window has, the more of that time a transposition saves. A range counts by the geometric mean of its
/// ends.
const MIN_ROW: [i64; 2] = [8, 5];

/// At most this many columns fill a quarter of a vector of AVX-512.
const MAX_FEW_COLUMNS: i64 = 4;

/// The varying operand of a contraction with constant weights, and the labels of both operands and the result.
pub(super) struct VaryingOperand<'a> {
    pub(super) operand: Value,
    /// The value that the operand views, and its coordinates over the axes of the operand.
    pub(super) base: Value,
    pub(super) index: &'a [Dim],
    pub(super) labels: &'a [Label],
    pub(super) weight: Value,
    pub(super) weights: &'a [Label],
    pub(super) out: &'a [Label],
}

impl VaryingOperand<'_> {
    /// Whether the contraction is a depthwise convolution of an input of the model, and strips along the rows of its
    /// planes pay.
    pub(super) fn has_planes(&self, graph: &Graph) -> bool {
        is_input(graph, self.base)
            && self.has_channels(graph)
            && self.window(graph).is_some_and(|elements| self.has_long_rows(graph, elements))
    }

    /// Whether the contraction has a few columns for each window of an input of the model, as a transposed convolution
    /// to one channel has. As rows they take no lanes, and windows along the rows of a plane are adjacent.
    pub(super) fn has_few_columns(&self, graph: &Graph) -> bool {
        let shape = graph.shape(self.weight);
        let elements = |wanted: &dyn Fn(&Label) -> bool| {
            let extents = self.weights.iter().zip(shape).filter(|(label, _)| wanted(label));
            extents.map(|(_, extent)| extent.as_i64()).product::<Option<i64>>()
        };
        let columns = elements(&|label| !self.labels.contains(label));
        let batches = elements(&|label| self.labels.contains(label) && self.out.contains(label));
        let is_row = |label: &Label| self.out.contains(label) && !self.weights.contains(label);
        let is_last = |(k, step): (usize, i64)| self.out.last() == Some(&self.labels[k]) && step == 1;
        is_input(graph, self.base)
            && columns.is_some_and(|columns| (2..=MAX_FEW_COLUMNS).contains(&columns))
            && batches == Some(1)
            && self.inner_axis(graph, &is_row).is_some_and(is_last)
            && self.has_long_rows(graph, 0)
    }

    /// Whether the weights have channels, which the result has too, and no columns.
    fn has_channels(&self, graph: &Graph) -> bool {
        let shape = graph.shape(self.weight);
        let is_channel = |label: &Label| self.labels.contains(label) && self.out.contains(label);
        let mut moving = self.weights.iter().zip(shape).filter(|(_, extent)| extent.as_i64() != Some(1));
        let has_columns = moving.clone().any(|(label, _)| !self.labels.contains(label));
        !has_columns && moving.any(|(label, _)| is_channel(label))
    }

    /// The number of elements of the reduction, if it is a small window: each of its axes moves an axis that rows move
    /// too.
    fn window(&self, graph: &Graph) -> Option<i64> {
        let is_moved = |at: &Dim, wanted: &dyn Fn(&Label) -> bool| {
            self.labels.iter().enumerate().any(|(k, label)| wanted(label) && at.contains(&axis(k)))
        };
        let is_window = |label: &Label| {
            let mut moved = self.index.iter().filter(|at| is_moved(at, &|other| other == label));
            moved.all(|at| is_moved(at, &|other| !self.weights.contains(other)))
        };
        let shape = graph.shape(self.operand);
        let mut reduced = self
            .labels
            .iter()
            .zip(shape)
            .filter(|(label, extent)| !self.out.contains(label) && extent.as_i64() != Some(1));
        let elements = reduced.clone().try_fold(1i64, |n, (_, extent)| n.checked_mul(extent.as_i64()?))?;
        (elements <= MAX_WINDOW && reduced.all(|(label, _)| is_window(label))).then_some(elements)
    }

    /// Whether rows are long, and their windows begin at each element of the input, or at every second one.
    fn has_long_rows(&self, graph: &Graph, window: i64) -> bool {
        let is_row = |label: &Label| self.out.contains(label) && !self.weights.contains(label);
        let Some((row, step)) = self.inner_axis(graph, &is_row) else { return false };
        let min_row = MIN_ROW[0] + MIN_ROW[1] * window / 4;
        (1..=MAX_STEP).contains(&step) && is_long(&graph.facts, &graph.shape(self.operand)[row], min_row)
    }

    /// The axis of the operand, among those with such labels, that alone moves the innermost axis of the base as a
    /// row-major value, and the elements that it moves by.
    pub(super) fn inner_axis(&self, graph: &Graph, among: &dyn Fn(&Label) -> bool) -> Option<(usize, i64)> {
        let at = &self.index[innermost(graph.shape(self.base), 0..graph.rank(self.base))?];
        let shape = graph.shape(self.operand);
        let is_moving =
            |k: &usize| among(&self.labels[*k]) && shape[*k].as_i64() != Some(1) && at.contains(&axis(*k));
        let mut moving = (0..shape.len()).filter(is_moving);
        let (Some(k), None) = (moving.next(), moving.next()) else { return None };
        let (step, _) = graph.facts.linear_in(at, &axis(k))?;
        Some((k, step.as_i64()?))
    }
}

/// Whether `value` is an input of the model, possibly padded.
fn is_input(graph: &Graph, value: Value) -> bool {
    match graph.op(value) {
        Op::Input(_) => true,
        Op::Pad { .. } => matches!(graph.op(graph.operands(value)[0]), Op::Input(_)),
        _ => false,
    }
}
