//! Unpacking of a rhs of few bits into panels of floats.
//!
//! The panels of a tile of columns, or the part of them that a part of the reduction needs, are written at the start of
//! the unpack buffer before the rows of a block are multiplied with them. They stay in the second-level cache.

use super::position::{Position, ReductionSlice};
use crate::{
    codegen::{
        body::{
            args::ArgBlock,
            tiles::plan::{FewBitsRhs, TilePlan},
        },
        function::FuncCtx,
        microkernel::{MicrokernelKey, contraction::PANEL, unpack_panels::UnpackPanelsKey},
    },
    error::Result,
};
use cranelift_codegen::ir::{InstBuilder, Value};

impl FewBitsRhs {
    /// Unpacks the panels of a tile of columns.
    pub(super) fn unpack(&self, f: &mut FuncCtx, plan: &TilePlan, at: &Position) -> Result<()> {
        let mut args = ArgBlock::new(UnpackPanelsKey::SLOTS);
        let panel_bits = i64::from(PANEL.trailing_zeros());

        let panel_bytes = f.dim(&self.panel_bytes)?;
        let panel = f.ins().ushr_imm_u(at.column, panel_bits);
        let skipped = f.ins().imul(panel, panel_bytes);
        let from = f.address(&self.origin)?;
        let from = f.ins().iadd(from, skipped);
        args.set(UnpackPanelsKey::FROM_PANEL, panel_bytes);

        args.set(UnpackPanelsKey::TO, f.address(&plan.rhs.stream.origin)?);
        args.set(UnpackPanelsKey::TO_PANEL, f.dim(&(&plan.rhs.stream.column * plan.rhs.element_bytes()))?);
        let columns = f.ins().smin(at.remaining, at.width);
        let padded = f.ins().iadd_imm_s(columns, PANEL as i64 - 1);
        args.set(UnpackPanelsKey::PANELS, f.ins().ushr_imm_u(padded, panel_bits));

        let ReductionSlice { first, count } = match at.slice {
            Some(slice) => slice,
            None => ReductionSlice { first: f.int(0), count: f.dim(&plan.contraction.depth())? },
        };
        self.set_indices(f, &mut args, from, first, count);

        let block = args.place(f);
        let microkernel =
            f.unit.microkernel(MicrokernelKey::UnpackPanels(UnpackPanelsKey { code: self.code }))?;
        f.call(microkernel, &[block]);
        Ok(())
    }

    /// Sets the arguments that depend on the reduction indices, `count` of them from `first` on. `panel` is the address
    /// of the first panel.
    fn set_indices(&self, f: &mut FuncCtx, args: &mut ArgBlock, panel: Value, first: Value, count: Value) {
        let block_size = i64::from(self.form.block);
        let size = f.int(block_size);
        let block = f.ins().udiv(first, size);
        let skipped = f.ins().imul_imm_s(block, self.form.block_bytes(block_size));
        args.set(UnpackPanelsKey::FROM, f.ins().iadd(panel, skipped));

        let begin = f.ins().imul(block, size);
        let before = f.ins().isub(first, begin);
        let group = f.int(self.form.group());
        let groups = f.ins().udiv(before, group);
        args.set(UnpackPanelsKey::BEFORE, before);
        args.set(UnpackPanelsKey::BEFORE_BYTES, f.ins().imul_imm_s(groups, self.form.group_bytes()));

        let end = f.ins().iadd(before, count);
        let padded = f.ins().iadd_imm_s(end, block_size - 1);
        args.set(UnpackPanelsKey::BLOCKS, f.ins().udiv(padded, size));
        args.set(UnpackPanelsKey::DEPTH, count);
        args.set(UnpackPanelsKey::BLOCK, size);
    }
}
