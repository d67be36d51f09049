//! The code of a microkernel: a linear list of instructions on typed virtual registers, with structured loops and
//! branches.
//!
//! A register is a variable that instructions may set again, as accumulators and running pointers are. Backends rely
//! on two rules. If a loop reads a register before it sets it, the register must be set before the loop. If a register
//! is set only under a condition, only code under that condition may read it.
//!
//! A vector has `lanes` lanes of 32 bits, which are floats or integers depending on the instruction. Instructions whose
//! name begins with `Wide` treat it as half as many lanes of 64 bits. Memory may be unaligned.

mod wide;

pub use wide::{WideBinary, WideUnary};

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
    pub(crate) disp: i32,
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
    /// Bitwise exclusive or.
    Xor,
    /// Shift left by a constant.
    Shl,
    /// Arithmetic shift right by a constant.
    Shr,
}

/// A half of a vector.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum VectorHalf {
    /// The half at the lower address in memory.
    First,
    /// The half at the higher address.
    Second,
}

/// The form of an integer in memory.
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

/// The form in memory of an integer that is narrower than a lane.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NarrowInt {
    /// An unsigned byte.
    U8,
    /// A signed byte.
    I8,
    /// 16 bits, signed.
    I16,
    /// 16 bits, unsigned.
    U16,
}

impl NarrowInt {
    /// Size in memory.
    pub fn bytes(self) -> usize {
        match self {
            NarrowInt::U8 | NarrowInt::I8 => 1,
            NarrowInt::I16 | NarrowInt::U16 => 2,
        }
    }
}

/// How a store narrows lanes to bytes or to 16 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Narrowing {
    /// The low bits. Lanes must be in the range of 16 bits.
    Low,
    /// The nearest byte. Lanes have the sign of the byte. Only on ISAs whose shape has `clamping_stores`.
    Clamp,
}

/// A multiplication of tile registers. Lhs has 16 elements of 32 bits in each row, and rhs 16 in each column. The
/// variants say how the instruction multiplies two elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TileDot {
    /// An element is a pair of bf16. The products of the first bf16 of each pair are accumulated over the row, and so
    /// are those of the second, each step rounded once to `f32`. Then both sums are added, and the accumulator.
    /// Denormals are zeros.
    Bf16,
    /// An element is four bytes, unsigned in lhs and signed in rhs. Accumulators are integers.
    Bytes,
}

/// A tile register: up to 16 rows of 64 bytes.
pub type TileReg = u8;

/// Bytes of four lanes.
pub(crate) const QUAD_BYTES: usize = 16;

/// Number of tile registers.
pub const TILES: usize = 8;

/// The largest number of rows of a tile register, and of 32-bit elements in a row.
pub const TILE_ROWS: usize = 16;

/// Bytes of a tile register's row.
pub const TILE_ROW_BYTES: usize = tiles::ROW_BYTES as usize;

/// Bytes of a tile register.
pub(crate) const TILE_BYTES: usize = TILE_ROWS * TILE_ROW_BYTES;

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
    /// The smaller float, with `-0 < 0`; NaN if either is NaN. This and the next exist only on ISAs whose shape has
    /// `extrema`.
    Smallest,
    /// The larger float, with `-0 < 0`; NaN if either is NaN.
    Largest,
    /// `a * 2^b` for floats `b` that are integers, rounded once. Only on ISAs with 16 lanes.
    Scale,
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
    /// A lane is a pair of signed 16-bit integers. The result is the sum of the two products. It is exact unless all
    /// four integers are the smallest one.
    DotPairs,
    /// Each half of a lane is the sum of two products of unsigned bytes of `a` with signed bytes of `b`, or the nearest
    /// end of the range of 16 bits. This and the next exist only on ISAs whose shape has `byte_pairs`.
    DotBytePairs,
    /// Sums of 16-bit integers, wrapping.
    AddHalves,
    /// One of the two results of a stage of a transposition. In each group of four lanes, the results of stage 0 are
    /// `a0 b0 a1 b1` and `a2 b2 a3 b3`, those of stage 1 `a0 a1 b0 b1` and `a2 a3 b2 b3`. The results of a later stage
    /// are the even groups of `a` followed by those of `b`, and the odd groups.
    Exchange {
        /// Counted from 0.
        stage: u8,
        /// Whether this is the second result.
        second: bool,
    },
    /// In each group of four lanes, the first or the last eight bytes of `a` and of `b` in turn.
    ZipBytes(VectorHalf),
    /// The even lanes of `a`, then the odd lanes of `b`.
    EvenThenOdd,
    /// The even lanes of `a`, then those of `b`.
    Even,
    /// The odd lanes of `a`, then those of `b`.
    Odd,
    /// The lanes of `b` whose numbers are the lanes of `a`. Only on ISAs with at least 8 lanes.
    Permute,
}

/// Functions of the bits of three operands `a`, `b` and `c`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BitsOp {
    /// `(a & b) | c`.
    AndOr,
    /// The bits that at least two of the operands have.
    Majority,
}

/// Lane by lane arithmetic on one vector.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum VUnary {
    /// Square root.
    Sqrt,
    /// The reciprocal, with an error below 2^-14 of it if it is a normal float. Its last bits may depend on the
    /// processor. Only on ISAs with 16 lanes.
    ReciprocalEstimate,
    /// Rounds down.
    Floor,
    /// Rounds up.
    Ceil,
    /// Rounds to nearest, halves to even.
    Nearest,
    /// Rounds toward zero.
    Trunc,
    /// Float to integer, toward zero. The result is undefined where it doesn't fit.
    ToInt,
    /// Float to integer, to nearest, halves to even. The result is undefined where it doesn't fit.
    ToNearest,
    /// Integer to float.
    ToFloat,
    /// This lane of each group of four lanes, in all lanes of the group. Only on ISAs with at least 8 lanes.
    RepeatOfFour(u8),
}

/// Shifts of integer lanes by a constant below 32.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ShiftOp {
    /// Left.
    Left,
    /// Right, filled with zeros.
    Right,
    /// Right, filled with the sign bit.
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
    /// The mask of 32-bit lanes whose first half are the 64-bit lanes of the first mask, and the others those of the
    /// second.
    Join,
}

/// A comparison of integers that loops and branches depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cond {
    /// Signed comparison.
    pub op: CompareOp,
    /// The first operand.
    pub a: Int,
    /// The second operand.
    pub b: IntOperand,
}

impl Cond {
    /// The condition that holds where this one does not.
    pub(super) fn opposite(self) -> Cond {
        let op = match self.op {
            CompareOp::Eq => CompareOp::Ne,
            CompareOp::Ne => CompareOp::Eq,
            CompareOp::Lt => CompareOp::Ge,
            CompareOp::Le => CompareOp::Gt,
            CompareOp::Gt => CompareOp::Le,
            CompareOp::Ge => CompareOp::Lt,
        };
        Cond { op, ..self }
    }
}

/// An instruction. It sets the first register, unless it stores.
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
    /// The low 32 bits of the integer in lane 0, and one more in each further lane.
    CountFrom(Vector, Int),
    /// A copy.
    Move(Vector, Vector),
    /// All lanes from consecutive memory.
    Load(Vector, Mem),
    /// The first `n` lanes, the others zero. The mask must be that of the first `n` lanes. Other memory is not
    /// touched. `n` may be negative or larger than the number of lanes.
    LoadFirst(Vector, Mem, Int, Mask),
    /// Lane `i` from address `i`. The second register is clobbered.
    LoadLanes(Vector, Vector, Vec<Mem>),
    /// Four lanes from each address, in order. Lanes without an address are zero.
    LoadQuads(Vector, Vec<Mem>),
    /// Lane `i` from the address plus four times lane `i` of the second vector, a signed integer. The address has no
    /// index register. The mask is clobbered.
    Gather(Vector, Mask, Mem, Vector),
    /// Lane 0 from memory, the others zero.
    LoadOne(Vector, Mem),
    /// One 32-bit element in all lanes.
    Broadcast(Vector, Mem),
    /// As many narrow integers as there are lanes, each extended to a lane.
    LoadNarrow(Vector, Mem, NarrowInt),
    /// The first lanes of [`VInst::LoadNarrow`], those of the mask, the others zero. Other memory is not touched. This
    /// and [`VInst::StoreNarrowFirst`] exist only on ISAs whose shape has `narrow_masks`.
    LoadNarrowFirst(Vector, Mem, Mask, NarrowInt),
    /// Twice as many bytes as there are lanes, each extended to half a lane.
    LoadHalves(Vector, Mem, NarrowInt),
    /// One narrow integer, extended, in all lanes.
    BroadcastNarrow(Vector, Mem, NarrowInt),
    /// As many f16 as there are lanes, each as an equal float. This and the next three instructions exist only on ISAs
    /// whose shape has `f16`.
    LoadF16(Vector, Mem),
    /// One f16, as an equal float, in all lanes.
    BroadcastF16(Vector, Mem),
    /// The nearest f16 of each float, ties to even, to consecutive memory.
    StoreF16(Mem, Vector),
    /// The float equal to the nearest f16 of each float, ties to even.
    RoundF16(Vector, Vector),
    /// Each lane as a narrow integer to consecutive memory. The second register is clobbered.
    StoreNarrow(Mem, Vector, Vector, NarrowInt, Narrowing),
    /// The first lanes of [`VInst::StoreNarrow`], those of the mask. Other memory is not touched.
    StoreNarrowFirst(Mem, Vector, Mask, NarrowInt, Narrowing),
    /// The nearest byte of each lane of two or of four vectors to consecutive memory, see [`Narrowing::Clamp`]. The
    /// last two registers are clobbered. Only on ISAs whose shape has `clamping_stores`.
    StorePacked(Mem, Vec<Vector>, NarrowInt, [Vector; 2]),
    /// The low three bytes of each lane to consecutive memory. The second register is clobbered. Only on ISAs whose
    /// shape has `byte_triples`.
    StoreTriples(Mem, Vector, Vector),
    /// Lane 0 of all vectors, then lane 1 of all, and so on, to consecutive memory. The last two registers are
    /// clobbered. Only on ISAs whose shape has `interleaving_stores`.
    StoreInterleaved(Mem, Vec<Vector>, [Vector; 2]),
    /// The nearest bf16 of each float, ties to even, as the high half of the lane, whose low half is zero. NaN stays
    /// NaN, denormals become zeros. This and the next five instructions exist only on ISAs with tile registers. ISAs
    /// whose shape has `bf16_matrix_dots` have this one too; they keep denormals.
    RoundBf16(Vector, Vector),
    /// The nearest bf16 of each float of two vectors, those of the first vector before those of the second. It exists
    /// wherever [`VInst::RoundBf16`] does.
    PackBf16(Vector, Vector, Vector),
    /// The floats of one half of a vector of bf16.
    UnpackBf16(Vector, Vector, VectorHalf),
    /// The lanes of the first vector, or 0 where the float of the second is infinite.
    UnlessInfinite(Vector, Vector, Vector),
    /// The nearest bf16 of each float to consecutive memory. The second register is clobbered. This and the
    /// next one exist wherever [`VInst::RoundBf16`] does.
    StoreBf16(Mem, Vector, Vector),
    /// The nearest bf16 of the first `n` lanes, see `LoadFirst`. The second register is clobbered.
    StoreBf16First(Mem, Vector, Vector, Int, Mask),
    /// All lanes to consecutive memory.
    Store(Mem, Vector),
    /// The first `n` lanes, see `LoadFirst`.
    StoreFirst(Mem, Vector, Int, Mask),
    /// The first `n` lanes, without a mask. The second register is clobbered. Only on ISAs whose shape has no
    /// `masked_stores`.
    StorePart(Mem, Vector, Vector, Int),
    /// Lane `i` to address `i`. The second register is clobbered.
    StoreLanes(Vec<Mem>, Vector, Vector),
    /// Four lanes to each address, in order.
    StoreQuads(Vec<Mem>, Vector),
    /// Lane 0.
    StoreOne(Mem, Vector),
    /// Prefetches memory, which need not exist.
    Prefetch(Mem),
    /// Prefetches memory that will be written, which need not exist.
    PrefetchWrite(Mem),
    /// `a * b + c`, rounded once where the ISA can.
    Fma(Vector, Vector, Vector, Vector),
    /// `a * 2^n` for the first two operands, as [`VBinary::Scale`]; 0 where the third operand is less than the fourth.
    /// The mask is clobbered. Only on ISAs with 16 lanes.
    ScaleUnlessLess(Vector, Mask, [Vector; 4]),
    /// `a * b[lane] + c`, rounded once: one lane of `b` is multiplied with all lanes of `a`. Only on ISAs whose shape
    /// has `fma_lanes`.
    FmaLane(Vector, Vector, Vector, u8, Vector),
    /// Lane `i` from byte `i` of each quarter of a vector, that of the first quarter the lowest. Only on ISAs whose
    /// shape has `byte_quads`.
    InterleaveBytes(Vector, Vector),
    /// `a · b + c`, where `a · b` is the sum of the products of four unsigned bytes of each lane of `a` with four
    /// signed bytes of `b`. The result's register differs from those of `a` and `b`.
    DotBytes(Vector, Vector, Vector, Vector),
    /// `a · b + c`, where `a · b` is the sum of the products of two signed integers of 16 bits of each lane, as in
    /// [`VBinary::DotPairs`]. The result's register differs from those of `a` and `b`.
    SumDotPairs(Vector, Vector, Vector, Vector),
    /// `a · b + c`, where `a · b` is the sum of the products of four signed bytes of each lane of `a` with four signed
    /// bytes of `b`. This and the next exist only on ISAs whose shape has `signed_dots`.
    DotSigned(Vector, Vector, Vector, Vector),
    /// `a · b[lane] + c`: the four bytes of one lane of `b` are multiplied with those of each lane of `a`.
    DotSignedLane(Vector, Vector, Vector, u8, Vector),
    /// `dst = c + a · bᵀ`, where both factors have two rows of eight signed bytes, and `c` and `dst` two rows of two
    /// lanes. Only on ISAs whose shape has `matrix_dots`.
    DotMatrix(Vector, Vector, Vector, Vector),
    /// As [`VInst::DotMatrix`] of floats: both factors have two rows of four bf16. Sums round toward odd, and denormals
    /// count as zeros. Only on ISAs whose shape has `bf16_matrix_dots`.
    DotMatrixBf16(Vector, Vector, Vector, Vector),
    /// See [`BitsOp`]. Only on ISAs with 32 registers of 16 lanes.
    Bits(BitsOp, Vector, Vector, Vector, Vector),
    /// See [`VBinary`].
    Binary(VBinary, Vector, Vector, Vector),
    /// See [`VUnary`].
    Unary(VUnary, Vector, Vector),
    /// See [`ShiftOp`].
    Shift(ShiftOp, Vector, Vector, u8),
    /// Lane `i` gets lane `i ^ distance`. The distance is a power of two below the number of lanes.
    Butterfly(Vector, Vector, u8),
    /// Compares floats. With NaN only `Ne` holds.
    Compare(CompareOp, Mask, Vector, Vector),
    /// Compares signed integers.
    CompareInt(CompareOp, Mask, Vector, Vector),
    /// See [`MaskOp`].
    Mask(MaskOp, Mask, Mask, Mask),
    /// The mask of the first `n` lanes. The vector register is clobbered.
    MaskFirst(Mask, Int, Vector),
    /// A mask from memory, in the form of [`VInst::StoreMask`].
    LoadMask(Mask, Mem),
    /// A mask to memory.
    StoreMask(Mem, Mask),
    /// `a` where the mask holds, else `b`.
    Select(Vector, Mask, Vector, Vector),
    /// See [`WideBinary`].
    WideBinary(WideBinary, Vector, Vector, Vector),
    /// See [`WideUnary`].
    WideUnary(WideUnary, Vector, Vector),
    /// Shifts 64-bit lanes by a constant below 64: left, or right with zeros.
    WideShift(ShiftOp, Vector, Vector, u8),
    /// The same 64 bits in all lanes.
    WideConstant(Vector, u64),
    /// One 64-bit element in all lanes.
    WideBroadcast(Vector, Mem),
    /// Compares doubles. With NaN only `Ne` holds. The mask has a truth value for each 64-bit lane.
    WideCompare(CompareOp, Mask, Vector, Vector),
    /// Compares signed 64-bit integers.
    WideCompareInt(CompareOp, Mask, Vector, Vector),
    /// `a` where the mask of 64-bit lanes holds, else `b`.
    WideSelect(Vector, Mask, Vector, Vector),
    /// The mask of 64-bit lanes that is equal to one half of a mask of 32-bit lanes.
    MaskHalf(Mask, Mask, VectorHalf),
    /// Not zero if any lane of the mask holds.
    AnyLane(Int, Mask),
    /// Configures the sizes of tile registers, see [`TILE_CONFIG`]. It comes before all uses of tile registers.
    TileConfig(Mem),
    /// Ends the use of tile registers.
    TileRelease,
    /// Zeros in all rows.
    TileZero(TileReg),
    /// Rows from memory. The index register, whose scale is 1, is the distance between rows.
    TileLoad(TileReg, Mem),
    /// Rows to memory. The index register, whose scale is 1, is the distance between rows.
    TileStore(Mem, TileReg),
    /// Adds the product of lhs and rhs to the first register. The three registers differ.
    TileDot(TileDot, TileReg, TileReg, TileReg),
    /// Start of a loop that runs at least once.
    Loop,
    /// End of a loop. It runs once more if the condition holds.
    EndLoop(Cond),
    /// The instructions up to `EndIf` run only if the condition holds.
    If(Cond),
    /// End of a branch.
    EndIf,
}

/// Recorded code, and the number of registers of each class. Integer register 0 is the pointer to the arguments.
#[derive(Clone, Default, Debug)]
pub struct VCode {
    /// The instructions, in order of execution.
    pub steps: Vec<VInst>,
    /// Integer registers used.
    pub ints: u32,
    /// Vector registers used.
    pub vectors: u32,
    /// Mask registers used.
    pub(crate) masks: u32,
    /// Bytes of scratch memory on the stack.
    pub scratch_bytes: u32,
}
