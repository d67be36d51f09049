//! Sizes as functions of the dims: `arena_bytes`, `output_shape`, and where each buffer lies.
//!
//! The offset of a buffer is the largest end of those that it lies above, see [`crate::plan`].

use crate::{
    codegen::function::{FuncCtx, ModuleBuilder},
    error::{Error, ErrorKind, Result},
    kernel::{BufferId, Program},
    plan::{self, ALIGN_BYTES, OffsetArithmetic},
};
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC, types};
use cranelift_module::{FuncId, Linkage};
use num_traits::Signed;
use std::collections::HashMap;
use symshape_runtime::{MAX_AXES, abi};

/// Refuses buffers without a bound, and those that are too large: all sizes then fit in 64 bits.
pub(crate) fn require_bounds(program: &Program) -> Result<()> {
    program.buffers.keys().try_for_each(|buffer| plan::size::upper_bound_bytes(program, buffer).map(|_| ()))
}

/// Refuses tensors with more axes than a call can be lent.
pub(crate) fn require_axes(program: &Program) -> Result<()> {
    for (what, port) in (program.inputs.iter().map(|port| ("input", port)))
        .chain(program.outputs.iter().map(|port| ("output", port)))
    {
        let rank = port.shape.len();
        if rank > MAX_AXES {
            let why = format!(
                "{what} `{}` has {rank} axes, and tensors of calls have at most {MAX_AXES}: join some of them by a Reshape",
                port.name
            );
            return Err(Error::new(ErrorKind::Contract, why));
        }
    }
    Ok(())
}

/// Values in a function, one for each buffer of the arena.
type Places = HashMap<BufferId, Value>;

/// Where every buffer of the arena begins, and the arena's size: values in the present function, which has dims.
pub(crate) fn offsets(f: &mut FuncCtx) -> Result<(Places, Value)> {
    let (begins, ends) = spans(f)?;
    let mut total = f.int(0);
    for placement in &f.unit.plan.placements {
        total = f.ins().smax(total, ends[&placement.buffer]);
    }
    Ok((begins, total))
}

/// Where every buffer of the arena begins and ends.
pub(crate) fn spans(f: &mut FuncCtx) -> Result<(Places, Places)> {
    let placements = &f.unit.plan.placements;
    let zero = f.int(0);
    let spans = plan::layout(placements, &mut EmittedOffsets { f, zero })?;

    let begins = spans.iter().map(|span| (span.buffer, span.begin)).collect();
    let ends = spans.iter().map(|span| (span.buffer, span.end)).collect();
    Ok((begins, ends))
}

/// Offsets as values of the present function.
struct EmittedOffsets<'f, 'a, 'b> {
    f: &'f mut FuncCtx<'a, 'b>,
    zero: Value,
}

impl OffsetArithmetic for EmittedOffsets<'_, '_, '_> {
    type Offset = Value;

    fn largest(&mut self, ends: Vec<Value>) -> Result<Value> {
        let largest = ends.into_iter().reduce(|a, b| self.f.ins().smax(a, b));
        Ok(largest.unwrap_or(self.zero))
    }

    fn end(&mut self, buffer: BufferId, begin: &Value) -> Result<Value> {
        let size = rounded_size(self.f, buffer)?;
        Ok(self.f.ins().iadd(*begin, size))
    }
}

fn rounded_size(f: &mut FuncCtx, buffer: BufferId) -> Result<Value> {
    let size = f.unit.program.bytes(buffer);
    let negative = f.facts().bounds(&size).lo.is_none_or(|lo| lo.is_negative());
    let mut value = f.dim(&size)?;
    if negative {
        let zero = f.int(0);
        value = f.ins().smax(value, zero);
    }
    let value = f.ins().iadd_imm_s(value, ALIGN_BYTES - 1);
    Ok(f.ins().band_imm_s(value, -ALIGN_BYTES))
}

/// Emits `arena_bytes(dims) -> size_t`.
pub(crate) fn arena_bytes(unit: &mut ModuleBuilder) -> Result<FuncId> {
    let name = unit.symbol("arena_bytes");
    let id = unit.declare(&name, Linkage::Export, &[types::I64], &[types::I64])?;
    unit.define(id, |f, params| {
        f.set_dims(params[0], 0);
        let (_, total) = offsets(f)?;
        f.ins().return_(&[total]);
        Ok(())
    })?;
    Ok(id)
}

/// Binds what is found while running to the values behind the symbols in `dims`, or to its bounds where there are none.
fn bind_data_dependent(f: &mut FuncCtx, dims: Value) -> Result<()> {
    let program = f.unit.program;
    for (idx, found) in program.data_dependent.iter().enumerate() {
        let at = 8 * (program.symbols.len() + idx) as i32;
        let value = f.load_word(dims, at);
        let unknown = f.ins().icmp_imm_s(IntCC::Equal, value, abi::UNKNOWN_DIM);
        let most = f.dim(&found.upper_bound)?;
        let value = f.ins().select(unknown, most, value);
        f.bind(found.symbol.clone(), value);
    }
    Ok(())
}

/// Emits `output_shape(output, dims, shape) -> code`.
pub(crate) fn output_shape(unit: &mut ModuleBuilder) -> Result<FuncId> {
    let name = unit.symbol("output_shape");
    let params = [types::I32, types::I64, types::I64];
    let id = unit.declare(&name, Linkage::Export, &params, &[types::I32])?;
    unit.define(id, |f, params| {
        f.set_dims(params[1], 0);
        bind_data_dependent(f, params[1])?;
        let outputs = &f.unit.program.outputs;
        f.switch(params[0], outputs.len(), |f, idx| {
            for (axis, dim) in outputs[idx].shape.iter().enumerate() {
                let value = f.dim(dim)?;
                f.store_at(value, params[2], 8 * axis as i32);
            }
            Ok(())
        })
    })?;
    Ok(id)
}
