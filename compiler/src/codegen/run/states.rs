//! The part of `run_stateful` that runs several sequences, each with a state of its own.
//!
//! All states are checked before the first store: each is a state of this artefact, no two are the same, and the sizes
//! of each sequence keep the call contract as those of a call with this state alone would. The dims of the call have
//! the number of states as the size of the batch, and the length of the longest sequence, so the arena is large enough
//! for each of them.

use super::{
    arguments::RunArguments,
    contract::{accept_symbol, check_relations, require},
    state_header::{
        PARAMS, check_bytes, check_identity, refusal, report_failure, report_frame, stateful_inputs,
        word_offset,
    },
};
use crate::{
    codegen::function::{FuncCtx, ModuleBuilder, frame},
    error::{Error, Result},
    kernel::{Sequences, StateBlock},
};
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC, types};
use cranelift_module::FuncId;
use std::mem::offset_of;
use symshape::{Dim, Symbol};
use symshape_runtime::abi;

/// Emits `run_states`, which has the parameters of `run_stateful`. `run` runs all kernels for several sequences.
pub(super) fn function(
    unit: &mut ModuleBuilder,
    state: &StateBlock,
    sequences: &Sequences,
    run: FuncId,
) -> Result<FuncId> {
    let check = unit.define_local("check_state", &[types::I64; 3], &[types::I32], |f, params| {
        let [report, block, dims] = *params else {
            return Err(Error::internal("`check_state` has three parameters"));
        };
        f.set_dims(dims, 0);
        check_identity(f, report, block, state)?;
        check_sizes(f, report, block, dims, state, sequences)?;
        f.return_ok();
        Ok(())
    })?;
    unit.define_local("run_states", &PARAMS, &[types::I32], |f, params| {
        let call = StatesCall::begin(f, params)?;
        call.check_all(f, check, sequences)?;
        call.run(f, run)?;
        call.update_lengths(f, state)?;
        f.return_ok();
        Ok(())
    })
}

/// A call with several states.
struct StatesCall {
    report: Value,
    states: Value,
    /// The number of states, as a word.
    count: Value,
    arguments: RunArguments,
}

impl StatesCall {
    fn begin(f: &mut FuncCtx, params: &[Value]) -> Result<StatesCall> {
        let [inputs, outputs, states, n_states, dims, arena, exec] = *params else {
            return Err(Error::internal("`run_states` has seven parameters"));
        };
        let report = report_frame(f, exec);
        let count = f.ins().uextend(types::I64, n_states);
        let arguments = RunArguments { inputs, outputs, dims, arena, exec };
        Ok(StatesCall { report, states, count, arguments })
    }

    /// Checks all states by the function `check`.
    fn check_all(&self, f: &mut FuncCtx, check: FuncId, sequences: &Sequences) -> Result<()> {
        let StatesCall { report, states, count, .. } = *self;
        let dims = self.arguments.dims;
        let given = f.load_word(dims, 8 * position(f, &sequences.count) as i32);
        let is_count = f.ins().icmp(IntCC::Equal, given, count);
        let why = format!(
            "{} is not the number of states: call `check` with the words of all states first",
            sequences.count
        );
        require(f, report, is_count, &refusal(&why), [count, given, given])?;

        let zero = f.int(0);
        f.for_range(zero, count, |f, idx| {
            let block = block_at(f, states, idx);
            let code = f.call(check, &[report, block, dims]);
            let code = code.ok_or_else(|| Error::internal("`check_state` returns a code"))?;
            f.leave_if(code, |f| {
                store_index(f, report, idx);
                f.ins().return_(&[code]);
                Ok(())
            })?;
            refuse_repetition(f, report, states, block, idx)
        })
    }

    /// Runs all kernels by the function `run`.
    fn run(&self, f: &mut FuncCtx, run: FuncId) -> Result<()> {
        let inputs = stateful_inputs(f, self.arguments.inputs, self.states);
        let code = f.call(run, &RunArguments { inputs, ..self.arguments }.values());
        let code = code.ok_or_else(|| Error::internal("`run` returns a code"))?;
        f.return_if_error(code)
    }

    fn update_lengths(&self, f: &mut FuncCtx, state: &StateBlock) -> Result<()> {
        let Some(rows) = &state.rows else { return Ok(()) };
        f.set_dims(self.arguments.dims, 0);
        let growth = f.dim(&rows.growth)?;
        let zero = f.int(0);
        f.for_range(zero, self.count, |f, idx| {
            let block = block_at(f, self.states, idx);
            let length = f.load_word(block, word_offset(1));
            let length = f.ins().iadd(length, growth);
            f.store_at(length, block, word_offset(1));
            Ok(())
        })
    }
}

/// The index of a symbol in the dims.
fn position(f: &FuncCtx, symbol: &Symbol) -> usize {
    f.unit.program.symbols.iter().position(|known| known == symbol).unwrap_or_default()
}

/// The address of the state at this index.
fn block_at(f: &mut FuncCtx, states: Value, idx: Value) -> Value {
    let at = f.ins().imul_imm_s(idx, 8);
    let at = f.ins().iadd(states, at);
    f.load_word(at, 0)
}

/// Says in the error which state is refused.
fn store_index(f: &mut FuncCtx, report: Value, idx: Value) {
    let error = f.load_word(report, frame::ERROR);
    let number = f.ins().iadd_imm_s(idx, 1);
    let number = f.ins().ireduce(types::I32, number);
    f.store_at(number, error, offset_of!(abi::Error, axis) as i32);
}

/// Refuses a state that is at an earlier index of the table too.
fn refuse_repetition(f: &mut FuncCtx, report: Value, states: Value, block: Value, idx: Value) -> Result<()> {
    let zero = f.int(0);
    f.for_range(zero, idx, |f, earlier| {
        let other = block_at(f, states, earlier);
        let is_same = f.ins().icmp(IntCC::Equal, block, other);
        f.leave_if(is_same, |f| {
            let failure = refusal("the call has it twice, and a state takes one step at a time");
            report_failure(f, report, &failure, [idx, earlier, earlier])?;
            store_index(f, report, idx);
            f.return_code(failure.code as i64);
            Ok(())
        })
    })
}

/// Refuses a state whose sizes are not those of the call, or with which a call of one sequence breaks the contract.
fn check_sizes(
    f: &mut FuncCtx,
    report: Value,
    block: Value,
    dims: Value,
    state: &StateBlock,
    sequences: &Sequences,
) -> Result<()> {
    let own_rows = state.rows.as_ref().map_or(0, |_| 2);
    let one = f.int(1);
    for (idx, symbol) in state.words().iter().enumerate().skip(own_rows) {
        let own = f.load_word(block, word_offset(idx));
        let is_count = *symbol == sequences.count;
        let expected = if is_count { one } else { f.load_word(dims, 8 * position(f, symbol) as i32) };
        let is_equal = f.ins().icmp(IntCC::Equal, own, expected);
        let why = if is_count {
            format!("its {symbol} is not 1: with several states, each is that of one sequence")
        } else {
            format!("its {symbol} is not that of the first state")
        };
        require(f, report, is_equal, &refusal(&why), [own, expected, expected])?;
    }

    f.bind(sequences.count.clone(), one);
    let Some(rows) = &state.rows else { return check_bytes(f, report, block) };
    let of_call =
        [&rows.capacity, &rows.length].map(|symbol| f.load_word(dims, 8 * position(f, symbol) as i32));
    for (idx, symbol) in [&rows.capacity, &rows.length].into_iter().enumerate() {
        let own = f.load_word(block, word_offset(idx));
        let bindings = &f.unit.contract.bindings;
        if let Some(binding) = bindings.iter().find(|binding| binding.declared.symbol == *symbol) {
            accept_symbol(f, report, own, &binding.declared)?;
        }
        let fits = f.ins().icmp(IntCC::SignedLessThanOrEqual, own, of_call[idx]);
        let why =
            format!("its {symbol} exceeds that of the dims: call `check` with the words of all states first");
        require(f, report, fits, &refusal(&why), [own, of_call[idx], of_call[idx]])?;
    }
    check_bytes(f, report, block)?;
    check_relations(f, report, &f.unit.contract.relations)?;

    for input in &sequences.ragged {
        let blocks = f.dim(&input.blocks)?;
        let is_one = f.ins().icmp_imm_s(IntCC::Equal, blocks, 1);
        let length = f.dim(&Dim::from(&rows.length))?;
        let is_longest = f.ins().icmp(IntCC::Equal, length, of_call[1]);
        let may_differ = f.ins().bor(is_one, is_longest);
        let name = &f.unit.program.inputs[input.input].name;
        let why = format!(
            "it is shorter than others, and `{name}` has {} blocks of rows for each sequence: call with one new row, or \
             with states of one length",
            input.blocks
        );
        require(f, report, may_differ, &refusal(&why), [length, of_call[1], of_call[1]])?;
    }
    Ok(())
}
