//! Matrices of bf16 on aarch64, against the definition of the precision, in an emulator.
//!
//! The instruction rounds sums toward odd, so the last bit of a sum may differ from that of the evaluator. Needs the
//! packages of `cross.rs`.

use crate::foreign::Program;
use crate::models;
use crate::networks;

use symshape::Dim;
use symshape_compiler::{
    CompileOptions, Result,
    graph::{self, Graph},
    opt,
    pipeline::{Artifact, Pipeline},
    scalar::Precision,
    target::Target,
    tensor::Tensor,
};
use symshape_runtime::DType;

const TRIPLE: &str = "aarch64-unknown-linux-gnu";
const COMPILER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: [&str; 3] = ["qemu-aarch64", "-cpu", "max"];

/// The fixed bits of `bfmmla`, and a mask of them.
const BFMMLA: (u32, u32) = (0x6e40_ec00, 0xffe0_fc00);

/// A product of `M` rows and a constant, with a bias and a maximum.
fn dense(k: usize, n: usize) -> Result<Graph> {
    let mut g = models::graph("dense", &[("M", 1, 40)]);
    let x = g.input("x", DType::F32, vec![Dim::symbol("M"), Dim::from(k as i64)])?;
    let y = models::dense(&mut g, x, k, n, 3)?;
    let y = g.relu(y)?;
    g.output("y", y)?;
    Ok(g)
}

/// A product of two inputs.
fn product() -> Result<Graph> {
    let mut g = models::graph("product", &[("M", 1, 70), ("K", 1, 70), ("J", 1, 100)]);
    let x = g.input("x", DType::F32, ["M", "K"].map(Dim::symbol).into())?;
    let y = g.input("y", DType::F32, ["K", "J"].map(Dim::symbol).into())?;
    let z = g.matmul(x, y)?;
    g.output("z", z)?;
    Ok(g)
}

/// Two convolutions of an image whose sides are symbols.
fn convolutions() -> Result<Graph> {
    let mut g = models::graph("convolutions", &[("N", 1, 3), ("H", 3, 11), ("W", 2, 13)]);
    let shape = vec![Dim::symbol("N"), 3.into(), Dim::symbol("H"), Dim::symbol("W")];
    let x = g.input("x", DType::F32, shape)?;
    let y = models::conv(&mut g, x, [3, 24], 3, 1, 5)?;
    let y = g.relu(y)?;
    let y = models::conv(&mut g, y, [24, 40], 3, 2, 9)?;
    g.output("y", y)?;
    Ok(g)
}

/// The program of a graph, and the number of its `bfmmla`.
fn program(graph: &Graph, levels: &str, emulator: &[&str]) -> (Program, usize) {
    let target = Target::parse(Some(TRIPLE), Some(levels)).expect("levels of aarch64");
    let options = CompileOptions::for_target(&target).precision(Precision::Bf16);
    let lowered = Pipeline::new(graph).options(options).lower().expect("supported");
    let compiled = lowered.compile(&target, Artifact::Object).expect("supported");
    let object = compiled.object.into_bytes().expect("an object");
    let words = object.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
    let count = words.filter(|word| word & BFMMLA.1 == BFMMLA.0).count();

    let folder = tempfile::tempdir().expect("a folder");
    let name = &lowered.program.name;
    std::fs::write(folder.path().join(format!("{name}.h")), compiled.header).expect("a file");
    std::fs::write(folder.path().join(format!("{name}.o")), object).expect("a file");
    let file = format!("{name}.o");
    (Program::compile(folder, COMPILER, emulator, name, &file), count)
}

/// The largest difference from the definition at these bindings, relative to the largest element.
fn error(name: &str, graph: &Graph, program: &Program, bindings: &[Vec<i64>]) -> f64 {
    let mut defined = graph.clone();
    opt::optimize(&mut defined).expect("supported");
    opt::apply_precision(&mut defined, Precision::Bf16).expect("supported");
    let mut worst = 0.0_f64;
    for dims in bindings {
        let inputs = models::inputs(graph, dims);
        let expected = graph::eval::eval(&defined, &inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
        let shapes: Vec<(DType, Vec<usize>)> =
            expected.iter().map(|tensor| (tensor.dtype(), tensor.shape().to_vec())).collect();
        let got = program.outputs(&inputs, &shapes);
        for (got, want) in got.iter().zip(&expected) {
            let numbers = |tensor: &Tensor| -> Vec<f64> {
                (0..tensor.elems()).map(|idx| tensor.get(idx).as_f64()).collect()
            };
            let (got, want) = (numbers(got), numbers(want));
            let largest = want.iter().fold(f64::MIN_POSITIVE, |most, x| most.max(x.abs()));
            for (got, want) in got.iter().zip(&want) {
                assert!(got.is_finite(), "{name} at {dims:?}: {got}, not {want}");
                worst = worst.max((got - want).abs() / largest);
            }
        }
    }
    worst
}

#[test]
#[ignore = "needs a cross compiler and qemu"]
fn aarch64_multiplies_bf16_as_defined() {
    let dense =
        [(37, 40), (64, 100), (5, 16), (3, 130), (96, 7), (8, 33), (200, 72)].map(|(k, n)| dense(k, n));
    for graph in dense.into_iter().chain([product()]) {
        let graph = graph.expect("a valid graph");
        let (program, count) = program(&graph, "aarch64-bf16", &EMULATOR);
        assert!(count > 0, "{graph}: no bfmmla");
        // One sum of at most 200 products of exact operands: each step rounds by a unit in the last place.
        let error = error(&graph.name, &graph, &program, &models::bindings(&graph));
        assert!(error <= 200.0 * f64::from(f32::EPSILON), "{graph}: {error:.1e}");
    }

    // The rounded result of a layer, which the next one reads, may be a neighbouring bf16.
    let graph = convolutions().expect("a valid graph");
    let (program, count) = program(&graph, "aarch64-bf16", &EMULATOR);
    assert!(count > 0, "{graph}: no bfmmla");
    let error = error("convolutions", &graph, &program, &models::bindings(&graph));
    assert!(error <= 1e-3, "convolutions: {error:.1e}");
}

#[test]
#[ignore = "needs a cross compiler and qemu"]
fn networks_multiply_bf16_on_aarch64() {
    for (name, network) in networks::NETWORKS {
        let graph = network().unwrap_or_else(|error| panic!("{name}: {error}"));
        let (program, count) = program(&graph, "aarch64-bf16", &EMULATOR);
        assert!(count > 0, "{name}: no bfmmla");
        let bindings = models::bindings(&graph);
        let error = error(name, &graph, &program, &[bindings[0].clone(), bindings[4].clone()]);
        assert!(error <= 1e-2, "{name}: {error:.1e}");
    }
}

/// The level is chosen when the program is loaded: all others multiply `f32`.
#[test]
#[ignore = "needs a cross compiler and qemu"]
fn matrices_of_bf16_are_used_where_the_machine_has_them() {
    let graph = dense(64, 100).expect("a valid graph");
    let levels = "aarch64,aarch64-dotprod,aarch64-i8mm,aarch64-bf16";
    for (emulator, has_bf16) in [("max", true), ("neoverse-n1", false), ("cortex-a57", false)] {
        let (program, _) = program(&graph, levels, &["qemu-aarch64", "-cpu", emulator]);
        let error = error("dense", &graph, &program, &models::bindings(&graph));
        // Operands that are not rounded give other sums.
        assert_eq!(error < 64.0 * f64::from(f32::EPSILON), has_bf16, "{emulator}: {error:.1e}");
        assert!(error < Precision::Bf16.max_product_error() * 4.0, "{emulator}: {error:.1e}");
    }
    assert_eq!(program(&graph, "aarch64-i8mm", &EMULATOR).1, 0, "a lower level has no such instruction");
}
