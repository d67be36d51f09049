//! Weights of few bits in WebAssembly: the vectors of a module compute the graph.

use super::{
    DEEP, LAYERS, MAX_ROWS, floats,
    rounded::{input, rounded},
};
use crate::{models, web::program};
use symshape::Dim;
use symshape_compiler::{
    emit::web::{WasmCompiler, WasmLevel},
    graph::{self, Graph},
    tensor::Tensor,
};
use symshape_runtime::DType;

fn assert_computes(case: &str, graph: &Graph, compiler: &WasmCompiler) {
    let program = program(graph, compiler, WasmLevel::Simd128);
    for rows in [1, 2, 3, MAX_ROWS - 1, MAX_ROWS] {
        let inputs = models::inputs(graph, &[rows]);
        let want = graph::eval::eval(graph, &inputs).expect("an oracle");
        program.assert_gives(&format!("{case}, {rows} rows"), &inputs, &want);
    }
}

#[test]
#[ignore = "needs a C compiler for wasm32 and Node"]
fn modules_multiply_weights_of_few_bits() {
    let compiler = WasmCompiler::find(WasmLevel::Simd128).expect("a C compiler for wasm32");
    for layer in LAYERS {
        assert_computes(&format!("{layer:?}"), &layer.of_few_bits(), &compiler);
    }
}

/// Rows that are not dense: the reduction has two axes, or their elements are a column apart.
#[test]
#[ignore = "needs a C compiler for wasm32 and Node"]
fn modules_multiply_rows_that_are_not_dense() {
    let compiler = WasmCompiler::find(WasmLevel::Simd128).expect("a C compiler for wasm32");
    for layer in LAYERS.into_iter().filter(|layer| layer.k % 2 == 0) {
        let mut g = models::graph("turned", &[("M", 1, MAX_ROWS)]);
        let shape = vec![(layer.k as i64).into(), Dim::symbol("M")];
        let x = g.input("x", DType::F32, shape).expect("an input");
        let x = g.transpose(x, &[1, 0]).expect("a view");
        let w = layer.stored(&mut g).expect("weights");
        let y = g.matmul(x, w).expect("a product");
        g.output("y", y).expect("an output");
        assert_computes(&format!("columns, {layer:?}"), &g, &compiler);
    }
}

#[test]
#[ignore = "needs a C compiler for wasm32 and Node"]
fn modules_multiply_rounded_rows() {
    let compiler = WasmCompiler::find(WasmLevel::Simd128).expect("a C compiler for wasm32");
    for layer in LAYERS.into_iter().chain([DEEP[1], DEEP[3]]) {
        let graph = rounded(&layer.of_few_bits());
        let program = program(&graph, &compiler, WasmLevel::Simd128);
        for rows in [1, 2, 3, MAX_ROWS as usize] {
            let inputs = [input(layer.k, rows, 5)];
            let want = graph::eval::eval(&graph, &inputs).expect("an oracle");
            program.assert_gives(&format!("{layer:?}, {rows} rows"), &inputs, &want);
        }

        // A block with such a number makes its row NaN, and no other.
        for bad in [f32::INFINITY, f32::NAN] {
            let mut x = floats(&input(layer.k, 3, 5));
            x[layer.k + layer.k / 2] = bad;
            let inputs = [Tensor::from_f32(vec![3, layer.k], &x).expect("whole rows")];
            let want = graph::eval::eval(&graph, &inputs).expect("an oracle");
            program.assert_gives(&format!("{layer:?} with {bad}"), &inputs, &want);
        }
    }
}
