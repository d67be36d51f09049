//! Random graphs at random sizes: machine code, with and without vector leaves, against the reference evaluator.
#![no_main]

use symshape_compiler::{
    ErrorKind,
    codegen::Options,
    emit::jit::jit,
    graph::{
        arbitrary::{self, Source},
        eval::eval,
    },
    pipeline::{self, Lowered},
    tensor::{Bytes, Tensor},
};
use symshape_runtime::{Context, DType, TensorRef};

/// Equal but for rounding and the order of sums.
fn same(wanted: &Tensor, found: &Tensor) -> bool {
    let huge = |x: f64| !x.is_finite() || x.abs() > 1e30;
    let tolerance = match wanted.dtype() {
        dtype if !dtype.is_float() => 0.0,
        DType::F16 | DType::BF16 => 2e-2,
        _ => 1e-4,
    };
    let close = |idx: usize| {
        let (x, y) = (found.get(idx).as_f64(), wanted.get(idx).as_f64());
        x == y || (huge(x) && huge(y)) || (x - y).abs() <= tolerance * (1.0 + y.abs())
    };
    wanted.shape() == found.shape() && (0..wanted.elems()).all(close)
}

/// A tensor as a call takes it.
fn lend(tensor: &Tensor) -> TensorRef<'_> {
    let lent = TensorRef::from_bytes(tensor.dtype(), tensor.shape(), tensor.bytes());
    lent.expect("memory of the heap is aligned")
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let graph = arbitrary::graph(&mut Source::new(bytes));
    // The binding reads the bytes from behind: the graph has used those in front up.
    let reversed: Vec<u8> = bytes.iter().rev().copied().collect();
    let mut source = Source::new(&reversed);
    let Some(binding) = arbitrary::binding(&graph, &mut source) else { return };
    let Ok(inputs) = arbitrary::inputs(&graph, &binding, &mut source) else { return };
    let Ok(wanted) = eval(&graph, &inputs) else { return };
    let Lowered { program, plan } =
        pipeline::lower(&graph).unwrap_or_else(|error| panic!("{error}\n{graph}"));
    let options = Options { scalar: bytes.len() % 2 == 1, ..Options::default() };
    let model = match jit(&program, &plan, &options) {
        Ok((model, _)) => model,
        // A symbol that no input's shape determines can't be bound.
        Err(error) if error.kind() == ErrorKind::Contract => return,
        Err(error) => panic!("{error}\n{graph}"),
    };
    let lent: Vec<TensorRef<'_>> = inputs.iter().map(lend).collect();
    let mut context = Context::new(&model).expect("small graphs have small arenas");
    let found = context.run_views(&lent).unwrap_or_else(|error| panic!("{error} at {binding:?}\n{graph}"));
    for (idx, wanted) in wanted.iter().enumerate() {
        let view = found.get(idx);
        let memory = Bytes::Owned(view.bytes().into());
        let found =
            Tensor::new(view.dtype(), view.shape().to_vec(), memory).expect("an output fits its shape");
        assert!(
            same(wanted, &found),
            "output {idx}: {found}, not {wanted}, at {binding:?}\n{graph}\n{program}"
        );
    }
});
