//! Sorts, and the first elements of sorts.
//!
//! An element becomes an entry: its [key](key) and its position. Entries are ordered by key, and equal keys by
//! position. This order is total, so every algorithm gives the same result, and the sizes may choose one in each call:
//!
//! 1. [`bounded`] collects the entries of the elements beyond a bound, if there is one. Otherwise [`select`] collects
//!    the entries of candidates. If few elements are wanted, these are the elements of the blocks with the best minima;
//!    the minima take one pass of vectors over the row. Otherwise all elements are candidates.
//! 2. [`entries`] sorts the candidates: by insertion if they are few, else by a radix sort of the bytes of the keys
//!    (least significant digit first; Knuth, The Art of Computer Programming, volume 3, section 5.2.5).
//!
//! The work is at most proportional to the row, for every order of its elements. Scratch memory holds the entries of
//! the candidates, twice, and the minima of the blocks.

mod bounded;
mod entries;
mod key;
mod select;
mod sorter;

use super::{lowering::Lowering, nest::loops};
use crate::{Result, graph::Value, kernel::Stmt};
use key::Key;
use sorter::{CONTEXT, Row, Sorter};
use symshape::Dim;
use symshape_runtime::DType;

/// The kernel of a sort.
pub(super) fn lower(lowering: &mut Lowering, value: Value) -> Result<()> {
    let mut scope = lowering.scope();
    let row = Row::new(lowering, &mut scope, value)?;
    let outer = row.outer.clone();
    let mut sorter = Sorter::new(lowering, scope, row)?;
    let mut body = sorter.candidates()?;
    let n_candidates = sorter.n_candidates(&mut body)?;
    let is_bounded = sorter.row.bound.is_some();
    let wanted = if is_bounded { n_candidates.clone() } else { sorter.row.wanted.clone() };
    body.extend(sorter.sort_entries(&n_candidates, &wanted)?);
    body.push(sorter.write_results(value, &wanted)?);
    if is_bounded {
        body.push(sorter.write_bound(value, &wanted)?);
    }
    let kernel = sorter.kernel;
    lowering.push(value, "sort", kernel, loops(&outer, true, body));
    Ok(())
}

/// The kernel of an arg-reduction that chooses the first of equal elements. A NaN is chosen before all other values.
pub(super) fn lower_first_position(
    lowering: &mut Lowering,
    value: Value,
    axis: usize,
    descending: bool,
) -> Result<()> {
    let operand = lowering.graph.operands(value)[0];
    let key = Key { dtype: lowering.graph.dtype(operand), descending, nan_first: true };
    let mut scope = lowering.scope();
    let row = Row::along(lowering, &mut scope, operand, axis, key, Dim::one());
    let outer = row.outer.clone();
    let mut sorter = Sorter::new(lowering, scope, row)?;
    let mut body = sorter.candidates()?;
    let n_candidates = sorter.n_candidates(&mut body)?;
    body.extend(sorter.sort_entries(&n_candidates, &Dim::one())?);
    let [entries, _] = sorter.entries;
    let storage = sorter.lowering.storage[&value].clone();
    body.push(sorter.block(|code| {
        let position = code.load(entries.positions, &Dim::zero());
        let to = code.row.rest.clone();
        code.inliner.store(&storage, &to, position);
        Ok(())
    })?);
    let kernel = sorter.kernel;
    lowering.push(value, "argreduce", kernel, loops(&outer, true, body));
    Ok(())
}

impl Sorter<'_, '_> {
    /// Stores the wanted elements and their positions.
    fn write_results(&mut self, value: Value, wanted: &Dim) -> Result<Stmt> {
        let graph = self.lowering.graph;
        let results = &graph.nodes[graph.values[value].def].results;
        let storages: Vec<_> = results.iter().map(|result| self.lowering.storage[result].clone()).collect();
        let [entries, _] = self.entries;
        self.repeat(wanted, |this, i| {
            let block = this.block(|code| {
                let position = code.load(entries.positions, i);
                let len = code.row.len.clone();
                let at = code.inliner.bind(position, DType::I64, &len, CONTEXT.to_string());
                let element = code.inliner.load(code.row.operand, &code.row.index(&Dim::from(&at)))?;
                let to = code.row.index(i);
                code.inliner.store(&storages[0], &to, element);
                code.inliner.store(&storages[1], &to, position);
                Ok(())
            })?;
            Ok(vec![block])
        })
    }
}
