//! Elements at loaded addresses, bit for bit, and the errors of addresses that are out of range.

use crate::{machine::Machine, parallel::exec};
use std::sync::atomic::AtomicUsize;
use symshape_compiler::{
    graph::{self, Graph, text, verify},
    kernel,
    pipeline::{Lowered, Pipeline},
    tensor::Tensor,
};

fn parsed(source: &str) -> Graph {
    let graph = text::parse(source).unwrap_or_else(|error| panic!("{error}"));
    verify::verify(&graph).unwrap_or_else(|error| panic!("{error}"));
    graph
}

/// Machines without and with microkernels.
fn machines(graph: &Graph) -> [Machine; 2] {
    let Lowered { program, plan, .. } =
        Pipeline::new(graph).lower().unwrap_or_else(|error| panic!("{error}"));
    let unproven = kernel::verify::verify(&program).unwrap_or_else(|error| panic!("{error}"));
    assert!(unproven.is_empty(), "{unproven:?}\n{program}");
    [true, false].map(|is_scalar| Machine::assemble(program.clone(), &plan, is_scalar).expect("machine code"))
}

fn floats(shape: [usize; 2]) -> Tensor {
    let elems: Vec<f32> = (0..shape[0] * shape[1]).map(|i| (i as f32 * 0.37).sin()).collect();
    Tensor::from_f32(shape.to_vec(), &elems).expect("as many as the shape")
}

/// Indices in `-extent..extent`.
fn indices(shape: [usize; 2], extent: usize) -> Vec<i64> {
    (0..shape[0] * shape[1]).map(|i| (i * 7919 % (2 * extent)) as i64 - extent as i64).collect()
}

fn raw(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(|tensor| tensor.bytes().to_vec()).collect()
}

/// Elements of `x` along each of its axes. Negative indices count from the end.
fn model() -> Graph {
    parsed(
        "graph gathers {
          symbol N = 1..5
          symbol S = 1..70
          symbol K = 0..70
          input x: f32[N, S]
          input i: i64[N, K]
          input j: i64[K, S]
          %0 = index i64[N, K] S
          %1 = index i64[N, K] 0
          %2 = add i, %0
          %3 = lt i, %1
          %4 = select %3, %2, i
          %5 = gather [N, K] [$0, @1[$0, $1]] x, %4
          %6 = index i64[K, S] N
          %7 = index i64[K, S] 0
          %8 = add j, %6
          %9 = lt j, %7
          %10 = select %9, %8, j
          %11 = gather [K, S] [@1[$0, $1], $1] x, %10
          output y = %5
          output z = %11
        }",
    )
}

const SIZES: [[usize; 3]; 9] = [
    [1, 1, 0],
    [1, 1, 1],
    [2, 2, 7],
    [3, 16, 16],
    [4, 33, 15],
    [1, 69, 17],
    [5, 70, 32],
    [5, 70, 69],
    [5, 70, 70],
];

fn inputs([n, s, k]: [usize; 3], i: &[i64], j: &[i64]) -> Vec<Tensor> {
    let [i, j] = [(vec![n, k], i), (vec![k, s], j)]
        .map(|(shape, elems)| Tensor::from_i64(shape, elems).expect("as many as the shape"));
    vec![floats([n, s]), i, j]
}

#[test]
fn elements_along_each_axis_have_the_bits_of_the_oracle() {
    let graph = model();
    let machines = machines(&graph);
    for size in SIZES {
        let [n, s, k] = size;
        let inputs = inputs(size, &indices([n, k], s), &indices([k, s], n));
        let want = graph::eval::eval(&graph, &inputs).unwrap_or_else(|error| panic!("{error}"));
        for machine in &machines {
            let got = machine.run(&size.map(|dim| dim as i64), &raw(&inputs)).expect("a call");
            assert_eq!(got, raw(&want), "{size:?}");
        }
    }
}

/// With and without microkernels, an error has the same place and the same numbers.
#[test]
fn the_error_of_an_address_is_that_of_scalar_code() {
    let graph = model();
    let [scalar, vectors] = machines(&graph);
    for size in SIZES.into_iter().filter(|size| size[2] > 0) {
        let [n, s, k] = size;
        let dims = size.map(|dim| dim as i64);
        for invalid in [s as i64, -1 - s as i64, i64::MAX, i64::MIN, 1 << 32] {
            for place in [0, n * k / 2, n * k - 1] {
                let mut i = indices([n, k], s);
                i[place] = invalid;
                let inputs = raw(&inputs(size, &i, &indices([k, s], n)));
                let refusal = vectors.run(&dims, &inputs).expect_err("an index is out of range");
                assert_eq!(Err(refusal), scalar.run(&dims, &inputs), "{invalid} at {place} of {size:?}");
            }
        }
    }
}

/// The channels of an image at loaded positions: one address serves all channels.
#[test]
fn rows_at_loaded_positions_have_the_bits_of_the_oracle() {
    let graph = parsed(
        "graph samples {
          symbol N = 1..3
          symbol K = 0..40
          input x: f32[N, 5, 7]
          input at: i64[N, K]
          %0 = const f32[7, 19] all 0.25
          %1 = contraction f32 [nhc, co -> noh] x, %0
          %2 = gather [N, 19, K] [$0, $1, @1[$0, $2]] %1, at
          %3 = reduce sum [2] %2
          output y = %2
          output sum = %3
        }",
    );
    let machines = machines(&graph);
    for [n, k] in [[1, 0], [1, 1], [2, 2], [3, 39], [3, 40]] {
        let elems: Vec<f32> = (0..n * 35).map(|i| (i as f32 * 0.37).sin()).collect();
        let x = Tensor::from_f32(vec![n, 5, 7], &elems).expect("as many as the shape");
        let at: Vec<i64> = (0..n * k).map(|i| (i * 3 % 5) as i64).collect();
        let inputs = [x, Tensor::from_i64(vec![n, k], &at).expect("as many as the shape")];
        let want = graph::eval::eval(&graph, &inputs).unwrap_or_else(|error| panic!("{error}"));
        for machine in &machines {
            let got = machine.run(&[n as i64, k as i64], &raw(&inputs)).expect("a call");
            let floats = |bytes: &[u8]| -> Vec<f32> {
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four"))).collect()
            };
            for (got, want) in got.iter().zip(raw(&want)) {
                for (a, b) in floats(got).into_iter().zip(floats(&want)) {
                    assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()), "{a}, not {b}");
                }
            }
        }
    }
}

/// The programs of [`errors_are_found_where_strips_write_what_they_read`], as the body of their last kernel.
const KERNELS: [&str; 5] = [
    // The strip adds to its output.
    "
        for i in 0..N parallel {
          strip j in 0..20 {
            %0 = load @0[20*i + j]
            check 0 <= %0 < 5, \"x\"
            bind r = %0
            %3 = load @1[r]
            %4 = load @2[20*i + j]
            %5 = add %3, %4
            store @2[20*i + j], %5
          }
        }",
    // The addresses are copied first.
    "
        for i in 0..N {
          strip j in 0..20 {
            %0 = load @0[20*i + j]
            store @3[j], %0
          }
          strip k in 0..20 {
            %0 = load @3[k]
            check 0 <= %0 < 5, \"x\"
            bind r = %0
            %3 = load @1[r]
            store @2[20*i + k], %3
          }
        }",
    // The addresses are overwritten.
    "
        for i in 0..N {
          strip j in 0..20 {
            %0 = load @0[20*i + j]
            store @3[j], %0
          }
          strip k in 0..20 {
            %0 = load @3[k]
            check 0 <= %0 < 5, \"x\"
            bind r = %0
            %3 = load @1[r]
            store @2[20*i + k], %3
            %5 = const i64 0
            store @3[k], %5
          }
        }",
    // A scalar variable moves the addresses.
    "
        local0: i32
        for i in 0..N parallel {
          block {
            %0 = load @0[20*i]
            %1 = cast i32 %0
            set local0, %1
          }
          strip j in 0..20 {
            %0 = load @0[20*i + j]
            %1 = cast i32 %0
            %2 = get local0
            %3 = max %1, %2
            %4 = cast i64 %3
            check 0 <= %4 < 5, \"x\"
            bind r = %4
            %7 = load @1[r]
            store @2[20*i + j], %7
          }
        }",
    // The strip overwrites the element that a scalar variable was computed from: 1 at first, 0 later.
    "
        local0: i32
        for i in 0..N {
          block {
            %0 = load @2[20*i]
            %1 = cast i32 %0
            set local0, %1
          }
          strip j in 0..20 {
            %0 = load @0[20*i + j]
            %1 = cast i32 %0
            %2 = get local0
            %3 = add %1, %2
            %4 = const i32 1
            %5 = sub %3, %4
            %6 = cast i64 %5
            check 0 <= %6 < 5, \"x\"
            bind r = %6
            %9 = load @1[r]
            store @2[20*i + j], %9
          }
        }",
];

/// Strips that write what they read: an error must be found although their results, their addresses, or both changed.
#[test]
fn errors_are_found_where_strips_write_what_they_read() {
    for kernel in KERNELS {
        let source = format!(
            "program gathers {{
              symbol N = 1..4
              @0 at: i64[20*N] input 0
              @1 x: f32[5] input 1
              @2 y: f32[20*N] output 0
              @3 rows: i64[20] scratch
              input at[N, 20] = @0
              input x[5] = @1
              output y[N, 20] = @2
              kernel ones {{
                strip i in 0..20*N {{
                  %0 = const f32 1.0
                  store @2[i], %0
                }}
              }}
              kernel gather {{{kernel}
              }}
            }}"
        );
        let machines = [Machine::scalar(&source), Machine::new(&source)];
        let x = Tensor::from_f32(vec![5], &[0.5, 1.5, 2.5, 3.5, 4.5]).expect("five elements");
        for n in 1..=4 {
            let call = |at: &[i64]| {
                let at = Tensor::from_i64(vec![n, 20], at).expect("as many as the shape");
                let inputs = raw(&[at, x.clone()]);
                machines.each_ref().map(|machine| machine.run(&[n as i64], &inputs))
            };
            let valid: Vec<i64> = (0..20 * n).map(|i| (i * 3 % 5) as i64).collect();
            let [scalar, vectors] = call(&valid);
            assert!(scalar.is_ok() && scalar == vectors, "{source}");
            for place in [0, 10 * n, 20 * n - 1] {
                let mut at = valid.clone();
                at[place] = 5;
                let [scalar, vectors] = call(&at);
                assert!(scalar.is_err() && scalar == vectors, "index {place} of {n} rows: {source}");
            }
        }
    }
}

/// A strip whose addresses depend on loaded indices and on the number of the iteration, divided among threads.
#[test]
fn threads_change_no_bit_of_a_gather() {
    let source = "program gathers {
      symbol K = 0..70000
      @0 at: i64[K] input 0
      @1 x: f32[5*K] input 1
      @2 y: f32[K] output 0
      input at[K] = @0
      input x[K, 5] = @1
      output y[K] = @2
      kernel gather {
        strip k in 0..K {
          %0 = load @0[k]
          check 0 <= %0 < 5, \"x\"
          bind r = %0
          %3 = load @1[5*k + r]
          %4 = exp %3
          store @2[k], %4
        }
      }
    }";
    let (scalar, machine) = (Machine::scalar(source), Machine::new(source));
    for k in [0, 1, 63, 65, 40_001, 70_000] {
        let at: Vec<i64> = (0..k).map(|i| i * 3 % 5).collect();
        let inputs = |at: &[i64]| {
            let at = Tensor::from_i64(vec![k as usize], at).expect("as many as the shape");
            raw(&[at, floats([k as usize, 5])])
        };
        let alone = machine.run(&[k], &inputs(&at)).expect("a call");
        let calls = AtomicUsize::new(0);
        let divided = machine.run_with(&[k], &inputs(&at), &exec(&calls));
        assert_eq!(divided, Ok(alone), "{k} elements");
        assert!(k < 40_000 || calls.into_inner() > 0, "{k} elements are divided");

        for place in [0, k / 2, k - 1].into_iter().filter(|place| *place >= 0 && *place < k) {
            let mut at = at.clone();
            at[place as usize] = -1;
            let calls = AtomicUsize::new(0);
            let divided = machine.run_with(&[k], &inputs(&at), &exec(&calls));
            let code = scalar.run_with(&[k], &inputs(&at), &exec(&calls)).expect_err("an invalid index");
            assert_eq!(divided, Err(code), "index {place} of {k}");
        }
    }
}
