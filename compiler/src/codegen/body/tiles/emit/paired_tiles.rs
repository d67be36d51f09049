//! Pairs of short row axes, on tile registers.
//!
//! Where the last row axis has at most as many rows as one register, as in small images, a tile would fill half of the
//! registers and read twice as much of the rhs for each row as it could. Two iterations of the outer axes then form
//! one tile, each with registers and an argument block for itself. An odd last iteration is a tile alone.

use super::{
    calls::{call_tiles, for_joint_rows, packed_offset, shared_args},
    position::Position,
    rows::RowTiles,
};
use crate::{
    codegen::{
        body::{split::IterationRange, tiles::plan::TilePlan},
        function::FuncCtx,
        microkernel::contraction::TileKey,
    },
    error::Result,
};
use cranelift_codegen::ir::{InstBuilder, StackSlot, Value, types};

/// Emits the calls for joint iterations `first..end` of the outer row axes, at one tile of columns.
pub(super) fn emit(
    f: &mut FuncCtx,
    plan: &TilePlan,
    rows: &RowTiles,
    at: &Position,
    IterationRange { begin: first, end }: IterationRange,
) -> Result<()> {
    let count = f.ins().isub(end, first);
    let zero = f.int(0);
    let n_pairs = f.ins().ushr_imm_u(count, 1);
    f.for_range(zero, n_pairs, |f, pair| {
        let before = f.ins().ishl_imm_u(pair, 1);
        let upper = f.ins().iadd(first, before);
        let lower = f.ins().iadd_imm_s(upper, 1);
        let next = f.ins().iadd_imm_s(upper, 2);

        let mut upper_slot = None;
        for_joint_rows(f, plan, IterationRange { begin: upper, end: lower }, &mut |f, joint| {
            upper_slot = Some(store_upper_args(f, plan, rows, at, first, joint)?);
            Ok(())
        })?;
        let Some(upper_slot) = upper_slot else { return Ok(()) };

        for_joint_rows(f, plan, IterationRange { begin: lower, end: next }, &mut |f, joint| {
            let offset = packed_offset(f, plan, first, joint)?;
            let lower_args = shared_args(f, plan, at, offset)?.args;
            let lower_block = lower_args.place(f);
            f.ins().stack_store(types::I64, lower_block, upper_slot, 8 * TileKey::PAIR_ARGS as i32);
            let block = f.ins().stack_addr(types::I64, upper_slot, 0);
            f.call_microkernel(at.microkernels[1], block);
            Ok(())
        })
    })?;

    let paired = f.ins().ishl_imm_u(n_pairs, 1);
    let alone = f.ins().iadd(first, paired);
    for_joint_rows(f, plan, IterationRange { begin: alone, end }, &mut |f, joint| {
        let offset = packed_offset(f, plan, first, joint)?;
        call_tiles(f, plan, rows, at, None, offset, None)
    })
}

/// Stores the arguments of the upper iteration of a pair in a stack slot that outlives the argument block of the lower
/// one.
fn store_upper_args(
    f: &mut FuncCtx,
    plan: &TilePlan,
    rows: &RowTiles,
    at: &Position,
    first: Value,
    joint: Value,
) -> Result<StackSlot> {
    let offset = packed_offset(f, plan, first, joint)?;
    let mut args = shared_args(f, plan, at, offset)?.args;
    let one = f.int(1);
    args.set(TileKey::TILES, one);

    args.set(TileKey::TILE_ROWS, rows.rows);
    args.set(TileKey::CONFIGURED, rows.is_configured(f, rows.rows));
    let words = args.values(f);
    let slot = f.slot(8 * words.len(), 16);

    for (word, value) in words.into_iter().enumerate() {
        f.ins().stack_store(types::I64, value, slot, 8 * word as i32);
    }

    Ok(slot)
}
