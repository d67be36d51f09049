//! Tiles of a contraction on AMX tile registers: up to 32 rows by 32 columns, or 16 by 64.
//!
//! Lhs is packed by [`crate::codegen::microkernel::pack_rows`], or is bytes as they are stored. Rhs is packed in
//! panels of 16 columns. For each 64 bytes of a row of lhs, a panel has 16 rows of 64 bytes, with a 32-bit element for
//! each column. If rhs has low bf16 parts, as many rows of these follow.
//!
//! ```text
//! accumulators = 0
//! for each 64 bytes of the reduction
//!   for each part of lhs, the lowest first: accumulators += part of lhs * high rhs
//!   if rhs has low parts: accumulators += high lhs * low rhs
//! epilogue, row by row, on accumulators in memory
//! ```
//!
//! The epilogue of a tile runs between the multiplications of the next one, see [`DeferredEpilogue`].
//!
//! Every element takes the same steps in this order, whichever tile it is in and however many rows a tile has. So its
//! bits depend on the reduction alone. Registers are configured with the rows that exist, so few rows cost little.

use super::{
    amx_prefetch::AmxPanelPrefetch,
    deferred_epilogue::{DeferredEpilogue, Half},
    key::{AMX_ROWS, DotOp, PANEL, Rhs, TileKey},
    tile::{AMX_ALIGN, Tile, amx_accumulator_bytes},
};
use crate::{
    codegen::vector::{
        Builder, VectorShape,
        vcode::{
            Int, IntOp, IntWidth, Mem, TILE_BYTES, TILE_CONFIG, TILE_ROW_BYTES, TILE_ROWS, TILES, TileDot,
            TileReg, VCode,
        },
    },
    scalar::CompareOp,
};

/// Number of accumulators, which are the first registers.
const ACCUMULATORS: TileReg = 4;

/// Accumulators of a row, if a tile is two registers high.
const ROW_ACCUMULATORS: TileReg = 2;

/// The first of two registers for lhs.
const LHS: TileReg = ACCUMULATORS;

/// The first of two registers for rhs.
const RHS: TileReg = ACCUMULATORS + 2;

/// The code of a tile on an ISA of this shape.
pub(super) fn emit(key: &TileKey, shape: VectorShape) -> VCode {
    let mut b = Builder::new(shape);
    let tile = Tile::for_amx(&mut b, key);
    let amx = AmxTile::new(&mut b, key);
    let is_configured = b.arg(TileKey::CONFIGURED);
    b.when(CompareOp::Eq, is_configured, 0, |b| amx.configure(b));

    let tiles = b.arg(TileKey::TILES);
    if key.paired && !key.line_batch {
        amx.paired_tiles(&mut b, tiles, key, &tile);
    } else {
        amx.tiles(&mut b, tiles, &tile);
    }
    b.finish()
}

/// The code of a microkernel that releases the tile registers.
pub(crate) fn release(shape: VectorShape) -> VCode {
    let mut b = Builder::new(shape);
    b.tile_release();
    b.finish()
}

/// Work that runs between multiplications, because it uses other units of the machine.
#[derive(Clone, Copy)]
struct Interleaved<'a> {
    deferred: &'a DeferredEpilogue<'a>,
    prefetch: Option<&'a AmxPanelPrefetch>,
}

/// Pointers to the operands at the current step of the reduction.
struct OperandPointers {
    /// For each register of rows the parts of its elements, the highest part first.
    lhs: Vec<Vec<Int>>,
    /// The panels.
    rhs: Vec<Int>,
    /// Bytes from row to row of a panel.
    rhs_row: Int,
}

/// A batch of lines, see [`TileKey::line_batch`].
#[derive(Clone, Copy)]
struct LineBatch {
    /// See [`TileKey::line_batch_slot`].
    slot: usize,
    /// The lines that have not begun. Two lines form one paired tile.
    remaining: Int,
}

/// The position in a batch of lines.
#[derive(Clone, Copy)]
struct LinePosition {
    batch: LineBatch,
    /// The tiles of the current line that have not run.
    tiles: Int,
    /// Lhs at the first row of the line.
    lhs: Int,
}

struct AmxTile {
    dot: DotOp,
    /// Loops of the reduction.
    levels: u8,
    /// Registers of rows.
    height: usize,
    /// Registers of columns, which are panels.
    width: usize,
    rows: Int,
    /// Whether the two registers of rows are independent halves with `rows` rows each. [`TileKey::PAIR_ARGS`] locates
    /// the second.
    paired: bool,
    lines: Option<LineBatch>,
    /// Bytes from row to row of lhs.
    lhs_row: Int,
    /// The accumulators in memory.
    accumulators: Int,
    /// Bytes from row to row of the accumulators.
    accumulator_row: Int,
}

impl AmxTile {
    fn new(b: &mut Builder, key: &TileKey) -> AmxTile {
        let width = key.vectors as usize * b.lanes() / PANEL;
        let height = usize::from(key.rows).div_ceil(TILE_ROWS);
        debug_assert!(width * height <= usize::from(ACCUMULATORS) && matches!(key.rhs, Rhs::Panels(_)));

        let rows = b.arg(TileKey::TILE_ROWS);
        let lhs_row = b.arg(TileKey::LHS_ROW);
        let start = b.scratch(amx_accumulator_bytes(key, b.lanes()));
        b.advance(start, AMX_ALIGN as i32 - 1);
        let accumulators = b.int_op(IntOp::And, start, -(AMX_ALIGN as i32));
        let accumulator_row = b.imm((width * TILE_ROW_BYTES) as i64);
        let lines = key.line_batch.then(|| {
            let slot = key.line_batch_slot();
            LineBatch { slot, remaining: b.arg(slot) }
        });

        AmxTile {
            dot: key.dot,
            levels: key.levels,
            height,
            width,
            rows,
            paired: key.paired,
            lines,
            lhs_row,
            accumulators,
            accumulator_row,
        }
    }

    /// Bytes of the accumulators of one register of rows.
    fn half_bytes(&self) -> i32 {
        (TILE_BYTES * self.width) as i32
    }

    /// Configures the registers with the rows that exist. The configuration depends on [`TileKey::TILE_ROWS`] alone:
    /// each half of a paired tile has at most the rows of one register.
    fn configure(&self, b: &mut Builder) {
        // The accumulators are not in use yet, so their memory holds the configuration.
        let config = Mem::from(self.accumulators);
        let zero = b.imm(0);
        for offset in (0..TILE_CONFIG.bytes).step_by(8) {
            b.store_int(config.plus(offset), zero, IntWidth::I64);
        }

        let one = b.imm(1);
        let row_bytes = b.imm(TILE_ROW_BYTES as i64);
        let all_rows = b.imm(TILE_ROWS as i64);
        b.store_int(config, one, IntWidth::U8);
        let full_rows = if self.paired { 0 } else { TILE_ROWS * (self.height - 1) };
        let last_rows = b.int_op(IntOp::Sub, self.rows, full_rows as i32);

        for register in 0..TILES {
            b.store_int(config.plus(TILE_CONFIG.row_bytes + 2 * register), row_bytes, IntWidth::I16);
            let rows = if self.is_partial(register as TileReg) { last_rows } else { all_rows };
            b.store_int(config.plus(TILE_CONFIG.row_counts + register), rows, IntWidth::U8);
        }
        b.tile_config(self.accumulators);
    }

    /// Whether a register holds the last rows of a tile, which may be fewer than a register has.
    fn is_partial(&self, register: TileReg) -> bool {
        match register {
            0..RHS if self.paired || self.height == 1 => true,
            0..ACCUMULATORS => register >= ROW_ACCUMULATORS,
            LHS..RHS => register > LHS,
            _ => false,
        }
    }

    /// All tiles, line by line if there are lines. A paired tile has two lines, except perhaps the last one.
    fn tiles(&self, b: &mut Builder, tiles: Int, tile: &Tile) {
        let half = Half { rows: self.rows, bytes: self.half_bytes() };
        let deferred = DeferredEpilogue::new(b, tile, self.accumulators, half);
        tile.load_held(b);
        let position = self.lines.map(|batch| self.first_line(b, batch, tiles, tile));
        let prefetch = AmxPanelPrefetch::new(b, tile.key, self.width, tiles);
        let interleaved = Interleaved { deferred: &deferred, prefetch: prefetch.as_ref() };

        // One more iteration, without multiplications, runs the last epilogue.
        b.advance(tiles, 1);
        b.repeat(tiles, 1, |b| {
            b.when(CompareOp::Gt, tiles, 1, |b| self.multiply(b, tile.lhs, Some(interleaved)));
            deferred.flush(b);
            b.when(CompareOp::Gt, tiles, 1, |b| {
                self.store_accumulators(b);
                deferred.begin(b, self.rows);
                let bytes = b.int_op(IntOp::Mul, self.lhs_row, self.rows);
                b.advance(tile.lhs, bytes);
                if let Some(position) = position {
                    self.next_line(b, position, tile, &deferred);
                }
            });
        });
    }

    /// The position at the first line. `tiles` counts the tiles of one line, and those of all lines afterwards.
    fn first_line(&self, b: &mut Builder, batch: LineBatch, tiles: Int, tile: &Tile) -> LinePosition {
        let position = LinePosition { batch, tiles: b.copy(tiles), lhs: b.copy(tile.lhs) };
        let mut lines = batch.remaining;
        if self.paired {
            lines = b.int_op(IntOp::Add, lines, 1);
            lines = b.int_op(IntOp::Shr, lines, 1);
        }
        b.set_int_op(IntOp::Mul, tiles, lines);
        position
    }

    /// After the last tile of a line, moves lhs to the next line, or past two lines if tiles are paired.
    fn next_line(&self, b: &mut Builder, position: LinePosition, tile: &Tile, deferred: &DeferredEpilogue) {
        let LinePosition { batch, tiles, lhs } = position;
        b.advance(tiles, -1);
        b.when(CompareOp::Eq, tiles, 0, |b| {
            let ended_lines = b.imm(1);
            let step = b.arg(batch.slot + 1);
            b.advance(lhs, step);

            if self.paired {
                b.when(CompareOp::Gt, batch.remaining, 1, |b| b.advance(ended_lines, 1));
                b.advance(lhs, step);
                b.advance(batch.remaining, -2);
            }

            deferred.end_lines(b, ended_lines);
            b.set_copy(tile.lhs, lhs);
            let line_tiles = b.arg(TileKey::TILES);
            b.set_copy(tiles, line_tiles);
        });
    }

    /// Paired tiles without a batch of lines. Their epilogue is not deferred.
    fn paired_tiles(&self, b: &mut Builder, tiles: Int, key: &TileKey, tile: &Tile) {
        b.repeat(tiles, 1, |b| {
            self.multiply(b, tile.lhs, None);
            self.store_accumulators(b);
            let rows = b.copy(self.rows);
            let accumulators = b.copy(self.accumulators);
            tile.load_held(b);
            tile.epilogue_rows(b, accumulators, rows);
            self.second_epilogue(b, key, tile);
        });
    }

    /// The epilogue of the second half of a paired tile.
    fn second_epilogue(&self, b: &mut Builder, key: &TileKey, tile: &Tile) {
        let pair_args = b.arg(TileKey::PAIR_ARGS);
        for (stream, &pointer) in tile.streams.iter().enumerate() {
            let slot = Mem::from(pair_args).plus(8 * key.stream(stream as u32));
            let first = b.load_int(slot, IntWidth::I64);
            b.set_copy(pointer, first);
        }

        let accumulators = b.int_op(IntOp::Add, self.accumulators, self.half_bytes());
        let rows = b.copy(self.rows);
        tile.load_held(b);
        tile.epilogue_rows(b, accumulators, rows);
    }

    /// Computes the accumulators of the tile whose rows begin at `lhs`.
    fn multiply(&self, b: &mut Builder, lhs: Int, interleaved: Option<Interleaved>) {
        let lhs = self.lhs_pointers(b, lhs);
        let rhs = self.panel_pointers(b);
        self.start(b, &rhs);
        let pointers = OperandPointers { lhs, rhs, rhs_row: b.imm(TILE_ROW_BYTES as i64) };
        self.level(b, self.levels - 1, &pointers, interleaved);
    }

    /// Stores the accumulators to memory.
    fn store_accumulators(&self, b: &mut Builder) {
        for (row, column) in self.positions() {
            let offset = (row * TILE_ROWS * self.width + column) * TILE_ROW_BYTES;
            b.tile_store(
                Mem::from(self.accumulators).plus(offset),
                self.accumulator_row,
                accumulator(row, column),
            );
        }
    }

    /// The rows and columns of the accumulators, in registers.
    fn positions(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let width = self.width;
        (0..self.height).flat_map(move |row| (0..width).map(move |column| (row, column)))
    }

    /// Loop `level` of the reduction. All pointers advance.
    fn level(
        &self,
        b: &mut Builder,
        level: u8,
        pointers: &OperandPointers,
        interleaved: Option<Interleaved>,
    ) {
        let count = b.arg(TileKey::level(level));
        if level == 0 {
            return b.repeat(count, 1, |b| self.step(b, pointers, interleaved));
        }
        b.repeat(count, 1, |b| {
            self.level(b, level - 1, pointers, interleaved);
            let step = b.arg(TileKey::level(level) + 1);
            pointers.lhs.iter().flatten().for_each(|pointer| b.advance(*pointer, step));
        });
    }

    /// Multiplies 64 bytes of each row of lhs.
    fn step(&self, b: &mut Builder, pointers: &OperandPointers, interleaved: Option<Interleaved>) {
        if self.height == 1 {
            self.multiply_row(b, pointers);
        } else {
            self.multiply_square(b, pointers);
        }

        for pointer in pointers.lhs.iter().flatten() {
            b.advance(*pointer, TILE_ROW_BYTES as i32);
        }
        let panel_bytes = TILE_BYTES as i32 * i32::from(self.dot.parts().rhs);
        pointers.rhs.iter().for_each(|pointer| b.advance(*pointer, panel_bytes));

        if let Some(Interleaved { deferred, prefetch }) = interleaved {
            if let Some(prefetch) = prefetch {
                prefetch.advance(b);
            }
            deferred.advance(b);
        }
    }

    /// Sets the accumulators to zero, or to the first row of each panel, which the pointers then skip.
    fn start(&self, b: &mut Builder, panels: &[Int]) {
        if self.dot != DotOp::AmxBytes {
            return self.positions().for_each(|(row, column)| b.tile_zero(accumulator(row, column)));
        }
        // A distance of 0 between rows loads the same row into all rows of a register.
        let no_distance = b.imm(0);
        for (row, column) in self.positions() {
            b.tile_load(accumulator(row, column), panels[column], no_distance);
        }
        panels.iter().for_each(|panel| b.advance(*panel, TILE_ROW_BYTES as i32));
    }

    /// See [`OperandPointers::lhs`].
    fn lhs_pointers(&self, b: &mut Builder, lhs: Int) -> Vec<Vec<Int>> {
        let parts = self.dot.parts().lhs;
        let plane = (parts > 1).then(|| b.arg(TileKey::LHS_PLANE));
        let second = self.second_register_rows(b, lhs);

        (0..self.height)
            .map(|row| {
                let high = b.copy(if row == 0 { lhs } else { second });
                let mut pointers = vec![high];
                for part in 1..usize::from(parts) {
                    let plane = plane.expect("several parts have a distance");
                    pointers.push(b.int_op(IntOp::Add, pointers[part - 1], plane));
                }
                pointers
            })
            .collect()
    }

    /// The address of the rows of lhs in the second register, given that of the rows in the first.
    fn second_register_rows(&self, b: &mut Builder, lhs: Int) -> Int {
        match (self.paired, self.lines) {
            (true, Some(lines)) => {
                // The last line may have no second half. The first one is then multiplied twice.
                let second = b.copy(lhs);
                b.when(CompareOp::Gt, lines.remaining, 1, |b| {
                    let step = b.arg(lines.slot + 1);
                    b.advance(second, step);
                });
                second
            }
            (true, None) => {
                let pair_args = b.arg(TileKey::PAIR_ARGS);
                b.load_int(Mem::from(pair_args).plus(8 * TileKey::LHS), IntWidth::I64)
            }
            (false, _) => {
                let bytes = b.int_op(IntOp::Mul, self.lhs_row, TILE_ROWS as i32);
                b.int_op(IntOp::Add, lhs, bytes)
            }
        }
    }

    /// See [`OperandPointers::rhs`].
    fn panel_pointers(&self, b: &mut Builder) -> Vec<Int> {
        let first = b.arg(TileKey::RHS);
        let step = b.arg(TileKey::RHS_COLUMN);
        let mut panels = vec![first];
        for column in 1..self.width {
            let next = b.int_op(IntOp::Add, panels[column - 1], step);
            panels.push(next);
        }
        panels
    }

    fn tile_dot(&self) -> TileDot {
        if self.dot == DotOp::AmxBytes { TileDot::Bytes } else { TileDot::Bf16 }
    }

    /// Multiplies one register of rows with all panels. Lhs has two registers, so two of its parts are loaded at a
    /// time.
    fn multiply_row(&self, b: &mut Builder, pointers: &OperandPointers) {
        let op = self.tile_dot();
        let has_low_rhs = self.dot.parts().rhs > 1;
        let lhs = &pointers.lhs[0];
        let parts: Vec<usize> = (0..lhs.len()).rev().collect();

        for loaded_parts in parts.chunks(usize::from(RHS - LHS)) {
            let loaded = || (LHS..).zip(loaded_parts);
            loaded().for_each(|(register, part)| b.tile_load(register, lhs[*part], self.lhs_row));
            for (column, panel) in pointers.rhs.iter().enumerate() {
                // Alternate registers let the load of a panel overlap the multiplication before.
                let rhs = RHS + (column % 2) as TileReg;
                let accumulator = accumulator(0, column);
                b.tile_load(rhs, *panel, pointers.rhs_row);
                loaded().for_each(|(register, _)| b.tile_dot(op, accumulator, register, rhs));

                if let Some((high_lhs, _)) = loaded().find(|(_, part)| has_low_rhs && **part == 0) {
                    b.tile_load(rhs, Mem::from(*panel).plus(TILE_BYTES), pointers.rhs_row);
                    b.tile_dot(op, accumulator, high_lhs, rhs);
                }
            }
        }
    }

    /// Multiplies two registers of rows with two panels.
    fn multiply_square(&self, b: &mut Builder, pointers: &OperandPointers) {
        let load_lhs = |b: &mut Builder, part: usize| {
            for (row, parts) in pointers.lhs.iter().enumerate() {
                b.tile_load(LHS + row as TileReg, parts[part], self.lhs_row);
            }
        };
        let load_rhs = |b: &mut Builder, offset: usize| {
            for (column, panel) in pointers.rhs.iter().enumerate() {
                b.tile_load(RHS + column as TileReg, Mem::from(*panel).plus(offset), pointers.rhs_row);
            }
        };
        let multiply = |b: &mut Builder| {
            for (row, column) in self.positions() {
                let lhs = LHS + row as TileReg;
                let rhs = RHS + column as TileReg;
                b.tile_dot(self.tile_dot(), accumulator(row, column), lhs, rhs);
            }
        };

        load_rhs(b, 0);
        for part in (0..pointers.lhs[0].len()).rev() {
            load_lhs(b, part);
            multiply(b);
        }
        // The registers of lhs hold the high part now.
        if self.dot.parts().rhs > 1 {
            load_rhs(b, TILE_BYTES);
            multiply(b);
        }
    }
}

/// The accumulator at this row and column of registers.
fn accumulator(row: usize, column: usize) -> TileReg {
    row as TileReg * ROW_ACCUMULATORS + column as TileReg
}

/// Largest number of columns of a tile of `rows` rows.
pub(crate) fn amx_columns(rows: usize) -> usize {
    if rows > AMX_ROWS / 2 { 2 * PANEL } else { 4 * PANEL }
}
