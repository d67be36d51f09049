//! Attention whose query heads share keys and values, against the evaluator.

use crate::machine::Machine;
use symshape_compiler::{
    graph::{self, Graph, text, verify},
    kernel,
    pipeline::{Lowered, Pipeline},
    tensor::Tensor,
};

/// The order of the axes of the result is free: `stored` is that of the groups and the tokens.
fn model(stored: &str, shape: &str) -> Graph {
    let source = format!(
        "graph grouped_attention {{
          symbol S = 1..60
          symbol T = 1..1100
          input q: f32[S, 2, 3, 64]
          input k: f32[2, T, 64]
          input v: f32[2, T, 64]
          input mask: f32[S, T]
          %0 = contraction f32 [shgd, htd -> hgst] q, k
          %1 = view [2, 3, S, T] [$2, $3] mask
          %2 = add %0, %1
          %3 = reduce max [3] %2
          %4 = view [2, 3, S, T] [$0, $1, $2] %3
          %5 = sub %2, %4
          %6 = exp %5
          %7 = reduce sum [3] %6
          %8 = view [2, 3, S, T] [$0, $1, $2] %7
          %9 = div %6, %8
          %10 = contraction f32 [hgst, htd -> {stored}] %9, v
          %11 = view [{shape}] [$0, $1, $2, $3] %10
          output y = %11
        }}"
    );
    let graph = text::parse(&source).unwrap_or_else(|error| panic!("{error}"));
    verify::verify(&graph).unwrap_or_else(|error| panic!("{error}"));
    graph
}

fn floats(shape: &[usize], seed: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let elems: Vec<f32> = (0..count).map(|i| ((i * 7 + seed) as f32 * 0.37).sin()).collect();
    Tensor::from_f32(shape.to_vec(), &elems).expect("as many as the shape")
}

fn as_floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
}

/// One block of rows and several, one block of columns and several, and each row alone.
#[test]
fn grouped_attention_agrees_with_the_evaluator() {
    for (stored, shape) in [("shgd", "S, 2, 3, 64"), ("hgsd", "2, 3, S, 64")] {
        let graph = model(stored, shape);
        let Lowered { program, plan, .. } =
            Pipeline::new(&graph).lower().unwrap_or_else(|error| panic!("{error}"));
        let unproven = kernel::verify::verify(&program).unwrap_or_else(|error| panic!("{error}"));
        assert!(unproven.is_empty(), "{unproven:?}\n{program}");
        assert_eq!(program.kernels.len(), 1, "the kernels are fused: {program}");
        let machine = Machine::assemble(program, &plan, false).expect("machine code");

        for [s, t] in [[1, 1], [1, 2], [1, 1100], [2, 129], [15, 127], [16, 300], [17, 1099], [60, 257]] {
            let inputs = [
                floats(&[s, 2, 3, 64], 1),
                floats(&[2, t, 64], 2),
                floats(&[2, t, 64], 3),
                floats(&[s, t], 4),
            ];
            let bytes: Vec<Vec<u8>> = inputs.iter().map(|tensor| tensor.bytes().to_vec()).collect();
            let want = graph::eval::eval(&graph, &inputs).unwrap_or_else(|error| panic!("{error}"));
            let got = machine.run(&[s as i64, t as i64], &bytes).expect("a call");
            for (a, b) in as_floats(&got[0]).into_iter().zip(as_floats(want[0].bytes())) {
                assert!((a - b).abs() <= 1e-5, "{a}, not {b}, at {s} rows and {t} columns");
            }
        }
    }
}
