//! Contractions as scalar loops, one element of the result at a time.
//!
//! This form supports every type and every index. Microkernels replace it wherever they support the contraction.

mod operands;
mod rounded;

use super::block::{self, Accumulator, BlockContext};
use crate::{
    codegen::function::FuncCtx,
    error::Result,
    kernel::{Access, Axis, Contraction, Kernel, Rhs},
};
use cranelift_codegen::ir::InstBuilder;
use operands::{load_few_bits, load_operand};
use symshape::Dim;

/// Emits the loops over the rows and columns of the result.
pub(super) fn emit(f: &mut FuncCtx, kernel: &Kernel, contraction: &Contraction) -> Result<()> {
    nest(f, &contraction.m, &mut |f| f.for_axis(&contraction.n, |f| emit_element(f, kernel, contraction)))
}

/// Emits nested loops over the axes, outermost first.
fn nest(f: &mut FuncCtx, axes: &[Axis], inner: &mut dyn FnMut(&mut FuncCtx) -> Result<()>) -> Result<()> {
    match axes {
        [] => inner(f),
        [axis, rest @ ..] => f.for_axis(axis, |f| nest(f, rest, inner)),
    }
}

/// Emits the loops over the reduction and the epilogue, for one element of the result.
fn emit_element(f: &mut FuncCtx, kernel: &Kernel, contraction: &Contraction) -> Result<()> {
    if let Rhs::FewBits(panels) = &contraction.rhs
        && panels.form.rounds_lhs
    {
        let value = rounded::sum(f, contraction, panels)?;
        let sum = Some(Accumulator { value, dtype: contraction.dtype });
        return block::emit(
            f,
            kernel,
            &contraction.epilogue,
            &BlockContext { sum, ..BlockContext::default() },
        );
    }
    let ty = FuncCtx::reg_type(contraction.dtype);
    let accumulator = f.builder.declare_var(ty);
    let zero = f.zero(ty);
    f.builder.def_var(accumulator, zero);

    let rhs = rhs_access(contraction);
    nest(f, &contraction.k, &mut |f| {
        let lhs = load_operand(f, contraction, &contraction.lhs)?;
        let rhs = match &contraction.rhs {
            Rhs::FewBits(panels) => load_few_bits(f, contraction, panels)?,
            Rhs::Panels { .. } | Rhs::Indexed(_) => load_operand(f, contraction, &rhs)?,
        };

        let sum = f.builder.use_var(accumulator);
        let sum = if contraction.dtype.is_float() {
            let product = f.ins().fmul(lhs, rhs);
            f.ins().fadd(sum, product)
        } else {
            let product = f.ins().imul(lhs, rhs);
            f.ins().iadd(sum, product)
        };

        f.builder.def_var(accumulator, sum);
        Ok(())
    })?;

    let value = f.builder.use_var(accumulator);
    let sum = Some(Accumulator { value, dtype: contraction.dtype });
    block::emit(f, kernel, &contraction.epilogue, &BlockContext { sum, ..BlockContext::default() })
}

/// The element of the right operand, as an access over the variables of the contraction.
fn rhs_access(contraction: &Contraction) -> Access {
    let (buffer, base, width) = match &contraction.rhs {
        Rhs::Indexed(access) => return access.clone(),
        Rhs::Panels { buffer, base, width } => (*buffer, base, i64::from(*width)),
        // An element is computed from several places, see `load_few_bits`.
        Rhs::FewBits(panels) => return Access { buffer: panels.buffer, index: panels.base.clone() },
    };

    // A panel holds `width` columns, row by row.
    let row = contraction.k.iter().fold(Dim::zero(), |row, axis| row * &axis.extent + Dim::from(&axis.var));
    let column = Dim::from(&contraction.n.var);
    let panel = column.floor_div(width);
    let index = base + (panel * contraction.depth() + row) * width + column.modulo(width);
    Access { buffer, index }
}
