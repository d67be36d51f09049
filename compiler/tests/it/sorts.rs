//! Sorts and first elements of sorts, bit for bit: all types, ties, NaN, infinities, and orders that are hard to sort.

use crate::{foreign, machine::Machine};
use symshape_compiler::{
    CompileOptions,
    graph::{self, Graph, text, verify},
    kernel,
    pipeline::{Lowered, Pipeline},
    scalar::Scalar,
    tensor::Tensor,
};
use symshape_runtime::DType;

/// The longest row. It has blocks, and more candidates than an insertion sort takes.
const MAX_LEN: usize = 1500;

/// Rows of at least `lo` elements of which `first` elements are sorted, along memory and across it.
fn model(dtype: DType, lo: usize, first: &str) -> Graph {
    let source = format!(
        "graph sorts {{
          symbol N = 1..3
          symbol S = {lo}..{MAX_LEN}
          symbol K = 0..{MAX_LEN}
          input x: {dtype}[N, S]
          input y: {dtype}[S, 3]
          input k: u8[K]
          %0, %1 = sort descending first [{first}] axis 1 x
          %2, %3 = sort first [{first}] axis 1 x
          %4, %5 = sort descending first [{first}] axis 0 y
          output a = %0
          output b = %1
          output c = %2
          output d = %3
          output e = %4
          output f = %5
          output k = k
        }}"
    );
    parsed(&source)
}

fn parsed(source: &str) -> Graph {
    let graph = text::parse(source).unwrap_or_else(|error| panic!("{error}"));
    verify::verify(&graph).unwrap_or_else(|error| panic!("{error}"));
    graph
}

fn lowered(graph: &Graph) -> Lowered {
    let lowered = Pipeline::new(graph).lower().unwrap_or_else(|error| panic!("{error}"));
    let mut unproven = kernel::verify::verify(&lowered.program).unwrap_or_else(|error| panic!("{error}"));
    // The rows of a sort across memory interleave, and the rule about parallel loops only proves separate windows.
    unproven.retain(|rule| !rule.what.ends_with("are independent"));
    assert!(unproven.is_empty(), "{unproven:?}\n{}", lowered.program);
    lowered
}

/// The elements of a tensor, by their index.
type Pattern = fn(DType, usize) -> Scalar;

const PATTERNS: [(&str, Pattern); 7] = [
    ("rising", |dtype, i| number(dtype, i as f64)),
    ("falling", |dtype, i| number(dtype, (2 * MAX_LEN) as f64 - i as f64)),
    ("equal", |dtype, _| number(dtype, 7.0)),
    ("few values", |dtype, i| number(dtype, (mixed(i) % 5) as f64 - 2.0)),
    ("any bits", |dtype, i| match dtype {
        DType::Bool => Scalar::bool(mixed(i) & 1 == 1),
        _ => {
            let bits = mixed(i) & (u64::MAX >> (64 - 8 * dtype.size_bytes()));
            let is_half = matches!(dtype, DType::F16 | DType::BF16);
            let elem = Scalar::from_bits(dtype, bits);
            // Halves are loaded as `f32`, which does not keep all NaN.
            if is_half && elem.as_f64().is_nan() { number(dtype, f64::NAN) } else { elem }
        }
    }),
    ("special values", |dtype, i| {
        let values = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1e-40, -1e-40, 2.0];
        number(dtype, values[(mixed(i) % 8) as usize])
    }),
    ("one best in each block", |dtype, i| number(dtype, if i % 32 == 31 { 100.0 } else { (i % 50) as f64 })),
];

fn number(dtype: DType, value: f64) -> Scalar {
    Scalar::from_f64(dtype, value)
}

/// A number that looks random.
fn mixed(i: usize) -> u64 {
    let x = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 27)
}

fn tensor(dtype: DType, shape: [usize; 2], pattern: Pattern) -> Tensor {
    let elems: Vec<Scalar> = (0..shape[0] * shape[1]).map(|i| pattern(dtype, i)).collect();
    Tensor::from_scalars(dtype, shape.to_vec(), &elems).expect("as many as the shape")
}

/// Inputs of [`model`].
fn inputs(dtype: DType, [n, s, k]: [usize; 3], pattern: Pattern) -> Vec<Tensor> {
    let count = Tensor::from_scalars(DType::U8, vec![k], &vec![Scalar::from_i64(DType::U8, 1); k]);
    let tensors = [tensor(dtype, [n, s], pattern), tensor(dtype, [s, 3], pattern)];
    tensors.into_iter().chain(count).collect()
}

fn raw(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(|tensor| tensor.bytes().to_vec()).collect()
}

/// Asserts that code for this machine has the bits of the oracle at these sizes, for all patterns.
fn assert_sorts(dtype: DType, graph: &Graph, sizes: &[[usize; 3]]) {
    let Lowered { program, plan, .. } = lowered(graph);
    let machines = [true, false]
        .map(|is_scalar| Machine::assemble(program.clone(), &plan, is_scalar).expect("machine code"));
    for (name, pattern) in PATTERNS {
        for size in sizes {
            let inputs = inputs(dtype, *size, pattern);
            let want = graph::eval::eval(graph, &inputs).unwrap_or_else(|error| panic!("{error}"));
            let dims = size.map(|dim| dim as i64);
            for (machine, form) in machines.iter().zip(["scalar", "vectors"]) {
                let got = machine.run(&dims, &raw(&inputs)).expect("a call");
                assert!(got == raw(&want), "{dtype}, {name}, {size:?}, {form}");
            }
        }
    }
}

#[test]
fn a_known_number_of_first_elements() {
    for dtype in DType::ALL {
        for first in [1, 60] {
            let sizes = [[1, first, 0], [2, first + 1, 0], [3, 755, 1], [1, MAX_LEN - 1, 0], [3, MAX_LEN, 3]];
            assert_sorts(dtype, &model(dtype, first, &first.to_string()), &sizes);
        }
    }
}

#[test]
fn an_unknown_number_of_first_elements() {
    let mut sizes = Vec::new();
    for len in [0, 1, 2, 32, 33, 64, 65, 755, MAX_LEN - 1, MAX_LEN] {
        for k in [0, 1, 2, 13, len / 2, len.saturating_sub(1), len] {
            if k <= len && !sizes.contains(&[2, len, k]) {
                sizes.push([2, len, k]);
            }
        }
    }
    for dtype in [DType::F32, DType::I64, DType::U8, DType::F16] {
        assert_sorts(dtype, &model(dtype, 0, "K"), &sizes);
    }
}

#[test]
fn whole_sorts() {
    for dtype in DType::ALL {
        assert_sorts(dtype, &model(dtype, 0, "S"), &[[1, 0, 0], [2, 1, 1], [3, 45, 0], [2, MAX_LEN, 2]]);
    }
}

/// The elements beyond a bound come first, and the bound takes the places of the others.
#[test]
fn elements_beyond_a_bound() {
    for dtype in DType::ALL {
        let graph = parsed(&format!(
            "graph sorts {{
              symbol N = 1..3
              symbol S = 0..{MAX_LEN}
              input x: {dtype}[N, S]
              input y: {dtype}[S, 3]
              input bound: {dtype}[]
              %0, %1 = sort descending axis 1 x, bound
              %2, %3 = sort axis 1 x, bound
              %4, %5 = sort descending axis 0 y, bound
              output a = %0
              output b = %1
              output c = %2
              output d = %3
              output e = %4
              output f = %5
            }}"
        ));
        let Lowered { program, plan, .. } = lowered(&graph);
        let machines = [true, false]
            .map(|is_scalar| Machine::assemble(program.clone(), &plan, is_scalar).expect("machine code"));
        for (name, pattern) in PATTERNS {
            for [n, s] in [[1, 0], [2, 1], [3, 127], [1, 128], [2, 129], [2, MAX_LEN - 1], [3, MAX_LEN]] {
                for bound in [pattern(dtype, s / 2), number(dtype, 1.0), number(dtype, f64::NAN)] {
                    let bound = Tensor::from_scalars(dtype, Vec::new(), &[bound]).expect("one element");
                    let inputs = [tensor(dtype, [n, s], pattern), tensor(dtype, [s, 3], pattern), bound];
                    let want = graph::eval::eval(&graph, &inputs).unwrap_or_else(|error| panic!("{error}"));
                    for machine in &machines {
                        let got = machine.run(&[n as i64, s as i64], &raw(&inputs)).expect("a call");
                        assert!(got == raw(&want), "{dtype}, {name}, {n} rows of {s}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_data_dependent_number_of_first_elements() {
    let graph = parsed(&format!(
        "graph sorts {{
          symbol S = 1..{MAX_LEN}
          data_dependent K
          input x: f32[S]
          input k: i64[]
          %0 = bind K from [0] to [S] k
          %1, %2 = sort descending first [K] axis 0 x
          output values = %1
          output positions = %2
        }}"
    ));
    let Lowered { program, plan, .. } = lowered(&graph);
    let machine = Machine::assemble(program, &plan, false).expect("machine code");
    for (name, pattern) in PATTERNS {
        for (len, k) in
            [(1, 0), (1, 1), (2, 1), (755, 4), (MAX_LEN - 1, 17), (MAX_LEN, 600), (MAX_LEN, MAX_LEN)]
        {
            let elems: Vec<Scalar> = (0..len).map(|i| pattern(DType::F32, i)).collect();
            let x = Tensor::from_scalars(DType::F32, vec![len], &elems).expect("as many as the shape");
            let inputs = [x, Tensor::from_i64(Vec::new(), &[k as i64]).expect("one element")];
            let want = graph::eval::eval(&graph, &inputs).unwrap_or_else(|error| panic!("{error}"));
            let got = machine.run(&[len as i64], &raw(&inputs)).expect("a call");
            assert!(got == raw(&want), "{name}, {k} of {len}");
        }
    }
}

#[test]
fn more_elements_than_there_are_are_refused() {
    let graph = model(DType::F32, 0, "K");
    let Lowered { program, plan, .. } = lowered(&graph);
    let machine = Machine::assemble(program, &plan, false).expect("machine code");
    assert!(machine.check(&[vec![1, 4], vec![4, 3], vec![4]]).is_ok());
    assert!(machine.check(&[vec![1, 4], vec![4, 3], vec![5]]).is_err());
}

#[test]
fn the_interpreter_and_c_source_have_the_same_bits() {
    for dtype in [DType::F32, DType::I64, DType::BF16] {
        let graph = model(dtype, 5, "5");
        let Lowered { program, .. } = lowered(&graph);
        let source = compile_source(&graph);
        for (name, pattern) in PATTERNS {
            for size in [[2, 5, 0], [3, 6, 1], [1, 755, 2], [2, MAX_LEN, 0]] {
                let inputs = inputs(dtype, size, pattern);
                let want = graph::eval::eval(&graph, &inputs).unwrap_or_else(|error| panic!("{error}"));
                let dims = size.map(|dim| dim as i64);
                let got = kernel::eval::eval(&program, &dims, &inputs).expect("a call");
                assert!(raw(&got) == raw(&want), "interpreter, {dtype}, {name}, {size:?}");
                let types: Vec<_> =
                    want.iter().map(|tensor| (tensor.dtype(), tensor.shape().to_vec())).collect();
                let got = source.outputs(&inputs, &types);
                assert!(raw(&got) == raw(&want), "C, {dtype}, {name}, {size:?}");
            }
        }
    }
}

/// The chosen positions have the bits of the oracle, along memory and across it.
#[test]
fn arg_reductions() {
    for dtype in DType::ALL {
        let graph = parsed(&format!(
            "graph choices {{
              symbol N = 1..3
              symbol S = 1..{MAX_LEN}
              symbol K = 0..3
              input x: {dtype}[N, S]
              input y: {dtype}[S, 3]
              input k: u8[K]
              %0 = argreduce max axis 1 x
              %1 = argreduce min axis 1 x
              %2 = argreduce max last axis 1 x
              %3 = argreduce min last axis 1 x
              output a = %0
              output b = %1
              output c = %2
              output d = %3
              output k = k
            }}"
        ));
        assert_sorts(
            dtype,
            &graph,
            &[[1, 1, 0], [2, 2, 1], [3, 755, 0], [1, MAX_LEN - 1, 0], [2, MAX_LEN, 2]],
        );

        let graph = parsed(&format!(
            "graph choices {{
              symbol N = 1..40
              symbol S = 1..70
              symbol K = 0..3
              input x: {dtype}[N, S]
              input y: {dtype}[S, 3]
              input k: u8[K]
              %0 = argreduce max axis 0 x
              %1 = argreduce min axis 0 x
              %2 = argreduce max last axis 0 x
              %3 = argreduce min last axis 0 x
              output a = %0
              output b = %1
              output c = %2
              output d = %3
              output y = y
              output k = k
            }}"
        ));
        assert_sorts(dtype, &graph, &[[1, 1, 0], [2, 2, 1], [21, 33, 0], [39, 69, 0], [40, 70, 2]]);
    }
}

fn compile_source(graph: &Graph) -> foreign::Program {
    let options = CompileOptions::for_c_source();
    let lowered = Pipeline::new(graph).options(options).lower().unwrap_or_else(|error| panic!("{error}"));
    let source = lowered.source("sorts.h").unwrap_or_else(|error| panic!("{error}"));
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("sorts.h"), source.header).expect("a header");
    std::fs::write(folder.path().join("sorts.c"), source.code).expect("a source");
    foreign::Program::compile(folder, "cc", &[], "sorts", "sorts.c")
}

/// The scratch memory for a few elements of a long row is a small part of the row.
#[test]
fn few_elements_need_little_memory() {
    let graph = parsed(
        "graph sorts {
          symbol S = 100..256000
          input x: f32[S]
          %0, %1 = sort descending first [100] axis 0 x
          output values = %0
        }",
    );
    let Lowered { program, plan, .. } = lowered(&graph);
    let workers = program.workers.max(1) as usize;
    let machine = Machine::assemble(program, &plan, false).expect("machine code");
    let bytes = machine.arena_bytes(&[256_000]) / workers;
    assert!(bytes < 256_000 * 4 / 2, "{bytes} bytes for each worker");
}
