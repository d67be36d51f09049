//! Strips, and loops over strips, as calls of strip microkernels.
//!
//! [`StripCall::recognise`] decides whether a microkernel supports the code. Here the call is emitted: the argument
//! block, the advance of its pointers to the first iteration of a range, the call, and the locals that it sets.

use super::{
    args::ArgBlock,
    split::IterationRange,
    strip_call::{Retry, StripCall},
    strip_pointers::Pointer,
};
use crate::{
    codegen::{
        function::FuncCtx,
        microkernel::{MicrokernelKey, strip::StripKey},
    },
    error::Result,
    kernel::{Axis, InstSeq, Kernel, Stmt},
};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types};
use std::slice;

/// A strip that was emitted as a call.
pub(super) enum StripOutcome {
    /// It can't fail.
    Done,
    /// The integer is not zero if a check failed. Scalar code then finds it, and leaves the function.
    MayFail(Value, Retry),
}

/// Emits a strip, or its elements in `range`, as one call. Returns `None`, and emits nothing, if microkernels don't
/// support the code.
pub(crate) fn emit_strip(
    f: &mut FuncCtx,
    kernel: &Kernel,
    axis: &Axis,
    range: Option<IterationRange>,
    code: &InstSeq,
) -> Result<Option<StripOutcome>> {
    let mut facts = f.facts().clone();
    facts.declare_index(&axis.var, &axis.extent);
    let stmt = Stmt::Strip { axis: axis.clone(), code: code.clone() };
    let Some(call) = StripCall::recognise(f.unit.program, kernel, &facts, None, slice::from_ref(&stmt))
    else {
        return Ok(None);
    };

    let mut args = arguments(f, &call)?;
    let one = f.int(1);
    args.set(StripKey::ROWS, one);
    if let Some(range) = range {
        restrict_elements(f, &call, &mut args, range);
    }
    emit_call(f, kernel, call, &args).map(Some)
}

/// Emits rows `range` of a loop over strips and scalar code as one call. With `columns`, only these elements of the
/// strips are computed, which must have one extent. Returns `None`, and emits nothing, if microkernels don't support
/// the code.
pub(crate) fn emit_rows(
    f: &mut FuncCtx,
    kernel: &Kernel,
    axis: &Axis,
    range: IterationRange,
    columns: Option<IterationRange>,
    body: &[Stmt],
) -> Result<Option<StripOutcome>> {
    let mut facts = f.facts().clone();
    facts.declare_index(&axis.var, &axis.extent);
    for stmt in body {
        if let Stmt::Strip { axis, .. } = stmt {
            facts.declare_index(&axis.var, &axis.extent);
        }
    }
    let Some(mut call) = StripCall::recognise(f.unit.program, kernel, &facts, Some(axis), body) else {
        return Ok(None);
    };

    let mut args = arguments(f, &call)?;
    restrict_rows(f, &call, &mut args, range);
    if let Some(columns) = columns {
        call.key.short_row = None;
        restrict_elements(f, &call, &mut args, columns);
    }
    emit_call(f, kernel, call, &args).map(Some)
}

/// Restricts a call, whose strips have one extent, to the elements in `range`.
fn restrict_elements(f: &mut FuncCtx, call: &StripCall, args: &mut ArgBlock, range: IterationRange) {
    let count = f.ins().isub(range.end, range.begin);
    args.set(call.key.extent(0), count);
    if call.key.counts {
        args.set(call.key.first(), range.begin);
    }
    for (idx, pointer) in call.pointers.iter().enumerate() {
        let slot = call.key.pointer(idx as u32);
        let stride = match pointer {
            // Gathered constants are contiguous, and as wide as a lane.
            Pointer::Gathered(_) => Some(f.int(4)),
            Pointer::Stream(_) => args.get(slot + 2),
        };
        advance_pointer(f, args, slot, stride, range.begin);
    }
}

/// Restricts a call with a row loop to the rows in `range`.
fn restrict_rows(f: &mut FuncCtx, call: &StripCall, args: &mut ArgBlock, range: IterationRange) {
    for idx in 0..call.pointers.len() as u32 {
        let slot = call.key.pointer(idx);
        let stride = args.get(slot + 1);
        advance_pointer(f, args, slot, stride, range.begin);
    }
    let count = f.ins().isub(range.end, range.begin);
    args.set(StripKey::ROWS, count);
}

/// Advances the pointer in a slot by `steps` strides.
fn advance_pointer(f: &mut FuncCtx, args: &mut ArgBlock, slot: usize, stride: Option<Value>, steps: Value) {
    if let (Some(address), Some(stride)) = (args.get(slot), stride) {
        let distance = f.ins().imul(steps, stride);
        let advanced = f.ins().iadd(address, distance);
        args.set(slot, advanced);
    }
}

/// The argument block for all elements, without the number of rows.
fn arguments(f: &mut FuncCtx, call: &StripCall) -> Result<ArgBlock> {
    let mut args = ArgBlock::new(call.key.slots());
    for (idx, extent) in call.extents.iter().enumerate() {
        let extent = f.dim(extent)?;
        args.set(call.key.extent(idx as u32), extent);
    }

    for (idx, pointer) in call.pointers.iter().enumerate() {
        let slot = call.key.pointer(idx as u32);
        match pointer {
            Pointer::Stream(stream) => args.set_stream(f, slot, stream)?,
            Pointer::Gathered(bytes) => {
                let name = format!("gathered_{}", f.unit.unique_id());
                let data = f.unit.data(&name, bytes.as_slice().into(), 64)?;
                args.set(slot, f.data_address(data));
                // All rows read the same constants.
                let zero = f.int(0);
                args.set(slot + 1, zero);
            }
        }
    }

    for (idx, scalar) in call.scalars.iter().enumerate() {
        args.set_scalar(f, call.key.scalar(idx as u32), scalar)?;
    }
    Ok(args)
}

/// Calls the microkernel, and sets the locals that it returns in the argument block.
fn emit_call(f: &mut FuncCtx, kernel: &Kernel, call: StripCall, args: &ArgBlock) -> Result<StripOutcome> {
    let block = args.place(f);
    let retry = call.retry.map(|retry| (retry, call.key.failed()));
    let result_slots: Vec<usize> = (0..call.results.len()).map(|idx| call.key.result(idx)).collect();
    let microkernel = f.unit.microkernel(MicrokernelKey::Strip(call.key))?;
    f.call(microkernel, &[block]);

    for (local, slot) in call.results.into_iter().zip(result_slots) {
        let ty = FuncCtx::reg_type(kernel.locals[local]);
        let value = f.ins().load(ty, MemFlagsData::trusted(), block, 8 * slot as i32);
        f.set_local(local, value)?;
    }
    let Some((retry, slot)) = retry else { return Ok(StripOutcome::Done) };
    let failed = f.ins().load(types::I64, MemFlagsData::trusted(), block, 8 * slot as i32);
    Ok(StripOutcome::MayFail(failed, retry))
}
