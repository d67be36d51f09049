//! The instructions that microkernels use: one table of words, assembler texts and fields.
//!
//! Every instruction is a word of 32 bits. A row of the table has the word with all fields zero, and says where each
//! operand goes. The text has `{}` for each operand, in the syntax of assemblers: a test compares the whole table with
//! one.

use crate::error::{Error, Result};

/// Where an operand goes, and what it means. The first number is the lowest bit of the field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// The number of a vector register.
    V(u32),
    /// The number of a vector register that the word has twice.
    Twice,
    /// A 64-bit register; 31 is the register of zeros.
    X(u32),
    /// The low half of a register; 31 is that of the register of zeros.
    W(u32),
    /// A 64-bit register; 31 is the stack pointer.
    S(u32),
    /// An unsigned multiple: lowest bit, number of bits, scale.
    Unsigned(u32, u32, i64),
    /// A signed multiple: lowest bit, number of bits, scale.
    Signed(u32, u32, i64),
    /// A shift left by less than the width of a lane: lowest bit, width.
    Left(u32, i64),
    /// A shift right by one to the width of a lane: lowest bit, twice the width.
    Right(u32, i64),
    /// A lane of 32 bits that is multiplied.
    Lane,
    /// A lane of 32 bits in memory.
    MemoryLane,
    /// A byte in two parts.
    SplitByte,
    /// A condition, see [`CONDITIONS`].
    Condition,
}

use Field::*;

const VD: Field = V(0);
const VN: Field = V(5);
const VM: Field = V(16);
const XD: Field = X(0);
const XN: Field = X(5);
const XM: Field = X(16);
const WD: Field = W(0);
const WN: Field = W(5);
const SD: Field = S(0);
const SN: Field = S(5);

/// The names of conditions, by their numbers. Those of signed comparisons, and the one that always holds.
pub const CONDITIONS: [(i64, &str); 7] =
    [(0, "eq"), (1, "ne"), (10, "ge"), (11, "lt"), (12, "gt"), (13, "le"), (14, "al")];

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The word with all fields zero.
    word: u32,
    /// The instruction in the syntax of assemblers, with `{}` for each operand.
    pub text: &'static str,
    /// The operands in the order of the text.
    pub fields: &'static [Field],
}

macro_rules! instructions {
    ($($name:ident = $word:literal, $text:literal, [$($field:expr),*];)*) => {
        /// An instruction.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Op {
            $(#[doc = $text] $name,)*
        }

        impl Op {
            /// All instructions.
            pub const ALL: &'static [Op] = &[$(Op::$name),*];

            /// The row of the table.
            pub const fn row(self) -> Row {
                match self {
                    $(Op::$name => Row { word: $word, text: $text, fields: &[$($field),*] },)*
                }
            }
        }
    };
}

instructions! {
    MovZ = 0xd280_0000, "movz {}, #{}, lsl #{}", [XD, Unsigned(5, 16, 1), Unsigned(21, 2, 16)];
    MovN = 0x9280_0000, "movn {}, #{}, lsl #{}", [XD, Unsigned(5, 16, 1), Unsigned(21, 2, 16)];
    MovK = 0xf280_0000, "movk {}, #{}, lsl #{}", [XD, Unsigned(5, 16, 1), Unsigned(21, 2, 16)];
    Mov = 0xaa00_03e0, "mov {}, {}", [XD, XM];
    Add = 0x8b00_0000, "add {}, {}, {}", [XD, XN, XM];
    AddShifted = 0x8b00_0000, "add {}, {}, {}, lsl #{}", [XD, XN, XM, Unsigned(10, 6, 1)];
    AddImm = 0x9100_0000, "add {}, {}, #{}", [SD, SN, Unsigned(10, 12, 1)];
    AddImmHigh = 0x9140_0000, "add {}, {}, #{}, lsl #12", [SD, SN, Unsigned(10, 12, 1)];
    Sub = 0xcb00_0000, "sub {}, {}, {}", [XD, XN, XM];
    SubImm = 0xd100_0000, "sub {}, {}, #{}", [SD, SN, Unsigned(10, 12, 1)];
    SubImmHigh = 0xd140_0000, "sub {}, {}, #{}, lsl #12", [SD, SN, Unsigned(10, 12, 1)];
    Mul = 0x9b00_7c00, "mul {}, {}, {}", [XD, XN, XM];
    AndInt = 0x8a00_0000, "and {}, {}, {}", [XD, XN, XM];
    EorInt = 0xca00_0000, "eor {}, {}, {}", [XD, XN, XM];
    Asr = 0x9340_fc00, "asr {}, {}, #{}", [XD, XN, Unsigned(16, 6, 1)];
    Cmp = 0xeb00_001f, "cmp {}, {}", [XN, XM];
    CmpImm = 0xf100_001f, "cmp {}, #{}", [SN, Unsigned(10, 12, 1)];
    CmnImm = 0xb100_001f, "cmn {}, #{}", [SN, Unsigned(10, 12, 1)];
    Branch = 0x5400_0000, "b.{} .+{}", [Condition, Signed(5, 19, 4)];
    Ret = 0xd65f_03c0, "ret", [];
    Svc = 0xd400_0001, "svc #{}", [Unsigned(5, 16, 1)];
    Nop = 0xd503_201f, "nop", [];
    StorePair = 0xa900_0000, "stp {}, {}, [{}, #{}]", [XD, X(10), SN, Signed(15, 7, 8)];
    LoadPair = 0xa940_0000, "ldp {}, {}, [{}, #{}]", [XD, X(10), SN, Signed(15, 7, 8)];
    StorePairD = 0x6d00_0000, "stp d{}, d{}, [{}, #{}]", [VD, V(10), SN, Signed(15, 7, 8)];
    LoadPairD = 0x6d40_0000, "ldp d{}, d{}, [{}, #{}]", [VD, V(10), SN, Signed(15, 7, 8)];
    LdrX = 0xf940_0000, "ldr {}, [{}, #{}]", [XD, SN, Unsigned(10, 12, 8)];
    LdurX = 0xf840_0000, "ldur {}, [{}, #{}]", [XD, SN, Signed(12, 9, 1)];
    LdrXIndexed = 0xf860_6800, "ldr {}, [{}, {}]", [XD, SN, XM];
    LdrXScaled = 0xf860_7800, "ldr {}, [{}, {}, lsl #3]", [XD, SN, XM];
    Ldrsw = 0xb980_0000, "ldrsw {}, [{}, #{}]", [XD, SN, Unsigned(10, 12, 4)];
    Ldursw = 0xb880_0000, "ldursw {}, [{}, #{}]", [XD, SN, Signed(12, 9, 1)];
    LdrswIndexed = 0xb8a0_6800, "ldrsw {}, [{}, {}]", [XD, SN, XM];
    LdrswScaled = 0xb8a0_7800, "ldrsw {}, [{}, {}, lsl #2]", [XD, SN, XM];
    Ldrsh = 0x7980_0000, "ldrsh {}, [{}, #{}]", [XD, SN, Unsigned(10, 12, 2)];
    Ldursh = 0x7880_0000, "ldursh {}, [{}, #{}]", [XD, SN, Signed(12, 9, 1)];
    LdrshIndexed = 0x78a0_6800, "ldrsh {}, [{}, {}]", [XD, SN, XM];
    LdrshScaled = 0x78a0_7800, "ldrsh {}, [{}, {}, lsl #1]", [XD, SN, XM];
    Ldrh = 0x7940_0000, "ldrh {}, [{}, #{}]", [WD, SN, Unsigned(10, 12, 2)];
    Ldurh = 0x7840_0000, "ldurh {}, [{}, #{}]", [WD, SN, Signed(12, 9, 1)];
    LdrhIndexed = 0x7860_6800, "ldrh {}, [{}, {}]", [WD, SN, XM];
    LdrhScaled = 0x7860_7800, "ldrh {}, [{}, {}, lsl #1]", [WD, SN, XM];
    Ldrsb = 0x3980_0000, "ldrsb {}, [{}, #{}]", [XD, SN, Unsigned(10, 12, 1)];
    Ldursb = 0x3880_0000, "ldursb {}, [{}, #{}]", [XD, SN, Signed(12, 9, 1)];
    LdrsbIndexed = 0x38a0_6800, "ldrsb {}, [{}, {}]", [XD, SN, XM];
    Ldrb = 0x3940_0000, "ldrb {}, [{}, #{}]", [WD, SN, Unsigned(10, 12, 1)];
    Ldurb = 0x3840_0000, "ldurb {}, [{}, #{}]", [WD, SN, Signed(12, 9, 1)];
    LdrbIndexed = 0x3860_6800, "ldrb {}, [{}, {}]", [WD, SN, XM];
    StrX = 0xf900_0000, "str {}, [{}, #{}]", [XD, SN, Unsigned(10, 12, 8)];
    SturX = 0xf800_0000, "stur {}, [{}, #{}]", [XD, SN, Signed(12, 9, 1)];
    StrXIndexed = 0xf820_6800, "str {}, [{}, {}]", [XD, SN, XM];
    StrXScaled = 0xf820_7800, "str {}, [{}, {}, lsl #3]", [XD, SN, XM];
    StrW = 0xb900_0000, "str {}, [{}, #{}]", [WD, SN, Unsigned(10, 12, 4)];
    SturW = 0xb800_0000, "stur {}, [{}, #{}]", [WD, SN, Signed(12, 9, 1)];
    StrWIndexed = 0xb820_6800, "str {}, [{}, {}]", [WD, SN, XM];
    StrWScaled = 0xb820_7800, "str {}, [{}, {}, lsl #2]", [WD, SN, XM];
    Strh = 0x7900_0000, "strh {}, [{}, #{}]", [WD, SN, Unsigned(10, 12, 2)];
    Sturh = 0x7800_0000, "sturh {}, [{}, #{}]", [WD, SN, Signed(12, 9, 1)];
    StrhIndexed = 0x7820_6800, "strh {}, [{}, {}]", [WD, SN, XM];
    StrhScaled = 0x7820_7800, "strh {}, [{}, {}, lsl #1]", [WD, SN, XM];
    Strb = 0x3900_0000, "strb {}, [{}, #{}]", [WD, SN, Unsigned(10, 12, 1)];
    Sturb = 0x3800_0000, "sturb {}, [{}, #{}]", [WD, SN, Signed(12, 9, 1)];
    StrbIndexed = 0x3820_6800, "strb {}, [{}, {}]", [WD, SN, XM];
    LdrQ = 0x3dc0_0000, "ldr q{}, [{}, #{}]", [VD, SN, Unsigned(10, 12, 16)];
    LdurQ = 0x3cc0_0000, "ldur q{}, [{}, #{}]", [VD, SN, Signed(12, 9, 1)];
    LdrQIndexed = 0x3ce0_6800, "ldr q{}, [{}, {}]", [VD, SN, XM];
    LdrD = 0xfd40_0000, "ldr d{}, [{}, #{}]", [VD, SN, Unsigned(10, 12, 8)];
    LdurD = 0xfc40_0000, "ldur d{}, [{}, #{}]", [VD, SN, Signed(12, 9, 1)];
    LdrDIndexed = 0xfc60_6800, "ldr d{}, [{}, {}]", [VD, SN, XM];
    LdrDScaled = 0xfc60_7800, "ldr d{}, [{}, {}, lsl #3]", [VD, SN, XM];
    LdrS = 0xbd40_0000, "ldr s{}, [{}, #{}]", [VD, SN, Unsigned(10, 12, 4)];
    LdurS = 0xbc40_0000, "ldur s{}, [{}, #{}]", [VD, SN, Signed(12, 9, 1)];
    LdrSIndexed = 0xbc60_6800, "ldr s{}, [{}, {}]", [VD, SN, XM];
    LdrSScaled = 0xbc60_7800, "ldr s{}, [{}, {}, lsl #2]", [VD, SN, XM];
    StrQ = 0x3d80_0000, "str q{}, [{}, #{}]", [VD, SN, Unsigned(10, 12, 16)];
    SturQ = 0x3c80_0000, "stur q{}, [{}, #{}]", [VD, SN, Signed(12, 9, 1)];
    StrQIndexed = 0x3ca0_6800, "str q{}, [{}, {}]", [VD, SN, XM];
    StrD = 0xfd00_0000, "str d{}, [{}, #{}]", [VD, SN, Unsigned(10, 12, 8)];
    SturD = 0xfc00_0000, "stur d{}, [{}, #{}]", [VD, SN, Signed(12, 9, 1)];
    StrDIndexed = 0xfc20_6800, "str d{}, [{}, {}]", [VD, SN, XM];
    StrDScaled = 0xfc20_7800, "str d{}, [{}, {}, lsl #3]", [VD, SN, XM];
    StrS = 0xbd00_0000, "str s{}, [{}, #{}]", [VD, SN, Unsigned(10, 12, 4)];
    SturS = 0xbc00_0000, "stur s{}, [{}, #{}]", [VD, SN, Signed(12, 9, 1)];
    StrSIndexed = 0xbc20_6800, "str s{}, [{}, {}]", [VD, SN, XM];
    StrSScaled = 0xbc20_7800, "str s{}, [{}, {}, lsl #2]", [VD, SN, XM];
    Prfm = 0xf980_0002, "prfm pldl2keep, [{}, #{}]", [SN, Unsigned(10, 12, 8)];
    LdrLiteral = 0x9c00_0000, "ldr q{}, .+{}", [VD, Signed(5, 19, 4)];
    Ld1r = 0x4d40_c800, "ld1r {v{}.4s}, [{}]", [VD, SN];
    Ld1rWide = 0x4d40_cc00, "ld1r {v{}.2d}, [{}]", [VD, SN];
    Ld1rHalf = 0x0d40_c400, "ld1r {v{}.4h}, [{}]", [VD, SN];
    Ld1Lane = 0x0d40_8000, "ld1 {v{}.s}[{}], [{}]", [VD, MemoryLane, SN];
    Ld1LaneNext = 0x0ddf_8000, "ld1 {v{}.s}[{}], [{}], #4", [VD, MemoryLane, SN];
    St1Lane = 0x0d00_8000, "st1 {v{}.s}[{}], [{}]", [VD, MemoryLane, SN];
    St1LaneNext = 0x0d9f_8000, "st1 {v{}.s}[{}], [{}], #4", [VD, MemoryLane, SN];
    MoviZero = 0x6f00_e400, "movi v{}.2d, #0", [VD];
    Movi = 0x4f00_0400, "movi v{}.4s, #{}, lsl #{}", [VD, SplitByte, Unsigned(13, 2, 8)];
    Mvni = 0x6f00_0400, "mvni v{}.4s, #{}, lsl #{}", [VD, SplitByte, Unsigned(13, 2, 8)];
    MoveVector = 0x4ea0_1c00, "mov v{}.16b, v{}.16b", [VD, Twice];
    DupInt = 0x4e04_0c00, "dup v{}.4s, {}", [VD, WN];
    DupWideLane = 0x4e08_0400, "dup v{}.2d, v{}.d[{}]", [VD, VN, Unsigned(20, 1, 1)];
    SmovLane = 0x4e04_2c00, "smov {}, v{}.s[{}]", [XD, VN, Unsigned(19, 2, 1)];
    MovToInt = 0x1e26_0000, "fmov {}, s{}", [WD, VN];
    Fmla = 0x4e20_cc00, "fmla v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM];
    FmlaLane = 0x4f80_1000, "fmla v{}.4s, v{}.4s, v{}.s[{}]", [VD, VN, VM, Lane];
    Sdot = 0x4e80_9400, "sdot v{}.4s, v{}.16b, v{}.16b", [VD, VN, VM];
    SdotLane = 0x4f80_e000, "sdot v{}.4s, v{}.16b, v{}.4b[{}]", [VD, VN, VM, Lane];
    Fadd = 0x4e20_d400, "fadd v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM];
    Fsub = 0x4ea0_d400, "fsub v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM];
    Fmul = 0x6e20_dc00, "fmul v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM];
    Fdiv = 0x6e20_fc00, "fdiv v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM];
    Fmin = 0x4ea0_f400, "fmin v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM];
    Fmax = 0x4e20_f400, "fmax v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM];
    Fcmeq = 0x4e20_e400, "fcmeq v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM];
    Fcmge = 0x6e20_e400, "fcmge v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM];
    Fcmgt = 0x6ea0_e400, "fcmgt v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM];
    AddLanes = 0x4ea0_8400, "add v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM];
    SubLanes = 0x6ea0_8400, "sub v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM];
    MulLanes = 0x4ea0_9c00, "mul v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM];
    Smin = 0x4ea0_6c00, "smin v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM];
    Smax = 0x4ea0_6400, "smax v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM];
    Cmeq = 0x6ea0_8c00, "cmeq v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM];
    Cmge = 0x4ea0_3c00, "cmge v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM];
    Cmgt = 0x4ea0_3400, "cmgt v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM];
    And = 0x4e20_1c00, "and v{}.16b, v{}.16b, v{}.16b", [VD, VN, VM];
    Bic = 0x4e60_1c00, "bic v{}.16b, v{}.16b, v{}.16b", [VD, VN, VM];
    Orr = 0x4ea0_1c00, "orr v{}.16b, v{}.16b, v{}.16b", [VD, VN, VM];
    Eor = 0x6e20_1c00, "eor v{}.16b, v{}.16b, v{}.16b", [VD, VN, VM];
    Not = 0x6e20_5800, "mvn v{}.16b, v{}.16b", [VD, VN];
    Bsl = 0x6e60_1c00, "bsl v{}.16b, v{}.16b, v{}.16b", [VD, VN, VM];
    Bit = 0x6ea0_1c00, "bit v{}.16b, v{}.16b, v{}.16b", [VD, VN, VM];
    Bif = 0x6ee0_1c00, "bif v{}.16b, v{}.16b, v{}.16b", [VD, VN, VM];
    Smull = 0x0e60_c000, "smull v{}.4s, v{}.4h, v{}.4h", [VD, VN, VM];
    Smull2 = 0x4e60_c000, "smull2 v{}.4s, v{}.8h, v{}.8h", [VD, VN, VM];
    Addp = 0x4ea0_bc00, "addp v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM];
    Zip1 = 0x4e80_3800, "zip1 v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM];
    Zip2 = 0x4e80_7800, "zip2 v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM];
    Zip1Wide = 0x4ec0_3800, "zip1 v{}.2d, v{}.2d, v{}.2d", [VD, VN, VM];
    Zip2Wide = 0x4ec0_7800, "zip2 v{}.2d, v{}.2d, v{}.2d", [VD, VN, VM];
    Uzp1 = 0x4e80_1800, "uzp1 v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM];
    Fsqrt = 0x6ea1_f800, "fsqrt v{}.4s, v{}.4s", [VD, VN];
    Frintm = 0x4e21_9800, "frintm v{}.4s, v{}.4s", [VD, VN];
    Frintp = 0x4ea1_8800, "frintp v{}.4s, v{}.4s", [VD, VN];
    Frintn = 0x4e21_8800, "frintn v{}.4s, v{}.4s", [VD, VN];
    Frintz = 0x4ea1_9800, "frintz v{}.4s, v{}.4s", [VD, VN];
    Fcvtzs = 0x4ea1_b800, "fcvtzs v{}.4s, v{}.4s", [VD, VN];
    Fcvtns = 0x4e21_a800, "fcvtns v{}.4s, v{}.4s", [VD, VN];
    Scvtf = 0x4e21_d800, "scvtf v{}.4s, v{}.4s", [VD, VN];
    Shl = 0x4f00_5400, "shl v{}.4s, v{}.4s, #{}", [VD, VN, Left(16, 32)];
    Ushr = 0x6f00_0400, "ushr v{}.4s, v{}.4s, #{}", [VD, VN, Right(16, 64)];
    Sshr = 0x4f00_0400, "sshr v{}.4s, v{}.4s, #{}", [VD, VN, Right(16, 64)];
    Rev64 = 0x4ea0_0800, "rev64 v{}.4s, v{}.4s", [VD, VN];
    ExtHalf = 0x6e00_4000, "ext v{}.16b, v{}.16b, v{}.16b, #8", [VD, VN, VM];
    Umaxv = 0x6eb0_a800, "umaxv s{}, v{}.4s", [VD, VN];
    UxtlBytes = 0x2f08_a400, "uxtl v{}.8h, v{}.8b", [VD, VN];
    SxtlBytes = 0x0f08_a400, "sxtl v{}.8h, v{}.8b", [VD, VN];
    UxtlHalves = 0x2f10_a400, "uxtl v{}.4s, v{}.4h", [VD, VN];
    SxtlHalves = 0x0f10_a400, "sxtl v{}.4s, v{}.4h", [VD, VN];
    SxtlLanes = 0x0f20_a400, "sxtl v{}.2d, v{}.2s", [VD, VN];
    Sxtl2Lanes = 0x4f20_a400, "sxtl2 v{}.2d, v{}.4s", [VD, VN];
    XtnHalves = 0x0e61_2800, "xtn v{}.4h, v{}.4s", [VD, VN];
    XtnBytes = 0x0e21_2800, "xtn v{}.8b, v{}.8h", [VD, VN];
    XtnLanes = 0x0ea1_2800, "xtn v{}.2s, v{}.2d", [VD, VN];
    FcvtlHalves = 0x0e21_7800, "fcvtl v{}.4s, v{}.4h", [VD, VN];
    FcvtnHalves = 0x0e21_6800, "fcvtn v{}.4h, v{}.4s", [VD, VN];
    FaddWide = 0x4e60_d400, "fadd v{}.2d, v{}.2d, v{}.2d", [VD, VN, VM];
    FsubWide = 0x4ee0_d400, "fsub v{}.2d, v{}.2d, v{}.2d", [VD, VN, VM];
    FmulWide = 0x6e60_dc00, "fmul v{}.2d, v{}.2d, v{}.2d", [VD, VN, VM];
    FdivWide = 0x6e60_fc00, "fdiv v{}.2d, v{}.2d, v{}.2d", [VD, VN, VM];
    FcmeqWide = 0x4e60_e400, "fcmeq v{}.2d, v{}.2d, v{}.2d", [VD, VN, VM];
    FcmgeWide = 0x6e60_e400, "fcmge v{}.2d, v{}.2d, v{}.2d", [VD, VN, VM];
    FcmgtWide = 0x6ee0_e400, "fcmgt v{}.2d, v{}.2d, v{}.2d", [VD, VN, VM];
    AddWide = 0x4ee0_8400, "add v{}.2d, v{}.2d, v{}.2d", [VD, VN, VM];
    SubWide = 0x6ee0_8400, "sub v{}.2d, v{}.2d, v{}.2d", [VD, VN, VM];
    CmeqWide = 0x6ee0_8c00, "cmeq v{}.2d, v{}.2d, v{}.2d", [VD, VN, VM];
    CmgeWide = 0x4ee0_3c00, "cmge v{}.2d, v{}.2d, v{}.2d", [VD, VN, VM];
    CmgtWide = 0x4ee0_3400, "cmgt v{}.2d, v{}.2d, v{}.2d", [VD, VN, VM];
    Umull = 0x2ea0_c000, "umull v{}.2d, v{}.2s, v{}.2s", [VD, VN, VM];
    Ushl = 0x6ee0_4400, "ushl v{}.2d, v{}.2d, v{}.2d", [VD, VN, VM];
    NegWide = 0x6ee0_b800, "neg v{}.2d, v{}.2d", [VD, VN];
    FsqrtWide = 0x6ee1_f800, "fsqrt v{}.2d, v{}.2d", [VD, VN];
    FrintmWide = 0x4e61_9800, "frintm v{}.2d, v{}.2d", [VD, VN];
    FrintpWide = 0x4ee1_8800, "frintp v{}.2d, v{}.2d", [VD, VN];
    FrintnWide = 0x4e61_8800, "frintn v{}.2d, v{}.2d", [VD, VN];
    FrintzWide = 0x4ee1_9800, "frintz v{}.2d, v{}.2d", [VD, VN];
    FcvtzsWide = 0x4ee1_b800, "fcvtzs v{}.2d, v{}.2d", [VD, VN];
    ScvtfWide = 0x4e61_d800, "scvtf v{}.2d, v{}.2d", [VD, VN];
    FcvtlLanes = 0x0e61_7800, "fcvtl v{}.2d, v{}.2s", [VD, VN];
    FcvtnLanes = 0x0e61_6800, "fcvtn v{}.2s, v{}.2d", [VD, VN];
    ShlWide = 0x4f00_5400, "shl v{}.2d, v{}.2d, #{}", [VD, VN, Left(16, 64)];
    UshrWide = 0x6f00_0400, "ushr v{}.2d, v{}.2d, #{}", [VD, VN, Right(16, 128)];
}

impl Field {
    /// The bits of an operand, at their place in the word.
    ///
    /// # Errors
    /// `Internal` where the operand does not fit the field: a bug.
    fn bits(self, operand: i64) -> Result<u32> {
        let misfit = || Error::internal(format!("{operand} has no encoding as {self:?}"));
        // The value of a field of `bits` bits.
        let number = |value: i64, bits: u32| {
            let fits = (0..1 << bits).contains(&value);
            if fits { Ok(value as u32) } else { Err(misfit()) }
        };
        Ok(match self {
            V(lsb) | X(lsb) | W(lsb) | S(lsb) => number(operand, 5)? << lsb,
            Twice => number(operand, 5)? << 5 | number(operand, 5)? << 16,
            Unsigned(lsb, bits, scale) if operand % scale == 0 => number(operand / scale, bits)? << lsb,
            Signed(lsb, bits, scale) if operand % scale == 0 => {
                let half = 1 << (bits - 1);
                // Adds `half` for the check, and takes it away again modulo the field.
                let shifted = number(operand / scale + half, bits)?;
                (shifted ^ half as u32) << lsb
            }
            Unsigned(..) | Signed(..) => return Err(misfit()),
            Left(lsb, width) if operand < width => (width as u32 | number(operand, 6)?) << lsb,
            Right(lsb, twice) if (1..=twice / 2).contains(&operand) => ((twice - operand) as u32) << lsb,
            Left(..) | Right(..) => return Err(misfit()),
            Lane => (number(operand, 2)? & 1) << 21 | (operand as u32 >> 1) << 11,
            MemoryLane => (number(operand, 2)? & 1) << 12 | (operand as u32 >> 1) << 30,
            SplitByte => (number(operand, 8)? & 31) << 5 | (operand as u32 >> 5) << 16,
            Condition => number(operand, 4)?,
        })
    }
}

impl Op {
    /// The word of the instruction with these operands, in the order of the text.
    ///
    /// # Errors
    /// `Internal` where an operand does not fit its field, or the number of operands differs: a bug.
    pub fn encode(self, operands: &[i64]) -> Result<u32> {
        let row = self.row();
        if row.fields.len() != operands.len() {
            return Err(Error::internal(format!("{self:?} has {} operands", row.fields.len())));
        }
        let mut word = row.word;
        for (field, operand) in row.fields.iter().zip(operands) {
            word |= field.bits(*operand)?;
        }
        Ok(word)
    }
}
