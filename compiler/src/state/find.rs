//! Finds the pairs of a graph that are state, by their definitions, names and shapes.
//!
//! An output that is an input with new rows is state whatever its name. A pair of one shape is state only if the names
//! agree: an output of the input's shape may be another tensor, such as the hidden states of a layer.

use super::prove::{Proof, prove};
use crate::graph::{Graph, appended_axis};

/// Words that name the same tensor before and after a call.
const WORDS: [(&str, &str); 7] = [
    ("past_key_values", "present"),
    ("past", "present"),
    ("old", "new"),
    ("prev", "next"),
    ("_in", "_out"),
    ("cached", "new_cached"),
    ("0", "n"),
];

/// Adds the pairs that can be found to `proofs`. Each input and output is in one pair at most.
pub(super) fn add(graph: &Graph, proofs: &mut Vec<Proof>) {
    for input in 0..graph.inputs.len() {
        for output in 0..graph.outputs.len() {
            let is_taken = |proof: &Proof| proof.input == input || proof.output == output;
            if proofs.iter().any(is_taken) {
                continue;
            }
            let is_appended = appended_axis(graph, graph.inputs[input].1, graph.outputs[output].1).is_some();
            if is_appended || are_one_name(&graph.inputs[input].0, &graph.outputs[output].0) {
                proofs.extend(prove(graph, input, output).ok());
            }
        }
    }
}

/// Whether the output's name is that of the input after a call: `past.0` and `present.0`, `h` and `hn`, `state` and
/// `new_state`.
fn are_one_name(input: &str, output: &str) -> bool {
    let with_affix =
        ["n", "N", "_n", "_out", "_new", "_next", "out"].iter().any(|end| output == format!("{input}{end}"))
            || ["new_", "next_", "out_", "output_"].iter().any(|begin| output == format!("{begin}{input}"));
    let with_word =
        WORDS.iter().any(|(from, to)| input.contains(from) && input.replacen(from, to, 1) == output);
    with_affix || with_word
}
