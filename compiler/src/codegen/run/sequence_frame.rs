//! The frame of one sequence, in a call that runs kernels once for each of several sequences.
//!
//! It has the slots of the call's frame, but the sizes of one sequence and the addresses of that sequence's part of
//! each buffer. Several threads may run sequences at once, so each frame has its own error slot.

use crate::{
    codegen::{
        body::split::split_axis,
        function::{FuncCtx, frame, report_error},
    },
    error::Result,
};
use cranelift_codegen::ir::{InstBuilder, Value};
use std::mem::offset_of;
use symshape_runtime::abi;

/// Fills the slots of `own` that are the same for all sequences, except the addresses of buffers. Kernels run on the
/// calling thread.
pub(super) fn open(f: &mut FuncCtx, frame: Value, own: Value) {
    for idx in 0..f.unit.program.symbols.len() {
        copy(f, frame, own, frame::symbol_slot(idx));
    }
    if f.unit.has_weights_file() {
        copy(f, frame, own, frame::WEIGHTS);
    }
    let error = i64::from(frame::spare_error(f.unit.program));
    let error = f.ins().iadd_imm_s(own, error);
    let zero = f.int(0);
    let whole = f.int(split_axis::ALL);
    f.store_fields(
        own,
        &[
            (error, frame::ERROR),
            (zero, frame::FAILED),
            (zero, frame::EXEC),
            (whole, frame::SPLIT_AXIS),
            (zero, frame::PARALLEL_FOR),
            (zero, frame::HOST),
            (zero, frame::THREADS),
        ],
    );
}

/// Copies a slot of the call's frame.
pub(super) fn copy(f: &mut FuncCtx, frame: Value, own: Value, slot: i32) {
    let value = f.load_word(frame, slot);
    f.store_at(value, own, slot);
}

/// Returns from the function if a kernel has failed for the sequence. Its error becomes that of the call, unless
/// another one was first.
pub(super) fn return_if_failed(f: &mut FuncCtx, frame: Value, own: Value) -> Result<()> {
    let code = f.load_word(own, frame::FAILED);
    f.leave_if(code, |f| {
        let error = f.load_word(own, frame::ERROR);
        let fields = [offset_of!(abi::Error, value), offset_of!(abi::Error, lo), offset_of!(abi::Error, hi)];
        let values = fields.map(|at| f.load_word(error, at as i32));
        report_error::forward(f, frame, error, values)?;
        f.ins().return_(&[]);
        Ok(())
    })
}
