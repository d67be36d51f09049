//! The offsets of a ragged batch: the guards on them, and the rows of a sequence.

use super::{
    arguments::RunArguments,
    contract::{self, require},
};
use crate::{codegen::function::FuncCtx, error::Result, kernel::contract::Failure};
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC};
use symshape::Dim;
use symshape_runtime::abi::Code;

/// Refuses offsets that don't begin with 0, don't end with the number of rows, or give a sequence a length that the
/// contract does not allow. Kernels rely on the lengths.
pub(crate) fn check(f: &mut FuncCtx, frame: Value, arguments: &RunArguments) -> Result<()> {
    let program = f.unit.program;
    let contract = f.unit.contract;
    let (Some(ragged), Some(length)) = (&program.ragged, &contract.length) else { return Ok(()) };
    let name = &program.inputs[ragged.offsets as usize].name;
    let offsets = f.load_word(arguments.inputs, 8 * ragged.offsets as i32);
    let sequences = f.dim(&Dim::from(&ragged.sequences))?;
    let rows = f.dim(&Dim::from(&ragged.rows))?;

    let refusal = |why: String| Failure {
        tensor_name: Some(name.clone()),
        symbol_name: Some("the offset".into()),
        why: Some(why),
        ..Failure::new(Code::OutOfRange)
    };
    let zero = f.int(0);
    let first = f.load_word(offsets, 0);
    let begins = f.ins().icmp(IntCC::Equal, first, zero);
    require(f, frame, begins, &refusal("the first sequence begins at row 0".into()), [first, zero, zero])?;

    f.for_range(zero, sequences, |f, sequence| {
        let (_, len) = bounds(f, offsets, sequence);
        contract::accept_symbol(f, frame, len, length)?;
        contract::check_relations(f, frame, &contract.length_relations)
    })?;

    let last = element(f, offsets, sequences);
    let last = f.load_word(last, 0);
    let ends = f.ins().icmp(IntCC::Equal, last, rows);
    let why = format!("the last sequence ends at the last row: the number of rows is {}", ragged.rows);
    require(f, frame, ends, &refusal(why), [last, rows, rows])
}

/// The address of the offset of a sequence.
fn element(f: &mut FuncCtx, offsets: Value, sequence: Value) -> Value {
    let distance = f.ins().imul_imm_s(sequence, 8);
    f.ins().iadd(offsets, distance)
}

/// The first row of a sequence, and its length.
pub(crate) fn bounds(f: &mut FuncCtx, offsets: Value, sequence: Value) -> (Value, Value) {
    let at = element(f, offsets, sequence);
    let first = f.load_word(at, 0);
    let end = f.load_word(at, 8);
    (first, f.ins().isub(end, first))
}
