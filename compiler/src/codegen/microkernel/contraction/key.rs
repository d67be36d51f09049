//! The key of a tile and the layout of its argument block.

use crate::{
    codegen::microkernel::op::{Body, StreamStep},
    scalar::precision::Bf16Parts,
};

/// Columns of a panel.
pub const PANEL: usize = 16;

/// Largest number of rows of a tile on tile registers.
pub const AMX_ROWS: usize = 32;

/// The form of rhs in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rhs {
    /// Packed panels of this many columns, see [`PANEL`].
    Panels(u32),
    /// Columns are consecutive, `k` by any stride.
    Rows,
    /// Columns and `k` by any stride.
    Scattered,
}

/// The multiplication of two 32-bit lanes and its accumulation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DotOp {
    /// Floats.
    F32,
    /// Pairs of signed 16-bit integers: the sum of both products, into 32 bits.
    I16Pairs,
    /// Four bytes, those of A without a sign, those of B with one: the sum of all products, into 32 bits. Each panel begins
    /// with a row that the accumulators start from.
    Vnni,
    /// Pairs of bf16 on tile registers; elements have this number of parts.
    AmxBf16(Bf16Parts),
    /// Four bytes on tile registers, those of A without a sign, those of B with one. Panels begin with a row as those of
    /// [`DotOp::Vnni`] do.
    AmxBytes,
}

impl DotOp {
    /// Bytes of an element of rhs.
    pub fn rhs_bytes(self) -> i64 {
        match self {
            DotOp::F32 => 4,
            DotOp::I16Pairs => 2,
            DotOp::AmxBf16(parts) => 2 * i64::from(parts.rhs),
            DotOp::Vnni | DotOp::AmxBytes => 1,
        }
    }

    /// Whether tile registers multiply.
    pub fn is_amx(self) -> bool {
        match self {
            DotOp::AmxBf16(_) | DotOp::AmxBytes => true,
            DotOp::F32 | DotOp::I16Pairs | DotOp::Vnni => false,
        }
    }

    /// Elements that 32 bits hold.
    pub fn group(self) -> i64 {
        match self {
            DotOp::F32 => 1,
            DotOp::I16Pairs | DotOp::AmxBf16(_) => 2,
            DotOp::Vnni | DotOp::AmxBytes => 4,
        }
    }

    /// The bf16 parts of an element of each operand; one part for other types.
    pub fn parts(self) -> Bf16Parts {
        match self {
            DotOp::AmxBf16(parts) => parts,
            _ => Bf16Parts { lhs: 1, rhs: 1 },
        }
    }
}

/// The part of the reduction that a tile computes. Partial sums are kept in a stream that the last part's epilogue stores to,
/// so they need no extra memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReductionPart {
    /// The whole reduction.
    Whole,
    /// The first part; stores partial sums to this stream.
    First(u32),
    /// A part that is neither the first nor the last.
    Middle(u32),
    /// The last part, and the epilogue.
    Last(u32),
}

impl ReductionPart {
    /// The stream that partial sums are loaded from.
    pub(super) fn resumed(self) -> Option<u32> {
        match self {
            ReductionPart::Middle(stream) | ReductionPart::Last(stream) => Some(stream),
            ReductionPart::Whole | ReductionPart::First(_) => None,
        }
    }

    /// The stream that partial sums are stored to.
    pub(super) fn stored(self) -> Option<u32> {
        match self {
            ReductionPart::First(stream) | ReductionPart::Middle(stream) => Some(stream),
            ReductionPart::Whole | ReductionPart::Last(_) => None,
        }
    }
}

/// Everything that a tile's code depends on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TileKey {
    /// Rows of the tile; on tile registers the most that [`TileKey::TILE_ROWS`] may say, 16 or 32.
    pub rows: u8,
    /// Vectors of columns.
    pub vectors: u8,
    /// Only the first [`TileKey::COLUMNS`] columns exist.
    pub tail: bool,
    /// The multiplication, which defines the element types.
    pub dot: DotOp,
    /// Whether consecutive `k` are consecutive in lhs.
    pub dense: bool,
    /// Loops of the reduction, at least one.
    pub levels: u8,
    /// The form of rhs.
    pub rhs: Rhs,
    /// Whether to prefetch the panels of the next tile of columns.
    pub prefetch_panels: bool,
    /// Which part of the reduction it does.
    pub part: ReductionPart,
    /// The second half of a tile on tile registers has separate rows, see [`TileKey::PAIR_ARGS`].
    pub paired: bool,
    /// It computes the tiles of many lines, which are iterations of a loop around its rows, see [`TileKey::line_batch_slot`]; two
    /// of them are one tile of a pair. For tile registers.
    pub line_batch: bool,
    /// The epilogue's streams.
    pub streams: Vec<StreamStep>,
    /// Those that are the same for all rows and lines: a bit for each of the first 32.
    pub row_invariant: u32,
    /// Whether the epilogue prefetches the memory that the next tile of columns reads and writes in its rows.
    pub prefetch_epilogue: bool,
    /// Scalar arguments of the epilogue.
    pub scalars: u32,
    /// The code for each finished sum.
    pub epilogue: Body,
}

/// Slots of the argument block; strides are in bytes.
impl TileKey {
    /// Address of lhs at the first row and `k` 0.
    pub const LHS: usize = 0;
    /// From row to row of lhs.
    pub const LHS_ROW: usize = 1;
    /// From `k` to `k` of lhs, unless dense.
    pub const LHS_K: usize = 2;
    /// Rows of a tile on tile registers, which are dense.
    pub const TILE_ROWS: usize = TileKey::LHS_K;
    /// Address of rhs at `k` 0 and the tile's first column.
    pub const RHS: usize = 3;
    /// From `k` to `k` of rhs, unless packed.
    pub const RHS_K: usize = 4;
    /// From plane to plane of lhs, whose planes are the parts of its elements. For tile registers, for which rhs is packed.
    pub const LHS_PLANE: usize = TileKey::RHS_K;
    /// From column to column of scattered rhs; from panel to panel of packed rhs.
    pub const RHS_COLUMN: usize = 5;
    /// Number of tiles.
    pub const TILES: usize = 6;
    /// Number of columns, in tail tiles.
    pub const COLUMNS: usize = 7;

    /// Level `level` of the reduction, 0 being the innermost: its count; then, but for level 0, what A and B move. On tile
    /// registers A moves by it after the inner level has moved it, and B is packed.
    pub fn level(level: u8) -> usize {
        8 + 3 * level as usize
    }

    /// Unrolled rounds of the innermost loop for each prefetch of the next panels. This is the number of tiles, which
    /// together prefetch all panels. Not on tile registers. Level 0 does not use the slot.
    pub const PREFETCH_ROUNDS: usize = 9;

    /// Bytes of each of the next panels that other calls prefetch. Not on tile registers. Level 0 does not use the slot.
    pub const PREFETCH_SKIP: usize = 10;

    /// Of a pair, another argument block, which says where A and the streams of the second half are; each half has
    /// [`TileKey::TILE_ROWS`] rows. Level 0 does not use the slot.
    pub const PAIR_ARGS: usize = 9;

    /// Whether tile registers have as many rows as [`TileKey::TILE_ROWS`] asks for already: 0 where they have to be
    /// configured first, which takes as long as many products. Level 0 does not use the slot.
    pub const CONFIGURED: usize = 10;

    /// Stream `stream`: its address at the first row and column, bytes from row to row, bytes from column to column.
    pub fn stream(&self, stream: u32) -> usize {
        TileKey::level(self.levels) + 3 * stream as usize
    }

    /// Scalar argument `scalar`, 32 bits of it.
    pub fn scalar(&self, scalar: u32) -> usize {
        self.stream(self.streams.len() as u32) + scalar as usize
    }

    /// For a batch of lines: their number, at least one; bytes from line to line of lhs; bytes that each stream moves by after
    /// the last row of a line. [`TileKey::TILES`] counts the tiles of one line then.
    pub fn line_batch_slot(&self) -> usize {
        self.scalar(self.scalars)
    }

    /// Whether a stream is the same for all rows.
    pub(super) fn is_row_invariant(&self, stream: u32) -> bool {
        stream < u32::BITS && self.row_invariant >> stream & 1 == 1
    }

    /// Length of the argument block.
    pub fn slots(&self) -> usize {
        self.line_batch_slot() + if self.line_batch { 2 + self.streams.len() } else { 0 }
    }
}
