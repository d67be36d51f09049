//! f16 values in lanes: floats that are equal to them.
//!
//! ISAs without instructions for the conversion compute it from the bits, as scalar code does
//! (`codegen/function/scalar.rs`).

use super::math;
use crate::{
    codegen::vector::{
        Builder,
        vcode::{ShiftOp, VBinary, Vector},
    },
    scalar::CompareOp,
};

/// The sign bit of a float.
const SIGN: u32 = 0x8000_0000;

/// The floats that are equal to the f16 whose bits are the low halves of the lanes.
pub(super) fn from_bits(b: &mut Builder, bits: Vector) -> Vector {
    let magnitude_mask = b.bits(0x7fff);
    let magnitude = b.binary(VBinary::And, bits, magnitude_mask);
    let shifted = b.shift(ShiftOp::Left, magnitude, 13);

    // The exponent of a float is larger by 112. The multiplication normalises denormals too.
    let scale = b.bits((112 + 127) << 23);
    let finite = b.binary(VBinary::Mul, shifted, scale);
    let infinite_exponent = b.bits(0x7f80_0000);
    let special = b.binary(VBinary::Or, shifted, infinite_exponent);
    let largest_finite = b.bits(0x7bff);
    let is_special = b.compare_int(CompareOp::Gt, magnitude, largest_finite);
    let unsigned = b.select(is_special, special, finite);

    let sign_mask = b.bits(SIGN);
    let high = b.shift(ShiftOp::Left, bits, 16);
    let sign = b.binary(VBinary::And, high, sign_mask);
    b.binary(VBinary::Or, unsigned, sign)
}

/// The bits of the nearest f16 of each float, ties to even, sign-extended to a lane.
///
/// Normal results are rounded by an addition to the bits. Denormal ones are rounded by adding a float so large that the
/// last bit of the sum is the last bit to keep.
pub(super) fn to_bits(b: &mut Builder, x: Vector) -> Vector {
    let magnitude = math::abs(b, x);

    let one = b.bits(1);
    let above = b.shift(ShiftOp::Right, magnitude, 13);
    let odd = b.binary(VBinary::And, above, one);
    let rebias = b.bits(0xfffu32.wrapping_sub(112 << 23));
    let sum = b.binary(VBinary::AddInt, magnitude, rebias);
    let sum = b.binary(VBinary::AddInt, sum, odd);
    let normal = b.shift(ShiftOp::Right, sum, 13);

    let half = b.float(0.5);
    let aligned = b.binary(VBinary::Add, magnitude, half);
    let denormal = b.binary(VBinary::SubInt, aligned, half);

    let smallest_normal = b.bits(0x3880_0000);
    let is_small = b.compare_int(CompareOp::Lt, magnitude, smallest_normal);
    let finite = b.select(is_small, denormal, normal);

    let last_finite = b.bits(0x477f_efff);
    let overflows = b.compare_int(CompareOp::Gt, magnitude, last_finite);
    let infinity = b.bits(0x7c00);
    let result = b.select(overflows, infinity, finite);
    let infinite = b.bits(0x7f80_0000);
    let is_nan = b.compare_int(CompareOp::Gt, magnitude, infinite);
    let nan = b.bits(0x7e00);
    let result = b.select(is_nan, nan, result);

    // Sixteen copies of the sign bit and the bits below are in range of a signed 16-bit integer.
    let sign = b.shift(ShiftOp::RightSigned, x, 31);
    let sign_bits = b.bits(0xffff_8000);
    let sign = b.binary(VBinary::And, sign, sign_bits);
    b.binary(VBinary::Or, result, sign)
}

/// The float that is equal to the nearest f16 of each float.
pub(super) fn rounded(b: &mut Builder, x: Vector) -> Vector {
    if b.shape().f16 {
        return b.round_f16(x);
    }
    let bits = to_bits(b, x);
    from_bits(b, bits)
}
