//! The task that the host calls to run shares of a part.

use crate::{
    codegen::function::{Unit, frame},
    error::Result,
};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, types};
use cranelift_module::FuncId;

/// The task that runs shares `begin..end` of the part whose function, iterations and shares are in the frame:
/// `(frame, begin, end, worker)`. Defined on first use.
pub(crate) fn share(unit: &mut Unit) -> Result<FuncId> {
    if let Some(id) = unit.on_demand.get("share") {
        return Ok(*id);
    }
    let id =
        unit.define_local("share", &[types::I64, types::I64, types::I64, types::I32], &[], |f, params| {
            let [frame, begin, end, _] = *params else { return Ok(()) };
            let trusted = MemFlagsData::trusted();
            let [body, count, shares] = [frame::BODY, frame::COUNT, frame::SHARES]
                .map(|slot| f.builder.ins().load(types::I64, trusted, frame, slot));
            let signature = f.unit.signature(&[types::I64, types::I64, types::I64, types::I32], &[]);
            let signature = f.builder.import_signature(signature);
            f.each(begin, end, |f, share| {
                let next = f.builder.ins().iadd_imm_s(share, 1);
                let [from, to] = [share, next].map(|number| {
                    let before = f.builder.ins().imul(count, number);
                    f.builder.ins().udiv(before, shares)
                });
                let copy = f.builder.ins().ireduce(types::I32, share);
                f.builder.ins().call_indirect(signature, body, &[frame, from, to, copy]);
                Ok(())
            })?;
            f.builder.ins().return_(&[]);
            Ok(())
        })?;
    unit.on_demand.insert("share".into(), id);
    Ok(id)
}
