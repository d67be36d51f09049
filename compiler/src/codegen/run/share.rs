//! The task that the host calls to run shares of a part.

use crate::{
    codegen::function::{ModuleBuilder, frame},
    error::Result,
};
use cranelift_codegen::ir::{InstBuilder, types};
use cranelift_module::FuncId;

/// The task that runs shares `begin..end` of the part whose function, iterations and shares are in the frame:
/// `(frame, begin, end, worker)`. Defined on first use.
pub(crate) fn share(unit: &mut ModuleBuilder) -> Result<FuncId> {
    if let Some(id) = unit.on_demand.get("share") {
        return Ok(*id);
    }
    let id =
        unit.define_local("share", &[types::I64, types::I64, types::I64, types::I32], &[], |f, params| {
            let [frame, begin, end, _] = *params else { return Ok(()) };
            let [body, count, shares] =
                [frame::BODY, frame::COUNT, frame::SHARES].map(|slot| f.load_word(frame, slot));
            let signature = f.unit.signature(&[types::I64, types::I64, types::I64, types::I32], &[]);
            let signature = f.builder.import_signature(signature);
            f.for_range(begin, end, |f, share| {
                let next = f.ins().iadd_imm_s(share, 1);
                let [from, to] = [share, next].map(|number| {
                    let before = f.ins().imul(count, number);
                    f.ins().udiv(before, shares)
                });
                let copy = f.ins().ireduce(types::I32, share);
                f.ins().call_indirect(signature, body, &[frame, from, to, copy]);
                Ok(())
            })?;
            f.ins().return_(&[]);
            Ok(())
        })?;
    unit.on_demand.insert("share".into(), id);
    Ok(id)
}
