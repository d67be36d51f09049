//! A padded model and its ragged form, and the comparison of their calls.

use super::graphs::{MAX_LENGTH, MAX_SEQUENCES};
use crate::{bits::assert_same_bits, tensors::refs};
use symshape_compiler::{
    CompileOptions, RaggedRequest,
    graph::{Graph, eval::eval},
    pipeline::Pipeline,
    tensor::Tensor,
};
use symshape_runtime::{CallError, Context, Model, TensorRef};

/// How far results may be from those of the padded model, in parts of the largest one: some roundings, because padding
/// may change the order of a sum. Where a model amplifies roundings, results may be as far from those of the padded
/// model as these are from the evaluator's, which sums in another order, too, but not by more than [`MAX_DISTANCE`].
const TOLERANCE: f32 = 16.0 * f32::EPSILON;

/// In parts of the largest result.
const MAX_DISTANCE: f32 = 0.01;

pub(super) struct Session {
    graph: Graph,
    padded: Context,
    ragged: Context,
    /// For each output, whether it has a row for each token.
    has_rows: Vec<bool>,
}

/// A token of a sequence that begins at row `first` of a call.
fn token(sequence: usize, position: usize) -> i64 {
    ((sequence * 31 + position * 7) % 50) as i64
}

/// The tokens and the mask of a padded batch of sequences.
fn padded_inputs(lengths: &[usize], padding: i64) -> [Tensor; 2] {
    let width = lengths.iter().copied().max().unwrap_or(1);
    let mut ids = Vec::new();
    let mut mask: Vec<i64> = Vec::new();
    for (number, length) in lengths.iter().enumerate() {
        for position in 0..width {
            let is_token = position < *length;
            ids.push(if is_token { token(number, position) } else { padding });
            mask.push(is_token.into());
        }
    }
    [ids, mask].map(|elems| Tensor::from_i64(vec![lengths.len(), width], &elems).expect("sized"))
}

/// The first row of each sequence, and the number of rows.
pub(super) fn offsets(lengths: &[usize]) -> Vec<i64> {
    let mut offsets = vec![0];
    for length in lengths {
        offsets.push(offsets[offsets.len() - 1] + *length as i64);
    }
    offsets
}

pub(super) fn ragged(graph: &Graph, request: &RaggedRequest) -> Model {
    let options = CompileOptions::default().threads(3);
    Pipeline::new(graph).ragged(request.clone()).options(options).jit().expect("supported")
}

impl Session {
    pub(super) fn new(graph: &Graph, request: &RaggedRequest) -> Session {
        let padded = Pipeline::new(graph).jit().expect("supported");
        let ragged = ragged(graph, request);
        let has_rows = padded.outputs().iter().map(|output| output.dims()[1] == "S").collect();
        Session {
            graph: graph.clone(),
            padded: Context::new(&padded).expect("memory"),
            ragged: Context::new(&ragged).expect("memory"),
            has_rows,
        }
    }

    /// The outputs of a ragged call for sequences with these numbers and lengths.
    pub(super) fn call(&mut self, sequences: &[(usize, usize)]) -> Vec<Vec<f32>> {
        let ids: Vec<i64> = sequences
            .iter()
            .flat_map(|(number, length)| (0..*length).map(|position| token(*number, position)))
            .collect();
        let lengths: Vec<usize> = sequences.iter().map(|(_, length)| *length).collect();
        self.call_with(&ids, &offsets(&lengths)).expect("in range")
    }

    pub(super) fn call_with(&mut self, ids: &[i64], offsets: &[i64]) -> Result<Vec<Vec<f32>>, CallError> {
        let ids_shape = [ids.len()];
        let offsets_shape = [offsets.len()];
        let ids = TensorRef::new(&ids_shape, ids).expect("sized");
        let offsets = TensorRef::new(&offsets_shape, offsets).expect("sized");
        let (outputs, is_whole) = self.ragged.run_guarded(&[ids, offsets])?;
        assert!(is_whole, "bytes around the arena or an output are overwritten");
        Ok((0..outputs.len()).map(|idx| outputs.get(idx).elems::<f32>().expect("floats").to_vec()).collect())
    }

    pub(super) fn call_with_narrow_offsets(&mut self, ids: &[i64], offsets: &[i32]) -> Result<(), CallError> {
        let ids_shape = [ids.len()];
        let offsets_shape = [offsets.len()];
        let ids = TensorRef::new(&ids_shape, ids).expect("sized");
        let offsets = TensorRef::new(&offsets_shape, offsets).expect("sized");
        self.ragged.run_views(&[ids, offsets]).map(|_| ())
    }

    fn padded_call(&mut self, inputs: &[Tensor]) -> Vec<Vec<f32>> {
        let outputs = self.padded.run_views(&refs(inputs)).expect("in range");
        (0..outputs.len()).map(|idx| outputs.get(idx).elems::<f32>().expect("floats").to_vec()).collect()
    }

    /// The largest distance of these elements of an output from those of the evaluator.
    fn distance_from_evaluator(&self, inputs: &[Tensor], output: usize, begin: usize, elems: &[f32]) -> f32 {
        let evaluated = eval(&self.graph, inputs).expect("the padded model has values");
        let evaluated = |idx: usize| evaluated[output].get(begin + idx).as_f64() as f32;
        let distances = elems.iter().enumerate().map(|(idx, element)| (element - evaluated(idx)).abs());
        distances.fold(0.0, f32::max)
    }

    /// Compares a ragged call with calls for each sequence, to the bit, and with the padded model.
    pub(super) fn compare(&mut self, lengths: &[usize], threads: u32) {
        self.ragged.set_threads(threads).expect("threads");
        let sequences: Vec<(usize, usize)> = lengths.iter().copied().enumerate().collect();
        let together = self.call(&sequences);
        self.ragged.set_threads(1).expect("one thread");
        let inputs = padded_inputs(lengths, 49);
        let padded = self.padded_call(&inputs);
        let width = lengths.iter().copied().max().unwrap_or(1);

        let mut first = 0;
        for (number, length) in lengths.iter().enumerate() {
            let alone = self.call(&[(number, *length)]);
            for (output, alone) in alone.iter().enumerate() {
                let context =
                    format!("{lengths:?} on {threads} threads: output {output} of sequence {number}");
                let has_rows = self.has_rows[output];
                let per_row = alone.len() / if has_rows { *length } else { 1 };
                let begin = per_row * if has_rows { first } else { number };
                assert_same_bits(&together[output][begin..begin + alone.len()], alone, &context);

                let begin = per_row * number * if has_rows { width } else { 1 };
                let expected = &padded[output][begin..begin + alone.len()];
                let largest = expected.iter().fold(0.0_f32, |largest, element| largest.max(element.abs()));
                let mut distances = alone.iter().zip(expected).map(|(got, expected)| (got - expected).abs());
                if distances.clone().all(|distance| distance <= TOLERANCE * largest) {
                    continue;
                }
                let amplified = self.distance_from_evaluator(&inputs, output, begin, expected);
                let allowed = amplified.min(MAX_DISTANCE * largest);
                assert!(
                    distances.all(|distance| distance <= allowed),
                    "{context}: {alone:?} instead of {expected:?} within {allowed}"
                );
            }
            first += length;
        }
    }
}

/// Lengths at the ends of all ranges, and uneven ones.
pub(super) fn cases() -> Vec<Vec<usize>> {
    let most = MAX_LENGTH as usize;
    let all = MAX_SEQUENCES as usize;
    vec![
        vec![1],
        vec![2],
        vec![most - 1],
        vec![most],
        vec![1; all],
        vec![most; all],
        vec![most, 1, 1, 1, 2],
        vec![1, 2, 17, most - 1, most],
        vec![7, 7],
        vec![3, 30, 11, 19],
    ]
}
