//! Elementwise roots and copies: one pass over the result.

use super::{
    index::natural,
    inline::Inliner,
    lowering::{KernelScope, Lowering},
    nest::{AxisRole, Nest, axes_of, exprs_of, loops, strip, with_exprs},
    storage::Storage,
};
use crate::{
    Result,
    graph::Value,
    kernel::{Access, Axis, Inst, InstSeq, Kernel, Stmt},
};
use symshape::Dim;

/// Appends the kernel of a map, view, gather or index root.
pub(super) fn lower(lowering: &mut Lowering, value: Value) -> Result<()> {
    if lowering.in_place.contains(&value) {
        return Ok(());
    }
    let mut scope = lowering.scope();
    let (axes, index) = axes_of(&mut scope, lowering.graph.shape(value));
    let mut inliner = Inliner::new(lowering, &mut scope);
    let reg = inliner.define(value, &index)?;
    inliner.store_everywhere(value, &index, reg);
    let code = inliner.code;

    let body = pass(&mut scope, axes, &code);
    lowering.push(value, "map", Kernel::default(), body);
    Ok(())
}

/// Appends a kernel that copies `value`, in memory or not, to `storage`.
pub(super) fn copy(lowering: &mut Lowering, value: Value, storage: &Storage, kind: &str) -> Result<()> {
    let mut scope = lowering.scope();
    let (axes, index) = axes_of(&mut scope, lowering.graph.shape(value));
    let mut inliner = Inliner::new(lowering, &mut scope);
    let reg = inliner.load(value, &index)?;
    inliner.store(storage, &index, reg);
    let code = inliner.code;

    let body = pass(&mut scope, axes, &code);
    lowering.push(value, kind, Kernel::default(), body);
    Ok(())
}

/// Appends a kernel of `value` that copies memory of this shape.
pub(super) fn move_to(lowering: &mut Lowering, value: Value, shape: &[Dim], from: &Storage, to: &Storage) {
    let mut scope = lowering.scope();
    let (axes, index) = axes_of(&mut scope, shape);
    let mut inliner = Inliner::new(lowering, &mut scope);
    let access = from.at(&index);
    let simplified = inliner.scope.facts.simplify(&access.index);
    let reg = inliner.code.push(Inst::Load(Access { index: simplified, ..access }));
    inliner.store(to, &index, reg);
    let code = inliner.code;

    let body = pass(&mut scope, axes, &code);
    lowering.push(value, "move", Kernel::default(), body);
}

/// Copies the outputs that were not computed in place: inputs and constants that are outputs, values that are output
/// twice, and values whose layout is not the caller's.
pub(super) fn copy_outputs(lowering: &mut Lowering) -> Result<()> {
    let graph = lowering.graph;
    let outputs = graph.outputs.iter().enumerate().filter(|(idx, _)| !graph.is_state_output(*idx));
    for (number, (_, (_, value))) in outputs.enumerate() {
        let buffer = lowering.program.outputs[number].buffer;
        if lowering.storage.get(value).is_none_or(|storage| storage.buffer != buffer) {
            let storage = Storage::dense(buffer, graph.shape(*value), &natural(graph.rank(*value)));
            copy(lowering, *value, &storage, "output")?;
        }
    }
    Ok(())
}

/// Runs `code`, whose last instruction is its main store, for each point of `axes`.
pub(super) fn pass(scope: &mut KernelScope, axes: Vec<Axis>, code: &InstSeq) -> Vec<Stmt> {
    let mut nest = Nest::new(axes, vec![], exprs_of(code));
    nest.split(scope, None);
    if let Some(address) = nest.exprs.last().cloned() {
        nest.order_by(&scope.facts, AxisRole::Kept, &address);
    }
    nest.merge(scope);
    // Loads of addresses should stay outside of the strip.
    if !code.insts.iter().any(|inst| matches!(inst, Inst::Bind(..))) {
        nest.lengthen(&scope.facts);
        if let Some(address) = nest.exprs.last().cloned() {
            nest.pair_for_squares(&scope.facts, &address);
        }
    }

    let mut axes = nest.axes(AxisRole::Kept);
    let code = with_exprs(code, &nest.exprs);
    match axes.pop() {
        Some(inner) => loops(&axes, true, strip(scope, inner, code)),
        None => vec![Stmt::Block(code)],
    }
}
