//! The position of a tile of columns in the loops.

use super::columns::ColumnTiles;
use crate::codegen::{
    body::{split::IterationRange, tiles::plan::TilePlan},
    function::FuncCtx,
    microkernel::contraction::{PANEL, Rhs},
};
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC};

/// A part of the outermost loop of the reduction.
#[derive(Clone, Copy)]
pub(super) struct ReductionSlice {
    /// Its first iteration.
    pub(super) first: Value,
    /// Its number of iterations.
    pub(super) count: Value,
}

/// A tile of columns, at a part of the reduction.
pub(super) struct Position {
    /// First column.
    pub(super) column: Value,
    /// Columns of a whole tile of this width.
    pub(super) width: Value,
    /// Number of columns from the first one to the end of all.
    pub(super) remaining: Value,
    /// Byte offset of the tile's panel, or of its first column, in the rhs.
    pub(super) rhs_offset: Value,
    /// The microkernels for high and low tiles; where rows are in pairs, for one row alone and for a pair.
    pub(super) microkernels: [Value; 2],
    /// The part of the reduction, or `None` for all of it.
    pub(super) slice: Option<ReductionSlice>,
}

impl Position {
    /// Emits the position of tile number `tile` of columns `first..end`.
    pub(super) fn emit(
        f: &mut FuncCtx,
        plan: &TilePlan,
        tiles: &ColumnTiles,
        tile: Value,
        IterationRange { begin: first, end }: IterationRange,
        slice: Option<ReductionSlice>,
    ) -> Position {
        let is_wide = f.ins().icmp(IntCC::SignedLessThan, tile, tiles.n_wide);
        let is_whole = f.ins().icmp(IntCC::SignedLessThan, tile, tiles.n_whole);
        let wide_before = f.ins().smin(tile, tiles.n_wide);
        let narrow_before = f.ins().isub(tile, wide_before);
        let wide_columns = f.ins().imul(wide_before, tiles.wide);
        let narrow_columns = f.ins().ishl_imm_u(narrow_before, i64::from(PANEL.trailing_zeros()));
        let column = f.ins().iadd(wide_columns, narrow_columns);
        let column = f.ins().iadd(column, first);
        let remaining = f.ins().isub(end, column);

        let [wide, panel, rest] = [0, 2, 4];
        let microkernels = [0, 1].map(|low| {
            let address = |width: usize| tiles.microkernels[width + low];
            let narrow = f.ins().select(is_whole, address(panel), address(rest));
            f.ins().select(is_wide, address(wide), narrow)
        });
        // Panels that are written at run time are those of the tile.
        let rhs_offset = if plan.rhs.source.is_some() { f.int(0) } else { rhs_offset(f, plan, column) };
        let panel = f.int(PANEL as i64);
        let width = f.ins().select(is_wide, tiles.wide, panel);
        Position { column, width, remaining, rhs_offset, microkernels, slice }
    }
}

/// The byte offset of a column in the rhs.
fn rhs_offset(f: &mut FuncCtx, plan: &TilePlan, column: Value) -> Value {
    // Strides are dims that were computed before, so this only looks them up.
    let bytes = plan.rhs.element_bytes();
    let step = f.dim(&(&plan.rhs.stream.column * bytes)).expect("strides are computed for every call");
    match plan.rhs.form {
        Rhs::Panels(width) => {
            let panel = f.ins().ushr_imm_u(column, i64::from(width.trailing_zeros()));
            let inside = f.ins().band_imm_s(column, i64::from(width) - 1);
            let panel = f.ins().imul(panel, step);
            let inside = f.ins().ishl_imm_u(inside, i64::from(bytes.trailing_zeros()));
            f.ins().iadd(panel, inside)
        }
        // Tiles begin with a panel.
        Rhs::FewBits(_) => {
            let panel = f.ins().ushr_imm_u(column, i64::from(PANEL.trailing_zeros()));
            f.ins().imul(panel, step)
        }
        Rhs::Rows | Rhs::Scattered => f.ins().imul(column, step),
    }
}
