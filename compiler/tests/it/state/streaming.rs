//! A streaming encoder: many tensors of state, all overwritten by each call.

use super::session::Session;
use crate::models::{dense, graph, weights};
use symshape::Dim;
use symshape_compiler::{
    Result, StateRequest,
    graph::{Graph, Value, axis},
    scalar::CompareOp,
};
use symshape_runtime::DType;

/// Frames of left context, channels, and taps of the convolutions.
const LEFT: i64 = 6;
const WIDTH: usize = 12;
const TAPS: i64 = 4;

/// An encoder of `layers` layers over chunks of `chunk` frames. Attention and convolutions look back into caches, which
/// keep the last frames; a counter for each stream hides the frames before its first one.
pub(super) fn encoder(chunk: i64, layers: usize) -> Graph {
    let build = || -> Result<Graph> {
        let mut g = graph("encoder", &[("N", 1, 8)]);
        let mut x = g.input("x", DType::F32, vec![Dim::symbol("N"), chunk.into(), (WIDTH as i64).into()])?;
        let read = g.input("processed_lens", DType::I64, vec![Dim::symbol("N")])?;
        let hidden = hidden(&mut g, read, chunk)?;

        for layer in 0..layers {
            x = attention(&mut g, x, hidden, layer, chunk)?;
            x = convolution(&mut g, x, layer, chunk)?;
        }
        g.output("y", x)?;
        let new = g.number(DType::I64, chunk as f64)?;
        let read = g.add(read, new)?;
        g.output("new_processed_lens", read)?;
        Ok(g)
    };
    build().expect("a valid graph")
}

/// `[N, 1, LEFT + chunk]`: whether a frame is older than the first one of its stream.
fn hidden(g: &mut Graph, read: Value, chunk: i64) -> Result<Value> {
    let age = Dim::from(LEFT - 1) - Dim::from(&axis(0));
    let age = g.index(DType::I64, vec![(LEFT + chunk).into()], age)?;
    let read = g.unsqueeze(read, &[1, 2])?;
    g.compare(CompareOp::Ge, age, read)
}

/// The frames of a cache and then those of `x`, along axis 1. The last ones become the new cache.
fn joined(g: &mut Graph, name: &str, x: Value, frames: i64, chunk: i64) -> Result<Value> {
    let mut shape = g.shape(x).to_vec();
    shape[1] = frames.into();
    let cache = g.input(name, DType::F32, shape)?;
    let all = g.concat(&[cache, x], 1)?;
    let last = g.slice(all, 1, chunk.into(), frames.into(), 1)?;
    g.output(&format!("new_{name}"), last)?;
    Ok(all)
}

fn attention(g: &mut Graph, x: Value, hidden: Value, layer: usize, chunk: i64) -> Result<Value> {
    let seed = 10 * layer as u32;
    let query = dense(g, x, WIDTH, WIDTH, seed)?;
    let key = dense(g, x, WIDTH, WIDTH, seed + 1)?;
    let value = dense(g, x, WIDTH, WIDTH, seed + 2)?;
    let keys = joined(g, &format!("cached_key_{layer}"), key, LEFT, chunk)?;
    let values = joined(g, &format!("cached_val_{layer}"), value, LEFT, chunk)?;

    let turned = g.transpose(keys, &[0, 2, 1])?;
    let scores = g.matmul(query, turned)?;
    let least = g.number(DType::F32, -1e4)?;
    let scores = g.select(hidden, least, scores)?;
    let shares = g.softmax(scores, 2)?;
    let seen = g.matmul(shares, values)?;
    g.add(x, seen)
}

/// A depthwise convolution over a gate, whose cache keeps the frames before the chunk.
fn convolution(g: &mut Graph, x: Value, layer: usize, chunk: i64) -> Result<Value> {
    let seed = 10 * layer as u32 + 5;
    let gate = dense(g, x, WIDTH, WIDTH, seed)?;
    let gate = g.tanh(gate)?;
    let gated = g.mul(x, gate)?;
    let all = joined(g, &format!("cached_conv_{layer}"), gated, TAPS - 1, chunk)?;

    let mut sum = x;
    for tap in 0..TAPS {
        let frames = g.slice(all, 1, tap.into(), chunk.into(), 1)?;
        let weight = g.constant(weights(&[WIDTH], seed + 1 + tap as u32))?;
        let product = g.mul(frames, weight)?;
        sum = g.add(sum, product)?;
    }
    Ok(sum)
}

#[test]
fn streams_equal_those_with_carried_caches() {
    // Chunks that are shorter than the caches, as long, and longer.
    for chunk in [1, 3, 6, 9] {
        let graph = encoder(chunk, 3);
        for streams in [1, 2, 7, 8] {
            let mut session = Session::new(&graph, &StateRequest::find(), streams, 0);
            assert_eq!(session.model().state().len(), 10, "three caches a layer, and the counter");
            (0..6).for_each(|_| session.step(0));
        }
    }
}

#[test]
fn a_reset_stream_begins_anew() {
    let mut session = Session::new(&encoder(3, 2), &StateRequest::find(), 2, 0);
    let start = session.past();
    let fork = session.state.fork().expect("memory");
    (0..3).for_each(|_| session.step(0));
    let mut state = std::mem::replace(&mut session.state, fork);
    state.reset();
    session.replace(state, start);
    (0..3).for_each(|_| session.step(0));
}
