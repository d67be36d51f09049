//! Elements of the operands of scalar contractions.

use crate::{
    codegen::function::FuncCtx,
    error::Result,
    kernel::{Access, Contraction, FewBitsPanels, few_bits::ElementPlace},
};
use cranelift_codegen::ir::{InstBuilder, Value, types};
use symshape::Dim;
use symshape_runtime::DType;

/// Loads an element of an operand, in the type of the accumulator.
pub(super) fn load_operand(f: &mut FuncCtx, contraction: &Contraction, access: &Access) -> Result<Value> {
    let dtype = f.unit.program.buffers[access.buffer].dtype;
    let address = f.address(access)?;
    let value = f.load(dtype, address, 0);
    Ok(f.cast(dtype, contraction.dtype, value))
}

/// Computes the element of a right operand of few bits.
pub(super) fn load_few_bits(
    f: &mut FuncCtx,
    contraction: &Contraction,
    panels: &FewBitsPanels,
) -> Result<Value> {
    let place = panels.place(contraction)?;
    let scale = load_scale(f, panels, &place)?;
    let integer = load_integer(f, panels, &place)?;
    let integer = f.cast(DType::I32, DType::F32, integer);
    Ok(f.ins().fmul(integer, scale))
}

/// Loads the scale of an element of few bits.
pub(super) fn load_scale(f: &mut FuncCtx, panels: &FewBitsPanels, place: &ElementPlace) -> Result<Value> {
    let address = f.address(&Access { buffer: panels.buffer, index: place.scale.clone() })?;
    let scale = f.load(panels.form.scale, address, 0);
    Ok(f.cast(panels.form.scale, DType::F32, scale))
}

/// Loads the integer of an element of few bits, less its zero point.
pub(super) fn load_integer(f: &mut FuncCtx, panels: &FewBitsPanels, place: &ElementPlace) -> Result<Value> {
    let address =
        |f: &mut FuncCtx, index: &Dim| f.address(&Access { buffer: panels.buffer, index: index.clone() });

    // The bits above the code are shifted out, then those below.
    let code = address(f, &place.code)?;
    let code = f.load(DType::U8, code, 0);
    let code = f.cast(DType::U8, DType::I32, code);
    let code = f.ins().bxor_imm_u(code, i64::from(panels.form.flipped_bits()));
    let bit = f.dim(&place.bit)?;
    let bit = f.ins().ireduce(types::I32, bit);
    let all = f.ins().iconst(types::I32, 32 - i64::from(panels.form.bits));
    let unused = f.ins().isub(all, bit);
    let code = f.ins().ishl(code, unused);
    let mut code = f.ins().sshr_imm_u(code, 32 - i64::from(panels.form.bits));
    if let Some(zero) = &place.zero {
        let zero = address(f, zero)?;
        let zero = f.load(DType::I8, zero, 0);
        let zero = f.cast(DType::I8, DType::I32, zero);
        code = f.ins().isub(code, zero);
    }
    Ok(code)
}
