//! The code of a microkernel: a linear list of instructions on typed virtual registers, with structured loops and branches.
//!
//! A register is a variable: an instruction may set it again, which is how accumulators and running pointers are written.
//! A register that a loop reads before it sets it in the loop must have been set before that loop; one that is set only
//! under a condition must not be read outside of it. Backends rely on both.
//!
//! Vectors are `lanes` times 32 bits, floats or integers depending on the instruction. Memory may be unaligned.

use crate::{kernel::tiles, scalar::CompareOp};

/// A 64-bit integer or an address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Int(pub u32);

/// A vector of 32-bit lanes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vector(pub u32);

/// A truth value for each lane.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mask(pub u32);

/// The address `base + index * scale + disp` in bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Mem {
    /// The base register.
    pub base: Int,
    /// The index register and its scale: 1, 2, 4 or 8.
    pub index: Option<(Int, u8)>,
    /// The displacement in bytes.
    pub disp: i32,
}

/// The second operand of an integer instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IntOperand {
    /// A register.
    Int(Int),
    /// A constant.
    Imm(i32),
}

/// Integer arithmetic, wrapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IntOp {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Bitwise and.
    And,
    /// Shift left by a constant.
    Shl,
    /// Arithmetic shift right by a constant.
    Shr,
}

/// Which half of a vector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VectorHalf {
    /// The one that lies first in memory.
    First,
    /// The other one.
    Second,
}

/// How an integer lies in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IntWidth {
    /// 64 bits.
    I64,
    /// 32 bits, sign-extended by loads.
    I32,
    /// 16 bits, sign-extended by loads.
    I16,
    /// One byte, zero-extended by loads.
    U8,
    /// One byte, sign-extended by loads.
    I8,
}

/// An integer that is narrower than a lane, as it lies in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NarrowInt {
    /// A byte without a sign.
    U8,
    /// A byte with a sign.
    I8,
    /// 16 bits with a sign.
    I16,
}

impl NarrowInt {
    /// Its bytes.
    pub fn bytes(self) -> usize {
        match self {
            NarrowInt::U8 | NarrowInt::I8 => 1,
            NarrowInt::I16 => 2,
        }
    }
}

/// What a product of tile registers multiplies: 32-bit elements of rows of one with those of the other, which holds 16
/// of them for each of its 16 columns, one below the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TileDot {
    /// Elements are pairs of bf16. Over the elements of a row the products of the first of each pair add up, and those of
    /// the second, each step rounded once to `f32`; then both, then the sum that was there. Denormals are zeros.
    Bf16,
    /// Elements are four bytes, those of the left without a sign, those of the right with one; sums are integers.
    Bytes,
}

/// A tile register: up to 16 rows of 64 bytes.
pub type TileReg = u8;

/// Number of tile registers.
pub const TILES: usize = 8;

/// Most rows of a tile register, and 32-bit elements of one.
pub const TILE_ROWS: usize = 16;

/// Bytes of a tile register's row.
pub const TILE_ROW_BYTES: usize = tiles::ROW_BYTES as usize;

/// The memory that [`VInst::TileConfig`] reads. Offsets are in bytes.
#[derive(Clone, Copy, Debug)]
pub struct TileConfigLayout {
    /// Size of the configuration.
    pub bytes: usize,
    /// The bytes of a row, two for each register.
    pub row_bytes: usize,
    /// The number of rows, one byte for each register.
    pub row_counts: usize,
}

/// The layout that `ldtilecfg` defines. Byte 0 is 1, the number of the format; all other bytes are zero.
pub const TILE_CONFIG: TileConfigLayout = TileConfigLayout { bytes: 64, row_bytes: 16, row_counts: 48 };

/// Lane by lane arithmetic on two vectors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum VBinary {
    /// Float sum.
    Add,
    /// Float difference.
    Sub,
    /// Float product.
    Mul,
    /// Float quotient.
    Div,
    /// `a < b ? a : b`, so `b` where they are unordered or both zero.
    Min,
    /// `a > b ? a : b`, so `b` where they are unordered or both zero.
    Max,
    /// Bitwise and.
    And,
    /// `!a & b`.
    AndNot,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// Integer sum.
    AddInt,
    /// Integer difference.
    SubInt,
    /// Low half of the integer product.
    MulInt,
    /// Signed minimum.
    MinInt,
    /// Signed maximum.
    MaxInt,
    /// A lane is a pair of signed 16-bit integers: the sum of the products of both, exact but for twice the least.
    DotPairs,
    /// One of both results of a stage of a transposition. In each group of four lanes stage 0 makes `a0 b0 a1 b1` and
    /// `a2 b2 a3 b3`, stage 1 `a0 a1 b0 b1` and `a2 a3 b2 b3`; any later one puts the even groups of `a` before those
    /// of `b`, and the odd ones.
    Exchange {
        /// Which stage.
        stage: u8,
        /// The second result.
        second: bool,
    },
}

/// Lane by lane arithmetic on one vector.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum VUnary {
    /// Square root.
    Sqrt,
    /// Rounds down.
    Floor,
    /// Rounds up.
    Ceil,
    /// Rounds to nearest, halves to even.
    Nearest,
    /// Rounds toward zero.
    Trunc,
    /// Float to integer, toward zero; any value where it doesn't fit.
    ToInt,
    /// Float to integer, to nearest, halves to even; any value where it doesn't fit.
    ToNearest,
    /// Integer to float.
    ToFloat,
}

/// Shifts of integer lanes by a constant below 32.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ShiftOp {
    /// Left.
    Left,
    /// Right, zeros come in.
    Right,
    /// Right, sign bits come in.
    RightSigned,
}

/// Combinations of masks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MaskOp {
    /// Both.
    And,
    /// Either.
    Or,
    /// Exactly one.
    Xor,
}

/// A comparison of integers that steers control.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cond {
    /// Signed.
    pub op: CompareOp,
    /// Left side.
    pub a: Int,
    /// Right side.
    pub b: IntOperand,
}

/// One instruction. The first register is set, unless the instruction stores.
#[derive(Clone, PartialEq, Debug)]
pub enum VInst {
    /// A constant.
    Imm(Int, i64),
    /// A copy.
    Copy(Int, Int),
    /// Arithmetic.
    Int(IntOp, Int, Int, IntOperand),
    /// The address itself.
    Address(Int, Mem),
    /// The address of the scratch memory, of [`VCode::scratch_bytes`] bytes.
    Scratch(Int),
    /// An integer from memory.
    LoadInt(Int, Mem, IntWidth),
    /// An integer to memory.
    StoreInt(Mem, Int, IntWidth),
    /// The same 32 bits in all lanes.
    Constant(Vector, u32),
    /// A copy.
    Move(Vector, Vector),
    /// All lanes from consecutive memory.
    Load(Vector, Mem),
    /// The first `n` lanes, whose mask is given too, the others zero; touches no other memory. `n` may lie outside 0..=lanes.
    LoadFirst(Vector, Mem, Int, Mask),
    /// Lane `i` from the `i`-th place; the second register is clobbered.
    LoadLanes(Vector, Vector, Vec<Mem>),
    /// Lane 0 from memory, the others zero.
    LoadOne(Vector, Mem),
    /// One 32-bit element in all lanes.
    Broadcast(Vector, Mem),
    /// As many narrow integers as there are lanes, each extended to a lane.
    LoadNarrow(Vector, Mem, NarrowInt),
    /// Twice as many bytes as there are lanes, each extended to half a lane.
    LoadHalves(Vector, Mem, NarrowInt),
    /// One narrow integer, extended, in all lanes.
    BroadcastNarrow(Vector, Mem, NarrowInt),
    /// The low end of each lane, so many bits, to consecutive memory; the second register is clobbered. Where 16 bits are
    /// stored, lanes must be in their range.
    StoreNarrow(Mem, Vector, Vector, NarrowInt),
    /// The nearest bf16 of each float, ties to even, as the high half of the lane, whose low half is zero. NaN stays NaN,
    /// denormals become zeros. This and the next five only where there are tile registers.
    RoundBf16(Vector, Vector),
    /// The bf16 of each float of two vectors side by side, those of the first one first.
    PackBf16(Vector, Vector, Vector),
    /// The floats of the first or of the second half of such a vector.
    UnpackBf16(Vector, Vector, VectorHalf),
    /// The lanes of the first vector, or 0 where the float of the second is infinite.
    UnlessInfinite(Vector, Vector, Vector),
    /// The same, 16 bits each, to consecutive memory; the second register is clobbered.
    StoreBf16(Mem, Vector, Vector),
    /// Of the first `n` lanes, see `LoadFirst`; the second register is clobbered.
    StoreBf16First(Mem, Vector, Vector, Int, Mask),
    /// All lanes to consecutive memory.
    Store(Mem, Vector),
    /// The first `n` lanes, see `LoadFirst`.
    StoreFirst(Mem, Vector, Int, Mask),
    /// Lane `i` to the `i`-th place; the second register is clobbered.
    StoreLanes(Vec<Mem>, Vector, Vector),
    /// Lane 0.
    StoreOne(Mem, Vector),
    /// Prefetches memory, which need not exist.
    Prefetch(Mem),
    /// `a * b + c`, rounded once where the ISA can.
    Fma(Vector, Vector, Vector, Vector),
    /// `a · b + c`, the sum of the products of four unsigned bytes of each lane of `a` with four signed ones of `b`; the
    /// result's register is none of those of `a` and `b`.
    DotBytes(Vector, Vector, Vector, Vector),
    /// See [`VBinary`].
    Binary(VBinary, Vector, Vector, Vector),
    /// See [`VUnary`].
    Unary(VUnary, Vector, Vector),
    /// See [`ShiftOp`].
    Shift(ShiftOp, Vector, Vector, u8),
    /// Lane `i` gets lane `i ^ distance`; the distance is a power of two below the number of lanes.
    Butterfly(Vector, Vector, u8),
    /// Floats; ordered, but `Ne` holds with NaN.
    Compare(CompareOp, Mask, Vector, Vector),
    /// Signed integers.
    CompareInt(CompareOp, Mask, Vector, Vector),
    /// See [`MaskOp`].
    Mask(MaskOp, Mask, Mask, Mask),
    /// The first `n` lanes; the vector register is clobbered.
    MaskFirst(Mask, Int, Vector),
    /// A mask from memory, where masks are registers of their own.
    LoadMask(Mask, Mem),
    /// A mask to memory, as [`VInst::LoadMask`] wants it.
    StoreMask(Mem, Mask),
    /// `a` where the mask holds, else `b`.
    Select(Vector, Mask, Vector, Vector),
    /// Says how large tile registers are, see [`TILE_CONFIG`]; before it none is touched.
    TileConfig(Mem),
    /// TileReg registers are not touched any more.
    TileRelease,
    /// Zeros in all rows.
    TileZero(TileReg),
    /// Rows from memory, as far apart as the index register says, whose scale is 1.
    TileLoad(TileReg, Mem),
    /// Rows to memory, as far apart as the index register says, whose scale is 1.
    TileStore(Mem, TileReg),
    /// The first register plus the product of the others, three different ones.
    TileDot(TileDot, TileReg, TileReg, TileReg),
    /// Start of a loop that runs at least once.
    Loop,
    /// Its end: once more if the condition holds.
    EndLoop(Cond),
    /// What follows up to `EndIf` runs only if the condition holds.
    If(Cond),
    /// See `If`.
    EndIf,
}

/// Recorded code with the number of registers of each class; register 0 of the integers is the pointer to the arguments.
#[derive(Clone, Default, Debug)]
pub struct VCode {
    /// The instructions, in order of execution.
    pub steps: Vec<VInst>,
    /// Integer registers used.
    pub ints: u32,
    /// Vector registers used.
    pub vectors: u32,
    /// Mask registers used.
    pub masks: u32,
    /// Bytes of scratch memory on the stack.
    pub scratch_bytes: u32,
}
