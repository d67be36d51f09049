//! [`V`]: a value of the code that is being emitted. It has the operators of Rust, so that formulas are easy to read.
//!
//! All code is straight-line: if a definition has cases, all are computed and [`V::pick`] selects one. A [`Sink`] emits
//! the instructions, for one number or for the lanes of a vector. Both compute the same bits, because all operations
//! are exact or rounded once.

use crate::error::Result;
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Neg, Shl, Shr, Sub};

/// The type of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A double.
    Float,
    /// A 64-bit integer.
    Int,
    /// A truth value.
    Truth,
}

/// An operation on one value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unary {
    /// The bits of a double.
    Bits,
    /// The double with these bits.
    WithBits,
    /// A double whose value is an integer in the range of `i64`, as that integer.
    ToInt,
    /// A double whose value is an integer in -2^51..2^51, as that integer. Other doubles give any integer.
    ToSmallInt,
    /// A signed integer as a double.
    ToFloat,
    /// An unsigned integer as a double.
    UnsignedToFloat,
    /// A truth value as an integer.
    TruthToInt,
    Abs,
    Sqrt,
    /// Nearest integer, halves to even.
    Round,
    Trunc,
    NegFloat,
    NegInt,
    /// The opposite of a truth value.
    Not,
}

/// An operation on two values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Binary {
    AddFloat,
    SubFloat,
    MulFloat,
    DivFloat,
    /// The smaller double, or NaN if either is NaN. The second operand is a constant other than zero.
    Min,
    /// The larger double, or NaN if either is NaN. The second operand is a constant other than zero.
    Max,
    /// The magnitude of the first and the sign of the second double.
    CopySign,
    AddInt,
    SubInt,
    MulInt,
    /// The upper half of the product of two unsigned integers.
    MulHigh,
    /// Shifts left by a distance below 64.
    ShiftLeft,
    /// Shifts right by a distance below 64, filled with zeros.
    ShiftRight,
    AndInt,
    OrInt,
    AndTruth,
    OrTruth,
    /// Comparisons of doubles, which are false for NaN.
    Lt,
    Gt,
    Ge,
    Eq,
    /// Whether either double is NaN.
    Unordered,
    /// Comparisons of signed integers.
    IntLt,
    IntGe,
    IntEq,
    /// Comparison of unsigned integers.
    Below,
}

/// A value by its number in the code of a sink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Handle(pub(crate) u32);

/// Code of a branch. Returns the values that it gives.
pub(crate) type BranchCode<'a> = &'a mut dyn FnMut() -> Result<Vec<(Handle, Kind)>>;

/// The code that the instructions of a formula are appended to.
pub(crate) trait Sink {
    /// A constant double.
    fn float(&self, value: f64) -> Handle;

    /// A constant integer.
    fn int(&self, value: i64) -> Handle;

    /// See [`Unary`].
    fn unary(&self, op: Unary, x: Handle) -> Handle;

    /// See [`Binary`].
    fn binary(&self, op: Binary, x: Handle, y: Handle) -> Handle;

    /// Shifts an integer left by a constant, or right with copies of the sign bit.
    fn shift(&self, is_left: bool, x: Handle, by: u8) -> Handle;

    /// The first value if the truth value holds, else the second.
    fn select(&self, truth: Handle, yes: Handle, no: Handle) -> Handle;

    /// Word `idx + offset` of a read-only table.
    fn lookup(&self, table: &Table, idx: Handle, offset: usize) -> Result<Handle>;

    /// The values of `yes` if the truth value holds, else those of `no`. Both may be computed.
    fn branch(&self, truth: Handle, yes: BranchCode<'_>, no: BranchCode<'_>) -> Result<Vec<Handle>>;
}

/// A read-only table.
pub(crate) struct Table {
    /// Part of the symbol's name.
    pub(crate) name: &'static str,
    pub(crate) words: &'static [u64],
    /// The largest index, without an offset.
    pub(crate) max_idx: i64,
    /// The largest index for arguments that are representable in `f32`.
    pub(crate) max_idx_f32: i64,
}

/// A double, a 64-bit integer, or a truth value.
#[derive(Clone, Copy)]
pub(super) struct V<'e> {
    sink: &'e dyn Sink,
    handle: Handle,
    kind: Kind,
}

impl<'e> V<'e> {
    /// A double in the code of a sink.
    pub(super) fn new(sink: &'e dyn Sink, handle: Handle) -> V<'e> {
        V { sink, handle, kind: Kind::Float }
    }

    /// Its number in the code of the sink.
    pub(super) fn handle(self) -> Handle {
        self.handle
    }

    fn unary(self, op: Unary, kind: Kind) -> V<'e> {
        V { handle: self.sink.unary(op, self.handle), kind, ..self }
    }

    fn binary(self, op: Binary, other: V<'e>, kind: Kind) -> V<'e> {
        V { handle: self.sink.binary(op, self.handle, other.handle), kind, ..self }
    }

    fn compare(self, op: Binary, other: V<'e>) -> V<'e> {
        self.binary(op, other, Kind::Truth)
    }

    fn is_float(self) -> bool {
        self.kind == Kind::Float
    }

    /// A double.
    pub(super) fn float(self, value: f64) -> V<'e> {
        V { handle: self.sink.float(value), kind: Kind::Float, ..self }
    }

    /// A 64-bit integer.
    pub(super) fn int(self, value: i64) -> V<'e> {
        V { handle: self.sink.int(value), kind: Kind::Int, ..self }
    }

    /// See [`Unary::Bits`].
    pub(super) fn bits(self) -> V<'e> {
        self.unary(Unary::Bits, Kind::Int)
    }

    /// See [`Unary::WithBits`].
    pub(super) fn with_bits(self) -> V<'e> {
        self.unary(Unary::WithBits, Kind::Float)
    }

    /// See [`Unary::ToInt`].
    pub(super) fn to_int(self) -> V<'e> {
        self.unary(Unary::ToInt, Kind::Int)
    }

    /// See [`Unary::ToSmallInt`].
    pub(super) fn to_small_int(self) -> V<'e> {
        self.unary(Unary::ToSmallInt, Kind::Int)
    }

    /// See [`Unary::ToFloat`].
    pub(super) fn to_float(self) -> V<'e> {
        self.unary(Unary::ToFloat, Kind::Float)
    }

    /// See [`Unary::UnsignedToFloat`].
    pub(super) fn unsigned_to_float(self) -> V<'e> {
        self.unary(Unary::UnsignedToFloat, Kind::Float)
    }

    /// See [`Unary::TruthToInt`].
    pub(super) fn truth_to_int(self) -> V<'e> {
        self.unary(Unary::TruthToInt, Kind::Int)
    }

    pub(super) fn abs(self) -> V<'e> {
        self.unary(Unary::Abs, Kind::Float)
    }

    pub(super) fn sqrt(self) -> V<'e> {
        self.unary(Unary::Sqrt, Kind::Float)
    }

    /// See [`Unary::Round`].
    pub(super) fn round(self) -> V<'e> {
        self.unary(Unary::Round, Kind::Float)
    }

    pub(super) fn trunc(self) -> V<'e> {
        self.unary(Unary::Trunc, Kind::Float)
    }

    /// See [`Binary::Min`].
    pub(super) fn min(self, other: f64) -> V<'e> {
        self.binary(Binary::Min, self.float(other), Kind::Float)
    }

    /// See [`Binary::Max`].
    pub(super) fn max(self, other: f64) -> V<'e> {
        self.binary(Binary::Max, self.float(other), Kind::Float)
    }

    /// See [`Binary::CopySign`].
    pub(super) fn copysign(self, sign: V<'e>) -> V<'e> {
        self.binary(Binary::CopySign, sign, Kind::Float)
    }

    /// The double without the lower half of its bits.
    pub(super) fn high(self) -> V<'e> {
        (self.bits() & self.int(!0xffff_ffff)).with_bits()
    }

    /// See [`Binary::MulHigh`].
    pub(super) fn mul_high(self, other: V<'e>) -> V<'e> {
        self.binary(Binary::MulHigh, other, Kind::Int)
    }

    /// See [`Binary::ShiftRight`].
    pub(super) fn shr_unsigned(self, by: V<'e>) -> V<'e> {
        self.binary(Binary::ShiftRight, by, Kind::Int)
    }

    /// See [`Binary::ShiftLeft`].
    pub(super) fn shl_by(self, by: V<'e>) -> V<'e> {
        self.binary(Binary::ShiftLeft, by, Kind::Int)
    }

    /// Word `self + offset` of a table.
    pub(super) fn lookup(self, table: &Table, offset: usize) -> Result<V<'e>> {
        Ok(V { handle: self.sink.lookup(table, self.handle, offset)?, kind: Kind::Int, ..self })
    }

    pub(super) fn lt(self, other: f64) -> V<'e> {
        self.compare(Binary::Lt, self.float(other))
    }

    pub(super) fn gt(self, other: f64) -> V<'e> {
        self.compare(Binary::Gt, self.float(other))
    }

    pub(super) fn ge(self, other: f64) -> V<'e> {
        self.compare(Binary::Ge, self.float(other))
    }

    pub(super) fn eq(self, other: f64) -> V<'e> {
        self.compare(Binary::Eq, self.float(other))
    }

    /// Equality of two doubles.
    pub(super) fn same(self, other: V<'e>) -> V<'e> {
        self.compare(Binary::Eq, other)
    }

    pub(super) fn is_nan(self) -> V<'e> {
        self.compare(Binary::Unordered, self)
    }

    pub(super) fn int_lt(self, other: i64) -> V<'e> {
        self.compare(Binary::IntLt, self.int(other))
    }

    pub(super) fn int_ge(self, other: i64) -> V<'e> {
        self.compare(Binary::IntGe, self.int(other))
    }

    pub(super) fn int_eq(self, other: i64) -> V<'e> {
        self.compare(Binary::IntEq, self.int(other))
    }

    /// Whether an unsigned sum has wrapped: it is below one of its terms.
    pub(super) fn wrapped(self, term: V<'e>) -> V<'e> {
        self.compare(Binary::Below, term).truth_to_int()
    }

    /// `!self` of a truth value.
    pub(super) fn not(self) -> V<'e> {
        self.unary(Unary::Not, Kind::Truth)
    }

    /// The first argument if this truth value holds, else the second.
    pub(super) fn pick(self, yes: V<'e>, no: V<'e>) -> V<'e> {
        V { handle: self.sink.select(self.handle, yes.handle, no.handle), ..yes }
    }

    /// `pick` with a constant.
    pub(super) fn pick_const(self, yes: f64, no: V<'e>) -> V<'e> {
        self.pick(self.float(yes), no)
    }

    /// `c[0] + self * (c[1] + self * (…))`.
    pub(super) fn poly(self, coefficients: &[f64]) -> V<'e> {
        let (last, rest) = coefficients.split_last().expect("a polynomial has a coefficient");
        rest.iter().rev().fold(self.float(*last), |sum, c| self * sum + *c)
    }

    /// `self * 2^k`, rounded once even if it is subnormal, for `|k| < 2000`.
    pub(super) fn scale(self, k: V<'e>) -> V<'e> {
        let half = k >> 1;
        let rest = k - half;
        let power = |k: V<'e>| ((k + 1023) << 52).with_bits();
        self * power(half) * power(rest)
    }

    /// The values of the first closure if this truth value holds, else those of the second. Both may be computed.
    pub(super) fn branch<const N: usize>(
        self,
        yes: impl Fn() -> Result<[V<'e>; N]>,
        no: impl Fn() -> Result<[V<'e>; N]>,
    ) -> Result<[V<'e>; N]> {
        let mut kinds = Vec::new();
        let handles = |values: [V<'e>; N]| values.map(|v| (v.handle, v.kind)).to_vec();
        let merged = self.sink.branch(
            self.handle,
            &mut || {
                let values = handles(yes()?);
                kinds = values.iter().map(|(_, kind)| *kind).collect();
                Ok(values)
            },
            &mut || Ok(handles(no()?)),
        )?;
        Ok(std::array::from_fn(|idx| V { handle: merged[idx], kind: kinds[idx], ..self }))
    }
}

macro_rules! arithmetic {
    ($($trait:ident $method:ident $float:ident $int:ident;)*) => { $(
        impl<'e> $trait for V<'e> {
            type Output = V<'e>;
            fn $method(self, other: V<'e>) -> V<'e> {
                let op = if self.is_float() { Binary::$float } else { Binary::$int };
                self.binary(op, other, self.kind)
            }
        }
        impl<'e> $trait<f64> for V<'e> {
            type Output = V<'e>;
            fn $method(self, other: f64) -> V<'e> {
                $trait::$method(self, self.float(other))
            }
        }
        impl<'e> $trait<V<'e>> for f64 {
            type Output = V<'e>;
            fn $method(self, other: V<'e>) -> V<'e> {
                $trait::$method(other.float(self), other)
            }
        }
        impl<'e> $trait<i64> for V<'e> {
            type Output = V<'e>;
            fn $method(self, other: i64) -> V<'e> {
                $trait::$method(self, self.int(other))
            }
        }
    )* };
}

arithmetic! {
    Add add AddFloat AddInt;
    Sub sub SubFloat SubInt;
    Mul mul MulFloat MulInt;
}

impl<'e> Div for V<'e> {
    type Output = V<'e>;
    fn div(self, other: V<'e>) -> V<'e> {
        self.binary(Binary::DivFloat, other, Kind::Float)
    }
}

impl<'e> Div<V<'e>> for f64 {
    type Output = V<'e>;
    fn div(self, other: V<'e>) -> V<'e> {
        other.float(self) / other
    }
}

impl<'e> Neg for V<'e> {
    type Output = V<'e>;
    fn neg(self) -> V<'e> {
        let op = if self.is_float() { Unary::NegFloat } else { Unary::NegInt };
        self.unary(op, self.kind)
    }
}

impl<'e> BitAnd for V<'e> {
    type Output = V<'e>;
    fn bitand(self, other: V<'e>) -> V<'e> {
        let op = if self.kind == Kind::Truth { Binary::AndTruth } else { Binary::AndInt };
        self.binary(op, other, self.kind)
    }
}

impl<'e> BitOr for V<'e> {
    type Output = V<'e>;
    fn bitor(self, other: V<'e>) -> V<'e> {
        let op = if self.kind == Kind::Truth { Binary::OrTruth } else { Binary::OrInt };
        self.binary(op, other, self.kind)
    }
}

impl<'e> Shl<i64> for V<'e> {
    type Output = V<'e>;
    fn shl(self, by: i64) -> V<'e> {
        V { handle: self.sink.shift(true, self.handle, by as u8), ..self }
    }
}

/// Arithmetic.
impl<'e> Shr<i64> for V<'e> {
    type Output = V<'e>;
    fn shr(self, by: i64) -> V<'e> {
        V { handle: self.sink.shift(false, self.handle, by as u8), ..self }
    }
}
