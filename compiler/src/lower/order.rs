//! Operators whose elements depend on each other in order: scans and scatters.
//!
//! They become scalar loops, or [strips](super::across) over rows that are adjacent in memory. Rows are independent, so
//! the loops around them are parallel.

use super::{
    across::{self, RowWise},
    inline::Inliner,
    lowering::{KernelScope, Lowering},
    map,
    nest::{axes_of, loops, strip},
    reduce::{accumulator, interleave, set},
};
use crate::{
    Error, Result,
    graph::{Coord, Graph, Op, ScatterMode, Value, axis},
    kernel::{Axis, Inst, InstSeq, Kernel, Stmt},
};
use symshape::Dim;

/// An axis that is walked along, even if its extent is 1.
pub(super) fn walk(scope: &mut KernelScope, extent: &Dim) -> (Axis, Dim) {
    let var = scope.fresh("i");
    scope.facts.declare_index(&var, extent);
    let at = Dim::from(&var);
    (Axis { var, extent: extent.clone() }, at)
}

/// The axes and index of all axes except `axis`.
pub(super) fn others(scope: &mut KernelScope, shape: &[Dim], axis: usize) -> (Vec<Axis>, Vec<Dim>) {
    let mut rest = shape.to_vec();
    rest.remove(axis);
    axes_of(scope, &rest)
}

/// The kernel of a scan.
pub(super) fn scan(lowering: &mut Lowering, value: Value) -> Result<()> {
    let graph = lowering.graph;
    let Op::Scan { op, axis, exclusive, reverse } = graph.op(value) else {
        return Err(Error::internal("not a scan"));
    };
    let shape = graph.shape(value);
    let dtype = graph.dtype(value);
    let acc = accumulator(*op, dtype);
    let mut scope = lowering.scope();
    let (outer, rest) = others(&mut scope, shape, *axis);
    let (steps, step) = walk(&mut scope, &shape[*axis]);
    let at = if *reverse { &shape[*axis] - step - 1 } else { step };
    let index = interleave(shape.len(), &[*axis], &rest, &[at]);
    let storage = lowering.storage[&value].clone();

    let mut inliner = Inliner::new(lowering, &mut scope);
    let element = inliner.load(graph.operands(value)[0], &index)?;
    let element = inliner.code.push(Inst::Cast(acc, element));
    let loaded = inliner.code;
    if across::is_across(&scope, &outer, &steps, &loaded) {
        let slot = scope.fresh("slot");
        let total = across::element(across::state(lowering, "running totals", acc), &slot);
        let mut start = InstSeq::default();
        let neutral = start.push(Inst::Const(op.neutral(acc)));
        start.push(Inst::Store(total.clone(), neutral));

        let mut inliner = Inliner::new(lowering, &mut scope);
        inliner.code = loaded;
        let before = inliner.code.push(Inst::Load(total.clone()));
        let after = inliner.code.push(Inst::Binary(op.binary(), before, element));
        inliner.code.push(Inst::Store(total, after));
        let result = inliner.code.push(Inst::Cast(dtype, if *exclusive { before } else { after }));
        inliner.store(&storage, &index, result);
        let codes = RowWise { start, step: inliner.code, finish: InstSeq::default(), slot };
        let address = storage.at(&index).index;
        let body = across::lower(&mut scope, outer, steps, &codes, &address)?;
        lowering.push(value, "scan", Kernel::default(), body);
        return Ok(());
    }

    let mut kernel = Kernel::default();
    let total = kernel.locals.push(acc);
    let mut inliner = Inliner::new(lowering, &mut scope);
    inliner.code = loaded;
    let before = inliner.code.push(Inst::Get(total));
    let after = inliner.code.push(Inst::Binary(op.binary(), before, element));
    inliner.code.push(Inst::Set(total, after));
    let result = inliner.code.push(Inst::Cast(dtype, if *exclusive { before } else { after }));
    inliner.store(&storage, &index, result);
    let body = loops(&[steps], false, vec![Stmt::Block(inliner.code)]);
    let body = [vec![set(total, op.neutral(acc))], body].concat();
    lowering.push(value, "scan", kernel, loops(&outer, true, body));
    Ok(())
}

/// The kernels of a scatter: a copy of operand 0, then the updates one after another.
pub(super) fn scatter(lowering: &mut Lowering, value: Value) -> Result<()> {
    let graph = lowering.graph;
    let Op::Scatter { coords, mode } = graph.op(value) else {
        return Err(Error::internal("not a scatter"));
    };
    let storage = lowering.storage[&value].clone();
    let operands = graph.operands(value);
    map::copy(lowering, operands[0], &storage, "scatter")?;

    let mut scope = lowering.scope();
    let (axes, index) = axes_of(&mut scope, graph.shape(operands[1]));
    let mut inliner = Inliner::new(lowering, &mut scope);
    let to = inliner.coords(value, coords, &index)?;
    let mut update = inliner.load(operands[1], &index)?;
    if let ScatterMode::Combine(op) = mode {
        let old = inliner.code.push(Inst::Load(storage.at(&to)));
        update = inliner.code.push(Inst::Binary(op.binary(), old, update));
    }
    inliner.store(&storage, &to, update);
    let code = inliner.code;

    // The updates of a run have distinct places, so their order has no effect.
    let (outer, body) = match axes.split_last() {
        Some((inner, outer)) if writes_runs(graph, value, coords) => {
            (outer, strip(&scope, inner.clone(), code))
        }
        _ => (&axes[..], vec![Stmt::Block(code)]),
    };
    lowering.push(value, "scatter", Kernel::default(), loops(outer, false, body));
    Ok(())
}

/// Whether updates along their last axis are written along one axis of the result.
fn writes_runs(graph: &Graph, value: Value, coords: &[Coord]) -> bool {
    let Some((dim, last)) =
        graph.shape(graph.operands(value)[1]).split_last().map(|(dim, rest)| (dim, rest.len()))
    else {
        return false;
    };
    let last = axis(last);
    let moves = |coord: &&Coord| match coord {
        Coord::At(at) => at.contains(&last),
        Coord::Load { at, .. } => at.iter().any(|at| at.contains(&last)),
    };
    let mut moving = coords.iter().filter(moves);
    let is_run = matches!(moving.next(), Some(Coord::At(at)) if at.as_symbol() == Some(&last));
    is_run && moving.next().is_none() && dim.as_i64() != Some(1)
}
