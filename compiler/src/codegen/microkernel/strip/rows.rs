//! Strips row by row: each phase is a loop of vectors along the row, and a tail.

use super::{
    alternate::{AlternateLanes, AlternatePairs},
    groups,
    kept::HeldStream,
    position::{ActiveLanes, Position, StripRegisters, VectorAccess},
    reduction::Reduction,
};
use crate::{
    codegen::{
        microkernel::{
            body,
            op::{Body, Op, StreamStep, Ty, takes_long},
        },
        vector::{Builder, VectorShape, vcode::Int},
    },
    scalar::{CompareOp, UnaryOp},
};

/// Longest body of a reduction, by [`Body::cost`], that is unrolled.
const MAX_UNROLLED_COST: usize = 16;

/// Longest body, in instructions, that is unrolled around an elementary function: it leaves registers for the function.
const MAX_CHAIN_INSTS: usize = 24;

/// The fewest lanes of vectors whose masks select every second element.
const MIN_MASKED_LANES: usize = 8;

/// Vectors of partial results of a short reduction.
pub(super) const ACCUMULATORS: usize = 4;

/// Vectors whose instructions are interleaved to hide latency where the body is one long chain of dependent
/// instructions, as elementary functions are: as many as registers allow.
fn unroll_factor(shape: VectorShape) -> usize {
    match shape {
        // Unrolled loops are long, and conditional branches of small machines don't reach far.
        VectorShape { lanes: ..8, .. } => 1,
        VectorShape { registers: 32.., .. } => 4,
        VectorShape { .. } => 2,
    }
}

/// Whether the body is a long chain of dependent instructions: an elementary function and little else. The two halves
/// of functions that are computed in double precision overlap anyway.
fn is_chain(body: &Body) -> bool {
    use UnaryOp::{Erf, Exp, Expm1, Log, Log1p, Tanh};
    let is_function = |op: &Op| matches!(op, Op::Unary(Exp | Expm1 | Log | Log1p | Tanh | Erf, _));
    let is_long = |(op, ty): &(Op, Ty)| ty.is_wide() || matches!(op, Op::Unary(op, _) if takes_long(*op));
    body.insts.len() <= MAX_CHAIN_INSTS
        && !body.may_fail()
        && !body.insts.iter().any(is_long)
        && body.insts.iter().any(|(op, _)| is_function(op))
}

/// Emits a loop phase. Registers hold the streams in `held`.
pub(super) fn emit_loop(
    strip: &StripRegisters<'_>,
    b: &mut Builder,
    extent: u32,
    body: &Body,
    held: &[HeldStream],
) {
    let is_contiguous = strip.strided_pointers(body).is_empty();
    let has_reductions = body.insts.iter().any(|(op, _)| matches!(op, Op::Reduce(..)));
    let interleaved = if is_contiguous && is_chain(body) { unroll_factor(b.shape()) } else { 1 };
    let partials = match body.cost() {
        _ if interleaved > 1 => interleaved,
        cost if cost <= MAX_UNROLLED_COST && has_reductions => ACCUMULATORS,
        _ => 1,
    };
    let reductions = start_reductions(b, body, partials);

    let count = b.arg(strip.key.extent(extent));
    let position = strip.row_start(b, body);
    let lanes = b.lanes();
    let pairs = AlternatePairs::of(strip.key, body);
    let access = VectorAccess {
        reductions: &reductions,
        held,
        pairs: Some(&pairs),
        ..VectorAccess::at(strip, &position, ActiveLanes::All)
    };

    // Several vectors whose instructions alternate.
    for vectors in [4, 2].into_iter().filter(|vectors| *vectors <= interleaved) {
        b.repeat(count, (lanes * vectors) as i32, |b| {
            b.interleave(vectors, &mut |b, vector| {
                body::emit(body, b, &mut VectorAccess { partial: vector, offset: vector * lanes, ..access });
            });
            position.advance(b, vectors * lanes);
        });
    }

    // Vectors one after another, in blocks that take turns with the partial results.
    let blocks: &[usize] = if partials > interleaved { &[ACCUMULATORS, 1] } else { &[1] };
    for &block in blocks {
        b.repeat(count, (lanes * block) as i32, |b| {
            for partial in 0..block {
                body::emit(body, b, &mut VectorAccess { partial, ..access });
                position.advance(b, lanes);
            }
        });
    }

    emit_tail(b, body, count, &position, access);
    for reduction in &reductions {
        reduction.finish(b, strip.variables[reduction.var as usize]);
    }
}

pub(super) fn start_reductions(b: &mut Builder, body: &Body, partials: usize) -> Vec<Reduction> {
    let mut reductions = Vec::new();
    for (op, _) in &body.insts {
        if let Op::Reduce(op, x, var) = *op {
            reductions.push(Reduction::start(b, op, body.ty(x), var, partials));
        }
    }
    reductions
}

/// Whether the body loads every second element of a stream.
fn reads_alternate(strip: &StripRegisters<'_>, body: &Body) -> bool {
    let is_alternate =
        |op: &Op| matches!(op, Op::Load(stream) if strip.key.step(*stream) == StreamStep::Alternate);
    body.insts.iter().any(|(op, _)| is_alternate(op))
}

/// Whether masks select the last elements of all streams: those that the body loads may have a distance of two
/// elements. Short vectors have short tails, and not every machine of theirs has masks for loads.
fn has_masks(strip: &StripRegisters<'_>, b: &Builder, body: &Body) -> bool {
    let is_masked = |op: &Op| match op {
        Op::Load(stream) => match strip.key.step(*stream) {
            StreamStep::Alternate => b.lanes() >= MIN_MASKED_LANES,
            step => !step.is_strided(),
        },
        Op::Store(stream, x) => match strip.key.step(*stream) {
            StreamStep::Group(streams) => groups::are_bytes_stored_together(streams, body.ty(*x), b.shape()),
            step => !step.is_strided(),
        },
        _ => true,
    };
    body.insts.iter().all(|(op, _)| is_masked(op))
}

/// The last elements, fewer than a vector: under a mask, or one by one where a stream is strided.
fn emit_tail(b: &mut Builder, body: &Body, count: Int, position: &Position, access: VectorAccess<'_>) {
    let has_masks = has_masks(access.strip, b, body);
    b.when(CompareOp::Gt, count, 0, |b| {
        if has_masks {
            let mask = b.mask_first(count);
            let alternate = reads_alternate(access.strip, body).then(|| AlternateLanes::first(b, count));
            let lanes = ActiveLanes::First(count, mask);
            body::emit(body, b, &mut VectorAccess { lanes, alternate, ..access });
        } else {
            let one = b.imm(1);
            let mask = b.mask_first(one);
            b.repeat(count, 1, |b| {
                body::emit(body, b, &mut VectorAccess { lanes: ActiveLanes::One(mask), ..access });
                position.advance(b, 1);
            });
        }
    });
}
