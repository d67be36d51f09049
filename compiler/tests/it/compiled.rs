//! Machine code of whole graphs, with and without microkernels, against the oracle of graphs.

use crate::machine;
use crate::models;
use crate::random_cases;
use crate::tensors::refs;

use machine::{Machine, Refusal};
use symshape_compiler::{
    CompileOptions, ErrorKind,
    emit::jit::jit,
    graph::{
        self, Graph,
        arbitrary::{self, RandomSource},
        tolerance::RoundingTolerance,
    },
    lower,
    pipeline::{Lowered, Pipeline},
    schedule,
    tensor::{Bytes, Tensor},
};
use symshape_runtime::Context;

/// Asserts that machine code of `graph` computes the oracle's results at all tested sizes.
pub(crate) fn assert_same(name: &str, graph: &Graph, machine: &Machine) {
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
fn machine_code_computes_graphs() {
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

/// Compares machine code with the oracle for a random graph at a random binding. Returns whether outputs were compared.
fn compare_random(bytes: &[u8]) -> Result<bool, String> {
    let graph = arbitrary::graph(&mut RandomSource::new(bytes));
    // The binding reads the bytes from the end, since the graph uses those at the beginning.
    let reversed: Vec<u8> = bytes.iter().rev().copied().collect();
    let mut source = RandomSource::new(&reversed);
    let Some(binding) = arbitrary::binding(&graph, &mut source) else { return Ok(false) };
    let Ok(inputs) = arbitrary::inputs(&graph, &binding, &mut source) else { return Ok(false) };

    let expected = match graph::eval::eval(&graph, &inputs) {
        Ok(expected) => Some(expected),
        // The data may give a data-dependent size that isn't allowed.
        Err(error) if error.kind() == ErrorKind::Usage && !graph.data_dependent.is_empty() => None,
        Err(_) => return Ok(false),
    };
    let tolerance = RoundingTolerance::of(&graph, &inputs);
    let Lowered { program, plan, .. } = match Pipeline::new(&graph).lower() {
        Ok(lowered) => lowered,
        // The guards on a data-dependent size may leave no value.
        Err(error) if error.kind() == ErrorKind::Invalid && expected.is_none() => return Ok(false),
        Err(error) => return Err(format!("{error}\n{graph}")),
    };
    let dims: Vec<i64> = graph.symbols.iter().map(|symbol| binding[symbol]).collect();
    let mut is_compared = false;
    for scalar in [true, false] {
        let machine = match Machine::assemble(program.clone(), &plan, scalar) {
            Ok(machine) => machine,
            // A symbol that no input's shape determines can't be bound.
            Err(error) if error.kind() == ErrorKind::Contract => return Ok(false),
            Err(error) => return Err(format!("{error}\n{graph}")),
        };
        let shapes: Vec<Vec<i64>> =
            inputs.iter().map(|tensor| tensor.shape().iter().map(|dim| *dim as i64).collect()).collect();
        let at = format!("{dims:?}, scalar {scalar}\n{graph}\n{program}");
        let bound = match (machine.check(&shapes), &expected) {
            (Ok(bound), _) => bound,
            // The call contract may already imply that no data-dependent size is allowed.
            (Err(_), None) => continue,
            (Err(refusal), Some(_)) => return Err(format!("{refusal:?} at {at}")),
        };
        let raw: Vec<Vec<u8>> = inputs.iter().map(|tensor| tensor.bytes().to_vec()).collect();
        let (expected, got) = match (&expected, machine.run(&bound, &raw)) {
            (Some(expected), Ok(got)) => (expected, got),
            (None, Err(_)) => continue,
            (Some(_), Err(refusal)) => return Err(format!("{refusal:?} at {at}")),
            (None, Ok(_)) => return Err(format!("a size that isn't allowed at {at}")),
        };
        for (idx, (expected, got)) in expected.iter().zip(got).enumerate() {
            let shape = expected.shape().to_vec();
            let got = Tensor::new(expected.dtype(), shape, Bytes::Owned(got.into()))
                .ok_or_else(|| format!("output {idx} has another size at {at}"))?;
            tolerance.check(expected, &got).map_err(|why| format!("output {idx}, {why} at {at}"))?;
        }
        is_compared = true;
    }
    Ok(is_compared)
}

/// Products whose factors overflow, vanish or give NaN unless they are multiplied in order and without rounding: along
/// memory, across it, over several axes in another order than in memory, of few elements, and as a scan.
const PRODUCTS: &str = "graph products {
  symbol N = 1..5
  symbol K = 1..70
  input x: f32[N, K, 3]
  %0 = view [N, 3, K] [$0, $2, $1] x
  %1 = reduce prod [2] %0
  %2 = reduce prod [1] x
  %3 = reduce prod [1, 2] x
  %4 = reduce prod [1, 2] %0
  %5 = reduce prod [2] x
  %6 = scan prod axis 1 x
  %7 = cast bf16 x
  %8 = reduce prod [1] %7
  output along = %1
  output across = %2
  output both = %3
  output turned = %4
  output few = %5
  output running = %6
  output short = %8
}";

#[test]
fn products_have_the_bits_of_the_definition() {
    let graph = graph::text::parse(PRODUCTS).expect("well-formed");
    let Lowered { program, plan, .. } = Pipeline::new(&graph).lower().expect("all of it can be compiled");
    let factors = [1e30f32, 1e-30, 3.0, -1e38, 1e-38, 0.5, 1e38, 1e38, -1e-38, 1e-38, 7.0];
    for (n, k, zero) in [(1, 1, 0), (2, 7, 0), (3, 12, 17), (5, 33, 40), (2, 70, 99), (5, 70, 0)] {
        let count = n * k * 3;
        let value = |idx: usize| if zero > 0 && idx % zero == zero - 1 { 0.0 } else { factors[idx % 11] };
        let values: Vec<f32> = (0..count).map(value).collect();
        let input = Tensor::from_f32(vec![n, k, 3], &values).expect("as many as the shape");
        let expected = graph::eval::eval(&graph, std::slice::from_ref(&input)).expect("it can be evaluated");
        for scalar in [true, false] {
            let machine =
                Machine::assemble(program.clone(), &plan, scalar).expect("all of it can be compiled");
            let got =
                machine.run(&[n as i64, k as i64], &[input.bytes().to_vec()]).expect("within the contract");
            for ((name, _), (expected, got)) in graph.outputs.iter().zip(expected.iter().zip(got)) {
                let got = Tensor::new(expected.dtype(), expected.shape().to_vec(), Bytes::Owned(got.into()))
                    .expect("an output fits its shape");
                for elem in 0..expected.elems() {
                    let (a, b) = (got.get(elem).as_f64(), expected.get(elem).as_f64());
                    let same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
                    assert!(same, "{name} at {n}, {k}, scalar {scalar} [{elem}]: {a}, not {b}");
                }
            }
        }
    }
}

/// Reductions of few or no elements start from the limits of their own type, in strips and in rows of strips.
#[test]
fn empty_reductions_follow_the_definition() {
    let kinds = ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "bool", "f16", "bf16", "f32", "f64"];
    for kind in kinds {
        let reduces: String = ["max", "min", "sum", "prod"]
            .iter()
            .enumerate()
            .map(|(idx, op)| {
                format!(
                    "  %{} = reduce {op} [0, 1] x\n  %{} = reduce {op} [1] x\n  output all_{op} = %{}\n  output row_{op} = %{}\n",
                    2 * idx, 2 * idx + 1, 2 * idx, 2 * idx + 1
                )
            })
            .filter(|line| kind != "bool" || !(line.contains("sum") || line.contains("prod")))
            .collect();
        let text = format!(
            "graph ends {{\n  symbol N = 0..3\n  symbol K = 0..40\n  input x: {kind}[N, K]\n{reduces}}}"
        );
        let graph = graph::text::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let Lowered { program, plan, .. } = Pipeline::new(&graph).lower().expect("all of it can be compiled");
        for scalar in [true, false] {
            let machine =
                Machine::assemble(program.clone(), &plan, scalar).expect("all of it can be compiled");
            for dims in [[0, 0], [1, 0], [3, 0], [0, 7], [1, 1], [3, 33]] {
                let binding = graph.symbols.iter().cloned().zip(dims).collect();
                let bytes: Vec<u8> = (0..255).collect();
                let input =
                    arbitrary::inputs(&graph, &binding, &mut RandomSource::new(&bytes)).expect("small");
                let tolerance = RoundingTolerance::of(&graph, &input);
                let expected = graph::eval::eval(&graph, &input).expect("it can be evaluated");
                let got = machine.run(&dims, &[input[0].bytes().to_vec()]).expect("within the contract");
                for ((name, _), (expected, got)) in graph.outputs.iter().zip(expected.iter().zip(got)) {
                    let got =
                        Tensor::new(expected.dtype(), expected.shape().to_vec(), Bytes::Owned(got.into()))
                            .expect("an output fits its shape");
                    tolerance
                        .check(expected, &got)
                        .unwrap_or_else(|why| panic!("{kind}, {name} at {dims:?}, scalar {scalar}: {why}"));
                }
            }
        }
    }
}

/// Integers that are wider than lanes are reduced one by one.
#[test]
fn wide_integers_are_reduced() {
    let (graph, machine) = built(
        "graph wide {
  symbol A = 0..40
  input x: f32[A]
  %0 = index i64[3, A] $0 - 3*$1
  %1 = reduce max [1] %0
  %2 = reduce min [0, 1] %0
  %3 = reduce sum [1] %0
  output most = %1
  output least = %2
  output sum = %3
}",
    );
    for a in [0, 1, 2, 8, 33, 40] {
        let input = models::weights(&[a], 3);
        let expected = graph::eval::eval(&graph, std::slice::from_ref(&input)).expect("it can be evaluated");
        let got = machine.run(&[a as i64], &[input.bytes().to_vec()]).expect("within the contract");
        for (expected, got) in expected.iter().zip(got) {
            assert_eq!(expected.bytes(), got, "at {a}");
        }
    }
}

/// An index that all elements share must not be loaded if there are no elements.
const EMPTY: &str = "graph empty {
  symbol A = 0..7
  symbol B = 1..7
  input x: f32[B, A]
  input none: f32[0]
  input place: i64[B]
  %0 = view [1] [$0] place
  %1 = gather [1, A] [@1[$0], $1] x, %0
  %2 = neg %1
  %3 = reduce sum [1] %1
  %4 = gather [0] [@1[$0]] none, place
  %5 = view [0, 2] [0] %4
  %6 = neg %5
  output row = %2
  output sum = %3
  output nothing = %6
}";

#[test]
fn empty_loops_load_nothing() {
    let graph = graph::text::parse(EMPTY).expect("well-formed");
    let Lowered { program, plan, .. } = Pipeline::new(&graph).lower().expect("all of it can be compiled");
    for scalar in [true, false] {
        let machine = Machine::assemble(program.clone(), &plan, scalar).expect("all of it can be compiled");
        for (a, b, place) in [(0, 1, 0), (0, 3, 99), (0, 1, -7), (1, 1, 0), (7, 7, 6), (5, 2, -1), (5, 2, 2)]
        {
            let x = models::weights(&[b, a], 3);
            let places = Tensor::from_i64(vec![b], &vec![place; b]).expect("as many as the shape");
            let inputs = [x, Tensor::from_f32(vec![0], &[]).expect("none"), places];
            let raw: Vec<Vec<u8>> = inputs.iter().map(|tensor| tensor.bytes().to_vec()).collect();
            let expected = graph::eval::eval(&graph, &inputs);
            let got = machine.run(&[a as i64, b as i64], &raw);
            assert_eq!(expected.is_ok(), a == 0 || (0..b as i64).contains(&place));
            assert_eq!(got.is_ok(), expected.is_ok(), "at {a}, {b}, {place}");
            let (Ok(expected), Ok(got)) = (expected, got) else { continue };
            for (expected, got) in expected.iter().zip(got) {
                assert_eq!(expected.bytes(), got, "at {a}, {b}, {place}, scalar {scalar}");
            }
        }
    }
}

/// Rows of a data-dependent length: softmax over them, and sums and products across them in wider types.
const FOUND_ROWS: &str = "graph found_rows {
  symbol N = 1..40
  data_dependent M
  input x: f32[5, N]
  input limit: i64[]
  %0 = bind M from [1] to [N] limit
  %1 = view [5, M] [$0, $1] x
  %2 = reduce max [1] %1
  %3 = view [5, M] [$0] %2
  %4 = sub %1, %3
  %5 = exp %4
  %6 = reduce sum [1] %5
  %7 = view [5, M] [$0] %6
  %8 = div %5, %7
  %9 = cast bf16 %1
  %10 = reduce sum [0] %9
  %11 = reduce prod [0] %1
  output shares = %8
  output short = %10
  output product = %11
}";

#[test]
fn scratch_fits_data_dependent_sizes() {
    let graph = graph::text::parse(FOUND_ROWS).expect("well-formed");
    let Lowered { program, plan, .. } = Pipeline::new(&graph).lower().expect("memory is bounded by N");
    let (model, _) = jit(&program, &plan, &CompileOptions::default()).expect("all of it can be compiled");
    let mut context = Context::new(&model).expect("little memory");
    for (n, m) in [(1, 1), (7, 3), (40, 1), (40, 40), (33, 17)] {
        let x = models::weights(&[5, n], 7);
        let limit = Tensor::from_i64(vec![], &[m]).expect("one element");
        let inputs = [x, limit];
        let expected = graph::eval::eval(&graph, &inputs).expect("it can be evaluated");
        let found = context.run_views(&refs(&inputs)).expect("within the contract");
        let tolerance = RoundingTolerance::of(&graph, &inputs);
        for (idx, expected) in expected.iter().enumerate() {
            let view = found.get(idx);
            assert_eq!(view.shape(), expected.shape(), "output {idx} at {n}, {m}");
            let got = Tensor::new(view.dtype(), view.shape().to_vec(), Bytes::Owned(view.bytes().into()));
            let check = tolerance.check(expected, &got.expect("it fits"));
            check.unwrap_or_else(|why| panic!("{why} at {n}, {m}"));
        }
    }
}

/// A part of a concatenation is computed before its offset is known. A data-dependent size must equal another one,
/// which constrains sizes that are known from the start.
const LATE: &str = "graph late {
  symbol A = 0..7
  data_dependent M
  require M == 2*A, \"axes with label k\"
  input x: f32[6, 2*A]
  input limit: i64[]
  %0 = reduce max [1] x
  %1 = exp %0
  %2 = bind M from [0] to [6] limit
  %3 = view [M] [$0] %1
  %4 = concat axis 0 %3, %1, %3
  %5 = view [M, 2*A] [$0, $1] x
  %6 = contraction f32 [mk, kn -> mn] %5, %5
  output whole = %4
  output product = %6
}";

#[test]
fn what_is_found_late_moves_nothing_that_runs_before() {
    let (graph, machine) = built(LATE);
    for (a, m) in [(0, 0), (1, 2), (2, 4), (3, 6), (1, 1), (3, 0), (2, 7), (7, 6), (5, -1)] {
        let x = models::weights(&[6, 2 * a], 5);
        follows_the_oracle(&graph, &machine, a, x, m, m == 2 * a as i64);
    }
}

#[test]
fn offsets_that_are_found_late_move_nothing_that_runs_before() {
    let (graph, machine) = built(LATE_OFFSET);
    for (a, m) in [(1, 0), (1, 1), (2, 0), (2, 1), (3, 2), (6, 3), (6, 6), (7, 7), (7, 0), (3, 4), (2, -1)] {
        let x = models::weights(&[a, 6], 5);
        follows_the_oracle(&graph, &machine, a, x, m, (0..=a as i64).contains(&m));
    }
}

/// Compares the outputs at size `a` with the oracle's, which `is_valid` says to exist.
fn follows_the_oracle(graph: &Graph, machine: &Machine, a: usize, x: Tensor, m: i64, is_valid: bool) {
    let limit = Tensor::from_i64(vec![], &[m]).expect("one element");
    let inputs = [x, limit];
    let raw: Vec<Vec<u8>> = inputs.iter().map(|tensor| tensor.bytes().to_vec()).collect();
    let got = machine.run(&[a as i64], &raw);
    let expected = graph::eval::eval(graph, &inputs);
    assert_eq!(expected.is_ok(), is_valid);
    assert_eq!(got.is_ok(), is_valid, "at {a}, {m}");

    let (Ok(expected), Ok(got)) = (expected, got) else { return };
    let tolerance = RoundingTolerance::of(graph, &inputs);
    for (expected, got) in expected.iter().zip(got) {
        let got = Tensor::new(expected.dtype(), expected.shape().to_vec(), Bytes::Owned(got.into()));
        let check = tolerance.check(expected, &got.expect("an output fits its shape"));
        check.unwrap_or_else(|why| panic!("{why} at {a}, {m}"));
    }
}

/// The first part of a concatenation is also padded, and is computed before the offset of the concatenation is known.
const LATE_OFFSET: &str = "graph late_offset {
  symbol A = 1..7
  data_dependent M
  require 0 <= M, \"a count\"
  require M <= A, \"a count\"
  input x: f32[A, 6]
  input limit: i64[]
  %0 = exp x
  %1 = pad 0.0 [1, 0] [1, 0] %0
  %2 = reduce sum [1] %1
  %3 = bind M from [0] to [A] limit
  %4 = view [M, 6] [$0, $1] x
  %5 = neg %4
  %6 = tanh x
  %7 = concat axis 0 %0, %6
  %8 = concat axis 0 %5, %7
  %9 = reduce max [1] %8
  output padded = %2
  output rows = %9
}";

/// The graph of this text, and machine code for it.
fn built(text: &str) -> (Graph, Machine) {
    let graph = graph::text::parse(text).expect("well-formed");
    let Lowered { program, plan, .. } = Pipeline::new(&graph).lower().expect("all of it can be compiled");
    let machine = Machine::assemble(program, &plan, false).expect("all of it can be compiled");
    (graph, machine)
}

/// The results of the artefact and of the oracle for inputs of these shapes.
fn bound(graph: &Graph, machine: &Machine, shapes: &[&[usize]]) -> Result<Vec<i64>, Refusal> {
    let sizes: Vec<Vec<i64>> =
        shapes.iter().map(|shape| shape.iter().map(|size| *size as i64).collect()).collect();
    let checked = machine.check(&sizes);
    let evaluated = graph::eval::bind(graph, shapes);
    match (&checked, evaluated) {
        (Ok(dims), Ok(binding)) => {
            assert_eq!(*dims, graph.symbols.iter().map(|symbol| binding[symbol]).collect::<Vec<_>>());
        }
        (Err(_), Err(_)) => {}
        (checked, evaluated) => panic!("{checked:?}, but the oracle says {evaluated:?} of {shapes:?}"),
    }
    checked
}

#[test]
fn axes_shorter_than_nothing_are_refused() {
    let (graph, machine) = built(
        "graph rest {
  symbol K = 1..128
  input x: f32[2, K]
  %0 = view [2, K - 64] [$0, $1 + 64] x
  output y = %0
}",
    );
    for k in [1, 62, 63] {
        let refusal = bound(&graph, &machine, &[&[2, k]]).expect_err("nothing is that short");
        assert_eq!((refusal.code, refusal.symbol.as_str()), (4, "0 <= K - 64"));
    }
    for k in [64, 65, 127, 128] {
        assert_eq!(bound(&graph, &machine, &[&[2, k]]), Ok(vec![k as i64]));
        let x = models::weights(&[2, k], 3);
        let y = machine.run(&[k as i64], &[x.bytes().to_vec()]).expect("within the contract");
        let expected = graph::eval::eval(&graph, &[x]).expect("within the contract");
        assert_eq!(y[0], expected[0].bytes(), "K = {k}");
    }
}

#[test]
fn dims_are_solved_whatever_equals_their_symbols() {
    for shapes in
        [["A", "A + C", "2*B"], ["B", "B + C", "2*A"], ["A", "B + C", "2*B"], ["B", "2*A", "A + 3*C"]]
    {
        let inputs: String =
            shapes.iter().enumerate().map(|(k, dim)| format!("  input x{k}: f32[{dim}]\n")).collect();
        let (graph, machine) = built(&format!(
            "graph equal {{
  symbol A = 1..64
  symbol B = 1..64
  symbol C = 0..64
  require A == B, \"equal\"
{inputs}  output y = x0
}}"
        ));
        // A, B and C are 5, 5 and 2.
        let size = |dim: &str| match dim {
            "A" | "B" => 5,
            "2*A" | "2*B" => 10,
            "A + C" | "B + C" => 7,
            _ => 11,
        };
        let sizes = shapes.map(|dim| [size(dim)]);
        let given = sizes.each_ref().map(|size| &size[..]);
        assert_eq!(bound(&graph, &machine, &given), Ok(vec![5, 5, 2]), "{shapes:?}");
        let mut others = sizes;
        others[0][0] = 4;
        let refusal = bound(&graph, &machine, &others.each_ref().map(|size| &size[..]));
        assert!(refusal.is_err(), "{shapes:?}: {refusal:?}");
    }
}

#[test]
fn machine_code_computes_random_graphs() {
    random_cases::check_random(60, 160, 15, compare_random);
}
