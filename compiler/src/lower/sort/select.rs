//! The candidates of a sort: entries among which all wanted elements are.
//!
//! If few elements are wanted, the row is divided into blocks. The smallest key of each block takes one pass of
//! vectors. Let the blocks be ordered by it, and equal ones by their position. Then the wanted elements are in as
//! many first blocks as elements are wanted: an element of another block goes after the smallest element of each of
//! these. None of them has a larger key than the smallest key of the last of these blocks, the limit.
//!
//! The bound on the candidates is the joint size of these blocks, for every order of the elements.

use super::sorter::{Entries, Sorter};
use crate::{
    Result,
    kernel::{BufferId, Inst, Local, Stmt},
    lower::reduce::set,
    scalar::{BinaryOp, CompareOp, ReduceOp, Scalar},
};
use num_traits::ToPrimitive;
use symshape::Dim;
use symshape_runtime::DType;

/// The smallest and the largest size of a block.
const BLOCK_SIZES: [i64; 2] = [8, 256];

/// The time that a minimum takes, relative to a candidate: it is computed, and sorted in every call. Most candidates
/// are above the limit.
const MINIMUM_COST: i64 = 4;

/// The last of the blocks with candidates.
struct Limit {
    key: Local,
    block: Local,
}

impl Sorter<'_, '_> {
    /// The size of a block, a power of two. For a short row, or if many elements are wanted, there are no blocks.
    ///
    /// Of `len` elements, `wanted * size` are candidates, and `len / size` are minima. Both take the same time if the
    /// size is the root of `MINIMUM_COST * len / wanted`. It is rounded to the nearest power of two.
    fn block_size(&self) -> Option<i64> {
        let upper = |dim: &Dim| self.scope.around.bounds(dim).hi.and_then(|hi| hi.to_i64());
        let len = upper(&self.row.len)?;
        let wanted = upper(&self.row.wanted).unwrap_or(len).max(1);
        let square = (len / wanted).saturating_mul(MINIMUM_COST);
        let size = 1i64 << ((square.saturating_mul(2).max(1).ilog2()) / 2);
        let size = size.clamp(BLOCK_SIZES[0], BLOCK_SIZES[1]);
        let pays = len >= 4 * size;
        let is_whole = self.scope.around.prove_lt(&self.row.len, &self.selective(size)).is_yes();
        (pays && !is_whole).then_some(size)
    }

    /// The length of a row from which on blocks are used: the elements of all blocks with candidates.
    fn selective(&self, size: i64) -> Dim {
        self.row.wanted.clone().max(Dim::one()) * size
    }

    /// The largest number of entries that are sorted at once.
    pub(super) fn max_entries(&self) -> Dim {
        match self.block_size() {
            None => self.row.len.clone(),
            Some(size) => {
                let candidates = Dim::min(&self.row.len, self.selective(size));
                candidates.max(self.row.len.ceil_div(size))
            }
        }
    }

    /// Collects the candidates.
    pub(super) fn candidates(&mut self) -> Result<Vec<Stmt>> {
        if let Some(bound) = self.row.bound {
            return self.beyond(bound);
        }
        let Some(size) = self.block_size() else { return self.take_all() };
        let found = self.local(DType::I64);
        self.found = Some(found);
        let selects = self.local(DType::Bool);
        let least = self.selective(size);
        let choice = self.block(|code| {
            let least = code.index(&least);
            let len = code.index(&code.row.len.clone());
            let is_long = code.push(Inst::Compare(CompareOp::Le, least, len));
            code.push(Inst::Set(selects, is_long));
            let all = code.push(Inst::Binary(BinaryOp::Min, len, least));
            code.push(Inst::Set(found, all));
            Ok(())
        })?;
        let then = self.select(size, found)?;
        let otherwise = self.take_found(found)?;
        Ok(vec![choice, Stmt::If { cond: selects, then, otherwise }])
    }

    /// The number of candidates. Adds code that binds it.
    pub(super) fn n_candidates(&mut self, body: &mut Vec<Stmt>) -> Result<Dim> {
        let Some(found) = self.found else { return Ok(self.row.len.clone()) };
        let mut count = Dim::zero();
        let is_bounded = self.row.bound.is_some();
        let block = self.block(|code| {
            let found = code.push(Inst::Get(found));
            count = if is_bounded { code.count(found) } else { code.slot(found) };
            Ok(())
        })?;
        body.push(block);
        Ok(count)
    }

    /// Makes all elements candidates.
    fn take_all(&mut self) -> Result<Vec<Stmt>> {
        let len = self.row.len.clone();
        self.take(&len)
    }

    /// Makes all elements candidates, whose number is `found`.
    fn take_found(&mut self, found: Local) -> Result<Vec<Stmt>> {
        let mut len = Dim::zero();
        let block = self.block(|code| {
            let found = code.push(Inst::Get(found));
            len = code.count(found);
            Ok(())
        })?;
        let mut body = vec![block];
        body.extend(self.take(&len)?);
        Ok(body)
    }

    fn take(&mut self, len: &Dim) -> Result<Vec<Stmt>> {
        let [entries, _] = self.entries;
        let keys = self.strip(len, |code, i| {
            let key = code.key(i)?;
            code.store(entries.keys, i, key);
            Ok(())
        })?;
        let positions = self.repeat(len, |this, i| {
            let block = this.block(|code| {
                let position = code.index(i);
                code.store(entries.positions, i, position);
                Ok(())
            })?;
            Ok(vec![block])
        })?;
        Ok(vec![keys, positions])
    }

    /// Collects the candidates of the blocks with the smallest minima.
    fn select(&mut self, size: i64, found: Local) -> Result<Vec<Stmt>> {
        let lane = self.row.key.lane();
        let n_blocks = self.row.len.ceil_div(size);
        let minima = self.scratch("minima", lane, &n_blocks)?;
        let limit = Limit { key: self.local(lane), block: self.local(DType::I64) };
        let mut body = self.minima(size, minima)?;
        body.extend(self.limit(&n_blocks, minima, &limit)?);
        body.push(set(found, Scalar::i64(0)));
        body.push(self.collect(size, minima, &limit, found)?);
        Ok(body)
    }

    /// Computes the smallest key of each block. The last one may be shorter.
    fn minima(&mut self, size: i64, minima: BufferId) -> Result<Vec<Stmt>> {
        let full = self.row.len.floor_div(size);
        let rest = self.row.len.modulo(size);
        let n_partial = self.row.len.ceil_div(size) - &full;
        let smallest = self.local(self.row.key.lane());
        let minimum = |this: &mut Self, block: &Dim, start: &Dim, len: &Dim| {
            let keys = this.strip(len, |code, i| {
                let key = code.key(&(start + i))?;
                code.push(Inst::Reduce(ReduceOp::Min, key, smallest));
                Ok(())
            })?;
            let store = this.block(|code| {
                let key = code.push(Inst::Get(smallest));
                code.store(minima, block, key);
                Ok(())
            })?;
            Ok(vec![keys, store])
        };

        let whole = self.repeat(&full, |this, block| minimum(this, block, &(block * size), &size.into()))?;
        let partial =
            self.repeat(&n_partial, |this, i| minimum(this, &(&full + i), &(&full * size), &rest))?;
        Ok(vec![whole, partial])
    }

    /// Finds the last of the blocks with candidates.
    fn limit(&mut self, n_blocks: &Dim, minima: BufferId, limit: &Limit) -> Result<Vec<Stmt>> {
        let [entries, _] = self.entries;
        let copy = self.repeat(n_blocks, |this, block| {
            let copy = this.block(|code| {
                let key = code.load(minima, block);
                code.store(entries.keys, block, key);
                let position = code.index(block);
                code.store(entries.positions, block, position);
                Ok(())
            })?;
            Ok(vec![copy])
        })?;
        let n_chosen = self.row.wanted.clone().max(Dim::one());
        let mut body = vec![copy];
        body.extend(self.sort_entries(n_blocks, &n_chosen)?);
        body.push(self.block(|code| {
            let last = code.index(&(n_chosen - 1));
            let last = code.slot(last);
            let key = code.load(entries.keys, &last);
            code.push(Inst::Set(limit.key, key));
            let block = code.load(entries.positions, &last);
            code.push(Inst::Set(limit.block, block));
            Ok(())
        })?);
        Ok(body)
    }

    /// Collects the elements up to the limit.
    fn collect(&mut self, size: i64, minima: BufferId, limit: &Limit, found: Local) -> Result<Stmt> {
        let [entries, _] = self.entries;
        let n_blocks = self.row.len.ceil_div(size);
        let has_candidates = self.local(DType::Bool);
        self.repeat(&n_blocks, |this, block| {
            let choice = this.block(|code| {
                let key = code.load(minima, block);
                let limit_key = code.push(Inst::Get(limit.key));
                let is_smaller = code.push(Inst::Compare(CompareOp::Lt, key, limit_key));
                let is_equal = code.push(Inst::Compare(CompareOp::Eq, key, limit_key));
                let at = code.index(block);
                let limit_block = code.push(Inst::Get(limit.block));
                let is_early = code.push(Inst::Compare(CompareOp::Le, at, limit_block));
                let is_tie = code.push(Inst::Binary(BinaryOp::And, is_equal, is_early));
                let is_chosen = code.push(Inst::Binary(BinaryOp::Or, is_smaller, is_tie));
                code.push(Inst::Set(has_candidates, is_chosen));
                Ok(())
            })?;
            let start = block * size;
            let len = Dim::min(&(&this.row.len - &start), Dim::from(size));
            let elements = this.repeat(&len, |this, i| this.append(entries, &(&start + i), limit, found))?;
            Ok(vec![choice, Stmt::If { cond: has_candidates, then: vec![elements], otherwise: Vec::new() }])
        })
    }

    /// Appends the element at `at` to the candidates if its key is not above the limit. The entry is always written,
    /// without a branch, and the next one replaces it if it is none.
    fn append(&mut self, entries: Entries, at: &Dim, limit: &Limit, found: Local) -> Result<Vec<Stmt>> {
        let block = self.block(|code| {
            let key = code.key(at)?;
            let count = code.push(Inst::Get(found));
            let to = code.slot(count);
            code.store(entries.keys, &to, key);
            let position = code.index(at);
            code.store(entries.positions, &to, position);

            let limit_key = code.push(Inst::Get(limit.key));
            let is_candidate = code.push(Inst::Compare(CompareOp::Le, key, limit_key));
            let one = code.push(Inst::Cast(DType::I64, is_candidate));
            let new = code.push(Inst::Binary(BinaryOp::Add, count, one));
            code.push(Inst::Set(found, new));
            Ok(())
        })?;
        Ok(vec![block])
    }
}
