//! Rewriting of the statements inside all loops and branches: strips, blocks and contractions.

use crate::kernel::{Axis, Contraction, Kernel, Program, Stmt};
use symshape::Facts;

/// The place of a statement.
pub(super) struct Place {
    /// The facts inside of the loops around it.
    pub(super) facts: Facts,
    /// The loops around it, the outermost first.
    pub(super) loops: Vec<Axis>,
}

/// The statements that replace a statement.
pub(super) type Rewrite<'a> = dyn FnMut(&mut Program, &Kernel, &Place, Stmt) -> Vec<Stmt> + 'a;

/// Replaces each statement that contains no others.
pub(super) fn rewrite_leaves(program: &mut Program, rewrite: &mut Rewrite<'_>) {
    for mut kernel in std::mem::take(&mut program.kernels) {
        let body = std::mem::take(&mut kernel.body);
        let mut place = Place { facts: program.facts.clone(), loops: Vec::new() };
        kernel.body = stmts(program, &kernel, &mut place, rewrite, body);
        program.kernels.push(kernel);
    }
}

/// The statements that replace a contraction, or `None` if it stays.
pub(super) type RewriteContraction<'a> =
    dyn FnMut(&mut Program, &Kernel, &Place, &Contraction) -> Option<Vec<Stmt>> + 'a;

/// Replaces contractions.
pub(super) fn rewrite_contractions(program: &mut Program, rewrite: &mut RewriteContraction<'_>) {
    rewrite_leaves(program, &mut |program, kernel, place, stmt| {
        let replaced = match &stmt {
            Stmt::Contraction(contraction) => rewrite(program, kernel, place, contraction),
            _ => None,
        };
        replaced.unwrap_or_else(|| vec![stmt])
    });
}

fn stmts(
    program: &mut Program,
    kernel: &Kernel,
    place: &mut Place,
    rewrite: &mut Rewrite<'_>,
    body: Vec<Stmt>,
) -> Vec<Stmt> {
    let mut done = Vec::new();
    for stmt in body {
        match stmt {
            Stmt::For { axis, parallel, body } => {
                let outside = place.facts.clone();
                place.facts.declare_index(&axis.var, &axis.extent);
                place.loops.push(axis.clone());
                let body = stmts(program, kernel, place, rewrite, body);
                place.loops.pop();
                place.facts = outside;
                done.push(Stmt::For { axis, parallel, body });
            }
            Stmt::If { cond, then, otherwise } => {
                let then = stmts(program, kernel, place, rewrite, then);
                let otherwise = stmts(program, kernel, place, rewrite, otherwise);
                done.push(Stmt::If { cond, then, otherwise });
            }
            Stmt::While { cond, body } => {
                let body = stmts(program, kernel, place, rewrite, body);
                done.push(Stmt::While { cond, body });
            }
            leaf => done.extend(rewrite(program, kernel, place, leaf)),
        }
    }
    done
}
