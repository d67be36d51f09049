//! Tiles of a contraction on AMX tile registers: up to 32 rows by 32 columns, or 16 by 64.
//!
//! Lhs is packed by [`crate::codegen::microkernel::pack_rows`], or is bytes as they are stored. Rhs is packed in panels of 16
//! columns. For each 64 bytes of a row of lhs, a panel has 16 rows of 64 bytes, with a 32-bit element for each column. Where
//! rhs has low bf16 parts, as many rows of these follow.
//!
//! ```text
//! accumulators = 0
//! for each 64 bytes of the reduction
//!   for each part of lhs, the lowest first: accumulators += part of lhs * high rhs
//!   where rhs has low parts: accumulators += high lhs * low rhs
//! epilogue, row by row, on accumulators in memory
//! ```
//!
//! The epilogue of a tile runs between the multiplications of the next one, see [`DeferredEpilogue`].
//!
//! Every element takes the same steps in this order, whichever tile it is in and however many rows a tile has. So its bits
//! depend on the reduction alone. Registers are configured with the rows that exist, so few rows cost little.

use super::{
    deferred_epilogue::{DeferredEpilogue, Half},
    key::{AMX_ROWS, DotOp, PANEL, Rhs, TileKey},
    tile::{AMX_ALIGN, Tile, amx_accumulator_bytes},
};
use crate::codegen::vector::{
    Builder, VectorShape,
    vcode::{
        Int, IntOp, IntWidth, Mem, TILE_CONFIG, TILE_ROW_BYTES, TILE_ROWS, TILES, TileDot, TileReg, VCode,
    },
};
use crate::scalar::CompareOp;
use crate::target::LINE_BYTES;

/// Bytes of a tile register, which holds 16 rows of a panel.
const BLOCK_BYTES: i32 = (TILE_ROWS * TILE_ROW_BYTES) as i32;

/// Number of accumulators, which are the first registers. Two registers of lhs follow, then two of rhs.
const ACCUMULATORS: TileReg = 4;
/// Distance of an accumulator and the one below it, where a tile is two registers high.
const BELOW: TileReg = 2;
const LEFT: TileReg = ACCUMULATORS;
const RIGHT: TileReg = ACCUMULATORS + 2;

/// The code of a tile on an ISA of this shape.
pub(super) fn emit(key: &TileKey, shape: VectorShape) -> VCode {
    let mut b = Builder::new(shape);
    let tile = Tile::for_amx(&mut b, key);
    let amx = AmxTile::new(&mut b, key);
    let ready = b.arg(TileKey::CONFIGURED);
    b.when(CompareOp::Eq, ready, 0, |b| amx.configure(b));
    let tiles = b.arg(TileKey::TILES);
    match key.paired && !key.line_batch {
        true => amx.pair(&mut b, tiles, key, &tile),
        false => amx.tiles(&mut b, tiles, &tile),
    }
    b.finish()
}

/// The code of a microkernel that releases the tile registers.
pub fn release(shape: VectorShape) -> VCode {
    let mut b = Builder::new(shape);
    b.tile_release();
    b.finish()
}

/// The work between multiplications.
type Meanwhile<'a> = (&'a DeferredEpilogue<'a>, &'a Option<PanelPrefetch>);

/// A batch of lines of rows.
#[derive(Clone, Copy)]
struct Lines {
    slot: usize,
    /// Lines left, where two are one paired tile.
    left: Int,
}

/// The prefetch of the panels of the next tile of columns, spread over the multiplications of all tiles of rows.
struct PanelPrefetch {
    at: Int,
    end: Int,
    /// Bytes between prefetches, unless they are of consecutive cache lines.
    distance: Option<Int>,
}

impl PanelPrefetch {
    /// `None` where the tile prefetches no panels. A single tile of rows waits for its own panels all the time, so it prefetches
    /// none.
    fn new(b: &mut Builder, key: &TileKey, width: usize, tiles: Int) -> Option<PanelPrefetch> {
        if !key.prefetch_panels || key.tail {
            return None;
        }
        let (first, step) = (b.arg(TileKey::RHS), b.arg(TileKey::RHS_COLUMN));
        let skipped = b.int_op(IntOp::Mul, step, width as i32);
        let at = b.int_op(IntOp::Add, first, skipped);
        // Three multiplications of both parts take so long that half of the panels needs no prefetch.
        let parts = i32::from(key.dot.parts().rhs);
        let panels = (width as i32 / parts).max(1);
        let asked = b.int_op(IntOp::Mul, step, panels);
        let end = b.int_op(IntOp::Add, at, asked);
        b.when(CompareOp::Lt, tiles, 2, |b| b.set_copy(end, at));
        // The bytes of a panel that a step reads, divided by two or four tiles and by the prefetches of a step.
        let bytes = BLOCK_BYTES * parts / LINES_PER_STEP / 2;
        let distance = (bytes > LINE_BYTES as i32).then(|| {
            let distance = b.imm(i64::from(bytes));
            b.when(CompareOp::Ge, tiles, 4, |b| b.set_int_op(IntOp::Shr, distance, 1));
            distance
        });
        Some(PanelPrefetch { at, end, distance })
    }

    /// Prefetches the share of one step.
    fn advance(&self, b: &mut Builder) {
        b.when(CompareOp::Lt, self.at, self.end, |b| {
            let Some(distance) = self.distance else {
                for line in 0..LINES_PER_STEP as usize {
                    b.prefetch(Mem::from(self.at).plus(line * LINE_BYTES as usize));
                }
                return b.advance(self.at, LINES_PER_STEP * LINE_BYTES as i32);
            };
            for _ in 0..LINES_PER_STEP {
                b.prefetch(self.at);
                b.advance(self.at, distance);
            }
        });
    }
}

/// Cache lines to prefetch in one step of the reduction. Where more are needed, the hardware prefetcher fetches the lines that
/// follow. More prefetches would take the fill buffers that tile loads wait for.
const LINES_PER_STEP: i32 = 8;

struct AmxTile {
    product: DotOp,
    /// Loops of the reduction.
    levels: u8,
    /// Accumulators from top to bottom and from left to right.
    height: usize,
    width: usize,
    rows: Int,
    /// Both heights have as many rows; [`TileKey::PAIR_ARGS`] locates those of the second.
    pair: bool,
    lines: Option<Lines>,
    /// Bytes from row to row of lhs.
    row: Int,
    /// The accumulators in memory, and the bytes from row to row of them.
    place: Int,
    sums_row: Int,
}

impl AmxTile {
    fn new(b: &mut Builder, key: &TileKey) -> AmxTile {
        let width = key.vectors as usize * b.lanes() / PANEL;
        let height = usize::from(key.rows).div_ceil(TILE_ROWS);
        debug_assert!(width * height <= usize::from(ACCUMULATORS) && matches!(key.rhs, Rhs::Panels(_)));
        let (rows, row) = (b.arg(TileKey::TILE_ROWS), b.arg(TileKey::LHS_ROW));
        let start = b.scratch(amx_accumulator_bytes(key, b.lanes()));
        b.advance(start, AMX_ALIGN as i32 - 1);
        let place = b.int_op(IntOp::And, start, -(AMX_ALIGN as i32));
        let sums_row = b.imm((width * TILE_ROW_BYTES) as i64);
        AmxTile {
            product: key.dot,
            levels: key.levels,
            height,
            width,
            rows,
            pair: key.paired,
            lines: key
                .line_batch
                .then(|| Lines { slot: key.line_batch_slot(), left: b.arg(key.line_batch_slot()) }),
            row,
            place,
            sums_row,
        }
    }

    /// Configures the registers with the rows that exist. The configuration depends on [`TileKey::TILE_ROWS`] alone: each half
    /// of a paired tile has at most the rows of one register.
    fn configure(&self, b: &mut Builder) {
        let config = Mem::from(self.place);
        let zero = b.imm(0);
        for at in (0..TILE_CONFIG.bytes).step_by(8) {
            b.store_int(config.plus(at), zero, IntWidth::I64);
        }
        let (one, row_bytes, all) = (b.imm(1), b.imm(TILE_ROW_BYTES as i64), b.imm(TILE_ROWS as i64));
        b.store_int(config, one, IntWidth::U8);
        let full = if self.pair { 0 } else { TILE_ROWS * (self.height - 1) };
        let last = b.int_op(IntOp::Sub, self.rows, full as i32);
        for register in 0..TILES {
            b.store_int(config.plus(TILE_CONFIG.row_bytes + 2 * register), row_bytes, IntWidth::I16);
            let is_last = match register as TileReg {
                0..RIGHT if self.pair || self.height == 1 => true,
                sum @ 0..ACCUMULATORS => sum >= BELOW,
                left @ LEFT..RIGHT => left > LEFT,
                _ => false,
            };
            let rows = if is_last { last } else { all };
            b.store_int(config.plus(TILE_CONFIG.row_counts + register), rows, IntWidth::U8);
        }
        b.tile_config(self.place);
    }

    /// All tiles, line by line where there are lines. A paired tile has two lines, the last one perhaps one.
    fn tiles(&self, b: &mut Builder, tiles: Int, tile: &Tile) {
        let half_bytes = TILE_ROWS * self.width * TILE_ROW_BYTES;
        let deferred =
            DeferredEpilogue::new(b, tile, self.place, Half { rows: self.rows, bytes: half_bytes as i32 });
        tile.load_held(b);
        let lines = self.lines.map(|lines| {
            let (left, line) = (b.copy(tiles), b.copy(tile.lhs));
            let mut pairs = lines.left;
            if self.pair {
                pairs = b.int_op(IntOp::Add, pairs, 1);
                pairs = b.int_op(IntOp::Shr, pairs, 1);
            }
            b.set_int_op(IntOp::Mul, tiles, pairs);
            (left, line, lines)
        });
        let next = PanelPrefetch::new(b, tile.key, self.width, tiles);

        // One more iteration, without multiplications, runs the last epilogue.
        b.advance(tiles, 1);
        b.repeat(tiles, 1, |b| {
            b.when(CompareOp::Gt, tiles, 1, |b| self.sums(b, tile.lhs, Some((&deferred, &next))));
            deferred.flush(b);
            b.when(CompareOp::Gt, tiles, 1, |b| {
                self.store(b);
                deferred.begin(b, self.rows);
                let next = b.int_op(IntOp::Mul, self.row, self.rows);
                b.advance(tile.lhs, next);
                let Some((left, line, lines)) = lines else { return };
                b.advance(left, -1);
                b.when(CompareOp::Eq, left, 0, |b| {
                    let ends = b.imm(1);
                    let step = b.arg(lines.slot + 1);
                    b.advance(line, step);
                    if self.pair {
                        b.when(CompareOp::Gt, lines.left, 1, |b| b.advance(ends, 1));
                        b.advance(line, step);
                        b.advance(lines.left, -2);
                    }
                    deferred.end_lines(b, ends);
                    b.set_copy(tile.lhs, line);
                    let all = b.arg(TileKey::TILES);
                    b.set_copy(left, all);
                });
            });
        });
    }

    /// Paired tiles.
    fn pair(&self, b: &mut Builder, tiles: Int, key: &TileKey, tile: &Tile) {
        b.repeat(tiles, 1, |b| {
            self.sums(b, tile.lhs, None);
            self.store(b);
            let (rows, place) = (b.copy(self.rows), b.copy(self.place));
            tile.load_held(b);
            tile.epilogue_rows(b, place, rows);
            self.second_half(b, key, tile);
        });
    }

    /// Multiplies the tile whose rows begin at `a`, with other work in between.
    fn sums(&self, b: &mut Builder, a: Int, meanwhile: Option<Meanwhile>) {
        let left = self.left(b, a);
        let right: Vec<Int> = self.panels(b);
        self.start(b, &right);
        let stride = b.imm(TILE_ROW_BYTES as i64);
        self.level(b, self.levels - 1, (&left, &right), stride, meanwhile);
    }

    /// Stores the accumulators to memory.
    fn store(&self, b: &mut Builder) {
        for (below, beside) in self.places() {
            let at = (below * TILE_ROWS * self.width + beside) * TILE_ROW_BYTES;
            b.tile_store(Mem::from(self.place).plus(at), self.sums_row, sum(below, beside));
        }
    }

    /// The rows and columns of the accumulators.
    fn places(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let width = self.width;
        (0..self.height).flat_map(move |below| (0..width).map(move |beside| (below, beside)))
    }

    /// Loop `number` of the reduction; all pointers advance.
    fn level(
        &self,
        b: &mut Builder,
        number: u8,
        factors: (&[Vec<Int>], &[Int]),
        stride: Int,
        meanwhile: Option<Meanwhile>,
    ) {
        let (left, right) = factors;
        let count = b.arg(TileKey::level(number));
        if number > 0 {
            return b.repeat(count, 1, |b| {
                self.level(b, number - 1, factors, stride, meanwhile);
                let step = b.arg(TileKey::level(number) + 1);
                left.iter().flatten().for_each(|pointer| b.advance(*pointer, step));
            });
        }
        let block = BLOCK_BYTES * i32::from(self.product.parts().rhs);
        b.repeat(count, 1, |b| {
            match self.height {
                1 => self.flat(b, &left[0], right, stride),
                _ => self.square(b, left, right, stride),
            }
            for pointer in left.iter().flatten() {
                b.advance(*pointer, TILE_ROW_BYTES as i32);
            }
            right.iter().for_each(|pointer| b.advance(*pointer, block));
            if let Some((deferred, next)) = meanwhile {
                if let Some(next) = next {
                    next.advance(b);
                }
                deferred.advance(b);
            }
        });
    }

    /// The epilogue of the second half of a paired tile.
    fn second_half(&self, b: &mut Builder, key: &TileKey, tile: &Tile) {
        let other = b.arg(TileKey::PAIR_ARGS);
        for (stream, &pointer) in tile.streams.iter().enumerate() {
            let place = Mem::from(other).plus(8 * key.stream(stream as u32));
            let first = b.load_int(place, IntWidth::I64);
            b.set_copy(pointer, first);
        }
        let bytes = TILE_ROWS * self.width * TILE_ROW_BYTES;
        let place = b.int_op(IntOp::Add, self.place, bytes as i32);
        let rows = b.copy(self.rows);
        tile.load_held(b);
        tile.epilogue_rows(b, place, rows);
    }

    /// Sets the accumulators to zero, or to the first row of each panel, which the pointers then skip.
    fn start(&self, b: &mut Builder, panels: &[Int]) {
        if self.product != DotOp::AmxBytes {
            return self.places().for_each(|(below, beside)| b.tile_zero(sum(below, beside)));
        }
        // All rows are the same one.
        let nowhere = b.imm(0);
        self.places().for_each(|(below, beside)| b.tile_load(sum(below, beside), panels[beside], nowhere));
        panels.iter().for_each(|panel| b.advance(*panel, TILE_ROW_BYTES as i32));
    }

    /// Pointers to lhs: for each height the parts of its elements, the highest first.
    fn left(&self, b: &mut Builder, a: Int) -> Vec<Vec<Int>> {
        let parts = self.product.parts().lhs;
        let plane = (parts > 1).then(|| b.arg(TileKey::LHS_PLANE));
        let second = match (self.pair, self.lines) {
            (true, Some(lines)) => {
                let second = b.copy(a);
                b.when(CompareOp::Gt, lines.left, 1, |b| {
                    let step = b.arg(lines.slot + 1);
                    b.advance(second, step);
                });
                second
            }
            (true, None) => {
                let other = b.arg(TileKey::PAIR_ARGS);
                b.load_int(Mem::from(other).plus(8 * TileKey::LHS), IntWidth::I64)
            }
            (false, _) => {
                let skipped = b.int_op(IntOp::Mul, self.row, TILE_ROWS as i32);
                b.int_op(IntOp::Add, a, skipped)
            }
        };
        (0..self.height)
            .map(|below| {
                let high = b.copy(if below == 0 { a } else { second });
                let mut pointers = vec![high];
                for part in 1..usize::from(parts) {
                    let plane = plane.expect("there are several");
                    pointers.push(b.int_op(IntOp::Add, pointers[part - 1], plane));
                }
                pointers
            })
            .collect()
    }

    /// Pointers to the panels.
    fn panels(&self, b: &mut Builder) -> Vec<Int> {
        let (first, step) = (b.arg(TileKey::RHS), b.arg(TileKey::RHS_COLUMN));
        let mut panels = vec![first];
        for beside in 1..self.width {
            let next = b.int_op(IntOp::Add, panels[beside - 1], step);
            panels.push(next);
        }
        panels
    }

    /// The instruction that multiplies.
    fn unit(&self) -> TileDot {
        if self.product == DotOp::AmxBytes { TileDot::Bytes } else { TileDot::Bf16 }
    }

    /// Multiplies one register of rows with all panels. Lhs has two registers, so two of its parts are loaded at a time.
    fn flat(&self, b: &mut Builder, left: &[Int], right: &[Int], stride: Int) {
        let (unit, has_low) = (self.unit(), self.product.parts().rhs > 1);
        let parts: Vec<usize> = (0..left.len()).rev().collect();
        for two in parts.chunks(usize::from(RIGHT - LEFT)) {
            let held = || (LEFT..).zip(two);
            held().for_each(|(register, part)| b.tile_load(register, left[*part], self.row));
            for (beside, panel) in right.iter().enumerate() {
                let (sum, other) = (sum(0, beside), RIGHT + (beside % 2) as TileReg);
                b.tile_load(other, *panel, stride);
                held().for_each(|(register, _)| b.tile_dot(unit, sum, register, other));
                if let Some((high, _)) = held().find(|(_, part)| has_low && **part == 0) {
                    b.tile_load(other, Mem::from(*panel).plus(BLOCK_BYTES as usize), stride);
                    b.tile_dot(unit, sum, high, other);
                }
            }
        }
    }

    /// Multiplies two registers of rows with two panels.
    fn square(&self, b: &mut Builder, left: &[Vec<Int>], right: &[Int], stride: Int) {
        let load_left = |b: &mut Builder, part: usize| {
            for (below, pointers) in left.iter().enumerate() {
                b.tile_load(LEFT + below as TileReg, pointers[part], self.row);
            }
        };
        let load_right = |b: &mut Builder, bytes: usize| {
            for (beside, panel) in right.iter().enumerate() {
                b.tile_load(RIGHT + beside as TileReg, Mem::from(*panel).plus(bytes), stride);
            }
        };
        let multiply = |b: &mut Builder| {
            for (below, beside) in self.places() {
                let (x, y) = (LEFT + below as TileReg, RIGHT + beside as TileReg);
                b.tile_dot(self.unit(), sum(below, beside), x, y);
            }
        };
        load_right(b, 0);
        for part in (0..left[0].len()).rev() {
            load_left(b, part);
            multiply(b);
        }
        if self.product.parts().rhs > 1 {
            load_right(b, BLOCK_BYTES as usize);
            multiply(b);
        }
    }
}

/// The accumulator at this row and column.
fn sum(below: usize, beside: usize) -> TileReg {
    below as TileReg * BELOW + beside as TileReg
}

/// Largest number of columns of a tile of `rows` rows.
pub fn amx_columns(rows: usize) -> usize {
    if rows > AMX_ROWS / 2 { 2 * PANEL } else { 4 * PANEL }
}
