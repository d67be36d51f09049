//! Keeps the constants of loops in registers that nothing else needs.
//!
//! A constant in memory costs a load at each use, and formulas such as `exp` have more constants than other operands.

use super::legalize::{Constants, legalize};
use crate::codegen::vector::{
    allocate::{OperandsOf, RegisterFiles, vectors_in_loops},
    operands::{VReg, operands, rename},
    reg_map::RegMap,
    vcode::{VCode, VInst, Vector},
};
use std::cmp::Reverse;

/// How much more often a step of a loop runs than the steps around it.
const LOOP_WEIGHT: u64 = 10;

/// A constant, and the register that it has in a loop.
type Kept = (Vector, Vector);

/// The code with registers for constants of its loops, the outermost loops first, and there the constants that are read
/// most often. `None` if no loop reads a constant.
pub(super) fn keep_constants(
    code: &VCode,
    constants: &Constants,
    in_registers: OperandsOf,
    files: RegisterFiles,
) -> Option<VCode> {
    let loops = code.steps.iter().enumerate().filter(|(_, step)| matches!(step, VInst::Loop));
    let read: Vec<_> = loops.map(|(idx, _)| constants_of_loop(&code.steps[idx..], constants)).collect();
    if read.iter().all(Vec::is_empty) {
        return None;
    }

    let used = vectors_in_loops(&legalize(code, constants), in_registers, files);
    let mut loops = read.into_iter().zip(used);
    let mut out = VCode { steps: Vec::with_capacity(code.steps.len()), ..*code };
    // For each loop around the step.
    let mut kept: Vec<Vec<Kept>> = Vec::new();
    for step in &code.steps {
        match step {
            VInst::Loop => {
                let (mut read, used) = loops.next().expect("both forms have the same loops");
                read.retain(|constant| register(&kept, *constant).is_none());
                let n_kept: usize = kept.iter().map(Vec::len).sum();
                read.truncate(files.vectors.saturating_sub(used + n_kept));
                kept.push(read.into_iter().map(|constant| moved(constant, &mut out)).collect());
                out.steps.push(VInst::Loop);
            }
            VInst::EndLoop(_) => {
                kept.pop();
                out.steps.push(step.clone());
            }
            _ => {
                let mut vector = |reg: Vector, _| register(&kept, reg).unwrap_or(reg);
                out.steps.push(rename(step, &mut |int, _| int, &mut vector, &mut |mask| mask));
            }
        }
    }
    Some(out)
}

/// Appends a step that moves the constant to a register.
fn moved(constant: Vector, out: &mut VCode) -> Kept {
    let register = Vector(out.vectors);
    out.vectors += 1;
    out.steps.push(VInst::Move(register, constant));
    (constant, register)
}

/// The register that a constant has.
fn register(kept: &[Vec<Kept>], constant: Vector) -> Option<Vector> {
    kept.iter().flatten().find(|(other, _)| *other == constant).map(|(_, register)| *register)
}

/// The constants that the loop reads which begins with the first step, those that it reads most often first. Reads in
/// inner loops count more.
fn constants_of_loop(steps: &[VInst], constants: &Constants) -> Vec<Vector> {
    let mut counts: RegMap<(Vector, u64)> = RegMap::default();
    let mut weights: Vec<u64> = Vec::new();
    for step in steps {
        match step {
            VInst::Loop => {
                weights.push(weights.last().map_or(1, |weight| weight.saturating_mul(LOOP_WEIGHT)))
            }
            VInst::EndLoop(_) => {
                weights.pop();
            }
            _ => {}
        }
        let Some(weight) = weights.last() else { break };
        let mentioned = operands(step);
        for reg in mentioned.reads.iter().chain(&mentioned.late) {
            if let VReg::Vector(idx) = *reg
                && constants.contains(*reg)
            {
                let (_, count) = counts.entry(*reg).get_or_insert((Vector(idx), 0));
                *count = count.saturating_add(*weight);
            }
        }
    }
    let mut counts: Vec<(Vector, u64)> = counts.into_values().collect();
    counts.sort_by_key(|&(constant, count)| (Reverse(count), constant));
    counts.into_iter().map(|(constant, _)| constant).collect()
}
