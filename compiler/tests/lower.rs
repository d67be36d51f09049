//! Lowered and scheduled programs against the graphs that they come from, at sizes from the smallest to the largest.

mod models;

use std::collections::BTreeMap;
use symshape_compiler::{
    graph::Graph,
    kernel::{self, Program},
    lower,
    scalar::Scalar,
    schedule,
    tensor::Tensor,
};
use symshape_runtime::DType;

/// The smallest, next, an odd, the second largest and the largest value of each symbol: the same choice for all
/// symbols at once, and mixed.
fn bindings(graph: &Graph) -> Vec<BTreeMap<String, i64>> {
    let choices: Vec<Vec<i64>> = graph
        .symbols
        .iter()
        .map(|symbol| {
            let declared = graph.facts.declaration(symbol).expect("a declared symbol");
            let lo = i64::try_from(&declared.lo).expect("a small bound");
            let hi = i64::try_from(declared.hi.as_ref().expect("a bound")).expect("a small bound");
            vec![lo, (lo + 1).min(hi), (((lo + hi) / 2) | 1).min(hi), (hi - 1).max(lo), hi]
        })
        .collect();
    let mut bindings = Vec::new();
    for round in 0..10 {
        let pick = |k: usize| choices[k][(round + (round / 5) * k * 2) % 5];
        let names = graph.symbols.iter().enumerate();
        bindings.push(names.map(|(k, symbol)| (symbol.name().to_string(), pick(k))).collect());
    }
    bindings
}

fn inputs(graph: &Graph, binding: &BTreeMap<String, i64>) -> Vec<Tensor> {
    let value = |symbol: &symshape::Symbol| binding.get(symbol.name()).copied();
    let make = |(number, (_, input)): (usize, &(String, symshape_compiler::graph::Value))| {
        let shape = graph.shape(*input).iter();
        let shape: Vec<usize> = shape.map(|dim| dim.eval_i64(&value).expect("a size") as usize).collect();
        let random = models::weights(&shape, 77 + number as u32);
        match graph.dtype(*input) {
            DType::I64 => {
                let elems: Vec<i64> = (0..random.elems() as i64).map(|idx| idx % 3).collect();
                Tensor::from_i64(shape, &elems).expect("as many as the shape")
            }
            _ => random,
        }
    };
    graph.inputs.iter().enumerate().map(make).collect()
}

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
    for binding in bindings(graph) {
        let inputs = inputs(graph, &binding);
        let at = format!("{name} at {binding:?}");
        let want =
            symshape_compiler::graph::eval::eval(graph, &inputs).unwrap_or_else(|e| panic!("{at}: {e}"));
        let dims: Vec<i64> = graph.symbols.iter().map(|symbol| binding[symbol.name()]).collect();
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
        for kernel in &program.kernels {
            kernel::walk::accesses(&kernel.body, &mut |site| {
                let Some(inner) = site.axes.last() else { return };
                assert!(
                    !divides(&site.access.at, &inner.var),
                    "{name}: {} divides in {}",
                    site.access.at,
                    inner.var
                );
            });
        }
    }
}

/// True when `dim` holds a division or remainder of something that depends on `var`.
fn divides(dim: &symshape::Dim, var: &symshape::Symbol) -> bool {
    use symshape::Node;
    let own = matches!(dim.node(), Node::FloorDiv(..) | Node::Mod(..)) && dim.contains(var);
    own || dim.node().operands().into_iter().any(|operand| divides(operand, var))
}
