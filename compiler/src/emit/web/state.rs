//! State in a module: the functions that its ES module calls, and the sizes of a state as data.

use super::memory::Memory;
use crate::{emit::template::named, kernel::Program};
use serde_json::{Value as Json, json};
use symshape::Symbol;

/// The functions of a module with state, without the model's name.
pub(super) const EXPORTS: [&str; 5] =
    ["run_stateful", "state_bytes", "web_state_init", "web_state_reset", "web_state_is_valid"];

/// Functions around the inline functions of the header; empty if the program has no state.
pub(super) fn functions(program: &Program) -> String {
    if program.state.is_none() {
        return String::new();
    }
    named(include_str!("state.c"), &program.name)
}

/// The state for the ES module: its memory, the symbols that are its sizes, and its tensors; null if there is none.
pub(super) fn json(program: &Program, memory: &Memory) -> Json {
    let Some(state) = &program.state else { return Json::Null };
    let rows = state.rows.as_ref();
    let symbol = |word: Symbol| program.symbols.iter().position(|known| *known == word);
    let words: Vec<Option<usize>> = state.words().into_iter().map(symbol).collect();
    let tensors = state.tensors.iter().map(|tensor| {
        json!({
            "input": tensor.input,
            "output": tensor.output,
            "dtype": program.buffers[tensor.buffer].dtype.to_string(),
            "shape": tensor.shape.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "isAppended": tensor.axis.is_some(),
        })
    });
    json!({
        "address": memory.states.address,
        "maxBytes": memory.states.bytes,
        "table": memory.state_table,
        "hasRows": rows.is_some(),
        "words": words,
        "tensors": tensors.collect::<Vec<_>>(),
    })
}

/// The names of the sizes that callers choose: all but the length.
pub(super) fn size_names(program: &Program) -> Vec<&str> {
    let Some(state) = &program.state else { return Vec::new() };
    let length = state.rows.as_ref().map(|rows| rows.length.name());
    let words = state.words().into_iter();
    let names = words.filter_map(|word| program.symbols.iter().find(|known| **known == word));
    names.map(Symbol::name).filter(|name| Some(*name) != length).collect()
}
