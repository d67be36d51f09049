//! State: pairs of an input and an output that stay in memory from call to call.

use super::{Graph, Op, Value};
use symshape::{Dim, Symbol};

/// The state of a model. Its pairs are inputs and outputs of the graph, but not of a call.
#[derive(Clone, Debug)]
pub struct State {
    /// The pairs, in the order of their inputs.
    pub pairs: Vec<StatePair>,
    /// The rows of the appended pairs, if there are any.
    pub rows: Option<StateRows>,
    /// A hash of the model, by which an artefact knows its states.
    pub id: u64,
}

/// The rows of all appended pairs: each call reads `length` of them and appends `growth` more.
#[derive(Clone, Debug)]
pub struct StateRows {
    /// Number of rows before a call.
    pub length: Symbol,
    /// Number of rows that there is memory for; never fewer than `length + growth`.
    pub capacity: Symbol,
    /// Number of rows that a call appends.
    pub growth: Dim,
}

/// An input that is the same memory as an output of the call before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatePair {
    /// Index of the input.
    pub input: usize,
    /// Index of the output.
    pub output: usize,
    /// The axis of the rows if the output is the input with new rows; `None` if a call writes the whole tensor.
    pub axis: Option<usize>,
}

impl StatePair {
    /// The value that a call reads, and the value that it leaves behind.
    pub fn values(&self, graph: &Graph) -> (Value, Value) {
        (graph.inputs[self.input].1, graph.outputs[self.output].1)
    }
}

impl State {
    /// The pair of this input.
    pub fn of_input(&self, input: usize) -> Option<&StatePair> {
        self.pairs.iter().find(|pair| pair.input == input)
    }

    /// The pair of this output.
    pub fn of_output(&self, output: usize) -> Option<&StatePair> {
        self.pairs.iter().find(|pair| pair.output == output)
    }

    /// The shape of the pair's memory: that of the input, with the capacity as its number of rows.
    pub fn shape(&self, graph: &Graph, pair: &StatePair) -> Vec<Dim> {
        let mut shape = graph.shape(pair.values(graph).0).to_vec();
        if let (Some(axis), Some(rows)) = (pair.axis, &self.rows) {
            shape[axis] = Dim::from(&rows.capacity);
        }
        shape
    }
}

impl Graph {
    /// Whether the input with this index is state.
    pub fn is_state_input(&self, input: usize) -> bool {
        self.state.as_ref().is_some_and(|state| state.of_input(input).is_some())
    }

    /// Whether the output with this index is state.
    pub fn is_state_output(&self, output: usize) -> bool {
        self.state.as_ref().is_some_and(|state| state.of_output(output).is_some())
    }
}

/// The axis along which `after` is `before` with rows after it: the first operand of a concatenation.
pub fn appended_axis(graph: &Graph, before: Value, after: Value) -> Option<usize> {
    match graph.op(after) {
        Op::Concat { axis } if graph.operands(after).first() == Some(&before) => Some(*axis),
        _ => None,
    }
}
