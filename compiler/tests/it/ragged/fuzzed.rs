//! Ragged calls of random padded encoders: each sequence has the bits that it has alone, and the values that the
//! reference evaluator gives to it alone and in a padded batch with any elements in padding.

use crate::tensors::refs;
use symshape_compiler::{
    CompileOptions, RaggedRequest,
    graph::{
        Graph,
        arbitrary::{
            RandomSource,
            padded::{MAX_LENGTH, MAX_SEQUENCES, TOKENS, WIDTH, encoder},
        },
        eval::eval,
        tolerance::RoundingTolerance,
    },
    pipeline::Pipeline,
    scalar::Scalar,
    tensor::{Bytes, Tensor},
};
use symshape_runtime::{Context, DType};

/// Batches of each graph.
const BATCHES: usize = 3;

/// Compares calls of the graph that these bytes describe. Returns how many batches were compared; 0 if the compiler
/// refuses the graph.
///
/// # Panics
/// When a result differs.
pub(super) fn run(bytes: &[u8]) -> usize {
    let (choices, sizes) = bytes.split_at(bytes.len() - bytes.len() / 4);
    let Ok(graph) = encoder(&mut RandomSource::new(choices)) else { return 0 };
    let request = RaggedRequest::along("S").mask("mask");
    let options = CompileOptions::default().threads(2);
    let Ok(lowered) = Pipeline::new(&graph).ragged(request).options(options).lower() else { return 0 };
    let model = lowered.jit().unwrap_or_else(|error| panic!("{error}\n{graph}"));
    let mut context = Context::new(&model).expect("small graphs have small arenas");
    context.set_threads(1 + bytes.len() as u32 % 2).expect("threads");

    let mut sizes = Sizes(sizes.iter());
    let mut compared = 0;
    for _ in 0..BATCHES {
        let count = 1 + sizes.below(MAX_SEQUENCES as usize);
        let lengths: Vec<usize> = (0..count).map(|_| 1 + sizes.below(MAX_LENGTH as usize)).collect();
        let width = lengths.iter().max().map_or(1, |longest| *longest);
        let width = width + sizes.below(MAX_LENGTH as usize + 1 - width);
        let batch = Batch { lengths, width, seed: sizes.below(256) as u64 };
        compared += usize::from(batch.compare(&graph, &mut context));
    }
    compared
}

/// Choices of sizes. After the last byte, each one is the first option.
struct Sizes<'b>(std::slice::Iter<'b, u8>);

impl Sizes<'_> {
    fn below(&mut self, end: usize) -> usize {
        self.0.next().map_or(0, |byte| usize::from(*byte) % end)
    }
}

/// A number that looks random, from 0 to `end - 1`.
fn hash(seed: u64, place: u64, end: u64) -> u64 {
    let mixed =
        (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (place + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed ^ mixed >> 29).wrapping_mul(0x94d0_49bb_1331_11eb) >> 32) % end.max(1)
}

/// A padded batch: the length of each sequence, and the padded length.
struct Batch {
    lengths: Vec<usize>,
    width: usize,
    seed: u64,
}

impl Batch {
    /// Compares all outputs. `false` if the padded model has no finite value for a token.
    fn compare(&self, graph: &Graph, context: &mut Context) -> bool {
        let all: Vec<usize> = (0..self.lengths.len()).collect();
        let together = self.ragged(&all, context);
        let inputs = self.padded(&all, self.width);
        let Ok(expected) = eval(graph, &inputs) else { return false };
        let tolerance = RoundingTolerance::of(graph, &inputs);

        let mut first = 0;
        let mut is_finite = true;
        for (number, length) in self.lengths.iter().enumerate() {
            let alone = self.ragged(&[number], context);
            let inputs = self.padded(&[number], *length);
            let expected_alone = eval(graph, &inputs).expect("the batch has values");
            for (output, alone) in alone.iter().enumerate() {
                let name = &graph.outputs[output].0;
                let place = || {
                    format!("`{name}` of sequence {number} of {:?} in {}\n{graph}", self.lengths, self.width)
                };
                let has_rows = graph.shape(graph.outputs[output].1).len() == 3;
                let begin = if has_rows { first } else { number };
                let count = if has_rows { *length } else { 1 };
                let elems = WIDTH as usize * count;
                let own = rows(&together[output], begin * WIDTH as usize, elems);
                assert!(own.bytes() == alone.bytes(), "other bits in a batch: {}", place());

                let begin = number * WIDTH as usize * if has_rows { self.width } else { 1 };
                let wants = [rows(&expected[output], begin, elems), rows(&expected_alone[output], 0, elems)];
                for (want, model) in wants.iter().zip(["the padded batch", "the padded model alone"]) {
                    if (0..elems).any(|elem| !want.get(elem).as_f64().is_finite()) {
                        is_finite = false;
                    } else if let Err(why) = tolerance.check(want, &own) {
                        panic!("not as in {model}: {why}: {}", place());
                    }
                }
            }
            first += length;
        }
        is_finite
    }

    /// The outputs of a ragged call of these sequences.
    fn ragged(&self, sequences: &[usize], context: &mut Context) -> Vec<Tensor> {
        let mut ids = Vec::new();
        let mut x = Vec::new();
        let mut offsets = vec![0_i64];
        for number in sequences {
            for position in 0..self.lengths[*number] {
                ids.push(self.id(*number, position));
                x.extend(self.elems(*number, position));
            }
            offsets.push(ids.len() as i64);
        }
        let inputs = [
            Tensor::from_i64(vec![ids.len()], &ids),
            Tensor::from_f32(vec![ids.len(), WIDTH as usize], &x),
            Tensor::from_i64(vec![offsets.len()], &offsets),
        ];
        let inputs = inputs.map(|tensor| tensor.expect("sized"));
        let outputs = context.run_views(&refs(&inputs)).expect("in contract");
        let copy = |idx: usize| {
            let view = outputs.get(idx);
            let bytes = Bytes::Owned(view.bytes().into());
            Tensor::new(view.dtype(), view.shape().to_vec(), bytes).expect("an output fits its shape")
        };
        (0..outputs.len()).map(copy).collect()
    }

    /// The inputs of the padded model for these sequences. Padding has any contents.
    fn padded(&self, sequences: &[usize], width: usize) -> Vec<Tensor> {
        let mut ids = Vec::new();
        let mut x = Vec::new();
        let mut mask = Vec::new();
        for number in sequences {
            for position in 0..width {
                ids.push(self.id(*number, position));
                x.extend(self.elems(*number, position));
                mask.push(i64::from(position < self.lengths[*number]));
            }
        }
        let shape = vec![sequences.len(), width];
        let inputs = [
            Tensor::from_i64(shape.clone(), &ids),
            Tensor::from_f32(vec![sequences.len(), width, WIDTH as usize], &x),
            Tensor::from_i64(shape, &mask),
        ];
        inputs.into_iter().map(|tensor| tensor.expect("sized")).collect()
    }

    fn id(&self, sequence: usize, position: usize) -> i64 {
        hash(self.seed, (sequence * 64 + position) as u64, TOKENS as u64) as i64
    }

    fn elems(&self, sequence: usize, position: usize) -> impl Iterator<Item = f32> {
        let place = ((sequence * 64 + position) * WIDTH as usize) as u64;
        let seed = self.seed + 1000;
        (0..WIDTH as u64).map(move |k| hash(seed, place + k, 2001) as f32 / 1000.0 - 1.0)
    }
}

/// Elements of a tensor as a list.
fn rows(tensor: &Tensor, begin: usize, count: usize) -> Tensor {
    let elems: Vec<Scalar> = (begin..begin + count).map(|elem| tensor.get(elem)).collect();
    Tensor::from_scalars(DType::F32, vec![count], &elems).expect("sized")
}
