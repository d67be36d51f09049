//! `run`: validates the dims, places the buffers, and calls the kernels one after another.
//!
//! It allocates nothing and calls nobody but the kernels and, when there is one, the host's `parallel_for`.

use super::{
    contract, control, estimate,
    function::{FuncCtx, frame},
    loops, sizes,
    split::{self, Part, Split, way},
    tiles,
    unit::Unit,
};
use crate::{
    error::{At, Result},
    kernel::{Control, MemorySpace, contract as kernel_contract, cost},
};
use cranelift_codegen::ir::{BlockArg, InstBuilder, MemFlagsData, Value, condcodes::IntCC, types};
use cranelift_module::{FuncId, Linkage};
use std::{mem::offset_of, ops::Range};
use symshape::Dim;
use symshape_runtime::abi;

/// An emitted part of a kernel.
pub(super) struct Emitted<'k> {
    func: FuncId,
    part: Part<'k>,
    /// An expression over the model's symbols, see [`cost`].
    work: Dim,
    fails: bool,
    uses_scratch: bool,
    can_share: bool,
}

impl Emitted<'_> {
    /// What of it may run at once.
    pub(super) fn split(&self) -> Split<'_> {
        self.part.split
    }

    /// The work, and whether several threads can share it.
    pub(super) fn estimate(&self, workers: u32) -> (&Dim, bool) {
        (&self.work, self.can_share && (workers > 1 || !self.uses_scratch))
    }
}

/// A step of the list of kernels: one to call, or one that steers others.
pub(super) enum Step<'k> {
    Part(Emitted<'k>),
    Control(&'k Control),
}

/// Emits the functions of these kernels; `level` stands in their names.
pub(super) fn kernels<'u>(unit: &mut Unit<'u>, range: Range<usize>, level: &str) -> Result<Vec<Step<'u>>> {
    let program = unit.program;
    let mut list = Vec::with_capacity(range.len());
    for idx in range {
        let kernel = &program.kernels[idx];
        if let Some(control) = &kernel.control {
            list.push(Step::Control(control));
            continue;
        }
        for (number, part) in split::parts(program, kernel).into_iter().enumerate() {
            let (mut fails, mut uses_scratch, mut can_share) = (false, false, false);
            let params = [types::I64, types::I64, types::I64, types::I32];
            let number = if number == 0 { String::new() } else { format!("_{number}") };
            let name = format!("kernel_{idx}{number}{level}");
            let func = unit
                .define_local(&name, &params, &[], |f, params| {
                    can_share = loops::part(f, kernel, &part, params)?;
                    (fails, uses_scratch) = (f.fails, f.uses_scratch);
                    Ok(())
                })
                .at(|| format!("kernel {idx} ({})", kernel.name))?;
            let work = cost::work(program, part.body);
            list.push(Step::Part(Emitted { func, part, work, fails, uses_scratch, can_share }));
        }
    }
    Ok(list)
}

/// Emits `run(inputs, outputs, dims, arena, exec) -> code` under a name.
pub(super) fn run(unit: &mut Unit, kernels: &[Step], name: &str, linkage: Linkage) -> Result<FuncId> {
    let name = unit.symbol(name);
    let id = unit.declare(&name, linkage, &[types::I64; 5], &[types::I32])?;
    unit.define(id, |f, params| {
        let [inputs, outputs, dims, arena, exec] = *params else { return Ok(()) };
        let frame = frame_on_stack(f);
        let host = open(f, frame, [inputs, outputs, dims, arena, exec])?;
        steps(f, frame, &host, dims, kernels)?;
        let ok = f.builder.ins().iconst(types::I32, 0);
        f.builder.ins().return_(&[ok]);
        Ok(())
    })?;
    Ok(id)
}

/// What the host offers.
pub(super) struct Host {
    /// Its `parallel_for`, or zero where there is none or one thread only.
    pub(super) parallel_for: Value,
    /// Its number of threads.
    pub(super) threads: Value,
    /// What `parallel_for` wants back.
    data: Value,
}

impl Host {
    /// What the frame says.
    pub(super) fn of(f: &mut FuncCtx, frame: Value) -> Host {
        let [parallel_for, threads, data] = [frame::PARALLEL_FOR, frame::THREADS, frame::HOST]
            .map(|slot| f.builder.ins().load(types::I64, MemFlagsData::trusted(), frame, slot));
        Host { parallel_for, threads, data }
    }

    /// What an [`abi::Exec`] says, which must not be null.
    pub(super) fn offered(f: &mut FuncCtx, exec: Value) -> Host {
        let trusted = MemFlagsData::trusted();
        let word = |f: &mut FuncCtx, at: usize| f.builder.ins().load(types::I64, trusted, exec, at as i32);
        let (parallel_for, data) =
            (word(f, offset_of!(abi::Exec, parallel_for)), word(f, offset_of!(abi::Exec, host)));
        let threads = f.builder.ins().uload32(trusted, exec, offset_of!(abi::Exec, threads) as i32);
        let many = f.builder.ins().icmp_imm_u(IntCC::UnsignedGreaterThan, threads, 1);
        let none = f.int(0);
        let parallel_for = f.builder.ins().select(many, parallel_for, none);
        Host { parallel_for, threads, data }
    }

    /// Calls `parallel_for`, which must not be zero: `task` is `(data, begin, end, worker)`, for all of `0..count`.
    pub(super) fn hand_out(&self, f: &mut FuncCtx, count: Value, task: FuncId, data: Value) {
        let task = f.func_ref(task);
        let task = f.builder.ins().func_addr(types::I64, task);
        let signature = f.unit.signature(&[types::I64; 4], &[]);
        let signature = f.builder.import_signature(signature);
        f.builder.ins().call_indirect(signature, self.parallel_for, &[self.data, count, task, data]);
    }
}

/// Calls the kernels, and does what steers them.
pub(super) fn steps(f: &mut FuncCtx, frame: Value, host: &Host, dims: Value, kernels: &[Step]) -> Result<()> {
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
pub(super) fn frame_on_stack(f: &mut FuncCtx) -> Value {
    let slot = f.slot(frame::bytes(f.unit.program) as usize, 64);
    f.builder.ins().stack_addr(types::I64, slot, 0)
}

/// Prepares the frame of a call; the function returns where the contract is broken.
pub(super) fn open(
    f: &mut FuncCtx,
    frame: Value,
    [inputs, outputs, dims, arena, exec]: [Value; 5],
) -> Result<Host> {
    let host = open_frame(f, frame, exec);
    f.builder.ins().store(MemFlagsData::trusted(), dims, frame, frame::CALLER_DIMS);
    validate(f, frame, dims)?;
    fill_frame(f, frame, [inputs, outputs, arena])?;
    Ok(host)
}

/// Sets the frame's error slot and executor.
fn open_frame(f: &mut FuncCtx, base: Value, exec: Value) -> Host {
    let trusted = MemFlagsData::trusted();
    let unseen = f.builder.ins().iadd_imm_s(base, i64::from(frame::unseen(f.unit.program)));
    let (some, next) = (f.builder.create_block(), f.builder.create_block());
    let [error, parallel_for, data, threads] = [0; 4].map(|_| f.builder.append_block_param(next, types::I64));
    let zero = f.int(0);
    let absent = [unseen.into(), zero.into(), zero.into(), zero.into()];
    f.builder.ins().brif(exec, some, &[], next, &absent);
    f.builder.switch_to_block(some);
    let wanted = f.builder.ins().load(types::I64, trusted, exec, offset_of!(abi::Exec, error) as i32);
    let wanted = f.builder.ins().select(wanted, wanted, unseen);
    let offered = Host::offered(f, exec);
    let told = [wanted, offered.parallel_for, offered.data, offered.threads].map(BlockArg::Value);
    f.builder.ins().jump(next, &told);
    f.builder.seal_block(some);
    f.builder.switch_to_block(next);
    f.builder.seal_block(next);
    let all = f.int(way::ALL);
    for (value, slot) in [
        (error, frame::ERROR),
        (zero, frame::FAILED),
        (exec, frame::EXEC),
        (all, frame::WAY),
        (parallel_for, frame::PARALLEL_FOR),
        (data, frame::HOST),
        (threads, frame::THREADS),
    ] {
        f.builder.ins().store(trusted, value, base, slot);
    }
    Host { parallel_for, data, threads }
}

/// Copies the dims into the frame and holds them against the contract once more.
fn validate(f: &mut FuncCtx, frame: Value, dims: Value) -> Result<()> {
    let program = f.unit.program;
    for (idx, symbol) in program.symbols.iter().enumerate() {
        let at = 8 * idx as i32;
        let value = f.builder.ins().load(types::I64, MemFlagsData::trusted(), dims, at);
        f.builder.ins().store(MemFlagsData::trusted(), value, frame, frame::DIMS + at);
        let guards = kernel_contract::symbol_guards(program, symbol, None)?;
        contract::accept_symbol(f, frame, symbol, value, &guards)?;
    }
    contract::check_relations(f, frame, &kernel_contract::relation_guards(program))?;
    f.set_dims(frame, frame::DIMS);
    Ok(())
}

/// Puts every buffer's address into the frame; constants are addressed by the kernels themselves.
fn fill_frame(f: &mut FuncCtx, frame: Value, [inputs, outputs, arena]: [Value; 3]) -> Result<()> {
    let trusted = MemFlagsData::trusted();
    let (offsets, _) = sizes::offsets(f)?;
    for (id, buffer) in &f.unit.program.buffers {
        let address = match buffer.space {
            MemorySpace::Input(idx) => f.builder.ins().load(types::I64, trusted, inputs, 8 * idx as i32),
            MemorySpace::Output(idx) => f.builder.ins().load(types::I64, trusted, outputs, 8 * idx as i32),
            MemorySpace::Arena | MemorySpace::Scratch | MemorySpace::Device(_) => match offsets.get(&id) {
                Some(offset) => f.builder.ins().iadd(arena, *offset),
                // A buffer without a place is one that nobody uses.
                None => continue,
            },
            MemorySpace::Const(_) => continue,
        };
        let slot = f.frame_slot(id);
        f.builder.ins().store(trusted, address, frame, slot);
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
    let (begin, first) = (f.int(0), f.builder.ins().iconst(types::I32, 0));
    let end = match split::iterations(emitted.part.split) {
        Some(iterations) => f.dim(&iterations)?,
        None => begin,
    };
    f.call(emitted.func, &[frame, begin, end, first]);
    Ok(())
}

/// Splits the part over the host's threads where that pays.
fn call_shared(f: &mut FuncCtx, frame: Value, host: &Host, emitted: &Emitted) -> Result<()> {
    let [serial, many, shared, after] = [0; 4].map(|_| f.builder.create_block());
    let exit = f.builder.ins().brif(host.parallel_for, many, &[], serial, &[]);
    f.builder.switch_to_block(many);
    f.push_scope(exit);
    let enough = estimate::is_enough(f, &emitted.work)?;
    let (way, count) = match emitted.part.split {
        Split::Contract(contract) => tiles::ways(f, contract, host.threads)?,
        split => (f.int(way::ALL), f.dim(&split::iterations(split).unwrap_or_else(Dim::one))?),
    };
    let mut shares = f.builder.ins().smin(host.threads, count);
    if emitted.uses_scratch {
        let copies = f.int(i64::from(f.unit.program.workers));
        shares = f.builder.ins().smin(shares, copies);
    }
    let several = f.builder.ins().icmp_imm_s(IntCC::SignedGreaterThan, shares, 1);
    let pays = f.builder.ins().band(enough, several);
    f.builder.ins().brif(pays, shared, &[], serial, &[]);
    f.builder.switch_to_block(shared);
    let trusted = MemFlagsData::trusted();
    let body = f.func_ref(emitted.func);
    let body = f.builder.ins().func_addr(types::I64, body);
    for (value, slot) in
        [(body, frame::BODY), (count, frame::COUNT), (shares, frame::SHARES), (way, frame::WAY)]
    {
        f.builder.ins().store(trusted, value, frame, slot);
    }
    let task = split::share(f.unit)?;
    host.hand_out(f, shares, task, frame);
    let all = f.int(way::ALL);
    f.builder.ins().store(trusted, all, frame, frame::WAY);
    f.builder.ins().jump(after, &[]);
    f.pop_scope();
    f.builder.switch_to_block(serial);
    call_alone(f, frame, emitted)?;
    f.builder.ins().jump(after, &[]);
    f.builder.switch_to_block(after);
    Ok(())
}

pub(super) fn leave_on_error(f: &mut FuncCtx, frame: Value) {
    let (bad, next) = (f.builder.create_block(), f.builder.create_block());
    f.builder.set_cold_block(bad);
    let code = f.builder.ins().load(types::I64, MemFlagsData::trusted(), frame, frame::FAILED);
    f.builder.ins().brif(code, bad, &[], next, &[]);
    f.builder.switch_to_block(bad);
    let code = f.builder.ins().ireduce(types::I32, code);
    f.builder.ins().return_(&[code]);
    f.builder.switch_to_block(next);
}
