//! Sets a register directly where the code sets another one only to copy it.
//!
//! ```text
//! x = sum + y; sum = x   ⇒   sum = sum + y
//! ```
//!
//! No step between the two mentions the register, and neither is there a branch.

use super::{
    operands::{VReg, operands, rename},
    vcode::{VInst, Vector},
};

/// How often the code mentions a vector register, and where it sets it for the last time.
#[derive(Clone, Copy, Default)]
struct Mentions {
    sets: u32,
    reads: u32,
    last_set: usize,
}

/// The steps without such copies. `vectors` is the number of vector registers.
pub(super) fn coalesce(steps: Vec<VInst>, vectors: u32) -> Vec<VInst> {
    // The second pass sees the destinations that the first one leaves.
    [Copy::of_move, Copy::of_bits].into_iter().fold(steps, |steps, copy_of| without(steps, vectors, copy_of))
}

fn without(mut steps: Vec<VInst>, vectors: u32, copy_of: fn(&VInst) -> Option<Copy>) -> Vec<VInst> {
    let mentions = mentions(&steps, vectors);
    let mut is_gone = vec![false; steps.len()];
    for at in 0..steps.len() {
        let Some(copy) = copy_of(&steps[at]) else { continue };
        let Mentions { sets: 1, reads: 1, last_set } = mentions[copy.src.0 as usize] else { continue };
        if last_set < at && copy.may_be_set_at(&steps, last_set, at) {
            steps[last_set] = copy.set_directly(&steps[last_set]);
            match copy.rest {
                Some(rest) => steps[at] = rest,
                None => is_gone[at] = true,
            }
        }
    }

    let mut is_gone = is_gone.into_iter();
    steps.retain(|_| is_gone.next() == Some(false));
    steps
}

/// A copy that a step makes.
struct Copy {
    dst: Vector,
    src: Vector,
    /// The step without the copy, if there is more to it.
    rest: Option<VInst>,
}

impl Copy {
    fn of_move(step: &VInst) -> Option<Copy> {
        match *step {
            VInst::Move(dst, src) => Some(Copy { dst, src, rest: None }),
            _ => None,
        }
    }

    /// Machines combine the destination with two registers. The first two operands are alike, and the second one is
    /// often set later.
    fn of_bits(step: &VInst) -> Option<Copy> {
        match *step {
            VInst::Bits(op, dst, a, b, c) if ![a, b, c].contains(&dst) => {
                Some(Copy { dst, src: b, rest: Some(VInst::Bits(op, dst, dst, a, c)) })
            }
            _ => None,
        }
    }

    /// Whether step `from`, which sets the source, may set the destination. Step `to` makes the copy.
    fn may_be_set_at(&self, steps: &[VInst], from: usize, to: usize) -> bool {
        let dst = VReg::from(self.dst);
        let setter = operands(&steps[from]);
        let is_late = setter.late.contains(&dst);
        let is_early = setter.early.contains(&VReg::from(self.src)) && setter.reads(dst);
        !is_late
            && !is_early
            && !setter.sets(dst)
            && steps[from + 1..to].iter().all(|step| !step.is_control_flow() && !is_mentioned(step, dst))
    }

    fn set_directly(&self, setter: &VInst) -> VInst {
        let vector = |reg: Vector, is_set: bool| if is_set && reg == self.src { self.dst } else { reg };
        rename(setter, &mut |int, _| int, &mut |reg, is_set| vector(reg, is_set), &mut |mask| mask)
    }
}

fn mentions(steps: &[VInst], vectors: u32) -> Vec<Mentions> {
    let mut mentions = vec![Mentions::default(); vectors as usize];
    for (idx, step) in steps.iter().enumerate() {
        let mentioned = operands(step);
        for reg in mentioned.reads.iter().chain(&mentioned.late) {
            if let VReg::Vector(vector) = reg {
                mentions[*vector as usize].reads += 1;
            }
        }
        for reg in mentioned.sets.iter().chain(&mentioned.early) {
            if let VReg::Vector(vector) = reg {
                let mentions = &mut mentions[*vector as usize];
                mentions.sets += 1;
                mentions.last_set = idx;
            }
        }
    }
    mentions
}

fn is_mentioned(step: &VInst, reg: VReg) -> bool {
    let mentioned = operands(step);
    mentioned.reads(reg) || mentioned.sets(reg)
}
