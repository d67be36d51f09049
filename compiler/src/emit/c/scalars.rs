//! Scalar operators in C: each is an expression of its operands, which are names or in parentheses.
//!
//! [`crate::scalar::eval`] defines the operators. Signed sums and products wrap, so they are computed as unsigned
//! integers.

use super::names::value_type;
use crate::{
    error::{Error, Result},
    scalar::{BinaryOp, CompareOp, UnaryOp},
};
use symshape_runtime::DType;

/// The suffix of the helpers for this float type.
fn float_suffix(dtype: DType) -> &'static str {
    if dtype == DType::F64 { "f64" } else { "f32" }
}

/// The function of `math.h` for this float type.
fn math(name: &str, dtype: DType) -> String {
    if dtype == DType::F64 { name.into() } else { format!("{name}f") }
}

/// The suffix of the helpers for integers, which work on `i64` and `u64`.
fn int_suffix(dtype: DType) -> &'static str {
    if dtype.is_signed_int() { "i64" } else { "u64" }
}

/// The unsigned type in which arithmetic of this type wraps: at least as wide as `unsigned`, because C promotes smaller
/// types to `int`.
fn unsigned(dtype: DType) -> &'static str {
    if dtype.size_bytes() == 8 { "uint64_t" } else { "uint32_t" }
}

/// The expression for a [`UnaryOp`].
pub(super) fn unary(op: UnaryOp, dtype: DType, x: &str) -> Result<String> {
    if !dtype.is_float() {
        return int_unary(op, dtype, x);
    }

    let name = match op {
        UnaryOp::Neg => return Ok(format!("-{x}")),
        UnaryOp::Recip if dtype == DType::F64 => return Ok(format!("1.0 / {x}")),
        UnaryOp::Recip => return Ok(format!("1.0f / {x}")),
        UnaryOp::Sign => return Ok(format!("sign_{}({x})", float_suffix(dtype))),
        UnaryOp::RoundBf16 => return Ok(format!("high_f32({x})")),
        UnaryOp::IsNan => return Ok(format!("{x} != {x}")),
        UnaryOp::IsInf => return Ok(format!("{}({x}) == INFINITY", math("fabs", dtype))),
        UnaryOp::Abs => "fabs",
        UnaryOp::Floor => "floor",
        UnaryOp::Ceil => "ceil",
        UnaryOp::Round => "rint",
        UnaryOp::Trunc => "trunc",
        UnaryOp::Sqrt => "sqrt",
        UnaryOp::Exp => "exp",
        UnaryOp::Expm1 => "expm1",
        UnaryOp::Log => "log",
        UnaryOp::Log1p => "log1p",
        UnaryOp::Sin => "sin",
        UnaryOp::Cos => "cos",
        UnaryOp::Tan => "tan",
        UnaryOp::Asin => "asin",
        UnaryOp::Acos => "acos",
        UnaryOp::Atan => "atan",
        UnaryOp::Sinh => "sinh",
        UnaryOp::Cosh => "cosh",
        UnaryOp::Tanh => "tanh",
        UnaryOp::Asinh => "asinh",
        UnaryOp::Acosh => "acosh",
        UnaryOp::Atanh => "atanh",
        UnaryOp::Erf => "erf",
        UnaryOp::Not => return Err(Error::internal(format!("{op:?} of {dtype}"))),
    };

    Ok(format!("{}({x})", math(name, dtype)))
}

fn int_unary(op: UnaryOp, dtype: DType, x: &str) -> Result<String> {
    let ty = value_type(dtype);
    let wide = unsigned(dtype);
    Ok(match op {
        UnaryOp::Not if dtype == DType::Bool => format!("!{x}"),
        UnaryOp::Not => format!("({ty})~{x}"),
        UnaryOp::Neg => format!("({ty})(0 - ({wide}){x})"),
        UnaryOp::Abs if dtype.is_signed_int() => format!("{x} < 0 ? ({ty})(0 - ({wide}){x}) : {x}"),
        UnaryOp::Sign if dtype.is_signed_int() => format!("({x} > 0) - ({x} < 0)"),
        UnaryOp::Sign => format!("{x} != 0"),
        UnaryOp::Abs | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc => x.into(),
        _ => return Err(Error::internal(format!("{op:?} of {dtype}"))),
    })
}

/// The expression for a [`BinaryOp`].
pub(super) fn binary(op: BinaryOp, dtype: DType, a: &str, b: &str) -> Result<String> {
    if !dtype.is_float() {
        return int_binary(op, dtype, a, b);
    }

    let suffix = float_suffix(dtype);
    Ok(match op {
        BinaryOp::Add => format!("{a} + {b}"),
        BinaryOp::Sub => format!("{a} - {b}"),
        BinaryOp::Mul => format!("{a} * {b}"),
        BinaryOp::Div => format!("{a} / {b}"),
        BinaryOp::Min => format!("min_{suffix}({a}, {b})"),
        BinaryOp::Max => format!("max_{suffix}({a}, {b})"),
        BinaryOp::Mod => format!("mod_{suffix}({a}, {b})"),
        BinaryOp::Rem => format!("{}({a}, {b})", math("fmod", dtype)),
        BinaryOp::Pow => format!("{}({a}, {b})", math("pow", dtype)),
        BinaryOp::Atan2 => format!("{}({a}, {b})", math("atan2", dtype)),
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor | BinaryOp::Shl | BinaryOp::Shr => {
            return Err(Error::internal(format!("{op:?} of {dtype}")));
        }
    })
}

fn int_binary(op: BinaryOp, dtype: DType, a: &str, b: &str) -> Result<String> {
    let ty = value_type(dtype);
    let wide = unsigned(dtype);
    let suffix = int_suffix(dtype);
    let width = 8 * dtype.size_bytes();
    let is_bool = dtype == DType::Bool;

    Ok(match op {
        // The sum and the product of bools are bools.
        BinaryOp::Add | BinaryOp::Or if is_bool => format!("{a} | {b}"),
        BinaryOp::Mul | BinaryOp::And if is_bool => format!("{a} & {b}"),
        BinaryOp::Sub | BinaryOp::Xor if is_bool => format!("{a} ^ {b}"),
        BinaryOp::Add => format!("({ty})(({wide}){a} + ({wide}){b})"),
        BinaryOp::Sub => format!("({ty})(({wide}){a} - ({wide}){b})"),
        BinaryOp::Mul => format!("({ty})(({wide}){a} * ({wide}){b})"),
        BinaryOp::And => format!("({ty})({a} & {b})"),
        BinaryOp::Or => format!("({ty})({a} | {b})"),
        BinaryOp::Xor => format!("({ty})({a} ^ {b})"),
        BinaryOp::Div => format!("({ty})div_{suffix}({a}, {b})"),
        BinaryOp::Rem => format!("({ty})rem_{suffix}({a}, {b})"),
        BinaryOp::Mod if dtype.is_signed_int() => format!("({ty})mod_{suffix}({a}, {b})"),
        BinaryOp::Mod => format!("({ty})rem_{suffix}({a}, {b})"),
        BinaryOp::Pow => format!("({ty})pow_{suffix}({a}, {b})"),
        BinaryOp::Min => format!("({ty})min_{suffix}({a}, {b})"),
        BinaryOp::Max => format!("({ty})max_{suffix}({a}, {b})"),
        // A negative distance becomes a large one.
        BinaryOp::Shl => format!("({ty})shl_u64((uint64_t){a}, (uint64_t){b}, {width})"),
        BinaryOp::Shr if dtype.is_signed_int() => format!("({ty})shr_i64({a}, (uint64_t){b}, {width})"),
        BinaryOp::Shr => format!("({ty})shr_u64({a}, {b}, {width})"),
        BinaryOp::Atan2 => return Err(Error::internal(format!("{op:?} of {dtype}"))),
    })
}

/// The expression for a [`CompareOp`].
pub(super) fn compare(op: CompareOp, a: &str, b: &str) -> String {
    let sign = match op {
        CompareOp::Eq => "==",
        CompareOp::Ne => "!=",
        CompareOp::Lt => "<",
        CompareOp::Le => "<=",
        CompareOp::Gt => ">",
        CompareOp::Ge => ">=",
    };
    format!("{a} {sign} {b}")
}

/// The expression for a conversion by value.
pub(super) fn cast(from: DType, to: DType, x: &str) -> String {
    let ty = value_type(to);
    match (from, to) {
        _ if from == to => x.into(),
        (_, DType::Bool) => format!("{x} != 0"),
        (DType::F64, DType::F16 | DType::BF16) => rounded(to, &format!("odd_from_f64({x})")),
        (_, DType::F16 | DType::BF16) => rounded(to, &format!("(float){x}")),
        _ if from.is_float() && to.is_int() => match to {
            DType::I64 => format!("i64_from_f64({x})"),
            DType::U64 => format!("u64_from_f64({x})"),
            // Floats hold the limits of these types exactly.
            _ if from != DType::F64 && to.size_bytes() <= 2 => {
                let (lo, hi) = limits(to);
                format!("({ty})i32_from_f32({x}, {lo}.0f, {hi}.0f)")
            }
            _ => {
                let (lo, hi) = limits(to);
                format!("({ty})max_i64({lo}, min_i64({hi}, i64_from_f64({x})))")
            }
        },
        _ => format!("({ty}){x}"),
    }
}

/// The expression for a conversion that keeps the bits.
pub(super) fn bits(from: DType, to: DType, x: &str) -> String {
    let own = match from {
        DType::F16 | DType::BF16 => store(from, x),
        DType::F32 => format!("bits_from_f32({x})"),
        DType::F64 => format!("bits_from_f64({x})"),
        _ => x.into(),
    };
    match to {
        _ if from == to => x.into(),
        DType::F16 | DType::BF16 => load(to, &format!("(uint16_t){own}")),
        DType::F32 => format!("f32_from_bits((uint32_t){own})"),
        DType::F64 => format!("f64_from_bits((uint64_t){own})"),
        DType::Bool => format!("{own} & 1"),
        _ => format!("({}){own}", value_type(to)),
    }
}

/// A single-precision value rounded to half precision.
fn rounded(to: DType, x: &str) -> String {
    load(to, &store(to, x))
}

/// The value of the element `x` in memory.
pub(super) fn load(dtype: DType, x: &str) -> String {
    match dtype {
        DType::F16 => format!("f32_from_f16({x})"),
        DType::BF16 => format!("f32_from_bf16({x})"),
        _ => x.into(),
    }
}

/// The value of an element in memory, converted to another type.
pub(super) fn loaded(from: DType, to: DType, element: &str) -> String {
    cast(from, to, &load(from, element))
}

/// The value `x` in its form in memory.
pub(super) fn store(dtype: DType, x: &str) -> String {
    match dtype {
        DType::F16 => format!("f16_from_f32({x})"),
        DType::BF16 => format!("bf16_from_f32({x})"),
        _ => x.into(),
    }
}

/// The smallest and largest value of an integer type of up to 32 bits.
fn limits(dtype: DType) -> (i64, i64) {
    let bits = 8 * dtype.size_bytes() as u32;
    if dtype.is_signed_int() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}
