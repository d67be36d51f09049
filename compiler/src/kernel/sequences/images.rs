//! The proof that a kernel keeps the images of a batch apart, with the distance from image to image in each buffer.
//!
//! Every access must be within one loop over the images, whose extent is a multiple of the batch size: a parallel loop,
//! a strip without reductions, or a row axis of a contraction. It must stay within the image of the current iteration,
//! or read memory that all images share. Nothing else may depend on the image or on the batch size.

use super::super::{Access, Axis, BufferId, Inst, InstSeq, Kernel, MemorySpace, Program, Rhs, Stmt, walk};
use std::collections::BTreeMap;
use symshape::{Dim, Facts, Symbol};

/// The images of a program's batches.
pub(super) struct Images<'p> {
    program: &'p Program,
    /// The batch size.
    count: &'p Symbol,
}

/// The loop over the images around a statement.
#[derive(Clone, Copy)]
struct Head<'k> {
    axis: &'k Axis,
}

impl<'p> Images<'p> {
    pub(super) fn new(program: &'p Program, count: &'p Symbol) -> Images<'p> {
        Images { program, count }
    }

    /// Elements from image to image of each buffer that the kernel uses, 0 for those that all images share. Constants
    /// and scratch memory are absent. `None` unless the images are proven to be apart.
    pub(super) fn steps(&self, kernel: &Kernel) -> Option<BTreeMap<BufferId, Dim>> {
        kernel.body.iter().try_for_each(|stmt| self.check(stmt, None))?;

        let mut steps = Some(BTreeMap::new());
        walk::accesses(&kernel.body, &mut |site| {
            let head = site.axes.iter().find(|axis| axis.extent.contains(self.count));
            let step = self.step(site.access, head, site.axes, site.is_store);
            steps = match (steps.take(), step) {
                (Some(mut steps), Some(step)) => {
                    self.add(&mut steps, site.access.buffer, step).then_some(steps)
                }
                _ => None,
            };
        });
        steps
    }

    /// Records the step of a buffer, which must be the same for all accesses. Private memory has none.
    fn add(&self, steps: &mut BTreeMap<BufferId, Dim>, buffer: BufferId, step: Dim) -> bool {
        if matches!(self.program.buffers[buffer].space, MemorySpace::Const(_) | MemorySpace::Scratch) {
            return true;
        }
        let known = steps.entry(buffer).or_insert_with(|| step.clone());
        self.program.facts.prove_eq(known, &step).is_yes()
    }

    /// Checks that at most one loop around each statement is over the images, that its iterations are independent, and
    /// that no other size and no value depends on the image.
    fn check(&self, stmt: &Stmt, head: Option<Head<'_>>) -> Option<()> {
        match stmt {
            Stmt::Block(code) => self.check_code(code, head),
            Stmt::For { axis, parallel, body } => {
                let head = self.enter(axis, head, *parallel)?;
                body.iter().try_for_each(|stmt| self.check(stmt, head))
            }
            Stmt::Strip { axis, code } => {
                let has_reductions = code.insts.iter().any(|inst| matches!(inst, Inst::Reduce(..)));
                let head = self.enter(axis, head, !has_reductions)?;
                self.check_code(code, head)
            }
            Stmt::Contraction(contraction) => {
                let outer = head;
                let head = contraction.m.iter().try_fold(head, |head, axis| self.enter(axis, head, true))?;
                // The columns and the sum are the same for all images of the rows.
                let others = contraction.k.iter().chain([&contraction.n]);
                others.into_iter().try_for_each(|axis| self.enter(axis, outer, false).map(drop))?;
                if let Rhs::Panels { base, .. } = &contraction.rhs {
                    self.is_fixed(base, head).then_some(())?;
                }
                self.check_code(&contraction.epilogue, head)
            }
            Stmt::If { then, otherwise, .. } => {
                then.iter().chain(otherwise).try_for_each(|stmt| self.check(stmt, head))
            }
            Stmt::While { body, .. } => body.iter().try_for_each(|stmt| self.check(stmt, head)),
        }
    }

    /// The loop over the images inside `axis`. `None` if there would be two, or if its iterations may depend on each
    /// other.
    fn enter<'k>(
        &self,
        axis: &'k Axis,
        head: Option<Head<'k>>,
        is_independent: bool,
    ) -> Option<Option<Head<'k>>> {
        if !axis.extent.contains(self.count) {
            return self.is_fixed(&axis.extent, head).then_some(head);
        }
        (head.is_none() && is_independent).then_some(Some(Head { axis }))
    }

    fn check_code(&self, code: &InstSeq, head: Option<Head<'_>>) -> Option<()> {
        let is_fixed = |inst: &Inst| match inst {
            Inst::Index(_, dim) => self.is_fixed(dim, head),
            Inst::Check(check) => self.is_fixed(&check.lo, head) && self.is_fixed(&check.end, head),
            _ => true,
        };
        code.insts.iter().all(is_fixed).then_some(())
    }

    /// Whether a size or value is the same for all images.
    fn is_fixed(&self, dim: &Dim, head: Option<Head<'_>>) -> bool {
        !dim.contains(self.count) && head.is_none_or(|head| !dim.contains(&head.axis.var))
    }

    /// Elements from image to image at an access inside `axes`, of which `head` is over the images.
    fn step(&self, access: &Access, head: Option<&Axis>, axes: &[Axis], is_store: bool) -> Option<Dim> {
        let index = &access.index;
        if index.contains(self.count) {
            return None;
        }
        let space = &self.program.buffers[access.buffer].space;
        let is_private = matches!(space, MemorySpace::Const(_) | MemorySpace::Scratch);
        let Some(head) = head.filter(|head| index.contains(&head.var)) else {
            // Images that store to one place would depend on each other.
            let is_race = is_store && head.is_some() && !is_private;
            return (!is_race).then(Dim::zero);
        };
        if is_private {
            // The elements of a constant or of scratch memory would differ from image to image.
            return None;
        }

        let (steps, rest) = self.program.facts.linear_in(&head.extent, self.count)?;
        if rest.as_i64() != Some(0) {
            return None;
        }
        let mut facts = self.program.facts.clone();
        axes.iter().for_each(|axis| facts.declare_index(&axis.var, &axis.extent));
        if let Some(row) = stays_within(&facts, index, &head.var) {
            return Some(facts.simplify(&(row * steps)));
        }

        // Iterations of one image may share rows.
        let image = Symbol::new("image");
        let iteration = Symbol::new("iteration_of_image");
        facts.declare_index(&image, &Dim::from(self.count));
        facts.declare_index(&iteration, &steps);
        let at = Dim::from(&image) * steps + Dim::from(&iteration);
        let index = index.substitute(&|symbol| (*symbol == head.var).then(|| at.clone()));
        stays_within(&facts, &index, &image)
    }
}

/// The coefficient of `symbol` in an index, if the rest of the index is at least 0 and less than it.
fn stays_within(facts: &Facts, index: &Dim, symbol: &Symbol) -> Option<Dim> {
    let (step, rest) = facts.linear_in(index, symbol)?;
    let is_inside = facts.prove_le(&Dim::zero(), &rest).is_yes() && facts.prove_lt(&rest, &step).is_yes();
    is_inside.then_some(step)
}
