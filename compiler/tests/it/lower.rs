//! Lowered and scheduled programs against the graphs that they come from, at sizes from the smallest to the largest.

use crate::models;

use symshape_compiler::{
    graph::Graph,
    kernel::{self, Program},
    lower,
    scalar::Scalar,
    schedule,
    tensor::Tensor,
};

fn assert_close(at: &str, want: &Tensor, got: &Tensor) {
    assert_eq!((want.dtype(), want.shape()), (got.dtype(), got.shape()), "{at}");
    let close = |a: Scalar, b: Scalar| {
        a == b
            || want.dtype().is_float() && (a.as_f64() - b.as_f64()).abs() <= 1e-5 * (1.0 + a.as_f64().abs())
    };
    for idx in 0..want.elems() {
        let (a, b) = (want.get(idx), got.get(idx));
        assert!(close(a, b), "{at}, element {idx}: want {}, got {}", a.as_f64(), b.as_f64());
    }
}

fn assert_same(name: &str, graph: &Graph, program: &Program) {
    kernel::verify::verify(program).unwrap_or_else(|error| panic!("{name}: {error}\n{program}"));
    for dims in models::bindings(graph) {
        let inputs = models::inputs(graph, &dims);
        let at = format!("{name} at {dims:?}");
        let want =
            symshape_compiler::graph::eval::eval(graph, &inputs).unwrap_or_else(|e| panic!("{at}: {e}"));
        let got =
            kernel::eval::eval(program, &dims, &inputs).unwrap_or_else(|e| panic!("{at}: {e}\n{program}"));
        assert_eq!(want.len(), got.len(), "{at}");
        for (number, (want, got)) in want.iter().zip(&got).enumerate() {
            assert_close(&format!("{at}, output {number}"), want, got);
        }
    }
}

#[test]
fn lowered_programs_compute_what_their_graphs_say() {
    for (name, model) in models::MODELS {
        let graph = model().unwrap_or_else(|error| panic!("{name}: {error}"));
        let program = lower::lower(&graph).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_same(name, &graph, &program);
    }
}

#[test]
fn scheduled_programs_compute_what_their_graphs_say() {
    for (name, model) in models::MODELS {
        let graph = model().unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut program = lower::lower(&graph).unwrap_or_else(|error| panic!("{name}: {error}"));
        schedule::schedule(&mut program).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_same(name, &graph, &program);
    }
}

/// A padded tensor of which windows read the columns from 0 on, each `step` columns apart.
fn windows(step: usize) -> Graph {
    let width = 8 / step;
    let text = format!(
        "graph windows {{\n  symbol N = 1..3\n  input x: f32[N, 6]\n  %0 = neg x\n  %1 = pad 0.0 [0, 1] [0, 1] %0\n  \
         %2 = view [N, {width}] [$0, {step}*$1] %1\n  output y = %2\n}}\n"
    );
    symshape_compiler::graph::text::parse(&text).expect("a graph")
}

#[test]
fn what_is_never_read_is_not_computed() {
    for (step, borders) in [(1, 2), (2, 1)] {
        let graph = windows(step);
        let mut program = lower::lower(&graph).expect("a program");
        lower::eliminate_dead_stores(&mut program);
        let count = program.kernels.iter().filter(|kernel| kernel.name.starts_with("border")).count();
        assert_eq!(count, borders, "{program}");
        assert_same("windows", &graph, &program);
    }
    for (name, model) in models::MODELS {
        let graph = model().unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut program = lower::lower(&graph).unwrap_or_else(|error| panic!("{name}: {error}"));
        schedule::schedule(&mut program).unwrap_or_else(|error| panic!("{name}: {error}"));
        lower::eliminate_dead_stores(&mut program);
        assert_same(name, &graph, &program);
    }
}

#[test]
fn softmax_and_layer_norm_are_one_kernel() {
    let kernels = |wanted: &str| {
        let (_, model) = models::MODELS.iter().find(|(name, _)| *name == wanted).expect("a model");
        let mut program = lower::lower(&model().expect("a graph")).expect("a program");
        schedule::schedule(&mut program).expect("a schedule");
        program.kernels.len()
    };
    assert_eq!(kernels("layer_norm"), 1);
    // Three projections; scores, softmax and weighted sum by blocks; a projection.
    assert_eq!(kernels("attention"), 5);
}

#[test]
fn no_innermost_loop_divides() {
    for (name, model) in models::MODELS {
        let mut program = lower::lower(&model().expect("a graph")).expect("a program");
        schedule::schedule(&mut program).expect("a schedule");
        let left = kernel::inner_divisions::divisions(&program);
        assert!(left.is_empty(), "{name}: {left:?}\n{program}");
    }
}
