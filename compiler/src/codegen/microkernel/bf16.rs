//! bf16 values in lanes: floats whose low half is zero.
//!
//! `cast bf16 (high x)` stores the bf16 nearest to `x`. It is two instructions of a body, and one store on machines
//! with tile registers.

use super::{
    math,
    op::{Body, Op, Ty},
};
use crate::{
    codegen::vector::{
        Builder,
        vcode::{ShiftOp, VBinary, Vector},
    },
    scalar::{CompareOp, UnaryOp},
};

/// The sign bit of a float.
const SIGN: u32 = 0x8000_0000;

/// The high half of a float, which is its truncation to bf16.
const HIGH_HALF: u32 = 0xffff_0000;

/// The nearest bf16, ties to even, for `x` that is not NaN.
fn rounded(b: &mut Builder, x: Vector) -> Vector {
    let one = b.bits(1);
    let almost_half = b.bits(0x7fff);
    let high_half = b.bits(HIGH_HALF);

    let shifted = b.shift(ShiftOp::Right, x, 16);
    let is_odd = b.binary(VBinary::And, shifted, one);
    let sum = b.binary(VBinary::AddInt, x, almost_half);
    let sum = b.binary(VBinary::AddInt, sum, is_odd);
    b.binary(VBinary::And, sum, high_half)
}

/// See [`UnaryOp::RoundBf16`].
pub(super) fn high(b: &mut Builder, x: Vector) -> Vector {
    if b.shape().tiles {
        return b.round_bf16(x);
    }
    let rounded = rounded(b, x);
    let sign = b.bits(SIGN);
    let smallest_normal = b.bits(f32::MIN_POSITIVE.to_bits());
    let quiet_nan = b.bits(0x7fc0_0000);

    let magnitude = math::abs(b, x);
    let signed_zero = b.binary(VBinary::And, x, sign);
    let is_denormal = b.compare_int(CompareOp::Lt, magnitude, smallest_normal);
    let value = b.select(is_denormal, signed_zero, rounded);
    let is_nan = math::is_nan(b, x);
    b.select(is_nan, quiet_nan, value)
}

/// A float cast to bf16. Denormals stay denormals, and NaN keeps the high bits of its payload.
pub(super) fn nearest(b: &mut Builder, x: Vector) -> Vector {
    let rounded = rounded(b, x);
    let quiet_bit = b.bits(0x0040_0000);
    let high_half = b.bits(HIGH_HALF);

    let nan = b.binary(VBinary::Or, x, quiet_bit);
    let nan = b.binary(VBinary::And, nan, high_half);
    let is_nan = math::is_nan(b, x);
    b.select(is_nan, nan, rounded)
}

/// The high bf16 of each lane and, if `with_low`, the low one. Both are high halves of lanes whose low half is zero.
pub(super) fn split(b: &mut Builder, x: Vector, with_low: bool) -> Vec<Vector> {
    let high = b.round_bf16(x);
    let low = with_low.then(|| {
        let remainder = remainder(b, x, high, high);
        b.round_bf16(remainder)
    });
    std::iter::once(high).chain(low).collect()
}

/// `x - high`, which a float holds exactly; 0 where `unless_infinite` is infinite.
pub(super) fn remainder(b: &mut Builder, x: Vector, unless_infinite: Vector, high: Vector) -> Vector {
    let difference = b.binary(VBinary::Sub, x, high);
    b.unless_infinite(difference, unless_infinite)
}

/// Whether the value of an instruction is rounded to bf16, whatever its type.
pub(super) fn is_high(body: &Body, reg: u32) -> bool {
    matches!(body.op(reg), Op::Unary(UnaryOp::RoundBf16, _))
}

/// The stores of a body that round to bf16, and the instructions that they make superfluous.
#[derive(Default)]
pub(super) struct RoundingStores {
    /// The roundings and casts that only such stores read.
    skipped: Vec<u32>,
    /// Each stored cast with the value before rounding.
    sources: Vec<(u32, u32)>,
}

impl RoundingStores {
    /// Finds them in a body. The ISA must have stores that round.
    pub(super) fn of(body: &Body) -> RoundingStores {
        let uses = body.use_counts();
        let mut stores = RoundingStores::default();

        for &(op, ty) in &body.insts {
            let Op::Store(_, cast) = op else { continue };
            let (Op::Cast(high), Ty::Bf16) = (body.op(cast), ty) else { continue };
            let Op::Unary(UnaryOp::RoundBf16, unrounded) = body.op(high) else { continue };
            if uses[cast as usize] == 1 && uses[high as usize] == 1 {
                stores.skipped.extend([high, cast]);
                stores.sources.push((cast, unrounded));
            }
        }
        stores
    }

    /// Whether an instruction is not emitted.
    pub(super) fn skips(&self, idx: usize) -> bool {
        self.skipped.contains(&(idx as u32))
    }

    /// The value before rounding, where the store of `cast` rounds.
    pub(super) fn unrounded(&self, cast: u32) -> Option<u32> {
        self.sources.iter().find(|(other, _)| *other == cast).map(|(_, unrounded)| *unrounded)
    }
}
