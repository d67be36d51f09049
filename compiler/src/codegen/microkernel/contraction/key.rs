//! The key of a tile and the layout of its argument block.

use crate::{
    codegen::microkernel::{
        op::{Body, StreamStep, Ty},
        pack_rows::ByteForm,
    },
    scalar::precision::Bf16Parts,
};

/// Columns of a panel.
pub const PANEL: usize = 16;

/// Largest magnitude of the sum of two adjacent weights of a column, for [`DotOp::BytePairs`]. The sum of their
/// products with bytes is then between `255 * -128` and `255 * 128`, which 16 bits hold. If the weights have different
/// signs, it is between the products.
pub(crate) const MAX_PAIR: i16 = 128;

/// Largest number of rows of a tile on tile registers.
pub const AMX_ROWS: usize = 32;

/// The form of rhs in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rhs {
    /// Packed panels of this many columns, see [`PANEL`].
    Panels(u32),
    /// Panels of [`PANEL`] columns in blocks of few bits.
    FewBits(FewBitsCode),
    /// Contiguous columns. The stride of `k` is an argument.
    Rows,
    /// The strides of columns and of `k` are arguments.
    Scattered,
}

/// The form of panels of few bits, see `kernel/few_bits.rs`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FewBitsCode {
    /// Bits of an element: 2, 4 or 8.
    pub bits: u8,
    /// The type of scales: `F32`, `F16` or `Bf16`.
    pub scale: Ty,
    /// Whether blocks have zero points.
    pub has_zeros: bool,
    /// How integers are multiplied, if lhs is rounded; it is `f32` otherwise.
    pub dot: Option<BlockDot>,
}

/// The multiplication of codes of weights and of a rounded lhs, see `kernel/rounded_rows.rs`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BlockDot {
    /// Pairs of 16-bit integers.
    Pairs,
    /// Pairs of bytes, whose products are added up in 16 bits as far as these hold them. Codes of weights have at most
    /// 4 bits.
    BytePairs,
    /// Four bytes, unsigned ones of weights and signed ones of lhs.
    Bytes,
    /// Four signed bytes of both.
    Signed,
}

impl BlockDot {
    /// Codes that one word has.
    pub(crate) fn codes_of_word(self) -> usize {
        match self {
            BlockDot::Pairs => 2,
            BlockDot::BytePairs | BlockDot::Bytes | BlockDot::Signed => 4,
        }
    }

    /// Whether codes of 8 bits are multiplied as signed integers. All others are higher by half of their range.
    pub(crate) fn is_signed(self, bits: u8) -> bool {
        self == BlockDot::Signed && bits == 8
    }
}

impl FewBitsCode {
    /// Registers that hold the scales and zero points of a block, for each vector of columns.
    pub(crate) fn block_registers(self) -> usize {
        1 + usize::from(self.has_zeros)
    }
}

impl Rhs {
    /// Columns of a panel, if there are panels.
    pub(crate) fn panel_columns(self) -> Option<usize> {
        match self {
            Rhs::Panels(width) => Some(width as usize),
            Rhs::FewBits(_) => Some(PANEL),
            Rhs::Rows | Rhs::Scattered => None,
        }
    }

    /// Whether elements are computed from integers of few bits.
    pub(crate) fn is_few_bits(self) -> bool {
        matches!(self, Rhs::FewBits(_))
    }
}

/// The multiplication of two 32-bit lanes and its accumulation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DotOp {
    /// Floats.
    F32,
    /// Pairs of signed 16-bit integers: the sum of both products, in 32 bits.
    I16Pairs,
    /// Four bytes, unsigned in lhs and signed in rhs: the sum of all products, in 32 bits. Each panel begins with a
    /// row that the accumulators start from.
    Vnni,
    /// As [`DotOp::Vnni`] by several instructions, which add two products in 16 bits. Adjacent weights of a column add
    /// up to at most `MAX_PAIR`.
    BytePairs,
    /// Four signed bytes of both operands: the sum of all products, in 32 bits. Panels begin with a row as those of
    /// [`DotOp::Vnni`] do.
    Signed,
    /// Eight signed bytes of two rows of lhs and of two columns of rhs: the four sums of all products, in 32 bits.
    /// Panels begin with a row as those of [`DotOp::Vnni`] do. Then they list eight bytes of a column after another.
    Matrix,
    /// Four bf16 of two rows of lhs and of two columns of rhs: the four sums of all products, as floats. Panels list
    /// four bf16 of a column after another.
    MatrixBf16,
    /// Pairs of bf16 on tile registers. Elements have this number of parts.
    AmxBf16(Bf16Parts),
    /// Four bytes on tile registers, unsigned in lhs and signed in rhs. Panels begin with a row as those of
    /// [`DotOp::Vnni`] do.
    AmxBytes,
}

impl DotOp {
    /// Bytes of an element of rhs.
    pub(crate) fn rhs_bytes(self) -> i64 {
        match self {
            DotOp::F32 => 4,
            DotOp::I16Pairs | DotOp::MatrixBf16 => 2,
            DotOp::AmxBf16(parts) => 2 * i64::from(parts.rhs),
            DotOp::Vnni | DotOp::BytePairs | DotOp::Signed | DotOp::Matrix | DotOp::AmxBytes => 1,
        }
    }

    /// Whether tile registers multiply.
    pub(crate) fn is_amx(self) -> bool {
        match self {
            DotOp::AmxBf16(_) | DotOp::AmxBytes => true,
            DotOp::F32
            | DotOp::I16Pairs
            | DotOp::Vnni
            | DotOp::BytePairs
            | DotOp::Signed
            | DotOp::Matrix
            | DotOp::MatrixBf16 => false,
        }
    }

    /// The form of bytes of lhs.
    pub(crate) fn byte_form(self) -> ByteForm {
        match self {
            DotOp::Vnni | DotOp::BytePairs | DotOp::AmxBytes => ByteForm::Unsigned,
            DotOp::Signed | DotOp::Matrix => ByteForm::Signed,
            DotOp::F32 | DotOp::I16Pairs | DotOp::MatrixBf16 | DotOp::AmxBf16(_) => ByteForm::Halves,
        }
    }

    /// Whether panels begin with a row that the accumulators start from.
    pub(crate) fn starts_from_panels(self) -> bool {
        matches!(self, DotOp::Vnni | DotOp::BytePairs | DotOp::Signed | DotOp::Matrix | DotOp::AmxBytes)
    }

    /// Elements that 32 bits hold.
    pub fn group(self) -> i64 {
        match self {
            DotOp::F32 => 1,
            DotOp::I16Pairs | DotOp::MatrixBf16 | DotOp::AmxBf16(_) => 2,
            DotOp::Vnni | DotOp::BytePairs | DotOp::Signed | DotOp::Matrix | DotOp::AmxBytes => 4,
        }
    }

    /// Elements of a column that one multiplication takes: the reduction is padded to a multiple of them.
    pub(crate) fn depth_step(self) -> i64 {
        if self.pairs_rows() { 2 * self.group() } else { self.group() }
    }

    /// Whether one multiplication takes two rows of lhs and two columns of rhs.
    pub(crate) fn pairs_rows(self) -> bool {
        matches!(self, DotOp::Matrix | DotOp::MatrixBf16)
    }

    /// The bf16 parts of an element of each operand. Other types have one part.
    pub fn parts(self) -> Bf16Parts {
        match self {
            DotOp::AmxBf16(parts) => parts,
            _ => Bf16Parts { lhs: 1, rhs: 1 },
        }
    }
}

/// The part of the reduction that a tile computes. Partial sums are kept in a stream that the last part's epilogue
/// stores to, so they need no extra memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReductionPart {
    /// The whole reduction.
    Whole,
    /// The first part, which stores partial sums to this stream.
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

/// Everything that the code of a tile depends on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TileKey {
    /// Rows of the tile. On tile registers, the maximum of [`TileKey::TILE_ROWS`]: 16 or 32.
    pub rows: u8,
    /// Vectors of columns.
    pub vectors: u8,
    /// Whether only the first [`TileKey::COLUMNS`] columns exist.
    pub tail: bool,
    /// The multiplication, which defines the element types.
    pub dot: DotOp,
    /// Whether consecutive `k` are consecutive in lhs.
    pub dense: bool,
    /// Whether lhs is signed bytes that become unsigned ones where they are read. Only for [`DotOp::Vnni`] and
    /// [`DotOp::BytePairs`].
    pub flips_signs: bool,
    /// Bytes that the last group of each innermost loop shares with the group before, which rhs multiplies by zero. The
    /// loop has one group more than its count if this is not zero. Only for dense bytes.
    pub shared_bytes: u8,
    /// Loops of the reduction, at least one.
    pub levels: u8,
    /// The form of rhs.
    pub rhs: Rhs,
    /// The element type of panels of floats or of contiguous columns: `F32`, or a half, which is converted when it is
    /// read. `F32` for all other forms and multiplications.
    pub rhs_element: Ty,
    /// Whether to prefetch the panels of the next tile of columns.
    pub prefetch_panels: bool,
    /// The part of the reduction that the tile computes.
    pub part: ReductionPart,
    /// Whether the second half of a tile on tile registers has separate rows, see [`TileKey::PAIR_ARGS`].
    pub paired: bool,
    /// Whether a call computes the tiles of many lines, see [`TileKey::line_batch_slot`]. A line is an iteration of
    /// the loop around the rows, and two lines form one paired tile. Only on tile registers.
    pub line_batch: bool,
    /// The epilogue's streams.
    pub streams: Vec<StreamStep>,
    /// The streams that are the same for all rows and lines: a bit for each of the first 32 streams.
    pub row_invariant: u32,
    /// Whether the epilogue prefetches the memory that the next tile of columns reads and writes in its rows.
    pub prefetch_epilogue: bool,
    /// Scalar arguments of the epilogue.
    pub scalars: u32,
    /// The code that runs on each finished accumulator.
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
    /// Rows of a tile on tile registers, whose lhs is dense.
    pub const TILE_ROWS: usize = TileKey::LHS_K;
    /// Address of rhs at `k` 0 and the tile's first column.
    pub const RHS: usize = 3;
    /// From `k` to `k` of rhs, unless packed.
    pub const RHS_K: usize = 4;
    /// Reduction indices of a block of few bits.
    pub const BLOCK: usize = TileKey::RHS_K;
    /// From plane to plane of lhs. A plane has one part of all elements. Only on tile registers, whose rhs is packed.
    pub(crate) const LHS_PLANE: usize = TileKey::RHS_K;
    /// From column to column of scattered rhs, or from panel to panel of packed rhs.
    pub const RHS_COLUMN: usize = 5;
    /// Number of tiles.
    pub const TILES: usize = 6;
    /// Number of columns, in tail tiles.
    pub const COLUMNS: usize = 7;

    /// The slots of level `level` of the reduction, 0 being the innermost: its count, and except for level 0, the
    /// steps of lhs and rhs. On tile registers, the step of lhs is relative to the end of the inner level, and rhs is
    /// packed.
    pub fn level(level: u8) -> usize {
        8 + 3 * level as usize
    }

    /// Unrolled rounds of the innermost loop for each prefetch of the next panels. This is the number of tiles, which
    /// together prefetch all panels. Not on tile registers. Level 0 does not use the slot.
    pub const PREFETCH_ROUNDS: usize = 9;

    /// Number of blocks of few bits. These tiles prefetch nothing.
    pub const BLOCKS: usize = TileKey::PREFETCH_ROUNDS;

    /// Bytes of each of the next panels that other calls prefetch, or [`TileKey::PREFETCH_OWN`]. Not on tile registers.
    /// Level 0 does not use the slot.
    pub const PREFETCH_SKIP: usize = 10;

    /// The value of [`TileKey::PREFETCH_SKIP`] where a tile prefetches its own panels.
    pub(crate) const PREFETCH_OWN: i64 = -1;

    /// The address of a second argument block, which locates lhs and the streams of the second half of a paired tile.
    /// Each half has [`TileKey::TILE_ROWS`] rows. Level 0 does not use the slot.
    pub(crate) const PAIR_ARGS: usize = 9;

    /// Nonzero if tile registers are already configured for [`TileKey::TILE_ROWS`] rows. Configuring them takes as
    /// long as many multiplications. Level 0 does not use the slot.
    pub(crate) const CONFIGURED: usize = 10;

    /// The slots of stream `stream`: its address at the first row and column, bytes from row to row, bytes from column
    /// to column.
    pub fn stream(&self, stream: u32) -> usize {
        TileKey::level(self.levels) + 3 * stream as usize
    }

    /// The slot of scalar argument `scalar`, of which 32 bits are read.
    pub fn scalar(&self, scalar: u32) -> usize {
        self.stream(self.streams.len() as u32) + scalar as usize
    }

    /// The slots of a batch of lines: the number of lines, at least one; bytes from line to line of lhs; for each
    /// stream, the bytes it moves after the last row of a line. [`TileKey::TILES`] then counts the tiles of one line.
    pub(crate) fn line_batch_slot(&self) -> usize {
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
