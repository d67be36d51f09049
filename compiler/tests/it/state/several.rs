//! Calls with several states: each sequence has the bits that it has alone.

use super::graphs::{decoder, gated, layered, rows_first};
use crate::{models::weights, tensors::refs};
use symshape_compiler::{
    StateRequest,
    graph::Graph,
    kernel::{MemorySpace, walk},
    options::CompileOptions,
    pipeline::Pipeline,
    tensor::Tensor,
};
use symshape_runtime::{CallError, Context, DType, Model, State};

/// A model with state, called for several sequences.
pub(super) struct Table {
    context: Context,
    seed: u32,
}

/// One input of a call: its elements for each sequence.
struct Rows {
    shape: Vec<usize>,
    dtype: DType,
    /// Elements of a sequence in a call of its own.
    own: Vec<Vec<u8>>,
}

impl Table {
    pub(super) fn new(graph: &Graph, request: &StateRequest, threads: u32) -> Table {
        let options = CompileOptions::default().threads(threads);
        let model = Pipeline::new(graph).options(options).state(request.clone()).jit().expect("supported");
        let mut context = Context::new(&model).expect("memory");
        context.set_threads(threads).expect("threads");
        Table { context, seed: 0 }
    }

    pub(super) fn model(&self) -> Model {
        self.context.model().clone()
    }

    /// Random inputs for `new` rows after each of these lengths.
    fn inputs(&mut self, new: usize, lengths: &[usize]) -> Vec<Rows> {
        self.seed += 1;
        let model = self.model();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let mut inputs = Vec::new();
        for (idx, info) in model.inputs().iter().enumerate() {
            let size = |text: &String, length: usize, count: usize| match text.as_str() {
                "N" => count,
                "S" => new,
                "P + S" => length + new,
                number => number.parse().unwrap_or_else(|_| panic!("{number} is not a dim of these tests")),
            };
            let shape = |length: usize, count: usize| -> Vec<usize> {
                info.dims().iter().map(|text| size(text, length, count)).collect()
            };
            let own = lengths.iter().enumerate().map(|(row, length)| {
                let random = weights(&shape(*length, 1), 1000 * self.seed + 10 * row as u32 + idx as u32);
                if info.dtype() != DType::I64 {
                    return random.bytes().to_vec();
                }
                let index = |bytes: &[u8]| i64::from(bytes[1] % 11);
                random.bytes().chunks_exact(4).map(index).flat_map(i64::to_ne_bytes).collect()
            });
            let own = own.collect();
            inputs.push(Rows { shape: shape(longest, lengths.len()), dtype: info.dtype(), own });
        }
        inputs
    }

    /// A step of `new` rows of all states in one call. Outputs and states must be those of a call for each alone.
    pub(super) fn step(&mut self, new: usize, states: &mut [State]) {
        let lengths: Vec<usize> = states.iter().map(State::length).collect();
        let inputs = self.inputs(new, &lengths);
        let mut alone: Vec<State> = states.iter().map(|state| state.fork().expect("memory")).collect();
        let mut expected = Vec::new();
        for (row, state) in alone.iter_mut().enumerate() {
            let own: Vec<Tensor> = inputs.iter().map(|rows| rows.alone(row, lengths[row], new)).collect();
            let outputs = self.context.run_stateful_views(&refs(&own), state).expect("a call in range");
            let bytes = (0..outputs.len()).map(|idx| outputs.get(idx).bytes().to_vec());
            expected.push(bytes.collect::<Vec<_>>());
        }

        let got =
            self.try_step(&inputs, &mut states.iter_mut().collect::<Vec<_>>()).expect("a call in range");
        for (row, expected) in expected.iter().enumerate() {
            for (idx, expected) in expected.iter().enumerate() {
                let own = &got[idx][row * expected.len()..(row + 1) * expected.len()];
                assert_eq!(own, expected, "output {idx} of sequence {row} of lengths {lengths:?}, {new} new");
            }
            assert_eq!(states[row].length(), alone[row].length());
            for tensor in 0..self.model().state().len() {
                let (own, other) = (states[row].tensor_bytes(tensor), alone[row].tensor_bytes(tensor));
                assert_eq!(own, other, "tensor {tensor} of sequence {row} of lengths {lengths:?}, {new} new");
            }
        }
    }

    /// The bytes of the outputs of a call.
    fn try_step(&mut self, inputs: &[Rows], states: &mut [&mut State]) -> Result<Vec<Vec<u8>>, CallError> {
        let joined: Vec<Tensor> = inputs.iter().map(Rows::joined).collect();
        let outputs = self.context.run_states_views(&refs(&joined), states)?;
        Ok((0..outputs.len()).map(|idx| outputs.get(idx).bytes().to_vec()).collect())
    }

    /// A state of this length.
    pub(super) fn state(&mut self, capacity: usize, length: usize, max_step: usize) -> State {
        let mut state = State::new(&self.model(), capacity).expect("a capacity in range");
        while state.length() < length {
            let new = (length - state.length()).min(max_step);
            let lengths = [state.length()];
            let inputs = self.inputs(new, &lengths);
            self.try_step(&inputs, &mut [&mut state]).expect("a call in range");
        }
        state
    }
}

impl Rows {
    fn tensor(&self, shape: Vec<usize>, bytes: &[u8]) -> Tensor {
        let bytes = symshape_compiler::tensor::Bytes::Owned(bytes.into());
        Tensor::new(self.dtype, shape, bytes).expect("as large as the shape")
    }

    /// The tensor of a call for one sequence.
    fn alone(&self, row: usize, length: usize, new: usize) -> Tensor {
        let mut shape = self.shape.clone();
        shape[0] = 1;
        let elems = self.own[row].len() / self.dtype.size_bytes();
        // The axis of the length is the last one of a mask.
        if shape.iter().product::<usize>() != elems {
            *shape.last_mut().expect("an axis") = length + new;
        }
        self.tensor(shape, &self.own[row])
    }

    /// The tensor of a call for all sequences. The elements after those of a shorter sequence are garbage.
    fn joined(&self) -> Tensor {
        let bytes = self.shape.iter().product::<usize>() * self.dtype.size_bytes();
        let mut joined = vec![0xff; bytes];
        let share = bytes / self.own.len();
        for (row, own) in self.own.iter().enumerate() {
            joined[row * share..row * share + own.len()].copy_from_slice(own);
        }
        self.tensor(self.shape.clone(), &joined)
    }
}

#[test]
fn sequences_of_different_lengths_have_the_bits_that_they_have_alone() {
    for threads in [1, 2, 3] {
        let mut table = Table::new(&layered(8, 4, 20), &StateRequest::find(), threads);
        assert_eq!(table.model().one_state(), None);
        for lengths in [&[0, 20][..], &[3, 1, 7], &[0, 1, 2, 3, 5, 8, 13, 19], &[20, 20], &[5, 0, 5, 0, 11]] {
            let mut states: Vec<State> =
                lengths.iter().map(|length| table.state(24 - length % 2, *length, 4)).collect();
            for new in [1, 2] {
                if lengths.iter().all(|length| length + new <= 21) {
                    table.step(new, &mut states);
                }
            }
        }
    }
}

#[test]
fn states_without_rows_run_together() {
    let request = StateRequest::pairs(["h=h_next"]).expect("a pair");
    for threads in [1, 2] {
        let mut table = Table::new(&gated(), &request, threads);
        for count in [2, 3, 8] {
            let mut states: Vec<State> = (0..count).map(|_| table.state(0, 0, 1)).collect();
            (0..count).for_each(|idx| table.step(0, &mut states[idx..=idx]));
            (0..3).for_each(|_| table.step(0, &mut states));
        }
    }
}

#[test]
fn a_step_of_several_rows_needs_equal_lengths_if_a_mask_has_blocks() {
    let mut table = Table::new(&decoder(4, 12), &StateRequest::find(), 1);
    let mut states = [table.state(16, 3, 4), table.state(16, 5, 4)];
    table.step(1, &mut states);
    let error = table.refused(2, &mut states);
    assert!(
        error.starts_with("state 0 does not fit the call: it is shorter than others, and `bias`"),
        "{error}"
    );
    states[1].truncate(4).expect("fewer rows");
    table.step(2, &mut states);
}

#[test]
fn weights_are_read_once_for_all_sequences() {
    let graph = layered(8, 4, 20);
    let lowered = Pipeline::new(&graph).state(StateRequest::find()).lower().expect("supported");
    let program = &lowered.program;
    let sequences = program.sequences.as_ref().expect("state").as_ref().expect("several sequences");
    let each: Vec<usize> = sequences.each.iter().map(|each| each.kernel).collect();
    let mut products = 0;
    for (idx, kernel) in program.kernels.iter().enumerate() {
        let mut reads_weight = false;
        let mut uses_state = false;
        walk::accesses(&kernel.body, &mut |site| match &program.buffers[site.access.buffer].space {
            MemorySpace::Const(weight) => reads_weight |= weight.elems() > 64,
            MemorySpace::State(_) => uses_state = true,
            _ => {}
        });
        assert!(!uses_state || each.contains(&idx), "{} uses the state of one sequence", kernel.name);
        let is_product = reads_weight && kernel.name.contains("contraction");
        assert!(!is_product || !each.contains(&idx), "{} reads a weight for each sequence", kernel.name);
        products += usize::from(is_product);
    }
    assert_eq!(products, 9, "four products in each layer, and the last one");
}

#[test]
fn a_refused_call_with_several_states_changes_none() {
    let mut table = Table::new(&layered(8, 4, 20), &StateRequest::find(), 2);
    let mut states = [table.state(24, 20, 4), table.state(9, 9, 4), table.state(24, 2, 4)];
    let before: Vec<Vec<u8>> = states.iter().map(|state| state.block_bytes().to_vec()).collect();

    let full = table.refused(1, &mut states);
    assert_eq!(full, "state 1 has memory for 9 rows; there would be 10 after the call");
    let [mut a, b, mut c] = [24, 21, 3].map(|length| table.state(24, length, 4));
    let error = table.refused(1, &mut [b.fork().expect("memory"), c.fork().expect("memory")]);
    assert!(error.contains("P = 21; P is declared 0..=20"), "{error}");
    let error = table.refused(1, &mut []);
    assert_eq!(error, "a call takes 1 to 8 states; got 0");
    a.truncate(20).expect("fewer rows");

    let other = Table::new(&layered(8, 4, 19), &StateRequest::find(), 1);
    let mut foreign = State::new(&other.model(), 23).expect("a capacity in range");
    let error = table.call_of(1, &[20, 0], &mut [&mut a, &mut foreign]);
    assert_eq!(error, "the state belongs to another model");

    let batch = State::with_dims(&table.model(), 24, &[("N", 2)]).expect("sizes in range");
    let error = table.refused(1, &mut [c.fork().expect("memory"), batch]);
    assert!(error.starts_with("state 1 does not fit the call: its N is not 1"), "{error}");
    c.reset();

    let after: Vec<Vec<u8>> = states.iter().map(|state| state.block_bytes().to_vec()).collect();
    assert_eq!(after, before);
    states[1].truncate(8).expect("fewer rows");
    table.step(1, &mut states);
}

#[test]
fn a_model_that_takes_one_state_says_why() {
    let mut table = Table::new(&rows_first(), &StateRequest::find(), 1);
    let mut states = [table.state(20, 3, 5), table.state(20, 1, 5)];
    let error = table.call_of(1, &[3], &mut states.iter_mut().collect::<Vec<_>>());
    let cause = "no symbol is the first axis of the outputs";
    assert_eq!(error, format!("a call takes 1 to 1 states; got 2, because {cause}"));
}

impl Table {
    /// The error of a call with random inputs for these states.
    fn refused(&mut self, new: usize, states: &mut [State]) -> String {
        let lengths: Vec<usize> = states.iter().map(State::length).collect();
        self.call_of(new, &lengths, &mut states.iter_mut().collect::<Vec<_>>())
    }

    /// The error of a call with random inputs for states of these lengths.
    fn call_of(&mut self, new: usize, lengths: &[usize], states: &mut [&mut State]) -> String {
        let inputs = self.inputs(new, if lengths.is_empty() { &[0] } else { lengths });
        self.try_step(&inputs, states).expect_err("a refusal").to_string()
    }
}
