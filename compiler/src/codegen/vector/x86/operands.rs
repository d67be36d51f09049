//! Which registers a step reads and sets.

use crate::codegen::vector::vcode::{Int, IntOperand, Mask, Mem, VInst, Vector};

/// A virtual register of any class.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) enum VReg {
    Int(u32),
    Vector(u32),
    Mask(u32),
}

/// The registers of one step.
#[derive(Default, Debug)]
pub(super) struct Operands {
    pub(super) reads: Vec<VReg>,
    /// Set after all reads, so that they may share a register with something read last here.
    pub(super) sets: Vec<VReg>,
    /// Set while reads are still to come, or clobbered.
    pub(super) early: Vec<VReg>,
}

impl From<Int> for VReg {
    fn from(int: Int) -> VReg {
        VReg::Int(int.0)
    }
}

impl From<Vector> for VReg {
    fn from(vector: Vector) -> VReg {
        VReg::Vector(vector.0)
    }
}

impl From<Mask> for VReg {
    fn from(mask: Mask) -> VReg {
        VReg::Mask(mask.0)
    }
}

fn of_mem(mem: &Mem) -> Vec<VReg> {
    let index = mem.index.map(|(index, _)| index.into());
    std::iter::once(mem.base.into()).chain(index).collect()
}

fn of_operand(operand: &IntOperand) -> Option<VReg> {
    match operand {
        IntOperand::Int(int) => Some((*int).into()),
        IntOperand::Imm(_) => None,
    }
}

/// Registers read, set late and set early.
type Lists = (Vec<VReg>, Vec<VReg>, Vec<VReg>);

/// The operands of a step, constants among them.
pub(super) fn operands(step: &VInst) -> Operands {
    let (reads, sets, early): Lists = match step {
        VInst::Imm(dst, _) | VInst::Scratch(dst) => (vec![], vec![(*dst).into()], vec![]),
        VInst::Copy(dst, src) => (vec![(*src).into()], vec![(*dst).into()], vec![]),
        VInst::Int(_, dst, a, b) => {
            (std::iter::once((*a).into()).chain(of_operand(b)).collect(), vec![(*dst).into()], vec![])
        }
        VInst::Address(dst, mem) | VInst::LoadInt(dst, mem, _) => (of_mem(mem), vec![(*dst).into()], vec![]),
        VInst::StoreInt(mem, src, _) => ([of_mem(mem), vec![(*src).into()]].concat(), vec![], vec![]),
        VInst::Constant(..) | VInst::Loop | VInst::EndIf => (vec![], vec![], vec![]),
        VInst::Prefetch(mem)
        | VInst::TileConfig(mem)
        | VInst::TileLoad(_, mem)
        | VInst::TileStore(mem, _) => (of_mem(mem), vec![], vec![]),
        VInst::TileRelease | VInst::TileZero(_) | VInst::TileDot(..) => (vec![], vec![], vec![]),
        VInst::Move(dst, src)
        | VInst::Unary(_, dst, src)
        | VInst::RoundBf16(dst, src)
        | VInst::UnpackBf16(dst, src, _)
        | VInst::Shift(_, dst, src, _)
        | VInst::Butterfly(dst, src, _) => (vec![(*src).into()], vec![(*dst).into()], vec![]),
        VInst::Load(dst, mem)
        | VInst::LoadOne(dst, mem)
        | VInst::Broadcast(dst, mem)
        | VInst::LoadNarrow(dst, mem, _)
        | VInst::LoadHalves(dst, mem, _)
        | VInst::BroadcastNarrow(dst, mem, _) => (of_mem(mem), vec![(*dst).into()], vec![]),
        VInst::StoreNarrow(mem, src, temp, _) | VInst::StoreBf16(mem, src, temp) => {
            ([of_mem(mem), vec![(*src).into()]].concat(), vec![], vec![(*temp).into()])
        }
        VInst::UnlessInfinite(dst, a, b) => (vec![(*a).into(), (*b).into()], vec![], vec![(*dst).into()]),
        VInst::LoadFirst(dst, mem, _, mask) => {
            ([of_mem(mem), vec![(*mask).into()]].concat(), vec![(*dst).into()], vec![])
        }
        VInst::LoadLanes(dst, temp, mems) => {
            (mems.iter().flat_map(of_mem).collect(), vec![], vec![(*dst).into(), (*temp).into()])
        }
        VInst::Store(mem, src) | VInst::StoreOne(mem, src) => {
            ([of_mem(mem), vec![(*src).into()]].concat(), vec![], vec![])
        }
        VInst::StoreFirst(mem, src, _, mask) => {
            ([of_mem(mem), vec![(*src).into(), (*mask).into()]].concat(), vec![], vec![])
        }
        VInst::StoreBf16First(mem, src, temp, _, mask) => {
            ([of_mem(mem), vec![(*src).into(), (*mask).into()]].concat(), vec![], vec![(*temp).into()])
        }
        VInst::StoreLanes(mems, src, temp) => {
            let reads = mems.iter().flat_map(of_mem).chain([(*src).into()]).collect();
            (reads, vec![], vec![(*temp).into()])
        }
        VInst::Fma(dst, a, b, c) => {
            (vec![(*c).into(), (*a).into(), (*b).into()], vec![(*dst).into()], vec![])
        }
        VInst::DotBytes(dst, a, b, c) if dst == c => {
            (vec![(*c).into(), (*a).into(), (*b).into()], vec![(*dst).into()], vec![])
        }
        VInst::DotBytes(dst, a, b, c) => {
            (vec![(*c).into(), (*a).into(), (*b).into()], vec![], vec![(*dst).into()])
        }
        VInst::Binary(_, dst, a, b) | VInst::PackBf16(dst, a, b) => {
            (vec![(*a).into(), (*b).into()], vec![(*dst).into()], vec![])
        }
        VInst::Compare(_, dst, a, b) => (vec![(*a).into(), (*b).into()], vec![(*dst).into()], vec![]),
        // Made of two instructions on some levels.
        VInst::CompareInt(_, dst, a, b) => (vec![(*a).into(), (*b).into()], vec![], vec![(*dst).into()]),
        VInst::Mask(_, dst, a, b) => (vec![(*a).into(), (*b).into()], vec![(*dst).into()], vec![]),
        VInst::MaskFirst(dst, n, temp) => (vec![(*n).into()], vec![], vec![(*dst).into(), (*temp).into()]),
        VInst::LoadMask(dst, mem) => (of_mem(mem), vec![(*dst).into()], vec![]),
        VInst::StoreMask(mem, src) => ([of_mem(mem), vec![(*src).into()]].concat(), vec![], vec![]),
        VInst::Select(dst, mask, a, b) => {
            (vec![(*mask).into(), (*a).into(), (*b).into()], vec![(*dst).into()], vec![])
        }
        VInst::EndLoop(cond) | VInst::If(cond) => {
            (of_operand(&cond.b).into_iter().chain([cond.a.into()]).collect(), vec![], vec![])
        }
    };
    Operands { reads, sets, early }
}

/// The step with its registers renamed; `set` says whether the register is set there.
pub(super) fn rename(
    step: &VInst,
    int: &mut dyn FnMut(Int, bool) -> Int,
    vector: &mut dyn FnMut(Vector, bool) -> Vector,
    mask: &mut dyn FnMut(Mask) -> Mask,
) -> VInst {
    let mut step = step.clone();
    masks(&mut step).into_iter().for_each(|reg| *reg = mask(*reg));
    let mem = |mem: &mut Mem, int: &mut dyn FnMut(Int, bool) -> Int| {
        mem.base = int(mem.base, false);
        mem.index = mem.index.map(|(index, scale)| (int(index, false), scale));
    };
    match &mut step {
        VInst::Imm(dst, _) | VInst::Scratch(dst) => *dst = int(*dst, true),
        VInst::Copy(dst, src) => {
            *src = int(*src, false);
            *dst = int(*dst, true);
        }
        VInst::Int(_, dst, a, b) => {
            *a = int(*a, false);
            if let IntOperand::Int(b) = b {
                *b = int(*b, false);
            }
            *dst = int(*dst, true);
        }
        VInst::Address(dst, at) | VInst::LoadInt(dst, at, _) => {
            mem(at, int);
            *dst = int(*dst, true);
        }
        VInst::Prefetch(at) | VInst::TileConfig(at) | VInst::TileLoad(_, at) | VInst::TileStore(at, _) => {
            mem(at, int)
        }
        VInst::TileRelease | VInst::TileZero(_) | VInst::TileDot(..) => {}
        VInst::StoreInt(at, src, _) => {
            mem(at, int);
            *src = int(*src, false);
        }
        VInst::Constant(..) | VInst::Loop | VInst::EndIf | VInst::Mask(..) => {}
        VInst::Move(dst, src)
        | VInst::Unary(_, dst, src)
        | VInst::RoundBf16(dst, src)
        | VInst::UnpackBf16(dst, src, _)
        | VInst::Shift(_, dst, src, _)
        | VInst::Butterfly(dst, src, _) => {
            *src = vector(*src, false);
            *dst = vector(*dst, true);
        }
        VInst::Load(dst, at)
        | VInst::LoadOne(dst, at)
        | VInst::Broadcast(dst, at)
        | VInst::LoadNarrow(dst, at, _)
        | VInst::LoadHalves(dst, at, _)
        | VInst::BroadcastNarrow(dst, at, _)
        | VInst::LoadFirst(dst, at, ..) => {
            mem(at, int);
            *dst = vector(*dst, true);
        }
        VInst::LoadLanes(dst, _, mems) => {
            mems.iter_mut().for_each(|at| mem(at, int));
            *dst = vector(*dst, true);
        }
        VInst::Store(at, src)
        | VInst::StoreOne(at, src)
        | VInst::StoreFirst(at, src, ..)
        | VInst::StoreNarrow(at, src, ..)
        | VInst::StoreBf16(at, src, _)
        | VInst::StoreBf16First(at, src, ..) => {
            mem(at, int);
            *src = vector(*src, false);
        }
        VInst::LoadMask(_, at) | VInst::StoreMask(at, _) => mem(at, int),
        VInst::StoreLanes(mems, src, _) => {
            mems.iter_mut().for_each(|at| mem(at, int));
            *src = vector(*src, false);
        }
        VInst::Fma(dst, a, b, c) | VInst::DotBytes(dst, a, b, c) => {
            [&mut *a, b, c].into_iter().for_each(|src| *src = vector(*src, false));
            *dst = vector(*dst, true);
        }
        VInst::Binary(_, dst, a, b)
        | VInst::PackBf16(dst, a, b)
        | VInst::UnlessInfinite(dst, a, b)
        | VInst::Select(dst, _, a, b) => {
            [a, b].into_iter().for_each(|src| *src = vector(*src, false));
            *dst = vector(*dst, true);
        }
        VInst::Compare(_, _, a, b) | VInst::CompareInt(_, _, a, b) => {
            [a, b].into_iter().for_each(|src| *src = vector(*src, false));
        }
        VInst::MaskFirst(_, n, _) => *n = int(*n, false),
        VInst::EndLoop(cond) | VInst::If(cond) => {
            cond.a = int(cond.a, false);
            if let IntOperand::Int(b) = &mut cond.b {
                *b = int(*b, false);
            }
        }
    }
    step
}

/// The masks of a step.
fn masks(step: &mut VInst) -> Vec<&mut Mask> {
    match step {
        VInst::LoadFirst(.., mask)
        | VInst::StoreFirst(.., mask)
        | VInst::StoreBf16First(.., mask)
        | VInst::Compare(_, mask, ..)
        | VInst::CompareInt(_, mask, ..)
        | VInst::MaskFirst(mask, ..)
        | VInst::Select(_, mask, ..)
        | VInst::LoadMask(mask, _)
        | VInst::StoreMask(_, mask) => vec![mask],
        VInst::Mask(_, dst, a, b) => vec![dst, a, b],
        _ => Vec::new(),
    }
}
