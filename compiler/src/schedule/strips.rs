//! Fuses neighbouring strips over the same elements: the exponentials of a row and their sum are one loop.
//!
//! ```text
//! strip i { A(i) }  strip i { B(i) }   ⇒   strip i { A(i) B(i) }
//! ```
//!
//! Iterations of `B` must see the same memory as before. Of the buffers that `A` stores to, `B(i)` accesses the
//! elements of `A(i)` only. Of the buffers that `B` stores to, `A(i)` accesses the elements of `B(i)` only.
//! Elements that `A(i)` stored are in registers, so `B(i)` does not load them again.
//!
//! Strips that don't share elements stay apart: each loop then has more registers.

use super::unroll_and_jam::renamed;
use crate::{
    Result,
    kernel::{Access, Axis, Inst, InstSeq, Kernel, Local, Program, Stmt, lanes::strip_obstacle},
    scalar::Reg,
};
use std::collections::BTreeSet;
use symshape::{Facts, Symbol};

/// Largest number of instructions of a fused strip.
const MAX_INSTS: usize = 64;

/// Fuses all such strips.
pub(super) fn fuse(program: &mut Program) -> Result<()> {
    for mut kernel in std::mem::take(&mut program.kernels) {
        let body = std::mem::take(&mut kernel.body);
        kernel.body = in_stmts(&Scope { program, kernel: &kernel }, &program.facts, body);
        program.kernels.push(kernel);
    }
    Ok(())
}

/// The kernel of a strip.
struct Scope<'a> {
    program: &'a Program,
    kernel: &'a Kernel,
}

fn in_stmts(scope: &Scope<'_>, facts: &Facts, body: Vec<Stmt>) -> Vec<Stmt> {
    let mut done: Vec<Stmt> = Vec::with_capacity(body.len());
    for stmt in body {
        let stmt = match stmt {
            Stmt::For { axis, parallel, body } => {
                let mut inner = facts.clone();
                inner.declare_index(&axis.var, &axis.extent);
                Stmt::For { axis, parallel, body: in_stmts(scope, &inner, body) }
            }
            other => other,
        };
        if let Some(Stmt::Strip { axis, code }) = done.last()
            && let Some(fused) = fused(scope, facts, (axis, code), &stmt)
        {
            done.pop();
            done.push(fused);
        } else {
            done.push(stmt);
        }
    }
    done
}

/// The fusion of a strip with the next statement, if it computes the same and pays.
fn fused(scope: &Scope<'_>, facts: &Facts, (axis, code): (&Axis, &InstSeq), stmt: &Stmt) -> Option<Stmt> {
    let Stmt::Strip { axis: next_axis, code: next } = stmt else { return None };
    if code.insts.len() + next.insts.len() > MAX_INSTS
        || !facts.prove_eq(&axis.extent, &next_axis.extent).is_yes()
        || !have_independent_locals(code, next)
    {
        return None;
    }
    let mut inner = facts.clone();
    inner.declare_index(&axis.var, &axis.extent);
    let Stmt::Strip { code: next, .. } = renamed(stmt, &next_axis.var, &axis.var) else { return None };
    let is_vector =
        |code: &InstSeq| strip_obstacle(scope.program, scope.kernel, &inner, axis, code).is_none();
    if !have_common_elements(&inner, &axis.var, code, &next) || !is_vector(code) || !is_vector(&next) {
        return None;
    }
    let code = joined(code, &next);
    is_vector(&code).then(|| Stmt::Strip { axis: axis.clone(), code })
}

/// Whether neither code has checks or names for loaded values, and the second reads no result of the first one's
/// reductions, nor the other way round.
fn have_independent_locals(code: &InstSeq, next: &InstSeq) -> bool {
    let reads = |code: &InstSeq| {
        locals(code, &|inst| match inst {
            Inst::Get(local) => Some(*local),
            _ => None,
        })
    };
    let results = |code: &InstSeq| {
        locals(code, &|inst| match inst {
            Inst::Reduce(_, _, local) => Some(*local),
            _ => None,
        })
    };
    let is_plain = |inst: &Inst| !matches!(inst, Inst::Check(_) | Inst::Bind(..) | Inst::Set(..));
    code.insts.iter().chain(&next.insts).all(is_plain)
        && reads(next).is_disjoint(&results(code))
        && reads(code).is_disjoint(&results(next))
        && results(code).is_disjoint(&results(next))
}

fn locals(code: &InstSeq, local: &dyn Fn(&Inst) -> Option<Local>) -> BTreeSet<Local> {
    code.insts.iter().filter_map(local).collect()
}

/// Whether the second code loads elements that the first one stores, and iterations of both share no others.
fn have_common_elements(facts: &Facts, var: &Symbol, code: &InstSeq, next: &InstSeq) -> bool {
    let mut flows = false;
    for (access, is_store) in code.accesses() {
        for (other, other_is_store) in next.accesses() {
            if access.buffer != other.buffer || !(is_store || other_is_store) {
                continue;
            }
            if !moves_along(facts, var, access) || !facts.prove_eq(&access.index, &other.index).is_yes() {
                return false;
            }
            flows |= is_store && !other_is_store;
        }
    }
    flows
}

/// Whether each iteration accesses another element.
fn moves_along(facts: &Facts, var: &Symbol, access: &Access) -> bool {
    let stride = facts.linear_in(&access.index, var).and_then(|(stride, _)| stride.as_i64());
    stride.is_some_and(|stride| stride != 0)
}

/// Both codes, one after the other. The second takes elements that the first stores from registers.
pub(super) fn joined(code: &InstSeq, next: &InstSeq) -> InstSeq {
    let mut whole = code.clone();
    let mut places: Vec<Reg> = Vec::with_capacity(next.insts.len());
    for inst in &next.insts {
        let known = match inst {
            Inst::Load(access) => known_value(code, next, access),
            _ => None,
        };
        places.push(known.unwrap_or_else(|| whole.push(inst.with_operands(&|reg| places[reg.0 as usize]))));
    }
    whole
}

/// The register of the first code with the value of an element that the second one loads.
fn known_value(code: &InstSeq, next: &InstSeq, access: &Access) -> Option<Reg> {
    let is_stored =
        |code: &InstSeq| code.accesses().any(|(other, is_store)| is_store && other.buffer == access.buffer);
    if is_stored(next) {
        return None;
    }
    if is_stored(code) {
        return code.insts.iter().rev().find_map(|inst| match inst {
            Inst::Store(other, value) if other.buffer == access.buffer => Some(*value),
            _ => None,
        });
    }
    let loads = |inst: &Inst| matches!(inst, Inst::Load(other) if other == access);
    code.insts.iter().position(loads).map(|idx| Reg(idx as u32))
}
