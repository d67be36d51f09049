//! Element types that are stored and converted, but not computed with: floats of 8 and 4 bits, integers of 4 and 2
//! bits.
//!
//! A tensor of such a type has one byte per element: the value of an integer (`i8` or `u8`), or the bits of a float
//! (`u8`). In model files, elements of less than 8 bits are packed. In inputs and outputs of the artefact they are not.
//! The scope records the storage type of values by their names. Operators that don't read it are refused.

use crate::{
    error::Result,
    graph::{Graph, Value},
    scalar::{BinaryOp, CompareOp, Scalar, UnaryOp},
};
use std::ops::RangeInclusive;
use symshape_runtime::DType;

/// A type that is only stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StorageType {
    /// A float of a sign, exponent and mantissa.
    Float(Float),
    /// `2^(byte - 127)`; 255 is NaN.
    Power,
    /// An integer of `bits` bits.
    Int { bits: u32, signed: bool },
}

/// Floats with a sign bit, by their special values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Float {
    /// No infinities.
    E4M3,
    /// No infinities; the code of -0 is NaN.
    E4M3Fnuz,
    /// Infinities, as in IEEE 754.
    E5M2,
    /// No infinities; the code of -0 is NaN.
    E5M2Fnuz,
    /// Four bits without infinities and NaN. NaN converts to -0.
    E2M1,
}

/// The bit format of a float.
struct Format {
    /// Number of mantissa bits.
    mantissa: i64,
    bias: i64,
    /// Code of the largest finite value.
    largest: i64,
    /// Code of larger values that are not saturated.
    above: i64,
    /// Code of NaN.
    nan: i64,
    /// Sign bit.
    sign: i64,
}

impl Float {
    fn format(self) -> Format {
        match self {
            Float::E4M3 => Format { mantissa: 3, bias: 7, largest: 0x7e, above: 0x7f, nan: 0x7f, sign: 0x80 },
            Float::E4M3Fnuz => {
                Format { mantissa: 3, bias: 8, largest: 0x7f, above: 0x80, nan: 0x80, sign: 0x80 }
            }
            Float::E5M2 => {
                Format { mantissa: 2, bias: 15, largest: 0x7b, above: 0x7c, nan: 0x7e, sign: 0x80 }
            }
            Float::E5M2Fnuz => {
                Format { mantissa: 2, bias: 16, largest: 0x7f, above: 0x80, nan: 0x80, sign: 0x80 }
            }
            Float::E2M1 => Format { mantissa: 1, bias: 1, largest: 7, above: 7, nan: 8, sign: 8 },
        }
    }

    fn has_minus_zero(self) -> bool {
        !matches!(self, Float::E4M3Fnuz | Float::E5M2Fnuz)
    }
}

/// The types by ONNX's codes and names.
const TYPES: [(i32, &str, StorageType); 10] = [
    (17, "float8e4m3fn", StorageType::Float(Float::E4M3)),
    (18, "float8e4m3fnuz", StorageType::Float(Float::E4M3Fnuz)),
    (19, "float8e5m2", StorageType::Float(Float::E5M2)),
    (20, "float8e5m2fnuz", StorageType::Float(Float::E5M2Fnuz)),
    (21, "uint4", StorageType::Int { bits: 4, signed: false }),
    (22, "int4", StorageType::Int { bits: 4, signed: true }),
    (23, "float4e2m1", StorageType::Float(Float::E2M1)),
    (24, "float8e8m0", StorageType::Power),
    (25, "uint2", StorageType::Int { bits: 2, signed: false }),
    (26, "int2", StorageType::Int { bits: 2, signed: true }),
];

/// How a conversion rounds, and how it treats values out of range.
#[derive(Clone, Copy)]
pub(crate) struct Rounding {
    /// Whether larger values become the largest finite value.
    pub(crate) saturate: bool,
    /// The direction of conversions to [`StorageType::Power`].
    pub(crate) direction: Direction,
}

/// The rounding direction between two powers of two.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Direction {
    Up,
    Down,
    Nearest,
}

impl StorageType {
    /// The type with ONNX's code `code`, if it is a storage type.
    pub(crate) fn from_code(code: i32) -> Option<StorageType> {
        TYPES.iter().find(|(known, ..)| *known == code).map(|(.., storage_type)| *storage_type)
    }

    /// As [`StorageType::from_code`], for an attribute.
    pub(crate) fn from_attribute(code: i64) -> Option<StorageType> {
        i32::try_from(code).ok().and_then(StorageType::from_code)
    }

    /// ONNX's code and name.
    fn known_as(self) -> (i32, &'static str) {
        let found = TYPES.iter().find(|(.., storage_type)| *storage_type == self);
        found.map_or((0, "a narrow type"), |(code, name, _)| (*code, name))
    }

    /// ONNX's code.
    pub(crate) fn code(self) -> i32 {
        self.known_as().0
    }

    /// ONNX's name.
    pub(crate) fn name(self) -> &'static str {
        self.known_as().1
    }

    /// Bits of an element in a model file.
    pub(crate) fn bits(self) -> u32 {
        match self {
            StorageType::Float(Float::E2M1) => 4,
            StorageType::Float(_) | StorageType::Power => 8,
            StorageType::Int { bits, .. } => bits,
        }
    }

    /// The type of the bytes that hold the elements.
    pub(crate) fn byte_dtype(self) -> DType {
        match self {
            StorageType::Int { signed: true, .. } => DType::I8,
            StorageType::Int { .. } | StorageType::Float(_) | StorageType::Power => DType::U8,
        }
    }

    /// The byte that holds an element with these bits.
    pub(crate) fn byte(self, bits: u8) -> u8 {
        match self {
            StorageType::Int { bits: width, signed: true } => {
                ((bits << (8 - width)) as i8 >> (8 - width)) as u8
            }
            StorageType::Int { .. } | StorageType::Float(_) | StorageType::Power => bits,
        }
    }

    /// The smallest and largest value of an integer type.
    pub(crate) fn range(self) -> Option<RangeInclusive<i64>> {
        match self {
            StorageType::Int { bits, signed: true } => Some(-(1 << (bits - 1))..=(1 << (bits - 1)) - 1),
            StorageType::Int { bits, signed: false } => Some(0..=(1 << bits) - 1),
            StorageType::Float(_) | StorageType::Power => None,
        }
    }

    /// The values of `x`, a tensor of bytes: integers unchanged, floats as `f32`.
    pub(crate) fn widened(self, g: &mut Graph, x: Value) -> Result<Value> {
        match self {
            StorageType::Int { .. } => Ok(x),
            StorageType::Float(float) => float_value(g, x, float),
            StorageType::Power => {
                let code = g.cast(DType::U32, x)?;
                let bits = shift(g, BinaryOp::Shl, code, 23)?;
                let power = g.bits(DType::F32, bits)?;
                let zero = equals(g, code, 0)?;
                let last = equals(g, code, 255)?;
                let smallest = g.scalar(Scalar::f32(f32::from_bits(1 << 22)))?;
                let power = g.select(zero, smallest, power)?;
                let nan = g.scalar(Scalar::f32(f32::NAN))?;
                g.select(last, nan, power)
            }
        }
    }

    /// `x`, converted to this type, as bytes. Integers wrap.
    pub(crate) fn narrowed(self, g: &mut Graph, x: Value, rounding: Rounding) -> Result<Value> {
        match self {
            StorageType::Int { bits, signed } => {
                let wide = g.cast(DType::I32, x)?;
                let left = shift(g, BinaryOp::Shl, wide, i64::from(32 - bits))?;
                let left = if signed { left } else { g.cast(DType::U32, left)? };
                let value = shift(g, BinaryOp::Shr, left, i64::from(32 - bits))?;
                g.cast(self.byte_dtype(), value)
            }
            StorageType::Float(float) => float_bits(g, x, float, rounding.saturate),
            StorageType::Power => power_bits(g, x, rounding),
        }
    }
}

fn constant_like(g: &mut Graph, x: Value, value: i64) -> Result<Value> {
    g.scalar(Scalar::from_i64(g.dtype(x), value))
}

fn shift(g: &mut Graph, op: BinaryOp, x: Value, by: i64) -> Result<Value> {
    let by = constant_like(g, x, by)?;
    g.binary(op, x, by)
}

fn equals(g: &mut Graph, x: Value, value: i64) -> Result<Value> {
    let value = constant_like(g, x, value)?;
    g.compare(CompareOp::Eq, x, value)
}

/// The values of the codes `x`.
///
/// The bits without the sign are moved to exponent and mantissa of a single. The result is off by a constant power of
/// two. The multiplication that corrects it is exact, also for subnormal values.
fn float_value(g: &mut Graph, x: Value, float: Float) -> Result<Value> {
    let Format { mantissa, bias, largest, sign, .. } = float.format();
    let code = g.cast(DType::U32, x)?;
    let mask = constant_like(g, code, sign - 1)?;
    let size = g.and(code, mask)?;
    let bits = shift(g, BinaryOp::Shl, size, 23 - mantissa)?;

    let small = g.bits(DType::F32, bits)?;
    let scale = g.scalar(Scalar::f32(f32::from_bits(((254 - bias) as u32) << 23)))?;

    let mut value = g.mul(small, scale)?;
    if float == Float::E5M2 {
        let above = equals(g, size, largest + 1)?;
        let infinity = g.scalar(Scalar::f32(f32::INFINITY))?;
        value = g.select(above, infinity, value)?;
    }

    let bit = constant_like(g, code, sign)?;
    let bit = g.and(code, bit)?;
    let negative = equals(g, bit, sign)?;
    let minus = g.neg(value)?;
    let value = g.select(negative, minus, value)?;

    let is_nan = match float {
        Float::E2M1 => return Ok(value),
        Float::E4M3Fnuz | Float::E5M2Fnuz => equals(g, code, sign)?,
        Float::E4M3 | Float::E5M2 => {
            let last = constant_like(g, size, largest + i64::from(float == Float::E5M2))?;
            g.compare(CompareOp::Gt, size, last)?
        }
    };

    let nan = g.scalar(Scalar::f32(f32::NAN))?;
    g.select(is_nan, nan, value)
}

/// The codes of `x`, rounded to nearest, ties to even.
///
/// Normal values are rounded by an addition of just under half of the last place to the bits of the single. Subnormal
/// values are rounded by the machine: they are added to a value whose last place is the smallest subnormal value.
fn float_bits(g: &mut Graph, x: Value, float: Float, saturate: bool) -> Result<Value> {
    let Format { mantissa, bias, largest, above, nan, sign } = float.format();
    let x = g.cast(DType::F32, x)?;
    let size = g.abs(x)?;
    let bits = g.bits(DType::U32, size)?;

    let dropped = 23 - mantissa;
    let last = shift(g, BinaryOp::Shr, bits, dropped)?;
    let one = constant_like(g, bits, 1)?;
    let odd = g.and(last, one)?;
    let half = constant_like(g, bits, (1 << (dropped - 1)) - 1)?;
    let sum = g.add(bits, half)?;
    let sum = g.add(sum, odd)?;
    let rounded = shift(g, BinaryOp::Shr, sum, dropped)?;
    let rebias = constant_like(g, bits, (127 - bias) << mantissa)?;
    let normal = g.sub(rounded, rebias)?;

    let grid = f32::from_bits(((127 + 24 - bias - mantissa) as u32) << 23);
    let magic = g.scalar(Scalar::f32(grid))?;
    let moved = g.add(size, magic)?;
    let moved = g.bits(DType::U32, moved)?;
    let origin = constant_like(g, bits, i64::from(grid.to_bits()))?;
    let subnormal = g.sub(moved, origin)?;

    let smallest = g.scalar(Scalar::f32(f32::from_bits(((128 - bias) as u32) << 23)))?;
    let is_small = g.compare(CompareOp::Lt, size, smallest)?;
    let code = g.select(is_small, subnormal, normal)?;

    let largest_code = constant_like(g, code, largest)?;
    let too_large = g.compare(CompareOp::Gt, code, largest_code)?;
    let end = constant_like(g, code, if saturate { largest } else { above })?;
    let code = g.select(too_large, end, code)?;

    let top = {
        let bits = g.bits(DType::U32, x)?;
        shift(g, BinaryOp::Shr, bits, 31)?
    };
    let top = shift(g, BinaryOp::Shl, top, i64::from(sign.trailing_zeros()))?;
    let mut signed = g.or(code, top)?;
    if !float.has_minus_zero() {
        let zero = equals(g, code, 0)?;
        signed = g.select(zero, code, signed)?;
    }
    let is_nan = g.unary(UnaryOp::IsNan, x)?;
    let nan = constant_like(g, code, nan)?;
    let nan = if float.has_minus_zero() && float != Float::E2M1 { g.or(nan, top)? } else { nan };
    let code = g.select(is_nan, nan, signed)?;
    g.cast(DType::U8, code)
}

/// The exponent of `x` as a power of two, rounded as `rounding` says. Negative values and NaN become NaN, zero becomes
/// the smallest power.
fn power_bits(g: &mut Graph, x: Value, rounding: Rounding) -> Result<Value> {
    let x = g.cast(DType::F32, x)?;
    let bits = g.bits(DType::U32, x)?;
    let exponent = shift(g, BinaryOp::Shr, bits, 23)?;
    let mask = constant_like(g, bits, (1 << 23) - 1)?;
    let rest = g.and(bits, mask)?;

    // The smallest power is a subnormal single: half a unit of the exponent.
    let (over, over_smallest) = match rounding.direction {
        Direction::Up => (0, 1 << 22),
        Direction::Down => ((1 << 23) - 1, (1 << 23) - 1),
        Direction::Nearest => ((1 << 22) - 1, 3 * (1 << 21) - 1),
    };

    let small = equals(g, exponent, 0)?;
    let over = constant_like(g, bits, over)?;
    let over_smallest = constant_like(g, bits, over_smallest)?;
    let limit = g.select(small, over_smallest, over)?;
    let up = g.compare(CompareOp::Gt, rest, limit)?;

    let up = g.cast(DType::U32, up)?;
    let code = g.add(exponent, up)?;
    let largest_code = constant_like(g, code, 254)?;
    let nan = constant_like(g, code, 255)?;
    let code = if rounding.saturate { g.min(code, largest_code)? } else { g.min(code, nan)? };

    let zero = g.scalar(Scalar::f32(0.0))?;
    let negative = g.compare(CompareOp::Lt, x, zero)?;
    let is_nan = g.unary(UnaryOp::IsNan, x)?;
    let none = g.or(negative, is_nan)?;
    let code = g.select(none, nan, code)?;

    // The sign bit of -0 follows the exponent bits, so the code needs a correction.
    let is_zero = g.compare(CompareOp::Eq, x, zero)?;
    let first = constant_like(g, code, 0)?;
    let code = g.select(is_zero, first, code)?;
    g.cast(DType::U8, code)
}

#[cfg(test)]
mod tests {
    use super::{Direction, Rounding, StorageType, TYPES};
    use crate::{
        graph::{Graph, Value, eval::eval},
        tensor::{Bytes, Tensor},
    };
    use symshape_runtime::DType;

    const SATURATE: Rounding = Rounding { saturate: true, direction: Direction::Nearest };

    /// The value of a byte by the definition of its format.
    fn value(storage_type: StorageType, byte: u8) -> f64 {
        let StorageType::Float(float) = storage_type else {
            return if byte == 255 { f64::NAN } else { 2f64.powi(i32::from(byte) - 127) };
        };
        let format = float.format();
        let size = i64::from(byte) & (format.sign - 1);

        let sign = if i64::from(byte) & format.sign == 0 { 1.0 } else { -1.0 };
        if i64::from(byte) == format.nan && storage_type.name() != "float4e2m1"
            || size > format.largest.max(format.above)
        {
            return f64::NAN;
        }
        if size > format.largest {
            return if storage_type.name() == "float8e5m2" { sign * f64::INFINITY } else { f64::NAN };
        }

        let exponent = size >> format.mantissa;
        let rest = size & ((1 << format.mantissa) - 1);
        let unit = 2f64.powi((exponent.max(1) - format.bias - format.mantissa) as i32);
        let lead = if exponent > 0 { 1 << format.mantissa } else { 0 };
        sign * (lead + rest) as f64 * unit
    }

    fn run(input: Tensor, f: impl Fn(&mut Graph, Value) -> Value) -> Tensor {
        let mut g = Graph::default();
        let shape = input.shape().iter().map(|dim| (*dim).into()).collect();
        let x = g.input("x", input.dtype(), shape).expect("an input");
        let y = f(&mut g, x);
        g.output("y", y).expect("an output");
        eval(&g, &[input]).expect("it computes").remove(0)
    }

    #[test]
    fn codes_have_the_values_of_their_formats() {
        for (_, name, storage_type) in
            TYPES.iter().filter(|(_, _, storage_type)| storage_type.range().is_none())
        {
            let bytes: Vec<u8> = (0..=((1u32 << storage_type.bits()) - 1) as u8).collect();
            let input =
                Tensor::new(DType::U8, vec![bytes.len()], Bytes::Owned(bytes.clone().into())).expect("bytes");
            let wide = run(input, |g, x| storage_type.widened(g, x).expect("widened"));
            for (k, byte) in bytes.iter().enumerate() {
                let found = wide.get(k).as_f64();
                let wanted = value(*storage_type, *byte);
                let same = found == wanted && found.is_sign_negative() == wanted.is_sign_negative();
                assert!(same || found.is_nan() && wanted.is_nan(), "{name} {byte:#x}: {found} for {wanted}");
            }
        }
    }

    /// The nearest value of all; of two, the one with an even code.
    #[test]
    fn conversions_round_to_nearest_even() {
        for (_, name, storage_type) in
            TYPES.iter().filter(|(_, _, storage_type)| matches!(storage_type, StorageType::Float(_)))
        {
            let all: Vec<(u8, f64)> = (0..=((1u32 << (storage_type.bits() - 1)) - 1) as u8)
                .map(|byte| (byte, value(*storage_type, byte)))
                .filter(|(_, value)| value.is_finite())
                .collect();

            let mut numbers: Vec<f32> = all.iter().map(|(_, value)| *value as f32).collect();
            for pair in all.windows(2) {
                let middle = ((pair[0].1 + pair[1].1) / 2.0) as f32;
                numbers.extend([
                    middle,
                    f32::from_bits(middle.to_bits() - 1),
                    f32::from_bits(middle.to_bits() + 1),
                ]);
            }

            let input = Tensor::from_f32(vec![numbers.len()], &numbers).expect("numbers");
            let codes = run(input, |g, x| storage_type.narrowed(g, x, SATURATE).expect("narrowed"));

            for (k, number) in numbers.iter().enumerate() {
                let distance = |value: f64| (value - f64::from(*number)).abs();
                let nearest = all
                    .iter()
                    .min_by(|a, b| distance(a.1).total_cmp(&distance(b.1)).then((a.0 & 1).cmp(&(b.0 & 1))));
                assert_eq!(codes.get(k).as_i64() as u8, nearest.expect("values").0, "{name} of {number}");
            }
        }
    }
}
