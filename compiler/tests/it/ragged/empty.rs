//! Sequences without tokens, which a range from 0 allows.

use super::{
    graphs::{CHANNELS, FORMS, MAX_LENGTH, MAX_SEQUENCES, embedded, layer},
    session::Session,
};
use crate::{bits::assert_same_bits, models::graph};
use symshape::Dim;
use symshape_compiler::{RaggedRequest, Result, graph::Graph, scalar::ReduceOp};
use symshape_runtime::DType;

/// A layer, with the hidden values and the sum of the tokens as outputs.
fn encoder() -> Graph {
    let build = || -> Result<Graph> {
        let mut g = graph("empty", &[("N", 1, MAX_SEQUENCES), ("S", 0, MAX_LENGTH)]);
        let shape = vec![Dim::symbol("N"), Dim::symbol("S")];
        let ids = g.input("ids", DType::I64, shape.clone())?;
        let mask = g.input("mask", DType::I64, shape)?;
        let x = embedded(&mut g, ids)?;
        let x = layer(&mut g, x, mask, FORMS[0], 10)?;
        let kept = g.cast(DType::F32, mask)?;
        let kept = g.unsqueeze(kept, &[2])?;
        let [kept, tokens] = g.broadcast(&[kept, x])?[..] else { unreachable!() };
        let tokens = g.mul(tokens, kept)?;
        let sum = g.reduce(ReduceOp::Sum, tokens, &[1], false)?;
        g.output("hidden", x)?;
        g.output("sum", sum)?;
        Ok(g)
    };
    build().expect("a valid graph")
}

#[test]
fn sequences_without_tokens_leave_the_others_as_they_are() {
    let mut session = Session::new(&encoder(), &RaggedRequest::along("S"));
    let most = MAX_LENGTH as usize;
    for lengths in
        [vec![0, 3], vec![3, 0, 2], vec![0, most, 0], vec![0, 0, 1, 0, 0], vec![most, 0, 0, 0, most]]
    {
        let sequences: Vec<(usize, usize)> = lengths.iter().copied().enumerate().collect();
        let together = session.call(&sequences);
        let mut row = 0;
        for (number, length) in sequences {
            let sum = &together[1][number * CHANNELS..][..CHANNELS];
            if length == 0 {
                assert!(sum.iter().all(|elem| *elem == 0.0), "{lengths:?}: {sum:?}");
                continue;
            }
            let alone = session.call(&[(number, length)]);
            let hidden = &together[0][row * CHANNELS..][..length * CHANNELS];
            assert_same_bits(hidden, &alone[0], format!("{lengths:?}: hidden of {number}"));
            assert_same_bits(sum, &alone[1], format!("{lengths:?}: sum of {number}"));
            row += length;
        }
    }
    let error = session.call_with(&[], &[0, 0, 0]).expect_err("no row").to_string();
    assert!(error.contains("T = 0"), "{error}");
}
