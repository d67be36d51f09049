//! Lines one behind the other in one call, on tile registers.
//!
//! Where each iteration of the innermost row axis but the last, as a line of an image is one, moves all that a microkernel reads and
//! writes by the same steps, the microkernel goes through as many of them as there are: it finishes a line while it multiplies the
//! next, and registers are configured once. Lines are as long as their tiles are equally high; two that fill half of the
//! registers are a pair.

use super::{
    blocks::{self, Position},
    packing::PackedLhs,
    plan::Plan,
    tiling::Rows,
};
use crate::{
    codegen::{
        body::body_builder::{Stream, linear_parts},
        function::FuncCtx,
        microkernel::contraction::{AMX_ROWS, TileKey},
    },
    error::Result,
    kernel::{Axis, Contraction},
};
use cranelift_codegen::ir::{InstBuilder, Value, types};
use symshape::{Dim, Facts, Symbol};

/// What a line moves.
pub(super) struct LineBatch {
    /// The left factor, in bytes.
    a: Dim,
    /// Each stream, in elements: as the line moves it, and behind its last row.
    streams: Vec<(Dim, Dim)>,
}

impl LineBatch {
    /// The runs of a contraction that has them.
    pub(super) fn of(
        facts: &Facts,
        contraction: &Contraction,
        (lhs, left, a_bytes): (&Stream, &Option<PackedLhs>, i64),
        streams: &[Stream],
    ) -> Option<LineBatch> {
        let (last, outer) = contraction.m.split_last()?;
        let (line, rows) = (&outer.last()?.var, last.extent.as_i64().filter(|rows| *rows > 0)?);
        let max_tile_rows = AMX_ROWS as i64;
        let even = rows % ((rows + max_tile_rows - 1) / max_tile_rows) == 0;
        let fixed = |step: &Dim| contraction.m.iter().all(|axis| !step.contains(&axis.var));
        let step = |at: &Dim| {
            let (step, _) = linear_parts(facts, at, Some(line))?;
            fixed(&step).then_some(step)
        };
        let a = match left {
            None => step(&lhs.origin.index)? * a_bytes,
            Some(left) => left.line_bytes(&last.extent)?,
        };
        let streams = streams.iter().map(|stream| {
            let step = step(&stream.origin.index)?;
            let behind = &step - &stream.row * rows;
            Some((step, behind))
        });
        let streams: Vec<_> = streams.collect::<Option<_>>()?;
        (even && fixed(&a)).then_some(LineBatch { a, streams })
    }

    /// Whether lines don't move a stream.
    pub(super) fn is_still(&self, stream: usize) -> bool {
        self.streams[stream].0.as_i64() == Some(0)
    }
}

/// The microkernel for joint iterations `first..end` of the outer row axes, at one tile of columns: a call for each iteration of
/// those around the innermost of them.
pub(super) fn run(
    f: &mut FuncCtx,
    plan: &Plan,
    line_batch: &LineBatch,
    rows: &Rows,
    at: &Position,
    (first, end): (Value, Value),
) -> Result<()> {
    let (_, outer) = plan.contraction.m.split_last().expect("checked in plan");
    let lines = f.dim(&outer.last().expect("checked when the line_batch were made").extent)?;
    let one = f.int(1);
    let lines = f.builder.ins().smax(lines, one);
    let padded = f.builder.ins().iadd(end, lines);
    let padded = f.builder.ins().iadd_imm_s(padded, -1);
    let (before, behind) = (f.builder.ins().udiv(first, lines), f.builder.ins().udiv(padded, lines));
    let around = Axis { var: Symbol::new("run of lines"), extent: Dim::from(i64::MAX) };
    f.for_axis_range(&around, before, behind, |f| {
        let (number, _) = f.symbol(&around.var)?;
        let start = f.builder.ins().imul(number, lines);
        let stop = f.builder.ins().iadd(start, lines);
        let (start, stop) = (f.builder.ins().smax(start, first), f.builder.ins().smin(stop, end));
        let count = f.builder.ins().isub(stop, start);
        let behind = f.builder.ins().iadd_imm_s(start, 1);
        blocks::joint(f, plan, (start, behind), &mut |f, number| {
            let distance = blocks::distance(f, plan, first, number)?;
            let (key, mut args) = blocks::args(f, plan, at, distance)?;
            args.set(TileKey::TILES, rows.tiles);
            args.set(TileKey::TILE_ROWS, rows.rows);
            args.set(TileKey::CONFIGURED, rows.ready(f, rows.rows));
            let slot = key.line_batch_slot();
            args.set(slot, count);
            args.set(slot + 1, f.dim(&line_batch.a)?);
            for (idx, (stream, (_, behind))) in plan.streams.iter().zip(&line_batch.streams).enumerate() {
                let size = f.unit.program.buffers[stream.origin.buffer].dtype.size_bytes() as i64;
                args.set(slot + 2 + idx, f.dim(&(behind * size))?);
            }
            let block = args.place(f);
            let signature = f.unit.signature(&[types::I64], &[]);
            let signature = f.builder.import_signature(signature);
            f.builder.ins().call_indirect(signature, at.microkernels[0], &[block]);
            Ok(())
        })
    })
}
