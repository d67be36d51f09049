//! When each buffer of the arena is needed: from the first kernel that touches it to the last.

use crate::kernel::{BufferId, Code, Contract, Inst, Program, Rhs, Space, Stmt};
use cranelift_entity::SecondaryMap;

/// The first and the last kernel that touch a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lifetime {
    pub(crate) buffer: BufferId,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

/// The lifetimes of the buffers in the arena that any kernel touches, in the order of the buffers.
pub(crate) fn lifetimes(program: &Program) -> Vec<Lifetime> {
    let mut found: SecondaryMap<BufferId, Option<Lifetime>> = SecondaryMap::new();
    for (idx, kernel) in program.kernels.iter().enumerate() {
        let mut touch = |buffer| {
            let lifetime = found[buffer].get_or_insert(Lifetime { buffer, first: idx, last: idx });
            lifetime.last = idx;
        };
        touched(&kernel.body, &mut touch);
        if let Some(control) = &kernel.control {
            let (read, written) = control.touched();
            read.into_iter().chain(written).for_each(touch);
        }
    }
    for (begin, end) in program.rounds() {
        for lifetime in found.values_mut().flatten() {
            stretch(lifetime, begin, end);
        }
    }
    let in_arena = |id: &BufferId| matches!(program.buffers[*id].space, Space::Arena | Space::Scratch);
    program.buffers.keys().filter(in_arena).filter_map(|id| found[id]).collect()
}

/// What is known before a loop and used within it is needed in every round, and what a round leaves behind for later
/// must not be overwritten by the next one.
fn stretch(lifetime: &mut Lifetime, begin: usize, end: usize) {
    let touches = lifetime.last >= begin && lifetime.first <= end;
    let leaves = lifetime.first < begin || lifetime.last > end;
    if touches && leaves {
        lifetime.first = lifetime.first.min(begin);
        lifetime.last = lifetime.last.max(end);
    }
}

fn touched(stmts: &[Stmt], visit: &mut dyn FnMut(BufferId)) {
    for stmt in stmts {
        match stmt {
            Stmt::For { body, .. } | Stmt::While { body, .. } => touched(body, visit),
            Stmt::Block(code) | Stmt::Strip { code, .. } => touched_by_code(code, visit),
            Stmt::Contract(contract) => touched_by_contract(contract, visit),
            Stmt::If { then, otherwise, .. } => {
                touched(then, visit);
                touched(otherwise, visit);
            }
        }
    }
}

fn touched_by_code(code: &Code, visit: &mut dyn FnMut(BufferId)) {
    for inst in &code.insts {
        if let Inst::Load(access) | Inst::Store(access, _) = inst {
            visit(access.buffer);
        }
    }
}

fn touched_by_contract(contract: &Contract, visit: &mut dyn FnMut(BufferId)) {
    visit(contract.lhs.buffer);
    match &contract.rhs {
        Rhs::At(access) => visit(access.buffer),
        Rhs::Panels { buffer, .. } => visit(*buffer),
    }
    touched_by_code(&contract.epilogue, visit);
}
