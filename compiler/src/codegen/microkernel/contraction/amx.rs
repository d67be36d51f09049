//! Tiles of a contraction on tile registers: up to 32 rows by 32 columns, or 16 by 64.
//!
//! The left factor is laid out by [`crate::codegen::leaf::factors`], or lies as bytes; the right one is packed in panels of
//! 16 columns: for each 64 bytes of a row of the left factor 16 rows of 64 bytes, a 32-bit element for each column, and
//! where there are low bf16 as many rows of them behind.
//!
//! ```text
//! sums = 0
//! for each 64 bytes of the reduction
//!   for each part of A, the lowest first: sums += part of A * high B
//!   where B has low ones: sums += high A * low B
//! epilogue, row by row, on sums in memory
//! ```
//!
//! The epilogue of a tile runs while the next one is multiplied, some rows in each step of the reduction: the two use
//! different units of the machine.
//!
//! Every element's sum takes the same steps in this order, whichever tile it is in and however many rows a tile has: so
//! its bits depend on the reduction alone. Registers have the rows that there are, so that few rows cost few.

use super::{
    DotOp, PANEL, Tile, TileKey,
    deferred_epilogue::DeferredEpilogue,
    key::{AMX_ROWS, Rhs},
};
use crate::codegen::vector::{
    Builder, VectorShape,
    vcode::{
        Int, IntOp, IntWidth, Mem, TILE_CONFIG, TILE_ROW_BYTES, TILE_ROWS, TILES, TileDot, TileReg, VCode,
    },
};
use crate::scalar::CompareOp;
use crate::target::LINE_BYTES;

/// Bytes of a register, which is what a part of a panel takes.
const BLOCK_BYTES: i32 = (TILE_ROWS * TILE_ROW_BYTES) as i32;

/// Registers of sums: the first ones. Two of the left factor follow, then two of the right one.
const SUMS: TileReg = 4;
/// Registers from those of sums to those below them, where there are two heights.
const BELOW: TileReg = 2;
const LEFT: TileReg = SUMS;
const RIGHT: TileReg = SUMS + 2;

/// What the sums lie aligned to in memory.
const ALIGN: usize = 64;

/// The leaf's code on an ISA of this shape.
pub(super) fn emit(key: &TileKey, shape: VectorShape) -> VCode {
    let mut b = Builder::new(shape);
    let tile = Tile::for_matrix(&mut b, key);
    let matrix = Matrix::new(&mut b, key);
    let ready = b.arg(TileKey::CONFIGURED);
    b.when(CompareOp::Eq, ready, 0, |b| matrix.configure(b));
    let tiles = b.arg(TileKey::TILES);
    match key.paired && !key.line_batch {
        true => matrix.pair(&mut b, tiles, key, &tile),
        false => matrix.tiles(&mut b, tiles, &tile),
    }
    b.finish()
}

/// The code of a leaf that ends the use of tile registers.
pub fn release(shape: VectorShape) -> VCode {
    let mut b = Builder::new(shape);
    b.tile_release();
    b.finish()
}

/// Bytes of memory that the sums of a tile take, wherever they begin.
pub(super) fn sums_bytes(key: &TileKey, lanes: usize) -> usize {
    usize::from(key.rows) * usize::from(key.vectors) * 4 * lanes + ALIGN
}

/// What is done beside multiplying.
type Meanwhile<'a> = (&'a DeferredEpilogue<'a>, &'a Option<Next>);

/// Lines that rows are in.
#[derive(Clone, Copy)]
struct Lines {
    slot: usize,
    /// Those that are left, where they are in pairs.
    left: Int,
}

/// The panels of the next tile of columns, which are asked for once, at an even pace while all tiles of rows are multiplied.
struct Next {
    at: Int,
    end: Int,
    /// Bytes from one line that is asked for to the next, unless that is the next line.
    distance: Option<Int>,
}

impl Next {
    /// None in a leaf that asks for nothing. A single tile of rows waits for its own panels all the time.
    fn new(b: &mut Builder, key: &TileKey, width: usize, tiles: Int) -> Option<Next> {
        if !key.prefetch_panels || key.tail {
            return None;
        }
        let (first, step) = (b.arg(TileKey::RHS), b.arg(TileKey::RHS_COLUMN));
        let skipped = b.int_op(IntOp::Mul, step, width as i32);
        let at = b.int_op(IntOp::Add, first, skipped);
        // Three products of both parts take so long that half of the panels comes in time by itself.
        let parts = i32::from(key.dot.parts().rhs);
        let panels = (width as i32 / parts).max(1);
        let asked = b.int_op(IntOp::Mul, step, panels);
        let end = b.int_op(IntOp::Add, at, asked);
        b.when(CompareOp::Lt, tiles, 2, |b| b.set_copy(end, at));
        // What a step multiplies with of a panel, divided among two or four tiles and the lines that it asks for.
        let bytes = BLOCK_BYTES * parts / LINES_MEANWHILE / 2;
        let distance = (bytes > LINE_BYTES as i32).then(|| {
            let distance = b.imm(i64::from(bytes));
            b.when(CompareOp::Ge, tiles, 4, |b| b.set_int_op(IntOp::Shr, distance, 1));
            distance
        });
        Some(Next { at, end, distance })
    }

    /// Asks for some more of them.
    fn some(&self, b: &mut Builder) {
        b.when(CompareOp::Lt, self.at, self.end, |b| {
            let Some(distance) = self.distance else {
                for line in 0..LINES_MEANWHILE as usize {
                    b.prefetch(Mem::from(self.at).plus(line * LINE_BYTES as usize));
                }
                return b.advance(self.at, LINES_MEANWHILE * LINE_BYTES as i32);
            };
            for _ in 0..LINES_MEANWHILE {
                b.prefetch(self.at);
                b.advance(self.at, distance);
            }
        });
    }
}

/// Lines that are asked for while registers multiply once. Where more are needed these are not all: the machine fetches
/// what lies behind them by itself, and asking for all takes the buffers that loads of tiles wait for.
const LINES_MEANWHILE: i32 = 8;

struct Matrix {
    product: DotOp,
    /// Loops of the reduction.
    levels: u8,
    /// Registers of sums below and beside one another.
    height: usize,
    width: usize,
    rows: Int,
    /// Both heights have as many, those of the second where the other argument block says.
    pair: bool,
    lines: Option<Lines>,
    /// Distance of the left factor's rows.
    row: Int,
    /// Where the sums go, and the distance of their rows.
    place: Int,
    sums_row: Int,
}

impl Matrix {
    fn new(b: &mut Builder, key: &TileKey) -> Matrix {
        let width = key.vectors as usize * b.lanes() / PANEL;
        let height = usize::from(key.rows).div_ceil(TILE_ROWS);
        debug_assert!(width * height <= usize::from(SUMS) && matches!(key.rhs, Rhs::Panels(_)));
        let (rows, row) = (b.arg(TileKey::TILE_ROWS), b.arg(TileKey::LHS_ROW));
        let start = b.scratch(sums_bytes(key, b.lanes()));
        b.advance(start, ALIGN as i32 - 1);
        let place = b.int_op(IntOp::And, start, -(ALIGN as i32));
        let sums_row = b.imm((width * TILE_ROW_BYTES) as i64);
        Matrix {
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

    /// Gives the registers as many rows as there are. What they get depends on [`TileKey::TILE_ROWS`] alone: a pair has no
    /// more rows than a register, and so the registers of a tile of one.
    fn configure(&self, b: &mut Builder) {
        let (bytes, row_bytes_at, rows_at) = TILE_CONFIG;
        let config = Mem::from(self.place);
        let zero = b.imm(0);
        for at in (0..bytes).step_by(8) {
            b.store_int(config.plus(at), zero, IntWidth::I64);
        }
        let (one, row_bytes, all) = (b.imm(1), b.imm(TILE_ROW_BYTES as i64), b.imm(TILE_ROWS as i64));
        b.store_int(config, one, IntWidth::U8);
        let full = if self.pair { 0 } else { TILE_ROWS * (self.height - 1) };
        let last = b.int_op(IntOp::Sub, self.rows, full as i32);
        for register in 0..TILES {
            b.store_int(config.plus(row_bytes_at + 2 * register), row_bytes, IntWidth::I16);
            let is_last = match register as TileReg {
                0..RIGHT if self.pair || self.height == 1 => true,
                sum @ 0..SUMS => sum >= BELOW,
                left @ LEFT..RIGHT => left > LEFT,
                _ => false,
            };
            let rows = if is_last { last } else { all };
            b.store_int(config.plus(rows_at + register), rows, IntWidth::U8);
        }
        b.tile_config(self.place);
    }

    /// All tiles, line by line where there are lines; a pair is of two lines, the last one perhaps of one.
    fn tiles(&self, b: &mut Builder, tiles: Int, tile: &Tile) {
        let half_bytes = TILE_ROWS * self.width * TILE_ROW_BYTES;
        let due = DeferredEpilogue::nothing(b, tile, self.place, (self.rows, half_bytes as i32));
        tile.load_kept(b);
        let lines = self.lines.map(|lines| {
            let (left, line) = (b.copy(tiles), b.copy(tile.a));
            let mut pairs = lines.left;
            if self.pair {
                pairs = b.int_op(IntOp::Add, pairs, 1);
                pairs = b.int_op(IntOp::Shr, pairs, 1);
            }
            b.set_int_op(IntOp::Mul, tiles, pairs);
            (left, line, lines)
        });
        let next = Next::new(b, tile.key, self.width, tiles);
        // One round more, which multiplies nothing, for the last epilogue.
        b.advance(tiles, 1);
        b.repeat(tiles, 1, |b| {
            b.when(CompareOp::Gt, tiles, 1, |b| self.sums(b, tile.a, Some((&due, &next))));
            due.all(b);
            b.when(CompareOp::Gt, tiles, 1, |b| {
                self.store(b);
                due.begin(b, self.rows);
                let next = b.int_op(IntOp::Mul, self.row, self.rows);
                b.advance(tile.a, next);
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
                    due.end_lines(b, ends);
                    b.set_copy(tile.a, line);
                    let all = b.arg(TileKey::TILES);
                    b.set_copy(left, all);
                });
            });
        });
    }

    /// Tiles whose halves are apart.
    fn pair(&self, b: &mut Builder, tiles: Int, key: &TileKey, tile: &Tile) {
        b.repeat(tiles, 1, |b| {
            self.sums(b, tile.a, None);
            self.store(b);
            let (rows, place) = (b.copy(self.rows), b.copy(self.place));
            tile.load_kept(b);
            tile.epilogue_rows(b, place, rows);
            self.second_half(b, key, tile);
        });
    }

    /// Computes the sums of the tile whose rows begin at `a`, and does something else meanwhile.
    fn sums(&self, b: &mut Builder, a: Int, meanwhile: Option<Meanwhile>) {
        let left = self.left(b, a);
        let right: Vec<Int> = self.panels(b);
        self.start(b, &right);
        let stride = b.imm(TILE_ROW_BYTES as i64);
        self.level(b, self.levels - 1, (&left, &right), stride, meanwhile);
    }

    /// Puts the sums into memory.
    fn store(&self, b: &mut Builder) {
        for (below, beside) in self.places() {
            let at = (below * TILE_ROWS * self.width + beside) * TILE_ROW_BYTES;
            b.tile_store(Mem::from(self.place).plus(at), self.sums_row, sum(below, beside));
        }
    }

    /// How far below and beside the first one the registers of sums stand.
    fn places(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let width = self.width;
        (0..self.height).flat_map(move |below| (0..width).map(move |beside| (below, beside)))
    }

    /// Loop `number` of the reduction; all pointers run on.
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
            if let Some((due, next)) = meanwhile {
                if let Some(next) = next {
                    next.some(b);
                }
                due.some(b);
            }
        });
    }

    /// The epilogue of the rows that the other argument block speaks of.
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
        tile.load_kept(b);
        tile.epilogue_rows(b, place, rows);
    }

    /// Sets the sums to zero, or to the row that each panel begins with, which the pointers then stand behind.
    fn start(&self, b: &mut Builder, panels: &[Int]) {
        if self.product != DotOp::AmxBytes {
            return self.places().for_each(|(below, beside)| b.tile_zero(sum(below, beside)));
        }
        // All rows are the same one.
        let nowhere = b.imm(0);
        self.places().for_each(|(below, beside)| b.tile_load(sum(below, beside), panels[beside], nowhere));
        panels.iter().for_each(|panel| b.advance(*panel, TILE_ROW_BYTES as i32));
    }

    /// Pointers to the left factor: for each register's height the parts of its numbers, the highest first.
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

    /// What machines multiply.
    fn unit(&self) -> TileDot {
        if self.product == DotOp::AmxBytes { TileDot::Bytes } else { TileDot::Bf16 }
    }

    /// Products of one register of rows with all panels; two parts of the rows at a time, as many as there are registers for.
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

    /// Products of two registers of rows with the panels.
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

/// The register of sums that stands so far below and beside the first one.
fn sum(below: usize, beside: usize) -> TileReg {
    below as TileReg * BELOW + beside as TileReg
}

/// Most columns of a tile of so many rows.
pub fn amx_columns(rows: usize) -> usize {
    if rows > AMX_ROWS / 2 { 2 * PANEL } else { 4 * PANEL }
}
