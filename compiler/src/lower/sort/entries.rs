//! The order of entries: insertion and radix sorts.

use super::sorter::{CONTEXT, Code, Entries, Sorter};
use crate::{
    Result,
    kernel::{BufferId, Inst, Local, Stmt},
    lower::reduce::set,
    scalar::{BinaryOp, CompareOp, ReduceOp, Reg, Scalar},
};
use symshape::Dim;
use symshape_runtime::DType;

/// The largest product of candidates and wanted entries for an insertion sort, which bounds the moves of entries.
const MAX_MOVES: i64 = 8192;

/// The most wanted entries for an insertion sort. Moving more of them takes longer than a radix sort.
const MAX_INSERTED: i64 = 32;

/// Values of a digit.
const DIGITS: i64 = 256;

/// The state of an insertion sort.
struct Inserted {
    /// The key of the entry that is inserted.
    key: Local,
    /// Its index among the sorted entries.
    at: Local,
    /// Whether the entry before goes after it.
    moves: Local,
    /// The number of sorted entries.
    kept: Local,
    /// The key of the last one.
    worst: Local,
    is_wanted: Local,
}

impl Sorter<'_, '_> {
    /// Sorts the first `len` entries, such that the first `wanted` are in place.
    pub(super) fn sort_entries(&mut self, len: &Dim, wanted: &Dim) -> Result<Vec<Stmt>> {
        // Both limits in one comparison: the square of the wanted entries is scaled to the limit of the moves.
        let scaled = wanted * wanted * (MAX_MOVES / (MAX_INSERTED * MAX_INSERTED));
        let moves = self.scope.around.simplify(&(len * wanted).max(scaled));
        let bounds = self.scope.facts.bounds(&moves);
        if bounds.hi.is_some_and(|hi| hi <= MAX_MOVES.into()) {
            return self.insert(len, wanted);
        }
        let radix = self.radix(len)?;
        if bounds.lo.is_some_and(|lo| lo > MAX_MOVES.into()) {
            return Ok(radix);
        }

        let few = self.local(DType::Bool);
        let choice = self.block(|code| {
            let moves = code.index(&moves);
            let limit = code.int(DType::I64, MAX_MOVES);
            let is_few = code.push(Inst::Compare(CompareOp::Le, moves, limit));
            code.push(Inst::Set(few, is_few));
            Ok(())
        })?;
        let then = self.insert(len, wanted)?;
        Ok(vec![choice, Stmt::If { cond: few, then, otherwise: radix }])
    }

    /// An insertion sort that keeps the first `wanted` entries.
    fn insert(&mut self, len: &Dim, wanted: &Dim) -> Result<Vec<Stmt>> {
        let lane = self.row.key.lane();
        let [entries, _] = self.entries;
        let inserted = Inserted {
            key: self.local(lane),
            at: self.local(DType::I64),
            moves: self.local(DType::Bool),
            kept: self.local(DType::I64),
            worst: self.local(lane),
            is_wanted: self.local(DType::Bool),
        };
        let each = self.repeat(len, |this, i| {
            let choice = this.block(|code| {
                let key = code.load(entries.keys, i);
                code.push(Inst::Set(inserted.key, key));
                let worst = code.push(Inst::Get(inserted.worst));
                let is_better = code.push(Inst::Compare(CompareOp::Lt, key, worst));
                let kept = code.push(Inst::Get(inserted.kept));
                let most = code.index(wanted);
                let has_room = code.push(Inst::Compare(CompareOp::Lt, kept, most));
                let is_wanted = code.push(Inst::Binary(BinaryOp::Or, is_better, has_room));
                code.push(Inst::Set(inserted.is_wanted, is_wanted));
                Ok(())
            })?;
            let then = this.insert_entry(i, wanted, entries, &inserted)?;
            Ok(vec![choice, Stmt::If { cond: inserted.is_wanted, then, otherwise: Vec::new() }])
        })?;
        let start = [set(inserted.kept, Scalar::i64(0)), set(inserted.worst, Scalar::lowest(lane))];
        Ok(start.into_iter().chain([each]).collect())
    }

    /// Inserts entry `i`. If there are `wanted` entries, the last one is dropped.
    fn insert_entry(
        &mut self,
        i: &Dim,
        wanted: &Dim,
        entries: Entries,
        inserted: &Inserted,
    ) -> Result<Vec<Stmt>> {
        let position = self.local(DType::I64);
        let start = self.block(|code| {
            let loaded = code.load(entries.positions, i);
            code.push(Inst::Set(position, loaded));
            let at = code.push(Inst::Get(inserted.kept));
            code.push(Inst::Set(inserted.at, at));
            let key = code.push(Inst::Get(inserted.key));
            compare_with_previous(code, entries, inserted, at, key);
            Ok(())
        })?;
        let step = self.block(|code| {
            move_previous(code, entries, inserted);
            Ok(())
        })?;
        let finish = self.block(|code| {
            let at = code.push(Inst::Get(inserted.at));
            let to = code.slot(at);
            let key = code.push(Inst::Get(inserted.key));
            code.store(entries.keys, &to, key);
            let position = code.push(Inst::Get(position));
            code.store(entries.positions, &to, position);

            let old = code.push(Inst::Get(inserted.kept));
            let one = code.int(DType::I64, 1);
            let more = code.push(Inst::Binary(BinaryOp::Add, old, one));
            let most = code.index(wanted);
            let new = code.push(Inst::Binary(BinaryOp::Min, more, most));
            code.push(Inst::Set(inserted.kept, new));
            let last = previous(code, new);
            let worst = code.load(entries.keys, &last);
            code.push(Inst::Set(inserted.worst, worst));
            Ok(())
        })?;
        Ok(vec![start, Stmt::While { cond: inserted.moves, body: vec![step] }, finish])
    }

    /// A radix sort of the first `len` entries: stable passes over the bytes of the keys, the lowest first. Two passes
    /// are skipped if the smallest and the largest key are equal in these bytes and in all higher ones.
    fn radix(&mut self, len: &Dim) -> Result<Vec<Stmt>> {
        let counts = self.scratch("counts", DType::I64, &DIGITS.into())?;
        let sum = self.local(DType::I64);
        let lane = self.row.key.lane();
        let [smallest, largest] = [self.local(lane), self.local(lane)];
        let [first, second] = self.entries;
        let mut body = vec![self.strip(len, |code, i| {
            let key = code.load(first.keys, i);
            code.push(Inst::Reduce(ReduceOp::Min, key, smallest));
            code.push(Inst::Reduce(ReduceOp::Max, key, largest));
            Ok(())
        })?];

        for pair in self.row.key.bytes().chunks_exact(2) {
            let differs = self.local(DType::Bool);
            body.push(self.block(|code| {
                let low = code.push(Inst::Get(smallest));
                let high = code.push(Inst::Get(largest));
                let mut bits = code.push(Inst::Binary(BinaryOp::Xor, low, high));
                if pair[0] > 0 {
                    let distance = code.int(lane, i64::from(8 * pair[0]));
                    bits = code.push(Inst::Binary(BinaryOp::Shr, bits, distance));
                }
                let zero = code.int(lane, 0);
                let is_different = code.push(Inst::Compare(CompareOp::Ne, bits, zero));
                code.push(Inst::Set(differs, is_different));
                Ok(())
            })?);

            let mut passes = Vec::new();
            for (byte, from, to) in [(pair[0], first, second), (pair[1], second, first)] {
                passes.extend(self.count(len, from, counts, byte)?);
                passes.extend(self.starts(counts, sum)?);
                passes.push(self.distribute(len, from, to, counts, byte)?);
            }
            body.push(Stmt::If { cond: differs, then: passes, otherwise: Vec::new() });
        }
        Ok(body)
    }

    /// Counts the entries with each digit.
    fn count(&mut self, len: &Dim, from: Entries, counts: BufferId, byte: u32) -> Result<Vec<Stmt>> {
        let clear = self.repeat(&DIGITS.into(), |this, digit| {
            let block = this.block(|code| {
                let zero = code.int(DType::I64, 0);
                code.store(counts, digit, zero);
                Ok(())
            })?;
            Ok(vec![block])
        })?;
        let count = self.repeat(len, |this, i| {
            let block = this.block(|code| {
                let key = code.load(from.keys, i);
                let digit = digit(code, key, byte);
                let old = code.load(counts, &digit);
                let one = code.int(DType::I64, 1);
                let new = code.push(Inst::Binary(BinaryOp::Add, old, one));
                code.store(counts, &digit, new);
                Ok(())
            })?;
            Ok(vec![block])
        })?;
        Ok(vec![clear, count])
    }

    /// Replaces each count by the index of the first entry with this digit.
    fn starts(&mut self, counts: BufferId, sum: Local) -> Result<Vec<Stmt>> {
        let each = self.repeat(&DIGITS.into(), |this, digit| {
            let block = this.block(|code| {
                let count = code.load(counts, digit);
                let before = code.push(Inst::Get(sum));
                code.store(counts, digit, before);
                let after = code.push(Inst::Binary(BinaryOp::Add, before, count));
                code.push(Inst::Set(sum, after));
                Ok(())
            })?;
            Ok(vec![block])
        })?;
        Ok(vec![set(sum, Scalar::i64(0)), each])
    }

    /// Moves each entry behind those with smaller digits, and behind earlier ones with an equal digit.
    fn distribute(
        &mut self,
        len: &Dim,
        from: Entries,
        to: Entries,
        counts: BufferId,
        byte: u32,
    ) -> Result<Stmt> {
        self.repeat(len, |this, i| {
            let block = this.block(|code| {
                let key = code.load(from.keys, i);
                let position = code.load(from.positions, i);
                let digit = digit(code, key, byte);
                let at = code.load(counts, &digit);
                let one = code.int(DType::I64, 1);
                let next = code.push(Inst::Binary(BinaryOp::Add, at, one));
                code.store(counts, &digit, next);
                let place = code.slot(at);
                code.store(to.keys, &place, key);
                code.store(to.positions, &place, position);
                Ok(())
            })?;
            Ok(vec![block])
        })
    }
}

/// A byte of a key, as an index into the counts.
fn digit(code: &mut Code, key: Reg, byte: u32) -> Dim {
    let lane = code.row.key.lane();
    let flipped = code.row.key.flipped(byte);
    let mut digit = key;
    if byte > 0 {
        let distance = code.int(lane, i64::from(8 * byte));
        digit = code.push(Inst::Binary(BinaryOp::Shr, digit, distance));
    }
    let mask = code.int(lane, DIGITS - 1);
    digit = code.push(Inst::Binary(BinaryOp::And, digit, mask));
    if flipped != 0 {
        let flipped = code.int(lane, flipped);
        digit = code.push(Inst::Binary(BinaryOp::Xor, digit, flipped));
    }
    Dim::from(&code.inliner.bind(digit, lane, &DIGITS.into(), CONTEXT.to_string()))
}

/// The index before `at`, or 0.
fn previous(code: &mut Code, at: Reg) -> Dim {
    let one = code.int(DType::I64, 1);
    let before = code.push(Inst::Binary(BinaryOp::Sub, at, one));
    let zero = code.int(DType::I64, 0);
    let before = code.push(Inst::Binary(BinaryOp::Max, before, zero));
    code.slot(before)
}

/// Sets whether the entry before index `at` goes after the inserted one.
fn compare_with_previous(code: &mut Code, entries: Entries, inserted: &Inserted, at: Reg, key: Reg) {
    let before = previous(code, at);
    let zero = code.int(DType::I64, 0);
    let exists = code.push(Inst::Compare(CompareOp::Gt, at, zero));
    let rival = code.load(entries.keys, &before);
    let is_larger = code.push(Inst::Compare(CompareOp::Gt, rival, key));
    let moves = code.push(Inst::Binary(BinaryOp::And, exists, is_larger));
    code.push(Inst::Set(inserted.moves, moves));
}

/// Moves the entry before the inserted one behind it.
fn move_previous(code: &mut Code, entries: Entries, inserted: &Inserted) {
    let at = code.push(Inst::Get(inserted.at));
    let to = code.slot(at);
    let from = previous(code, at);
    let key = code.load(entries.keys, &from);
    code.store(entries.keys, &to, key);
    let position = code.load(entries.positions, &from);
    code.store(entries.positions, &to, position);

    let at = code.index(&from);
    code.push(Inst::Set(inserted.at, at));
    let key = code.push(Inst::Get(inserted.key));
    compare_with_previous(code, entries, inserted, at, key);
}
