//! The host of a call: its `parallel_for` and its number of threads.

use crate::codegen::function::{FuncCtx, frame};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, condcodes::IntCC, types};
use cranelift_module::FuncId;
use std::mem::offset_of;
use symshape_runtime::abi;

/// The host of a call.
pub(crate) struct Host {
    /// Its `parallel_for`, or zero where there is none or one thread only.
    pub(crate) parallel_for: Value,
    /// Its number of threads.
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
        let trusted = MemFlagsData::trusted();
        let word = |f: &mut FuncCtx, at: usize| f.load_word(exec, at as i32);
        let (parallel_for, data) =
            (word(f, offset_of!(abi::Exec, parallel_for)), word(f, offset_of!(abi::Exec, host)));
        let threads = f.ins().uload32(trusted, exec, offset_of!(abi::Exec, threads) as i32);
        let many = f.ins().icmp_imm_u(IntCC::UnsignedGreaterThan, threads, 1);
        let none = f.int(0);
        let parallel_for = f.ins().select(many, parallel_for, none);
        Host { parallel_for, threads, data }
    }

    /// Calls `parallel_for`, which must not be zero: `task` is `(data, begin, end, worker)`, for all of `0..count`.
    pub(crate) fn parallel_for(&self, f: &mut FuncCtx, count: Value, task: FuncId, data: Value) {
        let task = f.func_ref(task);
        let task = f.ins().func_addr(types::I64, task);
        let signature = f.unit.signature(&[types::I64; 4], &[]);
        let signature = f.builder.import_signature(signature);
        f.ins().call_indirect(signature, self.parallel_for, &[self.data, count, task, data]);
    }
}
