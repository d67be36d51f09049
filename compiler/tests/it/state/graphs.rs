//! Graphs with state.

use crate::models::{graph, weights};
use symshape::Dim;
use symshape_compiler::{
    Result,
    graph::{Graph, Value},
    scalar::ReduceOp,
};
use symshape_runtime::DType;

fn sym(name: &str) -> Dim {
    Dim::symbol(name)
}

/// Attention of four query heads and two key heads of 8 over a past of `P` rows and `S` new ones.
pub(super) fn decoder(max_step: i64, max_past: i64) -> Graph {
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
