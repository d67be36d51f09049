//! The selection of instructions, as far as it is alike on all ISAs: the order of the steps, loops and branches.

use super::{
    listing::{Instruction, Label, Listing},
    vcode::{Cond, VInst},
};

/// Alignment of innermost loops in bytes: the unit of instruction fetch of common machines.
const LOOP_ALIGN: usize = 32;

/// Selects instructions for steps.
pub(super) trait SelectSteps {
    type Instruction: Instruction;

    fn listing(&mut self) -> &mut Listing<Self::Instruction>;

    /// Appends the instructions of a step that neither begins nor ends a loop or a branch.
    fn step(&mut self, step: &VInst);

    /// Branches if a condition holds.
    fn branch_if(&mut self, cond: Cond, to: Label);

    /// Appends the instructions of all steps.
    fn steps(&mut self, steps: &[VInst]) {
        let mut heads = Vec::new();
        let mut ends = Vec::new();
        for (idx, step) in steps.iter().enumerate() {
            match step {
                VInst::Loop => {
                    if is_innermost(&steps[idx + 1..]) {
                        self.listing().align(LOOP_ALIGN);
                    }
                    let head = self.listing().label();
                    self.listing().place(head);
                    heads.push(head);
                }
                VInst::EndLoop(cond) => {
                    let head = heads.pop().expect("loops are closed after they were opened");
                    self.branch_if(*cond, head);
                }
                VInst::If(cond) => {
                    let end = self.listing().label();
                    self.branch_if(cond.opposite(), end);
                    ends.push(end);
                }
                VInst::EndIf => {
                    let end = ends.pop().expect("branches are closed after they were opened");
                    self.listing().place(end);
                }
                _ => self.step(step),
            }
        }
    }
}

/// Whether the loop whose body begins here contains no other loop.
fn is_innermost(body: &[VInst]) -> bool {
    let next = body.iter().find(|step| matches!(step, VInst::Loop | VInst::EndLoop(_)));
    matches!(next, Some(VInst::EndLoop(_)))
}
