//! Graphs with state.

use crate::models::{graph, weights};
use symshape::Dim;
use symshape_compiler::{
    Result,
    graph::{Graph, Value, axis},
    scalar::{CompareOp, ReduceOp},
};
use symshape_runtime::DType;

fn sym(name: &str) -> Dim {
    Dim::symbol(name)
}

/// Attention of four query heads and two key heads of 8 over a past of `P` rows and `S` new ones.
pub(crate) fn decoder(max_step: i64, max_past: i64) -> Graph {
    let build = || -> Result<Graph> {
        let mut g = graph("decoder", &[("N", 1, 3), ("S", 1, max_step), ("P", 0, max_past)]);
        let x = g.input("x", DType::F32, vec![sym("N"), sym("S"), 16.into()])?;
        let bias = g.input("bias", DType::F32, vec![sym("N"), 1.into(), sym("S"), sym("P") + sym("S")])?;
        let past = |g: &mut Graph, name: &str| {
            g.input(name, DType::F32, vec![sym("N"), 2.into(), sym("P"), 8.into()])
        };
        let past_k = past(&mut g, "past_k")?;
        let past_v = past(&mut g, "past_v")?;

        let q = heads(&mut g, x, 4, 1)?;
        let new_k = heads(&mut g, x, 2, 2)?;
        let new_v = heads(&mut g, x, 2, 3)?;
        let k = g.concat(&[past_k, new_k], 2)?;
        let v = g.concat(&[past_v, new_v], 2)?;
        let repeated_k = repeated(&mut g, k)?;
        let repeated_v = repeated(&mut g, v)?;
        // As exporters write it: queries and keys are both scaled.
        let scale = g.number(DType::F32, 0.594_603_5)?;
        let q = g.mul(q, scale)?;
        let scaled_k = g.mul(repeated_k, scale)?;
        let turned = g.transpose(scaled_k, &[0, 1, 3, 2])?;
        let scores = g.matmul(q, turned)?;
        let [scores, bias] = g.broadcast(&[scores, bias])?[..] else { unreachable!() };
        let scores = g.add(scores, bias)?;
        let shares = g.softmax(scores, 3)?;
        let sums = g.matmul(shares, repeated_v)?;
        let y = g.transpose(sums, &[0, 2, 1, 3])?;
        g.output("y", y)?;
        g.output("present_k", k)?;
        g.output("present_v", v)?;
        Ok(g)
    };
    build().expect("a valid graph")
}

/// `[N, heads, S, 8]`, a projection of `x`.
fn heads(g: &mut Graph, x: Value, heads: i64, seed: u32) -> Result<Value> {
    let w = g.constant(weights(&[16, 8 * heads as usize], seed))?;
    let all = g.matmul(x, w)?;
    let shape = vec![sym("N"), sym("S"), heads.into(), 8.into()];
    let split = g.reshape(all, shape)?;
    g.transpose(split, &[0, 2, 1, 3])
}

/// Each head twice, as exporters of grouped attention write it.
fn repeated(g: &mut Graph, x: Value) -> Result<Value> {
    let rows = sym("P") + sym("S");
    let x = g.unsqueeze(x, &[2])?;
    let x = g.expand(x, &[sym("N"), 2.into(), 2.into(), rows.clone(), 8.into()])?;
    g.reshape(x, vec![sym("N"), 4.into(), rows, 8.into()])
}

/// A recurrent cell: `h_next = tanh(x*u + h*w)`, `y = sum(h_next)`.
pub(super) fn gated() -> Graph {
    let build = || -> Result<Graph> {
        let mut g = graph("gated", &[("N", 1, 8)]);
        let x = g.input("x", DType::F32, vec![sym("N"), 6.into()])?;
        let h = g.input("h", DType::F32, vec![sym("N"), 20.into()])?;
        let u = g.constant(weights(&[6, 20], 4))?;
        let w = g.constant(weights(&[20, 20], 5))?;
        let from_x = g.matmul(x, u)?;
        let from_h = g.matmul(h, w)?;
        let sum = g.add(from_x, from_h)?;
        let next = g.tanh(sum)?;
        let y = g.reduce(ReduceOp::Sum, next, &[1], false)?;
        g.output("y", y)?;
        g.output("h_next", next)?;
        Ok(g)
    };
    build().expect("a valid graph")
}

/// `a` and `b` change places, and `c` moves up by one element: every output is a view of another state.
pub(super) fn delays() -> Graph {
    let build = || -> Result<Graph> {
        let mut g = graph("delays", &[("N", 1, 4)]);
        let x = g.input("x", DType::F32, vec![sym("N"), 1.into()])?;
        let a = g.input("a", DType::F32, vec![sym("N"), 37.into()])?;
        let b = g.input("b", DType::F32, vec![sym("N"), 37.into()])?;
        let c = g.input("c", DType::F32, vec![sym("N"), 37.into()])?;
        let tail = g.slice(c, 1, 1.into(), 36.into(), 1)?;
        let moved = g.concat(&[tail, x], 1)?;
        let first = g.slice(c, 1, 0.into(), 1.into(), 1)?;
        let rest = g.slice(a, 1, 0.into(), 36.into(), 1)?;
        let pushed = g.concat(&[first, rest], 1)?;
        g.output("y", first)?;
        g.output("a_next", b)?;
        g.output("b_next", pushed)?;
        g.output("c_next", moved)?;
        Ok(g)
    };
    build().expect("a valid graph")
}

/// Rows of a history on the first axis, and the sum of each column.
pub(super) fn rows_first() -> Graph {
    let build = || -> Result<Graph> {
        let mut g = graph("rows_first", &[("S", 1, 5), ("P", 0, 15)]);
        let x = g.input("x", DType::F32, vec![sym("S"), 3.into()])?;
        let old = g.input("old", DType::F32, vec![sym("P"), 3.into()])?;
        let twice = g.add(x, x)?;
        let new = g.concat(&[old, twice], 0)?;
        let y = g.reduce(ReduceOp::Sum, new, &[0], false)?;
        g.output("y", y)?;
        g.output("new", new)?;
        Ok(g)
    };
    build().expect("a valid graph")
}

/// Two layers of attention with norms, an embedding, positions and a mask `[N, P + S]`, as exporters write decoders.
/// Positions and the causal part of the mask are computed from `P`, without the axis `N`.
pub(super) fn layered(max_batch: i64, max_step: i64, max_past: i64) -> Graph {
    let build = || -> Result<Graph> {
        let mut g = graph("layered", &[("N", 1, max_batch), ("S", 1, max_step), ("P", 0, max_past)]);
        let rows = sym("P") + sym("S");
        let ids = g.input("ids", DType::I64, vec![sym("N"), sym("S")])?;
        let mask = g.input("mask", DType::F32, vec![sym("N"), rows.clone()])?;
        let table = g.constant(weights(&[11, 16], 40))?;
        let mut x = g.gather(table, ids, 0)?;

        let causal = vec![sym("S"), rows.clone()];
        let distance = sym("P") + Dim::from(&axis(0)) - Dim::from(&axis(1));
        let distance = g.index(DType::I64, causal, distance)?;
        let zero = g.number(DType::I64, 0.0)?;
        let [distance, zero] = g.broadcast(&[distance, zero])?[..] else { unreachable!() };
        let is_visible = g.compare(CompareOp::Ge, distance, zero)?;
        let open = g.number(DType::F32, 0.0)?;
        let closed = g.number(DType::F32, f64::NEG_INFINITY)?;
        let [is_visible, open, closed] = g.broadcast(&[is_visible, open, closed])?[..] else {
            unreachable!()
        };
        let causal = g.select(is_visible, open, closed)?;
        let mask = g.unsqueeze(mask, &[1])?;
        let [mask, causal] = g.broadcast(&[mask, causal])?[..] else { unreachable!() };
        let bias = g.add(mask, causal)?;
        let bias = g.unsqueeze(bias, &[1])?;

        let position = g.index(DType::I64, vec![sym("S"), 1.into()], sym("P") + Dim::from(&axis(0)))?;
        let position = g.cast(DType::F32, position)?;
        let angle = g.sin(position)?;
        let mut presents = Vec::new();
        for layer in 0..2 {
            x = block(&mut g, x, angle, bias, layer, &mut presents)?;
        }
        let w = g.constant(weights(&[16, 24], 42))?;
        let y = g.matmul(x, w)?;
        g.output("y", y)?;
        for (name, value) in presents {
            g.output(&name, value)?;
        }
        Ok(g)
    };
    build().expect("a valid graph")
}

/// One layer: `x + attention(norm(x) + angle)`, then `x + relu(x)`. The keys are turned by the positions.
fn block(
    g: &mut Graph,
    x: Value,
    angle: Value,
    bias: Value,
    layer: u32,
    presents: &mut Vec<(String, Value)>,
) -> Result<Value> {
    let squares = g.mul(x, x)?;
    let mean = g.mean(squares, &[2], true)?;
    let [mean, wide] = g.broadcast(&[mean, x])?[..] else { unreachable!() };
    let root = g.sqrt(mean)?;
    let one = g.number(DType::F32, 1.0)?;
    let [root, one] = g.broadcast(&[root, one])?[..] else { unreachable!() };
    let root = g.add(root, one)?;
    let normed = g.div(wide, root)?;

    let q = heads(g, normed, 4, 10 * layer + 50)?;
    let k = heads(g, normed, 2, 10 * layer + 51)?;
    let v = heads(g, normed, 2, 10 * layer + 52)?;
    let [k, angle] = g.broadcast(&[k, angle])?[..] else { unreachable!() };
    let k = g.add(k, angle)?;
    let mut all = Vec::new();
    for (name, new) in [("key", k), ("value", v)] {
        let shape = vec![sym("N"), 2.into(), sym("P"), 8.into()];
        let past = g.input(&format!("past.{layer}.{name}"), DType::F32, shape)?;
        let present = g.concat(&[past, new], 2)?;
        presents.push((format!("present.{layer}.{name}"), present));
        all.push(repeated(g, present)?);
    }
    let turned = g.transpose(all[0], &[0, 1, 3, 2])?;
    let scores = g.matmul(q, turned)?;
    let [scores, bias] = g.broadcast(&[scores, bias])?[..] else { unreachable!() };
    let scores = g.add(scores, bias)?;
    let shares = g.softmax(scores, 3)?;
    let sums = g.matmul(shares, all[1])?;
    let sums = g.transpose(sums, &[0, 2, 1, 3])?;
    let sums = g.reshape(sums, vec![sym("N"), sym("S"), 32.into()])?;
    let w = g.constant(weights(&[32, 16], 10 * layer + 53))?;
    let attended = g.matmul(sums, w)?;
    let x = g.add(x, attended)?;
    let active = g.relu(x)?;
    g.add(x, active)
}
