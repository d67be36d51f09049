//! The deferred epilogue of a tile on tile registers: its rows run between the multiplications of the next tile,
//! because the two use different units of the machine.

use super::{
    key::{DotOp, TileKey},
    tile::Tile,
};
use crate::{
    codegen::vector::{
        Builder,
        vcode::{Int, IntOp},
    },
    scalar::CompareOp,
};

/// The rows of the previous tile whose epilogue has not run yet.
pub(super) struct DeferredEpilogue<'a> {
    tile: &'a Tile<'a>,
    /// The accumulators of the tile in memory.
    accumulators: Int,
    /// The accumulators of the next row.
    next: Int,
    /// Remaining rows, of one half in a paired tile.
    rows: Int,
    /// Rows that each step of the reduction finishes.
    rows_per_step: Int,
    lines: Option<LineEnds>,
}

/// The ends of lines in a batch of lines.
struct LineEnds {
    /// Number of lines that end with the remaining rows: one for each half of a paired tile.
    remaining: Int,
    /// The halves, if the tile is paired.
    half: Option<Half>,
}

/// A half of a paired tile.
#[derive(Clone, Copy)]
pub(super) struct Half {
    pub(super) rows: Int,
    /// Bytes of its accumulators.
    pub(super) bytes: i32,
}

impl<'a> DeferredEpilogue<'a> {
    /// A deferred epilogue without rows. `half` describes the halves of a paired tile.
    pub(super) fn new(
        b: &mut Builder,
        tile: &'a Tile<'a>,
        accumulators: Int,
        half: Half,
    ) -> DeferredEpilogue<'a> {
        let key = tile.key;
        let lines =
            key.line_batch.then(|| LineEnds { remaining: b.imm(0), half: key.paired.then_some(half) });
        DeferredEpilogue {
            tile,
            accumulators,
            next: b.copy(accumulators),
            rows: b.imm(0),
            rows_per_step: rows_per_step(b, key),
            lines,
        }
    }

    /// Defers the epilogue of `rows` rows. All rows of the tile before must be finished.
    pub(super) fn begin(&self, b: &mut Builder, rows: Int) {
        b.set_copy(self.next, self.accumulators);
        b.set_copy(self.rows, rows);
    }

    /// Sets how many lines end with the deferred rows.
    pub(super) fn end_lines(&self, b: &mut Builder, count: Int) {
        if let Some(lines) = &self.lines {
            b.set_copy(lines.remaining, count);
        }
    }

    /// Finishes the rows that one step of the reduction covers, if any remain.
    pub(super) fn advance(&self, b: &mut Builder) {
        b.when(CompareOp::Gt, self.rows, 0, |b| {
            let rows = b.copy(self.rows_per_step);
            b.when(CompareOp::Lt, self.rows, rows, |b| b.set_copy(rows, self.rows));
            b.set_int_op(IntOp::Sub, self.rows, rows);
            self.tile.epilogue_rows(b, self.next, rows);
            self.next_line(b);
        });
    }

    /// Finishes all remaining rows.
    pub(super) fn flush(&self, b: &mut Builder) {
        let flush_half = |b: &mut Builder| {
            self.tile.epilogue_rows(b, self.next, self.rows);
            self.next_line(b);
        };
        if self.lines.as_ref().is_none_or(|lines| lines.half.is_none()) {
            return flush_half(b);
        }
        let halves = b.imm(2);
        b.repeat(halves, 1, flush_half);
    }

    /// At the end of a line, moves the streams to the next line, and continues with the second half of a paired tile.
    fn next_line(&self, b: &mut Builder) {
        let Some(lines) = &self.lines else { return };
        let move_on = |b: &mut Builder| {
            self.tile.next_line(b);
            b.advance(lines.remaining, -1);
            let Some(half) = lines.half else { return };
            b.when(CompareOp::Gt, lines.remaining, 0, |b| {
                b.set_copy(self.rows, half.rows);
                b.set_copy(self.next, self.accumulators);
                b.advance(self.next, half.bytes);
            });
        };

        b.when(CompareOp::Eq, self.rows, 0, |b| b.when(CompareOp::Gt, lines.remaining, 0, move_on));
    }
}

/// The number of rows to finish in one step: the smallest power of two that finishes the epilogue by the end of the
/// reduction.
///
/// With few rows a step, the machine's out-of-order window holds multiplications too. Multiplications of bytes take so
/// short that all rows run in one step.
fn rows_per_step(b: &mut Builder, key: &TileKey) -> Int {
    if key.dot == DotOp::AmxBytes {
        return b.imm(key.rows.into());
    }
    let covered = b.arg(TileKey::level(0));
    for level in 1..key.levels {
        let count = b.arg(TileKey::level(level));
        b.set_int_op(IntOp::Mul, covered, count);
    }

    // Double the rows of a step until the steps cover all rows.
    let rows = b.imm(1);
    for _ in 0..key.rows.ilog2() {
        b.when(CompareOp::Lt, covered, i32::from(key.rows), |b| {
            b.set_int_op(IntOp::Add, covered, covered);
            b.set_int_op(IntOp::Add, rows, rows);
        });
    }
    rows
}
