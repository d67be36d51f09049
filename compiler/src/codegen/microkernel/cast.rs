//! Conversions between the types of lanes.

use super::{
    bf16,
    body_value::BodyValue,
    f16, math, memory,
    op::Ty,
    wide::{self, Wide},
};
use crate::{
    codegen::vector::{Builder, vcode::VUnary},
    scalar::CompareOp,
};

/// Converts a value, see [`crate::scalar::Step::Cast`].
pub(super) fn cast(b: &mut Builder, from: Ty, to: Ty, x: BodyValue) -> BodyValue {
    match (from, to) {
        _ if from == to => x,
        (Ty::I64 | Ty::F64, _) => cast_wide(b, from, to, x.wide()),
        (Ty::Bool, Ty::I64 | Ty::F64) => BodyValue::Wide(wide::from_truth(b, to, x.truth())),
        (_, Ty::I64 | Ty::F64) => BodyValue::Wide(wide::from_lanes(b, from, to, x.lanes())),
        (_, Ty::Bf16) => {
            let float = cast(b, from, Ty::F32, x).lanes();
            BodyValue::Lanes(bf16::nearest(b, float))
        }
        (_, Ty::F16) => {
            let float = cast(b, from, Ty::F32, x).lanes();
            BodyValue::Lanes(f16::rounded(b, float))
        }
        (Ty::Bf16 | Ty::F16 | Ty::RoundToBf16, Ty::F32) => x,
        (Ty::Bf16 | Ty::F16 | Ty::RoundToBf16, _) => cast(b, Ty::F32, to, x),
        (_, Ty::RoundToBf16 | Ty::ClampToI8 | Ty::ClampToU8) => unreachable!("no instruction has this type"),
        (Ty::F32, Ty::I32) => BodyValue::Lanes(math::to_int(b, x.lanes())),
        (Ty::F32, Ty::U8 | Ty::I8 | Ty::I16 | Ty::U16) => {
            let [lo, hi] = range(to);
            BodyValue::Lanes(math::to_byte(b, x.lanes(), lo as f32, hi as f32))
        }
        (Ty::I32, Ty::U8 | Ty::I8 | Ty::I16 | Ty::U16)
        | (Ty::I16 | Ty::U16, Ty::U8 | Ty::I8)
        | (Ty::I8, Ty::U8 | Ty::U16)
        | (Ty::U8, Ty::I8)
        | (Ty::I16, Ty::U16)
        | (Ty::U16, Ty::I16) => BodyValue::Lanes(memory::wrapped(b, x.lanes(), to)),
        (Ty::I32 | Ty::U8 | Ty::I8 | Ty::I16 | Ty::U16, Ty::F32) => {
            BodyValue::Lanes(b.unary(VUnary::ToFloat, x.lanes()))
        }
        (Ty::Bool, Ty::F32 | Ty::I32 | Ty::U8 | Ty::I8 | Ty::I16 | Ty::U16) => {
            let one = if to == Ty::F32 { 1f32.to_bits() } else { 1 };
            let one = b.bits(one);
            let zero = b.bits(0);
            BodyValue::Lanes(b.select(x.truth(), one, zero))
        }
        (Ty::F32 | Ty::I32 | Ty::U8 | Ty::I8 | Ty::I16 | Ty::U16, Ty::Bool) => {
            let zero = b.bits(0);
            BodyValue::Truth(match from {
                Ty::F32 => b.compare(CompareOp::Ne, x.lanes(), zero),
                _ => b.compare_int(CompareOp::Ne, x.lanes(), zero),
            })
        }
        // The integer type holds all values of the other.
        _ => x,
    }
}

/// Converts a value of 64 bits.
fn cast_wide(b: &mut Builder, from: Ty, to: Ty, x: Wide) -> BodyValue {
    match to {
        Ty::I64 | Ty::F64 => BodyValue::Wide(wide::cast(b, from, to, x)),
        Ty::Bool => BodyValue::Truth(wide::to_truth(b, from, x)),
        Ty::F32 => BodyValue::Lanes(wide::to_floats(b, from, x)),
        Ty::I32 | Ty::U8 | Ty::I8 | Ty::I16 | Ty::U16 => {
            let ints = wide::to_ints(b, from, range(to), x);
            BodyValue::Lanes(if to == Ty::I32 { ints } else { memory::wrapped(b, ints, to) })
        }
        Ty::Bf16 | Ty::F16 | Ty::RoundToBf16 | Ty::ClampToI8 | Ty::ClampToU8 => {
            unreachable!("`Body::push` refuses the cast")
        }
    }
}

/// The smallest and largest value of an integer type of at most 32 bits.
fn range(ty: Ty) -> [f64; 2] {
    match ty {
        Ty::U8 => [0.0, f64::from(u8::MAX)],
        Ty::I8 => [f64::from(i8::MIN), f64::from(i8::MAX)],
        Ty::I16 => [f64::from(i16::MIN), f64::from(i16::MAX)],
        Ty::U16 => [0.0, f64::from(u16::MAX)],
        _ => [f64::from(i32::MIN), f64::from(i32::MAX)],
    }
}
