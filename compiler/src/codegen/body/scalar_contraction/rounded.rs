//! Products of a rounded left operand with weights of few bits, see `scalar/activations.rs`.

use super::operands::{load_integer, load_operand, load_scale};
use crate::{
    codegen::function::FuncCtx,
    error::Result,
    kernel::{Contraction, FewBitsPanels},
    scalar::activations::{MAX_CODE, SMALLEST},
};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, condcodes::IntCC, types};
use symshape::Dim;
use symshape_runtime::DType;

/// Emits the sum of one element of the result.
pub(super) fn sum(f: &mut FuncCtx, contraction: &Contraction, panels: &FewBitsPanels) -> Result<Value> {
    let place = panels.place(contraction)?;
    let block = i64::from(panels.form.block);
    let depth = f.dim(&contraction.depth())?;
    let blocks = f.dim(&contraction.depth().ceil_div(block))?;
    let total = f.builder.declare_var(types::F32);
    let zero = f.zero(types::F32);
    f.builder.def_var(total, zero);

    let begin = f.int(0);
    f.for_range(begin, blocks, |f, number| {
        let first = f.ins().imul_imm_s(number, block);
        let end = f.ins().iadd_imm_s(first, block);
        let end = f.ins().smin(end, depth);

        let largest = f.builder.declare_var(types::I32);
        let none = f.zero(types::I32);
        f.builder.def_var(largest, none);
        f.for_range(first, end, |f, k| {
            bind_indices(f, contraction, k)?;
            let x = load_operand(f, contraction, &contraction.lhs)?;
            let bits = f.ins().bitcast(types::I32, MemFlagsData::new(), x);
            let magnitude = f.ins().band_imm_s(bits, 0x7fff_ffff);
            let before = f.builder.use_var(largest);
            let larger = f.ins().smax(before, magnitude);
            f.builder.def_var(largest, larger);
            Ok(())
        })?;

        let largest = f.builder.use_var(largest);
        let factors = Factors::emit(f, largest);
        let dot = f.builder.declare_var(types::I32);
        let none = f.zero(types::I32);
        f.builder.def_var(dot, none);
        f.for_range(first, end, |f, k| {
            bind_indices(f, contraction, k)?;
            let x = load_operand(f, contraction, &contraction.lhs)?;
            let code = factors.code(f, x);
            let integer = load_integer(f, panels, &place)?;
            let product = f.ins().imul(code, integer);
            let before = f.builder.use_var(dot);
            let after = f.ins().iadd(before, product);
            f.builder.def_var(dot, after);
            Ok(())
        })?;

        // All elements of a block have the scale of the first.
        bind_indices(f, contraction, first)?;
        let scale = load_scale(f, panels, &place)?;
        let scale = f.ins().fmul(factors.scale, scale);
        let dot = f.builder.use_var(dot);
        let dot = f.cast(DType::I32, DType::F32, dot);
        let product = f.ins().fmul(dot, scale);
        let before = f.builder.use_var(total);
        let after = f.ins().fadd(before, product);
        f.builder.def_var(total, after);
        Ok(())
    })?;
    Ok(f.builder.use_var(total))
}

/// Binds the reduction variables to their values at a joint index.
fn bind_indices(f: &mut FuncCtx, contraction: &Contraction, joint: Value) -> Result<()> {
    let mut stride = Dim::one();
    for (position, axis) in contraction.k.iter().enumerate().rev() {
        let step = f.dim(&stride)?;
        let mut value = f.ins().sdiv(joint, step);
        if position > 0 {
            let extent = f.dim(&axis.extent)?;
            value = f.ins().srem(value, extent);
        }
        f.facts_mut().declare_index(&axis.var, &axis.extent);
        f.bind(axis.var.clone(), value);
        stride = stride * &axis.extent;
    }
    Ok(())
}

/// The factors of a block.
struct Factors {
    scale: Value,
    inverse: Value,
    /// Whether codes are not all 0.
    is_kept: Value,
}

impl Factors {
    /// From the bits of the largest magnitude.
    fn emit(f: &mut FuncCtx, bits: Value) -> Factors {
        let largest = f.ins().bitcast(types::F32, MemFlagsData::new(), bits);
        let most = f.ins().f32const(MAX_CODE);
        let scale = f.ins().fdiv(largest, most);
        let inverse = f.ins().fdiv(most, largest);
        let is_large =
            f.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, bits, i64::from(SMALLEST.to_bits()));
        let is_finite = f.ins().icmp_imm_s(IntCC::SignedLessThanOrEqual, bits, i64::from(f32::MAX.to_bits()));
        let is_kept = f.ins().band(is_large, is_finite);
        Factors { scale, inverse, is_kept }
    }

    /// The code of an element.
    fn code(&self, f: &mut FuncCtx, x: Value) -> Value {
        let scaled = f.ins().fmul(x, self.inverse);
        // The last bit of this sum counts 1.
        let origin = f.ins().f32const(12_582_912.0);
        let sum = f.ins().fadd(scaled, origin);
        let bits = f.ins().bitcast(types::I32, MemFlagsData::new(), sum);
        let code = f.ins().iadd_imm_s(bits, -i64::from(12_582_912.0_f32.to_bits()));
        let none = f.zero(types::I32);
        f.ins().select(self.is_kept, code, none)
    }
}
