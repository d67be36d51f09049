//! The division of the last row axis into tiles, at run time.

use crate::{
    codegen::{body::tiles::plan::TilePlan, function::FuncCtx},
    error::Result,
};
use cranelift_codegen::ir::{InstBuilder, StackSlot, Value, condcodes::IntCC, types};

/// The tiles of the last row axis. All values are known at run time only.
pub(super) struct RowTiles {
    /// Rows of a high tile. Low tiles have one row less.
    pub(super) rows: Value,
    /// Number of high tiles.
    pub(super) high: Value,
    /// Number of all tiles.
    pub(super) tiles: Value,
    /// Where tile registers persist between calls: the rows that they are configured for, 0 at first.
    configured: Option<StackSlot>,
}

impl RowTiles {
    /// Emits the division of `count` rows into as few tiles as the plan's tallest tile allows.
    pub(super) fn emit(f: &mut FuncCtx, plan: &TilePlan, count: Value) -> RowTiles {
        let max_rows = plan.max_tile_rows as i64;
        let padded = f.ins().iadd_imm_s(count, max_rows - 1);
        let max_rows = f.int(max_rows);
        let tiles = f.ins().udiv(padded, max_rows);

        let low = f.ins().udiv(count, tiles);
        let used = f.ins().imul(low, tiles);
        let extra = f.ins().isub(count, used);
        let is_even = f.ins().icmp_imm_s(IntCC::Equal, extra, 0);
        let low_plus_one = f.ins().iadd_imm_s(low, 1);
        let rows = f.ins().select(is_even, low, low_plus_one);
        let high = f.ins().select(is_even, tiles, extra);

        let keeps_tiles = plan.dot().is_amx() && f.unit.vector_isa().keeps_tiles();
        let configured = keeps_tiles.then(|| {
            let slot = f.slot(8, 8);
            let none = f.int(0);
            f.ins().stack_store(types::I64, none, slot, 0);
            slot
        });
        RowTiles { rows, high, tiles, configured }
    }

    /// The number of rows.
    pub(super) fn count(&self, f: &mut FuncCtx) -> Value {
        let low = f.ins().isub(self.tiles, self.high);
        let padded = f.ins().imul(self.tiles, self.rows);
        f.ins().isub(padded, low)
    }

    /// The first row of a tile.
    pub(super) fn first_row(&self, f: &mut FuncCtx, tile: Value) -> Value {
        let zero = f.int(0);
        let low = f.ins().isub(tile, self.high);
        let low = f.ins().smax(low, zero);
        let padded = f.ins().imul(tile, self.rows);
        f.ins().isub(padded, low)
    }

    /// Whether tile registers are configured for tiles of `rows` rows, given that the microkernel called next will
    /// configure them so.
    pub(super) fn is_configured(&self, f: &mut FuncCtx, rows: Value) -> Value {
        let Some(slot) = self.configured else { return f.int(0) };
        let last = f.ins().stack_load(types::I64, types::I64, slot, 0);
        f.ins().stack_store(types::I64, rows, slot, 0);
        let is_same = f.ins().icmp(IntCC::Equal, last, rows);
        f.ins().uextend(types::I64, is_same)
    }

    /// 1 where there are at least `count` tiles over all row axes, else 0.
    pub(super) fn has_tiles(&self, f: &mut FuncCtx, plan: &TilePlan, count: i64) -> Result<Value> {
        let outer = f.dim(&plan.contraction.outer_rows())?;
        let tiles = f.ins().imul(self.tiles, outer);
        Ok(f.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, tiles, count))
    }
}
