//! State: the addresses of its tensors, its sizes, and the call that reads and updates it.
//!
//! The functions that run kernels take the address of the state's block after the addresses of the inputs.
//! `run_stateful` checks the block, appends its address to the inputs, and calls `run`. After a success it updates the
//! length in the header. See [`crate::kernel::StateBlock`] for the layout.

use super::{arguments::RunArguments, contract::require};
use crate::{
    codegen::function::{FuncCtx, ModuleBuilder, frame},
    error::{Error, Result},
    kernel::{StateBlock, contract::Failure},
};
use cranelift_codegen::ir::{BlockArg, InstBuilder, Type, Value, condcodes::IntCC, types};
use cranelift_module::{FuncId, Linkage};
use std::mem::offset_of;
use symshape::Dim;
use symshape_runtime::abi::{self, Code, StateHeader};

/// Parameters of `run_stateful(inputs, outputs, states, n_states, dims, arena, exec) -> code`.
const PARAMS: [Type; 7] =
    [types::I64, types::I64, types::I64, types::I32, types::I64, types::I64, types::I64];

/// The functions of an artefact with state.
#[derive(Clone, Copy)]
pub(crate) struct StateFunctions {
    pub(crate) bytes: FuncId,
    pub(crate) place: FuncId,
    pub(crate) run: FuncId,
}

/// Emits the functions, if the program has state. `run` is the function that runs all kernels.
pub(crate) fn functions(unit: &mut ModuleBuilder, run: FuncId) -> Result<Option<StateFunctions>> {
    let program = unit.program;
    let Some(state) = &program.state else { return Ok(None) };
    Ok(Some(StateFunctions {
        bytes: bytes(unit)?,
        place: place(unit, state)?,
        run: run_stateful(unit, state, run)?,
    }))
}

/// The address of a tensor of the state.
pub(crate) fn tensor_address(f: &mut FuncCtx, arguments: &RunArguments, tensor: u32) -> Result<Value> {
    let program = f.unit.program;
    let block = f.load_word(arguments.inputs, 8 * program.inputs.len() as i32);
    let offsets = program.state_offsets();
    let Some(offset) = offsets.get(tensor as usize) else {
        return Err(Error::internal("the program has no such state"));
    };
    let offset = f.dim(offset)?;
    Ok(f.ins().iadd(block, offset))
}

/// Emits `state_bytes(dims) -> size_t`.
fn bytes(unit: &mut ModuleBuilder) -> Result<FuncId> {
    let name = unit.symbol("state_bytes");
    let id = unit.declare(&name, Linkage::Export, &[types::I64], &[types::I64])?;
    unit.define(id, |f, params| {
        f.set_dims(params[0], 0);
        let total = f.unit.program.state_offsets().pop().unwrap_or_else(Dim::zero);
        let total = f.dim(&total)?;
        f.ins().return_(&[total]);
        Ok(())
    })?;
    Ok(id)
}

/// Emits `state_place(tensor, dims, place) -> code`: writes the byte offset of a tensor of the state, and its dims.
fn place(unit: &mut ModuleBuilder, state: &StateBlock) -> Result<FuncId> {
    let name = unit.symbol("state_place");
    let id = unit.declare(&name, Linkage::Export, &[types::I32, types::I64, types::I64], &[types::I32])?;
    unit.define(id, |f, params| {
        let [tensor, dims, place] = *params else {
            return Err(Error::internal("`state_place` has three parameters"));
        };
        f.set_dims(dims, 0);
        let offsets = f.unit.program.state_offsets();
        f.switch(tensor, state.tensors.len(), |f, idx| {
            let words = std::iter::once(&offsets[idx]).chain(&state.tensors[idx].shape);
            for (at, dim) in words.enumerate() {
                let value = f.dim(dim)?;
                f.store_at(value, place, 8 * at as i32);
            }
            Ok(())
        })
    })?;
    Ok(id)
}

/// Emits `run_stateful`.
fn run_stateful(unit: &mut ModuleBuilder, state: &StateBlock, run: FuncId) -> Result<FuncId> {
    let name = unit.symbol("run_stateful");
    let id = unit.declare(&name, Linkage::Export, &PARAMS, &[types::I32])?;
    unit.define(id, |f, params| {
        let [inputs, outputs, states, n_states, dims, arena, exec] = *params else {
            return Err(Error::internal("`run_stateful` has seven parameters"));
        };
        let report = report_frame(f, exec);

        let one = f.int(1);
        let count = f.ins().uextend(types::I64, n_states);
        let is_one = f.ins().icmp_imm_s(IntCC::Equal, count, 1);
        require(f, report, is_one, &refusal("a call takes one state"), [count, one, one])?;
        let block = f.load_word(states, 0);
        check_header(f, report, block, dims, state)?;

        let n_inputs = f.unit.program.inputs.len();
        let table = f.words(n_inputs + 1);
        for idx in 0..n_inputs as i32 {
            let address = f.load_word(inputs, 8 * idx);
            f.store_at(address, table, 8 * idx);
        }
        f.store_at(block, table, 8 * n_inputs as i32);

        let code = f.call(run, &[table, outputs, dims, arena, exec]);
        let code = code.ok_or_else(|| Error::internal("`run` returns a code"))?;
        f.return_if_error(code)?;
        if let Some(rows) = &state.rows {
            f.set_dims(dims, 0);
            let length = f.dim(&(Dim::from(&rows.length) + &rows.growth))?;
            f.store_at(length, block, word_offset(1));
        }
        f.return_ok();
        Ok(())
    })?;
    Ok(id)
}

/// Byte offset of a word of the header.
fn word_offset(idx: usize) -> i32 {
    (size_of::<StateHeader>() + 8 * idx) as i32
}

/// The failure of a state that the call refuses for the reason `why`.
fn refusal(why: &str) -> Failure {
    let tensor_name = Some("the state".into());
    Failure { tensor_name, why: Some(why.into()), ..Failure::new(Code::WrongState) }
}

/// The beginning of a frame, with the error slot of `exec` if it has one.
fn report_frame(f: &mut FuncCtx, exec: Value) -> Value {
    let slot = f.slot(16 + size_of::<abi::Error>(), 16);
    let frame = f.ins().stack_addr(types::I64, slot, 0);
    let own_error = f.ins().stack_addr(types::I64, slot, 16);

    let has_exec = f.create_block();
    let next = f.create_block();
    let error = f.builder.append_block_param(next, types::I64);
    f.ins().brif(exec, has_exec, &[], next, &[BlockArg::Value(own_error)]);
    f.switch_to_block(has_exec);
    let given = f.load_word(exec, offset_of!(abi::Exec, error) as i32);
    let chosen = f.ins().select(given, given, own_error);
    f.ins().jump(next, &[BlockArg::Value(chosen)]);
    f.builder.seal_block(has_exec);

    f.switch_to_block(next);
    f.builder.seal_block(next);
    let zero = f.int(0);
    f.store_fields(frame, &[(error, frame::ERROR), (zero, frame::FAILED)]);
    frame
}

/// Refuses a block that is not a state of this artefact, or whose sizes are not those of the call.
fn check_header(f: &mut FuncCtx, report: Value, block: Value, dims: Value, state: &StateBlock) -> Result<()> {
    let zero = f.int(0);
    let is_there = f.ins().icmp_imm_s(IntCC::NotEqual, block, 0);
    require(f, report, is_there, &refusal("its address is null"), [zero, zero, zero])?;

    let expected = [
        (
            offset_of!(StateHeader, magic),
            abi::STATE_MAGIC as i64,
            "it does not begin with the magic number of a state",
        ),
        (offset_of!(StateHeader, id), state.id as i64, "it belongs to another artefact"),
    ];
    for (at, value, why) in expected {
        let found = f.load_word(block, at as i32);
        let value = f.int(value);
        let is_equal = f.ins().icmp(IntCC::Equal, found, value);
        require(f, report, is_equal, &refusal(why), [found, value, value])?;
    }

    let program = f.unit.program;
    for (idx, symbol) in state.words().iter().enumerate() {
        let Some(at) = program.symbols.iter().position(|known| known == symbol) else { continue };
        let own = f.load_word(block, word_offset(idx));
        let given = f.load_word(dims, 8 * at as i32);
        let is_equal = f.ins().icmp(IntCC::Equal, own, given);
        let why =
            format!("its {symbol} is not that of the dims: call `check` with the words of its header first");
        require(f, report, is_equal, &refusal(&why), [own, given, given])?;
    }
    Ok(())
}
