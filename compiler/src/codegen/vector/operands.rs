//! The registers that a step reads and sets.

use super::vcode::{Int, IntOperand, Mask, Mem, VBinary, VInst, Vector};
use smallvec::{SmallVec, smallvec};

/// A virtual register of any class.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum VReg {
    Int(u32),
    Vector(u32),
    Mask(u32),
}

/// The registers of one step.
#[derive(Default, Debug)]
pub(super) struct Operands {
    pub(super) reads: SmallVec<[VReg; 6]>,
    /// Read after the first of `sets` is set.
    pub(super) late: SmallVec<[VReg; 2]>,
    /// Set after all reads, so that they may share a register with an operand that is read for the last time.
    pub(super) sets: SmallVec<[VReg; 2]>,
    /// Clobbered, or set before the last read.
    pub(super) early: SmallVec<[VReg; 2]>,
}

impl Operands {
    /// Whether the step reads a register.
    pub(super) fn reads(&self, reg: VReg) -> bool {
        self.reads.contains(&reg) || self.late.contains(&reg)
    }

    /// Whether the step sets or clobbers a register.
    pub(super) fn sets(&self, reg: VReg) -> bool {
        self.sets.contains(&reg) || self.early.contains(&reg)
    }

    pub(super) fn read(mut self, reg: impl Into<VReg>) -> Operands {
        self.reads.push(reg.into());
        self
    }

    pub(super) fn read_late(mut self, reg: impl Into<VReg>) -> Operands {
        self.late.push(reg.into());
        self
    }

    pub(super) fn read_mem(self, mem: &Mem) -> Operands {
        let operands = self.read(mem.base);
        match mem.index {
            Some((index, _)) => operands.read(index),
            None => operands,
        }
    }

    fn read_int_operand(self, operand: IntOperand) -> Operands {
        match operand {
            IntOperand::Int(int) => self.read(int),
            IntOperand::Imm(_) => self,
        }
    }

    pub(super) fn set(mut self, reg: impl Into<VReg>) -> Operands {
        self.sets.push(reg.into());
        self
    }

    pub(super) fn set_early(mut self, reg: impl Into<VReg>) -> Operands {
        self.early.push(reg.into());
        self
    }
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

/// The operands of a step, constants among them.
///
/// The order of the reads matters: the register allocator prefers to let a result share the register of the first one.
pub(super) fn operands(step: &VInst) -> Operands {
    let none = Operands::default();
    match step {
        VInst::Imm(dst, _) | VInst::Scratch(dst) => none.set(*dst),
        VInst::Copy(dst, src) => none.read(*src).set(*dst),
        VInst::Int(_, dst, a, b) => none.read(*a).read_int_operand(*b).set(*dst),
        VInst::Address(dst, mem) | VInst::LoadInt(dst, mem, _) => none.read_mem(mem).set(*dst),
        VInst::StoreInt(mem, src, _) => none.read_mem(mem).read(*src),
        VInst::Constant(..) | VInst::WideConstant(..) | VInst::Loop | VInst::EndIf => none,
        VInst::EndLoop(cond) | VInst::If(cond) => none.read_int_operand(cond.b).read(cond.a),

        VInst::Prefetch(mem)
        | VInst::PrefetchWrite(mem)
        | VInst::TileConfig(mem)
        | VInst::TileLoad(_, mem)
        | VInst::TileStore(mem, _) => none.read_mem(mem),
        VInst::TileRelease | VInst::TileZero(_) | VInst::TileDot(..) => none,

        VInst::Load(dst, mem)
        | VInst::LoadOne(dst, mem)
        | VInst::Broadcast(dst, mem)
        | VInst::WideBroadcast(dst, mem)
        | VInst::LoadNarrow(dst, mem, _)
        | VInst::LoadHalves(dst, mem, _)
        | VInst::BroadcastNarrow(dst, mem, _)
        | VInst::LoadF16(dst, mem)
        | VInst::BroadcastF16(dst, mem) => none.read_mem(mem).set(*dst),
        VInst::LoadFirst(dst, mem, _, mask) => none.read_mem(mem).read(*mask).set(*dst),
        VInst::LoadNarrowFirst(dst, mem, mask, _) => none.read_mem(mem).read(*mask).set(*dst),
        VInst::LoadLanes(dst, temp, mems) => {
            mems.iter().fold(none, Operands::read_mem).set_early(*dst).set_early(*temp)
        }
        VInst::LoadQuads(dst, mems) => mems.iter().fold(none, Operands::read_mem).set(*dst),
        VInst::Gather(dst, mask, mem, offsets) => {
            none.read_mem(mem).read(*offsets).set_early(*dst).set_early(*mask)
        }
        VInst::Store(mem, src) | VInst::StoreOne(mem, src) | VInst::StoreF16(mem, src) => {
            none.read_mem(mem).read(*src)
        }
        VInst::StoreFirst(mem, src, _, mask) => none.read_mem(mem).read(*src).read(*mask),
        VInst::StoreNarrowFirst(mem, src, mask, ..) => none.read_mem(mem).read(*src).read(*mask),
        VInst::StorePacked(mem, srcs, _, temps) | VInst::StoreInterleaved(mem, srcs, temps) => {
            let reads = srcs.iter().fold(none.read_mem(mem), |all, src| all.read(*src));
            temps.iter().fold(reads, |all, temp| all.set_early(*temp))
        }
        VInst::StoreNarrow(mem, src, temp, ..)
        | VInst::StoreTriples(mem, src, temp)
        | VInst::StoreBf16(mem, src, temp) => none.read_mem(mem).read(*src).set_early(*temp),
        VInst::StorePart(mem, src, temp, n) => none.read_mem(mem).read(*src).read(*n).set_early(*temp),
        VInst::StoreBf16First(mem, src, temp, _, mask) => {
            none.read_mem(mem).read(*src).read(*mask).set_early(*temp)
        }
        VInst::StoreLanes(mems, src, temp) => {
            mems.iter().fold(none, Operands::read_mem).read(*src).set_early(*temp)
        }

        VInst::StoreQuads(mems, src) => mems.iter().fold(none, Operands::read_mem).read(*src),
        VInst::CountFrom(dst, first) => none.read(*first).set(*dst),
        // AVX-512 first loads the numbers of the lanes to the destination.
        VInst::InterleaveBytes(dst, src) => none.read(*src).set_early(*dst),
        VInst::Move(dst, src)
        | VInst::Unary(_, dst, src)
        | VInst::WideUnary(_, dst, src)
        | VInst::RoundBf16(dst, src)
        | VInst::RoundF16(dst, src)
        | VInst::UnpackBf16(dst, src, _)
        | VInst::Shift(_, dst, src, _)
        | VInst::WideShift(_, dst, src, _)
        | VInst::Butterfly(dst, src, _) => none.read(*src).set(*dst),
        VInst::Binary(VBinary::EvenThenOdd | VBinary::Even | VBinary::Odd, dst, a, b) => {
            none.read(*a).read(*b).set_early(*dst)
        }
        VInst::Binary(_, dst, a, b) | VInst::WideBinary(_, dst, a, b) | VInst::PackBf16(dst, a, b) => {
            none.read(*a).read(*b).set(*dst)
        }
        VInst::UnlessInfinite(dst, a, b) => none.read(*a).read(*b).set_early(*dst),
        VInst::ScaleUnlessLess(dst, mask, srcs) => {
            srcs.iter().fold(none, |operands, src| operands.read(*src)).set(*dst).set_early(*mask)
        }
        VInst::Fma(dst, a, b, c)
        | VInst::FmaLane(dst, a, b, _, c)
        | VInst::DotSigned(dst, a, b, c)
        | VInst::DotMatrix(dst, a, b, c)
        | VInst::DotMatrixBf16(dst, a, b, c)
        | VInst::DotSignedLane(dst, a, b, _, c) => none.read(*c).read(*a).read(*b).set(*dst),
        VInst::Bits(_, dst, a, b, c) if dst == a => none.read(*a).read(*b).read(*c).set(*dst),
        // The first operand is copied to the destination before the others are read.
        VInst::Bits(_, dst, a, b, c) => none.read(*a).read(*b).read(*c).set_early(*dst),
        VInst::DotBytes(dst, a, b, c) | VInst::SumDotPairs(dst, a, b, c) if dst == c => {
            none.read(*c).read(*a).read(*b).set(*dst)
        }
        // The addend is copied to the destination before the others are read.
        VInst::DotBytes(dst, a, b, c) | VInst::SumDotPairs(dst, a, b, c) => {
            none.read(*c).read(*a).read(*b).set_early(*dst)
        }

        other => mask_operands(other),
    }
}

/// The operands of a comparison, and of a step that reads or sets masks only.
fn mask_operands(step: &VInst) -> Operands {
    let none = Operands::default();
    match step {
        VInst::Compare(_, dst, a, b) | VInst::WideCompare(_, dst, a, b) => none.read(*a).read(*b).set(*dst),
        VInst::MaskHalf(dst, a, _) => none.read(*a).set(*dst),
        VInst::AnyLane(dst, mask) => none.read(*mask).set(*dst),
        // AVX2 negates the result with a second instruction.
        VInst::CompareInt(_, dst, a, b) | VInst::WideCompareInt(_, dst, a, b) => {
            none.read(*a).read(*b).set_early(*dst)
        }
        VInst::Mask(_, dst, a, b) => none.read(*a).read(*b).set(*dst),
        VInst::MaskFirst(dst, n, temp) => none.read(*n).set_early(*dst).set_early(*temp),
        VInst::LoadMask(dst, mem) => none.read_mem(mem).set(*dst),
        VInst::StoreMask(mem, src) => none.read_mem(mem).read(*src),
        VInst::Select(dst, mask, a, b) | VInst::WideSelect(dst, mask, a, b) => {
            none.read(*mask).read(*a).read(*b).set(*dst)
        }
        _ => unreachable!("not a step on masks: {step:?}"),
    }
}

/// The step with its registers renamed. The second argument of `int` and `vector` says whether the step sets the
/// register.
pub(super) fn rename(
    step: &VInst,
    int: &mut dyn FnMut(Int, bool) -> Int,
    vector: &mut dyn FnMut(Vector, bool) -> Vector,
    mask: &mut dyn FnMut(Mask) -> Mask,
) -> VInst {
    let mut step = step.clone();
    masks(&mut step).into_iter().for_each(|reg| *reg = mask(*reg));

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
        VInst::StoreInt(at, src, _) => {
            mem(at, int);
            *src = int(*src, false);
        }
        VInst::Loop | VInst::EndIf | VInst::TileRelease | VInst::TileZero(_) | VInst::TileDot(..) => {}
        VInst::Move(dst, src)
        | VInst::Unary(_, dst, src)
        | VInst::RoundBf16(dst, src)
        | VInst::RoundF16(dst, src)
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
        | VInst::LoadF16(dst, at)
        | VInst::BroadcastF16(dst, at) => {
            mem(at, int);
            *dst = vector(*dst, true);
        }
        VInst::Store(at, src)
        | VInst::StoreOne(at, src)
        | VInst::StoreF16(at, src)
        | VInst::StoreNarrow(at, src, ..)
        | VInst::StoreNarrowFirst(at, src, ..)
        | VInst::StoreBf16(at, src, _)
        | VInst::StoreBf16First(at, src, ..) => {
            mem(at, int);
            *src = vector(*src, false);
        }
        VInst::LoadMask(_, at) | VInst::StoreMask(at, _) => mem(at, int),
        VInst::Prefetch(at) | VInst::PrefetchWrite(at) | VInst::TileConfig(at) => mem(at, int),
        VInst::TileLoad(_, at) | VInst::TileStore(at, _) => mem(at, int),
        VInst::StoreLanes(mems, src, _) => {
            mems.iter_mut().for_each(|at| mem(at, int));
            *src = vector(*src, false);
        }
        VInst::Fma(dst, a, b, c)
        | VInst::FmaLane(dst, a, b, _, c)
        | VInst::DotSigned(dst, a, b, c)
        | VInst::DotMatrix(dst, a, b, c)
        | VInst::DotMatrixBf16(dst, a, b, c)
        | VInst::DotSignedLane(dst, a, b, _, c)
        | VInst::Bits(_, dst, a, b, c)
        | VInst::DotBytes(dst, a, b, c)
        | VInst::SumDotPairs(dst, a, b, c) => {
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
        VInst::MaskFirst(_, n, _) => *n = int(*n, false),
        VInst::EndLoop(cond) | VInst::If(cond) => {
            cond.a = int(cond.a, false);
            if let IntOperand::Int(b) = &mut cond.b {
                *b = int(*b, false);
            }
        }
        other => rename_other(other, int, vector),
    }

    step
}

/// Renames the integer and vector registers of constants, of loads and stores by lane, of gathers, of comparisons, of
/// the exchange and the stores of bytes, and of steps on 64-bit lanes.
fn rename_other(
    step: &mut VInst,
    int: &mut dyn FnMut(Int, bool) -> Int,
    vector: &mut dyn FnMut(Vector, bool) -> Vector,
) {
    match step {
        VInst::Constant(dst, _) | VInst::WideConstant(dst, _) => *dst = vector(*dst, true),
        VInst::LoadLanes(dst, _, mems) | VInst::LoadQuads(dst, mems) => {
            mems.iter_mut().for_each(|at| mem(at, int));
            *dst = vector(*dst, true);
        }
        VInst::LoadFirst(dst, at, n, _) => {
            mem(at, int);
            *n = int(*n, false);
            *dst = vector(*dst, true);
        }
        VInst::StoreFirst(at, src, n, _) | VInst::StorePart(at, src, _, n) => {
            mem(at, int);
            *n = int(*n, false);
            *src = vector(*src, false);
        }
        VInst::StorePacked(at, srcs, ..) | VInst::StoreInterleaved(at, srcs, _) => {
            mem(at, int);
            srcs.iter_mut().for_each(|src| *src = vector(*src, false));
        }
        VInst::StoreQuads(mems, src) => {
            mems.iter_mut().for_each(|at| mem(at, int));
            *src = vector(*src, false);
        }
        VInst::StoreTriples(at, src, _) => {
            mem(at, int);
            *src = vector(*src, false);
        }
        VInst::WideUnary(_, dst, src)
        | VInst::WideShift(_, dst, src, _)
        | VInst::InterleaveBytes(dst, src) => {
            *src = vector(*src, false);
            *dst = vector(*dst, true);
        }
        VInst::WideBroadcast(dst, at) | VInst::LoadNarrowFirst(dst, at, ..) => {
            mem(at, int);
            *dst = vector(*dst, true);
        }
        VInst::WideBinary(_, dst, a, b) | VInst::WideSelect(dst, _, a, b) => {
            [a, b].into_iter().for_each(|src| *src = vector(*src, false));
            *dst = vector(*dst, true);
        }
        VInst::Compare(_, _, a, b)
        | VInst::CompareInt(_, _, a, b)
        | VInst::WideCompare(_, _, a, b)
        | VInst::WideCompareInt(_, _, a, b) => {
            [a, b].into_iter().for_each(|src| *src = vector(*src, false));
        }
        VInst::Gather(dst, _, at, offsets) => {
            mem(at, int);
            *offsets = vector(*offsets, false);
            *dst = vector(*dst, true);
        }
        VInst::ScaleUnlessLess(dst, _, srcs) => {
            srcs.iter_mut().for_each(|src| *src = vector(*src, false));
            *dst = vector(*dst, true);
        }
        VInst::AnyLane(dst, _) => *dst = int(*dst, true),
        VInst::CountFrom(dst, first) => {
            *first = int(*first, false);
            *dst = vector(*dst, true);
        }
        _ => {}
    }
}

/// Renames the registers of a memory operand.
fn mem(mem: &mut Mem, int: &mut dyn FnMut(Int, bool) -> Int) {
    mem.base = int(mem.base, false);
    mem.index = mem.index.map(|(index, scale)| (int(index, false), scale));
}

/// The masks of a step.
fn masks(step: &mut VInst) -> SmallVec<[&mut Mask; 3]> {
    match step {
        VInst::LoadFirst(.., mask)
        | VInst::StoreFirst(.., mask)
        | VInst::StoreBf16First(.., mask)
        | VInst::LoadNarrowFirst(_, _, mask, _)
        | VInst::StoreNarrowFirst(_, _, mask, ..)
        | VInst::Compare(_, mask, ..)
        | VInst::CompareInt(_, mask, ..)
        | VInst::WideCompare(_, mask, ..)
        | VInst::WideCompareInt(_, mask, ..)
        | VInst::WideSelect(_, mask, ..)
        | VInst::AnyLane(_, mask)
        | VInst::Gather(_, mask, ..)
        | VInst::ScaleUnlessLess(_, mask, _)
        | VInst::MaskFirst(mask, ..)
        | VInst::Select(_, mask, ..)
        | VInst::LoadMask(mask, _)
        | VInst::StoreMask(_, mask) => smallvec![mask],
        VInst::Mask(_, dst, a, b) => smallvec![dst, a, b],
        VInst::MaskHalf(dst, a, _) => smallvec![dst, a],
        _ => SmallVec::new(),
    }
}

impl VInst {
    /// Whether the step begins or ends a loop or a branch.
    pub(super) fn is_control_flow(&self) -> bool {
        matches!(self, VInst::Loop | VInst::EndLoop(_) | VInst::If(_) | VInst::EndIf)
    }

    /// Whether the step writes to memory.
    pub(super) fn stores(&self) -> bool {
        matches!(
            self,
            VInst::StoreInt(..)
                | VInst::Store(..)
                | VInst::StoreOne(..)
                | VInst::StoreFirst(..)
                | VInst::StorePart(..)
                | VInst::StoreLanes(..)
                | VInst::StoreF16(..)
                | VInst::StoreNarrow(..)
                | VInst::StoreNarrowFirst(..)
                | VInst::StorePacked(..)
                | VInst::StoreQuads(..)
                | VInst::StoreTriples(..)
                | VInst::StoreInterleaved(..)
                | VInst::StoreBf16(..)
                | VInst::StoreBf16First(..)
                | VInst::StoreMask(..)
                | VInst::TileStore(..)
        )
    }
}
