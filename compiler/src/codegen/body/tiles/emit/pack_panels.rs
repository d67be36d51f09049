//! Packing of a rhs that is computed at run time, where it is multiplied as bf16.
//!
//! The panels of a tile of columns are packed at the beginning of the pack buffer before the rows of a block are
//! multiplied with them. They stay in the second-level cache, and are packed once for each block. The block's rows
//! follow them.

use super::position::Position;
use crate::{
    codegen::{
        body::{
            args::ArgBlock,
            tiles::plan::{ComputedRhs, PanelSource, TilePlan},
        },
        function::FuncCtx,
        microkernel::{
            MicrokernelKey,
            contraction::{DotOp, PANEL},
            pack_panels::PackPanelsKey,
        },
    },
    error::Result,
};
use cranelift_codegen::ir::InstBuilder;

/// Bytes of an element of the rhs in memory, which is `f32`.
const ELEMENT_BYTES: i64 = 4;

impl PanelSource {
    /// Writes the panels of a tile of columns.
    pub(super) fn write_panels(&self, f: &mut FuncCtx, plan: &TilePlan, at: &Position) -> Result<()> {
        match self {
            PanelSource::Computed(rhs) => rhs.pack(f, plan, at),
            PanelSource::FewBits(rhs) => rhs.unpack(f, plan, at),
        }
    }
}

impl ComputedRhs {
    /// Packs the panels of a tile of columns.
    fn pack(&self, f: &mut FuncCtx, plan: &TilePlan, at: &Position) -> Result<()> {
        let key = PackPanelsKey { low: plan.dot().parts().rhs > 1, fours: plan.dot() == DotOp::MatrixBf16 };
        let mut args = ArgBlock::new(PackPanelsKey::SLOTS);
        let panel_bytes = f.dim(&(&self.panel * ELEMENT_BYTES))?;

        let panel = f.ins().ushr_imm_u(at.column, i64::from(PANEL.trailing_zeros()));
        let skipped = f.ins().imul(panel, panel_bytes);
        let from = f.address(&self.origin)?;
        args.set(PackPanelsKey::FROM, f.ins().iadd(from, skipped));
        args.set(PackPanelsKey::FROM_STEP, f.dim(&(&self.step * ELEMENT_BYTES))?);
        args.set(PackPanelsKey::FROM_PANEL, panel_bytes);

        args.set(PackPanelsKey::TO, f.address(&plan.rhs.stream.origin)?);
        args.set(PackPanelsKey::COLUMNS, f.ins().smin(at.remaining, at.width));
        args.set(PackPanelsKey::DEPTH, f.dim(&self.depth)?);
        let block = args.place(f);
        let microkernel = f.unit.microkernel(MicrokernelKey::PackPanels(key))?;
        f.call(microkernel, &[block]);

        Ok(())
    }
}
