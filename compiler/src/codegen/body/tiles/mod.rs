//! Contractions as loops around calls of tile microkernels.
//!
//! Rows are cut along the last row axis into as few tiles as the ISA's tallest allows, of two heights that differ by
//! one at most, so no tail is padded: `high` tiles of `rows` rows, then `low` ones of one row less. Columns are cut into
//! wide tiles while they last, then tiles of one panel, then a masked rest. The loops, from outside:
//!
//! ```text
//! for each block of rows whose part of A stays in the second-level cache
//!   for each part of the reduction
//!     for each tile of columns
//!       for the outer row axes
//!         the microkernel, over the high tiles; the microkernel, over the low ones
//! ```
//!
//! A reduction has parts where it is deep and there are many rows: a panel of a part stays in the first-level cache
//! while the rows of a block go by, whose part of A stays in the second.
//!
//! Which microkernels these are depends on the number of rows, which may be known at run time only: then a chain of
//! compares picks the functions' addresses, once a contraction.

mod blocks;
mod line_batch;
mod packed;
mod packing;
mod paired_tiles;
mod pixel_packing;
mod plan;
mod prefetch;
mod rhs;
mod tiling;

use crate::{
    codegen::{
        body::{
            body_builder,
            split::{self, split_axis},
        },
        function::FuncCtx,
        microkernel::{
            MicrokernelKey,
            contraction::{AMX_ROWS, PANEL, ReductionPart, max_rows},
        },
    },
    error::Result,
    kernel::{Axis, Contraction, Kernel},
    scalar::Precision,
    target::LINE_BYTES,
};
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC};
use num_integer::Integer;
use plan::Plan;
use symshape::{Dim, Facts, Symbol};
use symshape_runtime::DType;
use tiling::{ColumnTiling, Rows};

/// Columns that stay together where there are many.
const MANY_COLUMNS: i64 = 64;

/// Lines that have different places in a first-level cache.
const LINES_OF_PAGE: i64 = 64;

/// Ways of the first-level cache that are left for B and the result.
const FREE_WAYS: usize = 2;

/// Emits a contraction by tiles, or the part of it that the frame and `range` say; false where microkernels can't do it, and
/// nothing was emitted.
pub(super) fn contraction(
    f: &mut FuncCtx,
    kernel: &Kernel,
    contraction: &Contraction,
    range: Option<(Value, Value)>,
) -> Result<bool> {
    let mut facts = f.facts().clone();
    for axis in contraction.m.iter().chain(&contraction.k).chain([&contraction.n]) {
        facts.declare_index(&axis.var, &axis.extent);
    }
    let Some(plan) = plan::plan(f, kernel, &facts, contraction) else { return Ok(false) };
    emit(f, &facts, &plan, range)?;
    Ok(true)
}

/// Columns that are not divided among threads: cache lines of the result, and wide tiles where there are many.
fn column_step(facts: &Facts, contraction: &Contraction) -> i64 {
    let many = facts.bounds(&contraction.n.extent).lo.is_some_and(|lo| lo >= (8 * MANY_COLUMNS).into());
    if many { MANY_COLUMNS } else { PANEL as i64 }
}

/// Row units that can be divided among threads: tiles where there is one row axis, else the outer axes' iterations.
fn row_units(f: &FuncCtx, contraction: &Contraction) -> Dim {
    match contraction.m.split_last() {
        Some((last, [])) => last.extent.ceil_div(max_tile_rows(f, contraction) as i64),
        Some((_, outer)) => product(outer),
        None => Dim::one(),
    }
}

/// Most rows of a tile: as many as have registers for their sums, and as can stand in the first-level cache with what
/// each is multiplied by at once. Rows at a distance of a page, or of half a page, compete for the same lines of it.
///
/// The driver and the kernel must agree on it, so it depends on nothing that is known only where it is asked for.
fn max_tile_rows(f: &FuncCtx, contraction: &Contraction) -> usize {
    let isa = f.unit.vector_isa();
    if isa.shape().tiles && f.unit.program.on_tiles(contraction) {
        return AMX_ROWS;
    }
    let facts = Facts::default();
    let most = max_rows(isa.shape());
    // The left factor of other types is laid out anew, and of some that are multiplied as they are.
    let of_floats = f.unit.program.buffers[contraction.lhs.buffer].dtype == DType::F32;
    let is_copied = contraction.pack_buffer.is_some() && contraction.precision == Precision::F32;
    if contraction.dtype != DType::F32 || !of_floats || is_copied {
        return most;
    }
    let row = contraction
        .m
        .last()
        .and_then(|last| body_builder::linear_parts(&facts, &contraction.lhs.index, Some(&last.var)));
    let Some(bytes) = row.and_then(|(step, _)| Some(4 * step.as_i64()?)) else { return most };
    if bytes == 0 || bytes % LINE_BYTES != 0 {
        return most;
    }
    let lines = LINES_OF_PAGE / (bytes / LINE_BYTES).gcd(&LINES_OF_PAGE);
    most.min((isa.caches().l1_ways - FREE_WAYS) * lines as usize)
}

fn product(axes: &[Axis]) -> Dim {
    axes.iter().fold(Dim::one(), |all, axis| all * &axis.extent)
}

/// The axis of a contraction to divide among `threads`, see [`split_axis`], and the largest number of units.
pub(crate) fn select_split(
    f: &mut FuncCtx,
    contraction: &Contraction,
    threads: Value,
) -> Result<(Value, Value)> {
    let step = column_step(f.facts(), contraction);
    let columns = f.dim(&contraction.n.extent.ceil_div(step))?;
    let rows = row_units(f, contraction);
    let rows = f.dim(&rows)?;
    // Of A and B, each thread reads the whole of one and a part of the other: let that be the larger one.
    let (height, width) = (f.dim(&contraction.rows())?, f.dim(&contraction.n.extent)?);
    let wide = f.builder.ins().icmp(IntCC::SignedGreaterThanOrEqual, width, height);
    let many_columns = f.builder.ins().icmp(IntCC::SignedGreaterThanOrEqual, columns, threads);
    let few_rows = f.builder.ins().icmp(IntCC::SignedLessThan, rows, threads);
    let by_columns = f.builder.ins().band(wide, many_columns);
    let by_columns = f.builder.ins().bor(by_columns, few_rows);
    let (row_axis, column_axis) = (f.int(split_axis::ROWS), f.int(split_axis::COLUMNS));
    let axis = f.builder.ins().select(by_columns, column_axis, row_axis);
    Ok((axis, f.builder.ins().select(by_columns, columns, rows)))
}

fn emit(f: &mut FuncCtx, facts: &Facts, plan: &Plan, range: Option<(Value, Value)>) -> Result<()> {
    let m = plan.contraction.m.last().expect("checked in plan");
    let (count, columns) = (f.dim(&m.extent)?, f.dim(&plan.contraction.n.extent)?);
    let zero = f.int(0);
    let columns = match range {
        None => (zero, columns),
        Some(range) => {
            let step = column_step(f.facts(), plan.contraction);
            split::range(f, range, split_axis::COLUMNS, step, columns)?
        }
    };
    let any_rows = f.builder.ins().icmp_imm_s(IntCC::SignedGreaterThan, count, 0);
    let any_columns = f.builder.ins().icmp(IntCC::SignedLessThan, columns.0, columns.1);
    let any = f.builder.ins().band(any_rows, any_columns);
    let (work, done) = (f.builder.create_block(), f.builder.create_block());
    let exit = f.builder.ins().brif(any, work, &[], done, &[]);
    f.builder.switch_to_block(work);
    f.builder.seal_block(work);
    f.push_scope(exit);
    let rows = tiling::rows(f, plan, count);
    by_parts(f, facts, plan, &rows, columns, range)?;
    if plan.product().is_amx() {
        release(f)?;
    }
    f.builder.ins().jump(done, &[]);
    f.pop_scope();
    f.builder.switch_to_block(done);
    f.builder.seal_block(done);
    Ok(())
}

/// Ends the use of tile registers, which other code of the thread may be slowed by.
fn release(f: &mut FuncCtx) -> Result<()> {
    let microkernel = f.unit.microkernel(MicrokernelKey::ReleaseTiles)?;
    let (microkernel, nothing) = (f.func_ref(microkernel), f.int(0));
    f.builder.ins().call(microkernel, &[nothing]);
    Ok(())
}

/// Emits the loops; where the reduction is deep, once for many rows and once for few, unless it is known which it is.
fn by_parts(
    f: &mut FuncCtx,
    facts: &Facts,
    plan: &Plan,
    rows: &Rows,
    columns: (Value, Value),
    range: Option<(Value, Value)>,
) -> Result<()> {
    let many = match &plan.k_blocking {
        None => Some(false),
        Some(_) => tiling::proves_many_tiles(facts, plan),
    };
    let (zero, one) = (f.int(0), f.int(1));
    let is_many = match many {
        Some(many) => f.int(i64::from(many)),
        None => tiling::has_many_tiles(f, plan, rows)?,
    };
    let branch = Axis { var: Symbol::new("rows are few"), extent: Dim::one() };
    if many != Some(true) {
        let end = f.builder.ins().isub(one, is_many);
        f.for_axis_range(&branch, zero, end, |f| {
            let tiling = tiling::select_tiling(f, facts, plan, rows, columns, ReductionPart::Whole)?;
            blocks::blocks(f, plan, rows, &[tiling], columns, range)
        })?;
    }
    let (Some(depth), true) = (&plan.k_blocking, many != Some(false)) else { return Ok(()) };
    let between = (depth.parts() > 2).then_some(ReductionPart::Middle(depth.stream));
    let branch = Axis { var: Symbol::new("rows are many"), extent: Dim::one() };
    f.for_axis_range(&branch, zero, is_many, |f| {
        let parts = [ReductionPart::First(depth.stream)]
            .into_iter()
            .chain(between)
            .chain([ReductionPart::Last(depth.stream)]);
        let tilings: Vec<ColumnTiling> = parts
            .map(|part| tiling::select_tiling(f, facts, plan, rows, columns, part))
            .collect::<Result<_>>()?;
        blocks::blocks(f, plan, rows, &tilings, columns, range)
    })
}
