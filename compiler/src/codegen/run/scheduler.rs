//! The driver of a program with partitions. It reads the table, and runs the entries in the order, and on the threads,
//! that the call's policy says.
//!
//! Stages follow one another. Within a stage, partitions run in one of two ways:
//! - in order: one after another, the kernels of each shared among all threads;
//! - at once: each on one thread, as [`super::workers`] describes.
//!
//! Under the policy `Auto`, the driver chooses the way whose estimate is lower, see [`super::schedule_estimate`].

use super::{
    arguments::RUN_PARAMS, calls, host::Host, partition_table::PartitionEntry, schedule_estimate, workers,
};
use crate::{
    codegen::function::{FuncCtx, ModuleBuilder, frame, report_error},
    error::{Error, Result},
    kernel::{Policies, contract::Failure, partition::stages},
};
use cranelift_codegen::ir::{BlockArg, InstBuilder, MemFlagsData, Value, condcodes::IntCC, types};
use cranelift_module::{DataId, FuncId, Linkage};
use std::{mem::offset_of, ops::Range};
use symshape_runtime::abi::{Code, Exec, Policy};

/// The functions that run the partitions of a stage.
#[derive(Clone, Copy)]
struct StageFunctions {
    /// `in_order(frame, first, last) -> code`.
    in_order: FuncId,
    /// Present if partitions may run at once.
    at_once: Option<AtOnceFunctions>,
}

#[derive(Clone, Copy)]
struct AtOnceFunctions {
    /// The task `(frame, begin, end, worker)`.
    worker: FuncId,
    /// `is_faster(frame, first, last) -> bool`.
    is_faster: FuncId,
}

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
        Policies::Any => {
            let worker = workers::worker(unit, table)?;
            let is_faster = schedule_estimate::is_faster(unit, table)?;
            Some(AtOnceFunctions { worker, is_faster })
        }
    };
    let functions = StageFunctions { in_order, at_once };

    let name = unit.symbol(name);
    let id = unit.declare(&name, linkage, &RUN_PARAMS, &[types::I32])?;
    unit.define(id, |f, params| {
        let exec = params[4];
        let frame = calls::frame_on_stack(f);
        let code = f.call(begin, &[params, &[frame]].concat());
        let code = code.ok_or_else(|| Error::internal("`begin` returns a code"))?;
        f.return_if_error(code)?;

        let policy = policy(f, exec);
        run_stages(f, frame, policy, functions)?;
        f.return_ok();
        Ok(())
    })?;
    Ok(id)
}

/// Runs all stages. A sequence of stages with one partition each takes one call.
fn run_stages(f: &mut FuncCtx, frame: Value, policy: Value, functions: StageFunctions) -> Result<()> {
    let n_partitions = f.unit.program.partitions.len();
    let Some(at_once) = functions.at_once else {
        refuse_parallel(f, frame, policy)?;
        return call_in_order(f, frame, functions.in_order, 0..n_partitions);
    };

    let mut done = 0;
    for stage in stage_ranges(&stages(&f.unit.program.partitions)) {
        if stage.len() > 1 {
            call_in_order(f, frame, functions.in_order, done..stage.start)?;
            done = stage.end;
            run_stage(f, frame, policy, stage, functions.in_order, at_once)?;
        }
    }
    call_in_order(f, frame, functions.in_order, done..n_partitions)
}

/// The partitions of each stage, given the stage of each partition, in ascending order.
fn stage_ranges(stages: &[usize]) -> Vec<Range<usize>> {
    let starts = (0..stages.len()).filter(|idx| *idx == 0 || stages[*idx] != stages[idx - 1]);
    let bounds: Vec<usize> = starts.chain([stages.len()]).collect();
    bounds.windows(2).map(|bounds| bounds[0]..bounds[1]).collect()
}

fn call_in_order(f: &mut FuncCtx, frame: Value, in_order: FuncId, range: Range<usize>) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let first = f.int(range.start as i64);
    let last = f.int(range.end as i64);
    let code = f.call(in_order, &[frame, first, last]);
    let code = code.ok_or_else(|| Error::internal("`in_order` returns a code"))?;
    f.return_if_error(code)
}

/// The policy that the caller requests; `Auto` without an `exec`.
fn policy(f: &mut FuncCtx, exec: Value) -> Value {
    let has_exec = f.create_block();
    let next = f.create_block();
    let policy = f.builder.append_block_param(next, types::I32);
    let auto = f.ins().iconst(types::I32, Policy::Auto as i64);
    f.ins().brif(exec, has_exec, &[], next, &[BlockArg::Value(auto)]);

    f.switch_to_block(has_exec);
    let offset = offset_of!(Exec, policy) as i32;
    let requested = f.ins().load(types::I32, MemFlagsData::trusted(), exec, offset);
    f.ins().jump(next, &[BlockArg::Value(requested)]);

    f.switch_to_block(next);
    policy
}

fn is_policy(f: &mut FuncCtx, policy: Value, expected: Policy) -> Value {
    f.ins().icmp_imm_u(IntCC::Equal, policy, expected as i64)
}

/// Returns an error if the caller requests partitions at once, but the arena is not planned for that.
fn refuse_parallel(f: &mut FuncCtx, frame: Value, policy: Value) -> Result<()> {
    let is_parallel = is_policy(f, policy, Policy::Parallel);
    f.leave_if(is_parallel, |f| {
        let zero = f.int(0);
        report_error::emit(f, frame, &Failure::not_planned(), zero, zero, zero)?;
        f.return_code(Code::NotPlanned as i64);
        Ok(())
    })
}

/// Runs the partitions of a stage in order or at once.
fn run_stage(
    f: &mut FuncCtx,
    frame: Value,
    policy: Value,
    stage: Range<usize>,
    in_order: FuncId,
    at_once: AtOnceFunctions,
) -> Result<()> {
    let [has_threads, automatic, parallel, serial, after] = [0; 5].map(|_| f.create_block());
    let host = Host::of(f, frame);
    let exec = f.load_word(frame, frame::EXEC);
    f.ins().brif(host.parallel_for, has_threads, &[], serial, &[]);

    f.switch_to_block(has_threads);
    let is_parallel = is_policy(f, policy, Policy::Parallel);
    let next = f.create_block();
    f.ins().brif(is_parallel, parallel, &[], next, &[]);

    f.switch_to_block(next);
    let is_auto = is_policy(f, policy, Policy::Auto);
    f.ins().brif(is_auto, automatic, &[], serial, &[]);

    f.switch_to_block(automatic);
    let first = f.int(stage.start as i64);
    let last = f.int(stage.end as i64);
    let is_faster = f.call(at_once.is_faster, &[frame, first, last]);
    let is_faster = is_faster.ok_or_else(|| Error::internal("`is_faster` returns a bool"))?;
    f.ins().brif(is_faster, parallel, &[], serial, &[]);

    f.switch_to_block(parallel);
    start_workers(f, frame, &host, exec, &stage, at_once.worker);
    calls::return_if_failed(f, frame)?;
    f.ins().jump(after, &[]);

    f.switch_to_block(serial);
    call_in_order(f, frame, in_order, stage)?;
    f.ins().jump(after, &[]);

    f.switch_to_block(after);
    Ok(())
}

/// Runs the partitions of a stage at once, on the host's threads.
fn start_workers(
    f: &mut FuncCtx,
    frame: Value,
    host: &Host,
    exec: Value,
    stage: &Range<usize>,
    worker: FuncId,
) {
    let first = f.int(stage.start as i64);
    let last = f.int(stage.end as i64);
    let zero = f.int(0);

    // Only the scheduler may use the host's threads in the meantime: kernels and external functions of a partition must
    // not call `parallel_for` from within a task of the host.
    f.store_fields(
        frame,
        &[(first, frame::COUNT), (last, frame::SHARES), (zero, frame::PARALLEL_FOR), (zero, frame::EXEC)],
    );
    let max_workers = f.int(stage.len() as i64);
    let count = f.ins().smin(host.threads, max_workers);
    host.parallel_for(f, count, worker, frame);
    f.store_fields(frame, &[(host.parallel_for, frame::PARALLEL_FOR), (exec, frame::EXEC)]);
}

/// Emits `in_order(frame, first, last) -> code`, which runs partitions `first..last`.
fn in_order(unit: &mut ModuleBuilder, table: DataId) -> Result<FuncId> {
    unit.define_local("in_order", &[types::I64; 3], &[types::I32], |f, params| {
        let [frame, first, last] = *params else {
            return Err(Error::internal("`in_order` has three parameters"));
        };
        let table = f.data_address(table);
        f.for_range(first, last, |f, idx| {
            let code = PartitionEntry::at(f, table, idx).run(f, frame)?;
            f.return_if_error(code)
        })?;
        f.return_ok();
        Ok(())
    })
}
