//! Scalar operators at the limits of their types.

use symshape_compiler::scalar::{BinaryOp, CompareOp, ReduceOp, Scalar, UnaryOp, eval::*};
use symshape_runtime::DType;

fn of(dtype: DType, text: &str) -> Scalar {
    Scalar::parse(dtype, text).unwrap_or_else(|| panic!("{text} is no {dtype}"))
}

#[test]
fn binary_operators() {
    let cases = [
        (DType::I8, "-128", BinaryOp::Div, "-1", "-128"),
        (DType::I64, "-9223372036854775808", BinaryOp::Div, "-1", "-9223372036854775808"),
        (DType::I32, "7", BinaryOp::Div, "0", "0"),
        (DType::I32, "-7", BinaryOp::Rem, "3", "-1"),
        (DType::I32, "-7", BinaryOp::Mod, "3", "2"),
        (DType::I32, "7", BinaryOp::Mod, "-3", "-2"),
        (DType::U8, "200", BinaryOp::Add, "100", "44"),
        (DType::U8, "200", BinaryOp::Max, "100", "200"),
        (DType::I8, "-2", BinaryOp::Shr, "9", "-1"),
        (DType::U32, "1", BinaryOp::Shl, "32", "0"),
        (DType::I32, "2", BinaryOp::Pow, "-1", "0"),
        (DType::I32, "-1", BinaryOp::Pow, "-3", "-1"),
        (DType::I32, "3", BinaryOp::Pow, "3", "27"),
        (DType::F32, "0.0", BinaryOp::Min, "-0.0", "-0.0"),
        (DType::F32, "1.0", BinaryOp::Max, "NaN", "NaN"),
        (DType::F32, "-7.5", BinaryOp::Mod, "2.0", "0.5"),
        (DType::F32, "-7.5", BinaryOp::Rem, "2.0", "-1.5"),
        (DType::F16, "65504.0", BinaryOp::Add, "65504.0", "inf"),
        (DType::Bool, "true", BinaryOp::Xor, "true", "false"),
        (DType::U64, "18446744073709551615", BinaryOp::Div, "2", "9223372036854775807"),
    ];
    for (dtype, x, op, y, expected) in cases {
        let (got, want) = (binary(op, of(dtype, x), of(dtype, y)), of(dtype, expected));
        // One NaN is as good as another: their signs and payloads say nothing.
        let both_nan = dtype.is_float() && got.as_f64().is_nan() && want.as_f64().is_nan();
        assert!(both_nan || got == want, "{x} {op} {y} = {got:?}, not {want:?}");
    }
}

#[test]
fn unary_operators() {
    let cases = [
        (DType::F32, UnaryOp::Round, "2.5", "2.0"),
        (DType::F32, UnaryOp::Sign, "-0.0", "-0.0"),
        (DType::F32, UnaryOp::Erf, "0.5", "0.5204999"),
        (DType::F32, UnaryOp::RoundBf16, "1.0039063", "1.0"),
        (DType::F32, UnaryOp::RoundBf16, "1e-40", "0.0"),
        (DType::I8, UnaryOp::Abs, "-128", "-128"),
        (DType::U8, UnaryOp::Not, "1", "254"),
        (DType::Bool, UnaryOp::Not, "true", "false"),
        (DType::U16, UnaryOp::Neg, "1", "65535"),
    ];
    for (dtype, op, x, expected) in cases {
        assert_eq!(unary(op, of(dtype, x)), of(dtype, expected), "{op} {x}");
    }
}

#[test]
fn casts() {
    let cases = [
        (DType::F32, "NaN", DType::I32, "0"),
        (DType::F32, "-1e20", DType::I32, "-2147483648"),
        (DType::F32, "-1.9", DType::U8, "0"),
        (DType::I32, "-1", DType::U8, "255"),
        (DType::I32, "256", DType::Bool, "true"),
        (DType::U64, "18446744073709551615", DType::F32, "18446744073709551615"),
        (DType::I64, "16777217", DType::F32, "16777216.0"),
        (DType::F64, "0.1", DType::F32, "0.1"),
    ];
    for (from, x, to, expected) in cases {
        assert_eq!(cast(to, of(from, x)), of(to, expected), "{x} to {to}");
    }
}

#[test]
fn comparisons_are_ordered() {
    let (nan, one) = (Scalar::f32(f32::NAN), Scalar::f32(1.0));
    for op in CompareOp::ALL {
        assert_eq!(compare(*op, nan, one), *op == CompareOp::Ne, "{op}");
    }
    assert!(compare(CompareOp::Gt, of(DType::U64, "9223372036854775808"), of(DType::U64, "1")));
}

#[test]
fn neutral_values_change_nothing() {
    for dtype in DType::ALL {
        for op in ReduceOp::ALL {
            let x = Scalar::from_i64(dtype, 1);
            assert_eq!(combine(*op, neutral(*op, dtype), x), x, "{op} of {dtype}");
        }
    }
}
