//! Calls of tile microkernels, and their argument blocks.

use super::{
    position::{Position, ReductionSlice},
    prefetch::{PrefetchSchedule, Turn},
    rows::RowTiles,
};
use crate::{
    codegen::{
        body::{
            args::ArgBlock,
            split::IterationRange,
            tiles::plan::{PackedLhs, Packing, TilePlan, ZeroTaps},
        },
        function::FuncCtx,
        microkernel::contraction::{Rhs, TileKey},
    },
    error::{Error, Result},
    kernel::MemorySpace,
};
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC};

/// An argument block, and the key whose slots it has.
pub(super) struct TileArgs {
    pub(super) key: TileKey,
    pub(super) args: ArgBlock,
}

/// Joint iterations `first..end` of the outer row axes: `emit` emits the body, given the number of the iteration. The
/// innermost axis varies fastest.
pub(super) fn for_joint_rows(
    f: &mut FuncCtx,
    plan: &TilePlan,
    IterationRange { begin: first, end }: IterationRange,
    emit: &mut dyn FnMut(&mut FuncCtx, Value) -> Result<()>,
) -> Result<()> {
    let outer = plan.outer_axes();
    if let [axis] = outer {
        return f.for_axis_range(axis, first, end, |f| {
            let (iteration, _) = f.symbol(&axis.var)?;
            emit(f, iteration)
        });
    }

    let extents: Vec<Value> = outer.iter().map(|axis| f.dim(&axis.extent)).collect::<Result<_>>()?;
    f.for_range(first, end, |f, joint| {
        let mut rest = joint;
        for (axis, extent) in outer.iter().zip(extents).skip(1).rev() {
            let around = f.ins().udiv(rest, extent);
            let skipped = f.ins().imul(around, extent);
            let inside = f.ins().isub(rest, skipped);
            f.facts_mut().declare_index(&axis.var, &axis.extent);
            f.bind(axis.var.clone(), inside);
            rest = around;
        }

        f.facts_mut().declare_index(&outer[0].var, &outer[0].extent);
        f.bind(outer[0].var.clone(), rest);
        emit(f, joint)
    })
}

/// Bytes from the beginning of the pack buffer to the packed rows of joint iteration `iteration`, in a block that
/// begins with iteration `first`; `None` where the lhs is not packed.
pub(super) fn packed_offset(
    f: &mut FuncCtx,
    plan: &TilePlan,
    first: Value,
    iteration: Value,
) -> Result<Option<Value>> {
    let Some(packed) = &plan.lhs.packed else { return Ok(None) };
    let offset = match packed {
        PackedLhs::Rows(packed) => {
            let count = f.ins().isub(iteration, first);
            packed.axis_offset(f, plan.last_rows(), count)
        }
        PackedLhs::Pixels(packed) => packed.offset(f, plan.contraction, first, iteration),
    };
    offset.map(Some)
}

/// Emits the arguments that all row tiles share at one tile of columns, at the current values of the outer row axes.
/// `lhs_offset` is added to the address of the lhs, in bytes.
pub(super) fn shared_args(
    f: &mut FuncCtx,
    plan: &TilePlan,
    at: &Position,
    lhs_offset: Option<Value>,
) -> Result<TileArgs> {
    let TileArgs { key, mut args } = plan_args(f, plan)?;
    if let (Some(lhs), Some(offset)) = (args.get(TileKey::LHS), lhs_offset) {
        args.set(TileKey::LHS, f.ins().iadd(lhs, offset));
    }

    let rhs = rhs_address(f, plan)?;
    args.set(TileKey::RHS, f.ins().iadd(rhs, at.rhs_offset));
    args.set(TileKey::COLUMNS, at.remaining);

    let slice = match &plan.zero_taps {
        Some(zero_taps) => Some(taps_in_image(f, zero_taps, at.slice)?),
        None => at.slice,
    };
    if let Some(slice) = slice {
        select_slice(f, plan, &mut args, slice)?;
    }

    for idx in 0..plan.streams.len() as u32 {
        let slot = key.stream(idx);
        advance(f, &mut args, slot, slot + 2, at.column);
    }

    Ok(TileArgs { key, args })
}

/// The arguments that don't depend on the position of a tile.
fn plan_args(f: &mut FuncCtx, plan: &TilePlan) -> Result<TileArgs> {
    let key = plan.args_key();
    let mut args = ArgBlock::new(key.slots());
    args.set(TileKey::LHS, f.address(&plan.lhs.stream.origin)?);
    args.set(TileKey::LHS_ROW, f.dim(&(&plan.lhs.stream.row * plan.lhs.unit_bytes))?);
    args.set(TileKey::LHS_K, f.dim(&(&plan.loops[0].lhs_step * 4))?);
    if plan.rhs.form.is_few_bits() {
        let block = &plan.rhs.stream.row;
        args.set(TileKey::BLOCK, f.dim(block)?);
        args.set(TileKey::BLOCKS, f.dim(&plan.contraction.depth().ceil_div(block))?);
    } else {
        args.set(TileKey::RHS_K, f.dim(&(&plan.rhs.stream.row * plan.rhs.element_bytes()))?);
    }
    if let Some(packing) = plan.packing.as_ref().filter(|packing| packing.dot.is_amx()) {
        args.set(TileKey::LHS_PLANE, f.dim(&packing.part_bytes())?);
    }
    args.set(TileKey::RHS_COLUMN, f.dim(&(&plan.rhs.stream.column * plan.rhs.element_bytes()))?);

    for (level, reduction) in plan.loops.iter().enumerate() {
        let slot = TileKey::level(level as u8);
        args.set(slot, f.dim(&reduction.extent)?);
        if level > 0 {
            args.set(slot + 1, f.dim(&(&reduction.lhs_step * plan.lhs.unit_bytes))?);
            args.set(slot + 2, f.dim(&(&reduction.rhs_step * plan.rhs.element_bytes()))?);
        }
    }
    for (idx, stream) in plan.streams.iter().enumerate() {
        args.set_stream(f, key.stream(idx as u32), stream)?;
    }
    for (idx, scalar) in plan.scalars.iter().enumerate() {
        args.set_scalar(f, key.scalar(idx as u32), scalar)?;
    }
    Ok(TileArgs { key, args })
}

/// The address of the rhs: in memory, in the pack buffer, or of a constant that is packed at compile time.
fn rhs_address(f: &mut FuncCtx, plan: &TilePlan) -> Result<Value> {
    let is_packed_constant = |packing: &&Packing| packing.packs_rhs() && !packing.is_rhs_computed();
    let Some(packing) = plan.packing.as_ref().filter(is_packed_constant) else {
        return f.address(&plan.rhs.stream.origin);
    };
    let constant = packing.packed_constant()?;
    let MemorySpace::Const(tensor) = &f.unit.program.buffers[constant.buffer].space else {
        return Err(Error::internal("packed panels are not a constant"));
    };

    let place =
        f.unit.constant_as(constant.buffer, &constant.name(), constant.form(), || constant.bytes(tensor))?;
    let address = f.constant_address(place)?;
    let offset = f.dim(&(&plan.rhs.stream.origin.index * 4))?;

    Ok(f.ins().iadd(address, offset))
}

/// The taps of a part of the reduction, or of all of it, that are in the image at the current values of the outer row
/// axes; possibly none.
fn taps_in_image(
    f: &mut FuncCtx,
    zero_taps: &ZeroTaps,
    slice: Option<ReductionSlice>,
) -> Result<ReductionSlice> {
    let ZeroTaps { taps, dilation, first, begin, end, .. } = zero_taps;
    let (slice_first, slice_end) = match slice {
        Some(slice) => (slice.first, f.ins().iadd(slice.first, slice.count)),
        None => (f.int(0), f.int(*taps)),
    };
    // The number of taps before a bound is its distance from the first tap, divided by the dilation and rounded up. It
    // may be rounded towards zero where it is negative.
    let position = f.dim(first)?;
    let [before, until] = [begin, end].map(|bound| {
        let bound = f.dim(bound)?;
        let distance = f.ins().isub(bound, position);
        let padded = f.ins().iadd_imm_s(distance, dilation - 1);
        Ok(f.ins().sdiv_imm_s(padded, *dilation))
    });
    let first = f.ins().smax(before?, slice_first);
    let first = f.ins().smin(first, slice_end);
    let end = f.ins().smax(until?, first);
    let end = f.ins().smin(end, slice_end);
    Ok(ReductionSlice { first, count: f.ins().isub(end, first) })
}

/// Restricts the arguments to a part of the reduction. The rhs is packed in panels.
fn select_slice(f: &mut FuncCtx, plan: &TilePlan, args: &mut ArgBlock, slice: ReductionSlice) -> Result<()> {
    let level = plan.loops.len() - 1;
    let slot = TileKey::level(level as u8);
    args.set(slot, slice.count);
    let lhs_step = if level == 0 { TileKey::LHS_K } else { slot + 1 };
    advance(f, args, TileKey::LHS, lhs_step, slice.first);
    // Panels that are written at run time are those of the part.
    if plan.rhs.source.is_some() {
        return Ok(());
    }
    if let (Rhs::Panels(width), Some(panel)) = (plan.rhs.form, args.get(TileKey::RHS)) {
        let row_bytes = i64::from(width) * plan.rhs.element_bytes();
        let inner_depth = plan.inner_depth();
        let inner_depth = inner_depth.ok_or_else(|| Error::internal("a part of loops of unknown depth"))?;
        let skipped = f.ins().imul_imm_s(slice.first, inner_depth * row_bytes);
        args.set(TileKey::RHS, f.ins().iadd(panel, skipped));
    }
    Ok(())
}

/// Adds `count` times the value in slot `step` to the one in `slot`.
fn advance(f: &mut FuncCtx, args: &mut ArgBlock, slot: usize, step: usize, count: Value) {
    if let (Some(value), Some(step)) = (args.get(slot), args.get(step)) {
        let offset = f.ins().imul(step, count);
        let advanced = f.ins().iadd(value, offset);
        args.set(slot, advanced);
    }
}

/// Consecutive row tiles of one height.
struct TileRun {
    first_row: Value,
    /// Rows of each tile.
    rows: Value,
    count: Value,
    /// Row tiles before them in the same call.
    others: Value,
    microkernel: Value,
}

/// Calls the microkernels for a range of row tiles, or for all, at one tile of columns.
///
/// `lhs_offset` is the offset of packed rows in bytes. `turn` says where the call is one of several with the same
/// columns.
pub(super) fn call_tiles(
    f: &mut FuncCtx,
    plan: &TilePlan,
    rows: &RowTiles,
    at: &Position,
    range: Option<IterationRange>,
    lhs_offset: Option<Value>,
    turn: Option<Turn>,
) -> Result<()> {
    let shared = shared_args(f, plan, at, lhs_offset)?;
    let zero = f.int(0);
    let IterationRange { begin: first, end } =
        range.unwrap_or(IterationRange { begin: zero, end: rows.tiles });
    let high_first = f.ins().smin(first, rows.high);
    let high_end = f.ins().smin(end, rows.high);
    let low_first = f.ins().smax(first, rows.high);
    let low_end = f.ins().smax(end, rows.high);
    let n_high = f.ins().isub(high_end, high_first);
    let n_low = f.ins().isub(low_end, low_first);
    let count = f.ins().isub(end, first);
    let prefetch = PrefetchSchedule::emit(f, plan, at, &shared.args, turn, count);

    let first_row = f.ins().imul(high_first, rows.rows);
    let [high_microkernel, low_microkernel] = at.microkernels;
    let high =
        TileRun { first_row, rows: rows.rows, count: n_high, others: zero, microkernel: high_microkernel };
    call_run(f, plan, rows, &shared, &high, &prefetch)?;

    let high_rows = f.ins().imul(rows.high, rows.rows);
    let low_rows = f.ins().iadd_imm_s(rows.rows, -1);
    let low_before = f.ins().isub(low_first, rows.high);
    let skipped = f.ins().imul(low_before, low_rows);
    let first_row = f.ins().iadd(high_rows, skipped);
    let low =
        TileRun { first_row, rows: low_rows, count: n_low, others: n_high, microkernel: low_microkernel };
    call_run(f, plan, rows, &shared, &low, &prefetch)
}

/// Calls the microkernel of a run of tiles, if there are any.
fn call_run(
    f: &mut FuncCtx,
    plan: &TilePlan,
    rows: &RowTiles,
    shared: &TileArgs,
    run: &TileRun,
    prefetch: &Option<PrefetchSchedule>,
) -> Result<()> {
    let has_tiles = f.ins().icmp_imm_s(IntCC::SignedGreaterThan, run.count, 0);
    let work = f.create_block();
    let done = f.create_block();
    f.ins().brif(has_tiles, work, &[], done, &[]);
    f.switch_to_block(work);
    f.builder.seal_block(work);

    let TileArgs { key, args } = shared;
    let mut args = args.clone();
    args.set(TileKey::TILES, run.count);
    if key.dot.is_amx() {
        args.set(TileKey::TILE_ROWS, run.rows);
        args.set(TileKey::CONFIGURED, rows.is_configured(f, run.rows));
    }
    if let Some(prefetch) = prefetch {
        prefetch.set(f, &mut args, run.others);
    }
    advance(f, &mut args, TileKey::LHS, TileKey::LHS_ROW, run.first_row);
    for idx in 0..plan.streams.len() as u32 {
        let slot = key.stream(idx);
        advance(f, &mut args, slot, slot + 1, run.first_row);
    }
    let block = args.place(f);
    f.call_microkernel(run.microkernel, block);

    f.ins().jump(done, &[]);
    f.switch_to_block(done);
    f.builder.seal_block(done);
    Ok(())
}
