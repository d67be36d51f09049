//! Calls of kernel parts: on the calling thread, or shared among the host's threads.

use super::{estimate, host::Host, share, steps::EmittedPart};
use crate::{
    codegen::{
        body::{
            split::{self, PartSplit, split_axis},
            tiles,
        },
        function::{FuncCtx, frame},
    },
    error::Result,
};
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC, types};
use symshape::Dim;

/// Stack memory for a frame.
pub(crate) fn frame_on_stack(f: &mut FuncCtx) -> Value {
    let slot = f.slot(frame::bytes(f.unit.program) as usize, 64);
    f.ins().stack_addr(types::I64, slot, 0)
}

/// Runs a part, on several threads if that pays.
pub(crate) fn call_part(f: &mut FuncCtx, frame: Value, host: &Host, part: &EmittedPart) -> Result<()> {
    if part.can_share(f.unit.program.workers.max(1)) {
        call_shared(f, frame, host, part)?;
    } else {
        call_on_this_thread(f, frame, part)?;
    }

    if part.fails {
        return_if_failed(f, frame)?;
    }
    Ok(())
}

/// Runs all iterations of a part on the calling thread, outside of shared work.
fn call_on_this_thread(f: &mut FuncCtx, frame: Value, part: &EmittedPart) -> Result<()> {
    let copy = f.ins().iconst(types::I32, 0);
    call_whole(f, frame, copy, part)
}

/// Runs all iterations of a part on the calling thread, which uses this copy of the scratch buffers.
pub(crate) fn call_whole(f: &mut FuncCtx, frame: Value, copy: Value, part: &EmittedPart) -> Result<()> {
    let begin = f.int(0);
    let end = match split::iterations(part.split()) {
        Some(iterations) => f.dim(&iterations)?,
        // The axis is `ALL`, which makes a contraction ignore the range.
        None => begin,
    };
    f.call(part.func, &[frame, begin, end, copy]);
    Ok(())
}

/// The cut of a part into shares, as values of the driver.
struct Sharing {
    /// One of [`split_axis`].
    axis: Value,
    /// The iterations to divide.
    count: Value,
    /// The number of shares.
    shares: Value,
}

/// Shares the part among the host's threads if the host has threads and the work is worth them.
fn call_shared(f: &mut FuncCtx, frame: Value, host: &Host, part: &EmittedPart) -> Result<()> {
    let [serial, has_threads, shared, after] = [0; 4].map(|_| f.create_block());
    let exit = f.ins().brif(host.parallel_for, has_threads, &[], serial, &[]);

    f.switch_to_block(has_threads);
    f.push_scope(exit);
    let is_enough = estimate::is_enough(f, &part.work)?;
    let sharing = sharing(f, host, part)?;
    let are_several = f.ins().icmp_imm_s(IntCC::SignedGreaterThan, sharing.shares, 1);
    let pays = f.ins().band(is_enough, are_several);
    f.ins().brif(pays, shared, &[], serial, &[]);

    f.switch_to_block(shared);
    run_shares(f, frame, host, part, &sharing)?;
    f.ins().jump(after, &[]);
    f.pop_scope();

    f.switch_to_block(serial);
    call_on_this_thread(f, frame, part)?;
    f.ins().jump(after, &[]);

    f.switch_to_block(after);
    Ok(())
}

/// How to cut a part for the host's threads.
fn sharing(f: &mut FuncCtx, host: &Host, part: &EmittedPart) -> Result<Sharing> {
    let (axis, count) = match part.split() {
        PartSplit::Contraction(contraction) => tiles::select_split(f, contraction, host.threads)?,
        split => {
            let axis = f.int(split_axis::ALL);
            let count = f.dim(&split::iterations(split).unwrap_or_else(Dim::one))?;
            (axis, count)
        }
    };

    let shares = match part.split().blocks() {
        Some(blocks) => estimate::shares_of_blocks(f, &blocks, host.threads)?,
        None => estimate::shares(f, &part.work, host.threads)?,
    };
    let mut shares = f.ins().smin(shares, count);
    if part.uses_scratch {
        // The number of copies of the scratch buffers is fixed: see `share` for the copy of a share.
        let copies = f.int(i64::from(f.unit.program.workers));
        let few = f.ins().smin(shares, copies);
        let is_enough = f.ins().icmp(IntCC::SignedLessThanOrEqual, host.threads, copies);
        shares = f.ins().select(is_enough, shares, few);
    }
    Ok(Sharing { axis, count, shares })
}

/// Stores the cut in the frame, and runs the shares on the host's threads.
fn run_shares(
    f: &mut FuncCtx,
    frame: Value,
    host: &Host,
    part: &EmittedPart,
    sharing: &Sharing,
) -> Result<()> {
    let body = f.function_address(part.func);
    f.store_fields(
        frame,
        &[
            (body, frame::BODY),
            (sharing.count, frame::COUNT),
            (sharing.shares, frame::SHARES),
            (sharing.axis, frame::SPLIT_AXIS),
        ],
    );

    let task = share::share(f.unit)?;
    host.parallel_for(f, sharing.shares, task, frame);

    // Parts that run on the calling thread alone rely on `ALL`.
    let whole = f.int(split_axis::ALL);
    f.store_at(whole, frame, frame::SPLIT_AXIS);
    Ok(())
}

/// Returns the code of the error in the frame, if there is one.
pub(crate) fn return_if_failed(f: &mut FuncCtx, frame: Value) -> Result<()> {
    let code = f.load_word(frame, frame::FAILED);
    f.leave_if(code, |f| {
        let code = f.ins().ireduce(types::I32, code);
        f.ins().return_(&[code]);
        Ok(())
    })
}
