//! The quick form of the evaluator, which trial runs use, next to the definition of each operator.

use crate::{models, random_cases::graph_cases};

use symshape::Dim;
use symshape_compiler::{
    Result,
    graph::{
        Graph, Op, Value,
        eval::{Rounding, eval, eval_quick, eval_rounding, sizes},
        tolerance::RoundingTolerance,
    },
    scalar::Precision,
    tensor::Tensor,
};
use symshape_runtime::DType;

/// Evaluates in both forms and compares the outputs.
fn compare(graph: &Graph, inputs: &[Tensor], at: &str) {
    let expected = eval(graph, inputs).unwrap_or_else(|error| panic!("{at}: {error}"));
    let actual =
        eval_rounding(graph, inputs, Rounding::Quick).unwrap_or_else(|error| panic!("{at}: {error}"));
    let tolerance = RoundingTolerance::of(graph, inputs);
    for (expected, actual) in expected.iter().zip(&actual) {
        tolerance.check(expected, actual).unwrap_or_else(|error| panic!("{at}: {error}\n{graph}"));
    }
}

/// Inputs of a graph with these values of all symbols, in -1..1 or as small integers.
fn inputs(graph: &Graph, size: impl Fn(i64, i64) -> i64) -> Option<Vec<Tensor>> {
    let of = |symbol: &symshape::Symbol| {
        let bounds = graph.facts.bounds(&symbol.into());
        let end = |end: Option<num_bigint::BigInt>| end.and_then(|end| i64::try_from(end).ok());
        Some((symbol.clone(), size(end(bounds.lo)?, end(bounds.hi)?)))
    };
    let binding = graph.symbols.iter().map(of).collect::<Option<_>>()?;
    let input = |(idx, (_, value)): (usize, &(String, Value))| {
        let shape = sizes(graph.shape(*value), &binding).ok()?;
        let elems: usize = shape.iter().product();
        if graph.dtype(*value) == DType::F32 {
            return Some(models::weights(&shape, idx as u32 + 1));
        }
        let bits: Vec<_> = (0..elems)
            .map(|elem| symshape_compiler::scalar::Scalar::from_i64(graph.dtype(*value), elem as i64 % 2))
            .collect();
        Tensor::from_scalars(graph.dtype(*value), shape, &bits)
    };
    graph.inputs.iter().enumerate().map(input).collect()
}

/// A size for the ends of a range.
type Size = fn(i64, i64) -> i64;

/// The sizes at which everything optimised is compared.
const SIZES: [(&str, Size); 5] = [
    ("min", |lo, _| lo),
    ("min+1", |lo, hi| (lo + 1).min(hi)),
    ("odd", |lo, hi| (((lo + hi) / 2) | 1).min(hi)),
    ("max-1", |lo, hi| (hi - 1).max(lo)),
    ("max", |_, hi| hi),
];

#[test]
fn models_have_the_results_of_the_definition() {
    let mut count = 0;
    for (name, make) in models::MODELS {
        let graph = make().expect("a valid graph");
        for (size_name, size) in SIZES {
            let Some(inputs) = inputs(&graph, size) else { continue };
            if eval(&graph, &inputs).is_err() {
                continue;
            }
            compare(&graph, &inputs, &format!("{name} at {size_name}"));
            count += 1;
        }
    }
    assert!(count >= 4 * models::MODELS.len(), "only {count} calls");
}

#[test]
fn random_graphs_have_the_results_of_the_definition() {
    let mut count = 0;
    for case in graph_cases(1..400) {
        let quick = eval_rounding(&case.graph, &case.inputs, Rounding::Quick).expect("as the definition");
        let tolerance = RoundingTolerance::of(&case.graph, &case.inputs);
        for (expected, actual) in case.expected.iter().zip(&quick) {
            tolerance.check(expected, actual).unwrap_or_else(|error| panic!("{error}\n{}", case.text));
        }
        count += 1;
    }
    assert!(count > 100, "only {count} graphs");
}

/// The product of two inputs with these labels, of three for the batch, `N` rows, 37 steps and 19 columns.
fn product(labels: [&str; 3]) -> Result<Graph> {
    let mut g = models::graph("product", &[("N", 1, 40)]);
    let size = |label: u8| match label {
        b'b' => Dim::from(3),
        b'n' => Dim::symbol("N"),
        b'k' => 37.into(),
        b'h' => 2.into(),
        _ => 19.into(),
    };
    let input = |g: &mut Graph, name: &str, labels: &str| {
        g.input(name, DType::F32, labels.bytes().map(size).collect())
    };
    let x = input(&mut g, "x", labels[0])?;
    let y = input(&mut g, "y", labels[1])?;
    let [lhs, rhs, out] = labels.map(|labels| labels.as_bytes().to_vec());
    let op = Op::Contraction { lhs, rhs, out, dtype: DType::F32, precision: Precision::F32 };
    let z = g.push(op, &[x, y])?;
    g.output("z", z)?;
    Ok(g)
}

#[test]
fn products_follow_the_definition_at_each_precision() {
    let orders = [
        ["bnk", "bkm", "bnm"],
        ["bkn", "bmk", "mbn"],
        ["nk", "km", "mn"],
        ["nhk", "hmk", "nm"],
        ["bnk", "bnk", "bn"],
        ["nbk", "bk", "bn"],
        ["kn", "bmk", "bnm"],
        ["n", "m", "nm"],
    ];
    for labels in orders {
        for precision in Precision::ALL {
            let mut graph = product(labels).expect("a valid graph");
            graph.set_precision(precision);
            for (name, size) in SIZES {
                let inputs = inputs(&graph, size).expect("bounds");
                compare_tightly(&graph, &inputs, &format!("{labels:?} by {precision} at {name}"));
            }
        }
    }
}

#[test]
fn calls_have_the_same_bits_alone_and_together() {
    let mut count = 0;
    for (name, make) in models::MODELS {
        let at_precision = |precision| {
            let mut graph = make().expect("a valid graph");
            graph.set_precision(precision);
            graph
        };
        let graphs = [Precision::F32, Precision::Bf16x3, Precision::Bf16].map(at_precision);
        let inputs: Vec<Vec<Tensor>> =
            SIZES.iter().filter_map(|(_, size)| inputs(&graphs[0], size)).collect();
        let calls: Vec<(&Graph, &[Tensor])> =
            inputs.iter().flat_map(|inputs| graphs.each_ref().map(|graph| (graph, &inputs[..]))).collect();
        for ((graph, inputs), together) in calls.iter().zip(eval_quick(&calls)) {
            let alone = eval_rounding(graph, inputs, Rounding::Quick);
            assert_eq!(alone.is_ok(), together.is_ok(), "{name}");
            let (Ok(alone), Ok(together)) = (alone, together) else { continue };
            for (alone, together) in alone.iter().zip(&together) {
                assert_eq!(alone.shape(), together.shape(), "{name}");
                assert!(alone.bytes() == together.bytes(), "{name}: the bits differ");
            }
            count += 1;
        }
    }
    assert!(count >= 10 * models::MODELS.len(), "only {count} calls");
}

#[test]
fn a_call_with_wrong_inputs_does_not_disturb_others() {
    let graph = product(["nk", "km", "nm"]).expect("a valid graph");
    let good = inputs(&graph, |_, hi| hi).expect("bounds");
    let wrong = [good[1].clone(), good[0].clone()];
    let expected = eval_rounding(&graph, &good, Rounding::Quick).expect("supported");
    let results = eval_quick(&[(&graph, &wrong), (&graph, &good)]);
    assert!(results[0].is_err());
    assert_eq!(results[1].as_ref().expect("supported")[0].bytes(), expected[0].bytes());
}

/// The products of rows with constant weights of 40 steps and 300 columns. The weights are operand `side`.
fn layer(side: usize, precision: Precision) -> Result<Graph> {
    let mut g = models::graph("layer", &[("N", 1, 2500)]);
    let [lhs, rhs, out] =
        [["km", "kn", "mn"], ["nk", "km", "nm"]][side].map(|labels| labels.as_bytes().to_vec());
    let shape = [vec![40.into(), Dim::symbol("N")], vec![Dim::symbol("N"), 40.into()]];
    let x = g.input("x", DType::F32, shape[side].clone())?;
    let weights = g.constant(models::weights(&[40, 300], 9))?;
    let op = Op::Contraction { lhs, rhs, out, dtype: DType::F32, precision };
    let operands = if side == 0 { [weights, x] } else { [x, weights] };
    let y = g.push(op, &operands)?;
    g.output("y", y)?;
    Ok(g)
}

#[test]
fn products_of_many_rows_follow_the_definition() {
    for side in [0, 1] {
        for precision in [Precision::F32, Precision::Bf16x3, Precision::Bf16] {
            let graph = layer(side, precision).expect("a valid graph");
            let calls: Vec<_> =
                [2500, 1, 700].map(|rows| inputs(&graph, |_, _| rows).expect("bounds")).into();
            let calls: Vec<(&Graph, &[Tensor])> = calls.iter().map(|inputs| (&graph, &inputs[..])).collect();
            for ((graph, inputs), results) in calls.iter().zip(eval_quick(&calls)) {
                let expected = eval(graph, inputs).expect("supported");
                let at = format!("weights on side {side} by {precision}");
                assert_close(&expected[0], &results.expect("supported")[0], &at);
            }
        }
    }
}

/// Compares within a few roundings of `f32`, which are much less than the error of `bf16x3`.
fn compare_tightly(graph: &Graph, inputs: &[Tensor], at: &str) {
    let expected = eval(graph, inputs).expect("supported");
    let actual = eval_rounding(graph, inputs, Rounding::Quick).expect("supported");
    assert_close(&expected[0], &actual[0], at);
}

fn assert_close(expected: &Tensor, actual: &Tensor, at: &str) {
    let largest = (0..expected.elems()).map(|idx| expected.get(idx).as_f64().abs()).fold(0.0, f64::max);
    assert_eq!(expected.shape(), actual.shape());
    for idx in 0..expected.elems() {
        let difference = (expected.get(idx).as_f64() - actual.get(idx).as_f64()).abs();
        assert!(difference <= 1e-6 * largest, "{at}: element {idx} differs by {difference} of {largest}");
    }
}

#[test]
fn large_products_run_on_several_threads() {
    let build = || {
        let mut g = models::graph("large", &[("N", 1, 129)]);
        let x = g.input("x", DType::F32, vec![Dim::symbol("N"), 192.into()])?;
        let w = g.constant(models::weights(&[192, 256], 7))?;
        let y = g.matmul(x, w)?;
        g.output("y", y)?;
        Ok::<Graph, symshape_compiler::Error>(g)
    };
    let mut graph = build().expect("a valid graph");
    graph.set_precision(Precision::Bf16x3);
    for (name, size) in SIZES {
        let inputs = inputs(&graph, size).expect("bounds");
        compare_tightly(&graph, &inputs, name);
    }
}

#[test]
fn infinities_have_the_products_of_the_definition() {
    let mut graph = product(["nk", "km", "nm"]).expect("a valid graph");
    graph.set_precision(Precision::Bf16x3);
    let mut elems = vec![0.5; 2 * 37];
    elems[3] = f32::INFINITY;
    elems[40] = f32::NAN;
    let x = Tensor::from_f32(vec![2, 37], &elems).expect("sized");
    let inputs = [x, models::weights(&[37, 19], 2)];
    let expected = eval(&graph, &inputs).expect("supported");
    let actual = eval_rounding(&graph, &inputs, Rounding::Quick).expect("supported");
    for idx in 0..expected[0].elems() {
        let [want, got] = [&expected, &actual].map(|tensors| tensors[0].get(idx).as_f64());
        assert!(want == got || want.is_nan() && got.is_nan(), "{want} and {got}");
    }
}
