//! The loops over blocks of rows, parts of the reduction, tiles of columns and outer row axes.

use super::{
    calls::{call_tiles, for_joint_rows, packed_offset},
    columns::ColumnTiles,
    line_batch, paired_tiles,
    position::{Position, ReductionSlice},
    prefetch::Turn,
    rows::RowTiles,
};
use crate::{
    codegen::{
        body::{
            body_builder::linear_parts,
            split::{self, IterationRange, split_axis},
            tiles::plan::TilePlan,
        },
        function::FuncCtx,
        vector::vcode::TILE_ROW_BYTES,
    },
    error::Result,
};
use cranelift_codegen::ir::{InstBuilder, Value};
use symshape::Dim;

/// A rhs of at most this many elements stays in the second-level cache whatever else is touched.
const SMALL_RHS_ELEMS: i64 = 1 << 16;

/// Smallest number of rows of a block where the rhs is larger than the second-level cache.
const MIN_BLOCK_ROWS: i64 = 144;

/// Rows of a small block: enough that all but one of a few tiles are finished while the next one is multiplied.
const SMALL_BLOCK_ROWS: i64 = 128;

/// Emits the loop over blocks of rows. A block consists of tiles where there is one row axis, else of joint iterations
/// of the outer ones: both are called steps here.
pub(super) fn blocks(
    f: &mut FuncCtx,
    plan: &TilePlan,
    rows: &RowTiles,
    tiles_of_parts: &[ColumnTiles],
    columns: IterationRange,
    range: Option<IterationRange>,
) -> Result<()> {
    let total = if plan.has_one_row_axis() { rows.tiles } else { f.dim(&plan.contraction.outer_rows())? };
    let IterationRange { begin, end } = match range {
        None => IterationRange { begin: f.int(0), end: total },
        Some(range) => split::range(f, range, split_axis::ROWS, 1, total)?,
    };
    let total = f.ins().isub(end, begin);

    let steps = match &plan.lhs.packed {
        Some(packed) => packed.block_steps(f, plan, rows)?,
        None => block_steps(f, plan, rows, tiles_of_parts.len() > 1)?,
    };
    let steps = if plan.small_blocks { small_block_steps(f, plan, rows, steps)? } else { steps };
    let padded = f.ins().iadd(total, steps);
    let padded = f.ins().iadd_imm_s(padded, -1);
    let n_blocks = f.ins().udiv(padded, steps);

    let zero = f.int(0);
    f.for_range(zero, n_blocks, |f, block| {
        // Blocks differ by at most one step.
        let next = f.ins().iadd_imm_s(block, 1);

        let [first, end] = [block, next].map(|block| {
            let before = f.ins().imul(block, total);
            let before = f.ins().udiv(before, n_blocks);
            f.ins().iadd(before, begin)
        });

        let steps = IterationRange { begin: first, end };
        let packed = match &plan.lhs.packed {
            Some(packed) => packed.pack_block(f, plan, rows, steps)?,
            None => None,
        };

        reduction_slices(f, plan, tiles_of_parts, &mut |f, tiles, slice| {
            let zero = f.int(0);
            f.for_range(zero, tiles.n_tiles, |f, tile| {
                let at = Position::emit(f, plan, tiles, tile, columns, slice);
                column_tile(f, plan, rows, &at, steps, packed)
            })
        })
    })
}

/// Emits the calls for one tile of columns and the steps of a block. `packed` is the offset of packed rows where there
/// is one row axis.
fn column_tile(
    f: &mut FuncCtx,
    plan: &TilePlan,
    rows: &RowTiles,
    at: &Position,
    steps: IterationRange,
    packed: Option<Value>,
) -> Result<()> {
    if let Some(source) = &plan.rhs.source {
        source.write_panels(f, plan, at)?;
    }
    if plan.has_one_row_axis() {
        return call_tiles(f, plan, rows, at, Some(steps), packed, None);
    }

    let IterationRange { begin: first, end } = steps;
    if let Some(line_batch) = &plan.line_batch {
        return line_batch::emit(f, plan, line_batch, rows, at, steps);
    }
    if plan.pairs_rows {
        return paired_tiles::emit(f, plan, rows, at, steps);
    }
    for_joint_rows(f, plan, IterationRange { begin: first, end }, &mut |f, joint| {
        let offset = packed_offset(f, plan, first, joint)?;
        let iteration = f.ins().isub(joint, first);
        let iterations = f.ins().isub(end, first);
        call_tiles(f, plan, rows, at, None, offset, Some(Turn { iteration, iterations }))
    })
}

/// Steps of a block that has few rows, and at most `max`: all columns of it are computed before the next rows, so the
/// result and the epilogue's operands are touched row by row, in the order of memory.
fn small_block_steps(f: &mut FuncCtx, plan: &TilePlan, rows: &RowTiles, max: Value) -> Result<Value> {
    let step_rows = step_rows(f, plan, rows)?;
    let block_rows = f.int(SMALL_BLOCK_ROWS);
    let one = f.int(1);
    let step_rows = f.ins().smax(step_rows, one);
    let steps = f.ins().udiv(block_rows, step_rows);
    let steps = f.ins().smax(steps, one);
    Ok(f.ins().smin(steps, max))
}

/// Rows of a step.
fn step_rows(f: &mut FuncCtx, plan: &TilePlan, rows: &RowTiles) -> Result<Value> {
    if plan.has_one_row_axis() { Ok(rows.rows) } else { f.dim(plan.last_rows()) }
}

/// Steps of a block whose lhs is read in place.
fn block_steps(f: &mut FuncCtx, plan: &TilePlan, rows: &RowTiles, is_k_blocked: bool) -> Result<Value> {
    let bytes = step_bytes(f, plan, rows)?;
    let bytes = match &plan.k_blocking {
        Some(k_blocking) if is_k_blocked => f.ins().sdiv_imm_s(bytes, k_blocking.parts()),
        _ => bytes,
    };
    let one = f.int(1);
    let bytes = f.ins().smax(bytes, one);
    let budget = f.int(plan.block_bytes);
    let steps = f.ins().udiv(budget, bytes);
    let min_steps = min_block_steps(f, plan, rows)?;
    Ok(f.ins().smax(steps, min_steps))
}

/// Steps of the smallest block. Where the rhs is larger than the second-level cache, a block has enough rows that their
/// multiplication takes much longer than reading the rhs once more.
fn min_block_steps(f: &mut FuncCtx, plan: &TilePlan, rows: &RowTiles) -> Result<Value> {
    let one = f.int(1);
    if !plan.has_large_rhs {
        return Ok(one);
    }
    let step_rows = step_rows(f, plan, rows)?;
    let step_rows = f.ins().smax(step_rows, one);
    let min_rows = f.int(MIN_BLOCK_ROWS);
    let steps = f.ins().udiv(min_rows, step_rows);
    Ok(f.ins().smax(steps, one))
}

/// About the bytes that one more step touches: those of the lhs, and where the rhs is small and the result wider than
/// the lhs those of the result, which then is written to in a few places at a time.
fn step_bytes(f: &mut FuncCtx, plan: &TilePlan, rows: &RowTiles) -> Result<Value> {
    let origin = &plan.lhs.stream.origin.index;
    let distance = match plan.outer_axes().last() {
        None => Some(plan.lhs.stream.row.clone()),
        Some(axis) => linear_parts(f.facts(), origin, Some(&axis.var)).map(|(step, _)| step),
    };
    let loops = plan.loops.iter().filter(|reduction| reduction.lhs_step.as_i64() != Some(0));
    // The innermost loop on tile registers counts their rows.
    let group = if plan.dot().is_amx() { (TILE_ROW_BYTES / 4) as i64 } else { 1 };
    let depth = loops.fold(Dim::from(group), |depth, reduction| depth * &reduction.extent);

    let n = &plan.contraction.n.extent;
    let is_small = (&depth * n).as_i64().is_some_and(|elems| elems <= SMALL_RHS_ELEMS)
        && n.as_i64().zip(depth.as_i64()).is_some_and(|(n, depth)| n >= 2 * depth);
    let result = if is_small { n.clone() } else { Dim::zero() };

    // Windows overlap: new bytes are those that the address moves by. Where it doesn't move, the same bytes are read
    // again.
    let lhs_bytes = depth * 4;
    let result_bytes = result * 4;
    let distance = distance.map(|distance| distance * plan.lhs.unit_bytes);
    let step = match (distance, plan.has_one_row_axis()) {
        (Some(distance), true) => distance.min(lhs_bytes) + result_bytes,
        (Some(distance), false) => distance + result_bytes * plan.last_rows(),
        (None, _) => (lhs_bytes + result_bytes) * plan.last_rows(),
    };
    let bytes = f.dim(&step)?;
    Ok(if plan.has_one_row_axis() { f.ins().imul(bytes, rows.rows) } else { bytes })
}

/// Emits the code for a part of the reduction, given its column tiles.
type EmitPart<'e> = dyn FnMut(&mut FuncCtx, &ColumnTiles, Option<ReductionSlice>) -> Result<()> + 'e;

/// Emits each part of the reduction: all of it, or the first, a loop over the middle ones, and the last.
fn reduction_slices(
    f: &mut FuncCtx,
    plan: &TilePlan,
    tiles_of_parts: &[ColumnTiles],
    emit: &mut EmitPart<'_>,
) -> Result<()> {
    let (Some(k_blocking), [first, middle @ .., last]) = (&plan.k_blocking, tiles_of_parts) else {
        return tiles_of_parts.iter().try_for_each(|tiles| emit(f, tiles, None));
    };

    let zero = f.int(0);
    let count = f.int(k_blocking.step);
    let last_part = f.int(k_blocking.parts() - 1);
    emit(f, first, Some(ReductionSlice { first: zero, count }))?;
    for tiles in middle {
        let one = f.int(1);
        f.for_range(one, last_part, |f, part| {
            let first = f.ins().imul_imm_s(part, k_blocking.step);
            emit(f, tiles, Some(ReductionSlice { first, count }))
        })?;
    }
    let before = k_blocking.step * (k_blocking.parts() - 1);
    let first = f.int(before);
    let count = f.int(k_blocking.extent - before);
    emit(f, last, Some(ReductionSlice { first, count }))
}
