//! Contractions as loops around calls of tile microkernels.
//!
//! Rows are divided along the last row axis into as few tiles as the tallest tile of the ISA allows, of two heights
//! that differ by at most one, so no tile is padded: first the `high` tiles, then the `low` ones with one row less.
//! Columns are divided into wide tiles as long as they last, then tiles of one panel, then a masked rest. The loops,
//! outermost first:
//!
//! ```text
//! for each block of rows whose part of the lhs stays in the second-level cache
//!   for each part of the reduction
//!     for each tile of columns
//!       for the outer row axes
//!         call the microkernel for the high tiles, then the one for the low tiles
//! ```
//!
//! A reduction has several parts where it is deep and there are many rows. A panel of a part then stays in the
//! first-level cache while the rows of a block go by, and the block's part of the lhs in the second-level cache.
//!
//! [`plan`] decides all this without emitting code, [`emit`] emits the loops. The number of rows may be known only at
//! run time. Then a chain of comparisons selects the microkernels, once for each contraction.
//!
//! Where the last of two row axes may be short, its tiles would have few rows, and each would read all panels. Then the
//! loops are emitted a second time, with the two axes interchanged.

mod emit;
mod plan;

use crate::{
    codegen::{
        body::split::{ContractionPart, split_axis},
        function::FuncCtx,
        vector::VectorIsa,
    },
    error::Result,
    kernel::{Contraction, Kernel, Program, Rhs},
    scalar::Precision,
};
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC};
pub(super) use plan::Isa;
use symshape::Facts;
use symshape_runtime::DType;

/// The longest outer axis of rows that tiles may be cut along instead of the last one.
const MAX_OUTER_ROWS: i64 = 16;

/// Emits a contraction by tiles, or a part of it. Returns false, and emits nothing, where no microkernel can compute
/// it.
pub(super) fn contraction(
    f: &mut FuncCtx,
    kernel: &Kernel,
    contraction: &Contraction,
    part: ContractionPart,
) -> Result<bool> {
    let isa = Isa::from(f.unit.vector_isa());
    let Some(plan) = plan::plan(f.unit.program, kernel, f.facts(), contraction, &isa) else {
        return Ok(false);
    };
    // Threads divide the rows of one order.
    let interchanged =
        with_interchanged_rows(f, contraction).filter(|_| matches!(part, ContractionPart::Whole));
    let for_few_rows = interchanged
        .as_ref()
        .and_then(|contraction| plan::plan(f.unit.program, kernel, f.facts(), contraction, &isa));
    let Some(for_few_rows) = for_few_rows else {
        emit::contraction(f, &plan, part)?;
        return Ok(true);
    };

    let last = f.dim(plan.last_rows())?;
    let outer = f.dim(for_few_rows.last_rows())?;
    let has_few_rows = f.ins().icmp(IntCC::SignedLessThan, last, outer);
    f.branch(
        has_few_rows,
        |f| emit::contraction(f, &for_few_rows, part),
        |f| emit::contraction(f, &plan, part),
    )?;
    Ok(true)
}

/// The contraction with its two row axes interchanged, if the last one may be the shorter one. Tiles are cut along the
/// last axis: of a decoder's new tokens and the query heads that share keys, the tokens are often one, and the heads
/// two to eight. Each sum has its terms in the same order.
fn with_interchanged_rows(f: &FuncCtx, contraction: &Contraction) -> Option<Contraction> {
    let [outer, last] = &contraction.m[..] else { return None };
    let rhs = match &contraction.rhs {
        Rhs::Indexed(access) => access.buffer,
        Rhs::Panels { buffer, .. } => *buffer,
        Rhs::FewBits(_) => return None,
    };
    let is_plain = contraction.dtype == DType::F32
        && contraction.precision == Precision::F32
        && contraction.pack_buffer.is_none()
        && !f.unit.program.is_const(rhs);
    let may_be_shorter =
        last.extent.as_i64().is_none() && !f.facts().prove_le(&outer.extent, &last.extent).is_yes();
    let is_short = outer.extent.as_i64().is_some_and(|rows| rows <= MAX_OUTER_ROWS);
    let m = vec![last.clone(), outer.clone()];
    (is_plain && is_short && may_be_shorter).then(|| Contraction { m, ..contraction.clone() })
}

/// Whether microkernels can compute a contraction on an ISA. `facts` hold around the contraction.
pub(super) fn has_plan(
    program: &Program,
    kernel: &Kernel,
    facts: &Facts,
    contraction: &Contraction,
    isa: &Isa,
) -> bool {
    plan::plan(program, kernel, facts, contraction, isa).is_some()
}

/// The plans of all contractions of a program for an ISA, as text.
pub(crate) fn plans_text(program: &Program, isa: &dyn VectorIsa) -> String {
    plan::plans_text(program, &Isa::from(isa))
}

/// The axis of a contraction to divide among `threads`, see [`split_axis`], and the largest number of units.
pub(crate) fn select_split(
    f: &mut FuncCtx,
    contraction: &Contraction,
    threads: Value,
) -> Result<(Value, Value)> {
    let isa = Isa::from(f.unit.vector_isa());
    let step = plan::column_step(f.facts(), contraction);
    let columns = f.dim(&contraction.n.extent.ceil_div(step))?;
    let rows = f.dim(&plan::row_units(f.unit.program, contraction, &isa))?;

    // Each thread reads all of one operand and a part of the other: the part should be of the larger one.
    let height = f.dim(&contraction.rows())?;
    let width = f.dim(&contraction.n.extent)?;
    let is_wide = f.ins().icmp(IntCC::SignedGreaterThanOrEqual, width, height);
    let has_many_columns = f.ins().icmp(IntCC::SignedGreaterThanOrEqual, columns, threads);
    let has_few_rows = f.ins().icmp(IntCC::SignedLessThan, rows, threads);
    let by_columns = f.ins().band(is_wide, has_many_columns);
    let by_columns = f.ins().bor(by_columns, has_few_rows);

    let row_axis = f.int(split_axis::ROWS);
    let column_axis = f.int(split_axis::COLUMNS);
    let axis = f.ins().select(by_columns, column_axis, row_axis);
    let units = f.ins().select(by_columns, columns, rows);
    Ok((axis, units))
}
