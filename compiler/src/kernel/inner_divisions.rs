//! Divisions that are left where they hurt: in innermost loops.
//!
//! What changes with the variable of an innermost loop is computed in each of its iterations; everything else codegen
//! takes out of the loop. Lowering splits and merges loops until no such quotient or remainder is left, where shapes
//! allow it; this is how tests see whether it did.

use super::{Contraction, Inst, Program, Rhs, Stmt, walk};
use symshape::{Dim, Node, Symbol};

/// Every quotient and remainder that is computed anew in each iteration of an innermost loop: the kernel's name and
/// the term.
pub fn divisions(program: &Program) -> Vec<(String, Dim)> {
    let mut found = Vec::new();
    for kernel in &program.kernels {
        in_body(&kernel.body, &mut |dim| found.push((kernel.name.clone(), dim.clone())));
    }
    found
}

fn in_body(body: &[Stmt], see: &mut dyn FnMut(&Dim)) {
    for stmt in body {
        match stmt {
            Stmt::For { axis, body, .. } => match body.iter().any(has_loop) {
                true => in_body(body, see),
                false => innermost(body, vec![axis.var.clone()], see),
            },
            Stmt::While { body, .. } => match body.iter().any(has_loop) {
                true => in_body(body, see),
                false => innermost(body, Vec::new(), see),
            },
            Stmt::Strip { axis, .. } => innermost(std::slice::from_ref(stmt), vec![axis.var.clone()], see),
            Stmt::Contraction(contraction) => in_contract(contraction, see),
            Stmt::If { then, otherwise, .. } => {
                in_body(then, see);
                in_body(otherwise, see);
            }
            // Runs once, outside of all loops or in one that is not innermost.
            Stmt::Block(_) => {}
        }
    }
}

fn has_loop(stmt: &Stmt) -> bool {
    match stmt {
        Stmt::For { .. } | Stmt::While { .. } | Stmt::Strip { .. } | Stmt::Contraction(_) => true,
        Stmt::If { then, otherwise, .. } => then.iter().chain(otherwise).any(has_loop),
        Stmt::Block(_) => false,
    }
}

/// The divisions in `body` by what changes with `vars` or is bound inside.
fn innermost(body: &[Stmt], mut vars: Vec<Symbol>, see: &mut dyn FnMut(&Dim)) {
    walk::symbols(body, &mut |symbol| vars.push(symbol.clone()));
    for stmt in body {
        match stmt {
            Stmt::Block(code) | Stmt::Strip { code, .. } => {
                code.insts.iter().for_each(|inst| in_inst(inst, &vars, see));
            }
            Stmt::If { then, otherwise, .. } => {
                innermost(then, vars.clone(), see);
                innermost(otherwise, vars.clone(), see);
            }
            Stmt::For { .. } | Stmt::While { .. } | Stmt::Contraction(_) => {}
        }
    }
}

/// Tiles run along the last row axis, the columns and all reduction axes.
fn in_contract(contraction: &Contraction, see: &mut dyn FnMut(&Dim)) {
    let axes = contraction.m.last().into_iter().chain([&contraction.n]).chain(&contraction.k);
    let mut vars: Vec<Symbol> = axes.map(|axis| axis.var.clone()).collect();
    in_dim(&contraction.lhs.index, &vars, see);
    match &contraction.rhs {
        Rhs::Indexed(access) => in_dim(&access.index, &vars, see),
        Rhs::Panels { base, .. } => in_dim(base, &vars, see),
    }
    for inst in &contraction.epilogue.insts {
        if let Inst::Bind(symbol, _) = inst {
            vars.push(symbol.clone());
        }
        in_inst(inst, &vars, see);
    }
}

fn in_inst(inst: &Inst, vars: &[Symbol], see: &mut dyn FnMut(&Dim)) {
    match inst {
        Inst::Index(_, dim) => in_dim(dim, vars, see),
        Inst::Load(access) | Inst::Store(access, _) => in_dim(&access.index, vars, see),
        Inst::Check(check) => [&check.lo, &check.end].into_iter().for_each(|dim| in_dim(dim, vars, see)),
        _ => {}
    }
}

fn in_dim(dim: &Dim, vars: &[Symbol], see: &mut dyn FnMut(&Dim)) {
    if matches!(dim.node(), Node::FloorDiv(..) | Node::Mod(..)) && vars.iter().any(|var| dim.contains(var)) {
        see(dim);
    }
    dim.node().operands().into_iter().for_each(|operand| in_dim(operand, vars, see));
}
