//! The task that the host's threads call to run shares of a kernel part, see [`crate::codegen::body::split`].

use super::host::TASK_PARAMS;
use crate::{
    codegen::function::{ModuleBuilder, frame},
    error::{Error, Result},
};
use cranelift_codegen::ir::{InstBuilder, condcodes::IntCC, types};
use cranelift_module::FuncId;

/// The task `(frame, begin, end, worker)`, which runs shares `begin..end` of the part in the frame as one range of
/// iterations. Defined on first use.
///
/// The frame holds the part's function and the counts of iterations and shares. Share `s` of `n` has the iterations
/// from `count * s / n` up to `count * (s + 1) / n`.
pub(crate) fn share(unit: &mut ModuleBuilder) -> Result<FuncId> {
    if let Some(id) = unit.on_demand.get("share") {
        return Ok(*id);
    }

    let id = unit.define_local("share", &TASK_PARAMS, &[], |f, params| {
        let [frame, begin, end, worker] = *params else {
            return Err(Error::internal("a task has four parameters"));
        };
        let [body, count, shares] =
            [frame::BODY, frame::COUNT, frame::SHARES].map(|slot| f.load_word(frame, slot));
        let [from, to] = [begin, end].map(|bound| {
            let scaled = f.ins().imul(count, bound);
            f.ins().udiv(scaled, shares)
        });

        // If there are copies of the scratch buffers for all workers, a worker has its own. If not, there are as many
        // shares as copies at most, and a range has the copy of its first share.
        let copies = f.int(i64::from(f.unit.program.workers.max(1)));
        let has_few = f.ins().icmp(IntCC::SignedLessThanOrEqual, shares, copies);
        let first = f.ins().ireduce(types::I32, begin);
        let copy = f.ins().select(has_few, first, worker);
        f.call_indirect(body, &TASK_PARAMS, &[], &[frame, from, to, copy]);
        f.ins().return_(&[]);
        Ok(())
    })?;
    unit.on_demand.insert("share".into(), id);
    Ok(id)
}
