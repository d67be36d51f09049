//! Register allocation by linear scan.
//!
//! The live range of a virtual register is one interval of positions, from its first mention to its last. Step `i` has
//! two positions: it reads at `2 * i` and sets at `2 * i + 1`. A register that is set before a loop and mentioned in
//! it lives to the loop's end, because the next round may read it.
//!
//! The scan visits intervals in the order of their starts. An interval prefers the register of an operand that dies at
//! the step that sets it. When no register is free, the interval with the fewest mentions for its length is spilled.
//! Mentions in loops count more. Each mention of a spilled register becomes a separate short-lived one, loaded before
//! and stored after the step. A constant is set again before each step that reads it, and a vector that is loaded from
//! memory is loaded again if no step in between stores. A scan finds all intervals to spill, and another one follows.

use super::{
    operands::{Operands, VReg, rename},
    reg_map::RegMap,
    vcode::{Int, IntWidth, Mask, Mem, VCode, VInst, Vector},
};
use crate::error::{Error, Result};
use smallvec::SmallVec;
use std::collections::HashSet;

/// The encoding of the stack pointer.
pub(super) const STACK: Int = Int(u32::MAX);

/// Bytes of a spill slot: the widest vector.
const SLOT_BYTES: i32 = 64;

/// Limit on the number of scans: more than any microkernel has spills.
const MAX_SCANS: usize = 1024;

/// The number of machine registers of each class.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegisterFiles {
    pub(super) ints: usize,
    pub(super) vectors: usize,
    /// `None` where masks are vectors.
    pub(super) masks: Option<usize>,
}

/// Code with a machine register for each virtual one.
pub(super) struct Allocated {
    pub(super) code: VCode,
    places: RegMap<usize>,
    /// Bytes of spill slots.
    pub(super) frame_bytes: i32,
    /// Number of vector registers that are spilled.
    pub(super) spills: usize,
}

impl Allocated {
    /// The index of the machine register within its class.
    pub(super) fn place(&self, reg: impl Into<VReg>) -> usize {
        *self.places.get(reg).expect("operands of steps have a place")
    }

    /// The machine integer registers in use.
    pub(super) fn ints(&self) -> HashSet<usize> {
        self.places.ints().copied().collect()
    }

    /// The machine vector registers in use, on a machine whose masks are vectors.
    pub(super) fn vectors(&self) -> HashSet<usize> {
        self.places.vectors_and_masks().copied().collect()
    }
}

/// The live range of a virtual register.
#[derive(Clone, Copy, Debug)]
struct Interval {
    reg: VReg,
    start: usize,
    /// Exclusive.
    end: usize,
    /// The cost of a spill: mentions, weighted by loop depth.
    weight: f64,
}

/// A set of machine registers that virtual registers compete for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FileClass {
    Ints,
    Vectors,
    Masks,
}

impl RegisterFiles {
    fn file(self, reg: VReg) -> FileClass {
        match reg {
            VReg::Int(_) => FileClass::Ints,
            VReg::Vector(_) => FileClass::Vectors,
            VReg::Mask(_) if self.masks.is_none() => FileClass::Vectors,
            VReg::Mask(_) => FileClass::Masks,
        }
    }

    fn count(self, file: FileClass) -> usize {
        match file {
            FileClass::Ints => self.ints,
            FileClass::Vectors => self.vectors,
            FileClass::Masks => self.masks.unwrap_or(0),
        }
    }
}

/// The registers of a step on a machine. Registers that are in no list get no place.
pub(super) type OperandsOf<'f> = &'f dyn Fn(&VInst) -> Operands;

/// Assigns a machine register to every virtual register that is an operand of the code.
pub(super) fn allocate(mut code: VCode, operands: OperandsOf, files: RegisterFiles) -> Result<Allocated> {
    // Registers that live for one step only, which must not be spilled again.
    let mut short_lived: RegMap<()> = RegMap::default();
    let mut slots = 0;
    let mut spills = 0;

    for _ in 0..MAX_SCANS {
        let intervals = intervals(&code, operands);
        let spilled = match scan(&code, &intervals, operands, files, &short_lived) {
            Ok(places) => {
                return Ok(Allocated { code, places, frame_bytes: slots * SLOT_BYTES, spills });
            }
            Err(spilled) if spilled.is_empty() => break,
            Err(spilled) => spilled,
        };

        // Vectors that are loaded again come first, because the registers of their addresses may be spilled as well.
        let setters: Vec<_> =
            spilled.iter().map(|reg| (*reg, repeatable(&code, operands, &intervals, *reg))).collect();
        for (reg, setter) in &setters {
            if let Some(setter) = setter {
                code = set_at_reads(&code, operands, setter, *reg, &mut short_lived);
            }
        }
        for (reg, _) in setters.iter().filter(|(_, setter)| setter.is_none()) {
            code = spill(&code, operands, *reg, slots * SLOT_BYTES, &mut short_lived);
            slots += 1;
            spills += usize::from(matches!(reg, VReg::Vector(_)));
        }
    }
    Err(Error::internal("a microkernel needs more registers than the machine has, even after spills"))
}

/// The intervals, sorted by their first position.
fn intervals(code: &VCode, operands: OperandsOf) -> Vec<Interval> {
    let mut known: RegMap<Interval> = RegMap::default();
    let args = VReg::Int(0);
    known.insert(args, Interval { reg: args, start: 0, end: 0, weight: 0.0 });
    let mut open_loops = Vec::new();
    let mut loops = Vec::new();

    for (idx, step) in code.steps.iter().enumerate() {
        match step {
            VInst::Loop => open_loops.push(idx),
            VInst::EndLoop(_) => loops.push((open_loops.pop().expect("loops are structured"), idx)),
            _ => {}
        }

        let weight = 10f64.powi(open_loops.len() as i32);
        let mentioned = operands(step);

        let mut touch = |reg: VReg, from: usize, to: usize| {
            if reg == VReg::from(STACK) {
                return;
            }
            let interval =
                known.entry(reg).get_or_insert(Interval { reg, start: from, end: to, weight: 0.0 });
            interval.end = interval.end.max(to);
            interval.weight += weight;
        };

        mentioned.reads.iter().for_each(|reg| touch(*reg, 2 * idx, 2 * idx + 1));
        mentioned.late.iter().for_each(|reg| touch(*reg, 2 * idx, 2 * idx + 2));
        mentioned.early.iter().for_each(|reg| touch(*reg, 2 * idx, 2 * idx + 2));
        mentioned.sets.iter().for_each(|reg| touch(*reg, 2 * idx + 1, 2 * idx + 2));
    }

    // Inner loops end before the loops around them, so an interval that one extends may reach into the next.
    for (first, last) in loops {
        for interval in known.values_mut() {
            if interval.start < 2 * first && interval.end > 2 * first {
                interval.end = interval.end.max(2 * last + 2);
            }
        }
    }

    let mut intervals: Vec<Interval> = known.into_values().collect();
    intervals.sort_by_key(|interval| (interval.start, interval.reg));
    intervals
}

/// The most vector registers that are in use at once within each loop, in the order in which the loops begin.
pub(super) fn vectors_in_loops(code: &VCode, operands: OperandsOf, files: RegisterFiles) -> Vec<usize> {
    // How many more intervals begin than end at each position.
    let mut changes = vec![0isize; 2 * code.steps.len() + 2];
    for interval in intervals(code, operands) {
        if files.file(interval.reg) == FileClass::Vectors {
            changes[interval.start] += 1;
            changes[interval.end] -= 1;
        }
    }

    let (mut most, mut open) = (Vec::new(), Vec::new());
    let mut used = 0;
    for (step, changes) in code.steps.iter().zip(changes.chunks(2)) {
        if let VInst::Loop = step {
            open.push(most.len());
            most.push(0);
        }
        for change in changes {
            used += change;
            open.iter().for_each(|&idx: &usize| most[idx] = most[idx].max(used as usize));
        }
        if let VInst::EndLoop(_) = step {
            open.pop();
        }
    }
    most
}

/// Machine registers for all intervals, or virtual registers to spill. There are none to spill if all that compete for
/// a register are short-lived.
fn scan(
    code: &VCode,
    intervals: &[Interval],
    operands: OperandsOf,
    files: RegisterFiles,
    short_lived: &RegMap<()>,
) -> Result<RegMap<usize>, Vec<VReg>> {
    let mut spilled = Vec::new();
    let mut places: RegMap<usize> = RegMap::default();
    let mut active: Vec<Interval> = Vec::new();
    for interval in intervals {
        active.retain(|other| other.end > interval.start);
        let file = files.file(interval.reg);
        let mut free: SmallVec<[bool; 32]> = SmallVec::from_elem(true, files.count(file));
        for other in active.iter().filter(|other| files.file(other.reg) == file) {
            let place = places.get(other.reg).expect("active intervals have a place");
            free[*place] = false;
        }

        let hint = hints(code, operands, interval).find_map(|reg| {
            let same_file = files.file(reg) == file;
            places.get(reg).copied().filter(|place| same_file && free[*place])
        });
        let place = match hint.or_else(|| free.iter().position(|free| *free)) {
            Some(place) => place,
            None => {
                let Some(victim) = victim(&active, interval, files, short_lived) else {
                    return Err(spilled);
                };
                spilled.push(victim);
                if victim == interval.reg {
                    continue;
                }
                active.retain(|other| other.reg != victim);
                *places.get(victim).expect("active intervals have a place")
            }
        };
        places.insert(interval.reg, place);
        active.push(*interval);
    }
    if spilled.is_empty() { Ok(places) } else { Err(spilled) }
}

/// The registers whose place the interval prefers: those that the step that sets it reads.
fn hints(code: &VCode, operands: OperandsOf, interval: &Interval) -> impl Iterator<Item = VReg> {
    let late = interval.start % 2 == 1;
    let setter = late.then(|| operands(&code.steps[interval.start / 2]));
    setter.into_iter().flat_map(|mentioned| mentioned.reads)
}

/// The cheapest register to spill so that `current` gets one; it may be `current` itself.
fn victim(
    active: &[Interval],
    current: &Interval,
    files: RegisterFiles,
    short_lived: &RegMap<()>,
) -> Option<VReg> {
    let file = files.file(current.reg);
    let rivals = active.iter().filter(|other| files.file(other.reg) == file).chain([current]);
    let candidates = rivals.filter(|other| !short_lived.contains(other.reg));
    let cost = |interval: &Interval| interval.weight / (interval.end - interval.start) as f64;
    candidates.min_by(|a, b| cost(a).total_cmp(&cost(b))).map(|interval| interval.reg)
}

/// The step that sets the register, if it is the only one and sets the same value before each step that reads it: it
/// sets a constant, or loads a vector from memory that keeps its contents up to the last read. The registers of the
/// address must live as long, so that no other interval becomes longer.
fn repeatable(code: &VCode, operands: OperandsOf, intervals: &[Interval], reg: VReg) -> Option<VInst> {
    let interval = |reg: VReg| intervals.iter().find(|interval| interval.reg == reg);
    let Interval { start, end, .. } = *interval(reg)?;
    let (first, last) = (start / 2, (end - 1) / 2);
    let sets = |step: &VInst, reg: VReg| operands(step).sets(reg);
    let setter = &code.steps[first];
    let others = code.steps.get(first + 1..=last)?;
    if !sets(setter, reg) || others.iter().any(|step| sets(step, reg)) {
        return None;
    }
    let mem = match setter {
        VInst::Constant(..) | VInst::WideConstant(..) => return Some(setter.clone()),
        VInst::Load(_, mem) | VInst::Broadcast(_, mem) if mem.base != STACK => mem,
        _ => return None,
    };

    let address =
        || [Some(mem.base), mem.index.map(|(index, _)| index)].into_iter().flatten().map(VReg::from);
    let is_alive = |int: VReg| interval(int).is_some_and(|interval| interval.end > 2 * last);
    let keeps =
        |step: &VInst| !step.is_control_flow() && !step.stores() && !address().any(|int| sets(step, int));
    let (_, between) = others.split_last()?;
    let is_kept = address().all(is_alive) && between.iter().all(keeps);
    is_kept.then(|| setter.clone())
}

/// The code that runs `setter` before each step that reads its result, in place of once.
fn set_at_reads(
    code: &VCode,
    operands: OperandsOf,
    setter: &VInst,
    reg: VReg,
    short_lived: &mut RegMap<()>,
) -> VCode {
    let mut out = VCode { steps: Vec::with_capacity(code.steps.len()), ..*code };
    for step in code.steps.iter().filter(|step| *step != setter) {
        if !operands(step).reads(reg) {
            out.steps.push(step.clone());
            continue;
        }
        let fresh = FreshRegs { int: Int(out.ints), vector: Vector(out.vectors), mask: Mask(out.masks) };
        out.vectors += 1;
        short_lived.insert(fresh.reg(reg), ());
        out.steps.extend([fresh.rename(setter, reg), fresh.rename(step, reg)]);
    }
    out
}

/// The code with every mention of a register loaded before its step and stored after it.
fn spill(
    code: &VCode,
    operands: OperandsOf,
    spilled: VReg,
    offset: i32,
    short_lived: &mut RegMap<()>,
) -> VCode {
    let slot = Mem { base: STACK, index: None, disp: offset };
    let mut out = VCode { steps: Vec::with_capacity(code.steps.len()), ..*code };
    if spilled == VReg::Int(0) {
        out.steps.push(VInst::StoreInt(slot, Int(0), IntWidth::I64));
    }
    for step in &code.steps {
        let mentioned = operands(step);
        let reads = mentioned.reads(spilled);
        let sets = mentioned.sets(spilled);
        if !reads && !sets {
            out.steps.push(step.clone());
            continue;
        }

        let fresh = FreshRegs { int: Int(out.ints), vector: Vector(out.vectors), mask: Mask(out.masks) };
        match spilled {
            VReg::Int(_) => out.ints += 1,
            VReg::Vector(_) => out.vectors += 1,
            VReg::Mask(_) => out.masks += 1,
        }

        short_lived.insert(fresh.reg(spilled), ());
        if reads {
            out.steps.push(fresh.load(spilled, slot));
        }
        out.steps.push(fresh.rename(step, spilled));
        if sets {
            out.steps.push(fresh.store(spilled, slot));
        }
    }
    out
}

/// An unused register of each class. One of them replaces a spilled register in one step.
struct FreshRegs {
    int: Int,
    vector: Vector,
    mask: Mask,
}

impl FreshRegs {
    fn reg(&self, spilled: VReg) -> VReg {
        match spilled {
            VReg::Int(_) => self.int.into(),
            VReg::Vector(_) => self.vector.into(),
            VReg::Mask(_) => self.mask.into(),
        }
    }

    fn load(&self, spilled: VReg, slot: Mem) -> VInst {
        match spilled {
            VReg::Int(_) => VInst::LoadInt(self.int, slot, IntWidth::I64),
            VReg::Vector(_) => VInst::Load(self.vector, slot),
            VReg::Mask(_) => VInst::LoadMask(self.mask, slot),
        }
    }

    fn store(&self, spilled: VReg, slot: Mem) -> VInst {
        match spilled {
            VReg::Int(_) => VInst::StoreInt(slot, self.int, IntWidth::I64),
            VReg::Vector(_) => VInst::Store(slot, self.vector),
            VReg::Mask(_) => VInst::StoreMask(slot, self.mask),
        }
    }

    fn rename(&self, step: &VInst, spilled: VReg) -> VInst {
        rename(
            step,
            &mut |old, _| if VReg::from(old) == spilled { self.int } else { old },
            &mut |old, _| if VReg::from(old) == spilled { self.vector } else { old },
            &mut |old| if VReg::from(old) == spilled { self.mask } else { old },
        )
    }
}
