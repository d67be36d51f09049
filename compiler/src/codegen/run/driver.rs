//! `run`: checks the dims, places the buffers, and calls the kernels one after another.
//!
//! It works on a frame, see [`frame`], which all kernels of a call share: [`open`] fills it, and [`run_steps`]
//! executes the list of kernels and control markers. It allocates nothing. It calls only the kernels, the program's
//! external functions, and the host's `parallel_for`, if there is one.

use super::{
    arguments::{RUN_PARAMS, RunArguments},
    calls::{call_part, frame_on_stack},
    contract,
    control::ControlRegions,
    host::Host,
    offsets, ragged, sizes, state,
    steps::DriverStep,
    weights,
};
use crate::{
    codegen::{
        body::split::split_axis,
        function::{FuncCtx, ModuleBuilder, frame},
    },
    error::Result,
    kernel::MemorySpace,
};
use cranelift_codegen::ir::{BlockArg, InstBuilder, Value, types};
use cranelift_module::{FuncId, Linkage};
use std::mem::offset_of;
use symshape_runtime::abi;

/// Emits `run(inputs, outputs, dims, arena, exec) -> code` under a name.
pub(crate) fn run(
    unit: &mut ModuleBuilder,
    steps: &[DriverStep],
    name: &str,
    linkage: Linkage,
) -> Result<FuncId> {
    let name = unit.symbol(name);
    let id = unit.declare(&name, linkage, &RUN_PARAMS, &[types::I32])?;
    unit.define(id, |f, params| {
        let arguments = RunArguments::of(params)?;
        let frame = frame_on_stack(f);
        let host = open(f, frame, &arguments)?;
        run_steps(f, frame, &host, arguments.dims, steps)?;
        f.return_ok();
        Ok(())
    })?;
    Ok(id)
}

/// Calls the kernels and executes the control markers.
pub(crate) fn run_steps(
    f: &mut FuncCtx,
    frame: Value,
    host: &Host,
    dims: Value,
    steps: &[DriverStep],
) -> Result<()> {
    let mut regions = ControlRegions::new(frame, dims);
    // All groups of kernels that run per sequence use one frame, because the stack may be small.
    let has_groups = steps.iter().any(|step| matches!(step, DriverStep::Sequences(_)));
    let own = if has_groups { frame_on_stack(f) } else { frame };
    for step in steps {
        match step {
            DriverStep::Control(control) => regions.execute(f, control)?,
            DriverStep::Part(part) => call_part(f, frame, host, part)?,
            DriverStep::Sequences(group) => ragged::call(f, frame, own, host, group)?,
        }
    }
    Ok(())
}

/// Prepares the frame of a call; the function returns an error if a guard fails.
pub(crate) fn open(f: &mut FuncCtx, frame: Value, arguments: &RunArguments) -> Result<Host> {
    let host = open_frame(f, frame, arguments.exec);
    f.store_at(arguments.dims, frame, frame::CALLER_DIMS);
    if f.unit.program.state.is_some() {
        let states = state::block(f, arguments);
        f.store_at(states, frame, frame::STATES);
    }
    check_dims(f, frame, arguments.dims)?;
    offsets::check(f, frame, arguments)?;
    weights::open(f, frame, arguments)?;
    store_buffers(f, frame, arguments)?;
    Ok(host)
}

/// Sets the frame's error slot and executor. Without an `exec`, errors go to the frame's own memory, and nothing runs
/// in parallel.
fn open_frame(f: &mut FuncCtx, frame: Value, exec: Value) -> Host {
    let own_error = i64::from(frame::spare_error(f.unit.program));
    let own_error = f.ins().iadd_imm_s(frame, own_error);

    let has_exec = f.create_block();
    let next = f.create_block();
    let [error, parallel_for, data, threads] = [0; 4].map(|_| f.builder.append_block_param(next, types::I64));
    let zero = f.int(0);
    let absent = [own_error, zero, zero, zero].map(BlockArg::Value);
    f.ins().brif(exec, has_exec, &[], next, &absent);

    f.switch_to_block(has_exec);
    let caller_error = f.load_word(exec, offset_of!(abi::Exec, error) as i32);
    let chosen_error = f.ins().select(caller_error, caller_error, own_error);
    let offered = Host::offered(f, exec);
    let present = [chosen_error, offered.parallel_for, offered.data, offered.threads].map(BlockArg::Value);
    f.ins().jump(next, &present);
    f.builder.seal_block(has_exec);

    f.switch_to_block(next);
    f.builder.seal_block(next);
    let whole = f.int(split_axis::ALL);
    f.store_fields(
        frame,
        &[
            (error, frame::ERROR),
            (zero, frame::FAILED),
            (exec, frame::EXEC),
            (whole, frame::SPLIT_AXIS),
            (parallel_for, frame::PARALLEL_FOR),
            (data, frame::HOST),
            (threads, frame::THREADS),
        ],
    );
    Host { parallel_for, data, threads }
}

/// Copies the dims into the frame, and checks the guards on them.
///
/// `check` has the same guards, but a caller may skip it, or call `run` with other dims. A dim out of its range would
/// make kernels access memory out of bounds.
fn check_dims(f: &mut FuncCtx, frame: Value, dims: Value) -> Result<()> {
    let contract = f.unit.contract;
    for (idx, declared) in contract.symbols.iter().enumerate() {
        let offset = 8 * idx as i32;
        let value = f.load_word(dims, offset);
        f.store_at(value, frame, frame::symbol_slot(idx));
        contract::accept_symbol(f, frame, value, declared)?;
    }
    contract::check_relations(f, frame, &contract.relations)?;
    f.set_dims(frame, frame::symbol_slot(0));
    Ok(())
}

/// Stores the address of every buffer in the frame. Kernels address constants directly.
fn store_buffers(f: &mut FuncCtx, frame: Value, arguments: &RunArguments) -> Result<()> {
    let offsets = sizes::arena_layout(f)?.begins;
    for (id, buffer) in &f.unit.program.buffers {
        let address = match buffer.space {
            MemorySpace::State(idx) => state::tensor_address(f, arguments, idx)?,
            MemorySpace::Input(idx) => f.load_word(arguments.inputs, 8 * idx as i32),
            MemorySpace::Output(idx) => f.load_word(arguments.outputs, 8 * idx as i32),
            MemorySpace::Arena | MemorySpace::Scratch | MemorySpace::Device(_) => match offsets.get(&id) {
                Some(offset) => f.ins().iadd(arguments.arena, *offset),
                // A buffer without a placement is unused.
                None => continue,
            },
            MemorySpace::Const(_) => continue,
        };

        let slot = f.buffer_slot(id);
        f.store_at(address, frame, slot);
    }

    Ok(())
}
