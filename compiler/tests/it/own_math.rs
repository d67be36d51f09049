//! C source without `math.h`: it needs no library, and its functions are as accurate as the oracle's.

use crate::models;

use symshape::Dim;
use symshape_compiler::{
    CompileOptions, emit,
    graph::{Graph, Value},
    pipeline::Pipeline,
    scalar::{BinaryOp, Scalar, UnaryOp, eval},
    tensor::{Bytes, Tensor},
};
use symshape_runtime::DType;

use crate::foreign::{self, Program};

const UNARY: [UnaryOp; 24] = {
    use UnaryOp::*;
    [
        Exp, Expm1, Log, Log1p, Sin, Cos, Tan, Asin, Acos, Atan, Sinh, Cosh, Tanh, Asinh, Acosh, Atanh, Erf,
        Floor, Ceil, Round, Trunc, Sqrt, Abs, Sign,
    ]
};
const BINARY: [BinaryOp; 6] =
    [BinaryOp::Pow, BinaryOp::Rem, BinaryOp::Mod, BinaryOp::Atan2, BinaryOp::Min, BinaryOp::Max];

/// Special values, and numbers of all magnitudes and both signs.
pub(crate) fn numbers(seed: u64) -> Vec<f64> {
    let mut list =
        vec![0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -2.5, 1.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    list.extend([f64::MIN_POSITIVE, 5e-324, f64::MAX, f64::MIN, 1e-42, -1e-42, 1e30, 4503599627370497.5]);
    let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ seed;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    for scale in [1e-320, 1e-300, 1e-20, 1e-8, 1e-3, 1.0, 2.0, 10.0, 100.0, 750.0, 1e5, 1e7, 1e16, 1e300] {
        list.extend((0..200).map(|_| (random() * 2.0 - 1.0) * scale));
    }
    list
}

/// All functions of `x` and `y`, each as an output.
pub(crate) fn graph(name: &str, dtype: DType, count: usize) -> Graph {
    let mut g = models::graph(name, &[("N", 1, count as i64)]);
    let x = g.input("x", dtype, vec![Dim::symbol("N")]).expect("an input");
    let y = g.input("y", dtype, vec![Dim::symbol("N")]).expect("an input");
    let mut outputs: Vec<(String, Value)> = Vec::new();
    for op in UNARY {
        outputs.push((op.name().into(), g.unary(op, x).expect("a function")));
    }
    for op in BINARY {
        outputs.push((op.name().into(), g.binary(op, x, y).expect("a function")));
    }
    for (name, value) in outputs {
        g.output(&name, value).expect("an output");
    }
    g
}

/// Distance of two results in units of the last place; NaN is near NaN.
pub(crate) fn ulps(dtype: DType, got: Scalar, expected: Scalar) -> u64 {
    let (a, b) = (got.as_f64(), expected.as_f64());
    if a.is_nan() || b.is_nan() {
        return if a.is_nan() && b.is_nan() { 0 } else { u64::MAX };
    }
    let key = |s: Scalar| {
        let sign = 1u64 << (8 * dtype.size_bytes() - 1);
        let magnitude = (s.bits() & (sign - 1)) as i64;
        if s.bits() & sign != 0 { -magnitude } else { magnitude }
    };
    key(got).abs_diff(key(expected))
}

/// The program of `graph` around C source without `math.h`, and the names that its object imports.
fn program(graph: &Graph) -> (Program, Vec<String>) {
    let options = CompileOptions::for_c_source().libm(false);
    let lowered = Pipeline::new(graph).options(options).lower().expect("supported");
    let name = &lowered.program.name;
    let source = lowered.source(&format!("{name}.h")).expect("supported");
    assert!(!source.code.contains("#include <math.h>"), "{name}");
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join(format!("{name}.h")), source.header).expect("a header");
    std::fs::write(folder.path().join("model.c"), source.code).expect("a source");
    foreign::compile(folder.path(), "cc", "model.c", &["-O2", "-ffreestanding"]);
    let bytes = std::fs::read(folder.path().join("out.o")).expect("an object");
    let imports = emit::object::imports(&bytes).expect("an object");
    (Program::compile(folder, "cc", &[], name, "out.o"), imports)
}

/// Functions that a C compiler may call although no source does.
const OF_COMPILERS: [&str; 4] = ["memcpy", "memset", "memmove", "memcmp"];

fn check(dtype: DType, limit: u64) {
    let scalars = |list: Vec<f64>| list.into_iter().map(|x| Scalar::from_f64(dtype, x)).collect::<Vec<_>>();
    let x = scalars(numbers(0));
    let mut y = scalars(numbers(77));
    y.rotate_left(5);
    let graph = graph(if dtype == DType::F64 { "own_f64" } else { "own_f32" }, dtype, x.len());
    let (program, imports) = program(&graph);
    assert!(imports.iter().all(|name| OF_COMPILERS.contains(&name.as_str())), "{imports:?}");

    let bytes = |list: &[Scalar]| -> Bytes {
        let width = dtype.size_bytes();
        let all: Vec<u8> = list.iter().flat_map(|s| s.bits().to_le_bytes()[..width].to_vec()).collect();
        Bytes::Owned(all.into())
    };
    let tensor = |list: &[Scalar]| Tensor::new(dtype, vec![list.len()], bytes(list)).expect("as many");
    let types = vec![(dtype, vec![x.len()]); UNARY.len() + BINARY.len()];
    let outputs = program.outputs(&[tensor(&x), tensor(&y)], &types);

    let mut wrong = Vec::new();
    for (idx, output) in outputs.iter().enumerate() {
        let mut worst = (0, String::new());
        for (at, (x, y)) in x.iter().zip(&y).enumerate() {
            let (name, expected) = match UNARY.get(idx) {
                Some(op) => (op.name(), eval::unary(*op, *x)),
                None => {
                    let op = BINARY[idx - UNARY.len()];
                    (op.name(), eval::binary(op, *x, *y))
                }
            };
            let got = output.get(at);
            let distance = ulps(dtype, got, expected);
            if distance > worst.0 {
                let (x, y) = (x.as_f64(), y.as_f64());
                let (got, expected) = (got.as_f64(), expected.as_f64());
                worst =
                    (distance, format!("{name}({x:e}, {y:e}) = {got:e}, not {expected:e}: {distance} ulp"));
            }
        }
        println!("{dtype} output {idx}: {} ulp {}", worst.0, worst.1);
        if worst.0 > limit {
            wrong.push(worst.1);
        }
    }
    assert!(wrong.is_empty(), "{dtype}: {}", wrong.join("\n"));
}

#[test]
fn functions_of_f32_are_rounded_once() {
    check(DType::F32, 1);
}

#[test]
fn functions_of_f64_have_small_errors() {
    check(DType::F64, 4);
}

#[test]
fn models_without_math_h_compute_what_graphs_say() {
    for (name, make) in models::MODELS {
        let graph = make().unwrap_or_else(|error| panic!("{name}: {error}"));
        let (program, imports) = program(&graph);
        assert!(imports.iter().all(|import| OF_COMPILERS.contains(&import.as_str())), "{name}: {imports:?}");
        for dims in models::bindings(&graph) {
            let inputs = models::inputs(&graph, &dims);
            let expected = symshape_compiler::graph::eval::eval(&graph, &inputs).expect("in contract");
            program.assert_gives(&format!("{name} at {dims:?}"), &inputs, &expected);
        }
    }
}
