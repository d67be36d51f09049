//! Calls of external functions, as [`symshape_runtime::abi::Call`] describes them.
//!
//! In an object file an external function is an undefined symbol, which the linker resolves. In this process it is the
//! address that was registered. `run` writes the description of a call to its stack; all calls reuse one area, since
//! they run one after another:
//!
//! ```text
//! abi::Call | a CallTensor for each operand, then for each result | their shapes, one word an axis
//! ```

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

/// Stack memory that is large enough for the description of any call of the program.
pub(crate) fn call_area(f: &mut FuncCtx) -> StackSlot {
    let calls = f.unit.program.kernels.iter().filter_map(|kernel| match &kernel.control {
        Some(Control::Call(call)) => Some(description_bytes(call)),
        _ => None,
    });
    let bytes = calls.max().unwrap_or(0);
    f.slot(bytes, 16)
}

fn arguments(call: &ExternalCall) -> impl Iterator<Item = &Argument> {
    call.operands.iter().chain(&call.results)
}

fn description_bytes(call: &ExternalCall) -> usize {
    let shapes = arguments(call).map(|argument| 8 * argument.shape.len()).sum::<usize>();
    shapes_offset(call) + shapes
}

/// Offset of the first shape in the description of a call.
fn shapes_offset(call: &ExternalCall) -> usize {
    size_of::<abi::Call>() + size_of::<CallTensor>() * arguments(call).count()
}

/// Emits a call; `run` returns an error if the callee does.
pub(crate) fn call(f: &mut FuncCtx, frame: Value, area: StackSlot, call: &ExternalCall) -> Result<()> {
    let description = f.ins().stack_addr(types::I64, area, 0);
    store_tensors(f, frame, description, call)?;
    store_call(f, frame, description, call)?;
    let code = transfer(f, &call.callee, description).at(|| call.context.clone())?;

    let is_ok = f.ins().icmp_imm_s(IntCC::Equal, code, 0);
    let value = f.ins().sextend(types::I64, code);
    let zero = f.int(0);
    contract::require(f, frame, is_ok, &Failure::external_call(call), [value, zero, zero])
}

/// Stores the descriptions of all operands and results.
fn store_tensors(f: &mut FuncCtx, frame: Value, description: Value, call: &ExternalCall) -> Result<()> {
    let mut shape = shapes_offset(call);
    for (idx, argument) in arguments(call).enumerate() {
        let offset = size_of::<abi::Call>() + idx * size_of::<CallTensor>();
        let place = TensorPlace { base: description, tensor: offset, shape };
        store_tensor(f, frame, place, argument)?;
        shape += 8 * argument.shape.len();
    }
    Ok(())
}

/// Stores the fields of [`abi::Call`].
fn store_call(f: &mut FuncCtx, frame: Value, description: Value, call: &ExternalCall) -> Result<()> {
    let attributes = if call.callee.attributes.is_empty() {
        f.int(0)
    } else {
        let table = attributes(f.unit, &call.callee)?;
        f.data_address(table)
    };
    let scratch = frame_pointer(f, frame, call.scratch);
    let scratch_bytes = match call.scratch {
        Some(buffer) => f.dim(&f.unit.program.buffers[buffer].bytes())?,
        None => f.int(0),
    };
    let device_memory = device_memory(f.unit, &call.callee);
    let memory = frame_pointer(f, frame, device_memory);
    let data = match (&call.callee.function, f.unit.form.kind) {
        (Some(function), ModuleKind::InProcess) => f.int(function.data() as i64),
        _ => f.int(0),
    };
    let exec = f.load_word(frame, frame::EXEC);
    let first_tensor = size_of::<abi::Call>();
    let first_result = first_tensor + size_of::<CallTensor>() * call.operands.len();
    let inputs = f.ins().iadd_imm_s(description, first_tensor as i64);
    let outputs = f.ins().iadd_imm_s(description, first_result as i64);

    f.store_fields(
        description,
        &[
            (inputs, offset_of!(abi::Call, inputs) as i32),
            (outputs, offset_of!(abi::Call, outputs) as i32),
            (attributes, offset_of!(abi::Call, attributes) as i32),
            (scratch, offset_of!(abi::Call, scratch) as i32),
            (scratch_bytes, offset_of!(abi::Call, scratch_bytes) as i32),
            (data, offset_of!(abi::Call, data) as i32),
            (exec, offset_of!(abi::Call, exec) as i32),
            (memory, offset_of!(abi::Call, memory) as i32),
        ],
    );
    for (count, offset) in [
        (call.operands.len(), offset_of!(abi::Call, n_inputs)),
        (call.results.len(), offset_of!(abi::Call, n_outputs)),
        (call.callee.attributes.len(), offset_of!(abi::Call, n_attributes)),
        (0, offset_of!(abi::Call, reserved)),
    ] {
        store_u32(f, description, offset, count as u32);
    }
    Ok(())
}

/// The buffer at the start of the memory of the callee's device, if that device has memory.
fn device_memory(unit: &ModuleBuilder, callee: &Callee) -> Option<BufferId> {
    let device = unit.program.devices.iter().position(|device| device.target == callee.target)?;
    unit.plan.lowest_of(unit.program, device as u32)
}

/// The address of a buffer, as the frame stores it, or null.
fn frame_pointer(f: &mut FuncCtx, frame: Value, buffer: Option<BufferId>) -> Value {
    match buffer {
        Some(buffer) => {
            let slot = f.buffer_slot(buffer);
            f.load_word(frame, slot)
        }
        None => f.int(0),
    }
}

fn store_u32(f: &mut FuncCtx, base: Value, offset: usize, value: u32) {
    let value = f.ins().iconst(types::I32, i64::from(value));
    f.store_at(value, base, offset as i32);
}

/// Where the description of a tensor and its shape are stored: offsets from `base`.
#[derive(Clone, Copy)]
struct TensorPlace {
    base: Value,
    tensor: usize,
    shape: usize,
}

/// Stores the description of an argument and its shape.
fn store_tensor(f: &mut FuncCtx, frame: Value, place: TensorPlace, argument: &Argument) -> Result<()> {
    let TensorPlace { base, tensor, shape } = place;
    let id = argument.first.buffer;
    let buffer = &f.unit.program.buffers[id];
    let dtype = buffer.dtype;

    let begin = match buffer.space {
        MemorySpace::Const(_) => {
            let place = f.unit.constant(id)?;
            f.constant_address(place)?
        }
        _ => frame_pointer(f, frame, Some(id)),
    };
    let distance = f.dim(&(&argument.first.index * dtype.size_bytes() as i64))?;
    let data = f.ins().iadd(begin, distance);
    f.store_at(data, base, (tensor + offset_of!(CallTensor, data)) as i32);

    for (axis, dim) in argument.shape.iter().enumerate() {
        let dim = f.dim(dim)?;
        f.store_at(dim, base, (shape + 8 * axis) as i32);
    }
    let dims = f.ins().iadd_imm_s(base, shape as i64);
    f.store_at(dims, base, (tensor + offset_of!(CallTensor, shape)) as i32);

    store_u32(f, base, tensor + offset_of!(CallTensor, dtype), dtype as u32);
    store_u32(f, base, tensor + offset_of!(CallTensor, rank), argument.shape.len() as u32);
    Ok(())
}

/// Transfers control to the callee, and returns its code.
fn transfer(f: &mut FuncCtx, callee: &Callee, description: Value) -> Result<Value> {
    let code = if f.unit.form.kind == ModuleKind::InProcess {
        let function = callee.function.as_ref().ok_or_else(|| callee.unregistered())?;
        let address = f.int(function.address() as usize as i64);
        f.call_indirect(address, &[types::I64], &[types::I32], &[description])
    } else {
        let existing = f.unit.module.declarations().get_name(&callee.symbol);
        if existing.is_some_and(|existing| !f.unit.is_callee(existing)) {
            return Err(own_name(&callee.symbol));
        }
        let id = f.unit.declare(&callee.symbol, Linkage::Import, &[types::I64], &[types::I32])?;
        f.call(id, &[description])
    };
    code.ok_or_else(|| Error::internal("an external function returns a code"))
}

/// The table of a callee's attributes, an array of [`CallAttribute`].
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
