//! The code of a [`TilePlan`]: loops around calls of microkernels.
//!
//! [`blocks`] emits the loops, `rows` and `columns` the division of both axes at run time, `calls` the calls with their
//! argument blocks. `line_batch` and `paired_tiles` emit other calls on tile registers. The modules named `pack_…` pack
//! operands.

mod blocks;
mod calls;
mod columns;
mod line_batch;
mod pack_lhs;
mod pack_panels;
mod pack_pixels;
mod pack_rows;
mod paired_tiles;
mod position;
mod prefetch;
mod rows;
mod unpack_panels;

use super::plan::{self, TilePlan};
use crate::{
    codegen::{
        body::split::{self, ContractionPart, IterationRange, split_axis},
        function::FuncCtx,
        microkernel::{MicrokernelKey, contraction::ReductionPart},
    },
    error::Result,
};
use columns::ColumnTiles;
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC};
use rows::RowTiles;

/// Emits a contraction, or a part of it.
pub(super) fn contraction(f: &mut FuncCtx, plan: &TilePlan, part: ContractionPart) -> Result<()> {
    let count = f.dim(plan.last_rows())?;
    let n_columns = f.dim(&plan.contraction.n.extent)?;
    let zero = f.int(0);
    // The range along the rows, and the columns.
    let (range, columns) = match part {
        ContractionPart::Whole => (None, IterationRange { begin: zero, end: n_columns }),
        ContractionPart::Columns(columns) => (None, columns),
        ContractionPart::OfFrame(range) => {
            let step = plan::column_step(f.facts(), plan.contraction);
            (Some(range), split::range(f, range, split_axis::COLUMNS, step, n_columns)?)
        }
    };

    // The number of row tiles is a quotient by the number of rows: nothing is computed where there are none.
    let has_rows = f.ins().icmp_imm_s(IntCC::SignedGreaterThan, count, 0);
    let has_columns = f.ins().icmp(IntCC::SignedLessThan, columns.begin, columns.end);
    let has_elements = f.ins().band(has_rows, has_columns);
    f.when(has_elements, |f| {
        by_row_count(f, plan, count, columns, range)?;
        if plan.dot().is_amx() { release_tiles(f) } else { Ok(()) }
    })
}

/// Emits the loops for `count` rows of the last row axis: those of the plan for more rows where there is more than one
/// tile.
fn by_row_count(
    f: &mut FuncCtx,
    plan: &TilePlan,
    count: Value,
    columns: IterationRange,
    range: Option<IterationRange>,
) -> Result<()> {
    let rows = RowTiles::emit(f, plan, count);
    let Some(for_more_rows) = &plan.for_more_rows else {
        return reduction_parts(f, plan, &rows, columns, range);
    };

    let has_more_rows = rows.has_tiles(f, plan, 2)?;
    let more_rows = |f: &mut FuncCtx| {
        let rows = RowTiles::emit(f, for_more_rows, count);
        reduction_parts(f, for_more_rows, &rows, columns, range)
    };
    f.branch(has_more_rows, more_rows, |f| reduction_parts(f, plan, &rows, columns, range))
}

/// Ends the use of tile registers, which slow down other code of the thread while they are configured.
fn release_tiles(f: &mut FuncCtx) -> Result<()> {
    let microkernel = f.unit.microkernel(MicrokernelKey::ReleaseTiles)?;
    let no_args = f.int(0);
    f.call(microkernel, &[no_args]);
    Ok(())
}

/// Emits the loops. Where the reduction is deep they are emitted once for many rows and once for few, unless it is
/// known which of the two applies.
fn reduction_parts(
    f: &mut FuncCtx,
    plan: &TilePlan,
    rows: &RowTiles,
    columns: IterationRange,
    range: Option<IterationRange>,
) -> Result<()> {
    let whole = |f: &mut FuncCtx| {
        let tiles = ColumnTiles::emit(f, plan, rows, columns, ReductionPart::Whole)?;
        blocks::blocks(f, plan, rows, &[tiles], columns, range)
    };
    let Some(k_blocking) = &plan.k_blocking else { return whole(f) };
    let in_parts = |f: &mut FuncCtx| {
        let stream = k_blocking.stream;
        let mut parts = vec![ReductionPart::First(stream)];
        if k_blocking.parts() > 2 {
            parts.push(ReductionPart::Middle(stream));
        }
        parts.push(ReductionPart::Last(stream));
        let tiles: Vec<ColumnTiles> = parts
            .into_iter()
            .map(|part| ColumnTiles::emit(f, plan, rows, columns, part))
            .collect::<Result<_>>()?;
        blocks::blocks(f, plan, rows, &tiles, columns, range)
    };
    match plan.is_k_blocked() {
        Some(true) => in_parts(f),
        Some(false) => whole(f),
        None => {
            let has_many_rows = rows.has_tiles(f, plan, plan.tiles_to_block())?;
            f.branch(has_many_rows, in_parts, whole)
        }
    }
}
