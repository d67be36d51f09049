//! The host of a call: its `parallel_for` and its number of threads.

use crate::codegen::function::{FuncCtx, frame};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Type, Value, condcodes::IntCC, types};
use cranelift_module::FuncId;
use std::mem::offset_of;
use symshape_runtime::abi;

/// Parameters of a task of `parallel_for`, `(data, begin, end, worker)`, and of the function of a kernel part,
/// `(frame, begin, end, copy)`.
pub(crate) const TASK_PARAMS: [Type; 4] = [types::I64, types::I64, types::I64, types::I32];

/// The host of a call.
pub(crate) struct Host {
    /// The address of `parallel_for`, or zero if the host has none or one thread only.
    pub(crate) parallel_for: Value,
    /// The number of the host's threads.
    pub(crate) threads: Value,
    /// The host's pointer, the first argument of `parallel_for`.
    pub(crate) data: Value,
}

impl Host {
    /// The host as the frame stores it.
    pub(crate) fn of(f: &mut FuncCtx, frame: Value) -> Host {
        let [parallel_for, threads, data] =
            [frame::PARALLEL_FOR, frame::THREADS, frame::HOST].map(|slot| f.load_word(frame, slot));
        Host { parallel_for, threads, data }
    }

    /// The host that an [`abi::Exec`] describes; the pointer must not be null.
    pub(crate) fn offered(f: &mut FuncCtx, exec: Value) -> Host {
        let parallel_for = f.load_word(exec, offset_of!(abi::Exec, parallel_for) as i32);
        let data = f.load_word(exec, offset_of!(abi::Exec, host) as i32);
        let threads_at = offset_of!(abi::Exec, threads) as i32;
        let threads = f.ins().uload32(MemFlagsData::trusted(), exec, threads_at);

        // With a single thread, sharing only costs: treat such a host as one without `parallel_for`.
        let is_parallel = f.ins().icmp_imm_u(IntCC::UnsignedGreaterThan, threads, 1);
        let absent = f.int(0);
        let parallel_for = f.ins().select(is_parallel, parallel_for, absent);
        Host { parallel_for, threads, data }
    }

    /// Calls `parallel_for`, which must not be zero: `task` is `(data, begin, end, worker)`, for all of `0..count`.
    pub(crate) fn parallel_for(&self, f: &mut FuncCtx, count: Value, task: FuncId, data: Value) {
        let task = f.function_address(task);
        f.call_indirect(self.parallel_for, &[types::I64; 4], &[], &[self.data, count, task, data]);
    }
}
