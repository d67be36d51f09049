//! Packing of the lhs pixel by pixel, see [`PackedPixels`].

use super::rows::RowTiles;
use crate::{
    codegen::{
        body::{
            args::ArgBlock,
            split::IterationRange,
            tiles::plan::{PackedPixels, TilePlan},
        },
        function::FuncCtx,
        microkernel::{MicrokernelKey, pack_rows::PackRowsKey},
    },
    error::Result,
    kernel::{Access, Contraction},
};
use cranelift_codegen::ir::{InstBuilder, Value};
use symshape::Dim;

impl PackedPixels {
    /// Steps of a block that fit the pack buffer, at least one.
    pub(super) fn block_steps(&self, f: &mut FuncCtx, plan: &TilePlan, rows: &RowTiles) -> Result<Value> {
        let capacity = f.unit.program.buffers[self.buffer].elems.clone();
        let pixel_bytes = f.dim(&self.step_bytes)?;
        let capacity = f.dim(&capacity)?;
        let capacity = f.ins().udiv(capacity, pixel_bytes);

        let pixels = self.block_pixels(plan.contraction);
        let each = f.dim(&pixels.each)?;
        let each = if plan.has_one_row_axis() { f.ins().imul(each, rows.rows) } else { each };
        let fixed = f.dim(&pixels.fixed)?;
        let one = f.int(1);
        let zero = f.int(0);
        let each = f.ins().smax(each, one);
        let rest = f.ins().isub(capacity, fixed);
        let rest = f.ins().smax(rest, zero);
        let steps = f.ins().udiv(rest, each);
        Ok(f.ins().smax(steps, one))
    }

    /// Packs the pixels of rows `first..end` of the only row axis. Returns the offset in bytes from the beginning of
    /// the pack buffer at which row 0 would be.
    pub(super) fn pack_row_range(
        &self,
        f: &mut FuncCtx,
        IterationRange { begin: first, end }: IterationRange,
    ) -> Result<Value> {
        let step = f.dim(&self.windows.row_step)?;
        let window = f.dim(&self.windows.span_of_row())?;
        let first_pixel = f.ins().imul(first, step);
        let count = f.ins().isub(end, first);
        let count = f.ins().iadd_imm_s(count, -1);
        let count = f.ins().imul(count, step);
        let count = f.ins().iadd(count, window);
        self.pack(f, first_pixel, count)?;

        let bytes = f.dim(&self.step_bytes)?;
        let skipped = f.ins().imul(first_pixel, bytes);
        Ok(f.ins().ineg(skipped))
    }

    /// Packs the pixels that joint iterations `first..end` of the outer axes read; there is at least one.
    pub(super) fn pack_iterations(
        &self,
        f: &mut FuncCtx,
        contraction: &Contraction,
        IterationRange { begin: first, end }: IterationRange,
    ) -> Result<()> {
        let last = f.ins().iadd_imm_s(end, -1);
        let from = self.first_pixel(f, contraction, first)?;
        let to = self.first_pixel(f, contraction, last)?;
        let count = f.ins().isub(to, from);
        let (axis, _) = contraction.m.split_last().expect("a plan has row axes");
        let windows = f.dim(&self.windows.span_of_rows(&axis.extent))?;
        let count = f.ins().iadd(count, windows);
        self.pack(f, from, count)
    }

    /// Bytes from the beginning of the pack buffer to the first row of joint iteration `iteration`, in a block that
    /// begins with iteration `first`.
    pub(super) fn offset(
        &self,
        f: &mut FuncCtx,
        contraction: &Contraction,
        first: Value,
        iteration: Value,
    ) -> Result<Value> {
        let from = self.first_pixel(f, contraction, first)?;
        let to = self.first_pixel(f, contraction, iteration)?;
        let pixels = f.ins().isub(to, from);
        let bytes = f.dim(&self.step_bytes)?;
        Ok(f.ins().imul(pixels, bytes))
    }

    /// The first pixel of a joint iteration of the outer axes.
    fn first_pixel(&self, f: &mut FuncCtx, contraction: &Contraction, iteration: Value) -> Result<Value> {
        let (_, outer) = contraction.m.split_last().expect("a plan has row axes");
        let ([_, axis], [around, step]) = (outer, &self.windows.outer_steps[..]) else {
            let step = self.windows.outer_steps.iter().fold(Dim::zero(), |step, other| step + other);
            let step = f.dim(&step)?;
            return Ok(f.ins().imul(iteration, step));
        };

        let extent = f.dim(&axis.extent)?;
        let around = f.dim(around)?;
        let step = f.dim(step)?;
        let outer = f.ins().udiv(iteration, extent);
        let skipped = f.ins().imul(outer, extent);
        let inner = f.ins().isub(iteration, skipped);
        let outer = f.ins().imul(outer, around);
        let inner = f.ins().imul(inner, step);
        Ok(f.ins().iadd(outer, inner))
    }

    /// Packs `count` pixels from `first` on at the beginning of the pack buffer.
    fn pack(&self, f: &mut FuncCtx, first: Value, count: Value) -> Result<()> {
        let key = PackRowsKey { form: self.form, dense: true, levels: 1 };
        let pitch_bytes = self.element_bytes * self.windows.pitch;

        let mut args = ArgBlock::new(key.slots());
        let from = f.address(&self.windows.base)?;
        let skipped = f.ins().imul_imm_s(first, pitch_bytes);
        args.set(PackRowsKey::FROM, f.ins().iadd(from, skipped));
        args.set(PackRowsKey::FROM_ROW, f.int(pitch_bytes));

        args.set(PackRowsKey::TO, f.address(&Access { buffer: self.buffer, index: Dim::zero() })?);
        args.set(PackRowsKey::TO_ROW, f.dim(&self.step_bytes)?);
        args.set(PackRowsKey::ROWS, count);
        args.set(PackRowsKey::PLANE, f.dim(&self.part_bytes)?);

        args.set(PackRowsKey::level(0), f.int(self.windows.run));
        let block = args.place(f);
        let microkernel = f.unit.microkernel(MicrokernelKey::PackRows(key))?;
        f.call(microkernel, &[block]);

        Ok(())
    }
}
