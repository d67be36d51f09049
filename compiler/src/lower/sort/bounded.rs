//! The entries of the elements beyond a bound.
//!
//! Mostly few elements are. One pass of vectors over each block finds out whether it has any.

use super::sorter::{Code, Sorter};
use crate::{
    Result,
    graph::Value,
    kernel::{Inst, Local, Stmt},
    lower::reduce::set,
    scalar::{BinaryOp, CompareOp, ReduceOp, Reg, Scalar},
};
use symshape::Dim;
use symshape_runtime::DType;

/// Elements of a block.
const BLOCK: i64 = 128;

impl Sorter<'_, '_> {
    /// Makes the elements beyond `bound` candidates.
    pub(super) fn beyond(&mut self, bound: Value) -> Result<Vec<Stmt>> {
        let found = self.local(DType::I64);
        self.found = Some(found);
        let len = self.row.len.clone();
        let full = len.floor_div(BLOCK);
        let rest = len.modulo(BLOCK);
        let n_partial = len.ceil_div(BLOCK) - &full;
        let whole = self
            .repeat(&full, |this, block| this.take_beyond(bound, &(block * BLOCK), &BLOCK.into(), found))?;
        let partial =
            self.repeat(&n_partial, |this, i| this.take_beyond(bound, &((&full + i) * BLOCK), &rest, found))?;
        Ok(vec![set(found, Scalar::i64(0)), whole, partial])
    }

    /// Makes the elements of a block that are beyond `bound` candidates.
    fn take_beyond(&mut self, bound: Value, start: &Dim, len: &Dim, found: Local) -> Result<Vec<Stmt>> {
        let any = self.local(DType::I32);
        let scan = self.strip(len, |code, i| {
            let (_, is_beyond) = is_beyond(code, bound, &(start + i))?;
            let one = code.push(Inst::Cast(DType::I32, is_beyond));
            code.push(Inst::Reduce(ReduceOp::Max, one, any));
            Ok(())
        })?;
        let has_any = self.local(DType::Bool);
        let choice = self.block(|code| {
            let any = code.push(Inst::Get(any));
            let zero = code.int(DType::I32, 0);
            let is_some = code.push(Inst::Compare(CompareOp::Gt, any, zero));
            code.push(Inst::Set(has_any, is_some));
            Ok(())
        })?;
        let then = self.repeat(len, |this, i| this.append_beyond(bound, &(start + i), found))?;
        Ok(vec![scan, choice, Stmt::If { cond: has_any, then: vec![then], otherwise: Vec::new() }])
    }

    /// Appends the element at `at` to the candidates if it is beyond `bound`. The entry is always written, without a
    /// branch, and the next one replaces it if it is none.
    fn append_beyond(&mut self, bound: Value, at: &Dim, found: Local) -> Result<Vec<Stmt>> {
        let [entries, _] = self.entries;
        let block = self.block(|code| {
            let (element, is_beyond) = is_beyond(code, bound, at)?;
            let key = code.row.key.emit(&mut code.inliner.code, element);
            let count = code.push(Inst::Get(found));
            let to = code.slot(count);
            code.store(entries.keys, &to, key);
            let position = code.index(at);
            code.store(entries.positions, &to, position);

            let one = code.push(Inst::Cast(DType::I64, is_beyond));
            let new = code.push(Inst::Binary(BinaryOp::Add, count, one));
            code.push(Inst::Set(found, new));
            Ok(())
        })?;
        Ok(vec![block])
    }

    /// Stores the bound and position 0 after the first `count` results.
    pub(super) fn write_bound(&mut self, value: Value, count: &Dim) -> Result<Stmt> {
        let graph = self.lowering.graph;
        let results = &graph.nodes[graph.values[value].def].results;
        let storages: Vec<_> = results.iter().map(|result| self.lowering.storage[result].clone()).collect();
        let bound = graph.operands(value)[1];
        let rest = &self.row.len - count;
        self.strip(&rest, |code, i| {
            let bound = code.inliner.load(bound, &[])?;
            let to = code.row.index(&(count + i));
            code.inliner.store(&storages[0], &to, bound);
            let zero = code.int(DType::I64, 0);
            code.inliner.store(&storages[1], &to, zero);
            Ok(())
        })
    }
}

/// The element at `at`, and whether it is beyond the bound.
fn is_beyond(code: &mut Code<'_, '_>, bound: Value, at: &Dim) -> Result<(Reg, Reg)> {
    let element = code.inliner.load(code.row.operand, &code.row.index(at))?;
    let bound = code.inliner.load(bound, &[])?;
    let beyond = if code.row.key.descending { CompareOp::Gt } else { CompareOp::Lt };
    Ok((element, code.push(Inst::Compare(beyond, element, bound))))
}
