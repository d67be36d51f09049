//! Contractions whose columns an output scatters.
//!
//! A transposed convolution computes the pixels of a square for each element of its operand: the columns are channels
//! and the pixels of a square. In an output with planes, only the pixels of a row of the square are adjacent. If the
//! output finished the contraction, each multiplication would have these few columns. So the contraction is in memory,
//! with all of its columns, and the output moves them.

use crate::graph::{Graph, Label, Op, Value, axis};
use symshape::Dim;

/// With fewer columns, a tile of a packed constant would be mostly empty.
pub(super) const MIN_COLUMNS: i64 = 8;

/// The shortest run of columns that fills a vector.
const MIN_RUN: i64 = 16;

/// Whether the innermost axis of the row-major `root` moves a few of the columns of `sum`, which it reads at
/// `index`.
pub(super) fn are_scattered(graph: &Graph, root: Value, sum: Value, index: &[Dim]) -> bool {
    let Some(is_column) = columns(graph, sum) else { return false };
    let shape = graph.shape(root);
    let Some(inner) = (0..shape.len()).rfind(|k| shape[*k].as_i64() != Some(1)) else { return false };
    let is_moved = |k: usize| index[k].contains(&axis(inner));
    let moves_rows = (0..index.len()).any(|k| is_moved(k) && is_column[k] == Some(false));
    let count = |is_counted: &dyn Fn(usize) -> bool| {
        let counted = (0..index.len()).filter(|k| is_column[*k] == Some(true) && is_counted(*k));
        counted.map(|k| graph.shape(sum)[k].as_i64()).product::<Option<i64>>()
    };
    let [all, adjacent] = [count(&|_| true), count(&is_moved)];
    moves_rows
        && adjacent.is_some_and(|adjacent| (2..MIN_COLUMNS).contains(&adjacent) && all > Some(adjacent))
}

/// Whether a reader with `rank` axes places columns of `sum` between its rows, and other columns fill vectors: the
/// reader then stores runs of these.
pub(super) fn interleaves_runs(graph: &Graph, rank: usize, sum: Value, index: &[Dim]) -> bool {
    let Some(is_column) = columns(graph, sum) else { return false };
    let moves = |k: usize, which: Option<bool>| {
        (0..index.len()).any(|of| is_column[of] == which && index[of].contains(&axis(k)))
    };
    let both: Vec<usize> = (0..rank).filter(|k| moves(*k, Some(true)) && moves(*k, Some(false))).collect();
    let is_run = |k: &usize| {
        is_column[*k] == Some(true) && both.iter().all(|moved| !index[*k].contains(&axis(*moved)))
    };
    let run = (0..index.len()).filter(is_run).map(|k| graph.shape(sum)[k].as_i64());
    !both.is_empty() && run.product::<Option<i64>>().is_some_and(|run| run >= MIN_RUN)
}

/// For each axis of a contraction with constant weights: whether it is a column. Batch axes are neither columns nor
/// rows.
fn columns(graph: &Graph, sum: Value) -> Option<Vec<Option<bool>>> {
    let Op::Contraction { lhs, rhs, out, .. } = graph.op(sum) else { return None };
    let is_constant = |side: usize| graph.viewed_constant(graph.operands(sum)[side]).is_some();
    let (image, weights) = match (is_constant(0), is_constant(1)) {
        (false, true) => (lhs, rhs),
        (true, false) => (rhs, lhs),
        _ => return None,
    };
    let is_column = |label: &Label| match (weights.contains(label), image.contains(label)) {
        (true, is_batch) => (!is_batch).then_some(true),
        (false, _) => Some(false),
    };
    Some(out.iter().map(is_column).collect())
}
