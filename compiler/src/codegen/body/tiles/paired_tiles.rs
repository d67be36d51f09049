//! Short rows in pairs, on tile registers.
//!
//! Where the last row axis has at most as many rows as a register, as small images have, a tile would fill half of the
//! registers, and read twice as much of the right factor for each row as it can multiply with. Two iterations of the outer
//! axes make one tile then, each with registers and an argument block of its own; an odd one at the end is a tile alone.

use super::{
    blocks::{self, Position},
    plan::Plan,
    tiling::Rows,
};
use crate::{
    codegen::{function::FuncCtx, microkernel::contraction::TileKey},
    error::Result,
    kernel::Axis,
};
use cranelift_codegen::ir::{InstBuilder, Value, types};
use symshape::{Dim, Symbol};

/// The microkernels for joint iterations `first..end` of the outer row axes, at one tile of columns.
pub(super) fn run(
    f: &mut FuncCtx,
    plan: &Plan,
    rows: &Rows,
    at: &Position,
    (first, end): (Value, Value),
) -> Result<()> {
    let count = f.builder.ins().isub(end, first);
    let (zero, pairs) = (f.int(0), f.builder.ins().ushr_imm_u(count, 1));
    let axis = Axis { var: Symbol::new("pair of rows"), extent: Dim::from(i64::MAX) };
    f.for_axis_range(&axis, zero, pairs, |f| {
        let (pair, _) = f.symbol(&axis.var)?;
        let before = f.builder.ins().ishl_imm_u(pair, 1);
        let upper = f.builder.ins().iadd(first, before);
        let lower = f.builder.ins().iadd_imm_s(upper, 1);
        let behind = f.builder.ins().iadd_imm_s(upper, 2);
        let mut slot = None;
        blocks::joint(f, plan, (upper, lower), &mut |f, number| {
            let distance = blocks::distance(f, plan, first, number)?;
            let (_, mut args) = blocks::args(f, plan, at, distance)?;
            let one = f.int(1);
            args.set(TileKey::TILES, one);
            args.set(TileKey::TILE_ROWS, rows.rows);
            args.set(TileKey::CONFIGURED, rows.ready(f, rows.rows));
            let words = args.values(f);
            // The block outlives those of the other iteration.
            let own = f.slot(8 * words.len(), 16);
            for (word, value) in words.into_iter().enumerate() {
                f.builder.ins().stack_store(types::I64, value, own, 8 * word as i32);
            }
            slot = Some(own);
            Ok(())
        })?;
        let Some(slot) = slot else { return Ok(()) };
        blocks::joint(f, plan, (lower, behind), &mut |f, number| {
            let distance = blocks::distance(f, plan, first, number)?;
            let (_, args) = blocks::args(f, plan, at, distance)?;
            let other = args.place(f);
            f.builder.ins().stack_store(types::I64, other, slot, 8 * TileKey::PAIR_ARGS as i32);
            let block = f.builder.ins().stack_addr(types::I64, slot, 0);
            let signature = f.unit.signature(&[types::I64], &[]);
            let signature = f.builder.import_signature(signature);
            f.builder.ins().call_indirect(signature, at.microkernels[1], &[block]);
            Ok(())
        })
    })?;
    let whole = f.builder.ins().ishl_imm_u(pairs, 1);
    let alone = f.builder.ins().iadd(first, whole);
    blocks::joint(f, plan, (alone, end), &mut |f, number| {
        let distance = blocks::distance(f, plan, first, number)?;
        blocks::call(f, plan, rows, at, None, distance, None)
    })
}
