//! The task that runs the partitions of a stage at once.
//!
//! The host calls the task on each of its threads. A worker takes the first partition that is free and whose
//! dependencies are done, runs it, and looks again, until no partition is free. While partitions are free but none is
//! ready, it waits for those that run on other threads. A host that calls its tasks one by one works too: the first
//! worker then never finds a partition that another thread runs, so it runs all of them in an order that respects the
//! dependencies.
//!
//! ```text
//! look:
//!   for each partition of the stage
//!     if it is free, and its dependencies are done, and a compare-and-swap from free to taken succeeds
//!       run it; leave if it fails; set it to done; go to look
//!   if a partition was free, and no worker failed: go to look
//! leave:
//! ```
//!
//! The states are atomic words of the frame. Nothing is locked. The store of `DONE` and the load that sees it order the
//! partition's stores before those of its dependents.

use super::{
    host::TASK_PARAMS,
    partition_table::{PartitionEntry, state, word_at},
};
use crate::{
    codegen::function::{FuncCtx, ModuleBuilder, frame},
    error::Result,
};
use cranelift_codegen::ir::{Block, InstBuilder, MemFlagsData, Value, condcodes::IntCC, types};
use cranelift_module::{DataId, FuncId};

/// Emits the task that the host calls on each thread: `(frame, begin, end, worker)`.
pub(crate) fn worker(unit: &mut ModuleBuilder, table: DataId) -> Result<FuncId> {
    unit.define_local("worker", &TASK_PARAMS, &[], |f, params| {
        let frame = params[0];
        let trusted = MemFlagsData::trusted();
        let table = f.data_address(table);
        let offset = i64::from(frame::state_slot(f.unit.program, 0));
        let states = f.ins().iadd_imm_s(frame, offset);
        let [first, last] = [frame::COUNT, frame::SHARES].map(|slot| f.load_word(frame, slot));

        let look = f.create_block();
        let leave = f.create_block();
        let has_free = f.builder.declare_var(types::I64);
        f.ins().jump(look, &[]);

        f.switch_to_block(look);
        let zero = f.int(0);
        f.builder.def_var(has_free, zero);
        f.for_range(first, last, |f, partition| {
            let skip = f.create_block();
            let own_state = word_at(f, states, partition);
            let current = f.ins().atomic_load(types::I64, trusted, own_state);
            jump_unless_equal(f, current, state::FREE, skip);
            let one = f.int(1);
            f.builder.def_var(has_free, one);

            let entry = PartitionEntry::at(f, table, partition);
            jump_unless_ready(f, &entry, states, first, skip)?;
            take(f, own_state, skip);

            let code = entry.run(f, frame)?;
            let succeeded = f.create_block();
            f.ins().brif(code, leave, &[], succeeded, &[]);

            f.switch_to_block(succeeded);
            let done = f.int(state::DONE);
            f.ins().atomic_store(trusted, done, own_state);
            f.ins().jump(look, &[]);

            f.switch_to_block(skip);
            Ok(())
        })?;

        let has_free = f.builder.use_var(has_free);
        look_again(f, frame, has_free, look, leave);

        f.switch_to_block(leave);
        f.ins().return_(&[]);
        Ok(())
    })
}

/// Jumps to `skip` if a dependency of the partition in the stage that begins at `first` is not done.
fn jump_unless_ready(
    f: &mut FuncCtx,
    entry: &PartitionEntry,
    states: Value,
    first: Value,
    skip: Block,
) -> Result<()> {
    entry.for_each_dependency(f, |f, other| {
        let in_stage = f.create_block();
        let ready = f.create_block();
        // Earlier stages are done.
        let is_in_stage = f.ins().icmp(IntCC::SignedGreaterThanOrEqual, other, first);
        f.ins().brif(is_in_stage, in_stage, &[], ready, &[]);

        f.switch_to_block(in_stage);
        let address = word_at(f, states, other);
        let current = f.ins().atomic_load(types::I64, MemFlagsData::trusted(), address);
        jump_unless_equal(f, current, state::DONE, skip);
        f.ins().jump(ready, &[]);

        f.switch_to_block(ready);
        Ok(())
    })
}

/// Takes the partition with this state, or jumps to `skip` if another worker takes it first.
fn take(f: &mut FuncCtx, own_state: Value, skip: Block) {
    let free = f.int(state::FREE);
    let taken = f.int(state::TAKEN);
    let old = f.ins().atomic_cas(MemFlagsData::trusted(), own_state, free, taken);
    jump_unless_equal(f, old, state::FREE, skip);
}

/// Goes back to `look` if a partition was free: it waits for a partition that another worker runs. Once that one has
/// failed, the wait would never end.
fn look_again(f: &mut FuncCtx, frame: Value, has_free: Value, look: Block, leave: Block) {
    let waiting = f.create_block();
    f.ins().brif(has_free, waiting, &[], leave, &[]);

    f.switch_to_block(waiting);
    let code_address = f.ins().iadd_imm_s(frame, i64::from(frame::FAILED));
    let code = f.ins().atomic_load(types::I64, MemFlagsData::trusted(), code_address);
    f.ins().brif(code, leave, &[], look, &[]);
}

/// Jumps to `skip` unless the value is the expected one.
fn jump_unless_equal(f: &mut FuncCtx, value: Value, expected: i64, skip: Block) {
    let next = f.create_block();
    let is_equal = f.ins().icmp_imm_s(IntCC::Equal, value, expected);
    f.ins().brif(is_equal, next, &[], skip, &[]);
    f.switch_to_block(next);
}
