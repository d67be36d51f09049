//! Register allocation by linear scan.
//!
//! The life of a virtual register is one interval of positions, `2 * step` before a step and one more after it, from
//! its first mention to its last. A register set before a loop and mentioned in it lives to the loop's end, because the
//! next round may read it. Intervals are visited by where they begin; one that begins where another ends gets its
//! register if the step relates the two. When none is free, the interval with the fewest mentions for its length, those
//! in loops counting more, goes to memory: every mention of it becomes a separate register, loaded before and stored
//! after the step, and the scan restarts.

use super::legalize::Constants;
use super::operands::{VReg, operands, rename};
use crate::codegen::vector::vcode::{Int, IntWidth, Mask, Mem, VCode, VInst, Vector};
use crate::error::{Error, Result};
use std::collections::{HashMap, HashSet};

/// The encoding of the stack pointer.
pub(super) const STACK: Int = Int(u32::MAX);

/// Bytes of a spill slot: the widest vector.
const SLOT_BYTES: i32 = 64;

/// More rounds than any microkernel has spills.
const MOST_ROUNDS: usize = 1024;

/// Number of registers of each class.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegisterFiles {
    pub(super) ints: usize,
    pub(super) vectors: usize,
    /// `None` where masks are vectors.
    pub(super) masks: Option<usize>,
}

/// VCode with a machine register for each virtual one.
pub(super) struct Allocated {
    pub(super) code: VCode,
    places: HashMap<VReg, usize>,
    /// Bytes of spill slots.
    pub(super) frame_bytes: i32,
    /// Number of vector registers that are spilled.
    pub(super) spills: usize,
}

impl Allocated {
    /// The number of the machine register within its class.
    pub(super) fn place(&self, reg: impl Into<VReg>) -> usize {
        self.places[&reg.into()]
    }

    /// The machine integer registers in use.
    pub(super) fn ints(&self) -> HashSet<usize> {
        let of_ints = self.places.iter().filter(|(reg, _)| matches!(reg, VReg::Int(_)));
        of_ints.map(|(_, place)| *place).collect()
    }
}

#[derive(Clone, Copy, Debug)]
struct Interval {
    reg: VReg,
    start: usize,
    end: usize,
    weight: f64,
}

/// The machine registers that a class competes for.
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

/// Gives every register of the code a place.
pub(super) fn allocate(mut code: VCode, constants: &Constants, files: RegisterFiles) -> Result<Allocated> {
    let mut short: HashSet<VReg> = HashSet::new();
    let (mut slots, mut spills) = (0, 0);
    for _ in 0..MOST_ROUNDS {
        let intervals = intervals(&code, constants);
        match scan(&code, &intervals, files, &short) {
            Ok(places) => {
                return Ok(Allocated { code, places, frame_bytes: slots * SLOT_BYTES, spills });
            }
            Err(Some(spilled)) => {
                code = spill(&code, spilled, slots * SLOT_BYTES, &mut short);
                slots += 1;
                spills += usize::from(matches!(spilled, VReg::Vector(_)));
            }
            Err(None) => break,
        }
    }
    Err(Error::internal("a microkernel needs more registers than the machine has, even after spills"))
}

/// The intervals, sorted by their first position.
fn intervals(code: &VCode, constants: &Constants) -> Vec<Interval> {
    let mut known: HashMap<VReg, Interval> = HashMap::new();
    let args = VReg::Int(0);
    known.insert(args, Interval { reg: args, start: 0, end: 0, weight: 0.0 });
    let (mut open, mut loops) = (Vec::new(), Vec::new());
    for (idx, step) in code.steps.iter().enumerate() {
        match step {
            VInst::Loop => open.push(idx),
            VInst::EndLoop(_) => loops.push((open.pop().expect("structured"), idx)),
            _ => {}
        }
        let weight = 10f64.powi(open.len() as i32);
        let found = operands(step);
        let mut touch = |reg: VReg, from: usize, to: usize| {
            let is_constant = matches!(reg, VReg::Vector(v) if constants.contains_key(&Vector(v)));
            if is_constant || reg == VReg::from(STACK) {
                return;
            }
            let interval = known.entry(reg).or_insert(Interval { reg, start: from, end: to, weight: 0.0 });
            interval.end = interval.end.max(to);
            interval.weight += weight;
        };
        found.reads.iter().for_each(|reg| touch(*reg, 2 * idx, 2 * idx + 1));
        found.early.iter().for_each(|reg| touch(*reg, 2 * idx, 2 * idx + 2));
        found.sets.iter().for_each(|reg| touch(*reg, 2 * idx + 1, 2 * idx + 2));
    }
    // Inner loops end before the loops around them.
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

/// Places for all intervals, or the register to spill; `Err(None)` when there is none that could be.
fn scan(
    code: &VCode,
    intervals: &[Interval],
    files: RegisterFiles,
    short: &HashSet<VReg>,
) -> Result<HashMap<VReg, usize>, Option<VReg>> {
    let mut places: HashMap<VReg, usize> = HashMap::new();
    let mut active: Vec<Interval> = Vec::new();
    for interval in intervals {
        active.retain(|other| other.end > interval.start);
        let file = files.file(interval.reg);
        let mut free = vec![true; files.count(file)];
        for other in active.iter().filter(|other| files.file(other.reg) == file) {
            free[places[&other.reg]] = false;
        }
        let hint = hints(code, interval).find_map(|reg| {
            let same = files.file(reg) == file;
            places.get(&reg).copied().filter(|place| same && free[*place])
        });
        match hint.or_else(|| free.iter().position(|free| *free)) {
            Some(place) => {
                places.insert(interval.reg, place);
                active.push(*interval);
            }
            None => return Err(victim(&active, interval, files, short)),
        }
    }
    Ok(places)
}

/// Registers that the interval would best share a place with: what the step that begins it reads.
fn hints(code: &VCode, interval: &Interval) -> impl Iterator<Item = VReg> {
    let late = interval.start % 2 == 1;
    let reads = if late { operands(&code.steps[interval.start / 2]).reads } else { Vec::new() };
    reads.into_iter()
}

fn victim(
    active: &[Interval],
    current: &Interval,
    files: RegisterFiles,
    short: &HashSet<VReg>,
) -> Option<VReg> {
    let file = files.file(current.reg);
    let rivals = active.iter().filter(|other| files.file(other.reg) == file).chain([current]);
    // Masks that are vectors stay, as vectors beside them can go.
    let stays = |reg: VReg| short.contains(&reg) || matches!(reg, VReg::Mask(_)) && file != FileClass::Masks;
    let can = rivals.filter(|other| !stays(other.reg));
    let cost = |interval: &Interval| interval.weight / (interval.end - interval.start) as f64;
    can.min_by(|a, b| cost(a).total_cmp(&cost(b))).map(|interval| interval.reg)
}

/// The code with every mention of a register loaded before its step and stored after it.
fn spill(code: &VCode, spilled: VReg, offset: i32, short: &mut HashSet<VReg>) -> VCode {
    let slot = Mem { base: STACK, index: None, disp: offset };
    let mut out = VCode { steps: Vec::with_capacity(code.steps.len()), ..*code };
    if spilled == VReg::Int(0) {
        out.steps.push(VInst::StoreInt(slot, Int(0), IntWidth::I64));
    }
    for step in &code.steps {
        let found = operands(step);
        let reads = found.reads.contains(&spilled);
        let sets = found.sets.contains(&spilled) || found.early.contains(&spilled);
        if !reads && !sets {
            out.steps.push(step.clone());
            continue;
        }
        let own = Own { int: Int(out.ints), vector: Vector(out.vectors), mask: Mask(out.masks) };
        match spilled {
            VReg::Int(_) => out.ints += 1,
            VReg::Vector(_) => out.vectors += 1,
            VReg::Mask(_) => out.masks += 1,
        }
        short.insert(own.reg(spilled));
        if reads {
            out.steps.push(own.load(spilled, slot));
        }
        out.steps.push(own.rename(step, spilled));
        if sets {
            out.steps.push(own.store(spilled, slot));
        }
    }
    out
}

/// A register of each class, of which one stands for a spilled one in one step.
struct Own {
    int: Int,
    vector: Vector,
    mask: Mask,
}

impl Own {
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
