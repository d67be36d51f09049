//! Random sessions of random graphs with state: sequences are begun, stepped alone and together, shortened and forked.
//! Each step equals that of the graph without state in the reference evaluator.

use crate::tensors::refs;
use symshape_compiler::{
    StateRequest,
    graph::{
        Graph,
        arbitrary::{
            RandomSource,
            stateful::{MAX_BATCH, MAX_NEW, MAX_PAST, decoder},
        },
        eval::eval,
        tolerance::RoundingTolerance,
    },
    pipeline::Pipeline,
    tensor::{Bytes, Tensor},
};
use symshape_runtime::{Context, DType, State};

/// The largest number of sequences that live at a time.
const MAX_SEQUENCES: usize = 6;

/// A sequence, and the past that the graph without state takes, in the order of the model's state.
struct Sequence {
    state: State,
    past: Vec<Tensor>,
}

/// A model and its sequences.
struct Session<'b> {
    graph: Graph,
    context: Context,
    sequences: Vec<Sequence>,
    choices: std::slice::Iter<'b, u8>,
    seed: u32,
}

/// Runs the session that these bytes describe. Returns how many steps it has compared.
///
/// # Panics
/// When a step differs.
pub(super) fn run(bytes: &[u8]) -> usize {
    let middle = bytes.len() / 2;
    let graph = decoder(&mut RandomSource::new(&bytes[..middle])).expect("a valid graph");
    let model = Pipeline::new(&graph).state(StateRequest::find()).jit();
    let model = model.unwrap_or_else(|error| panic!("{error}\n{graph}"));
    assert_eq!(model.one_state(), None, "{graph}");
    let mut context = Context::new(&model).expect("small graphs have small arenas");
    let choices = bytes[middle..].iter();
    let threads = 1 + bytes.len() as u32 % 3;
    context.set_threads(threads).expect("threads");

    let mut session = Session { graph, context, sequences: Vec::new(), choices, seed: 0 };
    session.begin();
    let mut compared = 0;
    while session.choices.len() > 0 {
        match session.below(8) {
            0 => session.begin(),
            1 => session.fork(),
            2 => session.shorten(),
            _ => compared += session.step(),
        }
    }
    compared
}

impl Session<'_> {
    fn below(&mut self, end: usize) -> usize {
        self.choices.next().map_or(0, |byte| usize::from(*byte) % end.max(1))
    }

    /// A new sequence with a random capacity.
    fn begin(&mut self) {
        if self.sequences.len() == MAX_SEQUENCES {
            return;
        }
        let model = self.context.model().clone();
        let max = (MAX_PAST + MAX_NEW) as usize;
        let capacity = if model.capacity_symbol().is_some() { max - self.below(max / 2) } else { 0 };
        let state = State::new(&model, capacity).expect("a capacity in range");
        let past = contents(&state);
        self.sequences.push(Sequence { state, past });
    }

    /// A copy of a sequence.
    fn fork(&mut self) {
        if self.sequences.len() == MAX_SEQUENCES {
            return;
        }
        let at = self.below(self.sequences.len());
        let state = self.sequences[at].state.fork().expect("memory");
        let past = contents(&state);
        assert_eq!(bytes_of(&past), bytes_of(&self.sequences[at].past));
        self.sequences.push(Sequence { state, past });
    }

    /// Forgets the last rows of a sequence; all of them if some tensors are overwritten.
    fn shorten(&mut self) {
        let at = self.below(self.sequences.len());
        let length = self.sequences[at].state.length();
        let kept = self.below(length + 1);
        let sequence = &mut self.sequences[at];
        if sequence.state.truncate(kept).is_err() {
            sequence.state.reset();
        }
        sequence.past = contents(&sequence.state);
    }

    /// A step of some sequences in one call. Returns 1 if any took part.
    fn step(&mut self) -> usize {
        let new = 1 + self.below(MAX_NEW as usize);
        let chosen = self.below(256);
        let fits = |sequence: &Sequence| {
            let state = &sequence.state;
            let has_rows = state.capacity() > 0;
            !has_rows || state.length() <= MAX_PAST as usize && state.length() + new <= state.capacity()
        };
        let called: Vec<usize> = (0..self.sequences.len())
            .filter(|idx| chosen >> idx & 1 == 1 && fits(&self.sequences[*idx]))
            .take(MAX_BATCH as usize)
            .collect();
        if called.is_empty() {
            return 0;
        }

        self.seed += 1;
        let lengths: Vec<usize> = called.iter().map(|idx| self.sequences[*idx].state.length()).collect();
        let own: Vec<Vec<Tensor>> =
            lengths.iter().enumerate().map(|(row, length)| self.inputs(row, *length, new)).collect();
        let joined = joined(&own);
        let before: Vec<Vec<u8>> =
            called.iter().map(|idx| self.sequences[*idx].state.block_bytes().to_vec()).collect();
        let is_called = |idx: &usize| called.contains(idx);
        let all = self.sequences.iter_mut().enumerate().filter(|(idx, _)| is_called(idx));
        let mut states: Vec<&mut State> = all.map(|(_, sequence)| &mut sequence.state).collect();
        let outputs = self.context.run_states_views(&refs(&joined), &mut states);
        let outputs = outputs.unwrap_or_else(|error| panic!("{error} at {lengths:?}\n{}", self.graph));
        let y = outputs.get(0).bytes().to_vec();

        for (row, idx) in called.iter().enumerate() {
            let share = y.len() / called.len();
            self.compare(*idx, &own[row], &y[row * share..(row + 1) * share]);
            let state = &self.sequences[*idx].state;
            assert_only_new_rows_changed(state, &before[row], lengths[row]);
        }
        1
    }

    /// The inputs of a sequence alone, in the order of the model.
    fn inputs(&self, row: usize, length: usize, new: usize) -> Vec<Tensor> {
        let mut tensors = Vec::new();
        for (idx, info) in self.context.model().inputs().iter().enumerate() {
            let size = |text: &String| match text.as_str() {
                "N" => 1,
                "S" => new,
                "P + S" => length + new,
                number => number.parse().unwrap_or_else(|_| panic!("the generator has no dim {number}")),
            };
            let shape: Vec<usize> = info.dims().iter().map(size).collect();
            let seed = (self.seed * 64 + row as u32 * 8 + idx as u32) as f32;
            let elem = |at: usize| ((at as f32 + 1.0) * 12.989_8 + seed * 0.37).sin();
            let elems: Vec<f32> = (0..shape.iter().product()).map(elem).collect();
            tensors.push(Tensor::from_f32(shape, &elems).expect("of this size"));
        }
        tensors
    }

    /// Compares a step of a sequence with the graph without state.
    fn compare(&mut self, idx: usize, inputs: &[Tensor], y: &[u8]) {
        let model = self.context.model().clone();
        let sequence = &mut self.sequences[idx];
        let find = |name: &str| {
            let at = model.inputs().iter().position(|info| info.name() == name);
            let of_state = || model.state().iter().position(|tensor| tensor.input() == name);
            match at {
                Some(at) => inputs[at].clone(),
                None => sequence.past[of_state().expect("an input or a state")].clone(),
            }
        };
        let all: Vec<Tensor> = self.graph.inputs.iter().map(|(name, _)| find(name)).collect();
        let expected = eval(&self.graph, &all).expect("inputs in range");
        let tolerance = RoundingTolerance::of(&self.graph, &all);

        let own = contents(&sequence.state);
        for ((name, _), expected) in self.graph.outputs.iter().zip(&expected) {
            let found = match model.state().iter().position(|tensor| tensor.output() == name) {
                Some(at) => own[at].clone(),
                None => {
                    let bytes = Bytes::Owned(y.into());
                    Tensor::new(DType::F32, expected.shape().to_vec(), bytes).expect("as large")
                }
            };
            if let Err(why) = tolerance.check(expected, &found) {
                panic!("{name}: {found}, not {expected}, {why}\n{}", self.graph);
            }
        }
        sequence.past = own;
    }
}

/// The tensors of a state, with the valid rows.
fn contents(state: &State) -> Vec<Tensor> {
    let tensor = |(idx, info): (usize, &symshape_runtime::StateInfo)| {
        let bytes = Bytes::Owned(state.tensor_bytes(idx).into());
        Tensor::new(info.dtype(), state.shape(idx), bytes).expect("as large as its shape")
    };
    state.model().state().iter().enumerate().map(tensor).collect()
}

fn bytes_of(tensors: &[Tensor]) -> Vec<&[u8]> {
    tensors.iter().map(|tensor| tensor.bytes()).collect()
}

/// The inputs of a call for all sequences: each input is as long as the longest one needs, and garbage follows the
/// elements of the others.
fn joined(own: &[Vec<Tensor>]) -> Vec<Tensor> {
    let join = |idx: usize| {
        let longest = own.iter().map(|inputs| &inputs[idx]).max_by_key(|tensor| tensor.elems()).expect("one");
        let mut shape = longest.shape().to_vec();
        let share = longest.bytes().len();
        let mut bytes = vec![0xff; share * own.len()];
        for (row, inputs) in own.iter().enumerate() {
            let own = inputs[idx].bytes();
            bytes[row * share..row * share + own.len()].copy_from_slice(own);
        }
        shape[0] = own.len();
        Tensor::new(longest.dtype(), shape, Bytes::Owned(bytes.into())).expect("as large")
    };
    (0..own[0].len()).map(join).collect()
}

/// Compares the bytes of a block before and after a step: only new rows, overwritten tensors and the length may differ.
fn assert_only_new_rows_changed(state: &State, before: &[u8], length: usize) {
    let after = state.block_bytes();
    // The header of these models, with the words of capacity, length and batch.
    let first = 64;
    let mut expected = before.to_vec();
    expected[..first].copy_from_slice(&after[..first]);
    for (offset, len) in state.written_spans(length) {
        expected[offset..offset + len].copy_from_slice(&after[offset..offset + len]);
    }
    assert!(expected == after, "a byte outside of the new rows changed");
}
