//! Right-hand sides that are computed at run time, for tile registers: the panels of a tile of columns are split and laid out in the room
//! before the rows of a block are multiplied with them.
//!
//! They stay in the second-level cache, and are split once for a block of rows, whose own part of the room is as large as
//! that of any other contraction.

use super::{blocks::Position, plan::Plan};
use crate::{
    codegen::{
        body::{args::Args, body_builder::linear_parts},
        function::FuncCtx,
        microkernel::{MicrokernelKey, contraction::PANEL, pack_panels::PackPanelsKey},
    },
    error::Result,
    kernel::{Access, Contraction, Rhs},
};
use cranelift_codegen::ir::InstBuilder;
use symshape::{Dim, Facts};

/// Bytes of a number.
const BYTES: i64 = 4;

/// An rhs in its layout in memory, with adjacent columns.
pub(super) struct ComputedRhs {
    /// At column 0.
    origin: Access,
    /// From number to number of a column.
    step: Dim,
    /// From panel to panel.
    panel: Dim,
    /// Numbers of a column.
    depth: Dim,
}

impl ComputedRhs {
    /// Of a contraction that [`crate::kernel::Program::on_tiles`] says fits.
    pub(super) fn of(facts: &Facts, contraction: &Contraction) -> Option<ComputedRhs> {
        let depth = contraction.depth();
        match &contraction.rhs {
            Rhs::Panels { buffer, base, width } => {
                let origin = Access { buffer: *buffer, index: base.clone() };
                Some(ComputedRhs {
                    origin,
                    step: i64::from(*width).into(),
                    panel: &depth * i64::from(*width),
                    depth,
                })
            }
            Rhs::Indexed(access) => {
                let [k] = &contraction.k[..] else { return None };
                let (step, rest) = linear_parts(facts, &access.index, Some(&k.var))?;
                let (column, at) = linear_parts(facts, &rest, Some(&contraction.n.var))?;
                let fixed = |dim: &Dim| !contraction.m.iter().any(|axis| dim.contains(&axis.var));
                let is_dense = column.as_i64() == Some(1) && !step.contains(&contraction.n.var);
                (is_dense && fixed(&at) && fixed(&step)).then_some(())?;
                let origin = Access { buffer: access.buffer, index: at };
                Some(ComputedRhs { origin, step, panel: (PANEL as i64).into(), depth })
            }
        }
    }

    /// Lays out the panels of a tile of columns where the room begins.
    pub(super) fn pack(&self, f: &mut FuncCtx, plan: &Plan, at: &Position) -> Result<()> {
        let key = PackPanelsKey { low: plan.product().parts().rhs > 1 };
        let mut args = Args::new(PackPanelsKey::SLOTS);
        let panel = f.dim(&(&self.panel * BYTES))?;
        let number = f.builder.ins().ushr_imm_u(at.column, i64::from(PANEL.trailing_zeros()));
        let skipped = f.builder.ins().imul(number, panel);
        let from = f.address(&self.origin)?;
        args.set(PackPanelsKey::FROM, f.builder.ins().iadd(from, skipped));
        args.set(PackPanelsKey::FROM_STEP, f.dim(&(&self.step * BYTES))?);
        args.set(PackPanelsKey::FROM_PANEL, panel);
        args.set(PackPanelsKey::TO, f.address(&plan.rhs_stream.origin)?);
        args.set(PackPanelsKey::COLUMNS, f.builder.ins().smin(at.left, at.width));
        args.set(PackPanelsKey::DEPTH, f.dim(&self.depth)?);
        let block = args.place(f);
        let microkernel = f.unit.microkernel(MicrokernelKey::PackPanels(key))?;
        f.call(microkernel, &[block]);
        Ok(())
    }
}
