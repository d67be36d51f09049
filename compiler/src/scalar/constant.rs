//! A typed constant, stored as bits so that it can be compared and hashed.

use half::{bf16, f16};
use symshape_runtime::DType;

/// A constant of some element type. Equality compares bits, so `-0.0` differs from `0.0` and a NaN equals itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Scalar {
    dtype: DType,
    bits: u64,
}

impl Scalar {
    /// The constant whose little-endian, zero-extended memory is `bits`.
    pub fn from_bits(dtype: DType, bits: u64) -> Scalar {
        let width = 8 * dtype.size_bytes() as u32;
        Scalar { dtype, bits: if width == 64 { bits } else { bits & ((1 << width) - 1) } }
    }

    /// An `f32` constant.
    pub fn f32(value: f32) -> Scalar {
        Scalar { dtype: DType::F32, bits: u64::from(value.to_bits()) }
    }

    /// An `i64` constant.
    pub fn i64(value: i64) -> Scalar {
        Scalar { dtype: DType::I64, bits: value as u64 }
    }

    /// A `bool` constant.
    pub fn bool(value: bool) -> Scalar {
        Scalar { dtype: DType::Bool, bits: u64::from(value) }
    }

    /// `value` rounded to nearest in a float type, truncated and saturated in an integer type, `!= 0` in `Bool`.
    pub fn from_f64(dtype: DType, value: f64) -> Scalar {
        let bits = match dtype {
            DType::F32 => u64::from((value as f32).to_bits()),
            DType::F64 => value.to_bits(),
            DType::F16 => u64::from(f16::from_f32(to_odd(value)).to_bits()),
            DType::BF16 => u64::from(bf16::from_f32(to_odd(value)).to_bits()),
            DType::Bool => u64::from(value != 0.0),
            DType::U8 => u64::from(value as u8),
            DType::I8 => value as i8 as u64,
            DType::U16 => u64::from(value as u16),
            DType::I16 => value as i16 as u64,
            DType::U32 => u64::from(value as u32),
            DType::I32 => value as i32 as u64,
            DType::U64 => value as u64,
            DType::I64 => value as i64 as u64,
        };
        Scalar::from_bits(dtype, bits)
    }

    /// `value` converted: wrapped in an integer type, rounded in a float type, `!= 0` in `Bool`.
    pub fn from_i64(dtype: DType, value: i64) -> Scalar {
        match dtype {
            // Rounds once. Through f64 a 64-bit integer would be rounded twice.
            DType::F32 => Scalar::f32(value as f32),
            DType::F64 | DType::F16 | DType::BF16 => Scalar::from_f64(dtype, value as f64),
            DType::Bool => Scalar::bool(value != 0),
            _ => Scalar::from_bits(dtype, value as u64),
        }
    }

    /// The largest value of a type: +inf, the largest integer, true.
    pub fn highest(dtype: DType) -> Scalar {
        match dtype {
            DType::U64 => Scalar::from_bits(dtype, u64::MAX),
            DType::I64 => Scalar::i64(i64::MAX),
            _ => Scalar::from_f64(dtype, f64::INFINITY),
        }
    }

    /// The smallest value of a type: -inf, the smallest integer, false.
    pub fn lowest(dtype: DType) -> Scalar {
        match dtype {
            DType::Bool => Scalar::bool(false),
            _ => Scalar::from_f64(dtype, f64::NEG_INFINITY),
        }
    }

    /// The element type.
    pub fn dtype(self) -> DType {
        self.dtype
    }

    /// The memory of the constant, little-endian and zero-extended.
    pub fn bits(self) -> u64 {
        self.bits
    }

    /// The value as a double. 64-bit integers are rounded, a bool is 0 or 1.
    pub fn as_f64(self) -> f64 {
        match self.dtype {
            DType::F32 => f64::from(f32::from_bits(self.bits as u32)),
            DType::F64 => f64::from_bits(self.bits),
            DType::F16 => f16::from_bits(self.bits as u16).to_f64(),
            DType::BF16 => bf16::from_bits(self.bits as u16).to_f64(),
            DType::U64 => self.bits as f64,
            _ => self.as_i64() as f64,
        }
    }

    /// The value as an integer, sign-extended. A `u64` above `i64::MAX` wraps, a float is truncated and saturated.
    pub fn as_i64(self) -> i64 {
        match self.dtype {
            DType::I8 => i64::from(self.bits as i8),
            DType::I16 => i64::from(self.bits as i16),
            DType::I32 => i64::from(self.bits as i32),
            DType::F32 | DType::F64 | DType::F16 | DType::BF16 => self.as_f64() as i64,
            _ => self.bits as i64,
        }
    }

    /// Whether the value is not zero.
    pub(crate) fn is_true(self) -> bool {
        if self.dtype.is_float() { self.as_f64() != 0.0 } else { self.bits != 0 }
    }
}

/// A double as a single, rounded to odd: an inexact one becomes the neighbour whose last bit is set. Rounding that to a
/// shorter type gives the same result as rounding the double.
fn to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let bits = nearest.to_bits();
    if value.is_nan() || f64::from(nearest) == value || bits & 1 == 1 {
        return nearest;
    }
    let is_above = f64::from(nearest).abs() > value.abs();
    f32::from_bits(if is_above { bits - 1 } else { bits + 1 })
}
