//! Checks the number, ranks and element types of an operator's operands, and its attributes.

use crate::{
    error::{Result, ensure},
    external,
    graph::{Coord, Graph, Label, Op, Value, axis},
    scalar::{BinaryOp, Body, ReduceOp, Reg, Step, UnaryOp},
};
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

/// Checks the number of operands and their ranks.
pub(super) fn operands(graph: &Graph, op: &Op, operands: &[Value]) -> Result<()> {
    let count = operands.len();
    let wanted = match op {
        Op::Input(_) | Op::Const(_) | Op::Index { .. } => 0..=0,
        Op::Map(body) => body.params.len().max(1)..=body.params.len(),
        Op::View { .. } | Op::Pad { .. } | Op::Reduce { .. } | Op::ArgReduce { .. } => 1..=1,
        Op::Sort { .. } => 1..=2,
        Op::Scan { .. } => 1..=1,
        Op::Concat { .. } | Op::Gather { .. } => 1..=usize::MAX,
        Op::Scatter { .. } => 2..=usize::MAX,
        Op::Contraction { .. } => 2..=2,
        Op::Bind { .. } => 1..=1,
        Op::Fail { .. } => 0..=0,
        Op::If { then, otherwise } => {
            let count = 1 + then.inputs.len() + otherwise.inputs.len();
            count..=count
        }
        Op::Call { .. } => 0..=usize::MAX,
        Op::Loop { body, .. } => 2 + body.inputs.len()..=2 + body.inputs.len(),
    };

    ensure(wanted.contains(&count), || format!("{} has {count} operands; it takes {wanted:?}", op.name()))?;
    let rank = operands.first().map_or(0, |value| graph.rank(*value));
    let ranks_agree = || operands.iter().all(|value| graph.rank(*value) == rank);
    match op {
        Op::Map(_) => ensure(ranks_agree(), || "operands of different ranks".into()),
        Op::Concat { axis } => {
            ensure(ranks_agree(), || "operands of different ranks".into())?;
            ensure(*axis < rank, || format!("axis {axis} of a tensor of {rank} axes"))
        }
        Op::Contraction { lhs, rhs, .. } => {
            let fits = lhs.len() == rank && rhs.len() == graph.rank(operands[1]);
            ensure(fits, || "the number of labels differs from the number of axes".into())
        }
        _ => Ok(()),
    }
}

/// Checks element types, axes and index expressions.
pub(super) fn attributes(graph: &Graph, op: &Op, operands: &[Value]) -> Result<()> {
    let dtype_of = |i: usize| graph.dtype(operands[i]);
    let rank_of = |i: usize| graph.rank(operands[i]);

    match op {
        Op::Input(_) | Op::Const(_) => Ok(()),
        Op::Index { dtype, shape, expr } => {
            ensure(dtype.is_int(), || format!("index of type {dtype}"))?;
            only_axes(expr, shape.len())
        }
        Op::Map(body) => body_fits(graph, body, operands),
        Op::View { shape, index } => view(graph, operands[0], shape, index),
        Op::Pad { lo, hi, value } => {
            ensure(lo.len() == rank_of(0) && hi.len() == rank_of(0), || "not one pad for each axis".into())?;
            lo.iter().chain(hi).try_for_each(|dim| only_axes(dim, 0))?;
            same_type(dtype_of(0), value.dtype())
        }
        Op::Concat { .. } => {
            operands.iter().try_for_each(|value| same_type(dtype_of(0), graph.dtype(*value)))
        }
        Op::Gather { shape, coords } => coords_fit(graph, operands, coords, shape.len(), 1),
        Op::Scatter { coords, mode } => {
            same_type(dtype_of(0), dtype_of(1))?;
            if let crate::graph::ScatterMode::Combine(op) = mode {
                combines(*op, dtype_of(0))?;
            }
            coords_fit(graph, operands, coords, rank_of(1), 2)
        }
        Op::Reduce { op, axes } => {
            let ascending = axes.windows(2).all(|pair| pair[0] < pair[1]);
            let inside = axes.last().is_none_or(|last| *last < rank_of(0));
            ensure(ascending && inside, || format!("axes {axes:?} of a tensor of {} axes", rank_of(0)))?;
            combines(*op, dtype_of(0))
        }
        Op::ArgReduce { op, axis, .. } => {
            ensure(matches!(op, ReduceOp::Min | ReduceOp::Max), || "argreduce of a sum or product".into())?;
            has_axis(graph, operands[0], *axis)
        }
        Op::Contraction { lhs, rhs, out, dtype, .. } => {
            let is_allowed =
                |dtype: DType| dtype.is_float() == dtype_of(0).is_float() && dtype != DType::Bool;
            let fits = [*dtype, dtype_of(0), dtype_of(1)].into_iter().all(is_allowed);
            ensure(fits, || format!("contraction of {} and {} as {dtype}", dtype_of(0), dtype_of(1)))?;
            labels(lhs, rhs, out)
        }
        Op::Bind { lo, hi, .. } => {
            only_axes(lo, 0)?;
            only_axes(hi, 0)?;
            let fits = rank_of(0) == 0 && dtype_of(0) == DType::I64;
            ensure(fits, || "the bound operand is not an i64 of rank 0".into())
        }
        Op::If { .. } | Op::Loop { .. } => super::control::check(graph, op, operands),
        Op::Call { callee, results, scratch } => {
            external::check_symbol(&callee.symbol)?;
            ensure(!results.is_empty(), || "a call has no results".into())?;
            let dims = || results.iter().flat_map(|ty| &ty.shape).chain([scratch]);
            dims().try_for_each(|dim| only_axes(dim, 0))?;
            let negative = dims().find(|dim| graph.facts.prove_le(&Dim::zero(), dim).is_no());
            ensure(negative.is_none(), || format!("the dim {} can be negative", negative.unwrap_or(scratch)))
        }
        Op::Fail { .. } => Ok(()),
        Op::Sort { axis, first, .. } => {
            has_axis(graph, operands[0], *axis)?;
            if operands.len() == 2 {
                let fits = rank_of(1) == 0 && dtype_of(1) == dtype_of(0);
                ensure(fits, || "the bound of a sort is not a scalar of the operand's type".into())?;
                ensure(first.is_none(), || "a bounded sort has no `first`".into())?;
            }
            first.iter().try_for_each(|first| only_axes(first, 0))
        }
        Op::Scan { op, axis, .. } => {
            has_axis(graph, operands[0], *axis)?;
            combines(*op, dtype_of(0))
        }
    }
}

fn has_axis(graph: &Graph, x: Value, axis: usize) -> Result<()> {
    ensure(axis < graph.rank(x), || format!("axis {axis} of a tensor of {} axes", graph.rank(x)))
}

fn same_type(a: DType, b: DType) -> Result<()> {
    ensure(a == b, || format!("element types {a} and {b}"))
}

fn combines(op: ReduceOp, dtype: DType) -> Result<()> {
    let fits = dtype != DType::Bool || matches!(op, ReduceOp::Min | ReduceOp::Max);
    ensure(fits, || format!("{op} of {dtype}"))
}

/// Checks that `expr` contains no axis symbol except `$0 … $(rank-1)`.
fn only_axes(expr: &Dim, rank: usize) -> Result<()> {
    let known = |symbol: &Symbol| (0..rank).any(|k| axis(k) == *symbol);
    let unknown = expr.symbols().into_iter().find(|symbol| symbol.name().starts_with('$') && !known(symbol));
    ensure(unknown.is_none(), || format!("{expr} contains an axis that the {rank} axes of the result lack"))
}

fn view(graph: &Graph, x: Value, shape: &[Dim], index: &[Dim]) -> Result<()> {
    ensure(index.len() == graph.rank(x), || {
        format!("{} indices for a tensor of {} axes", index.len(), graph.rank(x))
    })?;

    for (k, expr) in index.iter().enumerate() {
        only_axes(expr, shape.len())?;
        let fixed = expr.as_int().zip(graph.shape(x)[k].as_int());
        let outside = fixed.is_some_and(|(at, size)| {
            (at >= size || at.sign() == num_bigint::Sign::Minus)
                && !shape.iter().any(|dim| dim.as_i64() == Some(0))
        });
        ensure(!outside, || format!("index {expr} along axis {k} of size {}", graph.shape(x)[k]))?;
    }

    let negative = |dim: &&Dim| dim.as_int().is_some_and(|size| size.sign() == num_bigint::Sign::Minus);
    let bad = shape.iter().find(negative);
    ensure(bad.is_none(), || format!("a dim of {}", bad.map(Dim::to_string).unwrap_or_default()))
}

fn coords_fit(graph: &Graph, operands: &[Value], coords: &[Coord], rank: usize, first: usize) -> Result<()> {
    ensure(coords.len() == graph.rank(operands[0]), || "not one coordinate for each axis".into())?;
    for coord in coords {
        if let Coord::At(expr) = coord {
            only_axes(expr, rank)?;
        }
    }

    for (operand, at) in coords.iter().filter_map(Coord::as_load) {
        ensure((first..operands.len()).contains(&operand), || format!("coordinates in operand {operand}"))?;
        let value = operands[operand];
        ensure(graph.dtype(value).is_int(), || format!("coordinates of type {}", graph.dtype(value)))?;
        ensure(at.len() == graph.rank(value), || "not one index for each axis of the coordinates".into())?;
        at.iter().try_for_each(|expr| only_axes(expr, rank))?;
    }

    Ok(())
}

fn labels(lhs: &[Label], rhs: &[Label], out: &[Label]) -> Result<()> {
    for list in [lhs, rhs, out] {
        let mut sorted = list.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        ensure(sorted.len() == list.len(), || "a label repeats within an operand".into())?;
        ensure(list.iter().all(u8::is_ascii_alphabetic), || "a label is not a letter".into())?;
    }

    let summed_once = |label: &&Label| !out.contains(label) && lhs.contains(label) != rhs.contains(label);
    let once = lhs.iter().chain(rhs).find(summed_once);
    ensure(once.is_none(), || "a summed label occurs in one operand only".into())?;
    let known = out.iter().all(|label| lhs.contains(label) || rhs.contains(label));
    ensure(known, || "no operand has a label of the result".into())
}

fn body_fits(graph: &Graph, body: &Body, operands: &[Value]) -> Result<()> {
    for (i, value) in operands.iter().enumerate() {
        let want = body.params[i];
        let got = graph.dtype(*value);
        ensure(want == got, || format!("operand {i} has type {got}; the body takes {want}"))?;
    }
    check_body(body)
}

/// Checks that steps read earlier registers, and that types fit the operators.
///
/// # Errors
/// One of them does not.
pub fn check_body(body: &Body) -> Result<()> {
    let count = body.params.len();
    for (i, step) in body.steps.iter().enumerate() {
        let earlier = step.operands().into_iter().all(|reg| (reg.0 as usize) < count + i);
        ensure(earlier, || format!("step {i} of the body refers to a later one"))?;
    }
    ensure((body.result.0 as usize) < count + body.steps.len(), || {
        "the body returns an undefined register".into()
    })?;
    let types = body.types();
    body.steps.iter().try_for_each(|step| step_fits(step, &|reg| types[reg.0 as usize]))
}

fn step_fits(step: &Step, of: &dyn Fn(Reg) -> DType) -> Result<()> {
    match step {
        Step::Const(_) | Step::Cast(..) => Ok(()),
        Step::Bits(to, x) => {
            ensure(of(*x).size_bytes() == to.size_bytes(), || format!("the bits of {} as {to}", of(*x)))
        }
        Step::Unary(op, x) => ensure(unary_takes(*op, of(*x)), || format!("{op} of {}", of(*x))),
        Step::Binary(op, x, y) => {
            same_type(of(*x), of(*y))?;
            ensure(binary_takes(*op, of(*x)), || format!("{op} of {}", of(*x)))
        }
        Step::Compare(_, x, y) => same_type(of(*x), of(*y)),
        Step::Select(c, x, y) => {
            ensure(of(*c) == DType::Bool, || format!("a condition of type {}", of(*c)))?;
            same_type(of(*x), of(*y))
        }
    }
}

fn unary_takes(op: UnaryOp, dtype: DType) -> bool {
    use UnaryOp::*;
    match op {
        Neg | Abs | Sign | Floor | Ceil | Round | Trunc => dtype != DType::Bool,
        Not => !dtype.is_float(),
        Sqrt | Recip | Exp | Expm1 | Log | Log1p | Sin | Cos | Tan | Asin | Acos | Atan | Sinh | Cosh
        | Tanh | Asinh | Acosh | Atanh | Erf | IsNan | IsInf => dtype.is_float(),
        RoundBf16 => dtype == DType::F32,
    }
}

fn binary_takes(op: BinaryOp, dtype: DType) -> bool {
    use BinaryOp::*;
    match op {
        Add | Sub | Mul | Div | Rem | Mod | Pow => dtype != DType::Bool,
        Min | Max => true,
        And | Or | Xor => !dtype.is_float(),
        Shl | Shr => dtype.is_int(),
        Atan2 => dtype.is_float(),
    }
}
