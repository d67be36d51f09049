//! Reductions: along memory, across it, or unrolled.
//!
//! The innermost axis of the tensor that is read decides between the three. If it is reduced, each result is a strip.
//! If it is kept, strips run along it and combine into memory. If few elements are combined (pooling windows), they
//! are combined in registers instead, even if windows slide along the innermost axis. Strips along the results are also
//! chosen where the elements of a result are few and adjacent.
//!
//! The order in which a result is combined depends only on the extents of the reduced axes. Products of floats keep
//! the order and precision of their definition, because partial products in another order may overflow or vanish where
//! those of the definition don't.

use super::{
    inline::Inliner,
    lowering::{KernelScope, Lowering, node_name},
    map,
    nest::{AxisRole, Nest, axes_of, exprs_of, load_addresses, loops, renamed, step, strip, with_exprs},
    windows::MAX_WINDOW,
};
use crate::{
    Error, Result,
    graph::{Op, Value},
    kernel::{Access, Axis, Buffer, BufferId, Inst, InstSeq, Kernel, Local, MemorySpace, Stmt},
    scalar::{ReduceOp, Reg, Scalar},
    tensor::points,
};
use symshape::Dim;
use symshape_runtime::DType;

/// Strips along memory that combine more elements into each result are long enough.
const MAX_SHORT: i64 = 7;

struct Reduction {
    value: Value,
    operand: Value,
    op: ReduceOp,
    /// The type in which values are combined.
    acc: DType,
    dtype: DType,
}

impl Reduction {
    /// Whether elements must be combined one after another in row-major order.
    fn keeps_order(&self) -> bool {
        self.op == ReduceOp::Prod && self.dtype.is_float()
    }
}

/// The type in which elements are combined.
pub(super) fn accumulator(op: ReduceOp, dtype: DType) -> DType {
    match (op, dtype) {
        (ReduceOp::Prod, _) if dtype.is_float() => DType::F64,
        (_, DType::F16 | DType::BF16) => DType::F32,
        _ => dtype,
    }
}

/// The kernel of a reduction.
pub(super) fn lower(lowering: &mut Lowering, value: Value) -> Result<()> {
    let graph = lowering.graph;
    let Op::Reduce { op, axes } = graph.op(value) else {
        return Err(Error::internal("not a reduction"));
    };
    let dtype = graph.dtype(value);
    let acc = accumulator(*op, dtype);
    let reduction = Reduction { value, operand: graph.operands(value)[0], op: *op, acc, dtype };
    let storage = lowering.storage[&value].clone();

    let mut scope = lowering.scope();
    let (kept, index) = axes_of(&mut scope, graph.shape(value));
    let gone: Vec<Dim> = axes.iter().map(|axis| graph.shape(reduction.operand)[*axis].clone()).collect();
    let (reduced, at) = axes_of(&mut scope, &gone);
    let full = interleave(graph.rank(reduction.operand), axes, &index, &at);

    let mut inliner = Inliner::new(lowering, &mut scope);
    let reg = inliner.load(reduction.operand, &full)?;
    let mut code = inliner.code;
    let reg = cast(&mut code, reg, dtype, acc);
    let target = storage.at(&index);

    let mut exprs = exprs_of(&code);
    exprs.push(target.index.clone());
    let mut nest = Nest::new(kept.clone(), reduced.clone(), exprs);
    nest.split(&mut scope, None);
    let main = main_address(&nest, &scope, &code);
    order(&mut nest, &scope, &reduction, main.as_ref());
    let is_short = is_short_or_slides(&nest, &scope, main.as_ref());
    let along = innermost_is_reduced(&nest, &scope, main.as_ref()) && !is_short;

    let count = gone.iter().try_fold(1i64, |count, dim| count.checked_mul(dim.as_i64()?));
    let body = match (along, count) {
        (false, Some(count)) if count <= MAX_WINDOW => {
            let code = unrolled(lowering, &mut scope, &reduction, axes, &gone, &index)?;
            map::pass(&mut scope, kept, &code)
        }
        _ => {
            nest.merge(&mut scope);
            let target = Access { buffer: storage.buffer, index: nest.exprs.pop().unwrap_or_else(Dim::zero) };
            let code = with_exprs(&code, &nest.exprs);

            let mut kernel = Kernel::default();
            let body = if along && reduction.keeps_order() {
                in_order(&mut kernel, &reduction, &nest, code, reg, &target)
            } else if along {
                along_memory(&mut kernel, &scope, &reduction, &nest, code, reg, &target)
            } else {
                across_memory(lowering, &mut scope, &reduction, &nest, code, reg, &target)?
            };

            lowering.push(value, "reduce", kernel, body);
            return Ok(());
        }
    };
    lowering.push(value, "reduce", Kernel::default(), body);
    Ok(())
}

/// The operand's index as a function of the kept and the reduced axes.
pub(super) fn interleave(rank: usize, axes: &[usize], kept: &[Dim], reduced: &[Dim]) -> Vec<Dim> {
    let mut kept = kept.iter();
    let mut reduced = reduced.iter();
    let next = |k| if axes.contains(&k) { reduced.next() } else { kept.next() };
    (0..rank).map(next).map(|at| at.cloned().unwrap_or_else(Dim::zero)).collect()
}

/// The value of a register of type `from` as one of type `to`.
pub(super) fn cast(code: &mut InstSeq, reg: Reg, from: DType, to: DType) -> Reg {
    if from == to { reg } else { code.push(Inst::Cast(to, reg)) }
}

/// The address in `code` that moves along the most axes, which belongs to the reduced tensor.
fn main_address(nest: &Nest, scope: &KernelScope, code: &InstSeq) -> Option<Dim> {
    let with = with_exprs(code, &nest.exprs[..nest.exprs.len() - 1]);
    let axes = [AxisRole::Kept, AxisRole::Reduced].map(|role| nest.axes(role)).concat();
    let moves = |address: &Dim| axes.iter().filter(|axis| step(&scope.facts, address, axis) != 0).count();
    load_addresses(&with, &axes).into_iter().max_by_key(moves)
}

fn order(nest: &mut Nest, scope: &KernelScope, reduction: &Reduction, main: Option<&Dim>) {
    if let Some(target) = nest.exprs.last().cloned() {
        nest.order_by(&scope.facts, AxisRole::Kept, &target);
    }
    if let Some(main) = main.filter(|_| !reduction.keeps_order()) {
        nest.order_by(&scope.facts, AxisRole::Reduced, main);
    }
}

fn innermost_is_reduced(nest: &Nest, scope: &KernelScope, main: Option<&Dim>) -> bool {
    match (innermost(nest, AxisRole::Kept, scope, main), innermost(nest, AxisRole::Reduced, scope, main)) {
        (Some((kept, _)), Some((reduced, _))) => reduced <= kept,
        (kept, _) => kept.is_none(),
    }
}

/// Whether results that are adjacent in memory share elements, because their windows overlap, or have few each. Strips
/// along the results are longer then than those along the windows.
fn is_short_or_slides(nest: &Nest, scope: &KernelScope, main: Option<&Dim>) -> bool {
    match (innermost(nest, AxisRole::Kept, scope, main), innermost(nest, AxisRole::Reduced, scope, main)) {
        (Some((kept, _)), Some((reduced, window))) => window.extent.as_i64().is_some_and(|extent| {
            let span = reduced.checked_mul(extent);
            span.is_some_and(|span| kept < span || kept == span && extent <= MAX_SHORT)
        }),
        _ => false,
    }
}

/// The axis along which `main` has the smallest step, and that step.
fn innermost(nest: &Nest, role: AxisRole, scope: &KernelScope, main: Option<&Dim>) -> Option<(i64, Axis)> {
    let main = main?;
    let steps = nest.axes(role).into_iter().map(|axis| (step(&scope.facts, main, &axis), axis));
    steps.filter(|(step, _)| *step != 0).min_by_key(|(step, _)| *step)
}

/// Code that combines all elements of one result and stores it.
fn unrolled(
    lowering: &mut Lowering,
    scope: &mut KernelScope,
    reduction: &Reduction,
    axes: &[usize],
    gone: &[Dim],
    index: &[Dim],
) -> Result<InstSeq> {
    let rank = lowering.graph.rank(reduction.operand);
    let extents: Vec<i64> = gone.iter().map(|dim| dim.as_i64().unwrap_or(0)).collect();
    let mut inliner = Inliner::new(lowering, scope);
    let mut total = None;
    for point in points(&extents) {
        let at: Vec<Dim> = point.into_iter().map(Dim::from).collect();
        let reg = inliner.load(reduction.operand, &interleave(rank, axes, index, &at))?;
        let reg = cast(&mut inliner.code, reg, reduction.dtype, reduction.acc);
        total = Some(match total {
            None => reg,
            Some(total) => inliner.code.push(Inst::Binary(reduction.op.binary(), total, reg)),
        });
    }

    let total = match total {
        Some(total) => total,
        None => inliner.code.push(Inst::Const(reduction.op.neutral(reduction.acc))),
    };
    let total = cast(&mut inliner.code, total, reduction.acc, reduction.dtype);
    inliner.store_everywhere(reduction.value, index, total);
    Ok(inliner.code)
}

/// Emits one strip for each result, or several that are combined one after another.
fn along_memory(
    kernel: &mut Kernel,
    scope: &KernelScope,
    reduction: &Reduction,
    nest: &Nest,
    mut code: InstSeq,
    reg: Reg,
    target: &Access,
) -> Vec<Stmt> {
    let mut reduced = nest.axes(AxisRole::Reduced);
    let part = kernel.locals.push(reduction.acc);
    let Some(inner) = reduced.pop() else {
        let reg = cast(&mut code, reg, reduction.acc, reduction.dtype);
        code.push(Inst::Store(target.clone(), reg));
        return loops(&nest.axes(AxisRole::Kept), true, vec![Stmt::Block(code)]);
    };

    code.push(Inst::Reduce(reduction.op, reg, part));
    let mut body = strip(scope, inner, code);

    let result = if reduced.is_empty() {
        part
    } else {
        let total = kernel.locals.push(reduction.acc);
        body.push(combine(reduction.op, total, part));
        body = loops(&reduced, false, body);
        body.insert(0, set(total, reduction.op.neutral(reduction.acc)));
        total
    };

    body.push(finish(reduction, result, target));
    loops(&nest.axes(AxisRole::Kept), true, body)
}

/// Emits a scalar loop for each result, one element after another.
fn in_order(
    kernel: &mut Kernel,
    reduction: &Reduction,
    nest: &Nest,
    mut code: InstSeq,
    reg: Reg,
    target: &Access,
) -> Vec<Stmt> {
    let total = kernel.locals.push(reduction.acc);
    let old = code.push(Inst::Get(total));
    let new = code.push(Inst::Binary(reduction.op.binary(), old, reg));
    code.push(Inst::Set(total, new));
    let mut body = vec![set(total, reduction.op.neutral(reduction.acc))];
    body.extend(loops(&nest.axes(AxisRole::Reduced), false, vec![Stmt::Block(code)]));
    body.push(finish(reduction, total, target));
    loops(&nest.axes(AxisRole::Kept), true, body)
}

/// Stores the combined value.
fn finish(reduction: &Reduction, total: Local, target: &Access) -> Stmt {
    let mut code = InstSeq::default();
    let reg = code.push(Inst::Get(total));
    let reg = cast(&mut code, reg, reduction.acc, reduction.dtype);
    code.push(Inst::Store(target.clone(), reg));
    Stmt::Block(code)
}

/// Emits `local = value`.
pub(super) fn set(local: Local, value: Scalar) -> Stmt {
    let mut code = InstSeq::default();
    let reg = code.push(Inst::Const(value));
    code.push(Inst::Set(local, reg));
    Stmt::Block(code)
}

/// Emits `total = total op part`.
fn combine(op: ReduceOp, total: Local, part: Local) -> Stmt {
    let mut code = InstSeq::default();
    let left = code.push(Inst::Get(total));
    let right = code.push(Inst::Get(part));
    let both = code.push(Inst::Binary(op.binary(), left, right));
    code.push(Inst::Set(total, both));
    Stmt::Block(code)
}

/// Emits strips along the innermost kept axis that combine into memory: the result's buffer, or wider scratch memory.
fn across_memory(
    lowering: &mut Lowering,
    scope: &mut KernelScope,
    reduction: &Reduction,
    nest: &Nest,
    mut code: InstSeq,
    reg: Reg,
    target: &Access,
) -> Result<Vec<Stmt>> {
    let mut kept = nest.axes(AxisRole::Kept);
    let inner = kept.pop().ok_or_else(|| Error::internal("the reduction has no axis"))?;
    let is_narrow = reduction.acc != reduction.dtype;
    let acc = if is_narrow {
        Access { buffer: scratch(lowering, reduction, &inner.extent)?, index: Dim::from(&inner.var) }
    } else {
        target.clone()
    };

    let mut first = InstSeq::default();
    let neutral = first.push(Inst::Const(reduction.op.neutral(reduction.acc)));
    first.push(Inst::Store(acc.clone(), neutral));
    let old = code.push(Inst::Load(acc.clone()));
    let new = code.push(Inst::Binary(reduction.op.binary(), old, reg));
    code.push(Inst::Store(acc.clone(), new));

    let first = Stmt::Strip { axis: inner.clone(), code: first };
    let mut body = vec![renamed(scope, &first)];
    let round = strip(scope, inner.clone(), code);
    body.extend(loops(&nest.axes(AxisRole::Reduced), false, round));
    if is_narrow {
        let mut last = InstSeq::default();
        let wide = last.push(Inst::Load(acc));
        let reg = last.push(Inst::Cast(reduction.dtype, wide));
        last.push(Inst::Store(target.clone(), reg));
        body.push(renamed(scope, &Stmt::Strip { axis: inner, code: last }));
    }
    Ok(loops(&kept, true, body))
}

fn scratch(lowering: &mut Lowering, reduction: &Reduction, elems: &Dim) -> Result<BufferId> {
    let name = node_name(lowering.graph, reduction.value);
    Ok(lowering.program.buffers.push(Buffer {
        name: format!("{name} (sums)"),
        dtype: reduction.acc,
        elems: lowering.upper_bound_elems(elems)?,
        space: MemorySpace::Scratch,
    }))
}
