//! Operators whose elements depend on each other in order: scans, scatters, arg-reductions.
//!
//! They become scalar loops. Rows are independent, so the loops around them are parallel.

use super::{
    inline::Inliner,
    lowering::{KernelScope, Lowering},
    map,
    nest::{axes_of, loops},
    reduce::{accumulator, interleave, set},
};
use crate::{
    Error, Result,
    graph::{Op, ScatterMode, Value},
    kernel::{Axis, Inst, InstSeq, Kernel, Stmt},
    scalar::{BinaryOp, CompareOp, ReduceOp, Scalar, UnaryOp},
};
use symshape::Dim;
use symshape_runtime::DType;

/// An axis that is walked along, even if its extent is 1.
fn walk(scope: &mut KernelScope, extent: &Dim) -> (Axis, Dim) {
    let var = scope.fresh("i");
    scope.facts.declare_index(&var, extent);
    let at = Dim::from(&var);
    (Axis { var, extent: extent.clone() }, at)
}

/// The axes and index of all axes except `axis`.
fn others(scope: &mut KernelScope, shape: &[Dim], axis: usize) -> (Vec<Axis>, Vec<Dim>) {
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
    let mut kernel = Kernel::default();
    let total = kernel.locals.push(acc);

    let mut inliner = Inliner::new(lowering, &mut scope);
    let element = inliner.load(graph.operands(value)[0], &index)?;
    let element = inliner.code.push(Inst::Cast(acc, element));
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

/// The kernel of an arg-reduction.
pub(super) fn arg_reduce(lowering: &mut Lowering, value: Value) -> Result<()> {
    let graph = lowering.graph;
    let Op::ArgReduce { op, axis, last } = graph.op(value) else {
        return Err(Error::internal("not an arg-reduction"));
    };
    let operand = graph.operands(value)[0];
    let shape = graph.shape(operand);
    let dtype = graph.dtype(operand);
    let mut scope = lowering.scope();
    let (outer, rest) = others(&mut scope, shape, *axis);
    let (steps, step) = walk(&mut scope, &shape[*axis]);
    let index = interleave(shape.len(), &[*axis], &rest, std::slice::from_ref(&step));
    let storage = lowering.storage[&value].clone();
    let mut kernel = Kernel::default();
    let best = kernel.locals.push(dtype);
    let position = kernel.locals.push(DType::I64);

    let mut inliner = Inliner::new(lowering, &mut scope);
    let element = inliner.load(operand, &index)?;
    let mut code = inliner.code;
    let old = code.push(Inst::Get(best));
    let at = code.push(Inst::Index(DType::I64, step));
    let better = match (op, last) {
        (ReduceOp::Max, false) => CompareOp::Gt,
        (ReduceOp::Max, true) => CompareOp::Ge,
        (_, false) => CompareOp::Lt,
        (_, true) => CompareOp::Le,
    };
    let mut wins = code.push(Inst::Compare(better, element, old));
    let zero = code.push(Inst::Const(Scalar::i64(0)));
    let is_first = code.push(Inst::Compare(CompareOp::Eq, at, zero));
    wins = code.push(Inst::Binary(BinaryOp::Or, wins, is_first));
    if dtype.is_float() {
        // The first NaN wins over every element except an earlier NaN.
        let new_nan = code.push(Inst::Unary(UnaryOp::IsNan, element));
        let old_nan = code.push(Inst::Unary(UnaryOp::IsNan, old));
        let old_number = code.push(Inst::Unary(UnaryOp::Not, old_nan));
        let first_nan = code.push(Inst::Binary(BinaryOp::And, new_nan, old_number));
        wins = code.push(Inst::Binary(BinaryOp::Or, wins, first_nan));
    }
    let place = code.push(Inst::Get(position));
    let chosen = code.push(Inst::Select(wins, element, old));
    let placed = code.push(Inst::Select(wins, at, place));
    code.push(Inst::Set(best, chosen));
    code.push(Inst::Set(position, placed));

    let mut finish = InstSeq::default();
    let result = finish.push(Inst::Get(position));
    finish.push(Inst::Store(storage.at(&rest), result));
    let start = [set(best, op.neutral(dtype)), set(position, Scalar::i64(0))];
    let walk = loops(&[steps], false, vec![Stmt::Block(code)]);
    let body = [start.to_vec(), walk, vec![Stmt::Block(finish)]].concat();
    lowering.push(value, "argreduce", kernel, loops(&outer, true, body));
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
    let body = vec![Stmt::Block(inliner.code)];
    lowering.push(value, "scatter", Kernel::default(), loops(&axes, false, body));
    Ok(())
}
