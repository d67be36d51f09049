//! The columns of contractions that readers place between rows.
//!
//! A transposed convolution computes the elements between two elements of its operand as columns, its phases. Its
//! reader merges them with the rows, as in `y[m, 2x + q] = z[x, m, q]`. If the phases follow their row axis in memory,
//! `z[x, q, m]` is the result with the channels last. A transposition of whole rows is then all that is left.

use super::demands::is_fixed;
use crate::{
    graph::{Graph, Op, Value, axis},
    lower::index::{AxisOrder, substitute},
};
use std::collections::{HashMap, HashSet};
use symshape::Dim;

/// The fewest columns after the innermost row axis: with fewer, vectors of columns are mostly empty.
const MIN_COLUMNS: i64 = 16;

/// Most values that are followed from a reader.
const MAX_VALUES: usize = 64;

/// For columns of contractions that a reader places between rows, by contraction and axis: the axis of the rows.
pub(super) fn phases(graph: &Graph) -> HashMap<(Value, usize), usize> {
    let mut phases = HashMap::new();
    for (_, node) in &graph.nodes {
        let Op::View { index, .. } = &node.op else { continue };
        let mut open: Vec<(Value, Vec<Dim>)> = vec![(node.operands[0], index.clone())];
        let mut seen: HashSet<Value> = HashSet::new();
        while let Some((value, index)) = open.pop() {
            // Values are read along many paths where results of maps are shared.
            if seen.len() >= MAX_VALUES || !seen.insert(value) {
                continue;
            }
            let operands = graph.operands(value);
            match graph.op(value) {
                Op::View { index: map, .. } => open.push((operands[0], substitute(map, &index))),
                Op::Map(_) | Op::Pad { .. } | Op::Concat { .. } => {
                    open.extend(operands.iter().map(|operand| (*operand, index.clone())));
                }
                Op::Contraction { .. } => {
                    let rank = graph.rank(node.results[0]);
                    let of_sum = phases_of(graph, value, rank, &index);
                    phases.extend(of_sum.map(|(phase, row)| ((value, phase), row)));
                }
                _ => {}
            }
        }
    }
    phases
}

/// The columns of `sum` that an axis of a reader moves together with a row axis, with that axis. The reader has `rank`
/// axes, and reads `sum` at `index`.
fn phases_of(
    graph: &Graph,
    sum: Value,
    rank: usize,
    index: &[Dim],
) -> impl Iterator<Item = (usize, usize)> + use<> {
    let mut found = Vec::new();
    if let Op::Contraction { lhs, rhs, out, .. } = graph.op(sum) {
        let weights = match (is_fixed(graph, sum, 0), is_fixed(graph, sum, 1)) {
            (true, false) => lhs,
            (false, true) => rhs,
            _ => return found.into_iter(),
        };
        let (columns, rows): (Vec<usize>, Vec<usize>) =
            (0..out.len()).partition(|k| weights.contains(&out[*k]));
        let moves_both = |column: usize, row: usize| {
            (0..rank).any(|k| [column, row].iter().all(|at| index[*at].contains(&axis(k))))
        };
        for column in columns {
            found.extend(rows.iter().find(|row| moves_both(column, **row)).map(|row| (column, *row)));
        }
    }
    found.into_iter()
}

/// `order` of a contraction's result, with each phase after its row axis. `phases` has the row axis of each phase.
/// Unchanged if too few columns were innermost.
pub(super) fn after_rows(
    graph: &Graph,
    sum: Value,
    order: &[usize],
    row_of: impl Fn(usize) -> Option<usize>,
) -> AxisOrder {
    let mut moved = AxisOrder::new();
    for &k in order.iter().filter(|k| row_of(**k).is_none()) {
        moved.push(k);
        moved.extend(order.iter().filter(|phase| row_of(**phase) == Some(k)));
    }
    let is_row = |k: &usize| order.iter().any(|phase| row_of(*phase) == Some(*k));
    let inner = moved.iter().rposition(is_row).map_or(0, |at| at + 1);
    let columns = moved[inner..].iter().map(|k| graph.shape(sum)[*k].as_i64()).product::<Option<i64>>();
    if columns.is_some_and(|columns| columns >= MIN_COLUMNS) { moved } else { order.to_vec() }
}
