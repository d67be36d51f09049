//! Batches in a C header: inline functions that form groups of requests, and that run rows of several blocks.

use super::template::{filled, string};
use crate::kernel::{Port, Program};
use num_bigint::BigInt;
use symshape::Symbol;

/// The structs of requests. An include guard keeps one copy if a program includes several headers.
const REQUEST: &str = include_str!("request.h");

/// The functions, if the model's tensors consist of rows; otherwise nothing. With a weights file, its address follows
/// those of the inputs of each request.
pub(super) fn functions(program: &Program, has_weights: bool) -> String {
    let Some(symbol) = row_symbol(program) else { return String::new() };
    let Some(staging) = staging_bytes(program, symbol) else { return String::new() };
    let index = program.symbols.iter().position(|other| other == symbol).unwrap_or(0);
    let first = program.inputs.iter().position(|port| has_rows(port, symbol)).unwrap_or(0);
    let ports = program.inputs.iter().chain(&program.outputs);
    let max_rank = ports.map(|port| port.shape.len()).max().unwrap_or(1);

    let elem_bytes = |port: &Port| program.buffers[port.buffer].dtype.size_bytes();
    let list = |ports: &[Port], entry: &dyn Fn(&Port) -> usize| {
        ports.iter().map(|port| entry(port).to_string()).collect::<Vec<_>>().join(", ")
    };
    let upper = program.name.to_uppercase();
    let n_addresses = if has_weights { format!("{upper}_N_INPUTS + 1") } else { format!("{upper}_N_INPUTS") };
    let weights = if has_weights {
        format!("    inputs[{upper}_N_INPUTS] = requests[group[0]].inputs[{upper}_N_INPUTS];\n")
    } else {
        String::new()
    };
    let gaps: [(&str, &str); 15] = [
        ("ADDRESS_COUNT", &n_addresses),
        ("    WEIGHTS_ADDRESS\n", &weights),
        ("PREFIX", &program.name),
        ("UPPER", &upper),
        ("ROW_INDEX", &index.to_string()),
        ("STAGING_BYTES", &format!("{staging}u")),
        ("FIRST_ROW_INPUT", &first.to_string()),
        ("INPUT_RANKS", &list(&program.inputs, &|port| port.shape.len())),
        ("INPUT_ELEM_BYTES", &list(&program.inputs, &elem_bytes)),
        ("INPUT_HAS_ROWS", &list(&program.inputs, &|port| usize::from(has_rows(port, symbol)))),
        ("OUTPUT_RANKS", &list(&program.outputs, &|port| port.shape.len())),
        ("OUTPUT_ELEM_BYTES", &list(&program.outputs, &elem_bytes)),
        ("MAX_RANK", &max_rank.to_string()),
        ("ROW_NAME", &string(symbol.name())),
        ("FIRST_ROW_NAME", &string(&program.inputs[first].name)),
    ];
    format!("{REQUEST}{}", filled(include_str!("batch.h"), &gaps))
}

/// The symbol that is the first axis of every output and of an input, and occurs in no other dim.
fn row_symbol(program: &Program) -> Option<&Symbol> {
    let symbol = program.outputs.first()?.shape.first()?.as_symbol()?;
    let is_split = |port: &Port| has_rows(port, symbol);
    let is_whole = |port: &Port| port.shape.iter().all(|dim| !dim.contains(symbol));
    // Sizes that the data decide are known after the call only.
    let is_known = program.data_dependent.is_empty() && program.symbols.contains(symbol);
    let has_all_rows = program.outputs.iter().all(is_split) && program.inputs.iter().any(is_split);
    let fits = is_known && has_all_rows && program.inputs.iter().all(|port| is_split(port) || is_whole(port));
    program.symbols.iter().find(|other| fits && *other == symbol)
}

/// Whether the first axis of a tensor is the symbol, and no other axis depends on it.
fn has_rows(port: &Port, symbol: &Symbol) -> bool {
    port.shape.split_first().is_some_and(|(first, rest)| {
        first.as_symbol() == Some(symbol) && rest.iter().all(|dim| !dim.contains(symbol))
    })
}

/// Upper bound of the bytes of all rows of a call, each tensor 64-byte aligned; `None` without a bound.
fn staging_bytes(program: &Program, symbol: &Symbol) -> Option<BigInt> {
    let ports = program.inputs.iter().filter(|port| has_rows(port, symbol)).chain(&program.outputs);
    let mut bytes = BigInt::ZERO;
    for port in ports {
        let buffer = &program.buffers[port.buffer];
        let size = &buffer.elems * buffer.dtype.size_bytes() as i64;
        bytes += (program.facts.bounds(&size).hi? + 63) / 64 * 64;
    }
    Some(bytes)
}
