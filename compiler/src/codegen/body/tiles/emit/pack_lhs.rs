//! Packing of the lhs for a block of rows.

use super::{calls::for_joint_rows, rows::RowTiles};
use crate::{
    codegen::{
        body::{
            split::IterationRange,
            tiles::plan::{PackedLhs, TilePlan},
        },
        function::FuncCtx,
    },
    error::Result,
};
use cranelift_codegen::ir::{InstBuilder, Value};

impl PackedLhs {
    /// Steps of a block that fit the pack buffer, at least one. A step is a row tile where there is one row axis, else
    /// a joint iteration of the outer ones.
    pub(super) fn block_steps(&self, f: &mut FuncCtx, plan: &TilePlan, rows: &RowTiles) -> Result<Value> {
        match self {
            PackedLhs::Rows(packed) => packed.block_steps(f, plan, rows),
            PackedLhs::Pixels(packed) => packed.block_steps(f, plan, rows),
        }
    }

    /// Packs the rows of a block. Where there is one row axis, returns the offset in bytes from the beginning of the
    /// pack buffer at which row 0 would be.
    pub(super) fn pack_block(
        &self,
        f: &mut FuncCtx,
        plan: &TilePlan,
        rows: &RowTiles,
        IterationRange { begin: first, end }: IterationRange,
    ) -> Result<Option<Value>> {
        if plan.has_one_row_axis() {
            let first = rows.first_row(f, first);
            let end = rows.first_row(f, end);
            let offset = match self {
                PackedLhs::Rows(packed) => packed.pack_row_range(f, IterationRange { begin: first, end }),
                PackedLhs::Pixels(packed) => packed.pack_row_range(f, IterationRange { begin: first, end }),
            };
            return offset.map(Some);
        }

        match self {
            PackedLhs::Rows(packed) => {
                for_joint_rows(f, plan, IterationRange { begin: first, end }, &mut |f, joint| {
                    let count = f.ins().isub(joint, first);
                    let offset = packed.axis_offset(f, plan.last_rows(), count)?;
                    packed.pack_axis(f, plan.last_rows(), offset)
                })?
            }
            PackedLhs::Pixels(packed) => {
                packed.pack_iterations(f, plan.contraction, IterationRange { begin: first, end })?
            }
        }
        Ok(None)
    }
}
