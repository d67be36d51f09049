//! The part of a C header about state: its sizes, and the functions that make, check and shorten a block.

use super::template::{comment, filled};
use crate::kernel::{Program, StateBlock};
use num_bigint::BigInt;
use std::fmt::Display;
use symshape::{Dim, Symbol};

/// The declarations and inline functions; empty if the program has no state.
pub(super) fn functions(program: &Program) -> String {
    let Some(state) = &program.state else { return String::new() };
    let words = state.words();
    let index =
        |symbol: &Symbol| program.symbols.iter().position(|known| known == symbol).unwrap_or_default();
    let bytes = program.state_offsets().pop().unwrap_or_else(Dim::zero);
    let max = program.facts.bounds(&bytes).hi.unwrap_or_default();
    let tensors = state.tensors.iter();
    let overwritten = list(tensors.clone().map(|tensor| u8::from(tensor.axis.is_none())));
    let element_bytes = list(tensors.clone().map(|tensor| program.buffers[tensor.buffer].dtype.size_bytes()));
    let ranks = list(tensors.clone().map(|tensor| tensor.shape.len()));
    let max_rank = tensors.map(|tensor| tensor.shape.len()).max().unwrap_or_default();
    let has_rows = state.rows.is_some();
    let bound = |symbol: &Symbol, is_low: bool| {
        let declared = program.facts.declaration(symbol);
        let lo = declared.map_or(BigInt::ZERO, |declared| declared.lo.clone());
        let hi = declared.and_then(|declared| declared.hi.clone()).unwrap_or_else(|| i64::MAX.into());
        let is_length = state.rows.as_ref().is_some_and(|rows| rows.length == *symbol);
        // After the last call, the length is that of no call any more; its end is the capacity.
        match (is_low, is_length) {
            (true, true) => "0".to_string(),
            (false, true) => "INT64_MAX".to_string(),
            (true, false) => lo.to_string(),
            (false, false) => hi.to_string(),
        }
    };

    let rows = if has_rows { rows(program, state) } else { String::new() };
    let gaps = [
        ("PREFIX", program.name.clone()),
        ("UPPER", program.name.to_uppercase()),
        ("TENSOR_LINES", tensor_comment(program, state)),
        ("BYTES_BOUND", max.to_string()),
        ("HASH_VALUE", state.id.to_string()),
        ("TENSOR_COUNT", state.tensors.len().to_string()),
        ("WORD_COUNT", words.len().to_string()),
        ("WORD_COMMENT", word_comment(&words)),
        ("WORD_SYMBOLS", list(words.iter().map(index))),
        ("WORD_LO", list(words.iter().map(|word| bound(word, true)))),
        ("WORD_HI", list(words.iter().map(|word| bound(word, false)))),
        ("OVERWRITTEN", overwritten),
        ("ELEMENT_BYTES", element_bytes),
        ("RANKS", ranks),
        ("MAX_PLACE", (max_rank + 1).to_string()),
        ("STATES_COMMENT", states_comment(program)),
        ("STATES_BOUND", program.max_states().to_string()),
        ("MERGED_WORDS", merged_words(program, state)),
        (
            "RESET_LENGTH",
            if has_rows {
                "    ((int64_t *)((unsigned char *)state + sizeof(symshape_state_header)))[1] = 0;\n".into()
            } else {
                String::new()
            },
        ),
        (
            "VALID_LENGTH",
            if has_rows {
                format!(" && {0}_state_words(state)[1] <= {0}_state_words(state)[0]", program.name)
            } else {
                String::new()
            },
        ),
        ("ROW_FUNCTIONS", rows),
    ];
    let gaps: Vec<(&str, &str)> = gaps.iter().map(|(gap, filling)| (*gap, filling.as_str())).collect();
    filled(include_str!("state.h"), &gaps)
}

/// The comment on the largest number of states of a call.
fn states_comment(program: &Program) -> String {
    match &program.sequences {
        Some(Err(cause)) => {
            comment_line(&format!("The largest number of states of a call, because {cause}."))
        }
        _ => comment_line("The largest number of states of a call."),
    }
}

fn comment_line(text: &str) -> String {
    format!("/* {} */", comment(text))
}

/// The statements that make the words of a call with several states: the largest length of all, and their number. The
/// rows of each are compared with its own capacity, so that of the call is the largest one.
fn merged_words(program: &Program, state: &StateBlock) -> String {
    let Some(Ok(sequences)) = &program.sequences else { return String::new() };
    let mut lines = String::new();
    for (idx, word) in state.words().iter().enumerate() {
        if *word == sequences.count {
            lines += &format!("    words[{idx}] = n_states;\n");
        }
    }
    if let Some(rows) = &state.rows {
        let name = &program.name;
        let max = program.facts.bounds(&Dim::from(&rows.capacity)).hi.unwrap_or_default();
        lines += &format!(
            "    words[0] = {max};\n    for (uint32_t state = 1; state < n_states; state++) {{\n        \
             const int64_t length = {name}_state_words(states[state])[1];\n        \
             if (words[1] < length) words[1] = length;\n    }}\n"
        );
    }
    lines
}

/// The functions for a state with rows.
fn rows(program: &Program, state: &StateBlock) -> String {
    let Some(rows) = &state.rows else { return String::new() };
    let index = program.symbols.iter().position(|known| *known == rows.capacity).unwrap_or_default();
    let max = program.facts.bounds(&Dim::from(&rows.capacity)).hi.unwrap_or_default();
    let gaps = [
        ("PREFIX", program.name.clone()),
        ("CAPACITY_MAX", max.to_string()),
        ("CAPACITY_SYMBOL", index.to_string()),
    ];
    let gaps: Vec<(&str, &str)> = gaps.iter().map(|(gap, filling)| (*gap, filling.as_str())).collect();
    filled(include_str!("state_rows.h"), &gaps)
}

/// The values of an array. An empty one is `{0}`, because C has no empty arrays.
fn list(values: impl Iterator<Item = impl Display>) -> String {
    let values: Vec<String> = values.map(|value| value.to_string()).collect();
    if values.is_empty() { "0".into() } else { values.join(", ") }
}

/// Lines of a comment, one for each tensor.
fn tensor_comment(program: &Program, state: &StateBlock) -> String {
    let line = |(idx, tensor): (usize, &crate::kernel::StateTensor)| {
        let shape = tensor.shape.iter().map(Dim::to_string).collect::<Vec<_>>().join(", ");
        let dtype = program.buffers[tensor.buffer].dtype;
        let how = match tensor.axis {
            Some(axis) => format!("rows are appended along axis {axis}"),
            None => "overwritten".into(),
        };
        comment(&format!("   {idx}  {} = {}: {dtype}[{shape}], {how}", tensor.input, tensor.output))
    };
    let lines: Vec<String> =
        state.tensors.iter().enumerate().map(line).map(|line| format!(" *{line}")).collect();
    lines.join("\n")
}

/// A comment with the symbols of the header's words.
fn word_comment(words: &[Symbol]) -> String {
    let names: Vec<String> = words.iter().map(Symbol::to_string).collect();
    comment(&format!(" * {}", names.join(", ")))
}
