//! The proof that a kernel computes each row of a sequence from the same row, so that it can run once for all rows.
//!
//! Every top-level statement must have a parallel *head*: an outermost loop whose extent is a multiple of the length,
//! so that it runs the same number of steps for each row. Each access must stay within the row of the current step, or
//! within memory that all rows share. Nothing else may depend on the length, on the number of the row, or on the
//! sequence.

use crate::kernel::{
    Access, Axis, BufferId, FewBitsPanels, Inst, InstSeq, Kernel, MemorySpace, Program, Rhs, SequencePart,
    Stmt, walk,
};
use std::{collections::BTreeMap, slice};
use symshape::{Dim, Symbol};

/// The facts that the proofs about all kernels share.
pub(super) struct Rows<'p> {
    pub(super) program: &'p Program,
    /// The length of a sequence.
    pub(super) length: &'p Symbol,
    /// The parts of the buffers that belong to one sequence.
    pub(super) parts: &'p BTreeMap<BufferId, SequencePart>,
}

/// The parallel axis around a statement, which runs over the rows.
struct HeadAxis<'k> {
    axis: &'k Axis,
    /// Its steps for each row.
    steps: Dim,
}

/// The reason why a kernel can't run once for all rows.
pub(super) type Reason = String;

impl Rows<'_> {
    /// Proves that the kernel can run once for all rows, or says why not.
    pub(super) fn prove(&self, kernel: &Kernel) -> Result<(), Reason> {
        kernel.body.iter().try_for_each(|stmt| self.prove_stmt(stmt))
    }

    fn prove_stmt(&self, stmt: &Stmt) -> Result<(), Reason> {
        let head = self.head(stmt).ok_or("it has no parallel loop over the rows")?;
        self.is_independent(stmt, head.axis)?;

        let mut result = Ok(());
        walk::accesses(slice::from_ref(stmt), &mut |site| {
            if result.is_ok() {
                result = self.prove_access(&head, site.access, site.axes);
            }
        });
        result
    }

    /// The head of a statement, if it has one.
    fn head<'k>(&self, stmt: &'k Stmt) -> Option<HeadAxis<'k>> {
        let axis = match stmt {
            Stmt::For { axis, parallel: true, .. } => axis,
            Stmt::Strip { axis, code } if !has_reductions(code) => axis,
            Stmt::Contraction(contraction) => contraction.m.first()?,
            _ => return None,
        };
        let (steps, rest) = self.program.facts.linear_in(&axis.extent, self.length)?;
        let is_multiple = rest.as_i64() == Some(0) && self.is_positive(&steps);
        is_multiple.then_some(HeadAxis { axis, steps })
    }

    fn is_positive(&self, dim: &Dim) -> bool {
        self.program.facts.prove_le(&Dim::one(), dim).is_yes()
    }

    /// Whether only the extent and the addresses of the head depend on the length and the number of the row.
    fn is_independent(&self, stmt: &Stmt, head: &Axis) -> Result<(), Reason> {
        let depends = |dim: &Dim| dim.contains(self.length);
        let is_fixed = |axis: &Axis| {
            if axis != head && depends(&axis.extent) {
                return Err(format!("a loop inside a row has the extent {}", axis.extent));
            }
            Ok(())
        };

        match stmt {
            Stmt::Block(code) => self.is_plain(code, head),
            Stmt::Strip { axis, code } => {
                is_fixed(axis)?;
                self.is_plain(code, head)
            }
            Stmt::For { axis, body, .. } => {
                is_fixed(axis)?;
                body.iter().try_for_each(|stmt| self.is_independent(stmt, head))
            }
            Stmt::Contraction(contraction) => {
                let rhs = match &contraction.rhs {
                    Rhs::Panels { base, .. } | Rhs::FewBits(FewBitsPanels { base, .. }) => base,
                    Rhs::Indexed(access) => &access.index,
                };
                if depends(rhs) {
                    return Err(format!("a right-hand side is at {rhs}"));
                }
                let axes = contraction.m.iter().chain(&contraction.k).chain([&contraction.n]);
                axes.into_iter().try_for_each(is_fixed)?;
                self.is_plain(&contraction.epilogue, head)
            }
            Stmt::If { then, otherwise, .. } => {
                then.iter().chain(otherwise).try_for_each(|stmt| self.is_independent(stmt, head))
            }
            Stmt::While { body, .. } => body.iter().try_for_each(|stmt| self.is_independent(stmt, head)),
        }
    }

    /// Whether no instruction uses the length or the number of the row as a value.
    fn is_plain(&self, code: &InstSeq, head: &Axis) -> Result<(), Reason> {
        let depends = |dim: &Dim| dim.contains(self.length) || dim.contains(&head.var);
        let used = code.insts.iter().find_map(|inst| match inst {
            Inst::Index(_, dim) => depends(dim).then_some(dim),
            Inst::Check(check) => [&check.lo, &check.end].into_iter().find(|dim| depends(dim)),
            _ => None,
        });
        used.map_or(Ok(()), |dim| Err(format!("it uses the position {dim} as a value")))
    }

    /// Whether an access inside `axes` stays within the current row.
    fn prove_access(&self, head: &HeadAxis, access: &Access, axes: &[Axis]) -> Result<(), Reason> {
        let buffer = &self.program.buffers[access.buffer];
        let name = || if buffer.name.is_empty() { access.buffer.to_string() } else { buffer.name.clone() };
        if access.index.contains(self.length) {
            return Err(format!("the place of a row in {} depends on {}", name(), self.length));
        }

        let moves = access.index.contains(&head.axis.var);
        let row = match self.parts.get(&access.buffer) {
            Some(SequencePart::Rows(row)) => row,
            Some(SequencePart::Sequence(_)) => return Err(format!("{} has no rows", name())),
            // Scratch memory belongs to one iteration of a loop.
            None if moves && matches!(buffer.space, MemorySpace::Scratch) => {
                return Err(format!("{} is scratch memory of several rows", name()));
            }
            None if moves => return Err(format!("{} is read at the position in the sequence", name())),
            None => return Ok(()),
        };

        let mut facts = self.program.facts.clone();
        axes.iter().for_each(|axis| facts.declare_index(&axis.var, &axis.extent));
        let linear = facts.linear_in(&access.index, &head.axis.var);
        let (step, rest) = linear.ok_or_else(|| format!("{} is not read row by row", name()))?;
        let is_row = facts.prove_eq(&(&step * &head.steps), row).is_yes();
        let is_inside = facts.prove_le(&Dim::zero(), &rest).is_yes() && facts.prove_lt(&rest, &step).is_yes();
        if is_row && is_inside { Ok(()) } else { Err(format!("it accesses other rows of {}", name())) }
    }
}

fn has_reductions(code: &InstSeq) -> bool {
    code.insts.iter().any(|inst| matches!(inst, Inst::Reduce(..)))
}
