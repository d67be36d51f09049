//! The driver of a program with partitions: reads the table, and runs its entries in the order, and on the threads, that
//! the call's policy says.
//!
//! Stages follow one another. Within a stage, partitions run one after another, the kernels of each on all threads, or at
//! once, each on one thread: the host calls [`worker`] on each of its threads, which takes the first partition that is free
//! and whose dependencies are done, until none is left. Whoever finds none that is ready waits for a partition that runs on
//! another thread, so a host that calls its tasks one by one does no harm. Claims and completions are atomic words of the
//! frame; nothing is locked.

use super::{driver, estimate, host::Host};
use crate::{
    codegen::function::{FuncCtx, ModuleBuilder, frame, report_error},
    error::Result,
    kernel::{Policies, contract::Failure, partition::stages},
};
use cranelift_codegen::ir::{BlockArg, InstBuilder, MemFlagsData, Value, condcodes::IntCC, types};
use cranelift_module::{DataId, FuncId, Linkage};
use std::{mem::offset_of, ops::Range};
use symshape_runtime::abi::{Code, Exec, PartitionDesc, Policy};

/// States of a partition in the frame.
mod state {
    pub(crate) const FREE: i64 = 0;
    pub(crate) const TAKEN: i64 = 1;
    pub(crate) const DONE: i64 = 2;
}

/// More threads than this are not counted on when it is estimated what they gain.
const MAX_THREADS: i64 = 64;

/// What it costs to take a partition: its functions' code and data are cold, the others may be looking.
const TAKE: i64 = 20_000;

/// Emits `run(inputs, outputs, dims, arena, exec) -> code`.
pub(crate) fn run(
    unit: &mut ModuleBuilder,
    table: DataId,
    begin: FuncId,
    name: &str,
    linkage: Linkage,
) -> Result<FuncId> {
    let in_order = in_order(unit, table)?;
    let at_once = match unit.program.policies {
        Policies::Serial => None,
        Policies::Any => Some((worker(unit, table)?, is_faster(unit, table)?)),
    };
    let name = unit.symbol(name);
    let id = unit.declare(&name, linkage, &[types::I64; 5], &[types::I32])?;
    unit.define(id, |f, params| {
        let exec = params[4];
        let frame = driver::frame_on_stack(f);
        let begun = f.call(begin, &[params, &[frame]].concat());
        return_unless_ok(f, begun);
        let policy = policy(f, exec);
        let Some((worker, is_faster)) = at_once else {
            refuse(f, frame, policy)?;
            let all = 0..f.unit.program.partitions.len();
            return end(f, frame, in_order, all);
        };
        let mut done = 0;
        for stage in ranges(&stages(&f.unit.program.partitions)) {
            if stage.len() > 1 {
                call_in_order(f, frame, in_order, done..stage.start);
                done = stage.end;
                either(f, frame, policy, stage, [in_order, worker, is_faster]);
            }
        }
        let rest = done..f.unit.program.partitions.len();
        end(f, frame, in_order, rest)
    })?;
    Ok(id)
}

/// The places of each stage.
fn ranges(stages: &[usize]) -> Vec<Range<usize>> {
    let starts = (0..stages.len()).filter(|at| *at == 0 || stages[*at] != stages[at - 1]);
    let starts: Vec<usize> = starts.chain([stages.len()]).collect();
    starts.windows(2).map(|ends| ends[0]..ends[1]).collect()
}

fn end(f: &mut FuncCtx, frame: Value, in_order: FuncId, rest: Range<usize>) -> Result<()> {
    call_in_order(f, frame, in_order, rest);
    f.return_ok();
    Ok(())
}

fn call_in_order(f: &mut FuncCtx, frame: Value, in_order: FuncId, range: Range<usize>) {
    if !range.is_empty() {
        let (first, last) = (f.int(range.start as i64), f.int(range.end as i64));
        let code = f.call(in_order, &[frame, first, last]);
        return_unless_ok(f, code);
    }
}

fn return_unless_ok(f: &mut FuncCtx, code: Option<Value>) {
    let Some(code) = code else { return };
    let (bad, next) = (f.create_block(), f.create_block());
    f.builder.set_cold_block(bad);
    f.ins().brif(code, bad, &[], next, &[]);
    f.switch_to_block(bad);
    f.ins().return_(&[code]);
    f.switch_to_block(next);
}

/// The policy that the caller asks for.
fn policy(f: &mut FuncCtx, exec: Value) -> Value {
    let (some, next) = (f.create_block(), f.create_block());
    let policy = f.builder.append_block_param(next, types::I32);
    let auto = f.ins().iconst(types::I32, Policy::Auto as i64);
    f.ins().brif(exec, some, &[], next, &[BlockArg::Value(auto)]);
    f.switch_to_block(some);
    let at = offset_of!(Exec, policy) as i32;
    let asked = f.ins().load(types::I32, MemFlagsData::trusted(), exec, at);
    f.ins().jump(next, &[BlockArg::Value(asked)]);
    f.switch_to_block(next);
    policy
}

/// Ends the call where partitions are to run at once and must not.
fn refuse(f: &mut FuncCtx, frame: Value, policy: Value) -> Result<()> {
    let (bad, next) = (f.create_block(), f.create_block());
    f.builder.set_cold_block(bad);
    let wanted = f.ins().icmp_imm_u(IntCC::Equal, policy, Policy::Parallel as i64);
    f.ins().brif(wanted, bad, &[], next, &[]);
    f.switch_to_block(bad);
    let failure = Failure::not_planned();
    let zero = f.int(0);
    report_error::emit(f, frame, &failure, zero, zero, zero)?;
    f.return_code(Code::NotPlanned as i64);
    f.switch_to_block(next);
    Ok(())
}

/// Runs the partitions of a stage in order or at once.
fn either(f: &mut FuncCtx, frame: Value, policy: Value, stage: Range<usize>, functions: [FuncId; 3]) {
    let [in_order, worker, is_faster] = functions;
    let [many, ask, at_once, serial, after] = [0; 5].map(|_| f.create_block());
    let host = Host::of(f, frame);
    let exec = f.load_word(frame, frame::EXEC);
    f.ins().brif(host.parallel_for, many, &[], serial, &[]);
    f.switch_to_block(many);
    let is = |f: &mut FuncCtx, wanted: Policy| f.ins().icmp_imm_u(IntCC::Equal, policy, wanted as i64);
    let forced = is(f, Policy::Parallel);
    let next = f.create_block();
    f.ins().brif(forced, at_once, &[], next, &[]);
    f.switch_to_block(next);
    let open = is(f, Policy::Auto);
    f.ins().brif(open, ask, &[], serial, &[]);
    f.switch_to_block(ask);
    let (first, last) = (f.int(stage.start as i64), f.int(stage.end as i64));
    if let Some(faster) = f.call(is_faster, &[frame, first, last]) {
        f.ins().brif(faster, at_once, &[], serial, &[]);
    }
    f.switch_to_block(at_once);
    let (first, last, zero) = (f.int(stage.start as i64), f.int(stage.end as i64), f.int(0));
    // Nobody but the driver uses the host's threads meanwhile, functions that partitions call included.
    for (value, slot) in
        [(first, frame::COUNT), (last, frame::SHARES), (zero, frame::PARALLEL_FOR), (zero, frame::EXEC)]
    {
        f.store_at(value, frame, slot);
    }
    let most = f.int(stage.len() as i64);
    let count = f.ins().smin(host.threads, most);
    host.parallel_for(f, count, worker, frame);
    for (value, slot) in [(host.parallel_for, frame::PARALLEL_FOR), (exec, frame::EXEC)] {
        f.store_at(value, frame, slot);
    }
    driver::leave_on_error(f, frame);
    f.ins().jump(after, &[]);
    f.switch_to_block(serial);
    call_in_order(f, frame, in_order, stage);
    f.ins().jump(after, &[]);
    f.switch_to_block(after);
}

/// An entry of the table.
struct Entry(Value);

impl Entry {
    fn at(f: &mut FuncCtx, table: Value, number: Value) -> Entry {
        let offset = f.ins().imul_imm_s(number, size_of::<PartitionDesc>() as i64);
        Entry(f.ins().iadd(table, offset))
    }

    fn word(&self, f: &mut FuncCtx, at: usize) -> Value {
        f.load_word(self.0, at as i32)
    }

    /// Calls its function.
    fn run(&self, f: &mut FuncCtx, frame: Value) -> Value {
        let function = self.word(f, offset_of!(PartitionDesc, run));
        let signature = f.unit.signature(&[types::I64], &[types::I32]);
        let signature = f.builder.import_signature(signature);
        let call = f.ins().call_indirect(signature, function, &[frame]);
        f.builder.inst_results(call)[0]
    }

    /// Its work on so many threads.
    fn cost(&self, f: &mut FuncCtx, dims: Value, threads: Value) -> Value {
        let function = self.word(f, offset_of!(PartitionDesc, cost));
        let signature = f.unit.signature(&[types::I64, types::I32], &[types::I64]);
        let signature = f.builder.import_signature(signature);
        let call = f.ins().call_indirect(signature, function, &[dims, threads]);
        f.builder.inst_results(call)[0]
    }

    /// Goes through what it waits for.
    fn each_before(
        &self,
        f: &mut FuncCtx,
        body: impl FnOnce(&mut FuncCtx, Value) -> Result<()>,
    ) -> Result<()> {
        let trusted = MemFlagsData::trusted();
        let list = self.word(f, offset_of!(PartitionDesc, after));
        let at = offset_of!(PartitionDesc, n_after) as i32;
        let count = f.ins().uload32(trusted, self.0, at);
        let zero = f.int(0);
        f.for_range(zero, count, |f, idx| {
            let offset = f.ins().imul_imm_s(idx, 4);
            let place = f.ins().iadd(list, offset);
            let other = f.ins().uload32(trusted, place, 0);
            body(f, other)
        })
    }
}

/// Emits `in_order(frame, first, last) -> code`.
fn in_order(unit: &mut ModuleBuilder, table: DataId) -> Result<FuncId> {
    unit.define_local("in_order", &[types::I64; 3], &[types::I32], |f, params| {
        let [frame, first, last] = *params else { return Ok(()) };
        let table = f.data_address(table);
        f.for_range(first, last, |f, number| {
            let code = Entry::at(f, table, number).run(f, frame);
            return_unless_ok(f, Some(code));
            Ok(())
        })?;
        f.return_ok();
        Ok(())
    })
}

/// Emits the task that the host calls on each thread: `(frame, begin, end, worker)`.
fn worker(unit: &mut ModuleBuilder, table: DataId) -> Result<FuncId> {
    let params = [types::I64, types::I64, types::I64, types::I32];
    unit.define_local("worker", &params, &[], |f, params| {
        let frame = params[0];
        let trusted = MemFlagsData::trusted();
        let table = f.data_address(table);
        let offset = i64::from(frame::state_slot(f.unit.program, 0));
        let states = f.ins().iadd_imm_s(frame, offset);
        let [first, last] = [frame::COUNT, frame::SHARES].map(|slot| f.load_word(frame, slot));
        let (look, leave) = (f.create_block(), f.create_block());
        let open = f.builder.declare_var(types::I64);
        f.ins().jump(look, &[]);
        f.switch_to_block(look);
        let zero = f.int(0);
        f.builder.def_var(open, zero);
        f.for_range(first, last, |f, number| {
            let next = f.create_block();
            let place = state_at(f, states, number);
            let own = f.ins().atomic_load(types::I64, trusted, place);
            skip_unless_equal(f, own, state::FREE, next);
            let one = f.int(1);
            f.builder.def_var(open, one);
            let entry = Entry::at(f, table, number);
            entry.each_before(f, |f, other| {
                // What belongs to an earlier stage is done.
                let (asked, ready) = (f.create_block(), f.create_block());
                let here = f.ins().icmp(IntCC::SignedGreaterThanOrEqual, other, first);
                f.ins().brif(here, asked, &[], ready, &[]);
                f.switch_to_block(asked);
                let place = state_at(f, states, other);
                let state = f.ins().atomic_load(types::I64, trusted, place);
                skip_unless_equal(f, state, state::DONE, next);
                f.ins().jump(ready, &[]);
                f.switch_to_block(ready);
                Ok(())
            })?;
            let (free, taken) = (f.int(state::FREE), f.int(state::TAKEN));
            let old = f.ins().atomic_cas(trusted, place, free, taken);
            skip_unless_equal(f, old, state::FREE, next);
            let code = entry.run(f, frame);
            let good = f.create_block();
            f.ins().brif(code, leave, &[], good, &[]);
            f.switch_to_block(good);
            let done = f.int(state::DONE);
            f.ins().atomic_store(trusted, done, place);
            f.ins().jump(look, &[]);
            f.switch_to_block(next);
            Ok(())
        })?;
        // What is not ready waits for a partition that runs elsewhere, unless that one failed.
        let (wait, again) = (f.builder.use_var(open), f.create_block());
        f.ins().brif(wait, again, &[], leave, &[]);
        f.switch_to_block(again);
        let slot = f.ins().iadd_imm_s(frame, i64::from(frame::FAILED));
        let failed = f.ins().atomic_load(types::I64, trusted, slot);
        f.ins().brif(failed, leave, &[], look, &[]);
        f.switch_to_block(leave);
        f.ins().return_(&[]);
        Ok(())
    })
}

fn state_at(f: &mut FuncCtx, states: Value, number: Value) -> Value {
    let offset = f.ins().imul_imm_s(number, 8);
    f.ins().iadd(states, offset)
}

/// Goes on in a new block if the value is the one wanted, and else to `next`.
fn skip_unless_equal(f: &mut FuncCtx, value: Value, wanted: i64, next: cranelift_codegen::ir::Block) {
    let good = f.create_block();
    let is = f.ins().icmp_imm_s(IntCC::Equal, value, wanted);
    f.ins().brif(is, good, &[], next, &[]);
    f.switch_to_block(good);
}

/// Emits `is_faster(frame, first, last) -> bool`: whether the partitions of a stage are estimated to be done earlier at
/// once than one after another. It plays the workers' game: each partition in turn goes to the thread that is free first.
fn is_faster(unit: &mut ModuleBuilder, table: DataId) -> Result<FuncId> {
    unit.define_local("is_faster", &[types::I64; 3], &[types::I8], |f, params| {
        let [frame, first, last] = *params else { return Ok(()) };
        let table = f.data_address(table);
        let dims = f.ins().iadd_imm_s(frame, i64::from(frame::symbol_slot(0)));
        let count = f.load_word(frame, frame::THREADS);
        let most = f.int(MAX_THREADS);
        let count = f.ins().smin(count, most);
        let threads = f.ins().ireduce(types::I32, count);
        let one = f.ins().iconst(types::I32, 1);
        let (clocks, ends) = (f.words(MAX_THREADS as usize), f.words(f.unit.program.partitions.len()));
        let [zero, start] = [0; 2].map(|_| f.int(0));
        f.for_range(start, count, |f, thread| {
            let clock = state_at(f, clocks, thread);
            f.store_at(zero, clock, 0);
            Ok(())
        })?;
        let vars = [0; 5].map(|_| f.builder.declare_var(types::I64));
        let [shared, latest, ready, least, place] = vars;
        vars.into_iter().for_each(|var| f.builder.def_var(var, zero));
        f.for_range(first, last, |f, number| {
            let entry = Entry::at(f, table, number);
            let (alone, split) = (entry.cost(f, dims, one), entry.cost(f, dims, threads));
            let total = f.builder.use_var(shared);
            let total = f.ins().iadd(total, split);
            f.builder.def_var(shared, total);
            f.builder.def_var(ready, zero);
            entry.each_before(f, |f, other| {
                let (asked, next) = (f.create_block(), f.create_block());
                let here = f.ins().icmp(IntCC::SignedGreaterThanOrEqual, other, first);
                f.ins().brif(here, asked, &[], next, &[]);
                f.switch_to_block(asked);
                let end = state_at(f, ends, other);
                let end = f.load_word(end, 0);
                let known = f.builder.use_var(ready);
                let later = f.ins().smax(known, end);
                f.builder.def_var(ready, later);
                f.ins().jump(next, &[]);
                f.switch_to_block(next);
                Ok(())
            })?;
            let never = f.int(i64::MAX);
            f.builder.def_var(least, never);
            let none = f.int(0);
            f.for_range(none, count, |f, thread| {
                let clock = state_at(f, clocks, thread);
                let time = f.load_word(clock, 0);
                let (known, at) = (f.builder.use_var(least), f.builder.use_var(place));
                let earlier = f.ins().icmp(IntCC::SignedLessThan, time, known);
                let time = f.ins().select(earlier, time, known);
                let at = f.ins().select(earlier, clock, at);
                f.builder.def_var(least, time);
                f.builder.def_var(place, at);
                Ok(())
            })?;
            let (free, ready, clock) =
                (f.builder.use_var(least), f.builder.use_var(ready), f.builder.use_var(place));
            let begin = f.ins().smax(free, ready);
            let end = f.ins().iadd(begin, alone);
            let end = f.ins().iadd_imm_s(end, TAKE);
            f.store_at(end, clock, 0);
            let own = state_at(f, ends, number);
            f.store_at(end, own, 0);
            let known = f.builder.use_var(latest);
            let end = f.ins().smax(known, end);
            f.builder.def_var(latest, end);
            Ok(())
        })?;
        let (latest, shared) = (f.builder.use_var(latest), f.builder.use_var(shared));
        let latest = f.ins().iadd_imm_s(latest, estimate::HAND_OUT as i64);
        let faster = f.ins().icmp(IntCC::SignedLessThan, latest, shared);
        f.ins().return_(&[faster]);
        Ok(())
    })
}
