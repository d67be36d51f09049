//! Random padded encoders, at random lengths. `SYMSHAPE_RAGGED_CASES` sets their number.

use super::{
    graphs::{CHANNELS, FORMS, MAX_LENGTH, MAX_SEQUENCES, embedded, layer, mean_of_tokens, padded},
    session::Session,
};
use crate::{
    models::{dense, weights},
    random_cases::Random,
};
use symshape::Dim;
use symshape_compiler::{
    RaggedRequest, Result,
    graph::{Graph, Value},
    scalar::{ReduceOp, Scalar},
};
use symshape_runtime::DType;

/// Graphs without the variable `SYMSHAPE_RAGGED_CASES`.
const CASES: u32 = 10;
/// Batches of each graph.
const BATCHES: usize = 4;

/// The largest value of each channel among the tokens.
fn max_of_tokens(g: &mut Graph, x: Value, mask: Value) -> Result<Value> {
    let keys = g.cast(DType::Bool, mask)?;
    let keys = g.unsqueeze(keys, &[2])?;
    let far = g.scalar(Scalar::f32(f32::NEG_INFINITY))?;
    let [keys, x, far] = g.broadcast(&[keys, x, far])?[..] else { unreachable!() };
    let kept = g.select(keys, x, far)?;
    g.reduce(ReduceOp::Max, kept, &[1], false)
}

/// A gate for each sequence: its mean, through a layer, times each of its tokens.
fn gated(g: &mut Graph, x: Value, mask: Value, seed: u32) -> Result<Value> {
    let mean = mean_of_tokens(g, x, mask)?;
    let gate = dense(g, mean, CHANNELS, CHANNELS, seed)?;
    let gate = g.tanh(gate)?;
    let gate = g.unsqueeze(gate, &[1])?;
    let [x, gate] = g.broadcast(&[x, gate])?[..] else { unreachable!() };
    g.mul(x, gate)
}

/// Adds a row for the distance of each pair of positions, weighted by the tokens that are near.
fn relative(g: &mut Graph, x: Value, mask: Value, seed: u32) -> Result<Value> {
    let s = Dim::symbol("S");
    let distance = Dim::symbol("$1") - Dim::symbol("$0");
    let far = Dim::from(MAX_LENGTH - 1);
    let place = distance + far;
    let index = g.index(DType::I64, vec![s.clone(), s], place)?;
    let table = g.constant(weights(&[2 * MAX_LENGTH as usize, 1], seed))?;
    let bias = g.gather(table, index, 0)?;
    let bias = g.squeeze(bias, &[2])?;

    let mask = g.cast(DType::F32, mask)?;
    let mask = g.unsqueeze(mask, &[2])?;
    let [kept, mask] = g.broadcast(&[x, mask])?[..] else { unreachable!() };
    let kept = g.mul(kept, mask)?;
    let bias = g.unsqueeze(bias, &[0])?;
    let mixed = g.matmul(bias, kept)?;
    let mixed = g.tanh(mixed)?;
    g.add(x, mixed)
}

/// An encoder of up to three steps, with the outputs of all kinds.
fn random_encoder(random: &mut Random) -> Result<Graph> {
    let (mut g, ids, mask) = padded("random")?;
    let mut x = embedded(&mut g, ids)?;
    for step in 0..1 + random.below(3) {
        let seed = 100 * (step as u32 + 1);
        x = match random.below(5) {
            0 => gated(&mut g, x, mask, seed)?,
            1 => relative(&mut g, x, mask, seed)?,
            _ => layer(&mut g, x, mask, FORMS[random.below(FORMS.len())], seed)?,
        };
        // Scores must differ by much less than the numbers that mask them.
        x = g.tanh(x)?;
    }
    let pooled = match random.below(3) {
        0 => mean_of_tokens(&mut g, x, mask)?,
        1 => max_of_tokens(&mut g, x, mask)?,
        _ => {
            let first = g.slice(x, 1, 0.into(), 1.into(), 1)?;
            g.squeeze(first, &[1])?
        }
    };
    g.output("hidden", x)?;
    if random.below(4) > 0 {
        g.output("pooled", pooled)?;
    }
    Ok(g)
}

/// The number of graphs, where `default` is that without the variable.
pub(super) fn cases(default: u32) -> u32 {
    std::env::var("SYMSHAPE_RAGGED_CASES").map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn random_encoders_have_the_bits_of_each_sequence_and_the_values_of_the_padded_model() {
    for case in 0..cases(CASES) {
        let mut random = Random(case.into());
        let graph = random_encoder(&mut random).expect("a valid graph");
        let mut session = Session::new(&graph, &RaggedRequest::along("S").mask("mask"));
        for _ in 0..BATCHES {
            let count = 1 + random.below(MAX_SEQUENCES as usize);
            let longest = if random.below(2) == 0 { 4 } else { MAX_LENGTH as usize };
            let lengths: Vec<usize> = (0..count).map(|_| 1 + random.below(longest)).collect();
            session.compare(&lengths, 1 + random.below(3) as u32);
        }
    }
}
