//! The registers that a step reads and sets, where its instructions differ from those of other machines.

use crate::codegen::vector::{
    operands::{self, Operands},
    reg_map::RegMap,
    vcode::{VCode, VInst},
};

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
    let mut constants: RegMap<&VInst> = RegMap::default();
    for step in &code.steps {
        if let VInst::Constant(dst, _) | VInst::WideConstant(dst, _) = step {
            constants.insert(*dst, step);
        }
    }
    let in_place = |step: &VInst| match step {
        VInst::Move(dst, src) => match constants.get(*src) {
            Some(VInst::Constant(_, bits)) => VInst::Constant(*dst, *bits),
            Some(VInst::WideConstant(_, bits)) => VInst::WideConstant(*dst, *bits),
            _ => step.clone(),
        },
        _ => step.clone(),
    };

    let mut steps: Vec<VInst> = code.steps.iter().map(in_place).collect();
    let mut read: RegMap<()> = RegMap::default();
    for step in &steps {
        let mentioned = operands(step);
        mentioned.reads.into_iter().chain(mentioned.late).for_each(|reg| read.insert(reg, ()));
    }
    steps.retain(|step| match step {
        VInst::MaskFirst(mask, ..) => read.contains(*mask),
        VInst::Constant(dst, _) | VInst::WideConstant(dst, _) => read.contains(*dst),
        _ => true,
    });
    VCode { steps, ..*code }
}
