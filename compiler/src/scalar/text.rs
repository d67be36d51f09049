//! Prints and parses the names of operators and the literals of constants, for both textual IRs.
//!
//! A literal does not contain its type. Finite floats are the shortest decimal that parses to the same bits, always
//! with a point or an exponent. Values without a decimal form (NaNs with their payload) are `0x` and the bits.

use super::{BinaryOp, CompareOp, ReduceOp, Scalar, UnaryOp};
use std::fmt;
use symshape_runtime::DType;

macro_rules! names {
    ($($operator:ident { $($variant:ident $name:literal,)* })*) => {$(
        impl $operator {
            /// Every operator of this kind.
            pub const ALL: &[$operator] = &[$($operator::$variant),*];

            /// The name in the textual IRs.
            pub const fn name(self) -> &'static str {
                match self {
                    $($operator::$variant => $name,)*
                }
            }

            /// The operator whose name is `name`.
            pub fn from_name(name: &str) -> Option<$operator> {
                match name {
                    $($name => Some($operator::$variant),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $operator {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    )*};
}

names! {
    UnaryOp {
        Neg "neg", Abs "abs", Sign "sign", Floor "floor", Ceil "ceil", Round "round", Trunc "trunc", Sqrt "sqrt",
        Recip "recip", Exp "exp", Expm1 "expm1", Log "log", Log1p "log1p", Sin "sin", Cos "cos", Tan "tan",
        Asin "asin", Acos "acos", Atan "atan", Sinh "sinh", Cosh "cosh", Tanh "tanh", Asinh "asinh",
        Acosh "acosh", Atanh "atanh", Erf "erf", RoundBf16 "round_bf16", Not "not", IsNan "isnan", IsInf "isinf",
    }
    BinaryOp {
        Add "add", Sub "sub", Mul "mul", Div "div", Rem "rem", Mod "mod", Pow "pow", Min "min", Max "max",
        And "and", Or "or", Xor "xor", Shl "shl", Shr "shr", Atan2 "atan2",
    }
    CompareOp { Eq "eq", Ne "ne", Lt "lt", Le "le", Gt "gt", Ge "ge", }
    ReduceOp { Sum "sum", Prod "prod", Min "min", Max "max", }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dtype() {
            DType::Bool if self.bits() <= 1 => write!(f, "{}", self.bits() == 1),
            DType::U64 => write!(f, "{}", self.bits()),
            DType::F32 | DType::F64 | DType::F16 | DType::BF16 if self.as_f64().is_nan() => {
                write!(f, "{:#x}", self.bits())
            }
            DType::F64 => write!(f, "{:?}", self.as_f64()),
            // Shorter floats are exact in single precision, whose shortest decimal is short.
            DType::F32 | DType::F16 | DType::BF16 => write!(f, "{:?}", self.as_f64() as f32),
            DType::Bool => write!(f, "{:#x}", self.bits()),
            _ => write!(f, "{}", self.as_i64()),
        }
    }
}

impl Scalar {
    /// Parses a constant of this type: the output of `Display`, and any decimal for a float type.
    ///
    /// ```
    /// use symshape_compiler::scalar::Scalar;
    /// use symshape_runtime::DType;
    /// assert_eq!(Scalar::parse(DType::F32, "1.5"), Some(Scalar::f32(1.5)));
    /// assert_eq!(Scalar::parse(DType::U8, "256"), None);
    /// ```
    pub fn parse(dtype: DType, text: &str) -> Option<Scalar> {
        if let Some(digits) = text.strip_prefix("0x") {
            let bits = u64::from_str_radix(digits, 16).ok()?;
            let scalar = Scalar::from_bits(dtype, bits);
            return (scalar.bits() == bits).then_some(scalar);
        }

        match dtype {
            DType::Bool => text.parse().ok().map(Scalar::bool),
            DType::F32 => text.parse().ok().map(Scalar::f32),
            DType::F64 | DType::F16 | DType::BF16 => text.parse().ok().map(|x| Scalar::from_f64(dtype, x)),
            DType::U64 => text.parse().ok().map(|bits| Scalar::from_bits(dtype, bits)),
            _ => {
                let value: i64 = text.parse().ok()?;
                let scalar = Scalar::from_i64(dtype, value);
                (scalar.as_i64() == value).then_some(scalar)
            }
        }
    }
}
