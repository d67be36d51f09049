//! Proves that an input and an output can be the same memory.

use crate::graph::{Graph, StatePair, appended_axis};
use symshape::{Dim, Symbol};

/// A pair that can be state.
pub(super) struct Proof {
    pub(super) input: usize,
    pub(super) output: usize,
    axis: Option<usize>,
    /// The rows, if the pair is appended.
    pub(super) rows: Option<Rows>,
}

/// The rows of an appended pair.
pub(super) struct Rows {
    pub(super) length: Symbol,
    pub(super) growth: Dim,
}

impl Proof {
    pub(super) fn pair(&self) -> StatePair {
        StatePair { input: self.input, output: self.output, axis: self.axis }
    }

    /// Both names, for messages.
    pub(super) fn names(&self, graph: &Graph) -> String {
        names(graph, self.input, self.output)
    }
}

fn names(graph: &Graph, input: usize, output: usize) -> String {
    format!("`{}`=`{}`", graph.inputs[input].0, graph.outputs[output].0)
}

/// Proves that input and output are appended or overwritten state, or returns why they are neither.
pub(super) fn prove(graph: &Graph, input: usize, output: usize) -> Result<Proof, String> {
    let before = graph.inputs[input].1;
    let after = graph.outputs[output].1;
    let place = names(graph, input, output);
    if graph.dtype(before) != graph.dtype(after) {
        let (from, to) = (graph.dtype(before), graph.dtype(after));
        return Err(format!("{place} can't be state: the input is {from}, the output is {to}"));
    }

    let from = graph.shape(before);
    let to = graph.shape(after);
    let text = |shape: &[Dim]| shape.iter().map(Dim::to_string).collect::<Vec<_>>().join(", ");
    let shapes = || format!("the input has the shape [{}], the output [{}]", text(from), text(to));
    if from.len() != to.len() {
        return Err(format!("{place} can't be state: {}", shapes()));
    }
    if to.iter().any(|dim| graph.is_data_dependent(dim)) {
        return Err(format!("{place} can't be state: {}, a size that depends on data", shapes()));
    }

    let differs = |axis: &usize| !graph.facts.prove_eq(&from[*axis], &to[*axis]).is_yes();
    let different: Vec<usize> = (0..from.len()).filter(differs).collect();
    match different[..] {
        [] => Ok(Proof { input, output, axis: None, rows: None }),
        [axis] => {
            let rows =
                appended(graph, input, output, axis).map_err(|why| format!("{place} {why}; {}", shapes()))?;
            Ok(Proof { input, output, axis: Some(axis), rows: Some(rows) })
        }
        _ => Err(format!("{place} can't be state: {}, which differ in {} axes", shapes(), different.len())),
    }
}

/// The rows of a pair whose shapes differ in this axis, or why the pair is not appended.
fn appended(graph: &Graph, input: usize, output: usize, axis: usize) -> Result<Rows, String> {
    let before = graph.inputs[input].1;
    let after = graph.outputs[output].1;
    if appended_axis(graph, before, after) != Some(axis) {
        let node = &graph.nodes[graph.values[after].def];
        let origin = if node.origin.is_empty() { node.op.name().to_string() } else { node.origin.clone() };
        return Err(format!(
            "can't be appended state: the output is not the input with new rows after it along axis {axis}, but is computed by {origin}"
        ));
    }

    let size = &graph.shape(before)[axis];
    let Some(length) = size.as_symbol().cloned() else {
        return Err(format!("can't be appended state: the size of axis {axis} must be a symbol, not {size}"));
    };
    let others = graph.shape(before).iter().enumerate().filter(|(k, _)| *k != axis);
    if others.map(|(_, dim)| dim).any(|dim| dim.contains(&length)) {
        return Err(format!("can't be appended state: {length} is the size of several axes"));
    }
    let growth = graph.facts.simplify(&(&graph.shape(after)[axis] - size));
    if growth.contains(&length) {
        return Err(format!(
            "can't be appended state: the number of new rows, {growth}, depends on {length}"
        ));
    }
    Ok(Rows { length, growth })
}
