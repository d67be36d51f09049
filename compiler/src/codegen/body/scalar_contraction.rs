//! Contractions as scalar loops, one element of the result at a time.
//!
//! This form supports every type and every index. Microkernels replace it wherever they support the contraction.

use super::block::{self, Accumulator, BlockContext};
use crate::{
    codegen::function::FuncCtx,
    error::{Error, Result},
    kernel::{Access, Axis, Contraction, FewBitsPanels, Kernel, Rhs},
};
use cranelift_codegen::ir::{InstBuilder, Value, types};
use symshape::Dim;
use symshape_runtime::DType;

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

/// Loads an element of an operand, in the type of the accumulator.
fn load_operand(f: &mut FuncCtx, contraction: &Contraction, access: &Access) -> Result<Value> {
    let dtype = f.unit.program.buffers[access.buffer].dtype;
    let address = f.address(access)?;
    let value = f.load(dtype, address, 0);
    Ok(f.cast(dtype, contraction.dtype, value))
}

/// Computes the element of a right operand of few bits.
fn load_few_bits(f: &mut FuncCtx, contraction: &Contraction, panels: &FewBitsPanels) -> Result<Value> {
    let place = panels.place(contraction);
    let place = place.ok_or_else(|| Error::internal("panels of few bits of an unknown size"))?;
    let address = |f: &mut FuncCtx, index: Dim| f.address(&Access { buffer: panels.buffer, index });

    let scale = address(f, place.scale)?;
    let scale = f.load(panels.form.scale, scale, 0);
    let scale = f.cast(panels.form.scale, DType::F32, scale);

    // The bits above the code are shifted out, then those below.
    let code = address(f, place.code)?;
    let code = f.load(DType::U8, code, 0);
    let code = f.cast(DType::U8, DType::I32, code);
    let code = f.ins().bxor_imm_u(code, i64::from(panels.form.flipped_bits()));
    let bit = f.dim(&place.bit)?;
    let bit = f.ins().ireduce(types::I32, bit);
    let all = f.ins().iconst(types::I32, 32 - i64::from(panels.form.bits));
    let unused = f.ins().isub(all, bit);
    let code = f.ins().ishl(code, unused);
    let mut code = f.ins().sshr_imm_u(code, 32 - i64::from(panels.form.bits));
    if let Some(zero) = place.zero {
        let zero = address(f, zero)?;
        let zero = f.load(DType::I8, zero, 0);
        let zero = f.cast(DType::I8, DType::I32, zero);
        code = f.ins().isub(code, zero);
    }

    let code = f.cast(DType::I32, DType::F32, code);
    Ok(f.ins().fmul(code, scale))
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
