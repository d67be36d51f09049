//! The contract of a model as data for its ES module, as TypeScript types, and as an npm package.

use super::{
    memory::{Memory, Slot},
    state,
};
use crate::{
    emit::template::{comment, filled},
    kernel::{Port, Program},
};
use num_bigint::BigInt;
use serde_json::{Value as Json, json};
use std::fmt::Write;
use symshape::Symbol;
use symshape_runtime::DType;

/// The largest integer such that a number of JavaScript holds it and all smaller ones.
const MAX_SAFE_INTEGER: i64 = (1 << 53) - 1;

/// The contract and the addresses of the memory as JSON.
pub(super) fn json(program: &Program, memory: &Memory, weights_file: Option<&str>) -> String {
    let symbols = program.symbols.iter().map(|symbol| self::symbol(program, symbol));
    let ports = |ports: &[Port], slots: &[Slot]| -> Vec<Json> {
        ports.iter().zip(slots).map(|(port, slot)| self::port(program, port, slot)).collect()
    };
    let data = json!({
        "symshape": env!("CARGO_PKG_VERSION"),
        "name": program.name,
        "symbols": symbols.collect::<Vec<_>>(),
        "inputs": ports(&program.inputs, &memory.inputs),
        "outputs": ports(&program.outputs, &memory.outputs),
        "weights": {"file": weights_file, "address": memory.weights, "bytes": memory.weights_bytes},
        "memory": {
            "dims": memory.dims,
            "shapes": memory.shapes,
            "outputShape": memory.output_shape,
            "error": memory.error,
            "exec": memory.exec,
            "shapeTable": memory.shape_table,
            "inputTable": memory.input_table,
            "outputTable": memory.output_table,
            "arena": memory.arena,
        },
        "state": state::json(program, memory),
    });
    data.to_string()
}

/// The name and the allowed values of a symbol. A bound that a number of JavaScript can't hold is null.
fn symbol(program: &Program, symbol: &Symbol) -> Json {
    let declared = program.facts.declaration(symbol);
    let number = |value: &BigInt| i64::try_from(value).ok().filter(|value| value.abs() <= MAX_SAFE_INTEGER);
    json!({
        "name": symbol.name(),
        "declared": declared.map_or_else(String::new, ToString::to_string),
        "min": declared.and_then(|declared| number(&declared.lo)),
        "max": declared.and_then(|declared| declared.hi.as_ref()).and_then(number),
    })
}

fn port(program: &Program, port: &Port, slot: &Slot) -> Json {
    json!({
        "name": port.name,
        "dtype": program.buffers[port.buffer].dtype.to_string(),
        "shape": port.shape.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "address": slot.address,
        "maxBytes": slot.bytes,
    })
}

/// The ES module for the files with this name.
pub(super) fn module(stem: &str) -> String {
    let wasm = literal(&format!("{stem}.wasm"));
    filled(include_str!("module.mjs"), &[("\"{{wasm}}\"", &wasm), ("{{version}}", env!("CARGO_PKG_VERSION"))])
}

/// The TypeScript types of the module.
pub(super) fn types(program: &Program) -> String {
    let symbols: Vec<String> = program.symbols.iter().map(|symbol| literal(symbol.name())).collect();
    let symbols = if symbols.is_empty() { "never".into() } else { symbols.join(" | ") };
    let has_state = program.state.is_some();
    let text = |text: &'static str| if has_state { text } else { "" };
    let sizes: Vec<String> =
        state::size_names(program).iter().map(|name| format!("  {}?: number;\n", literal(name))).collect();
    let state_types = filled(text(include_str!("state.d.mts")), &[("{{sizes}}", &sizes.concat())]);
    let gaps = [
        ("{{version}}", env!("CARGO_PKG_VERSION")),
        ("{{state_types}}", &state_types),
        ("{{state_members}}", text(include_str!("state_members.d.mts"))),
        ("{{state_parameter}}", text(", state: State")),
        ("{{symbols}}", &symbols),
        ("{{inputs}}", &fields(program, &program.inputs)),
        ("{{outputs}}", &fields(program, &program.outputs)),
    ];
    filled(include_str!("types.d.mts"), &gaps)
}

/// The fields of an interface: a tensor for each input or output.
fn fields(program: &Program, ports: &[Port]) -> String {
    let mut out = String::new();
    for port in ports {
        let dtype = program.buffers[port.buffer].dtype;
        let shape: Vec<String> = port.shape.iter().map(ToString::to_string).collect();
        let _ = writeln!(out, "  /** {dtype}[{}] */", comment(&shape.join(", ")));
        let _ = writeln!(out, "  {}: Tensor<{}>;", literal(&port.name), array(dtype));
    }
    out
}

/// The typed array with the elements of a type. Halves are their bits.
fn array(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "Float32Array",
        DType::F64 => "Float64Array",
        DType::F16 | DType::BF16 | DType::U16 => "Uint16Array",
        DType::I8 => "Int8Array",
        DType::I16 => "Int16Array",
        DType::I32 => "Int32Array",
        DType::I64 => "BigInt64Array",
        DType::U8 | DType::Bool => "Uint8Array",
        DType::U32 => "Uint32Array",
        DType::U64 => "BigUint64Array",
    }
}

/// The description of the files as an npm package.
pub(super) fn package(program: &Program, stem: &str, weights_file: Option<&str>) -> String {
    let mut files: Vec<String> = ["wasm", "mjs", "d.mts"].map(|end| format!("{stem}.{end}")).into();
    files.extend(weights_file.map(str::to_string));
    let module = format!("./{stem}.mjs");
    let types = format!("./{stem}.d.mts");
    // Names of packages have lower-case letters and don't begin with an underscore.
    let name = program.name.to_lowercase().trim_matches('_').replace('_', "-");
    let name = if name.is_empty() { "model".to_string() } else { name };
    let mut exports = json!({".": {"types": types, "default": module}});
    for file in &files {
        exports[format!("./{file}")] = json!(format!("./{file}"));
    }
    let package = json!({
        "name": name,
        "version": "0.0.0",
        "type": "module",
        "main": module,
        "types": types,
        "exports": exports,
        "files": files,
        "sideEffects": false,
    });
    format!("{package:#}\n")
}

/// A string of JavaScript.
fn literal(text: &str) -> String {
    json!(text).to_string()
}
