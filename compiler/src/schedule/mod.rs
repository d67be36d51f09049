//! Passes over kernels: fusion, packing, and the form of loops.

mod batch_blocks;
mod blocks;
mod clamped_strips;
mod contraction_strips;
mod epilogues;
mod few_bits;
mod fresh_symbols;
mod half_panels;
mod in_place_rows;
mod index_arithmetic;
mod indices;
mod invariants;
mod leaves;
mod lhs_blocks;
mod merge_constants;
mod narrow_strips;
mod neighbours;
mod pack_buffers;
mod pages;
mod panels;
mod pieces;
mod reductions;
mod result_blocks;
mod row_order;
mod rows;
mod share_panels;
mod state_products;
mod strips;
mod unroll_and_jam;
mod widen;
mod winograd;

pub(crate) use batch_blocks::divide as divide_batch;

use crate::{Result, kernel::Program};

/// A pass over a program.
pub(crate) type Pass = fn(&mut Program) -> Result<()>;

/// The passes in the order in which they run.
pub const PASSES: &[(&str, Pass)] = &[
    ("state_products", state_products::separate),
    ("gathering_epilogues", epilogues::separate),
    ("pieces", pieces::fuse),
    ("rows", rows::fuse),
    ("blocks", blocks::fuse),
    ("reductions", reductions::fuse),
    ("panels", panels::pack),
    ("lhs_blocks", lhs_blocks::copy),
    ("row_order", row_order::reorder),
    ("winograd", winograd::transform),
    ("result_blocks", result_blocks::fuse),
    ("unroll_and_jam", unroll_and_jam::unroll_and_jam),
    ("clamped_strips", clamped_strips::split),
    ("strips", strips::fuse),
    ("narrow_strips", narrow_strips::interchange),
    ("in_place_rows", in_place_rows::rewrite),
    ("indices", indices::tabulate),
    ("widen", widen::widen),
    ("epilogues", epilogues::split),
    ("contraction_strips", contraction_strips::expand),
    ("invariants", invariants::move_out),
    ("few_bits", few_bits::expand),
    ("pack_buffers", pack_buffers::reserve),
    ("share_panels", share_panels::share),
    ("half_panels", half_panels::store),
    ("merge_constants", merge_constants::merge),
];

/// Runs all passes.
///
/// # Errors
/// The first error of a pass.
pub fn schedule(program: &mut Program) -> Result<()> {
    schedule_observed(program, &mut |_, _| {})
}

/// Runs all passes, and calls `observer` with the pass's name and the program after each.
///
/// # Errors
/// The first error of a pass.
pub(crate) fn schedule_observed(
    program: &mut Program,
    observer: &mut dyn FnMut(&'static str, &Program),
) -> Result<()> {
    for (name, pass) in PASSES {
        pass(program)?;
        observer(name, program);
    }
    Ok(())
}
