//! Arg-reductions: the position of the largest or smallest element along an axis.
//!
//! Across memory, [strips](super::across) compare many rows at once. A long row is [searched by blocks](super::sort).
//! For other rows, a strip finds the chosen element, and another one its position.

use super::{
    across::{self, RowWise},
    inline::Inliner,
    lowering::Lowering,
    nest::loops,
    order::{others, walk},
    reduce::{accumulator, cast, interleave},
    sort,
};
use crate::{
    Error, Result,
    graph::{Op, Value},
    kernel::{Inst, InstSeq, Kernel, Stmt, lanes::has_lanes},
    scalar::{BinaryOp, CompareOp, ReduceOp, Reg, Scalar, UnaryOp},
};
use symshape::Dim;
use symshape_runtime::DType;

/// Rows of at least this length are searched by blocks.
const MIN_SEARCHED: i64 = 1 << 13;

/// As [`MIN_SEARCHED`], for types whose reductions are scalar code.
const MIN_SEARCHED_SCALAR: i64 = 128;

/// The elements among which one is chosen.
#[derive(Clone, Copy)]
struct Choice {
    op: ReduceOp,
    /// Whether the last of equal elements is chosen.
    last: bool,
    dtype: DType,
}

/// The kernel of an arg-reduction.
pub(super) fn lower(lowering: &mut Lowering, value: Value) -> Result<()> {
    let graph = lowering.graph;
    let Op::ArgReduce { op, axis, last } = graph.op(value) else {
        return Err(Error::internal("not an arg-reduction"));
    };
    let operand = graph.operands(value)[0];
    let choice = Choice { op: *op, last: *last, dtype: graph.dtype(operand) };
    if is_across(lowering, operand, *axis)? {
        return across_memory(lowering, value, *axis, choice);
    }

    let bound = lowering.program.facts.bounds(&graph.shape(operand)[*axis]).hi;
    let compared = accumulator(choice.op, choice.dtype);
    let has_vectors = has_lanes(compared) && compared.size_bytes() <= 4;
    let min_searched = if has_vectors { MIN_SEARCHED } else { MIN_SEARCHED_SCALAR };
    let is_long = bound.is_some_and(|bound| bound >= min_searched.into());
    if is_long && !choice.last {
        return sort::lower_first_position(lowering, value, *axis, choice.op == ReduceOp::Max);
    }
    along_memory(lowering, value, *axis, choice)
}

fn is_across(lowering: &mut Lowering, operand: Value, axis: usize) -> Result<bool> {
    let shape = lowering.graph.shape(operand);
    let mut scope = lowering.scope();
    let (rows, rest) = others(&mut scope, shape, axis);
    let (steps, at) = walk(&mut scope, &shape[axis]);
    let mut inliner = Inliner::new(lowering, &mut scope);
    inliner.load(operand, &interleave(shape.len(), &[axis], &rest, &[at]))?;
    let code = inliner.code;
    Ok(across::is_across(&scope, &rows, &steps, &code))
}

/// The kernel for rows that are nearer to each other in memory than their elements.
fn across_memory(lowering: &mut Lowering, value: Value, axis: usize, choice: Choice) -> Result<()> {
    let graph = lowering.graph;
    let operand = graph.operands(value)[0];
    let shape = graph.shape(operand);
    let mut scope = lowering.scope();
    let (rows, rest) = others(&mut scope, shape, axis);
    let (steps, step) = walk(&mut scope, &(&shape[axis] - 1));
    let storage = lowering.storage[&value].clone();

    // Positions of 32 bits have lanes.
    let fits = scope.facts.bounds(&shape[axis]).hi.is_some_and(|hi| hi <= i32::MAX.into());
    let position_type = if fits { DType::I32 } else { DType::I64 };
    let slot = scope.fresh("slot");
    let best = across::element(across::state(lowering, "best elements", choice.dtype), &slot);
    let places = across::element(across::state(lowering, "positions of the best", position_type), &slot);

    let at_step = |at: Dim| interleave(shape.len(), &[axis], &rest, &[at]);
    let mut inliner = Inliner::new(lowering, &mut scope);
    let first = inliner.load(operand, &at_step(Dim::zero()))?;
    inliner.code.push(Inst::Store(best.clone(), first));
    let zero = inliner.code.push(Inst::Const(Scalar::from_i64(position_type, 0)));
    inliner.code.push(Inst::Store(places.clone(), zero));
    let start = inliner.code;

    let at = step + 1;
    let mut inliner = Inliner::new(lowering, &mut scope);
    let element = inliner.load(operand, &at_step(at.clone()))?;
    let mut code = inliner.code;
    let old = code.push(Inst::Load(best.clone()));
    let wins = wins(&mut code, choice, element, old);
    let chosen = code.push(Inst::Select(wins, element, old));
    let here = code.push(Inst::Index(position_type, at));
    let place = code.push(Inst::Load(places.clone()));
    let placed = code.push(Inst::Select(wins, here, place));
    code.push(Inst::Store(best, chosen));
    code.push(Inst::Store(places.clone(), placed));

    let mut inliner = Inliner::new(lowering, &mut scope);
    let place = inliner.code.push(Inst::Load(places));
    let place = inliner.code.push(Inst::Cast(DType::I64, place));
    inliner.store(&storage, &rest, place);
    let codes = RowWise { start, step: code, finish: inliner.code, slot };
    let address = storage.at(&rest).index;
    let body = across::lower(&mut scope, rows, steps, &codes, &address)?;
    lowering.push(value, "argreduce", Kernel::default(), body);
    Ok(())
}

/// The kernel for all other rows: a strip that finds the chosen element, and one that finds its position.
fn along_memory(lowering: &mut Lowering, value: Value, axis: usize, choice: Choice) -> Result<()> {
    let graph = lowering.graph;
    let operand = graph.operands(value)[0];
    let shape = graph.shape(operand);
    let mut scope = lowering.scope();
    let (rows, rest) = others(&mut scope, shape, axis);
    let storage = lowering.storage[&value].clone();
    let fits = scope.facts.bounds(&shape[axis]).hi.is_some_and(|hi| hi < i32::MAX.into());
    let position_type = if fits { DType::I32 } else { DType::I64 };
    let mut kernel = Kernel::default();
    let compared = accumulator(choice.op, choice.dtype);
    let best = kernel.locals.push(compared);
    let position = kernel.locals.push(position_type);

    let (steps, step) = walk(&mut scope, &shape[axis]);
    let mut inliner = Inliner::new(lowering, &mut scope);
    let element = inliner.load(operand, &interleave(shape.len(), &[axis], &rest, &[step]))?;
    let mut code = inliner.code;
    let element = cast(&mut code, element, choice.dtype, compared);
    code.push(Inst::Reduce(choice.op, element, best));
    let find_best = Stmt::Strip { axis: steps, code };

    let (steps, step) = walk(&mut scope, &shape[axis]);
    let mut inliner = Inliner::new(lowering, &mut scope);
    let element =
        inliner.load(operand, &interleave(shape.len(), &[axis], &rest, std::slice::from_ref(&step)))?;
    let mut code = inliner.code;
    let element = cast(&mut code, element, choice.dtype, compared);
    let wanted = code.push(Inst::Get(best));
    let mut is_best = code.push(Inst::Compare(CompareOp::Eq, element, wanted));
    if choice.dtype.is_float() {
        // The best element is NaN if any element is.
        let is_nan = code.push(Inst::Unary(UnaryOp::IsNan, element));
        is_best = code.push(Inst::Binary(BinaryOp::Or, is_best, is_nan));
    }
    let op = if choice.last { ReduceOp::Max } else { ReduceOp::Min };
    let here = code.push(Inst::Index(position_type, step));
    let none = code.push(Inst::Const(op.neutral(position_type)));
    let place = code.push(Inst::Select(is_best, here, none));
    code.push(Inst::Reduce(op, place, position));
    let find_position = Stmt::Strip { axis: steps, code };

    let mut finish = InstSeq::default();
    let result = finish.push(Inst::Get(position));
    let result = finish.push(Inst::Cast(DType::I64, result));
    finish.push(Inst::Store(storage.at(&rest), result));
    let body = vec![find_best, find_position, Stmt::Block(finish)];
    lowering.push(value, "argreduce", kernel, loops(&rows, true, body));
    Ok(())
}

/// Whether `element` is chosen rather than the earlier `old`. NaN is chosen before all other elements.
fn wins(code: &mut InstSeq, choice: Choice, element: Reg, old: Reg) -> Reg {
    let better = match (choice.op, choice.last) {
        (ReduceOp::Max, false) => CompareOp::Gt,
        (ReduceOp::Max, true) => CompareOp::Ge,
        (_, false) => CompareOp::Lt,
        (_, true) => CompareOp::Le,
    };
    let wins = code.push(Inst::Compare(better, element, old));
    if !choice.dtype.is_float() {
        return wins;
    }

    let new_nan = code.push(Inst::Unary(UnaryOp::IsNan, element));
    if choice.last {
        return code.push(Inst::Binary(BinaryOp::Or, wins, new_nan));
    }
    let old_nan = code.push(Inst::Unary(UnaryOp::IsNan, old));
    let old_number = code.push(Inst::Unary(UnaryOp::Not, old_nan));
    let first_nan = code.push(Inst::Binary(BinaryOp::And, new_nan, old_number));
    code.push(Inst::Binary(BinaryOp::Or, wins, first_nan))
}
