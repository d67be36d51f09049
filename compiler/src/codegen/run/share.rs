//! The task that the host's threads call to run shares of a kernel part, see [`crate::codegen::body::split`].

use super::host::TASK_PARAMS;
use crate::{
    codegen::function::{ModuleBuilder, frame},
    error::{Error, Result},
};
use cranelift_codegen::ir::{InstBuilder, types};
use cranelift_module::FuncId;

/// The task `(frame, begin, end, worker)`, which runs shares `begin..end` of the part in the frame. Defined on first
/// use.
///
/// The frame holds the part's function and the counts of iterations and shares. Share `s` of `n` runs the iterations
/// from `count * s / n` up to `count * (s + 1) / n`, so the cuts don't depend on which thread runs a share.
pub(crate) fn share(unit: &mut ModuleBuilder) -> Result<FuncId> {
    if let Some(id) = unit.on_demand.get("share") {
        return Ok(*id);
    }

    let id = unit.define_local("share", &TASK_PARAMS, &[], |f, params| {
        let [frame, begin, end, _] = *params else {
            return Err(Error::internal("a task has four parameters"));
        };
        let [body, count, shares] =
            [frame::BODY, frame::COUNT, frame::SHARES].map(|slot| f.load_word(frame, slot));

        f.for_range(begin, end, |f, share| {
            let next = f.ins().iadd_imm_s(share, 1);
            let [from, to] = [share, next].map(|bound| {
                let scaled = f.ins().imul(count, bound);
                f.ins().udiv(scaled, shares)
            });

            // A share owns the copy of the scratch buffers that has its number.
            let copy = f.ins().ireduce(types::I32, share);
            f.call_indirect(body, &TASK_PARAMS, &[], &[frame, from, to, copy]);
            Ok(())
        })?;
        f.ins().return_(&[]);
        Ok(())
    })?;
    unit.on_demand.insert("share".into(), id);
    Ok(id)
}
