//! The proof that a kernel keeps the items of a batch apart, with the distance from item to item in each buffer.
//!
//! An item is one of `count`: an image of a batch, a sequence, or a row of all sequences. Every access must be within
//! one loop over the items, whose extent is a multiple of their number: a parallel loop, a strip without reductions, or
//! a row axis of a contraction. It must stay within the item of the current iteration, or read memory that all items
//! share. Nothing else may depend on the item or on the number of items.

use super::{Access, Axis, BufferId, Inst, InstSeq, Kernel, MemorySpace, Program, Stmt, walk};
use std::collections::BTreeMap;
use symshape::{Dim, Facts, Symbol};

/// The items of a program's batches.
pub(crate) struct Items<'p> {
    program: &'p Program,
    count: &'p Symbol,
}

/// The reason why the items of a kernel are not proven to be apart: a clause without a period.
pub(crate) type Reason = String;

impl<'p> Items<'p> {
    /// The items that `count`, a symbol of the program, counts.
    pub(crate) fn new(program: &'p Program, count: &'p Symbol) -> Items<'p> {
        Items { program, count }
    }

    /// Elements from item to item of each buffer that the kernel uses, 0 for those that all items share. Constants and
    /// scratch memory are absent.
    ///
    /// # Errors
    /// The reason why the items are not proven to be apart.
    pub(crate) fn steps(&self, kernel: &Kernel) -> Result<BTreeMap<BufferId, Dim>, Reason> {
        kernel.body.iter().try_for_each(|stmt| self.check(stmt, None))?;

        let mut steps = Ok(BTreeMap::new());
        walk::accesses(&kernel.body, &mut |site| {
            let Ok(known) = &mut steps else { return };
            let head = site.axes.iter().find(|axis| axis.extent.contains(self.count));
            let added = self.step(site.access, head, site.axes, site.is_store);
            if let Err(reason) = added.and_then(|step| self.add(known, site.access.buffer, step)) {
                steps = Err(reason);
            }
        });
        steps
    }

    /// Records the step of a buffer, which must be the same for all accesses. Private memory has none.
    fn add(&self, steps: &mut BTreeMap<BufferId, Dim>, buffer: BufferId, step: Dim) -> Result<(), Reason> {
        if self.is_private(buffer) {
            return Ok(());
        }
        let known = steps.entry(buffer).or_insert_with(|| step.clone());
        if self.program.facts.prove_eq(known, &step).is_yes() {
            return Ok(());
        }
        Err(format!("it accesses {} in two ways", self.name(buffer)))
    }

    /// Whether the memory of a buffer is constant, or belongs to one iteration of a loop.
    fn is_private(&self, buffer: BufferId) -> bool {
        matches!(self.program.buffers[buffer].space, MemorySpace::Const(_) | MemorySpace::Scratch)
    }

    fn name(&self, buffer: BufferId) -> String {
        let name = &self.program.buffers[buffer].name;
        if name.is_empty() { buffer.to_string() } else { name.clone() }
    }

    /// Checks that at most one loop around each statement is over the items, that its iterations are independent, and
    /// that no other size and no value depends on the item. `head` is the loop over the items around the statement.
    fn check(&self, stmt: &Stmt, head: Option<&Axis>) -> Result<(), Reason> {
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
                // The columns and the sum are the same for all items of the rows.
                let mut others = contraction.k.iter().chain([&contraction.n]);
                others.try_for_each(|axis| self.enter(axis, outer, false).map(drop))?;
                self.check_code(&contraction.epilogue, head)
            }
            Stmt::If { then, otherwise, .. } => {
                then.iter().chain(otherwise).try_for_each(|stmt| self.check(stmt, head))
            }
            Stmt::While { body, .. } => body.iter().try_for_each(|stmt| self.check(stmt, head)),
        }
    }

    /// The loop over the items inside `axis`.
    ///
    /// # Errors
    /// There would be two such loops, or the iterations of one may depend on each other.
    fn enter<'k>(
        &self,
        axis: &'k Axis,
        head: Option<&'k Axis>,
        is_independent: bool,
    ) -> Result<Option<&'k Axis>, Reason> {
        if !axis.extent.contains(self.count) {
            self.check_fixed(&axis.extent, head)?;
            return Ok(head);
        }
        match head {
            None if is_independent => Ok(Some(axis)),
            None => Err(format!("a loop of the extent {} is not parallel", axis.extent)),
            Some(_) => Err(format!("a loop inside another one has the extent {}", axis.extent)),
        }
    }

    fn check_code(&self, code: &InstSeq, head: Option<&Axis>) -> Result<(), Reason> {
        code.insts.iter().try_for_each(|inst| match inst {
            Inst::Index(_, dim) => self.check_fixed(dim, head),
            Inst::Check(check) => {
                self.check_fixed(&check.lo, head).and_then(|()| self.check_fixed(&check.end, head))
            }
            _ => Ok(()),
        })
    }

    /// Checks that a size or value is the same for all items.
    fn check_fixed(&self, dim: &Dim, head: Option<&Axis>) -> Result<(), Reason> {
        if !dim.contains(self.count) && head.is_none_or(|head| !dim.contains(&head.var)) {
            return Ok(());
        }
        Err(format!("it uses {dim} as a size or a value"))
    }

    /// Elements from item to item at an access inside `axes`, of which `head` is over the items.
    fn step(
        &self,
        access: &Access,
        head: Option<&Axis>,
        axes: &[Axis],
        is_store: bool,
    ) -> Result<Dim, Reason> {
        let index = &access.index;
        let name = || self.name(access.buffer);
        if index.contains(self.count) {
            return Err(format!("an address in {} depends on {}", name(), self.count));
        }
        let Some(head) = head.filter(|head| index.contains(&head.var)) else {
            // Items that store to one place would depend on each other.
            if is_store && head.is_some() && !self.is_private(access.buffer) {
                return Err(format!("several iterations store to one place of {}", name()));
            }
            return Ok(Dim::zero());
        };
        if self.is_private(access.buffer) {
            return Err(format!("it accesses {} at the number of the iteration", name()));
        }

        let linear = self.program.facts.linear_in(&head.extent, self.count);
        let Some((steps, _)) = linear.filter(|(_, rest)| rest.as_i64() == Some(0)) else {
            return Err(format!("a loop has the extent {}, no multiple of {}", head.extent, self.count));
        };
        let mut facts = self.program.facts.clone();
        axes.iter().for_each(|axis| facts.declare_index(&axis.var, &axis.extent));
        if let Some(row) = stays_within(&facts, index, &head.var) {
            return Ok(facts.simplify(&(row * steps)));
        }

        // Iterations of one item may share rows.
        let item = Symbol::new("item");
        let iteration = Symbol::new("iteration_of_item");
        facts.declare_index(&item, &Dim::from(self.count));
        facts.declare_index(&iteration, &steps);
        let at = Dim::from(&item) * steps + Dim::from(&iteration);
        let index = index.substitute(&|symbol| (*symbol == head.var).then(|| at.clone()));
        stays_within(&facts, &index, &item).ok_or_else(|| {
            format!("it may access other places of {} than those of its own iteration", name())
        })
    }
}

/// The coefficient of `symbol` in an index, if the rest of the index is at least 0 and less than it.
fn stays_within(facts: &Facts, index: &Dim, symbol: &Symbol) -> Option<Dim> {
    let (step, rest) = facts.linear_in(index, symbol)?;
    let is_inside = facts.prove_le(&Dim::zero(), &rest).is_yes() && facts.prove_lt(&rest, &step).is_yes();
    is_inside.then_some(step)
}
