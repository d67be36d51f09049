//! The header of a state: the checks of its fields, and how a call that has a state reports a refusal.

use super::contract::require;
use crate::{
    codegen::function::{FuncCtx, frame, report_error},
    error::Result,
    kernel::{StateBlock, contract::Failure},
};
use cranelift_codegen::ir::{BlockArg, InstBuilder, Type, Value, condcodes::IntCC, types};
use std::mem::offset_of;
use symshape::Dim;
use symshape_runtime::abi::{self, Code, StateHeader};

/// Parameters of `run_stateful(inputs, outputs, states, n_states, dims, arena, exec) -> code`.
pub(super) const PARAMS: [Type; 7] =
    [types::I64, types::I64, types::I64, types::I32, types::I64, types::I64, types::I64];

/// The addresses of the inputs and, after them, that of the state's block or of the array of blocks.
pub(super) fn stateful_inputs(f: &mut FuncCtx, inputs: Value, states: Value) -> Value {
    let n_given = f.unit.state_input();
    let table = f.words(n_given + 1);
    for idx in 0..n_given as i32 {
        let address = f.load_word(inputs, 8 * idx);
        f.store_at(address, table, 8 * idx);
    }
    f.store_at(states, table, 8 * n_given as i32);
    table
}

/// Byte offset of a word of the header.
pub(crate) fn word_offset(idx: usize) -> i32 {
    (size_of::<StateHeader>() + 8 * idx) as i32
}

/// The failure of a state that the call refuses for the reason `why`.
pub(super) fn refusal(why: &str) -> Failure {
    let tensor_name = Some("the state".into());
    Failure { tensor_name, why: Some(why.into()), ..Failure::new(Code::WrongState) }
}

/// The beginning of a frame, with the error slot of `exec` if it has one.
pub(super) fn report_frame(f: &mut FuncCtx, exec: Value) -> Value {
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

/// Fills in the error of a failure.
pub(super) fn report_failure(
    f: &mut FuncCtx,
    report: Value,
    failure: &Failure,
    values: [Value; 3],
) -> Result<()> {
    let [value, lo, hi] = values;
    report_error::emit(f, report, failure, value, lo, hi)
}

/// Refuses a block that is not a state of this artefact.
pub(super) fn check_identity(f: &mut FuncCtx, report: Value, block: Value, state: &StateBlock) -> Result<()> {
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
    Ok(())
}

/// Refuses a block whose sizes are not those of the call.
pub(super) fn check_words(
    f: &mut FuncCtx,
    report: Value,
    block: Value,
    dims: Value,
    state: &StateBlock,
) -> Result<()> {
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
    f.set_dims(dims, 0);
    check_bytes(f, report, block)
}

/// Refuses a block whose header states another number of bytes than its sizes give. The symbols of the state are bound.
pub(super) fn check_bytes(f: &mut FuncCtx, report: Value, block: Value) -> Result<()> {
    let bytes = f.unit.program.state_offsets().pop().unwrap_or_else(Dim::zero);
    let expected = f.dim(&bytes)?;
    let found = f.load_word(block, offset_of!(StateHeader, bytes) as i32);
    let is_equal = f.ins().icmp(IntCC::Equal, found, expected);
    let failure = refusal("its header is damaged: it has another number of bytes than its sizes give");
    require(f, report, is_equal, &failure, [found, expected, expected])
}
