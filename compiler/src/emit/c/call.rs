//! Calls of functions outside of the compiler, in C.

use super::{
    contract::Checks,
    names::{self, string},
    text::{identifiers, is_math},
};
use crate::{
    error::{Error, Result},
    kernel::{Argument, Control, ExternalCall, Kernel, Program, contract::Failure},
};
use std::fmt::Write;
use symshape_runtime::external::{Attribute, AttributeValue};

/// Refuses external functions whose names already mean something else in the file.
///
/// # Errors
/// When there is such a function.
pub(super) fn check(program: &Program, body: &str, helpers: &str) -> Result<()> {
    let code = without_strings(body);
    for callee in program.callees() {
        let symbol = callee.symbol.as_str();
        let is_call = |kernel: &&Kernel| matches!(&kernel.control, Some(Control::Call(call)) if call.callee.symbol == symbol);
        let calls = program.kernels.iter().filter(is_call).count();
        let occurrences = identifiers(&code).filter(|word| *word == symbol).count();
        let is_helper_word = identifiers(helpers).any(|word| word == symbol);
        if occurrences != calls || is_helper_word || is_math(symbol) {
            return Err(Error::invalid(format!(
                "the external function `{symbol}` can't be called from C source: the name has another meaning there; give the function another symbol"
            )));
        }
    }
    Ok(())
}

/// The text without its quoted strings.
fn without_strings(text: &str) -> String {
    let (mut out, mut inside, mut escaped) = (String::with_capacity(text.len()), false, false);
    for c in text.chars() {
        match (inside, c) {
            (true, _) if escaped => escaped = false,
            (true, '\\') => escaped = true,
            (_, '"') => inside = !inside,
            (true, _) => {}
            (false, c) => out.push(c),
        }
    }
    out
}

/// Prints a call, and the return from `run` if it fails.
pub(super) fn call(checks: &mut Checks, depth: usize, call: &ExternalCall) -> Result<()> {
    checks.line(depth, "{");
    let depth = depth + 1;
    let (inputs, outputs) = (
        tensors(checks, depth, "inputs", &call.operands)?,
        tensors(checks, depth, "outputs", &call.results)?,
    );
    let attributes = attributes(checks, &call.callee.attributes);
    let (scratch, scratch_bytes) = match call.scratch {
        Some(id) => {
            let bytes = checks.dim(&checks.program.buffers[id].bytes())?;
            (names::buffer(checks.program, id), format!("(uint64_t)({bytes})"))
        }
        None => ("NULL".into(), "0".into()),
    };
    let device = checks.program.devices.iter().position(|device| device.target == call.callee.target);
    let memory = device.map_or_else(|| "NULL".into(), names::device);
    let counts = [call.operands.len(), call.results.len(), call.callee.attributes.len()]
        .map(|count| count.to_string())
        .join(", ");
    checks.line(
        depth,
        &format!(
            "const symshape_call call = {{{inputs}, {outputs}, {attributes}, {scratch}, {scratch_bytes}, NULL, exec, {counts}, 0, {memory}}};"
        ),
    );
    checks.line(depth, &format!("const int32_t code = {}(&call);", call.callee.symbol));
    checks.refuse(depth, "code != 0", &Failure::external_call(call), ["code", "0", "0"]);
    checks.line(depth - 1, "}");
    Ok(())
}

/// Declares the descriptors of arguments; returns the expression that refers to them.
fn tensors(checks: &mut Checks, depth: usize, name: &str, arguments: &[Argument]) -> Result<String> {
    if arguments.is_empty() {
        return Ok("NULL".into());
    }
    let mut list = Vec::new();
    for (idx, argument) in arguments.iter().enumerate() {
        let buffer = &checks.program.buffers[argument.first.buffer];
        let dims = argument.shape.iter().map(|dim| checks.dim(dim)).collect::<Result<Vec<_>>>()?;
        let shape = match dims.is_empty() {
            true => "NULL".to_string(),
            false => {
                let shape = format!("{name}_{idx}_shape");
                checks.line(depth, &format!("const int64_t {shape}[] = {{{}}};", dims.join(", ")));
                shape
            }
        };
        let at = names::buffer(checks.program, argument.first.buffer);
        let at = match argument.first.index.as_i64() {
            Some(0) => at,
            _ => format!("({at} + ({}))", checks.dim(&argument.first.index)?),
        };
        list.push(format!("{{(void *){at}, {shape}, {}, {}}}", buffer.dtype as u32, dims.len()));
    }
    checks.line(depth, &format!("const symshape_tensor {name}_of_call[] = {{{}}};", list.join(", ")));
    Ok(format!("{name}_of_call"))
}

/// Declares the constants before the function; returns the expression that refers to them.
fn attributes(checks: &mut Checks, attributes: &[Attribute]) -> String {
    if attributes.is_empty() {
        return "NULL".into();
    }
    let table = checks.fresh("attributes");
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
        let _ = writeln!(checks.objects, "static const {ty} {name}[] = {{{}}};", values.join(", "));
        list.push(format!("{{{}, {name}, {count}, {kind}, 0}}", string(&attribute.name)));
    }
    let _ = writeln!(
        checks.objects,
        "static const symshape_attribute {table}[] = {{\n    {}\n}};\n",
        list.join(",\n    ")
    );
    table
}

fn int(value: &i64) -> String {
    if *value == i64::MIN { "INT64_MIN".into() } else { value.to_string() }
}

/// A float by its shortest digits, which C reads back to the same one.
fn float(value: &f32) -> String {
    match value {
        value if value.is_nan() => "NAN".into(),
        value if value.is_infinite() => if *value > 0.0 { "INFINITY" } else { "-INFINITY" }.into(),
        value => format!("{value:e}f"),
    }
}
