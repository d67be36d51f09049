//! Finds divisions in innermost loops, where they are expensive.
//!
//! An expression that depends on the variable of an innermost loop is computed in each iteration. Codegen hoists all
//! other expressions out of the loop. Lowering splits and merges loops to eliminate such divisions where shapes allow
//! it, and tests check the result with this module.

use super::{Contraction, FewBitsPanels, Inst, Program, Rhs, Stmt, walk};
use symshape::{Dim, Node, Symbol};

/// The quotients and remainders that an innermost loop computes in each iteration, each with the name of its kernel.
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
            Stmt::For { body, .. } | Stmt::While { body, .. } if body.iter().any(has_loop) => {
                in_body(body, see);
            }
            Stmt::For { axis, body, .. } => innermost(body, vec![axis.var.clone()], see),
            Stmt::While { body, .. } => innermost(body, Vec::new(), see),
            Stmt::Strip { axis, .. } => innermost(std::slice::from_ref(stmt), vec![axis.var.clone()], see),
            Stmt::Contraction(contraction) => in_contraction(contraction, see),
            Stmt::If { then, otherwise, .. } => {
                in_body(then, see);
                in_body(otherwise, see);
            }
            // A block here is outside of all loops, or in a loop that is not innermost.
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

/// Visits the divisions in `body` that depend on `vars` or on symbols bound inside.
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

/// Visits the divisions of a contraction. Its tiles run along the last row axis, the columns and the reduction axes.
fn in_contraction(contraction: &Contraction, see: &mut dyn FnMut(&Dim)) {
    let axes = contraction.m.last().into_iter().chain([&contraction.n]).chain(&contraction.k);
    let mut vars: Vec<Symbol> = axes.map(|axis| axis.var.clone()).collect();
    in_dim(&contraction.lhs.index, &vars, see);

    match &contraction.rhs {
        Rhs::Indexed(access) => in_dim(&access.index, &vars, see),
        Rhs::Panels { base, .. } | Rhs::FewBits(FewBitsPanels { base, .. }) => in_dim(base, &vars, see),
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
