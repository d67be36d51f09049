//! Makes constants operands that x86 can take: one memory operand an instruction, and only the last.

use crate::codegen::vector::code::{Code, Op2, Step, Vector};
use std::collections::HashMap;

/// The bits of the vector registers that are constants.
pub(super) type Constants = HashMap<Vector, u32>;

/// Rewrites the code so that constants stand where a memory operand may, and returns them; elsewhere they are moved
/// into a register just before.
pub(super) fn legalize(code: &Code) -> (Code, Constants) {
    let constants: Constants = code
        .steps
        .iter()
        .filter_map(|step| match step {
            Step::Constant(dst, bits) => Some((*dst, *bits)),
            _ => None,
        })
        .collect();
    let mut out = Code { steps: Vec::with_capacity(code.steps.len()), ..*code };
    for step in &code.steps {
        legal(&mut out, &constants, step.clone());
    }
    (out, constants)
}

fn legal(out: &mut Code, constants: &Constants, mut step: Step) {
    let is_constant = |vector: &Vector| constants.contains_key(vector);
    // The operands that must be in registers.
    let mut moved: Vec<&mut Vector> = Vec::new();
    match &mut step {
        Step::Constant(..) => return,
        Step::Fma(_, a, b, c) => {
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
        Step::Op2(op, _, a, b) => {
            if is_constant(a) && is_commutative(*op) {
                std::mem::swap(a, b);
            }
            moved.push(a);
        }
        Step::DotQuads(_, a, b, c) => moved.extend([a, b, c]),
        Step::Compare(_, _, a, _) => moved.push(a),
        Step::CompareInt(_, _, a, b) => moved.extend([a, b]),
        Step::Select(_, _, _, b) => moved.push(b),
        Step::Op1(_, _, a)
        | Step::RoundBf16(_, a)
        | Step::UnpackBf16(_, a, _)
        | Step::Shift(_, _, a, _)
        | Step::Butterfly(_, a, _) => moved.push(a),
        Step::PackBf16(_, a, b) | Step::UnlessInfinite(_, a, b) => moved.extend([a, b]),
        Step::Store(_, a)
        | Step::StoreOne(_, a)
        | Step::StoreFirst(_, a, ..)
        | Step::StoreLanes(_, a, _)
        | Step::StoreNarrow(_, a, ..)
        | Step::StoreBf16(_, a, _)
        | Step::StoreBf16First(_, a, ..) => {
            moved.push(a);
        }
        _ => {}
    }
    for operand in moved {
        if is_constant(operand) {
            let fresh = Vector(out.vectors);
            out.vectors += 1;
            out.steps.push(Step::Move(fresh, *operand));
            *operand = fresh;
        }
    }
    out.steps.push(step);
}

fn is_commutative(op: Op2) -> bool {
    match op {
        Op2::Add | Op2::Mul | Op2::And | Op2::Or | Op2::Xor => true,
        Op2::AddInt | Op2::MulInt | Op2::MinInt | Op2::MaxInt | Op2::DotPairs => true,
        Op2::Sub | Op2::Div | Op2::Min | Op2::Max | Op2::AndNot | Op2::SubInt | Op2::Exchange { .. } => false,
    }
}
