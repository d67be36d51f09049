//! Keeps the constants of loops in registers that nothing else needs.
//!
//! A constant in memory costs a load at each use, and formulas such as `exp` have more constants than other operands.

use super::legalize::Constants;
use crate::codegen::vector::{
    allocate::{OperandsOf, RegisterFiles, vectors_in_loops},
    operands::{VReg, operands, rename},
    reg_map::RegMap,
    vcode::{VCode, VInst, Vector},
};

/// How much more often a step of a loop runs than the steps around it.
const LOOP_WEIGHT: u64 = 10;

/// The code with registers for constants of its loops, the outermost loops first, and there the constants that are read
/// most often. `legal` is the same code with its constants as operands in memory.
pub(super) fn keep_constants(
    code: &VCode,
    legal: &VCode,
    constants: &Constants,
    operands: OperandsOf,
    files: RegisterFiles,
) -> VCode {
    let used = vectors_in_loops(legal, operands, files);
    let mut n_free = used.into_iter().map(|used| files.vectors.saturating_sub(used));
    let mut out = VCode { steps: Vec::with_capacity(code.steps.len()), ..*code };
    // For each open loop: the registers that its constants have.
    let mut open: Vec<Vec<(Vector, Vector)>> = Vec::new();

    for (idx, step) in code.steps.iter().enumerate() {
        match step {
            VInst::Loop => {
                let n_kept: usize = open.iter().map(Vec::len).sum();
                let n_free = n_free.next().expect("both forms have the same loops").saturating_sub(n_kept);
                let is_free = |reg: &Vector| constants.contains(*reg) && register(&open, *reg).is_none();
                let mut reads = reads_in_loop(&code.steps[idx..]);
                reads.retain(|(reg, _)| is_free(reg));
                reads.sort_by_key(|&(reg, n)| (std::cmp::Reverse(n), reg));
                let kept = reads.into_iter().take(n_free).map(|(reg, _)| {
                    let register = Vector(out.vectors);
                    out.vectors += 1;
                    out.steps.push(VInst::Move(register, reg));
                    (reg, register)
                });
                let kept = kept.collect();
                open.push(kept);
                out.steps.push(VInst::Loop);
            }
            VInst::EndLoop(_) => {
                open.pop();
                out.steps.push(step.clone());
            }
            _ => {
                let mut vector = |reg: Vector, _| register(&open, reg).unwrap_or(reg);
                out.steps.push(rename(step, &mut |int, _| int, &mut vector, &mut |mask| mask));
            }
        }
    }
    out
}

/// The register that a constant has in the open loops.
fn register(open: &[Vec<(Vector, Vector)>], constant: Vector) -> Option<Vector> {
    open.iter().flatten().find(|(reg, _)| *reg == constant).map(|(_, register)| *register)
}

/// How often the loop that begins with the first step reads each vector. Reads in inner loops count more.
fn reads_in_loop(steps: &[VInst]) -> Vec<(Vector, u64)> {
    let mut counts: RegMap<(Vector, u64)> = RegMap::default();
    let mut weights = Vec::new();
    for step in steps {
        match step {
            VInst::Loop => {
                weights.push(weights.last().map_or(1, |weight: &u64| weight.saturating_mul(LOOP_WEIGHT)))
            }
            VInst::EndLoop(_) => {
                weights.pop();
                if weights.is_empty() {
                    break;
                }
            }
            _ => {}
        }
        let weight = *weights.last().expect("the first step begins a loop");
        for reg in operands(step).reads {
            if let VReg::Vector(idx) = reg {
                counts.entry(reg).get_or_insert((Vector(idx), 0)).1 += weight;
            }
        }
    }
    counts.into_values().collect()
}
