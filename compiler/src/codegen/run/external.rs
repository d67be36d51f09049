//! Calls of functions outside of the compiler, as [`symshape_runtime::abi::Call`] describes them.
//!
//! In an artefact such a function is a symbol that somebody else defines; in this process it is the address that was
//! registered. What is handed over is written to one block on the stack of `run`, which all calls use in turn.

use super::contract;
use crate::{
    codegen::function::{
        FuncCtx, ModuleBuilder, frame,
        module::{ModuleKind, own_name},
        table::Table,
    },
    error::{At, Error, Result},
    external::Callee,
    kernel::{Argument, BufferId, Control, ExternalCall, MemorySpace, contract::Failure},
};
use cranelift_codegen::ir::{InstBuilder, StackSlot, Value, condcodes::IntCC, types};
use cranelift_module::{DataId, Linkage};
use std::mem::offset_of;
use symshape_runtime::{
    abi::{self, CallAttribute, CallTensor},
    external::AttributeValue,
};

/// Room on the stack for what any call of the program is handed.
pub(crate) fn room(f: &mut FuncCtx) -> StackSlot {
    let calls = f.unit.program.kernels.iter().filter_map(|kernel| match &kernel.control {
        Some(Control::Call(call)) => Some(bytes(call)),
        _ => None,
    });
    let bytes = calls.max().unwrap_or(0);
    f.slot(bytes, 16)
}

fn arguments(call: &ExternalCall) -> impl Iterator<Item = &Argument> {
    call.operands.iter().chain(&call.results)
}

fn bytes(call: &ExternalCall) -> usize {
    let tensors = size_of::<CallTensor>() * arguments(call).count();
    size_of::<abi::Call>() + tensors + 8 * arguments(call).map(|one| one.shape.len()).sum::<usize>()
}

/// Emits a call, and the end of `run` where it fails.
pub(crate) fn call(f: &mut FuncCtx, frame: Value, room: StackSlot, call: &ExternalCall) -> Result<()> {
    let base = f.ins().stack_addr(types::I64, room, 0);
    let tensors = size_of::<abi::Call>();
    let mut shape = tensors + size_of::<CallTensor>() * arguments(call).count();
    for (idx, argument) in arguments(call).enumerate() {
        let at = tensors + idx * size_of::<CallTensor>();
        tensor(f, frame, base, (at, shape), argument)?;
        shape += 8 * argument.shape.len();
    }
    let attributes = match call.callee.attributes.is_empty() {
        true => f.int(0),
        false => {
            let table = attributes(f.unit, &call.callee)?;
            f.data_address(table)
        }
    };
    let (scratch, scratch_bytes) = match call.scratch {
        Some(buffer) => {
            let bytes = f.unit.program.buffers[buffer].bytes();
            (slot(f, frame, f.buffer_slot(buffer)), f.dim(&bytes)?)
        }
        None => (f.int(0), f.int(0)),
    };
    let memory = match device(f.unit, &call.callee) {
        Some(buffer) => slot(f, frame, f.buffer_slot(buffer)),
        None => f.int(0),
    };
    let data = match (&call.callee.function, f.unit.form.kind) {
        (Some(function), ModuleKind::InProcess) => f.int(function.data() as i64),
        _ => f.int(0),
    };
    let exec = slot(f, frame, frame::EXEC);
    let inputs = f.ins().iadd_imm_s(base, tensors as i64);
    let before = size_of::<CallTensor>() * call.operands.len();
    let outputs = f.ins().iadd_imm_s(base, (tensors + before) as i64);
    for (value, at) in [
        (inputs, offset_of!(abi::Call, inputs)),
        (outputs, offset_of!(abi::Call, outputs)),
        (attributes, offset_of!(abi::Call, attributes)),
        (scratch, offset_of!(abi::Call, scratch)),
        (scratch_bytes, offset_of!(abi::Call, scratch_bytes)),
        (data, offset_of!(abi::Call, data)),
        (exec, offset_of!(abi::Call, exec)),
        (memory, offset_of!(abi::Call, memory)),
    ] {
        f.store_at(value, base, at as i32);
    }
    for (count, at) in [
        (call.operands.len(), offset_of!(abi::Call, n_inputs)),
        (call.results.len(), offset_of!(abi::Call, n_outputs)),
        (call.callee.attributes.len(), offset_of!(abi::Call, n_attributes)),
        (0, offset_of!(abi::Call, reserved)),
    ] {
        put_u32(f, base, at, count as u32);
    }
    let code = transfer(f, &call.callee, base).at(|| call.context.clone())?;
    let good = f.ins().icmp_imm_s(IntCC::Equal, code, 0);
    let (value, zero) = (f.ins().sextend(types::I64, code), f.int(0));
    contract::require(f, frame, good, &Failure::external_call(call), [value, zero, zero])
}

/// The buffer with which the memory of the callee's device begins, if there is such a memory.
fn device(unit: &ModuleBuilder, callee: &Callee) -> Option<BufferId> {
    let number = unit.program.devices.iter().position(|device| device.target == callee.target)?;
    unit.plan.lowest_of(unit.program, number as u32)
}

fn slot(f: &mut FuncCtx, frame: Value, at: i32) -> Value {
    f.load_word(frame, at)
}

fn put_u32(f: &mut FuncCtx, base: Value, at: usize, value: u32) {
    let value = f.ins().iconst(types::I32, i64::from(value));
    f.store_at(value, base, at as i32);
}

/// Writes an argument's description at `at`, and its shape at `shape`, from `base` on.
fn tensor(
    f: &mut FuncCtx,
    frame: Value,
    base: Value,
    (at, shape): (usize, usize),
    argument: &Argument,
) -> Result<()> {
    let id = argument.first.buffer;
    let buffer = &f.unit.program.buffers[id];
    let dtype = buffer.dtype;
    let begin = match buffer.space {
        MemorySpace::Const(_) => {
            let data = f.unit.constant(id)?;
            f.data_address(data)
        }
        _ => slot(f, frame, f.buffer_slot(id)),
    };
    let distance = f.dim(&(&argument.first.index * dtype.size_bytes() as i64))?;
    let data = f.ins().iadd(begin, distance);
    f.store_at(data, base, (at + offset_of!(CallTensor, data)) as i32);
    for (axis, dim) in argument.shape.iter().enumerate() {
        let dim = f.dim(dim)?;
        f.store_at(dim, base, (shape + 8 * axis) as i32);
    }
    let dims = f.ins().iadd_imm_s(base, shape as i64);
    f.store_at(dims, base, (at + offset_of!(CallTensor, shape)) as i32);
    put_u32(f, base, at + offset_of!(CallTensor, dtype), dtype as u32);
    put_u32(f, base, at + offset_of!(CallTensor, rank), argument.shape.len() as u32);
    Ok(())
}

/// Goes to the function; its code.
fn transfer(f: &mut FuncCtx, callee: &Callee, call: Value) -> Result<Value> {
    if f.unit.form.kind == ModuleKind::InProcess {
        let function = callee.function.as_ref().ok_or_else(|| callee.unregistered())?;
        let address = f.int(function.address() as usize as i64);
        let signature = f.unit.signature(&[types::I64], &[types::I32]);
        let signature = f.builder.import_signature(signature);
        let call = f.ins().call_indirect(signature, address, &[call]);
        return Ok(f.builder.inst_results(call)[0]);
    }
    let taken = f.unit.module.declarations().get_name(&callee.symbol);
    if taken.is_some_and(|known| !f.unit.is_callee(known)) {
        return Err(own_name(&callee.symbol));
    }
    let id = f.unit.declare(&callee.symbol, Linkage::Import, &[types::I64], &[types::I32])?;
    f.call(id, &[call]).ok_or_else(|| Error::internal("a function that returns its code"))
}

/// The table of a callee's constants.
fn attributes(unit: &mut ModuleBuilder, callee: &Callee) -> Result<DataId> {
    let mut table = Table::new(size_of::<CallAttribute>() * callee.attributes.len());
    for (idx, attribute) in callee.attributes.iter().enumerate() {
        let base = idx * size_of::<CallAttribute>();
        table.put_text(unit, base + offset_of!(CallAttribute, name), &attribute.name)?;
        let (kind, count) = attribute.value.kind();
        let bytes: Vec<u8> = match &attribute.value {
            AttributeValue::Ints(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            AttributeValue::Floats(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            AttributeValue::Bytes(values) => values.iter().copied().chain([0]).collect(),
        };
        let name = format!("attribute_{}", unit.unique_id());
        let data = unit.data(&name, bytes.into(), 8)?;
        table.data.push((base + offset_of!(CallAttribute, data), data));
        table.put_i64(base + offset_of!(CallAttribute, count), count as i64);
        table.put_u32(base + offset_of!(CallAttribute, kind), kind);
    }
    let number = unit.unique_id();
    let name = unit.symbol(&format!("attributes_{number}"));
    table.define(unit, &name, Linkage::Local)
}
