//! Contractions of types without accumulators run as strips, with the bits of scalar loops.

use crate::{machine::Machine, models};

use symshape_compiler::{
    codegen,
    graph::{self, Graph},
    pipeline::{Lowered, Pipeline},
    tensor::Tensor,
};

/// Graphs over elements of this type.
fn graphs(ty: &str) -> Vec<String> {
    let graph = |symbols: &str, rest: &str| format!("graph g {{\n{symbols}\n{rest}\n}}").replace("TY", ty);
    vec![
        graph(
            "symbol N = 1..40",
            "input x: TY[N, 23]
            %0 = const TY[23, 37] random 1
            %1 = contraction TY [mk, kn -> mn] x, %0
            output y = %1",
        ),
        graph(
            "symbol B = 1..3\nsymbol M = 1..9\nsymbol K = 0..21\nsymbol N = 1..35",
            "input x: TY[B, M, K]
            input z: TY[B, N, K]
            %0 = contraction TY [bmk, bnk -> bmn] x, z
            %1 = add %0, %0
            output y = %1",
        ),
        // The rows are strips, because there are few columns.
        graph(
            "symbol M = 1..70",
            "input x: TY[M, 5, 7]
            %0 = const TY[5, 7, 3] random 1
            %1 = contraction TY [mkl, kln -> mn] x, %0
            output y = %1",
        ),
        // Rows of a table are added to the sums.
        graph(
            "symbol M = 1..20",
            "input x: TY[M, 12]
            input ids: i64[M]
            %0 = const TY[12, 33] random 1
            %1 = contraction TY [mk, kn -> mn] x, %0
            %2 = const TY[5, 33] random 2
            %3 = gather [M, 33] [@1[$0], $1] %2, ids
            %4 = add %1, %3
            output y = %4",
        ),
    ]
}

fn parsed(text: &str) -> Graph {
    graph::text::parse(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn sums_have_the_bits_of_scalar_loops() {
    for ty in ["f64", "i32", "i64"] {
        for text in graphs(ty) {
            let graph = parsed(&text);
            let lowered = Pipeline::new(&graph).lower().unwrap_or_else(|error| panic!("{text}: {error}"));
            let Lowered { program, plan, .. } = lowered;
            assert_eq!(codegen::scalar_loops(&program), [], "{program}");
            let [scalar, vectors] = [true, false].map(|scalar| {
                Machine::assemble(program.clone(), &plan, scalar).unwrap_or_else(|error| panic!("{error}"))
            });

            for dims in models::bindings(&graph) {
                let inputs = models::inputs(&graph, &dims);
                let raw: Vec<Vec<u8>> = inputs.iter().map(|tensor| tensor.bytes().to_vec()).collect();
                let got = vectors.run(&dims, &raw).expect("a run");
                assert!(got == scalar.run(&dims, &raw).expect("a run"), "{text} at {dims:?}");
                let expected = graph::eval::eval(&graph, &inputs).expect("a result");
                assert_near(&text, &expected[0], &got[0]);
            }
        }
    }
}

/// Asserts that integers are equal, and doubles equal but for rounding.
fn assert_near(text: &str, expected: &Tensor, got: &[u8]) {
    let width = expected.dtype().size_bytes();
    for (idx, bytes) in got.chunks_exact(width).enumerate() {
        let mut word = [0; 8];
        word[..width].copy_from_slice(bytes);
        let got = symshape_compiler::scalar::Scalar::from_bits(expected.dtype(), u64::from_le_bytes(word));
        let expected = expected.get(idx);
        let is_near = match expected.dtype().is_float() {
            true => (got.as_f64() - expected.as_f64()).abs() <= 1e-13 * (1.0 + expected.as_f64().abs()),
            false => got == expected,
        };
        assert!(is_near, "{text} [{idx}]: {got:?}, not {expected:?}");
    }
}
