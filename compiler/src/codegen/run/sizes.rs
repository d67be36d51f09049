//! Sizes as functions of the dims: `arena_bytes`, `output_shape`, and the layout of the arena.
//!
//! A buffer begins at the largest end of the buffers that its placement lists, see [`crate::plan`]. The functions rely
//! on dims that passed the guards, and on [`require_bounds`]: then no size exceeds 64 bits.

use crate::{
    codegen::function::{FuncCtx, ModuleBuilder},
    error::{Error, ErrorKind, Result},
    kernel::{BufferId, Program, data_dependent},
    plan::{self, ALIGN_BYTES, OffsetArithmetic},
};
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC, types};
use cranelift_module::{FuncId, Linkage};
use num_traits::Signed;
use std::collections::HashMap;
use symshape::Dim;
use symshape_runtime::{MAX_AXES, abi};

/// Refuses buffers without a bound, and those that are too large: all sizes then fit in 64 bits.
pub(crate) fn require_bounds(program: &Program) -> Result<()> {
    program.buffers.keys().try_for_each(|buffer| plan::size::upper_bound_bytes(program, buffer).map(|_| ()))
}

/// Refuses inputs and outputs with more axes than the ABI can describe.
pub(crate) fn require_axes(program: &Program) -> Result<()> {
    let inputs = program.inputs.iter().map(|port| ("input", port));
    let outputs = program.outputs.iter().map(|port| ("output", port));
    for (kind, port) in inputs.chain(outputs) {
        let rank = port.shape.len();
        if rank > MAX_AXES {
            let why = format!(
                "{kind} `{}` has {rank} axes, but inputs and outputs have at most {MAX_AXES}: join some of them by a Reshape",
                port.name
            );
            return Err(Error::new(ErrorKind::Contract, why));
        }
    }

    Ok(())
}

/// Byte offsets in the arena, one for each buffer, as values of the function that computes them.
type BufferOffsets = HashMap<BufferId, Value>;

/// The layout of the arena: a buffer occupies the bytes from its `begins` up to its `ends`.
pub(crate) struct ArenaLayout {
    pub(crate) begins: BufferOffsets,
    pub(crate) ends: BufferOffsets,
}

/// The layout of the arena for the dims of the current function.
pub(crate) fn arena_layout(f: &mut FuncCtx) -> Result<ArenaLayout> {
    let placements = &f.unit.plan.placements;
    let zero = f.int(0);
    let spans = plan::layout(placements, &mut EmittedOffsets { f, zero })?;

    let begins = spans.iter().map(|span| (span.buffer, span.begin)).collect();
    let ends = spans.iter().map(|span| (span.buffer, span.end)).collect();
    Ok(ArenaLayout { begins, ends })
}

/// Computes offsets by instructions of the current function.
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

/// The bytes of a buffer, rounded up to the alignment.
fn rounded_size(f: &mut FuncCtx, buffer: BufferId) -> Result<Value> {
    let size = f.unit.program.bytes(buffer);
    let may_be_negative = f.facts().bounds(&size).lo.is_none_or(|lo| lo.is_negative());
    let mut value = f.dim(&size)?;
    if may_be_negative {
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
        let ends = arena_layout(f)?.ends;
        let mut total = f.int(0);
        for placement in &f.unit.plan.placements {
            total = f.ins().smax(total, ends[&placement.buffer]);
        }
        let slices = i64::from(f.unit.program.arena_slices());
        if slices > 1 {
            total = f.ins().imul_imm_s(total, slices);
        }
        f.ins().return_(&[total]);
        Ok(())
    })?;

    Ok(id)
}

/// Binds data-dependent symbols to the values that `run` stored after the dims. Before the call they have no values:
/// then their upper bounds are used.
fn bind_data_dependent(f: &mut FuncCtx, dims: Value) -> Result<()> {
    let program = f.unit.program;
    for (idx, declared) in program.data_dependent.iter().enumerate() {
        let offset = 8 * (program.symbols.len() + idx) as i32;
        let value = f.load_word(dims, offset);
        let is_unknown = f.ins().icmp_imm_s(IntCC::Equal, value, abi::UNKNOWN_DIM);
        let upper_bound = f.dim(&declared.upper_bound)?;
        let value = f.ins().select(is_unknown, upper_bound, value);
        f.bind(declared.symbol.clone(), value);
    }
    Ok(())
}

/// A dim of an output: its upper bound before the call.
fn output_dim(f: &mut FuncCtx, dims: Value, dim: &Dim) -> Result<Value> {
    let program = f.unit.program;
    let size = f.dim(dim)?;
    let Some(unknown) = data_dependent::unknown_value(&program.facts, &program.data_dependent, dim)? else {
        return Ok(size);
    };

    let mut is_unknown = f.ins().iconst(types::I8, 0);
    for idx in unknown.symbols {
        let value = f.load_word(dims, 8 * (program.symbols.len() + idx) as i32);
        let is_unset = f.ins().icmp_imm_s(IntCC::Equal, value, abi::UNKNOWN_DIM);
        is_unknown = f.ins().bor(is_unknown, is_unset);
    }
    let upper_bound = f.dim(&unknown.upper_bound)?;
    Ok(f.ins().select(is_unknown, upper_bound, size))
}

/// Emits `output_shape(output, dims, shape) -> code`.
pub(crate) fn output_shape(unit: &mut ModuleBuilder) -> Result<FuncId> {
    let name = unit.symbol("output_shape");
    let id = unit.declare(&name, Linkage::Export, &[types::I32, types::I64, types::I64], &[types::I32])?;
    unit.define(id, |f, params| {
        let [output, dims, shape] = *params else {
            return Err(Error::internal("`output_shape` has three parameters"));
        };
        f.set_dims(dims, 0);
        bind_data_dependent(f, dims)?;

        let outputs = &f.unit.program.outputs;
        f.switch(output, outputs.len(), |f, idx| {
            for (axis, dim) in outputs[idx].shape.iter().enumerate() {
                let size = output_dim(f, dims, dim)?;
                f.store_at(size, shape, 8 * axis as i32);
            }
            Ok(())
        })
    })?;
    Ok(id)
}
