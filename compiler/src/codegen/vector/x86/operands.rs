//! Which registers a step reads and sets.

use crate::codegen::vector::code::{Int, Mask, Mem, Operand, Step, Vector};

/// A virtual register of any class.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) enum Reg {
    Int(u32),
    Vector(u32),
    Mask(u32),
}

/// The registers of one step.
#[derive(Default, Debug)]
pub(super) struct Operands {
    pub(super) reads: Vec<Reg>,
    /// Set after all reads, so that they may share a register with something read last here.
    pub(super) sets: Vec<Reg>,
    /// Set while reads are still to come, or clobbered.
    pub(super) early: Vec<Reg>,
}

impl From<Int> for Reg {
    fn from(int: Int) -> Reg {
        Reg::Int(int.0)
    }
}

impl From<Vector> for Reg {
    fn from(vector: Vector) -> Reg {
        Reg::Vector(vector.0)
    }
}

impl From<Mask> for Reg {
    fn from(mask: Mask) -> Reg {
        Reg::Mask(mask.0)
    }
}

fn of_mem(mem: &Mem) -> Vec<Reg> {
    let index = mem.index.map(|(index, _)| index.into());
    std::iter::once(mem.base.into()).chain(index).collect()
}

fn of_operand(operand: &Operand) -> Option<Reg> {
    match operand {
        Operand::Int(int) => Some((*int).into()),
        Operand::Imm(_) => None,
    }
}

/// Registers read, set late and set early.
type Lists = (Vec<Reg>, Vec<Reg>, Vec<Reg>);

/// The operands of a step, constants among them.
pub(super) fn operands(step: &Step) -> Operands {
    let (reads, sets, early): Lists = match step {
        Step::Imm(dst, _) | Step::Scratch(dst) => (vec![], vec![(*dst).into()], vec![]),
        Step::Copy(dst, src) => (vec![(*src).into()], vec![(*dst).into()], vec![]),
        Step::Int(_, dst, a, b) => {
            (std::iter::once((*a).into()).chain(of_operand(b)).collect(), vec![(*dst).into()], vec![])
        }
        Step::Address(dst, mem) | Step::LoadInt(dst, mem, _) => (of_mem(mem), vec![(*dst).into()], vec![]),
        Step::StoreInt(mem, src, _) => ([of_mem(mem), vec![(*src).into()]].concat(), vec![], vec![]),
        Step::Constant(..) | Step::Loop | Step::EndIf => (vec![], vec![], vec![]),
        Step::Prefetch(mem) | Step::TileConfig(mem) | Step::TileLoad(_, mem) | Step::TileStore(mem, _) => {
            (of_mem(mem), vec![], vec![])
        }
        Step::TileRelease | Step::TileZero(_) | Step::TileDot(..) => (vec![], vec![], vec![]),
        Step::Move(dst, src)
        | Step::Op1(_, dst, src)
        | Step::RoundBf16(dst, src)
        | Step::UnpackBf16(dst, src, _)
        | Step::Shift(_, dst, src, _)
        | Step::Butterfly(dst, src, _) => (vec![(*src).into()], vec![(*dst).into()], vec![]),
        Step::Load(dst, mem)
        | Step::LoadOne(dst, mem)
        | Step::Broadcast(dst, mem)
        | Step::LoadNarrow(dst, mem, _)
        | Step::LoadHalves(dst, mem, _)
        | Step::BroadcastNarrow(dst, mem, _) => (of_mem(mem), vec![(*dst).into()], vec![]),
        Step::StoreNarrow(mem, src, temp, _) | Step::StoreBf16(mem, src, temp) => {
            ([of_mem(mem), vec![(*src).into()]].concat(), vec![], vec![(*temp).into()])
        }
        Step::UnlessInfinite(dst, a, b) => (vec![(*a).into(), (*b).into()], vec![], vec![(*dst).into()]),
        Step::LoadFirst(dst, mem, _, mask) => {
            ([of_mem(mem), vec![(*mask).into()]].concat(), vec![(*dst).into()], vec![])
        }
        Step::LoadLanes(dst, temp, mems) => {
            (mems.iter().flat_map(of_mem).collect(), vec![], vec![(*dst).into(), (*temp).into()])
        }
        Step::Store(mem, src) | Step::StoreOne(mem, src) => {
            ([of_mem(mem), vec![(*src).into()]].concat(), vec![], vec![])
        }
        Step::StoreFirst(mem, src, _, mask) => {
            ([of_mem(mem), vec![(*src).into(), (*mask).into()]].concat(), vec![], vec![])
        }
        Step::StoreBf16First(mem, src, temp, _, mask) => {
            ([of_mem(mem), vec![(*src).into(), (*mask).into()]].concat(), vec![], vec![(*temp).into()])
        }
        Step::StoreLanes(mems, src, temp) => {
            let reads = mems.iter().flat_map(of_mem).chain([(*src).into()]).collect();
            (reads, vec![], vec![(*temp).into()])
        }
        Step::Fma(dst, a, b, c) => (vec![(*c).into(), (*a).into(), (*b).into()], vec![(*dst).into()], vec![]),
        Step::DotQuads(dst, a, b, c) if dst == c => {
            (vec![(*c).into(), (*a).into(), (*b).into()], vec![(*dst).into()], vec![])
        }
        Step::DotQuads(dst, a, b, c) => {
            (vec![(*c).into(), (*a).into(), (*b).into()], vec![], vec![(*dst).into()])
        }
        Step::Op2(_, dst, a, b) | Step::PackBf16(dst, a, b) => {
            (vec![(*a).into(), (*b).into()], vec![(*dst).into()], vec![])
        }
        Step::Compare(_, dst, a, b) => (vec![(*a).into(), (*b).into()], vec![(*dst).into()], vec![]),
        // Made of two instructions on some levels.
        Step::CompareInt(_, dst, a, b) => (vec![(*a).into(), (*b).into()], vec![], vec![(*dst).into()]),
        Step::Mask(_, dst, a, b) => (vec![(*a).into(), (*b).into()], vec![(*dst).into()], vec![]),
        Step::MaskFirst(dst, n, temp) => (vec![(*n).into()], vec![], vec![(*dst).into(), (*temp).into()]),
        Step::LoadMask(dst, mem) => (of_mem(mem), vec![(*dst).into()], vec![]),
        Step::StoreMask(mem, src) => ([of_mem(mem), vec![(*src).into()]].concat(), vec![], vec![]),
        Step::Select(dst, mask, a, b) => {
            (vec![(*mask).into(), (*a).into(), (*b).into()], vec![(*dst).into()], vec![])
        }
        Step::EndLoop(cond) | Step::If(cond) => {
            (of_operand(&cond.b).into_iter().chain([cond.a.into()]).collect(), vec![], vec![])
        }
    };
    Operands { reads, sets, early }
}

/// The step with its registers renamed; `set` says whether the register is set there.
pub(super) fn rename(
    step: &Step,
    int: &mut dyn FnMut(Int, bool) -> Int,
    vector: &mut dyn FnMut(Vector, bool) -> Vector,
    mask: &mut dyn FnMut(Mask) -> Mask,
) -> Step {
    let mut step = step.clone();
    masks(&mut step).into_iter().for_each(|reg| *reg = mask(*reg));
    let mem = |mem: &mut Mem, int: &mut dyn FnMut(Int, bool) -> Int| {
        mem.base = int(mem.base, false);
        mem.index = mem.index.map(|(index, scale)| (int(index, false), scale));
    };
    match &mut step {
        Step::Imm(dst, _) | Step::Scratch(dst) => *dst = int(*dst, true),
        Step::Copy(dst, src) => {
            *src = int(*src, false);
            *dst = int(*dst, true);
        }
        Step::Int(_, dst, a, b) => {
            *a = int(*a, false);
            if let Operand::Int(b) = b {
                *b = int(*b, false);
            }
            *dst = int(*dst, true);
        }
        Step::Address(dst, at) | Step::LoadInt(dst, at, _) => {
            mem(at, int);
            *dst = int(*dst, true);
        }
        Step::Prefetch(at) | Step::TileConfig(at) | Step::TileLoad(_, at) | Step::TileStore(at, _) => {
            mem(at, int)
        }
        Step::TileRelease | Step::TileZero(_) | Step::TileDot(..) => {}
        Step::StoreInt(at, src, _) => {
            mem(at, int);
            *src = int(*src, false);
        }
        Step::Constant(..) | Step::Loop | Step::EndIf | Step::Mask(..) => {}
        Step::Move(dst, src)
        | Step::Op1(_, dst, src)
        | Step::RoundBf16(dst, src)
        | Step::UnpackBf16(dst, src, _)
        | Step::Shift(_, dst, src, _)
        | Step::Butterfly(dst, src, _) => {
            *src = vector(*src, false);
            *dst = vector(*dst, true);
        }
        Step::Load(dst, at)
        | Step::LoadOne(dst, at)
        | Step::Broadcast(dst, at)
        | Step::LoadNarrow(dst, at, _)
        | Step::LoadHalves(dst, at, _)
        | Step::BroadcastNarrow(dst, at, _)
        | Step::LoadFirst(dst, at, ..) => {
            mem(at, int);
            *dst = vector(*dst, true);
        }
        Step::LoadLanes(dst, _, mems) => {
            mems.iter_mut().for_each(|at| mem(at, int));
            *dst = vector(*dst, true);
        }
        Step::Store(at, src)
        | Step::StoreOne(at, src)
        | Step::StoreFirst(at, src, ..)
        | Step::StoreNarrow(at, src, ..)
        | Step::StoreBf16(at, src, _)
        | Step::StoreBf16First(at, src, ..) => {
            mem(at, int);
            *src = vector(*src, false);
        }
        Step::LoadMask(_, at) | Step::StoreMask(at, _) => mem(at, int),
        Step::StoreLanes(mems, src, _) => {
            mems.iter_mut().for_each(|at| mem(at, int));
            *src = vector(*src, false);
        }
        Step::Fma(dst, a, b, c) | Step::DotQuads(dst, a, b, c) => {
            [&mut *a, b, c].into_iter().for_each(|src| *src = vector(*src, false));
            *dst = vector(*dst, true);
        }
        Step::Op2(_, dst, a, b)
        | Step::PackBf16(dst, a, b)
        | Step::UnlessInfinite(dst, a, b)
        | Step::Select(dst, _, a, b) => {
            [a, b].into_iter().for_each(|src| *src = vector(*src, false));
            *dst = vector(*dst, true);
        }
        Step::Compare(_, _, a, b) | Step::CompareInt(_, _, a, b) => {
            [a, b].into_iter().for_each(|src| *src = vector(*src, false));
        }
        Step::MaskFirst(_, n, _) => *n = int(*n, false),
        Step::EndLoop(cond) | Step::If(cond) => {
            cond.a = int(cond.a, false);
            if let Operand::Int(b) = &mut cond.b {
                *b = int(*b, false);
            }
        }
    }
    step
}

/// The masks of a step.
fn masks(step: &mut Step) -> Vec<&mut Mask> {
    match step {
        Step::LoadFirst(.., mask)
        | Step::StoreFirst(.., mask)
        | Step::StoreBf16First(.., mask)
        | Step::Compare(_, mask, ..)
        | Step::CompareInt(_, mask, ..)
        | Step::MaskFirst(mask, ..)
        | Step::Select(_, mask, ..)
        | Step::LoadMask(mask, _)
        | Step::StoreMask(_, mask) => vec![mask],
        Step::Mask(_, dst, a, b) => vec![dst, a, b],
        _ => Vec::new(),
    }
}
