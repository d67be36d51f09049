//! Operations on 64-bit lanes, of which a vector has half as many as lanes of 32 bits.
//!
//! The *first half* of a vector of 32-bit lanes are the lanes at the lower addresses in memory: as many as there are
//! 64-bit lanes.

use super::VInst;

impl VInst {
    /// Whether the step works on 64-bit lanes or on their masks.
    pub(crate) fn is_wide(&self) -> bool {
        matches!(
            self,
            VInst::WideBinary(..)
                | VInst::WideUnary(..)
                | VInst::WideShift(..)
                | VInst::WideConstant(..)
                | VInst::WideBroadcast(..)
                | VInst::WideCompare(..)
                | VInst::WideCompareInt(..)
                | VInst::WideSelect(..)
                | VInst::MaskHalf(..)
                | VInst::AnyLane(..)
        )
    }
}

/// Arithmetic on two vectors, lane by lane unless noted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WideBinary {
    /// Sum of doubles.
    Add,
    /// Difference of doubles.
    Sub,
    /// Product of doubles.
    Mul,
    /// Quotient of doubles.
    Div,
    /// `a < b ? a : b`, so `b` where they are unordered or both zero.
    Min,
    /// `a > b ? a : b`, so `b` where they are unordered or both zero.
    Max,
    /// Integer sum.
    AddInt,
    /// Integer difference.
    SubInt,
    /// Low half of the integer product. Only if the shape has `long_ints`.
    MulInt,
    /// The product of the low halves, which are unsigned.
    MulLow,
    /// Shifts left by the second operand, which is below 64.
    ShiftLeft,
    /// Shifts right by the second operand, which is below 64, filled with zeros.
    ShiftRight,
    /// The first halves of both vectors, one after the other.
    JoinHalves,
}

/// Arithmetic on one vector, lane by lane unless noted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WideUnary {
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
    /// The second half of a vector, as the first half of the result, whose other half is undefined.
    SecondHalf,
    /// The integers of the first half, sign-extended.
    ExtendInts,
    /// The integers of the first half as doubles.
    IntsToDoubles,
    /// The floats of the first half as doubles.
    FloatsToDoubles,
    /// The low halves of the lanes, as the first half of the result, whose other half is undefined.
    LowInts,
    /// Doubles as floats, rounded to nearest, in the first half of the result, whose other half is undefined.
    DoublesToFloats,
    /// Doubles as 32-bit integers, toward zero, in the first half of the result, whose other half is undefined. A lane
    /// is undefined where the integer doesn't fit.
    DoublesToInts,
    /// Integers as doubles, rounded to nearest. This and the next two exist only if the shape has `long_ints`.
    LongsToDoubles,
    /// Integers as floats, rounded to nearest, in the first half of the result, whose other half is undefined.
    LongsToFloats,
    /// Doubles as integers, toward zero. A lane is undefined where the integer doesn't fit.
    DoublesToLongs,
}
