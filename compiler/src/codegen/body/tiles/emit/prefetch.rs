//! Prefetch of the next panels of the rhs: all row tiles of a tile of columns share the work evenly. A single row tile
//! prefetches the elements of its own panels that it reads soon.

use super::position::Position;
use crate::{
    codegen::{
        body::{args::ArgBlock, tiles::plan::TilePlan},
        function::FuncCtx,
        microkernel::contraction::{Rhs, TileKey},
    },
    target::LINE_BYTES,
};
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC};

/// The place of a call among those with the same columns: the number of its iteration of the outer row axes, and their
/// count.
#[derive(Clone, Copy)]
pub(super) struct Turn {
    pub(super) iteration: Value,
    pub(super) iterations: Value,
}

/// The division of a panel among the row tiles.
pub(super) struct PrefetchSchedule {
    /// Row tiles of earlier iterations of the outer row axes.
    before: Value,
    /// All row tiles.
    tiles: Value,
    /// Whether that is one.
    is_single: Value,
    /// Bytes of a panel.
    bytes: Value,
}

impl PrefetchSchedule {
    /// The schedule of a call with `tiles` row tiles, or `None` where nothing is prefetched. Without a turn, the call
    /// is the only one.
    pub(super) fn emit(
        f: &mut FuncCtx,
        plan: &TilePlan,
        at: &Position,
        args: &ArgBlock,
        turn: Option<Turn>,
        tiles: Value,
    ) -> Option<PrefetchSchedule> {
        let Rhs::Panels(width) = plan.rhs.form else { return None };
        // On tile registers the microkernel itself divides the work.
        if !plan.prefetches_panels || plan.dot().is_amx() {
            return None;
        }

        let bytes = match at.slice {
            Some(slice) => {
                let row_bytes = i64::from(width) * plan.rhs.element_bytes();
                f.ins().imul_imm_s(slice.count, plan.inner_depth()? * row_bytes)
            }
            None => args.get(TileKey::RHS_COLUMN)?,
        };
        let (before, tiles) = match turn {
            None => (f.int(0), tiles),
            Some(turn) => (f.ins().imul(turn.iteration, tiles), f.ins().imul(turn.iterations, tiles)),
        };
        let is_single = f.ins().icmp_imm_s(IntCC::Equal, tiles, 1);
        Some(PrefetchSchedule { before, tiles, is_single, bytes })
    }

    /// Sets the arguments of a call with `others` row tiles before it in the same iteration.
    pub(super) fn set(&self, f: &mut FuncCtx, args: &mut ArgBlock, others: Value) {
        let before = f.ins().iadd(self.before, others);
        let before = f.ins().imul(before, self.bytes);
        let skipped = f.ins().udiv(before, self.tiles);
        // Whole cache lines.
        let skipped = f.ins().band_imm_s(skipped, -LINE_BYTES);

        let own = f.int(TileKey::PREFETCH_OWN);
        let skipped = f.ins().select(self.is_single, own, skipped);
        args.set(TileKey::PREFETCH_ROUNDS, self.tiles);
        args.set(TileKey::PREFETCH_SKIP, skipped);
    }
}
