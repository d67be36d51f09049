//! Elementwise roots: one pass over the result.

use super::{
    Lowering, Scope,
    inline::Inliner,
    nest::{Nest, Role, axes_of, exprs_of, loops, strip, with_exprs},
    storage::Storage,
};
use crate::{
    Result,
    graph::Value,
    kernel::{Axis, Code, Inst, Kernel, Stmt},
};

/// The kernel of a map, view, gather or index root.
pub(super) fn lower(lowering: &mut Lowering, value: Value) -> Result<()> {
    let storage = lowering.storage[&value].clone();
    write(lowering, value, &storage, "map", true)
}

/// A kernel that copies `value`, wherever it is, to `storage`.
pub(super) fn copy(lowering: &mut Lowering, value: Value, storage: &Storage, kind: &str) -> Result<()> {
    write(lowering, value, storage, kind, false)
}

fn write(lowering: &mut Lowering, value: Value, to: &Storage, kind: &str, define: bool) -> Result<()> {
    let mut scope = lowering.scope();
    let (axes, index) = axes_of(&mut scope, lowering.graph.shape(value));
    let mut inliner = Inliner::new(lowering, &mut scope);
    let reg = if define { inliner.define(value, &index)? } else { inliner.load(value, &index)? };
    inliner.store(to, &index, reg);
    let code = inliner.code;
    let body = pass(&mut scope, axes, &code);
    lowering.push(value, kind, Kernel::default(), body);
    Ok(())
}

/// Runs `code`, whose last instruction is its main store, for each point of `axes`.
pub(super) fn pass(scope: &mut Scope, axes: Vec<Axis>, code: &Code) -> Vec<Stmt> {
    let mut nest = Nest::new(axes, vec![], exprs_of(code));
    nest.split(scope);
    if let Some(address) = nest.exprs.last().cloned() {
        nest.order_by(&scope.facts, Role::Kept, &address);
    }
    nest.merge(scope);
    // What was loaded to be an address had better stay outside of the strip.
    if !code.insts.iter().any(|inst| matches!(inst, Inst::Bind(..))) {
        nest.lengthen(&scope.facts);
    }
    let (mut axes, code) = (nest.axes(Role::Kept), with_exprs(code, &nest.exprs));
    match axes.pop() {
        Some(inner) => loops(&axes, true, strip(scope, inner, code)),
        None => vec![Stmt::Block(code)],
    }
}
