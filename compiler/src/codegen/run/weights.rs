//! The weights file of a call: its address is one more input, and the call checks the beginning of the file.

use super::{arguments::RunArguments, contract::require};
use crate::{
    codegen::function::{FuncCtx, frame},
    error::Result,
    kernel::contract::Failure,
};
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC};
use std::mem::offset_of;
use symshape_runtime::abi::{Code, WEIGHTS_MAGIC, WeightsDesc, WeightsHeader};

/// The address of the weights must be a multiple of this.
const ALIGN: i64 = 64;

/// Stores the address of the weights file in the frame, if the artefact has one. Refuses an address that does not point
/// to weights of this artefact.
pub(crate) fn open(f: &mut FuncCtx, frame: Value, arguments: &RunArguments) -> Result<()> {
    if !f.unit.has_weights_file() {
        return Ok(());
    }
    let file = f.load_word(arguments.inputs, 8 * f.unit.program.inputs.len() as i32);
    let zero = f.int(0);
    let is_there = f.ins().icmp_imm_s(IntCC::NotEqual, file, 0);
    require(
        f,
        frame,
        is_there,
        &refusal("their address, which follows those of the inputs, is null"),
        [zero; 3],
    )?;
    let rest = f.ins().band_imm_s(file, ALIGN - 1);
    let is_aligned = f.ins().icmp_imm_s(IntCC::Equal, rest, 0);
    require(f, frame, is_aligned, &refusal("their address is not a multiple of 64"), [rest, zero, zero])?;

    let magic = f.load_word(file, offset_of!(WeightsHeader, magic) as i32);
    let expected = f.int(WEIGHTS_MAGIC as i64);
    let is_equal = f.ins().icmp(IntCC::Equal, magic, expected);
    let why = "they do not begin with the magic number of a weights file";
    require(f, frame, is_equal, &refusal(why), [magic, expected, expected])?;

    let desc = f.unit.weights_desc()?;
    let desc = f.data_address(desc);
    for word in 0..4 {
        let found = f.load_word(file, offset_of!(WeightsHeader, artefact) as i32 + 8 * word);
        let own = f.load_word(desc, offset_of!(WeightsDesc, artefact) as i32 + 8 * word);
        let is_equal = f.ins().icmp(IntCC::Equal, found, own);
        require(f, frame, is_equal, &refusal("they belong to another artefact"), [found, own, own])?;
    }
    f.store_at(file, frame, frame::WEIGHTS);
    Ok(())
}

/// The failure of weights that the call refuses for the reason `why`.
fn refusal(why: &str) -> Failure {
    let tensor_name = Some("the weights".into());
    Failure { tensor_name, why: Some(why.into()), ..Failure::new(Code::WrongWeights) }
}
