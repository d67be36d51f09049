//! `run`: checks the dims, places the buffers, and calls the kernels one after another.
//!
//! It works on a frame, see [`frame`], which all kernels of a call share: [`open`] fills it, and [`run_steps`]
//! executes the list of kernels and control markers. It allocates nothing. It calls only the kernels, the program's
//! external functions, and the host's `parallel_for`, if there is one.

use super::{
    arguments::{RUN_PARAMS, RunArguments},
    contract,
    control::ControlRegions,
    estimate,
    host::Host,
    kernels::{DriverStep, EmittedPart},
    share, sizes, state,
};
use crate::{
    codegen::{
        body::{
            split::{self, PartSplit, split_axis},
            tiles,
        },
        function::{FuncCtx, ModuleBuilder, frame},
    },
    error::Result,
    kernel::MemorySpace,
};
use cranelift_codegen::ir::{BlockArg, InstBuilder, Value, condcodes::IntCC, types};
use cranelift_module::{FuncId, Linkage};
use std::mem::offset_of;
use symshape::Dim;
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
    for step in steps {
        match step {
            DriverStep::Control(control) => regions.execute(f, control)?,
            DriverStep::Part(part) => call_part(f, frame, host, part)?,
        }
    }
    Ok(())
}

/// Stack memory for a frame.
pub(crate) fn frame_on_stack(f: &mut FuncCtx) -> Value {
    let slot = f.slot(frame::bytes(f.unit.program) as usize, 64);
    f.ins().stack_addr(types::I64, slot, 0)
}

/// Prepares the frame of a call; the function returns an error if a guard fails.
pub(crate) fn open(f: &mut FuncCtx, frame: Value, arguments: &RunArguments) -> Result<Host> {
    let host = open_frame(f, frame, arguments.exec);
    f.store_at(arguments.dims, frame, frame::CALLER_DIMS);
    check_dims(f, frame, arguments.dims)?;
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

fn call_part(f: &mut FuncCtx, frame: Value, host: &Host, part: &EmittedPart) -> Result<()> {
    if part.can_share(f.unit.program.workers.max(1)) {
        call_shared(f, frame, host, part)?;
    } else {
        call_whole(f, frame, part)?;
    }

    if part.fails {
        return_if_failed(f, frame)?;
    }
    Ok(())
}

/// Runs all iterations of a part on the calling thread.
fn call_whole(f: &mut FuncCtx, frame: Value, part: &EmittedPart) -> Result<()> {
    let begin = f.int(0);
    let copy = f.ins().iconst(types::I32, 0);
    let end = match split::iterations(part.split()) {
        Some(iterations) => f.dim(&iterations)?,
        // The axis is `ALL`, which makes a contraction ignore the range.
        None => begin,
    };
    f.call(part.func, &[frame, begin, end, copy]);
    Ok(())
}

/// The cut of a part into shares, as values of the driver.
struct Sharing {
    /// One of [`split_axis`].
    axis: Value,
    /// The iterations to divide.
    count: Value,
    /// The number of shares.
    shares: Value,
}

/// Shares the part among the host's threads if the host has threads and the work is worth them.
fn call_shared(f: &mut FuncCtx, frame: Value, host: &Host, part: &EmittedPart) -> Result<()> {
    let [serial, has_threads, shared, after] = [0; 4].map(|_| f.create_block());
    let exit = f.ins().brif(host.parallel_for, has_threads, &[], serial, &[]);

    f.switch_to_block(has_threads);
    f.push_scope(exit);
    let is_enough = estimate::is_enough(f, &part.work)?;
    let sharing = sharing(f, host, part)?;
    let are_several = f.ins().icmp_imm_s(IntCC::SignedGreaterThan, sharing.shares, 1);
    let pays = f.ins().band(is_enough, are_several);
    f.ins().brif(pays, shared, &[], serial, &[]);

    f.switch_to_block(shared);
    run_shares(f, frame, host, part, &sharing)?;
    f.ins().jump(after, &[]);
    f.pop_scope();

    f.switch_to_block(serial);
    call_whole(f, frame, part)?;
    f.ins().jump(after, &[]);

    f.switch_to_block(after);
    Ok(())
}

/// How to cut a part for the host's threads.
fn sharing(f: &mut FuncCtx, host: &Host, part: &EmittedPart) -> Result<Sharing> {
    let (axis, count) = match part.split() {
        PartSplit::Contraction(contraction) => tiles::select_split(f, contraction, host.threads)?,
        split => {
            let axis = f.int(split_axis::ALL);
            let count = f.dim(&split::iterations(split).unwrap_or_else(Dim::one))?;
            (axis, count)
        }
    };

    let mut shares = f.ins().smin(host.threads, count);
    if part.uses_scratch {
        // Each share needs a copy of the scratch buffers, and there is one for each worker.
        let copies = f.int(i64::from(f.unit.program.workers));
        shares = f.ins().smin(shares, copies);
    }
    Ok(Sharing { axis, count, shares })
}

/// Stores the cut in the frame, and runs the shares on the host's threads.
fn run_shares(
    f: &mut FuncCtx,
    frame: Value,
    host: &Host,
    part: &EmittedPart,
    sharing: &Sharing,
) -> Result<()> {
    let body = f.function_address(part.func);
    f.store_fields(
        frame,
        &[
            (body, frame::BODY),
            (sharing.count, frame::COUNT),
            (sharing.shares, frame::SHARES),
            (sharing.axis, frame::SPLIT_AXIS),
        ],
    );

    let task = share::share(f.unit)?;
    host.parallel_for(f, sharing.shares, task, frame);

    // Parts that run on the calling thread alone rely on `ALL`.
    let whole = f.int(split_axis::ALL);
    f.store_at(whole, frame, frame::SPLIT_AXIS);
    Ok(())
}

/// Returns the code of the error in the frame, if there is one.
pub(crate) fn return_if_failed(f: &mut FuncCtx, frame: Value) -> Result<()> {
    let code = f.load_word(frame, frame::FAILED);
    f.leave_if(code, |f| {
        let code = f.ins().ireduce(types::I32, code);
        f.ins().return_(&[code]);
        Ok(())
    })
}
