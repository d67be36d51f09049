//! `run`: validates the dims, places the buffers, and calls the kernels one after another.
//!
//! It allocates nothing. It calls only the kernels and the host's `parallel_for`, if there is one.

use super::{
    contract, control, estimate,
    host::Host,
    kernels::{Emitted, Step},
    share, sizes,
};
use crate::{
    codegen::{
        body::{
            split::{self, Split, split_axis},
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
    kernels: &[Step],
    name: &str,
    linkage: Linkage,
) -> Result<FuncId> {
    let name = unit.symbol(name);
    let id = unit.declare(&name, linkage, &[types::I64; 5], &[types::I32])?;
    unit.define(id, |f, params| {
        let [inputs, outputs, dims, arena, exec] = *params else { return Ok(()) };
        let frame = frame_on_stack(f);
        let host = open(f, frame, [inputs, outputs, dims, arena, exec])?;
        steps(f, frame, &host, dims, kernels)?;
        f.return_ok();
        Ok(())
    })?;
    Ok(id)
}

/// Calls the kernels and executes control markers.
pub(crate) fn steps(f: &mut FuncCtx, frame: Value, host: &Host, dims: Value, kernels: &[Step]) -> Result<()> {
    let mut regions = control::Regions::new(frame, dims);
    for step in kernels {
        match step {
            Step::Control(control) => regions.step(f, control)?,
            Step::Part(emitted) => call_part(f, frame, host, emitted)?,
        }
    }
    Ok(())
}

/// Memory for a frame.
pub(crate) fn frame_on_stack(f: &mut FuncCtx) -> Value {
    let slot = f.slot(frame::bytes(f.unit.program) as usize, 64);
    f.ins().stack_addr(types::I64, slot, 0)
}

/// Prepares the frame of a call; the function returns where the contract is broken.
pub(crate) fn open(
    f: &mut FuncCtx,
    frame: Value,
    [inputs, outputs, dims, arena, exec]: [Value; 5],
) -> Result<Host> {
    let host = open_frame(f, frame, exec);
    f.store_at(dims, frame, frame::CALLER_DIMS);
    validate(f, frame, dims)?;
    fill_frame(f, frame, [inputs, outputs, arena])?;
    Ok(host)
}

/// Sets the frame's error slot and executor.
fn open_frame(f: &mut FuncCtx, base: Value, exec: Value) -> Host {
    let offset = i64::from(frame::spare_error(f.unit.program));
    let unseen = f.ins().iadd_imm_s(base, offset);
    let (some, next) = (f.create_block(), f.create_block());
    let [error, parallel_for, data, threads] = [0; 4].map(|_| f.builder.append_block_param(next, types::I64));
    let zero = f.int(0);
    let absent = [unseen.into(), zero.into(), zero.into(), zero.into()];
    f.ins().brif(exec, some, &[], next, &absent);
    f.switch_to_block(some);
    let wanted = f.load_word(exec, offset_of!(abi::Exec, error) as i32);
    let wanted = f.ins().select(wanted, wanted, unseen);
    let offered = Host::offered(f, exec);
    let told = [wanted, offered.parallel_for, offered.data, offered.threads].map(BlockArg::Value);
    f.ins().jump(next, &told);
    f.builder.seal_block(some);
    f.switch_to_block(next);
    f.builder.seal_block(next);
    let all = f.int(split_axis::ALL);
    for (value, slot) in [
        (error, frame::ERROR),
        (zero, frame::FAILED),
        (exec, frame::EXEC),
        (all, frame::SPLIT_AXIS),
        (parallel_for, frame::PARALLEL_FOR),
        (data, frame::HOST),
        (threads, frame::THREADS),
    ] {
        f.store_at(value, base, slot);
    }
    Host { parallel_for, data, threads }
}

/// Copies the dims into the frame and checks the guards on them again, because a caller may skip `check`.
fn validate(f: &mut FuncCtx, frame: Value, dims: Value) -> Result<()> {
    let contract = f.unit.contract;
    for (idx, declared) in contract.symbols.iter().enumerate() {
        let at = 8 * idx as i32;
        let value = f.load_word(dims, at);
        f.store_at(value, frame, frame::symbol_slot(idx));
        contract::accept_symbol(f, frame, value, declared)?;
    }
    contract::check_relations(f, frame, &contract.relations)?;
    f.set_dims(frame, frame::symbol_slot(0));
    Ok(())
}

/// Puts every buffer's address into the frame; constants are addressed by the kernels themselves.
fn fill_frame(f: &mut FuncCtx, frame: Value, [inputs, outputs, arena]: [Value; 3]) -> Result<()> {
    let (offsets, _) = sizes::offsets(f)?;
    for (id, buffer) in &f.unit.program.buffers {
        let address = match buffer.space {
            MemorySpace::Input(idx) => f.load_word(inputs, 8 * idx as i32),
            MemorySpace::Output(idx) => f.load_word(outputs, 8 * idx as i32),
            MemorySpace::Arena | MemorySpace::Scratch | MemorySpace::Device(_) => match offsets.get(&id) {
                Some(offset) => f.ins().iadd(arena, *offset),
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

fn call_part(f: &mut FuncCtx, frame: Value, host: &Host, emitted: &Emitted) -> Result<()> {
    let workers = f.unit.program.workers.max(1);
    match emitted.can_share && (workers > 1 || !emitted.uses_scratch) {
        true => call_shared(f, frame, host, emitted)?,
        false => call_alone(f, frame, emitted)?,
    }
    if emitted.fails {
        leave_on_error(f, frame);
    }
    Ok(())
}

/// Runs all of a part at once.
fn call_alone(f: &mut FuncCtx, frame: Value, emitted: &Emitted) -> Result<()> {
    let (begin, first) = (f.int(0), f.ins().iconst(types::I32, 0));
    let end = match split::iterations(emitted.part.split) {
        Some(iterations) => f.dim(&iterations)?,
        None => begin,
    };
    f.call(emitted.func, &[frame, begin, end, first]);
    Ok(())
}

/// Splits the part over the host's threads where that pays.
fn call_shared(f: &mut FuncCtx, frame: Value, host: &Host, emitted: &Emitted) -> Result<()> {
    let [serial, many, shared, after] = [0; 4].map(|_| f.create_block());
    let exit = f.ins().brif(host.parallel_for, many, &[], serial, &[]);
    f.switch_to_block(many);
    f.push_scope(exit);
    let enough = estimate::is_enough(f, &emitted.work)?;
    let (axis, count) = match emitted.part.split {
        Split::Contraction(contract) => tiles::select_split(f, contract, host.threads)?,
        split => (f.int(split_axis::ALL), f.dim(&split::iterations(split).unwrap_or_else(Dim::one))?),
    };
    let mut shares = f.ins().smin(host.threads, count);
    if emitted.uses_scratch {
        let copies = f.int(i64::from(f.unit.program.workers));
        shares = f.ins().smin(shares, copies);
    }
    let several = f.ins().icmp_imm_s(IntCC::SignedGreaterThan, shares, 1);
    let pays = f.ins().band(enough, several);
    f.ins().brif(pays, shared, &[], serial, &[]);
    f.switch_to_block(shared);
    let body = f.func_ref(emitted.func);
    let body = f.ins().func_addr(types::I64, body);
    for (value, slot) in
        [(body, frame::BODY), (count, frame::COUNT), (shares, frame::SHARES), (axis, frame::SPLIT_AXIS)]
    {
        f.store_at(value, frame, slot);
    }
    let task = share::share(f.unit)?;
    host.parallel_for(f, shares, task, frame);
    let all = f.int(split_axis::ALL);
    f.store_at(all, frame, frame::SPLIT_AXIS);
    f.ins().jump(after, &[]);
    f.pop_scope();
    f.switch_to_block(serial);
    call_alone(f, frame, emitted)?;
    f.ins().jump(after, &[]);
    f.switch_to_block(after);
    Ok(())
}

pub(crate) fn leave_on_error(f: &mut FuncCtx, frame: Value) {
    let (bad, next) = (f.create_block(), f.create_block());
    f.builder.set_cold_block(bad);
    let code = f.load_word(frame, frame::FAILED);
    f.ins().brif(code, bad, &[], next, &[]);
    f.switch_to_block(bad);
    let code = f.ins().ireduce(types::I32, code);
    f.ins().return_(&[code]);
    f.switch_to_block(next);
}
