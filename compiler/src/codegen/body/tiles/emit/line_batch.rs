//! Calls that compute several lines of an image at once, on tile registers, see [`LineBatch`].

use super::{
    calls::{for_joint_rows, packed_offset, shared_args},
    position::Position,
    rows::RowTiles,
};
use crate::{
    codegen::{
        body::{
            split::IterationRange,
            tiles::plan::{LineBatch, TilePlan},
        },
        function::FuncCtx,
        microkernel::contraction::TileKey,
    },
    error::Result,
};
use cranelift_codegen::ir::InstBuilder;

/// Emits the calls for joint iterations `first..end` of the outer row axes at one tile of columns: one call for each
/// iteration of the axes around the innermost of them.
pub(super) fn emit(
    f: &mut FuncCtx,
    plan: &TilePlan,
    line_batch: &LineBatch,
    rows: &RowTiles,
    at: &Position,
    IterationRange { begin: first, end }: IterationRange,
) -> Result<()> {
    let line_axis = plan.outer_axes().last().expect("a line batch has an outer row axis");
    let lines = f.dim(&line_axis.extent)?;
    let one = f.int(1);
    let lines = f.ins().smax(lines, one);
    let padded = f.ins().iadd(end, lines);
    let padded = f.ins().iadd_imm_s(padded, -1);
    let first_batch = f.ins().udiv(first, lines);
    let end_batch = f.ins().udiv(padded, lines);

    f.for_range(first_batch, end_batch, |f, batch| {
        // The lines of this batch that are in the range.
        let start = f.ins().imul(batch, lines);
        let stop = f.ins().iadd(start, lines);
        let start = f.ins().smax(start, first);
        let stop = f.ins().smin(stop, end);
        let count = f.ins().isub(stop, start);

        // The arguments are those of the first line.
        let next = f.ins().iadd_imm_s(start, 1);
        for_joint_rows(f, plan, IterationRange { begin: start, end: next }, &mut |f, joint| {
            let offset = packed_offset(f, plan, first, joint)?;
            let shared = shared_args(f, plan, at, offset)?;
            let mut args = shared.args;
            args.set(TileKey::TILES, rows.tiles);

            args.set(TileKey::TILE_ROWS, rows.rows);
            args.set(TileKey::CONFIGURED, rows.is_configured(f, rows.rows));
            let slot = shared.key.line_batch_slot();
            args.set(slot, count);
            args.set(slot + 1, f.dim(&line_batch.lhs_bytes)?);

            for (idx, (stream, step)) in plan.streams.iter().zip(&line_batch.streams).enumerate() {
                let size = f.unit.program.buffers[stream.origin.buffer].dtype.size_bytes() as i64;
                args.set(slot + 2 + idx, f.dim(&(&step.after_rows * size))?);
            }

            let block = args.place(f);
            f.call_microkernel(at.microkernels[0], block);
            Ok(())
        })
    })
}
