//! Puts constants where x86 takes them: an instruction has one memory operand at most, its last source.

use crate::codegen::vector::{
    reg_map::RegMap,
    vcode::{VBinary, VCode, VInst, Vector, WideBinary},
};
use smallvec::SmallVec;

/// The bits in all lanes of a constant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Splat {
    /// The bits of 32-bit lanes.
    Lanes(u32),
    /// The bits of 64-bit lanes.
    WideLanes(u64),
}

/// The vector registers that are constants.
pub(super) type Constants = RegMap<Splat>;

/// The constants of the code.
pub(super) fn constants(code: &VCode) -> Constants {
    let mut constants = Constants::default();
    for step in &code.steps {
        match step {
            VInst::Constant(dst, bits) => constants.insert(*dst, Splat::Lanes(*bits)),
            VInst::WideConstant(dst, bits) => constants.insert(*dst, Splat::WideLanes(*bits)),
            _ => {}
        }
    }
    constants
}

/// Rewrites the code so that constants are operands only where a memory operand may be. Elsewhere a step before moves
/// the constant into a register.
pub(super) fn legalize(code: &VCode, constants: &Constants) -> VCode {
    let mut out = VCode { steps: Vec::with_capacity(code.steps.len()), ..*code };
    for step in &code.steps {
        push_legal(&mut out, constants, step.clone());
    }
    out
}

fn push_legal(out: &mut VCode, constants: &Constants, mut step: VInst) {
    let is_constant = |vector: &Vector| constants.contains(*vector);
    // The operands that must be in registers.
    let mut moved: SmallVec<[&mut Vector; 3]> = SmallVec::new();
    match &mut step {
        VInst::Constant(..) | VInst::WideConstant(..) => return,
        VInst::Fma(_, a, b, c) => {
            if is_constant(a) {
                std::mem::swap(a, b);
            }
            if is_constant(a) {
                moved.push(a);
            }
            if is_constant(b) && is_constant(c) {
                moved.push(b);
            }
        }
        VInst::Binary(op, _, a, b) => {
            if is_constant(a) && is_commutative(*op) {
                std::mem::swap(a, b);
            }
            moved.push(a);
        }
        VInst::WideBinary(WideBinary::JoinHalves, _, a, b) => moved.extend([a, b]),
        VInst::WideBinary(op, _, a, b) => {
            if is_constant(a) && is_wide_commutative(*op) {
                std::mem::swap(a, b);
            }
            moved.push(a);
        }
        VInst::Bits(_, _, a, b, _) => moved.extend([a, b]),
        VInst::DotBytes(_, a, b, c) | VInst::SumDotPairs(_, a, b, c) => moved.extend([a, b, c]),
        VInst::ScaleUnlessLess(_, _, [a, n, x, _]) => moved.extend([a, n, x]),
        VInst::Compare(_, _, a, _) | VInst::WideCompare(_, _, a, _) => moved.push(a),
        VInst::CompareInt(_, _, a, b) | VInst::WideCompareInt(_, _, a, b) => moved.extend([a, b]),
        VInst::Select(_, _, _, b) | VInst::WideSelect(_, _, _, b) => moved.push(b),
        VInst::Unary(_, _, a)
        | VInst::WideUnary(_, _, a)
        | VInst::WideShift(_, _, a, _)
        | VInst::InterleaveBytes(_, a)
        | VInst::RoundBf16(_, a)
        | VInst::RoundF16(_, a)
        | VInst::UnpackBf16(_, a, _)
        | VInst::Shift(_, _, a, _)
        | VInst::Butterfly(_, a, _) => moved.push(a),
        VInst::Gather(.., a) => moved.push(a),
        VInst::StorePacked(_, all, ..) | VInst::StoreInterleaved(_, all, _) => moved.extend(all),
        VInst::PackBf16(_, a, b) | VInst::UnlessInfinite(_, a, b) => moved.extend([a, b]),
        VInst::Store(_, a)
        | VInst::StoreOne(_, a)
        | VInst::StoreF16(_, a)
        | VInst::StoreFirst(_, a, ..)
        | VInst::StorePart(_, a, ..)
        | VInst::StoreLanes(_, a, _)
        | VInst::StoreNarrow(_, a, ..)
        | VInst::StoreNarrowFirst(_, a, ..)
        | VInst::StoreQuads(_, a)
        | VInst::StoreTriples(_, a, _)
        | VInst::StoreBf16(_, a, _)
        | VInst::StoreBf16First(_, a, ..) => {
            moved.push(a);
        }
        _ => {}
    }

    for operand in moved {
        if is_constant(operand) {
            let fresh = Vector(out.vectors);
            out.vectors += 1;
            out.steps.push(VInst::Move(fresh, *operand));
            *operand = fresh;
        }
    }
    out.steps.push(step);
}

/// Whether the operands may be exchanged. `Min` and `Max` return the second operand for NaN.
fn is_commutative(op: VBinary) -> bool {
    match op {
        VBinary::Add | VBinary::Mul | VBinary::And | VBinary::Or | VBinary::Xor => true,
        VBinary::AddInt | VBinary::MulInt | VBinary::MinInt | VBinary::MaxInt | VBinary::DotPairs => true,
        VBinary::AddHalves => true,
        VBinary::Sub
        | VBinary::Div
        | VBinary::Scale
        | VBinary::Min
        | VBinary::Max
        | VBinary::Smallest
        | VBinary::Largest
        | VBinary::AndNot
        | VBinary::SubInt
        | VBinary::DotBytePairs
        | VBinary::Exchange { .. }
        | VBinary::ZipBytes(_)
        | VBinary::EvenThenOdd
        | VBinary::Even
        | VBinary::Odd
        | VBinary::Permute => false,
    }
}

/// Whether the operands may be exchanged, see [`is_commutative`].
fn is_wide_commutative(op: WideBinary) -> bool {
    use WideBinary::*;
    match op {
        Add | Mul | AddInt | MulInt | MulLow => true,
        Sub | Div | Min | Max | SubInt | ShiftLeft | ShiftRight | JoinHalves => false,
    }
}
