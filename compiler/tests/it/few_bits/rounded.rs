//! Activations that are rounded to 8 bits by blocks of the weights.

use super::{
    DEEP, LAYERS, Layer, MAX_ROWS, Zeros, assert_close, compiled, floats, forms, levels, lowered, run,
};
use crate::bits::assert_same_bits;
use crate::foreign::Program as ForeignProgram;
use crate::models;

use symshape::Dim;
use symshape_compiler::{
    CompileOptions, Microkernels, emit,
    graph::{self, Graph},
    kernel,
    pipeline::{Artifact, Pipeline},
    quantise::round_activations,
    target::Target,
    tensor::Tensor,
};
use symshape_runtime::{DType, Model};

/// The graph of a layer with rounded activations.
pub(super) fn rounded(graph: &Graph) -> Graph {
    let rounded = round_activations(graph).expect("a valid graph");
    assert_eq!((rounded.summary.rounded, rounded.summary.products), (1, 1), "{}", rounded.graph);
    rounded.graph
}

/// Rows whose blocks have different ranges: some are zero, tiny or huge.
pub(super) fn input(k: usize, rows: usize, seed: u32) -> Tensor {
    let x = floats(&models::weights(&[rows, k], seed));
    let ranges = [1.0, 1e-3, 0.0, 3.0, 1e-35, 0.2];
    let ranged: Vec<f32> = x.iter().enumerate().map(|(idx, x)| x * ranges[idx / 8 % ranges.len()]).collect();
    Tensor::from_f32(vec![rows, k], &ranged).expect("all elements")
}

/// The definition, for weights `[k, n]` and one row.
fn defined(layer: Layer, x: &[f32]) -> Vec<f32> {
    let weights = floats(&layer.floats());
    let (k, n) = (layer.k, layer.n);
    let mut sums = vec![0.0f64; n];
    for first in (0..k).step_by(layer.block) {
        let block = &x[first..k.min(first + layer.block)];
        let largest = block.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        for (at, x) in block.iter().enumerate() {
            let code =
                if largest < 2f32.powi(-100) { 0.0 } else { (x * (127.0 / largest)).round_ties_even() };
            for (column, sum) in sums.iter_mut().enumerate() {
                *sum += f64::from(code)
                    * f64::from(largest / 127.0)
                    * f64::from(weights[(first + at) * n + column]);
            }
        }
    }
    sums.into_iter().map(|sum| sum as f32).collect()
}

#[test]
fn the_evaluator_follows_the_definition() {
    for layer in LAYERS {
        let graph = rounded(&layer.of_few_bits());
        let x = input(layer.k, 1, 3);
        let got = floats(&graph::eval::eval(&graph, std::slice::from_ref(&x)).expect("an oracle")[0]);
        let bias = floats(&models::weights(&[layer.n], 8));
        let sums = defined(layer, &floats(&x));
        let want: Vec<f32> = sums.iter().zip(bias).map(|(sum, bias)| (sum + bias).max(0.0)).collect();
        assert_close(&got, &want, &format!("{layer:?}"));

        let exact = floats(&graph::eval::eval(&layer.of_few_bits(), &[x]).expect("an oracle")[0]);
        // Weights of the smallest scales change nothing next to the bias.
        assert!(got != exact || layer.scale == DType::BF16, "{layer:?}: nothing is rounded");
    }
}

#[test]
fn every_way_to_run_computes_the_graph() {
    for layer in LAYERS {
        let graph = rounded(&layer.of_few_bits());
        let lowered = lowered(&graph);
        let found = forms(&lowered.program);
        assert!(found.len() == 1 && found[0].0.rounds_lhs, "{layer:?}: {found:?}");
        let native = compiled(&lowered, Microkernels::Native);
        let tiles = compiled(&lowered, Microkernels::EmulatedTiles);
        let loops = compiled(&lowered, Microkernels::ScalarLoops);
        for rows in [1, 2, 19, MAX_ROWS - 1, MAX_ROWS] {
            let x = input(layer.k, rows as usize, 5);
            let inputs = std::slice::from_ref(&x);
            let want = floats(&graph::eval::eval(&graph, inputs).expect("an oracle")[0]);
            for (name, model) in [("native", &native), ("tiles", &tiles), ("loops", &loops)] {
                assert_close(&run(model, 1, &x), &want, &format!("{name}, {layer:?}, {rows} rows"));
            }
            if rows <= 2 {
                let got = kernel::eval::eval(&lowered.program, &[rows], inputs).expect("it can be evaluated");
                assert_close(&floats(&got[0]), &want, &format!("kernels, {layer:?}"));
            }
        }
    }
}

#[test]
fn the_bits_of_a_row_depend_on_no_other_row_thread_or_level() {
    let folder = tempfile::tempdir().expect("a folder");
    for (idx, layer) in DEEP.into_iter().chain(LAYERS).enumerate() {
        let lowered = lowered(&rounded(&layer.of_few_bits()));
        let mut fused: Option<Vec<f32>> = None;
        for level in levels() {
            let target = Target::parse(None, Some(level.name())).expect("a level");
            let compiled = lowered.compile(&target, Artifact::Shared).expect("supported");
            let path = folder.path().join(format!("{idx}-{}.so", level.name()));
            emit::shared::shared(compiled.object, &[], &path).expect("a folder to write to");
            let model = Model::open(path).expect("an artefact");

            let all = floats(&input(layer.k, MAX_ROWS as usize, 7));
            let tensor = |rows: &[f32]| {
                Tensor::from_f32(vec![rows.len() / layer.k, layer.k], rows).expect("whole rows")
            };
            let alone: Vec<f32> = all.chunks(layer.k).flat_map(|row| run(&model, 1, &tensor(row))).collect();
            for rows in 1..=MAX_ROWS as usize {
                for threads in [1, 2] {
                    let got = run(&model, threads, &tensor(&all[..rows * layer.k]));
                    let at = format_args!("{}, {layer:?}, {rows} rows, {threads} threads", level.name());
                    assert_same_bits(&got, &alone[..rows * layer.n], at);
                }
            }

            // Machines without a fused multiply-add round scaled sums twice.
            if level.name() >= "x86-64-v3" {
                let want = fused.get_or_insert_with(|| alone.clone());
                assert_same_bits(&alone, want, format_args!("{}, {layer:?}", level.name()));
            }
        }
    }
}

#[test]
fn a_block_with_infinity_or_nan_makes_its_row_nan() {
    for layer in [LAYERS[0], LAYERS[7], DEEP[0]] {
        let graph = rounded(&layer.graph(|g| layer.stored(g)));
        let lowered = lowered(&graph);
        for microkernels in [Microkernels::Native, Microkernels::ScalarLoops] {
            let model = compiled(&lowered, microkernels);
            for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                let mut x = floats(&input(layer.k, 3, 5));
                x[layer.k + layer.k / 2] = bad;
                let tensor = Tensor::from_f32(vec![3, layer.k], &x).expect("whole rows");
                let got = run(&model, 1, &tensor);
                let want = floats(&graph::eval::eval(&graph, &[tensor]).expect("an oracle")[0]);
                for (idx, (got, want)) in got.iter().zip(&want).enumerate() {
                    assert_eq!(
                        got.is_nan(),
                        want.is_nan(),
                        "{layer:?} [{idx}] with {bad}: {got}, not {want}"
                    );
                    assert_eq!(got.is_nan(), idx / layer.n == 1, "{layer:?} [{idx}] with {bad}");
                }
            }
        }
    }
}

#[test]
fn source_in_c_computes_the_graph() {
    for layer in LAYERS {
        let graph = rounded(&layer.of_few_bits());
        let lowered =
            Pipeline::new(&graph).options(CompileOptions::for_c_source()).lower().expect("supported");
        let source = lowered.source("layer.h").expect("supported");
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("layer.h"), source.header).expect("a header");
        std::fs::write(folder.path().join("layer.c"), source.code).expect("a source");
        let program = ForeignProgram::compile(folder, "cc", &[], "layer", "layer.c");
        for rows in [1, 2, MAX_ROWS as usize] {
            let inputs = [input(layer.k, rows, 5)];
            let want = graph::eval::eval(&graph, &inputs).expect("an oracle");
            program.assert_gives(&format!("{layer:?}, {rows} rows"), &inputs, &want);
        }
    }
}

#[test]
fn rows_in_any_order_of_axes_are_rounded() {
    let layer = Layer { k: 96, n: 40, bits: 4, block: 32, zeros: Zeros::ByBlock, scale: DType::F16 };
    let heads = 6;
    // The rows lie with their reduction outside, or along two axes that are not adjacent.
    for is_transposed in [true, false] {
        let build = || {
            let mut g = models::graph("axes", &[("M", 1, MAX_ROWS)]);
            let m = Dim::symbol("M");
            let x = if is_transposed {
                let x = g.input("x", DType::F32, vec![layer.k.into(), m])?;
                g.transpose(x, &[1, 0])?
            } else {
                let x = g.input("x", DType::F32, vec![heads.into(), m.clone(), (layer.k / heads).into()])?;
                let x = g.transpose(x, &[1, 0, 2])?;
                g.reshape(x, vec![m, layer.k.into()])?
            };
            let w = layer.stored(&mut g)?;
            let y = g.matmul(x, w)?;
            let y = g.transpose(y, &[1, 0])?;
            g.output("y", y)?;
            Ok::<Graph, symshape_compiler::Error>(g)
        };
        let graph = rounded(&build().expect("a valid graph"));
        let lowered = lowered(&graph);
        let models = [Microkernels::Native, Microkernels::ScalarLoops].map(|form| compiled(&lowered, form));
        for rows in [1, 2, 7, MAX_ROWS] {
            let inputs = models::inputs(&graph, &[rows]);
            let want = floats(&graph::eval::eval(&graph, &inputs).expect("an oracle")[0]);
            for model in &models {
                assert_close(&run(model, 1, &inputs[0]), &want, &format!("{is_transposed}, {rows} rows"));
            }
            let got = kernel::eval::eval(&lowered.program, &[rows], &inputs).expect("it can be evaluated");
            assert_close(&floats(&got[0]), &want, "kernels");
        }
    }
}
