//! The instructions that microkernels use: one table of words, assembler texts and fields. [`transfers`] has those that
//! load or store one register.
//!
//! Every instruction is a word of 32 bits. The table has the word with all fields zero, and says where each operand
//! goes. The text has `{}` for each operand, in the syntax of assemblers: a test compares the whole table with one.
//!
//! [`transfers`]: super::transfers

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
    /// A lane of 16 bits in memory.
    MemoryHalfLane,
    /// A byte in two parts.
    SplitByte,
    /// A condition, see [`CONDITIONS`].
    Condition,
}

use Field::*;

pub(super) const VD: Field = V(0);
const VN: Field = V(5);
const VM: Field = V(16);
pub(super) const XD: Field = X(0);
const XN: Field = X(5);
pub(super) const XM: Field = X(16);
pub(super) const WD: Field = W(0);
const WN: Field = W(5);
const SD: Field = S(0);
pub(super) const SN: Field = S(5);

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
    ($($operands:literal, $fields:expr => $($name:ident = $word:literal $mnemonic:literal),*;)*) => {
        /// An instruction.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Op {
            $($(#[doc = concat!($mnemonic, " ", $operands)] $name,)*)*
        }

        impl Op {
            /// All instructions.
            pub const ALL: &'static [Op] = &[$($(Op::$name),*),*];

            /// The row of the table.
            pub const fn row(self) -> Row {
                match self {
                    $($(Op::$name => {
                        Row { word: $word, text: concat!($mnemonic, " ", $operands), fields: &$fields }
                    })*)*
                }
            }
        }
    };
}

// The text of the operands and their fields, then the instructions that have them.
instructions! {
    "{}, #{}, lsl #{}", [XD, Unsigned(5, 16, 1), Unsigned(21, 2, 16)] =>
        MovZ = 0xd280_0000 "movz", MovN = 0x9280_0000 "movn", MovK = 0xf280_0000 "movk";
    "{}, {}", [XD, XM] =>
        Mov = 0xaa00_03e0 "mov";
    "{}, {}, {}", [XD, XN, XM] =>
        Add = 0x8b00_0000 "add", Sub = 0xcb00_0000 "sub", Mul = 0x9b00_7c00 "mul", AndInt = 0x8a00_0000 "and",
        EorInt = 0xca00_0000 "eor";
    "{}, {}, {}, lsl #{}", [XD, XN, XM, Unsigned(10, 6, 1)] =>
        AddShifted = 0x8b00_0000 "add";
    "{}, {}, #{}", [SD, SN, Unsigned(10, 12, 1)] =>
        AddImm = 0x9100_0000 "add", SubImm = 0xd100_0000 "sub";
    "{}, {}, #{}, lsl #12", [SD, SN, Unsigned(10, 12, 1)] =>
        AddImmHigh = 0x9140_0000 "add", SubImmHigh = 0xd140_0000 "sub";
    "{}, {}, #{}", [XD, XN, Unsigned(16, 6, 1)] =>
        Asr = 0x9340_fc00 "asr";
    "{}, {}", [XN, XM] =>
        Cmp = 0xeb00_001f "cmp";
    "{}, #{}", [SN, Unsigned(10, 12, 1)] =>
        CmpImm = 0xf100_001f "cmp", CmnImm = 0xb100_001f "cmn";
    ".+{}", [Condition, Signed(5, 19, 4)] =>
        Branch = 0x5400_0000 "b.{}";
    "", [] =>
        Ret = 0xd65f_03c0 "ret", Nop = 0xd503_201f "nop";
    "#{}", [Unsigned(5, 16, 1)] =>
        Svc = 0xd400_0001 "svc";
    "{}, {}, [{}, #{}]", [XD, X(10), SN, Signed(15, 7, 8)] =>
        StorePair = 0xa900_0000 "stp", LoadPair = 0xa940_0000 "ldp";
    "d{}, d{}, [{}, #{}]", [VD, V(10), SN, Signed(15, 7, 8)] =>
        StorePairD = 0x6d00_0000 "stp", LoadPairD = 0x6d40_0000 "ldp";
    "q{}, q{}, [{}, #{}]", [VD, V(10), SN, Signed(15, 7, 16)] =>
        LoadPairQ = 0xad40_0000 "ldp";
    "pldl2keep, [{}, #{}]", [SN, Unsigned(10, 12, 8)] =>
        Prfm = 0xf980_0002 "prfm";
    "pstl1keep, [{}, #{}]", [SN, Unsigned(10, 12, 8)] =>
        PrfmWrite = 0xf980_0010 "prfm";
    "q{}, .+{}", [VD, Signed(5, 19, 4)] =>
        LdrLiteral = 0x9c00_0000 "ldr";
    "{v{}.4s}, [{}]", [VD, SN] =>
        Ld1r = 0x4d40_c800 "ld1r";
    "{v{}.2d}, [{}]", [VD, SN] =>
        Ld1rWide = 0x4d40_cc00 "ld1r";
    "{v{}.4h}, [{}]", [VD, SN] =>
        Ld1rHalf = 0x0d40_c400 "ld1r";
    "{v{}.s}[{}], [{}]", [VD, MemoryLane, SN] =>
        Ld1Lane = 0x0d40_8000 "ld1", St1Lane = 0x0d00_8000 "st1";
    "{v{}.s}[{}], [{}], #4", [VD, MemoryLane, SN] =>
        Ld1LaneNext = 0x0ddf_8000 "ld1", St1LaneNext = 0x0d9f_8000 "st1";
    "{v{}.h}[{}], [{}], #2", [VD, MemoryHalfLane, SN] =>
        St1HalfLaneNext = 0x0d9f_4000 "st1";
    "v{}.2d, #0", [VD] =>
        MoviZero = 0x6f00_e400 "movi";
    "v{}.4s, #{}, lsl #{}", [VD, SplitByte, Unsigned(13, 2, 8)] =>
        Movi = 0x4f00_0400 "movi", Mvni = 0x6f00_0400 "mvni";
    "v{}.16b, v{}.16b", [VD, Twice] =>
        MoveVector = 0x4ea0_1c00 "mov";
    "v{}.4s, {}", [VD, WN] =>
        DupInt = 0x4e04_0c00 "dup";
    "v{}.2d, v{}.d[{}]", [VD, VN, Unsigned(20, 1, 1)] =>
        DupWideLane = 0x4e08_0400 "dup";
    "{}, v{}.s[{}]", [XD, VN, Unsigned(19, 2, 1)] =>
        SmovLane = 0x4e04_2c00 "smov";
    "{}, s{}", [WD, VN] =>
        MovToInt = 0x1e26_0000 "fmov";
    "v{}.4s, v{}.4s, v{}.4s", [VD, VN, VM] =>
        Fmla = 0x4e20_cc00 "fmla", Fadd = 0x4e20_d400 "fadd", Fsub = 0x4ea0_d400 "fsub", Fmul = 0x6e20_dc00 "fmul",
        Fdiv = 0x6e20_fc00 "fdiv", Fmin = 0x4ea0_f400 "fmin", Fmax = 0x4e20_f400 "fmax",
        Fcmeq = 0x4e20_e400 "fcmeq", Fcmge = 0x6e20_e400 "fcmge", Fcmgt = 0x6ea0_e400 "fcmgt",
        AddLanes = 0x4ea0_8400 "add", SubLanes = 0x6ea0_8400 "sub", MulLanes = 0x4ea0_9c00 "mul",
        Smin = 0x4ea0_6c00 "smin", Smax = 0x4ea0_6400 "smax", Cmeq = 0x6ea0_8c00 "cmeq", Cmge = 0x4ea0_3c00 "cmge",
        Cmgt = 0x4ea0_3400 "cmgt", Addp = 0x4ea0_bc00 "addp", Zip1 = 0x4e80_3800 "zip1", Zip2 = 0x4e80_7800 "zip2",
        Uzp1 = 0x4e80_1800 "uzp1", Uzp2 = 0x4e80_5800 "uzp2";
    "v{}.4s, v{}.4s, v{}.s[{}]", [VD, VN, VM, Lane] =>
        FmlaLane = 0x4f80_1000 "fmla";
    "v{}.4s, v{}.16b, v{}.16b", [VD, VN, VM] =>
        Sdot = 0x4e80_9400 "sdot", Smmla = 0x4e80_a400 "smmla";
    "v{}.4s, v{}.8h, v{}.8h", [VD, VN, VM] =>
        Bfmmla = 0x6e40_ec00 "bfmmla", Smull2 = 0x4e60_c000 "smull2";
    "v{}.4s, v{}.16b, v{}.4b[{}]", [VD, VN, VM, Lane] =>
        SdotLane = 0x4f80_e000 "sdot";
    "v{}.16b, v{}.16b, v{}.16b", [VD, VN, VM] =>
        And = 0x4e20_1c00 "and", Bic = 0x4e60_1c00 "bic", Orr = 0x4ea0_1c00 "orr", Eor = 0x6e20_1c00 "eor",
        Bsl = 0x6e60_1c00 "bsl", Bit = 0x6ea0_1c00 "bit", Bif = 0x6ee0_1c00 "bif",
        Zip1Bytes = 0x4e00_3800 "zip1", Zip2Bytes = 0x4e00_7800 "zip2";
    "v{}.16b, v{}.16b", [VD, VN] =>
        Not = 0x6e20_5800 "mvn";
    "v{}.4s, v{}.4h, v{}.4h", [VD, VN, VM] =>
        Smull = 0x0e60_c000 "smull";
    "v{}.2d, v{}.2d, v{}.2d", [VD, VN, VM] =>
        Zip1Wide = 0x4ec0_3800 "zip1", Zip2Wide = 0x4ec0_7800 "zip2", FaddWide = 0x4e60_d400 "fadd",
        FsubWide = 0x4ee0_d400 "fsub", FmulWide = 0x6e60_dc00 "fmul", FdivWide = 0x6e60_fc00 "fdiv",
        FcmeqWide = 0x4e60_e400 "fcmeq", FcmgeWide = 0x6e60_e400 "fcmge", FcmgtWide = 0x6ee0_e400 "fcmgt",
        AddWide = 0x4ee0_8400 "add", SubWide = 0x6ee0_8400 "sub", CmeqWide = 0x6ee0_8c00 "cmeq",
        CmgeWide = 0x4ee0_3c00 "cmge", CmgtWide = 0x4ee0_3400 "cmgt", Ushl = 0x6ee0_4400 "ushl";
    "v{}.4s, v{}.4s", [VD, VN] =>
        Fsqrt = 0x6ea1_f800 "fsqrt", Frintm = 0x4e21_9800 "frintm", Frintp = 0x4ea1_8800 "frintp",
        Frintn = 0x4e21_8800 "frintn", Frintz = 0x4ea1_9800 "frintz", Fcvtzs = 0x4ea1_b800 "fcvtzs",
        Fcvtns = 0x4e21_a800 "fcvtns", Scvtf = 0x4e21_d800 "scvtf", Rev64 = 0x4ea0_0800 "rev64";
    "v{}.4s, v{}.4s, #{}", [VD, VN, Left(16, 32)] =>
        Shl = 0x4f00_5400 "shl";
    "v{}.4s, v{}.4s, #{}", [VD, VN, Right(16, 64)] =>
        Ushr = 0x6f00_0400 "ushr", Sshr = 0x4f00_0400 "sshr";
    "v{}.16b, v{}.16b, v{}.16b, #8", [VD, VN, VM] =>
        ExtHalf = 0x6e00_4000 "ext";
    "s{}, v{}.4s", [VD, VN] =>
        Umaxv = 0x6eb0_a800 "umaxv";
    "v{}.8h, v{}.8b", [VD, VN] =>
        UxtlBytes = 0x2f08_a400 "uxtl", SxtlBytes = 0x0f08_a400 "sxtl";
    "v{}.4s, v{}.4h", [VD, VN] =>
        UxtlHalves = 0x2f10_a400 "uxtl", SxtlHalves = 0x0f10_a400 "sxtl", FcvtlHalves = 0x0e21_7800 "fcvtl";
    "v{}.4s, v{}.4h, #16", [VD, VN] =>
        ShllHalves = 0x2e61_3800 "shll";
    "v{}.2d, v{}.2s", [VD, VN] =>
        SxtlLanes = 0x0f20_a400 "sxtl", FcvtlLanes = 0x0e61_7800 "fcvtl";
    "v{}.2d, v{}.4s", [VD, VN] =>
        Sxtl2Lanes = 0x4f20_a400 "sxtl2";
    "v{}.4h, v{}.4s", [VD, VN] =>
        XtnHalves = 0x0e61_2800 "xtn", FcvtnHalves = 0x0e21_6800 "fcvtn",
        Bfcvtn = 0x0ea1_6800 "bfcvtn";
    "v{}.8h, v{}.4s", [VD, VN] =>
        Bfcvtn2 = 0x4ea1_6800 "bfcvtn2";
    "v{}.8b, v{}.8h", [VD, VN] =>
        XtnBytes = 0x0e21_2800 "xtn";
    "v{}.2s, v{}.2d", [VD, VN] =>
        XtnLanes = 0x0ea1_2800 "xtn", FcvtnLanes = 0x0e61_6800 "fcvtn";
    "v{}.2d, v{}.2s, v{}.2s", [VD, VN, VM] =>
        Umull = 0x2ea0_c000 "umull";
    "v{}.2d, v{}.2d", [VD, VN] =>
        NegWide = 0x6ee0_b800 "neg", FsqrtWide = 0x6ee1_f800 "fsqrt", FrintmWide = 0x4e61_9800 "frintm",
        FrintpWide = 0x4ee1_8800 "frintp", FrintnWide = 0x4e61_8800 "frintn", FrintzWide = 0x4ee1_9800 "frintz",
        FcvtzsWide = 0x4ee1_b800 "fcvtzs", ScvtfWide = 0x4e61_d800 "scvtf";
    "v{}.2d, v{}.2d, #{}", [VD, VN, Left(16, 64)] =>
        ShlWide = 0x4f00_5400 "shl";
    "v{}.2d, v{}.2d, #{}", [VD, VN, Right(16, 128)] =>
        UshrWide = 0x6f00_0400 "ushr";
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
            MemoryHalfLane => {
                let lane = number(operand, 3)?;
                (lane & 1) << 11 | (lane >> 1 & 1) << 12 | (lane >> 2) << 30
            }
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
        encode(row.word, row.fields, operands)
    }
}

/// The word with these operands in its fields.
///
/// # Errors
/// `Internal` where an operand does not fit its field, or the number of operands differs: a bug.
pub(super) fn encode(word: u32, fields: &[Field], operands: &[i64]) -> Result<u32> {
    if fields.len() != operands.len() {
        return Err(Error::internal(format!("{word:#010x} has {} operands", fields.len())));
    }
    let mut word = word;
    for (field, operand) in fields.iter().zip(operands) {
        word |= field.bits(*operand)?;
    }
    Ok(word)
}
