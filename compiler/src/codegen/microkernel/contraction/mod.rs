//! The contraction leaf: tiles of `rows` rows by `vectors` vectors of columns, one below the other.
//!
//! For each tile the sums start at zero and stay in registers while the reduction runs: nested loops over reduction
//! segments, the innermost over consecutive `k`. One step of it loads a row of B, broadcasts one element of A for each
//! tile row, and multiplies and adds. Then the epilogue runs on the sums, vector by vector, and the pointers move on to
//! the next tile.
//!
//! Every element's sum runs over `k` in the one order that the nest gives, one fused step after another, from zero: so
//! its bits depend neither on the tile's shape nor on how many rows there are. A deep reduction may be cut in parts that
//! run one after another over many tiles, see [`ReductionPart`]; sums that wait are stored and loaded as they are.
//!
//! B is either packed in panels of [`PANEL`] columns, `k` after `k`, filled up with zeros, or rows in memory.
//! [`PANEL`] is a multiple of every ISA's lanes, so all ISAs share one packed constant; wide tiles read several panels.

mod amx;
mod deferred_epilogue;
mod epilogue;
mod key;

pub use amx::{amx_columns, release};
pub use key::{AMX_ROWS, DotOp, PANEL, ReductionPart, Rhs, TileKey};

use super::{memory, op::Ty};
use crate::codegen::vector::{
    Builder, VectorShape,
    vcode::{Int, IntOp, Mask, Mem, VBinary, VCode, Vector},
};
use crate::{scalar::CompareOp, target::LINE_BYTES};

/// Tiles of fewer rows read so much of B for what they compute that asking for more would hold them up.
const FEWEST_ROWS_AHEAD: u8 = 4;

/// Steps of the innermost loop that are unrolled.
const UNROLL: usize = 4;

/// Most rows of a tile on an ISA of this shape.
pub fn max_rows(shape: VectorShape) -> usize {
    // Beside the sums there are vectors of B and of A.
    (shape.registers - 4) / narrow_vectors(shape).max(2)
}

/// Vectors of columns of a tile of one panel.
pub fn narrow_vectors(shape: VectorShape) -> usize {
    PANEL / shape.lanes
}

/// Vectors of columns of the widest tile with so many rows: enough independent sums to hide the latency of a
/// multiplication and addition, as registers allow.
pub fn wide_vectors(shape: VectorShape, rows: usize, product: DotOp) -> usize {
    let wide = match (shape.registers, rows) {
        (16, 1) => 8,
        // Products that are added in a step of their own need a register.
        (16, 3) if product == DotOp::I16Pairs => 2,
        (16, 2..=3) => 4,
        (32, 1) => 8,
        (32, 2..=6) => 4,
        _ => 2,
    };
    wide.max(narrow_vectors(shape))
}

/// The leaf's code on an ISA of this shape.
pub fn emit(key: &TileKey, shape: VectorShape) -> VCode {
    if key.dot.is_amx() {
        return amx::emit(key, shape);
    }
    let mut b = Builder::new(shape);
    let tile = Tile::new(&mut b, key);
    let tiles = b.arg(TileKey::TILES);
    b.repeat(tiles, 1, |b| {
        tile.start(b);
        let (a, rhs) = (b.copy(tile.a), b.copy(tile.b));
        if let (DotOp::Vnni, Rhs::Panels(width)) = (key.dot, key.rhs) {
            b.advance(rhs, 4 * width as i32);
        }
        tile.level(b, key.levels - 1, a, rhs);
        match key.part.left() {
            Some(stream) => tile.leave(b, stream),
            None => tile.epilogue(b),
        }
        let next = b.int_op(IntOp::Mul, tile.multiples[1], i32::from(key.rows));
        b.advance(tile.a, next);
    });
    b.finish()
}

struct Tile<'a> {
    key: &'a TileKey,
    a: Int,
    /// `multiples[i]` holds `i` times A's row stride, for 1 and odd `i` that some row needs.
    multiples: Vec<Int>,
    b: Int,
    sums: Vec<Vec<Vector>>,
    streams: Vec<Int>,
    ahead: Option<Asked>,
    /// Number of columns and their mask for each vector, in tail tiles.
    parts: Vec<(Int, Mask)>,
    /// Streams that are the same for all rows, what their elements are, and the registers that hold them.
    kept: Vec<(u32, Ty, Vec<Vector>)>,
}

impl<'a> Tile<'a> {
    fn new(b: &mut Builder, key: &'a TileKey) -> Tile<'a> {
        let (a, row, rhs) = (b.arg(TileKey::LHS), b.arg(TileKey::LHS_ROW), b.arg(TileKey::RHS));
        let mut multiples = vec![row; 2];
        for odd in (3..key.rows as usize).step_by(2) {
            let previous = multiples[odd - 2];
            let twice = Mem { base: previous, index: Some((row, 2)), disp: 0 };
            let multiple = b.address(twice);
            multiples.push(row);
            multiples.push(multiple);
        }
        let sums = (0..key.rows).map(|_| (0..key.vectors).map(|_| b.vector()).collect()).collect();
        let streams = (0..key.streams.len()).map(|stream| b.arg(key.stream(stream as u32))).collect();
        let parts = if key.tail { parts(b, key) } else { Vec::new() };
        let ahead = Asked::new(b, key, rhs);
        Tile { key, a, multiples, b: rhs, sums, streams, ahead, parts, kept: Vec::new() }
    }

    /// A tile whose sums come from tile registers by way of memory.
    fn for_matrix(b: &mut Builder, key: &'a TileKey) -> Tile<'a> {
        let (a, rhs) = (b.arg(TileKey::LHS), b.arg(TileKey::RHS));
        let streams = (0..key.streams.len()).map(|stream| b.arg(key.stream(stream as u32))).collect();
        let parts = if key.tail { parts(b, key) } else { Vec::new() };
        let (multiples, sums, kept) = (Vec::new(), Vec::new(), Vec::new());
        let mut tile = Tile { key, a, multiples, b: rhs, sums, streams, ahead: None, parts, kept };
        tile.keep(b);
        tile
    }

    /// Bytes of its own memory that the epilogue keeps sums in.
    fn kept_bytes(&self, lanes: usize) -> usize {
        match self.key.dot.is_amx() {
            true => amx::sums_bytes(self.key, lanes),
            false => self.key.rows as usize * self.key.vectors as usize * 4 * lanes,
        }
    }

    /// Sets the sums to zero, or to what an earlier part left of them.
    fn start(&self, b: &mut Builder) {
        let Some(stream) = self.key.part.resumed() else {
            if self.key.dot == DotOp::Vnni {
                return self.start_from_panels(b);
            }
            let zero = b.float(0.0);
            self.sums.iter().flatten().for_each(|sum| b.set(*sum, zero));
            return;
        };
        let row = b.copy(self.streams[stream as usize]);
        let stride = b.arg(self.key.stream(stream) + 1);
        for sums in &self.sums {
            for (vector, &sum) in sums.iter().enumerate() {
                let mem = Mem::from(row).plus(4 * vector * b.lanes());
                let left = match self.parts.get(vector) {
                    None => b.load(mem),
                    Some(&(n, mask)) => b.load_first(mem, n, mask),
                };
                b.set(sum, left);
            }
            b.advance(row, stride);
        }
    }

    /// Sets the sums to what the panels begin with.
    fn start_from_panels(&self, b: &mut Builder) {
        let panels = self.panels(b, self.b);
        for vector in 0..self.key.vectors as usize {
            let first = self.load_b(b, vector, self.b, 0, &panels, None);
            self.sums.iter().for_each(|sums| b.set(sums[vector], first));
        }
    }

    /// Loop `level` of the reduction from these places on; a packed B just runs on through all levels.
    fn level(&self, b: &mut Builder, level: u8, a: Int, rhs: Int) {
        let count = b.arg(TileKey::level(level));
        if level == 0 {
            return self.innermost(b, count, a, rhs);
        }
        let packed = matches!(self.key.rhs, Rhs::Panels(_));
        b.repeat(count, 1, |b| {
            let inner_a = b.copy(a);
            let inner_b = if packed { rhs } else { b.copy(rhs) };
            self.level(b, level - 1, inner_a, inner_b);
            let step = b.arg(TileKey::level(level) + 1);
            b.advance(a, step);
            if !packed {
                let step = b.arg(TileKey::level(level) + 2);
                b.advance(rhs, step);
            }
        });
    }

    fn innermost(&self, b: &mut Builder, count: Int, a: Int, rhs: Int) {
        let a_step = (!self.key.dense).then(|| b.arg(TileKey::LHS_K));
        let b_step = (!matches!(self.key.rhs, Rhs::Panels(_))).then(|| b.arg(TileKey::RHS_K));
        let column = matches!(self.key.rhs, Rhs::Scattered).then(|| b.arg(TileKey::RHS_COLUMN));
        let panels = self.panels(b, rhs);
        for block in [UNROLL, 1] {
            b.repeat(count, block as i32, |b| {
                for k in 0..block {
                    let a_offset = if self.key.dense { 4 * k } else { 0 };
                    self.step(b, a, a_offset, rhs, k, &panels, column);
                    if let Some(step) = a_step {
                        b.advance(a, step);
                    }
                    if let Some(step) = b_step {
                        b.advance(rhs, step);
                    }
                }
                if self.key.dense {
                    b.advance(a, 4 * block as i32);
                }
                if let Rhs::Panels(width) = self.key.rhs {
                    let bytes = 4 * width as i32 * block as i32;
                    b.advance(rhs, bytes);
                    if let Some(asked) = self.ahead.filter(|_| block == UNROLL) {
                        asked.some(b, bytes, &panels);
                    }
                }
            });
        }
    }

    /// Offsets of the panels that the tile reads, but for the first one, from it: multiples of the panel stride.
    fn panels(&self, b: &mut Builder, _rhs: Int) -> Vec<Int> {
        let Rhs::Panels(width) = self.key.rhs else { return Vec::new() };
        let count = n_panels(self.key, width, b.lanes());
        let mut offsets = Vec::new();
        if count > 1 {
            let stride = b.arg(TileKey::RHS_COLUMN);
            offsets.push(stride);
            // A fourth is the second from the second by scaling; only odd multiples need a register.
            for odd in (3..count).step_by(2) {
                let previous = *offsets.last().expect("the stride itself is there");
                debug_assert!(odd < 2 * offsets.len() + 2);
                offsets.push(b.address(Mem { base: previous, index: Some((stride, 2)), disp: 0 }));
            }
        }
        offsets
    }

    fn step(
        &self,
        b: &mut Builder,
        a: Int,
        a_offset: usize,
        rhs: Int,
        k: usize,
        panels: &[Int],
        column: Option<Int>,
    ) {
        let (rows, vectors) = (self.key.rows as usize, self.key.vectors as usize);
        let free = b.shape().registers - rows * vectors;
        if vectors < free || vectors <= rows {
            let row_of_b: Vec<Vector> =
                (0..vectors).map(|vector| self.load_b(b, vector, rhs, k, panels, column)).collect();
            for row in 0..rows {
                let factor = b.broadcast(self.a_mem(a, row).plus(a_offset));
                for (sum, &other) in self.sums[row].iter().zip(&row_of_b) {
                    self.accumulate(b, *sum, factor, other);
                }
            }
            return;
        }
        let factors: Vec<Vector> =
            (0..rows).map(|row| b.broadcast(self.a_mem(a, row).plus(a_offset))).collect();
        for vector in 0..vectors {
            let other = self.load_b(b, vector, rhs, k, panels, column);
            for (row, &factor) in factors.iter().enumerate() {
                self.accumulate(b, self.sums[row][vector], factor, other);
            }
        }
    }

    /// Adds the products of two vectors to a sum.
    fn accumulate(&self, b: &mut Builder, sum: Vector, x: Vector, y: Vector) {
        match self.key.dot {
            DotOp::F32 => b.set_fma(sum, x, y),
            DotOp::I16Pairs => {
                let both = b.binary(VBinary::DotPairs, x, y);
                b.set_binary(VBinary::AddInt, sum, both);
            }
            DotOp::Vnni => b.set_dot_bytes(sum, x, y),
            DotOp::AmxBf16(_) | DotOp::AmxBytes => unreachable!("tile registers multiply these"),
        }
    }

    fn a_mem(&self, a: Int, row: usize) -> Mem {
        scaled(a, &self.multiples, row)
    }

    fn load_b(
        &self,
        b: &mut Builder,
        vector: usize,
        rhs: Int,
        k: usize,
        panels: &[Int],
        column: Option<Int>,
    ) -> Vector {
        let first = vector * b.lanes();
        match self.key.rhs {
            Rhs::Panels(width) => {
                let width = width as usize;
                let offset = 4 * (first % width) + 4 * width * k;
                b.load(panel_mem(rhs, panels, first / width).plus(offset))
            }
            Rhs::Rows => {
                let mem = Mem::from(rhs).plus(4 * first);
                match self.parts.get(vector) {
                    None => b.load(mem),
                    Some(&(n, mask)) => b.load_first(mem, n, mask),
                }
            }
            Rhs::Scattered => self.gather(b, vector, rhs, column.expect("read with the strides")),
        }
    }

    /// The columns of a vector lane by lane; those beyond the last are zero.
    fn gather(&self, b: &mut Builder, vector: usize, rhs: Int, column: Int) -> Vector {
        let skip = b.int_op(IntOp::Mul, column, (vector * b.lanes()) as i32);
        let first = b.int_op(IntOp::Add, rhs, skip);
        self.apart(b, vector, (first, column), Ty::F32)
    }

    /// The lanes of a vector of columns that are `stride` bytes apart; those beyond the last column are zero.
    fn apart(&self, b: &mut Builder, vector: usize, (first, stride): (Int, Int), ty: Ty) -> Vector {
        let Some(&(n, _)) = self.parts.get(vector) else {
            let places = b.lane_addresses(first, stride);
            return memory::load_lanes(b, places, ty);
        };
        // By way of memory, behind what the epilogue keeps there.
        let bytes = 4 * b.lanes();
        let kept = self.kept_bytes(b.lanes());
        let lanes = Mem::from(b.scratch(kept + bytes)).plus(kept);
        let zero = b.bits(0);
        b.store(lanes, zero);
        for lane in 0..b.lanes() {
            b.when(CompareOp::Gt, n, lane as i32, |b| {
                let one = memory::load_one(b, first.into(), ty);
                b.store_one(lanes.plus(4 * lane), one);
                b.advance(first, stride);
            });
        }
        b.load(lanes)
    }
}

/// Panels that a tile reads, of this many columns each.
fn n_panels(key: &TileKey, width: u32, lanes: usize) -> usize {
    (key.vectors as usize * lanes).div_ceil(width as usize)
}

/// The panels of the next tile of columns, of which each tile of rows asks for its part: they come from far away, and so
/// have as long for it as all of these tiles take.
#[derive(Clone, Copy)]
struct Asked {
    /// What is asked for next.
    at: Int,
    /// Unrolled rounds of the innermost loop until then.
    rounds: Int,
    /// Panels of a tile.
    panels: usize,
}

impl Asked {
    /// None in a tile that asks for nothing.
    fn new(b: &mut Builder, key: &TileKey, rhs: Int) -> Option<Asked> {
        let Rhs::Panels(width) = key.rhs else { return None };
        if !key.prefetch_panels || key.rows < FEWEST_ROWS_AHEAD || key.tail {
            return None;
        }
        let panels = n_panels(key, width, b.lanes());
        let stride = b.arg(TileKey::RHS_COLUMN);
        let skip = b.int_op(IntOp::Mul, stride, panels as i32);
        let at = b.int_op(IntOp::Add, rhs, skip);
        let skipped = b.arg(TileKey::PREFETCH_SKIP);
        b.advance(at, skipped);
        Some(Asked { at, rounds: b.arg(TileKey::PREFETCH_ROUNDS), panels })
    }

    /// An unrolled round goes by that reads so many bytes of each panel: in one of [`TileKey::PREFETCH_ROUNDS`], asks for as many of
    /// the next.
    fn some(&self, b: &mut Builder, bytes: i32, offsets: &[Int]) {
        b.advance(self.rounds, -1);
        b.when(CompareOp::Le, self.rounds, 0, |b| {
            for line in (0..bytes as usize).step_by(LINE_BYTES as usize) {
                for panel in 0..self.panels {
                    b.prefetch(panel_mem(self.at, offsets, panel).plus(line));
                }
            }
            b.advance(self.at, bytes);
            let rounds = b.arg(TileKey::PREFETCH_ROUNDS);
            b.set_copy(self.rounds, rounds);
        });
    }
}

/// Columns left for each vector of a tail tile, with their masks.
fn parts(b: &mut Builder, key: &TileKey) -> Vec<(Int, Mask)> {
    let columns = b.arg(TileKey::COLUMNS);
    (0..key.vectors as usize)
        .map(|vector| {
            let left = b.int_op(IntOp::Sub, columns, (vector * b.lanes()) as i32);
            (left, b.mask_first(left))
        })
        .collect()
}

/// `base + row * stride`, given the odd multiples of the stride.
fn scaled(base: Int, multiples: &[Int], row: usize) -> Mem {
    if row == 0 {
        return base.into();
    }
    let shift = row.trailing_zeros().min(3);
    let scale = 1u8 << shift;
    Mem { base, index: Some((multiples[row >> shift], scale)), disp: 0 }
}

/// `base + panel * stride`, given the odd multiples of the stride.
fn panel_mem(base: Int, offsets: &[Int], panel: usize) -> Mem {
    if panel == 0 {
        return base.into();
    }
    let shift = panel.trailing_zeros();
    Mem { base, index: Some((offsets[(panel >> shift) / 2], 1 << shift)), disp: 0 }
}
