//! Packing of the lhs row by row.

use super::rows::RowTiles;
use crate::{
    codegen::{
        body::{
            args::ArgBlock,
            split::IterationRange,
            tiles::plan::{PackedRows, TilePlan},
        },
        function::FuncCtx,
        microkernel::{
            MicrokernelKey,
            pack_rows::{PackRowsKey, RowForm},
        },
    },
    error::Result,
    kernel::Access,
};
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC};
use symshape::Dim;

impl PackedRows {
    /// Steps of a block that fit the pack buffer, at least one.
    pub(super) fn block_steps(&self, f: &mut FuncCtx, plan: &TilePlan, rows: &RowTiles) -> Result<Value> {
        let step_rows = if plan.has_one_row_axis() { rows.rows } else { f.dim(plan.last_rows())? };
        let row_bytes = f.dim(&self.step_bytes())?;
        let step_bytes = f.ins().imul(step_rows, row_bytes);
        let one = f.int(1);
        let step_bytes = f.ins().smax(step_bytes, one);
        let capacity = &f.unit.program.buffers[self.buffer].elems - &self.first;
        let capacity = f.dim(&capacity)?;
        let steps = f.ins().udiv(capacity, step_bytes);
        let steps = f.ins().smax(steps, one);
        if !plan.has_one_row_axis() {
            return Ok(steps);
        }

        // Low tiles take less than high ones: where all rows fit, they are one block.
        let n_rows = rows.count(f);
        let bytes = f.ins().imul(n_rows, row_bytes);
        let fits = f.ins().icmp(IntCC::SignedLessThanOrEqual, bytes, capacity);
        let tiles = f.ins().smax(rows.tiles, one);
        Ok(f.ins().select(fits, tiles, steps))
    }

    /// Packs rows `first..end` at the beginning of the pack buffer. Returns the offset in bytes from there at which
    /// row 0 would be.
    pub(super) fn pack_row_range(
        &self,
        f: &mut FuncCtx,
        IterationRange { begin: first, end }: IterationRange,
    ) -> Result<Value> {
        let count = f.ins().isub(end, first);
        let from = f.address(&self.stream.origin)?;
        let step = f.dim(&(&self.stream.row * self.element_bytes))?;
        let skipped = f.ins().imul(first, step);
        let from = f.ins().iadd(from, skipped);
        let zero = f.int(0);
        self.pack(f, from, zero, count)?;

        let step = f.dim(&self.step_bytes())?;
        let skipped = f.ins().imul(first, step);
        Ok(f.ins().ineg(skipped))
    }

    /// Packs all rows of the last axis, `extent` of them, at an offset of the pack buffer in bytes.
    pub(super) fn pack_axis(&self, f: &mut FuncCtx, extent: &Dim, offset: Value) -> Result<()> {
        let from = f.address(&self.stream.origin)?;
        let count = f.dim(extent)?;
        self.pack(f, from, offset, count)
    }

    /// Bytes of the packed rows of `count` iterations of the outer axes, with `extent` rows each.
    pub(super) fn axis_offset(&self, f: &mut FuncCtx, extent: &Dim, count: Value) -> Result<Value> {
        let bytes = f.dim(&(extent * &self.step_bytes()))?;
        Ok(f.ins().imul(count, bytes))
    }

    /// Packs `count` rows that begin at address `from`, at an offset of the pack buffer in bytes.
    fn pack(&self, f: &mut FuncCtx, from: Value, offset: Value, count: Value) -> Result<()> {
        let dense = self.loops[0].lhs_step.as_i64() == Some(1);
        let levels = self.loops.len() as u8;
        let key = PackRowsKey { form: self.form, dense, levels };
        let mut args = ArgBlock::new(key.slots());
        args.set(PackRowsKey::FROM, from);

        args.set(PackRowsKey::FROM_ROW, f.dim(&(&self.stream.row * self.element_bytes))?);
        let buffer = f.address(&Access { buffer: self.buffer, index: self.first.clone() })?;
        args.set(PackRowsKey::TO, f.ins().iadd(buffer, offset));
        args.set(PackRowsKey::TO_ROW, f.dim(&self.step_bytes())?);
        args.set(PackRowsKey::ROWS, count);

        if matches!(self.form, RowForm::Bf16 { .. }) {
            args.set(PackRowsKey::PLANE, f.dim(&self.part_bytes)?);
        }

        if let Some(rounding) = &self.rounding {
            let slot = key.rounding_slot();
            let depth = self.loops.iter().fold(Dim::one(), |depth, level| depth * &level.extent);
            args.set(slot, f.dim(&depth)?);
            args.set(slot + 1, f.int(rounding.block));
            args.set(slot + 2, f.dim(&depth.ceil_div(rounding.block))?);
            args.set(slot + 3, f.address(&Access { buffer: self.buffer, index: Dim::zero() })?);
        }

        for (level, reduction) in self.loops.iter().enumerate() {
            let slot = PackRowsKey::level(level as u8);
            args.set(slot, f.dim(&reduction.extent)?);
            args.set(slot + 1, f.dim(&(&reduction.lhs_step * self.element_bytes))?);
        }

        let block = args.place(f);
        let microkernel = f.unit.microkernel(MicrokernelKey::PackRows(key))?;
        f.call(microkernel, &[block]);

        Ok(())
    }
}
