//! Ragged batches that are gathered from a tensor for each sequence, or from padded tensors.

use super::{
    graphs::{CHANNELS, MAX_LENGTH, MAX_SEQUENCES, encoder_of_many_ports},
    session::{cases, ragged},
};
use crate::{bits::assert_same_bits, models::graph};
use symshape::Dim;
use symshape_compiler::{RaggedRequest, graph::Graph, pipeline::Pipeline};
use symshape_runtime::{Context, DType, Model, RaggedBatch, RaggedError, TensorMut, TensorRef, Tokens};

/// The inputs of one sequence.
struct Sequence {
    ids: Vec<i64>,
    positions: Vec<i64>,
    bias: [f32; CHANNELS],
}

const SCALE: [f32; CHANNELS] = [0.75; CHANNELS];

impl Sequence {
    fn new(number: usize, length: usize) -> Sequence {
        Sequence {
            ids: (0..length).map(|k| ((number * 31 + k * 7) % 50) as i64).collect(),
            positions: (0..length as i64).collect(),
            bias: std::array::from_fn(|k| (number * CHANNELS + k) as f32 / 16.0),
        }
    }

    fn push(&self, batch: &mut RaggedBatch) -> Result<(), RaggedError> {
        let length = self.ids.len();
        batch.push(&[
            TensorRef::new(&[length], &self.ids).expect("sized"),
            TensorRef::new(&[1, length], &self.positions).expect("sized"),
            TensorRef::new(&[1, CHANNELS], &self.bias).expect("sized"),
            TensorRef::new(&[CHANNELS], &SCALE).expect("sized"),
        ])
    }
}

fn model() -> Model {
    ragged(&encoder_of_many_ports(), &RaggedRequest::along("S").mask("mask"))
}

/// Padded tensors of these sequences. Each has its tokens at the end of its row if padding is on the left.
struct Padded {
    shape: [usize; 2],
    ids: Vec<i64>,
    mask: Vec<i64>,
    positions: Vec<i64>,
    bias: Vec<f32>,
}

impl Padded {
    fn new(sequences: &[Sequence], width: usize, is_left: bool) -> Padded {
        let mut padded = Padded {
            shape: [sequences.len(), width],
            ids: vec![49; sequences.len() * width],
            mask: vec![0; sequences.len() * width],
            positions: (0..width as i64).collect(),
            bias: sequences.iter().flat_map(|sequence| sequence.bias).collect(),
        };
        for (row, sequence) in sequences.iter().enumerate() {
            let length = sequence.ids.len();
            let first = row * width + if is_left { width - length } else { 0 };
            padded.ids[first..first + length].copy_from_slice(&sequence.ids);
            padded.mask[first..first + length].fill(1);
        }
        padded
    }

    fn inputs(&self) -> [TensorRef<'_>; 4] {
        let positions_shape = [1, self.shape[1]];
        [
            TensorRef::new(&self.shape, &self.ids).expect("sized"),
            TensorRef::new(&positions_shape, &self.positions).expect("sized"),
            TensorRef::new(&[self.shape[0], CHANNELS], &self.bias).expect("sized"),
            TensorRef::new(&[CHANNELS], &SCALE).expect("sized"),
        ]
    }

    fn tokens(&self) -> Tokens {
        Tokens::of_mask(&TensorRef::new(&self.shape, &self.mask).expect("sized")).expect("a mask")
    }
}

fn floats(tensor: TensorRef<'_>) -> Vec<f32> {
    tensor.elems::<f32>().expect("floats").to_vec()
}

#[test]
fn sequences_in_their_own_memory_and_padded_ones_have_the_same_bits() {
    let model = model();
    let mut context = Context::new(&model).expect("memory");
    let dense = Pipeline::new(&encoder_of_many_ports()).jit().expect("supported");
    let mut dense = Context::new(&dense).expect("memory");
    let mut batch = RaggedBatch::new(&model).expect("a ragged batch");

    for lengths in cases() {
        let sequences: Vec<Sequence> =
            lengths.iter().enumerate().map(|(number, length)| Sequence::new(number, *length)).collect();
        batch.clear();
        sequences.iter().for_each(|sequence| sequence.push(&mut batch).expect("in contract"));
        let outputs = context.run_ragged(&batch).expect("in contract");
        let own: Vec<Vec<Vec<f32>>> = (0..sequences.len())
            .map(|k| (0..2).map(|output| floats(outputs.sequence(output, k))).collect())
            .collect();
        assert_eq!(outputs.sequence(0, 0).shape(), [lengths[0], CHANNELS]);
        assert_eq!(outputs.sequence(1, 0).shape(), [1, CHANNELS]);

        let width = lengths.iter().copied().max().unwrap_or(1);
        let padded = Padded::new(&sequences, width, false);
        let [ids, positions, bias, scale] = padded.inputs();
        let mask = TensorRef::new(&padded.shape, &padded.mask).expect("sized");
        let expected = dense.run_views(&[ids, mask, positions, bias, scale]).expect("in contract");
        let expected = [floats(expected.get(0)), floats(expected.get(1))];

        batch.clear();
        batch.push_padded(&padded.tokens(), &padded.inputs()).expect("in contract");
        let outputs = context.run_ragged(&batch).expect("in contract");
        assert_eq!(outputs.padded_shape(0), [lengths.len(), width, CHANNELS]);
        let mut hidden = vec![-7.0; lengths.len() * width * CHANNELS];
        let mut mean = vec![0.0; lengths.len() * CHANNELS];
        outputs.pad(0, &mut TensorMut::new(&mut hidden)).expect("large enough");
        outputs.pad(1, &mut TensorMut::new(&mut mean)).expect("large enough");

        for (k, length) in lengths.iter().enumerate() {
            let row = &hidden[k * width * CHANNELS..][..width * CHANNELS];
            let (tokens, padding) = row.split_at(length * CHANNELS);
            assert_same_bits(tokens, &own[k][0], format!("{lengths:?}: hidden of {k}"));
            assert!(padding.iter().all(|element| *element == -7.0), "padding keeps its content");
            assert_same_bits(
                &mean[k * CHANNELS..][..CHANNELS],
                &own[k][1],
                format!("{lengths:?}: mean of {k}"),
            );
            let of_dense = &expected[0][k * width * CHANNELS..][..length * CHANNELS];
            for (got, expected) in tokens.iter().zip(of_dense) {
                assert!(
                    (got - expected).abs() <= 1e-4 * expected.abs().max(1.0),
                    "{got} instead of {expected}"
                );
            }
        }
    }
}

#[test]
fn padding_on_the_left_keeps_its_place() {
    let model = model();
    let mut context = Context::new(&model).expect("memory");
    let lengths = [3, 1, 9];
    let sequences: Vec<Sequence> =
        lengths.iter().enumerate().map(|(number, length)| Sequence::new(number, *length)).collect();
    let padded = Padded::new(&sequences, 9, true);
    let mut inputs = padded.inputs();
    // Positions for each sequence would be an input of [N, S]; here all sequences share those of the padded model, so
    // the positions of a token are those of its place.
    let mut batch = RaggedBatch::new(&model).expect("a ragged batch");
    batch.push_padded(&padded.tokens(), &inputs).expect("in contract");
    assert_eq!(floats_of_ints(&batch, 1), [6, 7, 8, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(batch.offsets(), [0, 3, 4, 13]);

    let outputs = context.run_ragged(&batch).expect("in contract");
    let mut hidden = vec![-7.0; 3 * 9 * CHANNELS];
    outputs.pad(0, &mut TensorMut::new(&mut hidden)).expect("large enough");
    for (k, length) in lengths.iter().enumerate() {
        let row = &hidden[k * 9 * CHANNELS..][..9 * CHANNELS];
        let (padding, tokens) = row.split_at((9 - length) * CHANNELS);
        assert!(padding.iter().all(|element| *element == -7.0));
        assert_same_bits(tokens, &floats(outputs.sequence(0, k)), "tokens at the end");
    }

    // Both kinds of batches may follow each other.
    sequences[0].push(&mut batch).expect("in contract");
    assert_eq!(batch.offsets(), [0, 3, 4, 13, 16]);
    inputs[3] = TensorRef::new(&[CHANNELS], &[0.5_f32; CHANNELS]).expect("sized");
    let error = batch.push_padded(&padded.tokens(), &inputs).expect_err("another scale").to_string();
    assert!(error.contains("share `scale`"), "{error}");
}

fn floats_of_ints(batch: &RaggedBatch, idx: usize) -> Vec<i64> {
    batch.inputs()[idx].elems::<i64>().expect("integers").to_vec()
}

#[test]
fn malformed_sequences_are_refused_by_name_and_leave_the_batch() {
    let model = ragged(&encoder_of_many_ports(), &RaggedRequest::along("S").mask("mask").max_rows(50));
    let mut batch = RaggedBatch::new(&model).expect("a ragged batch");
    Sequence::new(0, 5).push(&mut batch).expect("in contract");

    let refused = |batch: &mut RaggedBatch, inputs: &[TensorRef<'_>]| {
        batch.push(inputs).expect_err("malformed").to_string()
    };
    let ids = [1_i64; 40];
    let bias = [0_f32; CHANNELS];
    let ids_of = |length: usize| TensorRef::new(&[length], &ids[..length]).expect("sized");
    let positions_shape = [[1, 4], [1, 5]];
    let positions_of = |k: usize| TensorRef::new(&positions_shape[k], &ids[..4 + k]).expect("sized");
    let bias = TensorRef::new(&[1, CHANNELS], &bias).expect("sized");
    let scale = TensorRef::new(&[CHANNELS], &SCALE).expect("sized");
    let cases: [(Vec<TensorRef<'_>>, &str); 6] = [
        (vec![ids_of(4), positions_of(0), bias], "got 3 inputs; the model has 4"),
        (vec![ids_of(4), positions_of(1), bias, scale], "axis 1 of `positions` is 5; expected 4"),
        (vec![scale, positions_of(0), bias, scale], "`ids` has elements of type i64"),
        (vec![positions_of(0), positions_of(0), bias, scale], "`ids` has 1 axes; got 2"),
        (
            vec![ids_of(4), positions_of(0), TensorRef::new(&[2, 8], &SCALE).expect("sized"), scale],
            "axis 0 of `bias` is 2",
        ),
        (
            vec![ids_of(0), TensorRef::new(&[1, 0], &ids[..0]).expect("empty"), bias, scale],
            "sequence 1 has 0 rows; S is declared",
        ),
    ];
    for (inputs, words) in cases {
        let error = refused(&mut batch, &inputs);
        assert!(error.contains(words), "{error}");
    }
    let error = Sequence::new(1, MAX_LENGTH as usize + 1).push(&mut batch).expect_err("too long").to_string();
    assert!(error.contains("sequence 1 has 38 rows"), "{error}");
    Sequence::new(1, 37).push(&mut batch).expect("in contract");
    let error = Sequence::new(2, 9).push(&mut batch).expect_err("too many rows").to_string();
    assert!(error.contains("T = 51; T is declared 1..=50"), "{error}");
    for _ in 2..MAX_SEQUENCES {
        Sequence::new(2, 1).push(&mut batch).expect("in contract");
    }
    let error = Sequence::new(2, 1).push(&mut batch).expect_err("too many sequences").to_string();
    assert!(error.contains("N = 6; N is declared 1..=5"), "{error}");
    assert_eq!(batch.offsets(), [0, 5, 42, 43, 44, 45]);

    // The batch runs as if nothing had been refused.
    let mut context = Context::new(&model).expect("memory");
    let outputs = context.run_ragged(&batch).expect("in contract");
    let together = floats(outputs.sequence(0, 0));
    batch.clear();
    Sequence::new(0, 5).push(&mut batch).expect("in contract");
    let outputs = context.run_ragged(&batch).expect("in contract");
    assert_same_bits(&together, &floats(outputs.sequence(0, 0)), "alone");

    let plain = Pipeline::new(&encoder_of_many_ports()).jit().expect("supported");
    let error = RaggedBatch::new(&plain).expect_err("a dense model").to_string();
    assert!(error.contains("takes no ragged batch"), "{error}");
}

/// `y = x * scale` with `x: [N, S]` and a scalar.
fn scaled_by_a_scalar() -> Graph {
    let build = || -> symshape_compiler::Result<Graph> {
        let mut g = graph("scaled", &[("N", 1, MAX_SEQUENCES), ("S", 1, MAX_LENGTH)]);
        let x = g.input("x", DType::F32, vec![Dim::symbol("N"), Dim::symbol("S")])?;
        let scale = g.input("scale", DType::F32, vec![])?;
        let [x, scale] = g.broadcast(&[x, scale])?[..] else { unreachable!() };
        let y = g.mul(x, scale)?;
        g.output("y", y)?;
        Ok(g)
    };
    build().expect("a valid graph")
}

#[test]
fn sequences_share_a_scalar() {
    let model = ragged(&scaled_by_a_scalar(), &RaggedRequest::along("S"));
    let mut context = Context::new(&model).expect("memory");
    let mut batch = RaggedBatch::new(&model).expect("a ragged batch");
    let empty: Vec<Vec<usize>> = batch.inputs().iter().map(|input| input.shape().to_vec()).collect();
    assert_eq!(empty, [vec![0], vec![], vec![1]]);
    context.run_ragged(&batch).map(|_| ()).expect_err("no sequences");

    let x = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let scale = |value: &'static [f32; 1]| TensorRef::new(&[], value).expect("sized");
    for round in 0..2 {
        batch.clear();
        batch.push(&[TensorRef::new(&[2], &x[..2]).expect("sized"), scale(&[2.0])]).expect("in contract");
        let rest = TensorRef::new(&[1], &x[2..3]).expect("sized");
        batch.push(&[rest, scale(&[2.0])]).expect("in contract");
        let error = batch.push(&[rest, scale(&[3.0])]).expect_err("another scale").to_string();
        assert!(error.contains("share `scale`"), "{error}");
        let padded = TensorRef::new(&[1, 3], &x[3..]).expect("sized");
        let tokens = Tokens::of_lengths(&[3 - round], 3).expect("in the row");
        batch.push_padded(&tokens, &[padded, scale(&[2.0])]).expect("in contract");
        let outputs = context.run_ragged(&batch).expect("in contract");
        let expected: Vec<f32> = x[..6 - round].iter().map(|element| 2.0 * element).collect();
        assert_eq!(floats(outputs.all().get(0)), expected);
    }
}
