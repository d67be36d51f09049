//! Left-hand sides that are packed once for each pixel instead of once for each row, see [`SlidingWindows`].
//!
//! A block of joint iterations of the outer axes reads one line of memory, from where the window of its first row begins to
//! where that of its last one ends. The pixels of this line are split into the room, and rows, which may overlap, are read
//! from there.

use super::{plan::Plan, tiling::Rows};
use crate::{
    codegen::{
        body::args::Args,
        function::FuncCtx,
        microkernel::{
            MicrokernelKey,
            pack_rows::{PackRowsKey, RowForm},
        },
    },
    error::Result,
    kernel::{Access, BufferId, Contraction, SlidingWindows},
};
use cranelift_codegen::ir::{InstBuilder, Value};
use std::rc::Rc;
use symshape::Dim;

/// A left factor as a line of pixels.
pub(super) struct PixelPacking {
    pub(super) pixels: Rc<SlidingWindows>,
    pub(super) pack_buffer: BufferId,
    /// What becomes of its numbers, and bytes of one before that.
    pub(super) form: RowForm,
    pub(super) element_bytes: i64,
    /// Bytes from one laid out pixel to the next.
    pub(super) step_bytes: Dim,
    /// Bytes of one part of a pixel.
    pub(super) plane_bytes: Dim,
}

impl PixelPacking {
    /// Tiles, or iterations of the outer axes, that there is room for.
    pub(super) fn steps(&self, f: &mut FuncCtx, plan: &Plan, rows: &Rows) -> Result<Value> {
        let (last, outer) = plan.contraction.m.split_last().expect("checked in plan");
        let (capacity, step) =
            (f.unit.program.buffers[self.pack_buffer].elems.clone(), f.dim(&self.step_bytes)?);
        let capacity = f.dim(&capacity)?;
        let capacity = f.builder.ins().udiv(capacity, step);
        // What every block has beside what each step adds, and what a step adds at most.
        let (fixed, each) = match (outer, &self.pixels.outer_steps[..]) {
            ([], _) => {
                let row = f.dim(&self.pixels.row_step)?;
                (self.pixels.span_of_row(), f.builder.ins().imul(row, rows.rows))
            }
            ([_, axis], [around, step]) => {
                // From the last iteration of the inner axis to the next of the outer one it may be further.
                let extent = axis.extent.clone().max(1.into());
                let further = (around - step * &extent).max(0.into());
                let each = f.dim(&(step + further.ceil_div(&extent)))?;
                (self.pixels.span_of_rows(&last.extent) + further, each)
            }
            (_, steps) => {
                let each = steps.iter().fold(Dim::zero(), |each, step| each + step);
                (self.pixels.span_of_rows(&last.extent), f.dim(&each)?)
            }
        };
        let (fixed, one, zero) = (f.dim(&fixed)?, f.int(1), f.int(0));
        let each = f.builder.ins().smax(each, one);
        let left = f.builder.ins().isub(capacity, fixed);
        let left = f.builder.ins().smax(left, zero);
        let steps = f.builder.ins().udiv(left, each);
        Ok(f.builder.ins().smax(steps, one))
    }

    /// Lays out the rows of tiles `first..end`, and returns where the row of number 0 would lie, as a distance in bytes from
    /// the room.
    pub(super) fn pack_tiles(&self, f: &mut FuncCtx, rows: (Value, Value)) -> Result<Value> {
        let (step, window) = (f.dim(&self.pixels.row_step)?, f.dim(&self.pixels.span_of_row())?);
        let from = f.builder.ins().imul(rows.0, step);
        let count = f.builder.ins().isub(rows.1, rows.0);
        let count = f.builder.ins().iadd_imm_s(count, -1);
        let count = f.builder.ins().imul(count, step);
        let count = f.builder.ins().iadd(count, window);
        self.pack(f, from, count)?;
        let bytes = f.dim(&self.step_bytes)?;
        let skipped = f.builder.ins().imul(from, bytes);
        Ok(f.builder.ins().ineg(skipped))
    }

    /// Lays out what joint iterations `first..end` of the outer axes read; there is at least one.
    pub(super) fn pack_axes(
        &self,
        f: &mut FuncCtx,
        contraction: &Contraction,
        (first, end): (Value, Value),
    ) -> Result<()> {
        let last = f.builder.ins().iadd_imm_s(end, -1);
        let (from, to) = (self.place(f, contraction, first)?, self.place(f, contraction, last)?);
        let count = f.builder.ins().isub(to, from);
        let (axis, _) = contraction.m.split_last().expect("checked in plan");
        let windows = f.dim(&self.pixels.span_of_rows(&axis.extent))?;
        let count = f.builder.ins().iadd(count, windows);
        self.pack(f, from, count)
    }

    /// How far from the room the first row of joint iteration `number` lies, in a block that begins with `first`, in bytes.
    pub(super) fn distance(
        &self,
        f: &mut FuncCtx,
        contraction: &Contraction,
        first: Value,
        number: Value,
    ) -> Result<Value> {
        let (from, to) = (self.place(f, contraction, first)?, self.place(f, contraction, number)?);
        let pixels = f.builder.ins().isub(to, from);
        let bytes = f.dim(&self.step_bytes)?;
        Ok(f.builder.ins().imul(pixels, bytes))
    }

    /// The pixel that a joint iteration of the outer axes begins with.
    fn place(&self, f: &mut FuncCtx, contraction: &Contraction, number: Value) -> Result<Value> {
        let (_, outer) = contraction.m.split_last().expect("checked in plan");
        let ([_, axis], [around, step]) = (outer, &self.pixels.outer_steps[..]) else {
            let step = self.pixels.outer_steps.iter().fold(Dim::zero(), |step, other| step + other);
            let step = f.dim(&step)?;
            return Ok(f.builder.ins().imul(number, step));
        };
        let (extent, around, step) = (f.dim(&axis.extent)?, f.dim(around)?, f.dim(step)?);
        let whole = f.builder.ins().udiv(number, extent);
        let skipped = f.builder.ins().imul(whole, extent);
        let inside = f.builder.ins().isub(number, skipped);
        let before = f.builder.ins().imul(whole, around);
        let inside = f.builder.ins().imul(inside, step);
        Ok(f.builder.ins().iadd(before, inside))
    }

    /// Lays out pixels from one on, where the room begins.
    fn pack(&self, f: &mut FuncCtx, first: Value, count: Value) -> Result<()> {
        let key = PackRowsKey { form: self.form, dense: true, levels: 1 };
        let pitch = self.element_bytes * self.pixels.pitch;
        let mut args = Args::new(key.slots());
        let from = f.address(&self.pixels.base)?;
        let skipped = f.builder.ins().imul_imm_s(first, pitch);
        args.set(PackRowsKey::FROM, f.builder.ins().iadd(from, skipped));
        args.set(PackRowsKey::FROM_ROW, f.int(pitch));
        args.set(PackRowsKey::TO, f.address(&Access { buffer: self.pack_buffer, index: Dim::zero() })?);
        args.set(PackRowsKey::TO_ROW, f.dim(&self.step_bytes)?);
        args.set(PackRowsKey::ROWS, count);
        args.set(PackRowsKey::PLANE, f.dim(&self.plane_bytes)?);
        args.set(PackRowsKey::level(0), f.int(self.pixels.run));
        let block = args.place(f);
        let microkernel = f.unit.microkernel(MicrokernelKey::PackRows(key))?;
        f.call(microkernel, &[block]);
        Ok(())
    }
}
