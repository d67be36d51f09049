//! Calls of external functions in C.

use super::{
    function::FunctionPrinter,
    names::{self, string},
    text::{identifiers, is_math},
};
use crate::{
    error::{Error, Result},
    kernel::{Argument, Control, ExternalCall, Kernel, Program, contract::Failure},
};
use std::fmt::Write;
use symshape_runtime::external::{Attribute, AttributeValue};

/// Refuses external functions whose names have another meaning in the file.
///
/// # Errors
/// When there is such a function.
pub(super) fn check_names(program: &Program, body: &str, helpers: &str) -> Result<()> {
    let code = without_strings(body);
    for callee in program.callees() {
        let symbol = callee.symbol.as_str();
        let is_call = |kernel: &&Kernel| matches!(&kernel.control, Some(Control::Call(call)) if call.callee.symbol == symbol);
        let n_calls = program.kernels.iter().filter(is_call).count();
        let n_occurrences = identifiers(&code).filter(|word| *word == symbol).count();
        let is_helper_word = identifiers(helpers).any(|word| word == symbol);
        if n_occurrences != n_calls || is_helper_word || is_math(symbol) {
            return Err(Error::invalid(format!(
                "the external function `{symbol}` can't be called from C source: the name has another meaning there; give the function another symbol"
            )));
        }
    }

    Ok(())
}

/// The text without its quoted strings.
fn without_strings(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_string = false;
    let mut is_escaped = false;
    for c in text.chars() {
        match (in_string, c) {
            (true, _) if is_escaped => is_escaped = false,
            (true, '\\') => is_escaped = true,
            (_, '"') => in_string = !in_string,
            (true, _) => {}
            (false, c) => out.push(c),
        }
    }

    out
}

/// Prints a call, and the return from the function if it fails.
pub(super) fn call(printer: &mut FunctionPrinter, depth: usize, call: &ExternalCall) -> Result<()> {
    let program = printer.program();
    printer.line(depth, "{");
    let inner = depth + 1;
    let inputs = tensors(printer, inner, "inputs", &call.operands)?;
    let outputs = tensors(printer, inner, "outputs", &call.results)?;
    let attributes = attributes(printer, &call.callee.attributes);

    let mut scratch = "NULL".to_string();
    let mut scratch_bytes = "0".to_string();
    if let Some(buffer) = call.scratch {
        scratch = names::buffer(program, buffer);
        scratch_bytes = format!("(uint64_t)({})", printer.dim(&program.buffers[buffer].bytes())?);
    }
    let device = program.devices.iter().position(|device| device.target == call.callee.target);
    let memory = device.map_or_else(|| "NULL".into(), names::device);

    let n_inputs = call.operands.len();
    let n_outputs = call.results.len();
    let n_attributes = call.callee.attributes.len();
    printer.line(
        inner,
        &format!(
            "const symshape_call call = {{{inputs}, {outputs}, {attributes}, {scratch}, {scratch_bytes}, NULL, exec, \
             {n_inputs}, {n_outputs}, {n_attributes}, 0, {memory}}};"
        ),
    );
    printer.line(inner, &format!("const int32_t code = {}(&call);", call.callee.symbol));
    printer.refuse_if(inner, "code != 0", &Failure::external_call(call), ["code", "0", "0"]);
    printer.line(depth, "}");
    Ok(())
}

/// Declares the descriptors of arguments; returns the expression that refers to them.
fn tensors(
    printer: &mut FunctionPrinter,
    depth: usize,
    name: &str,
    arguments: &[Argument],
) -> Result<String> {
    if arguments.is_empty() {
        return Ok("NULL".into());
    }

    let program = printer.program();
    let mut list = Vec::new();
    for (idx, argument) in arguments.iter().enumerate() {
        let dims = argument.shape.iter().map(|dim| printer.dim(dim)).collect::<Result<Vec<_>>>()?;
        let mut shape = "NULL".to_string();
        if !dims.is_empty() {
            shape = format!("{name}_{idx}_shape");
            printer.line(depth, &format!("const int64_t {shape}[] = {{{}}};", dims.join(", ")));
        }

        let first = &argument.first;
        let mut address = names::buffer(program, first.buffer);
        if first.index.as_i64() != Some(0) {
            address = format!("({address} + ({}))", printer.dim(&first.index)?);
        }
        let dtype = program.buffers[first.buffer].dtype as u32;
        list.push(format!("{{(void *){address}, {shape}, {dtype}, {}}}", dims.len()));
    }
    printer.line(depth, &format!("const symshape_tensor {name}_of_call[] = {{{}}};", list.join(", ")));
    Ok(format!("{name}_of_call"))
}

/// Declares the constants before the function; returns the expression that refers to them.
fn attributes(printer: &mut FunctionPrinter, attributes: &[Attribute]) -> String {
    if attributes.is_empty() {
        return "NULL".into();
    }

    let table = printer.fresh_constant("attributes");
    let mut list = Vec::new();
    for (idx, attribute) in attributes.iter().enumerate() {
        let name = format!("{table}_{idx}");
        let (ty, mut values) = match &attribute.value {
            AttributeValue::Ints(values) => ("int64_t", values.iter().map(int).collect::<Vec<_>>()),
            AttributeValue::Floats(values) => ("float", values.iter().map(float).collect()),
            AttributeValue::Bytes(values) => ("unsigned char", values.iter().map(u8::to_string).collect()),
        };

        let (kind, count) = attribute.value.kind();
        if values.is_empty() || ty == "unsigned char" {
            values.push("0".into());
        }

        let _ = writeln!(printer.constants, "static const {ty} {name}[] = {{{}}};", values.join(", "));
        list.push(format!("{{{}, {name}, {count}, {kind}, 0}}", string(&attribute.name)));
    }
    let _ = writeln!(
        printer.constants,
        "static const symshape_attribute {table}[] = {{\n    {}\n}};\n",
        list.join(",\n    ")
    );
    table
}

fn int(value: &i64) -> String {
    if *value == i64::MIN { "INT64_MIN".into() } else { value.to_string() }
}

/// A float as the shortest decimal that C reads back as the same float.
fn float(value: &f32) -> String {
    match value {
        value if value.is_nan() => "NAN".into(),
        value if value.is_infinite() => if *value > 0.0 { "INFINITY" } else { "-INFINITY" }.into(),
        value => format!("{value:e}f"),
    }
}
