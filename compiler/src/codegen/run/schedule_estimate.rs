//! The estimate whether the partitions of a stage finish earlier at once than in order.
//!
//! It simulates the workers: each partition in turn goes to the thread that is free first, and starts once its
//! dependencies are done. Times are in units of estimated work, and a thread's *clock* is the time at which it becomes
//! free. The result is compared with the sum of the partitions' work, each shared among all threads.

use super::{
    estimate,
    partition_table::{PartitionEntry, word_at},
};
use crate::{
    codegen::function::{FuncCtx, ModuleBuilder, frame},
    error::{Error, Result},
};
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC, types};
use cranelift_frontend::Variable;
use cranelift_module::{DataId, FuncId};

/// Upper bound of the threads that the simulation counts.
const MAX_THREADS: i64 = 64;

/// Work that taking a partition is equal to: the code and data of its functions are not in the caches, and other
/// workers may look at the states at the same time.
const TAKE_WORK: i64 = 20_000;

/// The state of the simulation: arrays of words on the stack, and variables.
struct Simulation {
    /// The first partition of the stage.
    first: Value,
    /// The number of threads.
    n_threads: Value,
    /// The clock of each thread.
    clocks: Value,
    /// The time at which each partition is done.
    ends: Value,
    /// The smallest clock so far, and its address.
    earliest: Variable,
    earliest_clock: Variable,
    /// The time at which all dependencies of the current partition are done.
    ready: Variable,
}

/// Emits `is_faster(frame, first, last) -> bool` for the partitions `first..last` of a stage.
pub(crate) fn is_faster(unit: &mut ModuleBuilder, table: DataId) -> Result<FuncId> {
    unit.define_local("is_faster", &[types::I64; 3], &[types::I8], |f, params| {
        let [frame, first, last] = *params else {
            return Err(Error::internal("`is_faster` has three parameters"));
        };
        let table = f.data_address(table);
        let dims = f.ins().iadd_imm_s(frame, i64::from(frame::symbol_slot(0)));
        let n_threads = f.load_word(frame, frame::THREADS);
        let max_threads = f.int(MAX_THREADS);
        let n_threads = f.ins().smin(n_threads, max_threads);
        let all_threads = f.ins().ireduce(types::I32, n_threads);
        let one_thread = f.ins().iconst(types::I32, 1);

        let clocks = f.words(MAX_THREADS as usize);
        let ends = f.words(f.unit.program.partitions.len());
        let zero = f.int(0);
        clear(f, clocks, n_threads, zero)?;
        let variables = [0; 5].map(|_| f.builder.declare_var(types::I64));
        for variable in variables {
            f.builder.def_var(variable, zero);
        }
        let [shared_total, latest, ready, earliest, earliest_clock] = variables;
        let simulation = Simulation { first, n_threads, clocks, ends, earliest, earliest_clock, ready };

        f.for_range(first, last, |f, partition| {
            let entry = PartitionEntry::at(f, table, partition);
            let alone = entry.cost(f, dims, one_thread)?;
            let shared = entry.cost(f, dims, all_threads)?;
            let total = f.builder.use_var(shared_total);
            let total = f.ins().iadd(total, shared);
            f.builder.def_var(shared_total, total);

            f.builder.def_var(ready, zero);
            simulation.wait_for_dependencies(f, &entry)?;
            simulation.find_earliest_thread(f)?;
            let end = simulation.run(f, partition, alone);

            let latest_so_far = f.builder.use_var(latest);
            let end = f.ins().smax(latest_so_far, end);
            f.builder.def_var(latest, end);
            Ok(())
        })?;

        let at_once = f.builder.use_var(latest);
        let in_order = f.builder.use_var(shared_total);
        let at_once = f.ins().iadd_imm_s(at_once, estimate::PARALLEL_FOR_WORK as i64);
        let is_faster = f.ins().icmp(IntCC::SignedLessThan, at_once, in_order);
        f.ins().return_(&[is_faster]);
        Ok(())
    })
}

/// Sets all clocks to zero.
fn clear(f: &mut FuncCtx, clocks: Value, n_threads: Value, zero: Value) -> Result<()> {
    let begin = f.int(0);
    f.for_range(begin, n_threads, |f, thread| {
        let clock = word_at(f, clocks, thread);
        f.store_at(zero, clock, 0);
        Ok(())
    })
}

impl Simulation {
    /// Advances `ready` to the latest end of a dependency within the stage.
    fn wait_for_dependencies(&self, f: &mut FuncCtx, entry: &PartitionEntry) -> Result<()> {
        entry.for_each_dependency(f, |f, other| {
            let in_stage = f.create_block();
            let next = f.create_block();
            let is_in_stage = f.ins().icmp(IntCC::SignedGreaterThanOrEqual, other, self.first);
            f.ins().brif(is_in_stage, in_stage, &[], next, &[]);

            f.switch_to_block(in_stage);
            let end = word_at(f, self.ends, other);
            let end = f.load_word(end, 0);
            let ready = f.builder.use_var(self.ready);
            let ready = f.ins().smax(ready, end);
            f.builder.def_var(self.ready, ready);
            f.ins().jump(next, &[]);

            f.switch_to_block(next);
            Ok(())
        })
    }

    /// Sets `earliest` and `earliest_clock` to the thread that is free first.
    fn find_earliest_thread(&self, f: &mut FuncCtx) -> Result<()> {
        let never = f.int(i64::MAX);
        f.builder.def_var(self.earliest, never);

        let begin = f.int(0);
        f.for_range(begin, self.n_threads, |f, thread| {
            let clock = word_at(f, self.clocks, thread);
            let time = f.load_word(clock, 0);
            let earliest = f.builder.use_var(self.earliest);
            let earliest_clock = f.builder.use_var(self.earliest_clock);
            let is_earlier = f.ins().icmp(IntCC::SignedLessThan, time, earliest);
            let earliest = f.ins().select(is_earlier, time, earliest);
            let earliest_clock = f.ins().select(is_earlier, clock, earliest_clock);
            f.builder.def_var(self.earliest, earliest);
            f.builder.def_var(self.earliest_clock, earliest_clock);
            Ok(())
        })
    }

    /// Runs the partition on the thread found, and returns the time at which it is done.
    fn run(&self, f: &mut FuncCtx, partition: Value, work: Value) -> Value {
        let free = f.builder.use_var(self.earliest);
        let ready = f.builder.use_var(self.ready);
        let clock = f.builder.use_var(self.earliest_clock);
        let begin = f.ins().smax(free, ready);
        let end = f.ins().iadd(begin, work);
        let end = f.ins().iadd_imm_s(end, TAKE_WORK);
        f.store_at(end, clock, 0);

        let own_end = word_at(f, self.ends, partition);
        f.store_at(end, own_end, 0);
        end
    }
}
