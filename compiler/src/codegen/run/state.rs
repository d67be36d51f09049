//! State: the addresses of its tensors, its sizes, and the call that reads and updates it.
//!
//! The functions that run kernels take the address of the state's block after the addresses of the inputs and of the
//! weights file, if there is one.
//! `run_stateful` checks the block, appends its address to the inputs, and calls `run`. After a success it updates the
//! length in the header. See [`crate::kernel::StateBlock`] for the layout.

use super::{
    arguments::RunArguments,
    contract::require,
    entries::RunFunctions,
    state_header::{
        PARAMS, check_identity, check_words, refusal, report_failure, report_frame, stateful_inputs,
        word_offset,
    },
    states,
};
use crate::{
    codegen::function::{FuncCtx, ModuleBuilder},
    error::{Error, Result},
    kernel::{Sequences, StateBlock},
};
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC, types};
use cranelift_module::{FuncId, Linkage};
use symshape::{Dim, Symbol};

/// The functions of an artefact with state.
pub(crate) struct StateFunctions {
    pub(crate) bytes: FuncId,
    pub(crate) place: FuncId,
    pub(crate) run: FuncId,
    /// The symbol that is the number of states of a call, or why there can be only one.
    pub(crate) count: std::result::Result<Symbol, String>,
}

/// Emits the functions, if the program has state.
pub(crate) fn functions(unit: &mut ModuleBuilder, run: &RunFunctions) -> Result<Option<StateFunctions>> {
    let program = unit.program;
    let Some(state) = &program.state else { return Ok(None) };
    let several = match (&program.sequences, run.sequences) {
        (Some(Ok(sequences)), Some(run)) => Ok((sequences, run)),
        (Some(Err(cause)), _) => Err(cause.clone()),
        _ => Err("its kernels run one batch".into()),
    };
    Ok(Some(StateFunctions {
        bytes: bytes(unit)?,
        place: place(unit, state)?,
        run: run_stateful(unit, state, run.function, &several)?,
        count: several.map(|(sequences, _)| sequences.count.clone()),
    }))
}

/// The address of a tensor of the state.
pub(crate) fn tensor_address(f: &mut FuncCtx, arguments: &RunArguments, tensor: u32) -> Result<Value> {
    let block = block(f, arguments);
    tensor_in_block(f, block, tensor)
}

/// The address of the state's block; in a call for several sequences, that of the array of their blocks.
pub(crate) fn block(f: &mut FuncCtx, arguments: &RunArguments) -> Value {
    let after_inputs = 8 * f.unit.state_input() as i32;
    f.load_word(arguments.inputs, after_inputs)
}

/// The address of a tensor in a block with the dims of the current function.
pub(crate) fn tensor_in_block(f: &mut FuncCtx, block: Value, tensor: u32) -> Result<Value> {
    let offsets = f.unit.program.state_offsets();
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

/// Emits `run_stateful`. `run` runs a batch. For several sequences there is another function, or the reason for none.
fn run_stateful(
    unit: &mut ModuleBuilder,
    state: &StateBlock,
    run: FuncId,
    several: &std::result::Result<(&Sequences, FuncId), String>,
) -> Result<FuncId> {
    let several = match several {
        Ok((sequences, run)) => Ok(states::function(unit, state, sequences, *run)?),
        Err(cause) => Err(cause),
    };

    let name = unit.symbol("run_stateful");
    let id = unit.declare(&name, Linkage::Export, &PARAMS, &[types::I32])?;
    unit.define(id, |f, params| {
        let [inputs, outputs, states, n_states, dims, arena, exec] = *params else {
            return Err(Error::internal("`run_stateful` has seven parameters"));
        };
        let arguments = RunArguments { inputs, outputs, dims, arena, exec };
        let report = report_frame(f, exec);
        let count = f.ins().uextend(types::I64, n_states);
        let one = f.int(1);
        let is_any = f.ins().icmp_imm_s(IntCC::NotEqual, count, 0);
        require(f, report, is_any, &refusal("a call takes at least one"), [count, one, one])?;

        let is_one = f.ins().icmp_imm_s(IntCC::Equal, count, 1);
        f.leave_unless(is_one, |f| match several {
            Ok(run_states) => {
                f.return_call_result(run_states, params);
                Ok(())
            }
            Err(cause) => {
                let failure = refusal(&format!("a call of this model takes one state, because {cause}"));
                report_failure(f, report, &failure, [count, one, one])?;
                f.return_code(failure.code as i64);
                Ok(())
            }
        })?;
        run_one(f, report, states, &arguments, state, run)
    })?;
    Ok(id)
}

/// Runs a batch with one state.
fn run_one(
    f: &mut FuncCtx,
    report: Value,
    states: Value,
    arguments: &RunArguments,
    state: &StateBlock,
    run: FuncId,
) -> Result<()> {
    let dims = arguments.dims;
    let block = f.load_word(states, 0);
    check_identity(f, report, block, state)?;
    check_words(f, report, block, dims, state)?;

    let table = stateful_inputs(f, arguments.inputs, block);
    let own = RunArguments { inputs: table, ..*arguments };
    let code = f.call(run, &own.values());
    let code = code.ok_or_else(|| Error::internal("`run` returns a code"))?;
    f.return_if_error(code)?;
    if let Some(rows) = &state.rows {
        f.set_dims(dims, 0);
        let length = f.dim(&(Dim::from(&rows.length) + &rows.growth))?;
        f.store_at(length, block, word_offset(1));
    }
    f.return_ok();
    Ok(())
}
