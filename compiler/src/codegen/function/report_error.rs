//! Errors that generated code reports: templates in the artefact, completed with the offending value.

use super::{FuncCtx, ModuleBuilder, frame};
use crate::{error::Result, kernel::contract::Failure};
use cranelift_codegen::ir::{BlockArg, InstBuilder, MemFlagsData, Value, condcodes::IntCC, types};
use cranelift_module::{DataDescription, DataId, FuncId, Linkage, Module};
use std::mem::offset_of;
use symshape_runtime::abi;

/// A data object with the error, except its values.
fn define(failure: &Failure, unit: &mut ModuleBuilder) -> Result<DataId> {
    let mut bytes = vec![0; size_of::<abi::Error>()];
    let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    put(offset_of!(abi::Error, code), failure.code as u32);
    put(offset_of!(abi::Error, tensor), failure.axis.map_or(u32::MAX, |axis| axis.input));
    put(offset_of!(abi::Error, axis), failure.axis.map_or(0, |axis| axis.axis));
    put(offset_of!(abi::Error, symbol), failure.symbol.unwrap_or(u32::MAX));

    let mut data = DataDescription::new();
    data.define(bytes.into());
    data.set_align(align_of::<abi::Error>() as u64);
    for (at, text) in [
        (offset_of!(abi::Error, symbol_name), &failure.symbol_name),
        (offset_of!(abi::Error, tensor_name), &failure.tensor_name),
        (offset_of!(abi::Error, why), &failure.why),
    ] {
        if let Some(text) = text {
            let string = unit.string(text)?;
            let string = unit.module.declare_data_in_data(string, &mut data);
            data.write_data_addr(at as u32, string, 0);
        }
    }

    let id = unit.unique_id();
    let name = unit.symbol(&format!("error_{id}"));
    unit.define_data(&name, Linkage::Local, &data)
}

/// Emits the report of an error to the frame's error slot. `frame` may be any memory that begins like a frame.
pub(crate) fn emit(
    f: &mut FuncCtx,
    frame: Value,
    failure: &Failure,
    value: Value,
    lo: Value,
    hi: Value,
) -> Result<()> {
    let fail = function(f.unit)?;
    let data = define(failure, f.unit)?;
    // The address is computed here and not at the function's top, because errors are rare.
    let global = f.global(data);
    let template = f.ins().symbol_value(types::I64, global);
    f.fails = true;
    f.call(fail, &[frame, template, value, lo, hi]);
    Ok(())
}

/// Emits the report of a complete [`abi::Error`] at `error` to the frame's error slot.
pub(crate) fn forward(f: &mut FuncCtx, frame: Value, error: Value, values: [Value; 3]) -> Result<()> {
    let fail = function(f.unit)?;
    let [value, lo, hi] = values;
    f.fails = true;
    f.call(fail, &[frame, error, value, lo, hi]);
    Ok(())
}

/// `fail(frame, template, value, lo, hi)`: the first caller sets the frame's code and fills in the error. Later ones
/// do nothing.
fn function(unit: &mut ModuleBuilder) -> Result<FuncId> {
    if let Some(id) = unit.on_demand.get("fail") {
        return Ok(*id);
    }
    let id = unit.define_local("fail", &[types::I64; 5], &[], |f, params| {
        let [frame, template, value, lo, hi] = params else { return Ok(()) };
        let trusted = MemFlagsData::trusted();
        let fill = f.create_block();
        let done = f.create_block();
        let code = f.ins().sload32(trusted, *template, offset_of!(abi::Error, code) as i32);
        let slot = f.ins().iadd_imm_s(*frame, i64::from(frame::FAILED));
        let none = f.int(0);
        let old = f.ins().atomic_cas(trusted, slot, none, code);
        let first = f.ins().icmp_imm_s(IntCC::Equal, old, 0);
        f.ins().brif(first, fill, &[] as &[BlockArg], done, &[]);

        f.switch_to_block(fill);
        let error = f.load_word(*frame, frame::ERROR);
        for at in (0..size_of::<abi::Error>() as i32).step_by(8) {
            let word = f.load_word(*template, at);
            f.store_at(word, error, at);
        }
        f.store_at(*value, error, offset_of!(abi::Error, value) as i32);
        f.store_at(*lo, error, offset_of!(abi::Error, lo) as i32);
        f.store_at(*hi, error, offset_of!(abi::Error, hi) as i32);
        f.ins().jump(done, &[]);

        f.switch_to_block(done);
        f.ins().return_(&[]);
        Ok(())
    })?;
    unit.on_demand.insert("fail".into(), id);
    Ok(id)
}
