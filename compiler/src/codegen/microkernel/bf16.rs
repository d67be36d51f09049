//! Numbers of bf16 in lanes: floats whose low half is zero.
//!
//! A value that is stored as the bf16 nearest to it, `cast bf16 (high x)`, is two instructions of a body and, on machines
//! with tile registers, one step.

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

/// The sign of a float, and the high half of it.
const SIGN: u32 = 0x8000_0000;
const HALF: u32 = 0xffff_0000;

/// The nearest bf16, ties to even, where `x` is a number.
fn rounded(b: &mut Builder, x: Vector) -> Vector {
    let (one, below, half) = (b.bits(1), b.bits(0x7fff), b.bits(HALF));
    let above = b.shift(ShiftOp::Right, x, 16);
    let odd = b.binary(VBinary::And, above, one);
    let moved = b.binary(VBinary::AddInt, x, below);
    let moved = b.binary(VBinary::AddInt, moved, odd);
    b.binary(VBinary::And, moved, half)
}

/// See [`UnaryOp::RoundBf16`].
pub(super) fn high(b: &mut Builder, x: Vector) -> Vector {
    if b.shape().tiles {
        return b.round_bf16(x);
    }
    let rounded = rounded(b, x);
    let (sign, least, nan) = (b.bits(SIGN), b.bits(f32::MIN_POSITIVE.to_bits()), b.bits(0x7fc0_0000));
    let (size, zero) = (math::abs(b, x), b.binary(VBinary::And, x, sign));
    let is_denormal = b.compare_int(CompareOp::Lt, size, least);
    let number = b.select(is_denormal, zero, rounded);
    let is_nan = math::is_nan(b, x);
    b.select(is_nan, nan, number)
}

/// A float cast to bf16: denormals stay such, and NaN keeps what fits of its payload.
pub(super) fn nearest(b: &mut Builder, x: Vector) -> Vector {
    let rounded = rounded(b, x);
    let (quiet, half) = (b.bits(0x0040_0000), b.bits(HALF));
    let nan = b.binary(VBinary::Or, x, quiet);
    let nan = b.binary(VBinary::And, nan, half);
    let is_nan = math::is_nan(b, x);
    b.select(is_nan, nan, rounded)
}

/// Whether the value of an instruction is a bf16, whatever its type.
pub(super) fn is_high(body: &Body, reg: u32) -> bool {
    matches!(body.insts[reg as usize].0, Op::Unary(UnaryOp::RoundBf16, _))
}

/// The instructions of a body that are part of a store which rounds.
#[derive(Default)]
pub(super) struct Stored {
    /// Those that nothing else reads.
    skipped: Vec<u32>,
    /// What is cast, and what it is before it is rounded.
    sources: Vec<(u32, u32)>,
}

impl Stored {
    /// Of a body on a machine that stores so.
    pub(super) fn of(body: &Body) -> Stored {
        let (uses, mut stored) = (body.uses(), Stored::default());
        for &(op, ty) in &body.insts {
            let Op::Store(_, cast) = op else { continue };
            let (Op::Cast(high), Ty::Bf16) = (body.insts[cast as usize].0, ty) else { continue };
            let Op::Unary(UnaryOp::RoundBf16, from) = body.insts[high as usize].0 else { continue };
            if uses[cast as usize] == 1 && uses[high as usize] == 1 {
                stored.skipped.extend([high, cast]);
                stored.sources.push((cast, from));
            }
        }
        stored
    }

    /// Whether an instruction is left out.
    pub(super) fn skips(&self, idx: usize) -> bool {
        self.skipped.contains(&(idx as u32))
    }

    /// What is rounded where the value of an instruction is stored.
    pub(super) fn source(&self, cast: u32) -> Option<u32> {
        self.sources.iter().find(|(other, _)| *other == cast).map(|(_, from)| *from)
    }
}
