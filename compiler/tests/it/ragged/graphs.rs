//! Padded encoders with a mask, in the forms that exporters write.

use crate::models::{dense, graph, weights};
use symshape::Dim;
use symshape_compiler::{
    Result,
    graph::{Graph, Value},
    scalar::{BinaryOp, CompareOp, ReduceOp, Scalar},
};
use symshape_runtime::DType;

pub(crate) const MAX_SEQUENCES: i64 = 5;
pub(crate) const MAX_LENGTH: i64 = 37;
const WIDTH: usize = 16;
const HEADS: i64 = 2;

/// How the mask reaches the scores of attention.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MaskForm {
    /// `(1 - mask) * constant` is added.
    Added(f64),
    /// `where(mask, score, -inf)`.
    Selected,
    /// `where(mask[key] and key >= query - 8, score, lowest)`.
    Windowed,
}

pub(crate) const FORMS: [MaskForm; 4] =
    [MaskForm::Added(f32::MIN as f64), MaskForm::Added(-10_000.0), MaskForm::Selected, MaskForm::Windowed];

fn sym(name: &str) -> Dim {
    Dim::symbol(name)
}

/// A symbolic batch of `ids` and `mask`.
pub(crate) fn padded(name: &str) -> Result<(Graph, Value, Value)> {
    let mut g = graph(name, &[("N", 1, MAX_SEQUENCES), ("S", 1, MAX_LENGTH)]);
    let shape = vec![sym("N"), sym("S")];
    let ids = g.input("ids", DType::I64, shape.clone())?;
    let mask = g.input("mask", DType::I64, shape)?;
    Ok((g, ids, mask))
}

/// Embeddings of tokens and of positions, `[N, S, WIDTH]`.
pub(crate) fn embedded(g: &mut Graph, ids: Value) -> Result<Value> {
    let table = g.constant(weights(&[50, WIDTH], 1))?;
    let tokens = g.gather(table, ids, 0)?;
    let positions = g.constant(weights(&[MAX_LENGTH as usize, WIDTH], 2))?;
    let number = g.index(DType::I64, vec![sym("S")], Dim::symbol("$0"))?;
    let positions = g.gather(positions, number, 0)?;
    let [tokens, positions] = g.broadcast(&[tokens, positions])?[..] else { unreachable!() };
    g.add(tokens, positions)
}

/// A number in the shape of `like`.
fn filled(g: &mut Graph, like: Value, value: Scalar) -> Result<Value> {
    let number = g.scalar(value)?;
    let shape = g.shape(like).to_vec();
    g.broadcast_to(number, &shape)
}

/// Scores with the mask of keys, `[N, HEADS, S, S]`.
fn masked(g: &mut Graph, scores: Value, mask: Value, form: MaskForm) -> Result<Value> {
    let keys = g.unsqueeze(mask, &[1, 2])?;
    match form {
        MaskForm::Added(far) => {
            let keys = g.cast(DType::F32, keys)?;
            let one = filled(g, keys, Scalar::f32(1.0))?;
            let inverse = g.sub(one, keys)?;
            let far = filled(g, inverse, Scalar::f32(far as f32))?;
            let bias = g.mul(inverse, far)?;
            let [scores, bias] = g.broadcast(&[scores, bias])?[..] else { unreachable!() };
            g.add(scores, bias)
        }
        MaskForm::Selected | MaskForm::Windowed => {
            let mut keys = g.cast(DType::Bool, keys)?;
            if matches!(form, MaskForm::Windowed) {
                let distance = Dim::symbol("$2") - Dim::symbol("$3");
                let shape = vec![1.into(), 1.into(), sym("S"), sym("S")];
                let distance = g.index(DType::I64, shape, distance)?;
                let near = filled(g, distance, Scalar::i64(8))?;
                let is_near = g.compare(CompareOp::Le, distance, near)?;
                let [a, b] = g.broadcast(&[keys, is_near])?[..] else { unreachable!() };
                keys = g.binary(BinaryOp::And, a, b)?;
            }
            // A query that is padding may see no key: with infinities its scores would not be numbers.
            let is_windowed = matches!(form, MaskForm::Windowed);
            let far = if is_windowed { f32::MIN } else { f32::NEG_INFINITY };
            let far = g.scalar(Scalar::f32(far))?;
            let [keys, scores, far] = g.broadcast(&[keys, scores, far])?[..] else { unreachable!() };
            g.select(keys, scores, far)
        }
    }
}

/// `[N, S, WIDTH]` as `[N, HEADS, S, WIDTH / HEADS]`.
fn heads(g: &mut Graph, x: Value, seed: u32) -> Result<Value> {
    let x = dense(g, x, WIDTH, WIDTH, seed)?;
    let x = g.reshape(x, vec![sym("N"), sym("S"), HEADS.into(), (WIDTH as i64 / HEADS).into()])?;
    g.transpose(x, &[0, 2, 1, 3])
}

/// A layer of attention and a feed-forward layer, both with a residual.
pub(crate) fn layer(g: &mut Graph, x: Value, mask: Value, form: MaskForm, seed: u32) -> Result<Value> {
    let q = heads(g, x, seed)?;
    let k = heads(g, x, seed + 2)?;
    let v = heads(g, x, seed + 4)?;
    let k = g.transpose(k, &[0, 1, 3, 2])?;
    let scores = g.matmul(q, k)?;
    let scores = masked(g, scores, mask, form)?;
    let shares = g.softmax(scores, 3)?;
    let sums = g.matmul(shares, v)?;
    let sums = g.transpose(sums, &[0, 2, 1, 3])?;
    let sums = g.reshape(sums, vec![sym("N"), sym("S"), WIDTH.into()])?;
    let sums = dense(g, sums, WIDTH, WIDTH, seed + 6)?;
    let x = g.add(x, sums)?;
    let wide = dense(g, x, WIDTH, 4 * WIDTH, seed + 8)?;
    let wide = g.tanh(wide)?;
    let narrow = dense(g, wide, 4 * WIDTH, WIDTH, seed + 10)?;
    g.add(x, narrow)
}

/// The mean of the tokens, `[N, WIDTH]`.
pub(crate) fn mean_of_tokens(g: &mut Graph, x: Value, mask: Value) -> Result<Value> {
    let mask = g.cast(DType::F32, mask)?;
    let count = g.reduce(ReduceOp::Sum, mask, &[1], true)?;
    let mask = g.unsqueeze(mask, &[2])?;
    let [x, mask] = g.broadcast(&[x, mask])?[..] else { unreachable!() };
    let kept = g.mul(x, mask)?;
    let sum = g.reduce(ReduceOp::Sum, kept, &[1], false)?;
    let [sum, count] = g.broadcast(&[sum, count])?[..] else { unreachable!() };
    g.div(sum, count)
}

/// Two layers, with the hidden values, their mean, and a classification of the first token as outputs.
pub(crate) fn encoder(form: MaskForm) -> Graph {
    let build = || -> Result<Graph> {
        let (mut g, ids, mask) = padded("encoder")?;
        let x = embedded(&mut g, ids)?;
        let x = layer(&mut g, x, mask, form, 10)?;
        let x = layer(&mut g, x, mask, form, 40)?;
        let mean = mean_of_tokens(&mut g, x, mask)?;
        let first = g.slice(x, 1, 0.into(), 1.into(), 1)?;
        let first = g.squeeze(first, &[1])?;
        let class = dense(&mut g, first, WIDTH, 3, 70)?;
        g.output("hidden", x)?;
        g.output("mean", mean)?;
        g.output("class", class)?;
        Ok(g)
    };
    build().expect("a valid graph")
}

/// Ports of all kinds: positions that all sequences share in the padded model, `[1, S]`; a bias for each sequence,
/// `[N, WIDTH]`; and a scale for all of them.
pub(crate) fn encoder_of_many_ports() -> Graph {
    let build = || -> Result<Graph> {
        let (mut g, ids, mask) = padded("ports")?;
        let positions = g.input("positions", DType::I64, vec![1.into(), sym("S")])?;
        let bias = g.input("bias", DType::F32, vec![sym("N"), WIDTH.into()])?;
        let scale = g.input("scale", DType::F32, vec![WIDTH.into()])?;

        let table = g.constant(weights(&[50, WIDTH], 1))?;
        let tokens = g.gather(table, ids, 0)?;
        let table = g.constant(weights(&[MAX_LENGTH as usize, WIDTH], 2))?;
        let places = g.gather(table, positions, 0)?;
        let [tokens, places] = g.broadcast(&[tokens, places])?[..] else { unreachable!() };
        let x = g.add(tokens, places)?;
        let x = layer(&mut g, x, mask, FORMS[0], 10)?;
        let [x, scale] = g.broadcast(&[x, scale])?[..] else { unreachable!() };
        let x = g.mul(x, scale)?;
        let bias = g.unsqueeze(bias, &[1])?;
        let [x, bias] = g.broadcast(&[x, bias])?[..] else { unreachable!() };
        let x = g.add(x, bias)?;
        let mean = mean_of_tokens(&mut g, x, mask)?;
        g.output("hidden", x)?;
        g.output("mean", mean)?;
        Ok(g)
    };
    build().expect("a valid graph")
}

pub(crate) const CHANNELS: usize = WIDTH;
