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

/// Whether the innermost axis of the row-major `root` moves a few of the columns of `sum`, which it reads at
/// `index`.
pub(super) fn are_scattered(graph: &Graph, root: Value, sum: Value, index: &[Dim]) -> bool {
    let Op::Contraction { lhs, rhs, out, .. } = graph.op(sum) else { return false };
    let is_constant = |side: usize| graph.viewed_constant(graph.operands(sum)[side]).is_some();
    let (image, weights) = match (is_constant(0), is_constant(1)) {
        (false, true) => (lhs, rhs),
        (true, false) => (rhs, lhs),
        _ => return false,
    };
    let is_column = |label: &Label| weights.contains(label) && !image.contains(label);
    let columns = |is_counted: &dyn Fn(usize) -> bool| {
        let counted = (0..out.len()).filter(|k| is_column(&out[*k]) && is_counted(*k));
        let extents = counted.map(|k| graph.shape(sum)[k].as_i64());
        extents.product::<Option<i64>>()
    };

    let shape = graph.shape(root);
    let Some(inner) = (0..shape.len()).rfind(|k| shape[*k].as_i64() != Some(1)) else { return false };
    let is_moved = |k: usize| index[k].contains(&axis(inner));
    let moves_rows = (0..out.len()).any(|k| is_moved(k) && !weights.contains(&out[k]));
    let [all, adjacent] = [columns(&|_| true), columns(&is_moved)];
    moves_rows
        && adjacent.is_some_and(|adjacent| (2..MIN_COLUMNS).contains(&adjacent) && all > Some(adjacent))
}
