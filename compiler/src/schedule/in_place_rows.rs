//! Keeps the elements of a row in the row of the result that they become.
//!
//! ```text
//! for r { strip i { T[i] = A(i) }  …  strip i { Y[r, i] = f(T[i]) } }
//! ⇒  for r { strip i { Y[r, i] = A(i) }  …  strip i { Y[r, i] = f(Y[r, i]) } }
//! ```
//!
//! `T` is scratch memory of one row. Without it, the last strip would be the first to touch the row of the result. It
//! would wait for memory and compute little, while the strips before it compute much and touch no memory.
//!
//! The statements of a row access no element of `Y` but those that the last strip stores.

use crate::{
    Result,
    kernel::{
        Access, Axis, BufferId, MemorySpace, Program, Stmt,
        walk::{self, Rewrite},
    },
};
use std::collections::BTreeMap;
use symshape::{Dim, Facts, Symbol};

/// Rewrites all such rows.
pub(super) fn rewrite(program: &mut Program) -> Result<()> {
    for idx in 0..program.kernels.len() {
        let mut body = std::mem::take(&mut program.kernels[idx].body);
        let uses = Uses::of(&body);
        in_stmts(program, &uses, &program.facts.clone(), &mut body);
        program.kernels[idx].body = body;
    }
    Ok(())
}

/// The number of accesses to each buffer.
struct Uses(BTreeMap<BufferId, usize>);

impl Uses {
    fn of(body: &[Stmt]) -> Uses {
        let mut uses = BTreeMap::new();
        walk::accesses(body, &mut |site| *uses.entry(site.access.buffer).or_default() += 1);
        Uses(uses)
    }

    fn count(&self, buffer: BufferId) -> usize {
        self.0.get(&buffer).copied().unwrap_or_default()
    }
}

fn in_stmts(program: &Program, uses: &Uses, facts: &Facts, body: &mut Vec<Stmt>) {
    for stmt in body {
        let Stmt::For { axis, body, .. } = stmt else { continue };
        let mut inner = facts.clone();
        inner.declare_index(&axis.var, &axis.extent);
        in_stmts(program, uses, &inner, body);
        while let Some(row) = Row::find(program, uses, &inner, body) {
            row.replace(body);
        }
    }
}

/// A row of scratch memory that becomes a row of a result.
struct Row {
    scratch: BufferId,
    result: BufferId,
    /// The element of the result that the last strip stores, and the variable of the strip.
    index: Dim,
    var: Symbol,
}

impl Row {
    /// The first such row of the statements of a loop.
    fn find(program: &Program, uses: &Uses, facts: &Facts, body: &[Stmt]) -> Option<Row> {
        let in_body = Uses::of(body);
        body.iter().find_map(|stmt| {
            let Stmt::Strip { axis, code } = stmt else { return None };
            let (result, _) = code.accesses().find(|(access, is_store)| {
                *is_store
                    && is_result(program, access.buffer)
                    && in_body.count(access.buffer) == 1
                    && facts
                        .linear_in(&access.index, &axis.var)
                        .is_some_and(|(stride, _)| stride.as_i64() == Some(1))
            })?;
            let dtype = |buffer: BufferId| program.buffers[buffer].dtype;
            let (scratch, _) = code.accesses().find(|(access, is_store)| {
                !*is_store
                    && dtype(access.buffer) == dtype(result.buffer)
                    && is_row(program, uses, facts, axis, body, access.buffer)
            })?;
            let (index, var) = (result.index.clone(), axis.var.clone());
            Some(Row { scratch: scratch.buffer, result: result.buffer, index, var })
        })
    }

    fn replace(&self, body: &mut [Stmt]) {
        for stmt in body {
            let Stmt::Strip { axis, code } = stmt else { continue };
            let index = self.index.substitute(&|symbol| (*symbol == self.var).then(|| Dim::from(&axis.var)));
            let rewrite = Rewrite {
                dim: &Dim::clone,
                access: &|access| {
                    if access.buffer == self.scratch {
                        Access { buffer: self.result, index: index.clone() }
                    } else {
                        access
                    }
                },
                symbol: &Symbol::clone,
                local: &|local| local,
            };
            *code = rewrite.code(code);
        }
    }
}

/// Whether a buffer may be written before all of its row is known.
fn is_result(program: &Program, buffer: BufferId) -> bool {
    !program.is_overwritten(buffer)
        && matches!(
            program.buffers[buffer].space,
            MemorySpace::Output(_) | MemorySpace::Arena | MemorySpace::Scratch
        )
}

/// Whether all accesses to a buffer are in strips of `body` as long as `axis`, each at its own iteration, and none
/// after the strip along `axis`.
fn is_row(
    program: &Program,
    uses: &Uses,
    facts: &Facts,
    axis: &Axis,
    body: &[Stmt],
    buffer: BufferId,
) -> bool {
    if !matches!(program.buffers[buffer].space, MemorySpace::Scratch) {
        return false;
    }
    let mut found = 0;
    let mut is_after = false;
    for stmt in body {
        let Stmt::Strip { axis: other, code } = stmt else { continue };
        let accesses = code.accesses().map(|(access, _)| access).filter(|access| access.buffer == buffer);
        let accesses: Vec<&Access> = accesses.collect();
        found += accesses.len();
        let is_whole = || facts.prove_eq(&other.extent, &axis.extent).is_yes();
        let is_own = |access: &&Access| access.index == Dim::from(&other.var);
        if !accesses.is_empty() && (is_after || !is_whole() || !accesses.iter().all(is_own)) {
            return false;
        }
        is_after |= other.var == axis.var;
    }
    found == uses.count(buffer)
}
