//! Contractions without a matrix multiplication: strips along a batch axis, or along the rows of planes.

use super::{
    large_windows,
    nest::ContractionNest,
    packing::{constant_buffer, offsets},
    terms::{add_terms, points_of, take_addend},
};
use crate::{
    Error, Result,
    graph::Value,
    kernel::{Access, Axis, Buffer, BufferId, Inst, InstSeq, Kernel, MemorySpace, Stmt},
    lower::{
        buffers,
        lowering::{KernelScope, Lowering, node_name},
        map,
        nest::{AxisRole, append, loops, renamed, with_exprs},
        windows::MAX_WINDOW,
    },
    scalar::Scalar,
    tensor::{Bytes, Tensor},
};
use symshape::Dim;

/// Emits strips along a batch axis, along which both operands are streamed, or along rows that have the same weights.
/// The strips are along `whole` if it is an axis, which is the innermost one of the result; no axis is split then.
pub(super) fn lower(
    lowering: &mut Lowering,
    scope: &mut KernelScope,
    sum: Value,
    mut contraction: ContractionNest,
    whole: Option<&Axis>,
) -> Result<()> {
    let buffers =
        [streamed(lowering, scope, &mut contraction, 0)?, streamed(lowering, scope, &mut contraction, 1)?];
    let reduced = contraction.nest.axes(AxisRole::Reduced);
    if let Some(parts) = large_windows::parts(&contraction, &reduced) {
        return large_windows::lower(lowering, scope, buffers, sum, contraction, &parts);
    }
    let contraction = &contraction;
    let (outer, inner) = innermost_terms(&reduced);
    if !outer.is_empty() {
        return through_memory(lowering, scope, buffers, sum, contraction, [outer, inner]);
    }
    let code = in_registers(scope, contraction, buffers, inner);
    let mut kept = contraction.nest.axes(AxisRole::Kept);
    let body = match whole {
        None => map::pass(scope, kept, &code),
        Some(axis) => {
            kept.retain(|other| other.var != axis.var);
            loops(&kept, true, vec![Stmt::Strip { axis: axis.clone(), code }])
        }
    };
    lowering.push(contraction.root, "products", Kernel::default(), body);
    Ok(())
}

/// The reduced axes without the innermost ones, which have at most [`MAX_WINDOW`] terms together, and those.
fn innermost_terms(reduced: &[Axis]) -> (&[Axis], &[Axis]) {
    let mut terms = 1;
    let last_outer = reduced.iter().rposition(|axis| {
        let extent = axis.extent.as_i64().filter(|extent| (1..=MAX_WINDOW / terms).contains(extent));
        terms *= extent.unwrap_or(1);
        extent.is_none()
    });
    reduced.split_at(last_outer.map_or(0, |last| last + 1))
}

/// The memory of an operand as strips read it. A constant is packed so that it is contiguous along the strips.
fn streamed(
    lowering: &mut Lowering,
    scope: &KernelScope,
    contraction: &mut ContractionNest,
    side: usize,
) -> Result<BufferId> {
    let Some(weight) = contraction.operands[side].constant.clone() else {
        return Ok(buffers::stored(lowering, contraction.operands[side].value)?.buffer);
    };
    let Some((tensor, address)) = along_strips(scope, contraction, side) else {
        return Ok(buffers::stored(lowering, contraction.operands[side].value)?.buffer);
    };
    contraction.nest.exprs[side] = address;
    let name = format!("{} (packed)", node_name(lowering.graph, contraction.root));
    Ok(constant_buffer(lowering, name, tensor, (&weight, "strips")))
}

/// Packs a constant operand with the reduction axes outside and the result's axes inside, and returns the address of
/// its elements.
fn along_strips(scope: &KernelScope, contraction: &ContractionNest, side: usize) -> Option<(Tensor, Dim)> {
    let tensor = contraction.operands[side].constant.as_ref()?;
    let old = &contraction.nest.exprs[side];
    let axes = [contraction.nest.axes(AxisRole::Reduced), contraction.nest.axes(AxisRole::Kept)].concat();

    let axes: Vec<Axis> = axes.into_iter().filter(|axis| old.contains(&axis.var)).collect();
    let steps: Option<Vec<(i64, i64)>> = axes
        .iter()
        .map(|axis| Some((scope.facts.linear_in(old, &axis.var)?.0.as_i64()?, axis.extent.as_i64()?)))
        .collect();

    let origin = old.eval_i64(&|_| Some(0)).ok()?;
    let size = tensor.dtype().size_bytes();

    let mut bytes = Vec::new();
    for offset in offsets(&steps?) {
        let from = usize::try_from(origin + offset).ok()? * size;
        bytes.extend_from_slice(tensor.bytes().get(from..from + size)?);
    }

    let tensor = Tensor::new(tensor.dtype(), vec![bytes.len() / size], Bytes::Owned(bytes.into()))?;
    let address = axes.iter().fold(Dim::zero(), |at, axis| at * &axis.extent + Dim::from(&axis.var));
    Some((tensor, scope.facts.simplify(&address)))
}

/// Accumulates in registers, then runs the epilogue.
fn in_registers(
    scope: &KernelScope,
    contraction: &ContractionNest,
    buffers: [BufferId; 2],
    reduced: &[Axis],
) -> InstSeq {
    let mut code = InstSeq::default();
    let mut epilogue = with_exprs(&contraction.epilogue, &contraction.nest.exprs[2..]);
    let addend = take_addend(&mut epilogue).map(|addend| code.push(addend));
    let terms = (reduced, &points_of(reduced)[..]);
    let total = add_terms(scope, contraction, buffers, &contraction.nest.exprs, terms, &mut code, addend);
    let total = total.unwrap_or_else(|| code.push(Inst::Const(Scalar::from_i64(contraction.dtype, 0))));
    append(&mut code, &epilogue, total);
    code
}

/// Accumulates in scratch memory, with one strip for each point of the outer axes of the reduction.
fn through_memory(
    lowering: &mut Lowering,
    scope: &mut KernelScope,
    buffers: [BufferId; 2],
    sum: Value,
    contraction: &ContractionNest,
    [outer, inner_terms]: [&[Axis]; 2],
) -> Result<()> {
    let mut kept = contraction.nest.axes(AxisRole::Kept);
    let inner = kept.pop().ok_or_else(|| Error::internal("the batch has no axis"))?;

    let elems = lowering.upper_bound_elems(&scope.facts.simplify(&inner.extent))?;
    let buffer = lowering.program.buffers.push(Buffer {
        name: format!("{} (sums)", node_name(lowering.graph, sum)),
        dtype: contraction.dtype,
        elems,
        space: MemorySpace::Scratch,
    });
    let accumulator = Access { buffer, index: Dim::from(&inner.var) };

    let mut first = InstSeq::default();
    let zero = first.push(Inst::Const(Scalar::from_i64(contraction.dtype, 0)));
    first.push(Inst::Store(accumulator.clone(), zero));

    let mut update = InstSeq::default();
    let old = update.push(Inst::Load(accumulator.clone()));
    let terms = (inner_terms, &points_of(inner_terms)[..]);
    let new = add_terms(scope, contraction, buffers, &contraction.nest.exprs, terms, &mut update, Some(old))
        .unwrap_or(old);
    update.push(Inst::Store(accumulator.clone(), new));

    let mut last = InstSeq::default();
    let total = last.push(Inst::Load(accumulator));
    append(&mut last, &with_exprs(&contraction.epilogue, &contraction.nest.exprs[2..]), total);

    let strip = |code: InstSeq| Stmt::Strip { axis: inner.clone(), code };
    let mut body = vec![renamed(scope, &strip(first))];
    body.extend(loops(outer, false, vec![strip(update)]));
    body.push(renamed(scope, &strip(last)));
    lowering.push(contraction.root, "products", Kernel::default(), loops(&kept, true, body));
    Ok(())
}
