//! The epilogue of a tile on tile registers, whose rows run in the steps of the next tile's reduction: the two use
//! different units of the machine.

use super::{DotOp, Tile, TileKey};
use crate::{
    codegen::vector::{
        Builder,
        vcode::{Int, IntOp},
    },
    scalar::CompareOp,
};

/// What is left to do of a tile that was multiplied.
pub(super) struct DeferredEpilogue<'a> {
    tile: &'a Tile<'a>,
    /// Where all sums are.
    sums: Int,
    /// Where those are from the first row on that is not finished, and how many rows are not; of a pair, rows of one half.
    place: Int,
    rows: Int,
    /// How many are finished in each step of the reduction.
    pace: Int,
    ends: Option<Ends>,
}

/// What is done at the end of lines.
struct Ends {
    /// How many lines end with the rows that are left: with each half of a pair one.
    left: Int,
    /// Rows of a half, and bytes of its sums.
    half: Option<(Int, i32)>,
}

impl<'a> DeferredEpilogue<'a> {
    /// Nothing yet. A pair has so many rows in each half, whose sums take so many bytes.
    pub(super) fn nothing(
        b: &mut Builder,
        tile: &'a Tile<'a>,
        sums: Int,
        half: (Int, i32),
    ) -> DeferredEpilogue<'a> {
        let (lines, pair) = (tile.key.line_batch, tile.key.paired);
        let ends = lines.then(|| Ends { left: b.imm(0), half: pair.then_some(half) });
        DeferredEpilogue { tile, sums, place: b.copy(sums), rows: b.imm(0), pace: pace(b, tile.key), ends }
    }

    /// So many rows of sums are due; nothing may have been left.
    pub(super) fn begin(&self, b: &mut Builder, rows: Int) {
        b.set_copy(self.place, self.sums);
        b.set_copy(self.rows, rows);
    }

    /// So many lines end with them.
    pub(super) fn end_lines(&self, b: &mut Builder, count: Int) {
        if let Some(ends) = &self.ends {
            b.set_copy(ends.left, count);
        }
    }

    /// Finishes some rows, if any are left.
    pub(super) fn some(&self, b: &mut Builder) {
        b.when(CompareOp::Gt, self.rows, 0, |b| {
            let rows = b.copy(self.pace);
            b.when(CompareOp::Lt, self.rows, rows, |b| b.set_copy(rows, self.rows));
            b.set_int_op(IntOp::Sub, self.rows, rows);
            self.tile.epilogue_rows(b, self.place, rows);
            self.turn(b);
        });
    }

    /// Finishes what is left.
    pub(super) fn all(&self, b: &mut Builder) {
        let all = |b: &mut Builder| {
            self.tile.epilogue_rows(b, self.place, self.rows);
            self.turn(b);
        };
        if self.ends.as_ref().is_none_or(|ends| ends.half.is_none()) {
            return all(b);
        }
        let halves = b.imm(2);
        b.repeat(halves, 1, all);
    }

    /// At the end of a line, goes on to the next one.
    fn turn(&self, b: &mut Builder) {
        let Some(ends) = &self.ends else { return };
        let turn = |b: &mut Builder| {
            self.tile.next_line(b);
            b.advance(ends.left, -1);
            let Some((rows, bytes)) = ends.half else { return };
            b.when(CompareOp::Gt, ends.left, 0, |b| {
                b.set_copy(self.rows, rows);
                b.set_copy(self.place, self.sums);
                b.advance(self.place, bytes);
            });
        };
        b.when(CompareOp::Eq, self.rows, 0, |b| b.when(CompareOp::Gt, ends.left, 0, turn));
    }
}

/// As few rows as can be for all to be finished by the end of the reduction: products stand behind them in the window of what
/// a machine looks at. Of bytes all rows: products of these are over so soon that the epilogue is what takes long.
fn pace(b: &mut Builder, key: &TileKey) -> Int {
    if key.dot == DotOp::AmxBytes {
        return b.imm(key.rows.into());
    }
    let covered = b.arg(TileKey::level(0));
    for level in 1..key.levels {
        let count = b.arg(TileKey::level(level));
        b.set_int_op(IntOp::Mul, covered, count);
    }
    let rows = b.imm(1);
    for _ in 0..key.rows.ilog2() {
        b.when(CompareOp::Lt, covered, i32::from(key.rows), |b| {
            b.set_int_op(IntOp::Add, covered, covered);
            b.set_int_op(IntOp::Add, rows, rows);
        });
    }
    rows
}
