//! Convolutions and poolings along the sequence: windows contain padding, which has the value that they are padded with.

use super::{
    graphs::{CHANNELS, FORMS, embedded, layer, padded},
    session::{Session, cases},
};
use crate::models::weights;
use symshape::Dim;
use symshape_compiler::{
    RaggedRequest, Result,
    graph::{Graph, Value},
    pipeline::Pipeline,
    scalar::{ReduceOp, Scalar},
};
use symshape_runtime::DType;

/// `x` where the mask is 1, and `far` at padding.
fn masked(g: &mut Graph, x: Value, mask: Value, far: f32) -> Result<Value> {
    let kept = g.cast(DType::Bool, mask)?;
    let kept = g.unsqueeze(kept, &[2])?;
    let far = g.scalar(Scalar::f32(far))?;
    let [kept, x, far] = g.broadcast(&[kept, x, far])?[..] else { unreachable!() };
    g.select(kept, x, far)
}

/// The windows of `[N, S, CHANNELS]` along `S`, `[N, S, CHANNELS, width]`, after `sides` positions of `far` are added.
fn windows(g: &mut Graph, x: Value, sides: [i64; 2], far: f32, width: i64, dilation: i64) -> Result<Value> {
    let lo = [0.into(), sides[0].into(), 0.into()];
    let hi = [0.into(), sides[1].into(), 0.into()];
    let x = g.pad(x, &lo, &hi, Scalar::f32(far))?;
    g.window(x, &[1], &[width], &[1], &[dilation])
}

/// A convolution of the tokens, of which padding is 0, and of its neighbours.
fn convolution(
    g: &mut Graph,
    x: Value,
    mask: Value,
    sides: [i64; 2],
    dilation: i64,
    seed: u32,
) -> Result<Value> {
    let x = masked(g, x, mask, 0.0)?;
    let width = (sides[0] + sides[1]) / dilation + 1;
    let windows = windows(g, x, sides, 0.0, width, dilation)?;
    let filters = g.constant(weights(&[CHANNELS, CHANNELS, width as usize], seed))?;
    let sums = g.contract(windows, b"nsck", filters, b"dck", b"nsd")?;
    g.tanh(sums)
}

/// A padded graph with one output, which `output` makes of embedded tokens.
fn graph(output: impl Fn(&mut Graph, Value, Value) -> Result<Value>) -> Graph {
    let build = || -> Result<Graph> {
        let (mut g, ids, mask) = padded("convolution")?;
        let x = embedded(&mut g, ids)?;
        let y = output(&mut g, x, mask)?;
        g.output("hidden", y)?;
        Ok(g)
    };
    build().expect("a valid graph")
}

#[test]
fn masked_windows_have_the_bits_and_the_values_of_each_sequence() {
    let graphs = [
        graph(|g, x, mask| convolution(g, x, mask, [1, 1], 1, 3)),
        graph(|g, x, mask| {
            let x = convolution(g, x, mask, [2, 0], 1, 3)?;
            convolution(g, x, mask, [4, 4], 2, 4)
        }),
        graph(|g, x, mask| {
            let x = convolution(g, x, mask, [0, 5], 1, 3)?;
            layer(g, x, mask, FORMS[0], 10)
        }),
        graph(|g, x, mask| {
            let x = layer(g, x, mask, FORMS[2], 10)?;
            let x = masked(g, x, mask, f32::NEG_INFINITY)?;
            let windows = windows(g, x, [1, 1], f32::NEG_INFINITY, 3, 1)?;
            g.reduce(ReduceOp::Max, windows, &[3], false)
        }),
        // A residual of the next token, where padding and the end are 7.
        graph(|g, x, mask| {
            let filled = masked(g, x, mask, 7.0)?;
            let lo = [0.into(), 0.into(), 0.into()];
            let hi = [0.into(), 1.into(), 0.into()];
            let next = g.pad(filled, &lo, &hi, Scalar::f32(7.0))?;
            let next = g.slice(next, 1, 1.into(), Dim::symbol("S"), 1)?;
            g.add(x, next)
        }),
    ];
    for graph in graphs {
        let mut session = Session::new(&graph, &RaggedRequest::along("S").mask("mask"));
        for lengths in cases() {
            [1, 2].iter().for_each(|threads| session.compare(&lengths, *threads));
        }
    }
}

#[test]
fn windows_that_contain_other_padding_are_refused() {
    let refused = |graph: Graph, words: &str| {
        let lowered = Pipeline::new(&graph).ragged(RaggedRequest::along("S").mask("mask")).lower();
        let error = lowered.map(|_| ()).expect_err("padding reaches the output").to_string();
        assert!(error.contains(words), "{error}");
    };
    let sums = |g: &mut Graph, windows: Value| g.reduce(ReduceOp::Sum, windows, &[3], false);

    let unmasked = graph(|g, x, _| {
        let windows = windows(g, x, [1, 1], 0.0, 3, 1)?;
        sums(g, windows)
    });
    refused(unmasked, "adds positions of 0.0 to the axis of the tokens, and padding is not masked by 0.0");
    let other_value = graph(|g, x, mask| {
        let x = masked(g, x, mask, 1.0)?;
        let windows = windows(g, x, [1, 1], 0.0, 3, 1)?;
        sums(g, windows)
    });
    refused(other_value, "padding is not masked by 0.0");
    // The second convolution has no mask.
    let second = graph(|g, x, mask| {
        let x = convolution(g, x, mask, [1, 1], 1, 3)?;
        let windows = windows(g, x, [1, 1], 0.0, 3, 1)?;
        sums(g, windows)
    });
    refused(second, "padding is not masked by 0.0");

    // The number of positions in each window: in a batch, the last token has a neighbour.
    let counted = graph(|g, x, _| {
        let one = g.scalar(Scalar::f32(1.0))?;
        let ones = g.broadcast_to(one, &[1.into(), Dim::symbol("S"), 1.into()])?;
        let windows = windows(g, ones, [1, 1], 0.0, 3, 1)?;
        let count = sums(g, windows)?;
        let [x, count] = g.broadcast(&[x, count])?[..] else { unreachable!() };
        g.div(x, count)
    });
    refused(counted, "it adds positions after an axis of the size S");

    let masked_and_padded = |g: &mut Graph, x: Value, mask: Value| -> Result<Value> {
        let x = masked(g, x, mask, 0.0)?;
        g.pad(x, &[0.into(), 1.into(), 0.into()], &[0.into(), 1.into(), 0.into()], Scalar::f32(0.0))
    };
    // The neighbours of the last position of the padded length.
    let from_the_end = graph(move |g, x, mask| {
        let padded = masked_and_padded(g, x, mask)?;
        let turned = g.reverse(padded, 1)?;
        g.slice(turned, 1, 1.into(), Dim::symbol("S"), 1)
    });
    refused(from_the_end, "padded sizes");
    // The last position is not a token of every sequence.
    let all_but_one = graph(move |g, x, mask| {
        let padded = masked_and_padded(g, x, mask)?;
        let most = g.slice(padded, 1, 1.into(), Dim::symbol("S") - 1, 1)?;
        let sum = g.reduce(ReduceOp::Sum, most, &[1], true)?;
        let [x, sum] = g.broadcast(&[x, sum])?[..] else { unreachable!() };
        g.add(x, sum)
    });
    refused(all_but_one, "positions that were added");
}
