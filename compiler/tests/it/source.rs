//! C source: it compiles without warnings and computes the graphs.

use crate::foreign;
use crate::models;
use crate::random_cases::{self, GraphCase};
use crate::tensors::refs;

use foreign::Program;
use symshape::Dim;
use symshape_compiler::{
    CompileOptions,
    graph::{self, Graph},
    kernel::{MicrokernelSupport, Policies},
    partition::Count,
    pipeline::{self, Pipeline},
    plan,
    scalar::UnaryOp,
    tensor::{Bytes, Tensor},
};
use symshape_runtime::{Context, DType, TensorRef};

/// Writes the source of `graph` into a folder and compiles the program around it.
fn compile(graph: &Graph) -> Program {
    compile_with(graph, &CompileOptions::for_c_source())
}

fn compile_with(graph: &Graph, options: &CompileOptions) -> Program {
    let lowered = Pipeline::new(graph)
        .options(*options)
        .lower()
        .unwrap_or_else(|error| panic!("{}: {error}", graph.name));
    let name = &lowered.program.name;
    let source = lowered.source(&format!("{name}.h")).unwrap_or_else(|error| panic!("{name}: {error}"));
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join(format!("{name}.h")), source.header).expect("a header");
    std::fs::write(folder.path().join(format!("{name}.c")), source.code).expect("a source");
    Program::compile(folder, "cc", &[], name, &format!("{name}.c"))
}

/// Asserts that `program` computes `graph` at all tested sizes.
fn assert_computes(program: &Program, graph: &Graph) {
    for dims in models::bindings(graph) {
        let (at, inputs) = (format!("{} at {dims:?}", graph.name), models::inputs(graph, &dims));
        let expected = graph::eval::eval(graph, &inputs).unwrap_or_else(|error| panic!("{at}: {error}"));
        program.assert_gives(&at, &inputs, &expected);
    }
}

#[test]
fn source_computes_what_graphs_say() {
    for (name, model) in models::MODELS {
        let graph = model().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_computes(&compile(&graph), &graph);
    }
}

#[test]
fn source_rounds_to_bf16() {
    let mut g = models::graph("halves", &[("N", 1, 9)]);
    let x = g.input("x", DType::F32, vec![Dim::symbol("N")]).expect("a valid graph");
    let high = g.unary(UnaryOp::RoundBf16, x).expect("a valid graph");
    let half = g.cast(DType::BF16, x).expect("a valid graph");
    g.output("high", high).expect("a valid graph");
    g.output("half", half).expect("a valid graph");
    let numbers = [0x3f80_8000, 0x3f80_8001, 0x3f81_8000, 0x0000_ffff, 0x807f_ffff, 0x7f7f_ffff, 0xff80_0000];
    let x = Tensor::from_f32(vec![7], &numbers.map(f32::from_bits)).expect("one each");
    let want = graph::eval::eval(&g, std::slice::from_ref(&x)).expect("an oracle");
    compile(&g).assert_gives("rounding", &[x], &want);
}

#[test]
fn source_in_partitions_computes_what_graphs_say() {
    for (idx, (name, model)) in models::MODELS.iter().enumerate() {
        let graph = model().unwrap_or_else(|error| panic!("{name}: {error}"));
        let options = CompileOptions::for_c_source()
            .partitions(Some(if idx % 3 == 0 { Count::Auto } else { "4".parse().expect("a number") }))
            .policies(if idx % 2 == 0 { Policies::Any } else { Policies::Serial });
        assert_computes(&compile_with(&graph, &options), &graph);
    }
}

#[test]
fn source_of_random_graphs_computes_what_they_say() {
    let mut tried = 0;
    for GraphCase { graph, text, inputs, expected } in random_cases::graph_cases(0..400) {
        let bound_by_inputs = Pipeline::new(&graph)
            .options(CompileOptions::for_c_source())
            .lower()
            .is_ok_and(|lowered| lowered.source("h").is_ok());
        if !bound_by_inputs {
            continue;
        }
        compile(&graph).assert_gives(&text, &inputs, &expected);
        tried += 1;
        if tried == 40 {
            break;
        }
    }
    assert!(tried >= 20, "only {tried} graphs could be tried");
}

/// The arenas of C source and of code for this machine on one thread; both compute the graph.
fn arenas(graph: &Graph) -> [u64; 2] {
    let source = Pipeline::new(graph).options(CompileOptions::for_c_source()).lower().expect("supported");
    plan::verify::verify(&source.program, &source.plan).expect("a plan");
    let options = CompileOptions::default().threads(1);
    let code = Pipeline::new(graph).options(options).lower().expect("supported");
    let program = compile(graph);
    assert_computes(&program, graph);
    let model = pipeline::jit(graph).expect("supported");
    let mut context = Context::new(&model).expect("an arena");
    for dims in models::bindings(graph) {
        let inputs = models::inputs(graph, &dims);
        let outputs = context.run_views(&refs(&inputs)).expect("in contract");
        let tensor = |y: TensorRef<'_>| {
            let bytes = Bytes::Owned(y.bytes().into());
            Tensor::new(y.dtype(), y.shape().to_vec(), bytes).expect("as many as the shape")
        };
        let outputs: Vec<Tensor> = (0..outputs.len()).map(|idx| tensor(outputs.get(idx))).collect();
        program.assert_gives(&format!("{} at {dims:?}, as this machine", graph.name), &inputs, &outputs);
    }
    [source.plan.arena_max, code.plan.arena_max]
}

#[test]
fn source_has_no_room_that_only_machine_code_uses() {
    let mut graph = models::graph("pages", &[("N", 1, 8)]);
    let x = graph.input("x", DType::F32, vec![Dim::symbol("N"), 1024.into()]).expect("an input");
    let small = graph.constant(Tensor::from_f32(vec![], &[0.01]).expect("one number")).expect("a constant");
    let h = models::dense(&mut graph, x, 1024, 128, 3).expect("a layer");
    let h = graph.mul(h, small).expect("a layer");
    let h = graph.relu(h).expect("a layer");
    let y = models::dense(&mut graph, h, 128, 16, 5).expect("a layer");
    graph.output("y", y).expect("an output");
    let [source, code] = arenas(&graph);
    assert_eq!(source, 8 * 128 * 4, "only the tensor between the layers");
    assert!(code > source, "rows that are pages apart are copied");
}

#[test]
fn source_has_the_filters_of_the_model() {
    let mut graph = models::graph("plain", &[("N", 1, 3)]);
    let shape = vec![Dim::symbol("N"), 32.into(), 8.into(), 8.into()];
    let x = graph.input("x", DType::F32, shape).expect("an input");
    let y = models::conv(&mut graph, x, [32, 32], 3, 1, 5).expect("a convolution");
    graph.output("y", y).expect("an output");
    let weights = |options: &CompileOptions| {
        Pipeline::new(&graph).options(*options).lower().expect("supported").program.const_bytes()
    };
    assert_eq!(weights(&CompileOptions::for_c_source()), 4 * (9 * 32 * 32 + 32));
    let code = CompileOptions::default().support(MicrokernelSupport::default());
    assert!(weights(&code) > 4 * 16 * 32 * 32, "in another basis they are larger");
    arenas(&graph);
}

#[test]
fn source_of_partial_tiles_has_no_variables_that_nobody_uses() {
    let mut graph = models::graph("edges", &[("N", 1, 2)]);
    let shape = vec![Dim::symbol("N"), 32.into(), 7.into(), 7.into()];
    let x = graph.input("x", DType::F32, shape).expect("an input");
    let y = models::conv(&mut graph, x, [32, 32], 3, 1, 5).expect("a convolution");
    graph.output("y", y).expect("an output");
    // Tiles are for machine code, but any emitter takes any program.
    let options = CompileOptions::default().threads(1);
    assert_computes(&compile_with(&graph, &options), &graph);
}

#[test]
fn source_refuses_what_breaks_the_contract() {
    let (_, model) = models::MODELS[0];
    let program = compile(&model().expect("a graph"));
    let input = Tensor::from_f32(vec![100_000, 1], &vec![0.0; 100_000]).expect("as many as the shape");
    assert_ne!(program.check(&[input]), 0);
}
