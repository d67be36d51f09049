//! State in C: the size of a block, the places of its tensors, and the call that reads and updates it.
//!
//! `run` takes the address of the block after those of the inputs and of the weights file, as machine code does. See
//! [`crate::kernel::StateBlock`] for the layout. A call takes one state.

use super::{
    context::SourceContext,
    function::{FunctionPrinter, error_variable, read_dims, uses},
    variables::state_input,
};
use crate::{
    error::Result,
    kernel::{Program, StateBlock, contract::Failure},
};
use std::fmt::Write;
use symshape::Dim;
use symshape_runtime::abi::Code;

/// Prints `state_bytes`, `state_place` and `run_stateful`, if the program has state.
pub(super) fn functions(out: &mut String, cx: &SourceContext) -> Result<()> {
    let Some(state) = &cx.program.state else { return Ok(()) };
    bytes(out, cx)?;
    place(out, cx, state)?;
    run_stateful(out, cx, state)
}

/// Bytes of a block.
fn block_bytes(program: &Program) -> Dim {
    program.state_offsets().pop().unwrap_or_else(Dim::zero)
}

fn bytes(out: &mut String, cx: &SourceContext) -> Result<()> {
    let program = cx.program;
    let mut printer = FunctionPrinter::new(cx, "unused");
    let bytes = printer.dim(&block_bytes(program))?;
    printer.line(1, &format!("return (size_t)({bytes});"));

    let head = read_dims(program, &cx.names, &printer.body);
    let prefix = &program.name;
    let _ = writeln!(out, "size_t {prefix}_state_bytes(const int64_t *dims) {{\n{head}{}}}\n", printer.body);
    Ok(())
}

fn place(out: &mut String, cx: &SourceContext, state: &StateBlock) -> Result<()> {
    let program = cx.program;
    let offsets = program.state_offsets();
    let mut printer = FunctionPrinter::new(cx, "unused");
    printer.line(1, "switch (tensor) {");
    for (idx, tensor) in state.tensors.iter().enumerate() {
        printer.line(1, &format!("case {idx}:"));
        for (at, dim) in std::iter::once(&offsets[idx]).chain(&tensor.shape).enumerate() {
            let value = printer.dim(dim)?;
            printer.line(2, &format!("place[{at}] = {value};"));
        }
        printer.line(2, "return SYMSHAPE_OK;");
    }
    printer.line(1, "default:");
    printer.line(2, "return SYMSHAPE_OUT_OF_RANGE;");
    printer.line(1, "}");

    let head = read_dims(program, &cx.names, &printer.body);
    let prefix = &program.name;
    let _ = writeln!(
        out,
        "int32_t {prefix}_state_place(uint32_t tensor, const int64_t *dims, int64_t *place) {{\n{head}{}}}\n",
        printer.body
    );
    Ok(())
}

/// Prints `run_stateful`. It checks the header of the block before `run` checks the dims.
fn run_stateful(out: &mut String, cx: &SourceContext, state: &StateBlock) -> Result<()> {
    let program = cx.program;
    let prefix = &program.name;
    let mut printer = FunctionPrinter::new(cx, "refused_state");
    printer.refuse_if(1, "n_states == 0", &refusal("a call takes at least one"), ["0", "1", "1"]);
    let cause = match &program.sequences {
        Some(Err(cause)) => cause,
        _ => "C source runs one batch",
    };
    let only_one = refusal(&format!("a call of this model takes one state, because {cause}"));
    printer.refuse_if(1, "n_states != 1", &only_one, ["n_states", "1", "1"]);

    printer.line(1, "symshape_state_header *const header = states[0];");
    printer.refuse_if(1, "header == NULL", &refusal("its address is null"), ["0", "0", "0"]);
    let id = format!("{}_STATE_ID", prefix.to_uppercase());
    let fields = [
        ("magic", "SYMSHAPE_STATE_MAGIC", "it does not begin with the magic number of a state"),
        ("id", id.as_str(), "it belongs to another artefact"),
    ];
    for (field, expected, why) in fields {
        let value = format!("(int64_t)header->{field}");
        let expected_value = format!("(int64_t){expected}");
        let values = [value.as_str(), &expected_value, &expected_value];
        printer.refuse_if(1, &format!("header->{field} != {expected}"), &refusal(why), values);
    }

    printer.line(1, "int64_t *const words = (int64_t *)(header + 1);");
    for (idx, symbol) in state.words().iter().enumerate() {
        let own = format!("words[{idx}]");
        let given = printer.symbol(symbol)?;
        let why =
            format!("its {symbol} is not that of the dims: call `check` with the words of its header first");
        printer.refuse_if(1, &format!("{own} != {given}"), &refusal(&why), [&own, given, given]);
    }
    let bytes = printer.dim(&block_bytes(program))?;
    let damaged = refusal("its header is damaged: it has another number of bytes than its sizes give");
    let bad = format!("header->bytes != (uint64_t)({bytes})");
    printer.refuse_if(1, &bad, &damaged, ["(int64_t)header->bytes", &bytes, &bytes]);

    let n_given = state_input(program, cx.weights.is_some());
    let given: Vec<String> = (0..n_given).map(|idx| format!("inputs[{idx}], ")).collect();
    printer.line(1, &format!("const void *const all[] = {{{}header}};", given.concat()));
    printer.line(1, &format!("const int32_t code = {prefix}_run(all, outputs, dims, arena, exec);"));
    printer.line(1, "if (code != 0) return code;");
    if let Some(rows) = &state.rows {
        let length = printer.dim(&(Dim::from(&rows.length) + &rows.growth))?;
        printer.line(1, &format!("words[1] = {length};"));
    }
    printer.line(1, "return SYMSHAPE_OK;");

    let mut head = error_variable(&printer.body).to_string();
    if !uses(&printer.body, "inputs") {
        head.push_str("    (void)inputs;\n");
    }
    head.push_str(&read_dims(program, &cx.names, &printer.body));
    let _ = writeln!(
        out,
        "{}int32_t {prefix}_run_stateful(const void *const *inputs, void *const *outputs, void *const *states, uint32_t n_states,\n    \
         int64_t *dims, void *arena, const symshape_exec *exec) {{\n{head}{}}}\n",
        printer.constants, printer.body
    );
    Ok(())
}

/// The failure of a state that the call refuses for the reason `why`.
fn refusal(why: &str) -> Failure {
    let tensor_name = Some("the state".into());
    Failure { tensor_name, why: Some(why.into()), ..Failure::new(Code::WrongState) }
}
