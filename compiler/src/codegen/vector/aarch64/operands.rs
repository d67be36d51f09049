//! The registers that a step reads and sets, where its instructions differ from those of other machines.

use crate::codegen::vector::{
    operands::{self, Operands, VReg},
    vcode::{VCode, VInst, Vector},
};
use std::collections::{HashMap, HashSet};

/// The operands of a step.
pub(super) fn operands(step: &VInst) -> Operands {
    let none = Operands::default();
    match step {
        VInst::Constant(dst, _) | VInst::WideConstant(dst, _) => none.set(*dst),
        // Branches on the number of lanes take the place of masks.
        VInst::LoadFirst(dst, mem, n, _) => none.read_mem(mem).read(*n).set(*dst),
        VInst::StoreFirst(mem, src, n, _) => none.read_mem(mem).read(*src).read(*n),
        VInst::StoreBf16First(mem, src, temp, n, _) => {
            none.read_mem(mem).read(*src).read(*n).set_early(*temp)
        }
        // The first half of the destination is written before the second factor is read.
        VInst::PackBf16(dst, a, b) => none.read(*a).read(*b).set_early(*dst),
        // The addend is copied to the destination before the factors are read.
        VInst::Fma(dst, a, b, c)
        | VInst::FmaLane(dst, a, b, _, c)
        | VInst::DotSigned(dst, a, b, c)
        | VInst::DotMatrix(dst, a, b, c)
        | VInst::DotMatrixBf16(dst, a, b, c)
        | VInst::DotSignedLane(dst, a, b, _, c)
            if dst != c =>
        {
            none.read(*c).read_late(*a).read_late(*b).set(*dst)
        }
        other => operands::operands(other),
    }
}

/// The code with copies of constants set in place, and without masks and constants that no step reads.
pub(super) fn simplified(code: &VCode) -> VCode {
    let constant = |step: &VInst| match step {
        VInst::Constant(dst, _) | VInst::WideConstant(dst, _) => Some((*dst, step.clone())),
        _ => None,
    };
    let constants: HashMap<Vector, VInst> = code.steps.iter().filter_map(constant).collect();
    let in_place = |step: &VInst| match step {
        VInst::Move(dst, src) => match constants.get(src) {
            Some(VInst::Constant(_, bits)) => VInst::Constant(*dst, *bits),
            Some(VInst::WideConstant(_, bits)) => VInst::WideConstant(*dst, *bits),
            _ => step.clone(),
        },
        _ => step.clone(),
    };

    let mut steps: Vec<VInst> = code.steps.iter().map(in_place).collect();
    let read: HashSet<VReg> = steps
        .iter()
        .flat_map(|step| {
            let mentioned = operands(step);
            mentioned.reads.into_iter().chain(mentioned.late)
        })
        .collect();
    steps.retain(|step| match step {
        VInst::MaskFirst(mask, ..) => read.contains(&VReg::from(*mask)),
        VInst::Constant(dst, _) | VInst::WideConstant(dst, _) => read.contains(&VReg::from(*dst)),
        _ => true,
    });
    VCode { steps, ..*code }
}
