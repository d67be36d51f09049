//! Which tiles of rows ask for which part of the next panels of B: together for all of them, at an even pace.

use super::{blocks::Position, plan::Plan};
use crate::codegen::{
    body::args::Args,
    function::FuncCtx,
    microkernel::contraction::{Rhs, TileKey},
};
use crate::target::LINE_BYTES;
use cranelift_codegen::ir::{InstBuilder, Value};

/// The calls of microkernels at one tile of columns.
pub(super) struct PrefetchSchedule {
    /// Tiles of rows of earlier iterations of the outer row axes, and of all.
    before: Value,
    all: Value,
    /// Of a panel.
    bytes: Value,
}

impl PrefetchSchedule {
    /// For iteration `turn.0` of `turn.1`, of so many tiles; `None` where none asks.
    pub(super) fn new(
        f: &mut FuncCtx,
        plan: &Plan,
        at: &Position,
        args: &Args,
        turn: Option<(Value, Value)>,
        tiles: Value,
    ) -> Option<PrefetchSchedule> {
        let Rhs::Panels(width) = plan.rhs else { return None };
        if !plan.prefetch_panels || plan.product().is_amx() {
            return None;
        }
        let bytes = match (at.part, &plan.k_blocking) {
            (Some((_, count)), Some(k_blocking)) => {
                f.builder.ins().imul_imm_s(count, k_blocking.inner * i64::from(width) * 4)
            }
            _ => args.get(TileKey::RHS_COLUMN)?,
        };
        let (before, all) = match turn {
            None => (f.int(0), tiles),
            Some((number, count)) => {
                (f.builder.ins().imul(number, tiles), f.builder.ins().imul(count, tiles))
            }
        };
        Some(PrefetchSchedule { before, all, bytes })
    }

    /// The arguments of a call with tiles, before which there are others in this iteration.
    pub(super) fn set(&self, f: &mut FuncCtx, args: &mut Args, others: Value) {
        let before = f.builder.ins().iadd(self.before, others);
        let before = f.builder.ins().imul(before, self.bytes);
        let skipped = f.builder.ins().udiv(before, self.all);
        // Whole lines of memory.
        let skipped = f.builder.ins().band_imm_s(skipped, -LINE_BYTES);
        args.set(TileKey::PREFETCH_ROUNDS, self.all);
        args.set(TileKey::PREFETCH_SKIP, skipped);
    }
}
