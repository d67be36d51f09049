//! Graphs through all stages into machine code, with and without vector leaves, against the graphs' oracle.

mod machine;
mod models;

use machine::Machine;
use proptest::prelude::*;
use symshape_compiler::{
    ErrorKind,
    graph::{
        self, Graph,
        arbitrary::{self, Source},
    },
    lower,
    pipeline::{self, Lowered},
    schedule,
    tensor::{Bytes, Tensor},
};
use symshape_runtime::DType;

fn assert_same(name: &str, graph: &Graph, machine: &Machine) {
    for dims in models::bindings(graph) {
        let inputs = models::inputs(graph, &dims);
        let expected = graph::eval::eval(graph, &inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
        let raw: Vec<Vec<u8>> = inputs.iter().map(|tensor| tensor.bytes().to_vec()).collect();
        let got = machine.run(&dims, &raw).unwrap_or_else(|refusal| panic!("{name}: {refusal:?}"));
        for (idx, (expected, got)) in expected.iter().zip(got).enumerate() {
            let got = Tensor::new(expected.dtype(), expected.shape().to_vec(), Bytes::Owned(got.into()))
                .unwrap_or_else(|| panic!("{name} at {dims:?}: output {idx} has another size"));
            for elem in 0..expected.elems() {
                let (a, b) = (got.get(elem).as_f64(), expected.get(elem).as_f64());
                let close = a == b || (a - b).abs() <= 2e-5 * (1.0 + b.abs());
                assert!(close, "{name} at {dims:?}, output {idx} [{elem}]: {a}, not {b}");
            }
        }
    }
}

#[test]
fn machine_code_computes_what_graphs_say() {
    for (name, model) in models::MODELS {
        let graph = model().unwrap_or_else(|error| panic!("{name}: {error}"));
        let plain = lower::lower(&graph).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut scheduled = plain.clone();
        schedule::schedule(&mut scheduled).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_same(&format!("{name}, scalar"), &graph, &Machine::compile(scheduled.clone(), true));
        assert_same(&format!("{name}, plain"), &graph, &Machine::compile(plain, false));
        assert_same(name, &graph, &Machine::compile(scheduled, false));
    }
}

/// A random graph at a random binding, through all stages, against the oracle.
fn check_random(bytes: &[u8]) -> Result<(), String> {
    let graph = arbitrary::graph(&mut Source::new(bytes));
    // The binding reads the bytes from behind: the graph has used those in front up.
    let reversed: Vec<u8> = bytes.iter().rev().copied().collect();
    let mut source = Source::new(&reversed);
    let Some(binding) = arbitrary::binding(&graph, &mut source) else { return Ok(()) };
    let Ok(inputs) = arbitrary::inputs(&graph, &binding, &mut source) else { return Ok(()) };
    let Ok(expected) = graph::eval::eval(&graph, &inputs) else { return Ok(()) };
    let Lowered { program, plan } = match pipeline::lower(&graph) {
        Ok(lowered) => lowered,
        Err(error) => return Err(format!("{error}\n{graph}")),
    };
    let dims: Vec<i64> = graph.symbols.iter().map(|symbol| binding[symbol]).collect();
    for scalar in [true, false] {
        let machine = match Machine::assemble(program.clone(), &plan, scalar) {
            Ok(machine) => machine,
            // A symbol that no input's shape determines can't be bound.
            Err(error) if error.kind() == ErrorKind::Contract => return Ok(()),
            Err(error) => return Err(format!("{error}\n{graph}")),
        };
        let shapes: Vec<Vec<i64>> =
            inputs.iter().map(|tensor| tensor.shape().iter().map(|dim| *dim as i64).collect()).collect();
        let at = format!("{dims:?}, scalar {scalar}\n{graph}\n{program}");
        let bound = machine.check(&shapes).map_err(|refusal| format!("{refusal:?} at {at}"))?;
        let raw: Vec<Vec<u8>> = inputs.iter().map(|tensor| tensor.bytes().to_vec()).collect();
        let got = machine.run(&bound, &raw).map_err(|refusal| format!("{refusal:?} at {at}"))?;
        for (idx, (expected, got)) in expected.iter().zip(got).enumerate() {
            let shape = expected.shape().to_vec();
            let got = Tensor::new(expected.dtype(), shape, Bytes::Owned(got.into()))
                .ok_or_else(|| format!("output {idx} has another size at {at}"))?;
            same(expected, &got).map_err(|elem| format!("output {idx}, {elem} at {at}"))?;
        }
    }
    Ok(())
}

/// Equal but for rounding and the order of sums.
fn same(expected: &Tensor, got: &Tensor) -> Result<(), String> {
    for elem in 0..expected.elems() {
        let (a, b) = (got.get(elem), expected.get(elem));
        let (x, y) = (a.as_f64(), b.as_f64());
        let huge = |x: f64| !x.is_finite() || x.abs() > 1e30;
        let tolerance = match expected.dtype() {
            dtype if !dtype.is_float() => 0.0,
            DType::F16 | DType::BF16 => 2e-2,
            _ => 1e-4,
        };
        if !(x == y || (huge(x) && huge(y)) || (x - y).abs() <= tolerance * (1.0 + y.abs())) {
            return Err(format!("[{elem}]: {a}, not {b}"));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn machine_code_computes_what_random_graphs_say(bytes in proptest::collection::vec(any::<u8>(), 0..160)) {
        check_random(&bytes).map_err(TestCaseError::fail)?;
    }
}
