//! The accuracy check of `bf16x3`: its results, and the sizes that it runs.

use crate::models;

use symshape::Dim;
use symshape_compiler::{
    CompileOptions, Result,
    accuracy::{self, AccuracyCheck, MAX_ERROR, PrecisionChoice, TrialReport},
    graph::{Graph, Value},
    kernel::MicrokernelSupport,
    pipeline::Pipeline,
    scalar::Precision,
    tensor::Tensor,
};
use symshape_runtime::DType;

/// For machines with tile registers.
const TILES: MicrokernelSupport = MicrokernelSupport::Native {
    multiplies_bytes: false,
    sums_pairs: false,
    tiles: true,
    bf16_matrices: false,
    reads_halves: false,
    lanes: 4,
};

fn checked(graph: &Graph, precision: Precision, microkernels: MicrokernelSupport) -> AccuracyCheck {
    accuracy::check_accuracy(graph, &CompileOptions::default().precision(precision).support(microkernels))
        .expect("supported")
}

/// The report of a check at `bf16x3` that runs.
fn measured(graph: &Graph) -> TrialReport {
    match checked(graph, Precision::Bf16x3, TILES) {
        AccuracyCheck::Measured(report) => report,
        other => panic!("it runs, not {other:?}"),
    }
}

/// A graph with these symbols.
fn graph(symbols: &[(&str, i64, i64)], build: impl FnOnce(&mut Graph) -> Result<()>) -> Graph {
    let mut g = models::graph("tried", symbols);
    build(&mut g).expect("a valid graph");
    g
}

fn input(g: &mut Graph, name: &str, rows: &str) -> Result<Value> {
    g.input(name, DType::F32, vec![Dim::symbol(rows), 64.into()])
}

/// `x` times weights, minus `x` times the same weights scaled by `less`.
fn dense(g: &mut Graph, x: Value, less: Option<f32>) -> Result<Value> {
    let weights = models::weights(&[64, 96], 5);
    let numbers: Vec<f32> = (0..64 * 96).map(|idx| weights.get(idx).as_f64() as f32).collect();
    let w = g.constant(weights)?;
    let y = g.matmul(x, w)?;
    let Some(times) = less else { return Ok(y) };
    let scaled: Vec<f32> = numbers.iter().map(|x| x * times).collect();
    let w = g.constant(Tensor::from_f32(vec![64, 96], &scaled).expect("of the same size"))?;
    let less = g.matmul(x, w)?;
    g.sub(y, less)
}

/// [`dense`] on an input with a number of rows in this range.
fn model(rows: (i64, i64), less: Option<f32>) -> Graph {
    graph(&[("N", rows.0, rows.1)], |g| {
        let x = input(g, "x", "N")?;
        let y = dense(g, x, less)?;
        g.output("y", y)
    })
}

#[test]
fn one_contraction_has_a_small_error() {
    let report = measured(&model((1, 64), None));
    let max_error = report.max_error();
    assert!(max_error > 1e-7 && max_error < MAX_ERROR, "{max_error}");
    let sizes: Vec<&str> = report.calls.iter().map(|call| &call.at[..]).collect();
    assert_eq!(sizes, ["N=1", "N=64", "N=32"]);
    assert_eq!((report.contractions, report.share), (1, 1.0));
    let line = report.to_string();
    let start =
        "1 contraction with 100.0% of the multiplications ran on seeded inputs; the outputs are off by ";
    assert!(line.starts_with(start) && line.contains(" at N=1, ") && line.ends_with(" at N=32"), "{line}");
}

#[test]
fn a_difference_of_contractions_has_a_large_error() {
    let max_error = measured(&model((1, 64), Some(1.01))).max_error();
    assert!(max_error > 2.0 * MAX_ERROR, "{max_error}");
}

#[test]
fn models_above_the_limit_stay_f32() {
    let graph = model((1, 8), Some(1.01));
    let options = CompileOptions::default().precision(Precision::Bf16x3).support(TILES);
    let choose = |limit: f64| accuracy::choose_precision(&graph, &options, limit).expect("supported");
    let choice = choose(MAX_ERROR);
    assert_eq!(choice.precision, Precision::F32);
    let note = choice.note.expect("a note");
    assert!(note.contains("the error at N="), "{note}");
    assert!(note.contains(", so contractions multiply f32; a limit of "), "{note}");
    assert!(choice.kept.is_empty() && choice.report.is_some());
    for limit in [1.0, f64::INFINITY] {
        let PrecisionChoice { precision, kept, note, report } = choose(limit);
        assert_eq!((precision, kept.len(), note), (Precision::Bf16x3, 0, None));
        assert_eq!(report.is_some(), limit == 1.0);
    }
}

#[test]
fn negative_and_nan_limits_are_refused() {
    for limit in [-1.0, f64::NAN] {
        let refused = accuracy::choose_precision(&model((1, 8), None), &CompileOptions::default(), limit)
            .expect_err("no limit");
        assert!(refused.message().contains("expected a number of 0 or more"), "{refused}");
    }
}

#[test]
fn models_without_bf16_multiplications_are_identical() {
    let graph = model((1, 64), None);
    assert_eq!(checked(&graph, Precision::F32, TILES), AccuracyCheck::Identical);
    let no_tiles = MicrokernelSupport::Native {
        multiplies_bytes: false,
        sums_pairs: false,
        tiles: false,
        bf16_matrices: false,
        reads_halves: false,
        lanes: 4,
    };
    assert_eq!(checked(&graph, Precision::Bf16x3, no_tiles), AccuracyCheck::Identical);
}

/// [`dense`] on the sum of two inputs, which need equal numbers of rows in these ranges.
fn summed(a: (i64, i64), b: (i64, i64)) -> Graph {
    graph(&[("A", a.0, a.1), ("B", b.0, b.1)], |g| {
        let (x, y) = (input(g, "x", "A")?, input(g, "y", "B")?);
        let sum = g.add(x, y)?;
        let out = dense(g, sum, None)?;
        g.output("out", out)
    })
}

#[test]
fn refused_sizes_are_skipped() {
    // The smallest sizes are equal, and the largest as multiples of 32.
    let max_error = measured(&summed((1, 40), (1, 60))).max_error();
    assert!(max_error > 1e-7 && max_error < MAX_ERROR, "{max_error}");
    let AccuracyCheck::Skipped(why) = checked(&summed((5, 30), (1, 100)), Precision::Bf16x3, TILES) else {
        panic!("all sizes differ")
    };
    assert!(why.to_string().contains("A"), "{why}");
}

#[test]
fn models_that_take_long_are_skipped() {
    let rows = 1 << 26;
    let AccuracyCheck::Skipped(why) = checked(&model((rows, rows), None), Precision::Bf16x3, TILES) else {
        panic!("it takes long")
    };
    assert_eq!(why.message(), "calls take too long even at the smallest sizes");
}

/// A dense layer, a difference that amplifies errors, and another dense layer, each a node with a name.
fn one_sensitive_place() -> Graph {
    graph(&[("N", 1, 48)], |g| {
        let x = input(g, "x", "N")?;
        g.origin = "first".into();
        // Other weights than those of the difference: equal contractions become one.
        let w = g.constant(models::weights(&[64, 96], 11))?;
        let first = g.matmul(x, w)?;
        g.origin = "sensitive".into();
        let difference = dense(g, x, Some(1.01))?;
        g.origin = "last".into();
        let w = g.constant(models::weights(&[96, 64], 9))?;
        let last = g.matmul(first, w)?;
        g.output("difference", difference)?;
        g.output("last", last)
    })
}

#[test]
fn only_the_place_that_causes_the_error_stays_f32() {
    let mut graph = one_sensitive_place();
    let options = CompileOptions::default().precision(Precision::Bf16x3).support(TILES);
    let choice = accuracy::choose_precision(&graph, &options, MAX_ERROR).expect("supported");
    assert_eq!(choice.precision, Precision::Bf16x3);
    assert_eq!(choice.kept.iter().collect::<Vec<_>>(), ["sensitive"]);
    let note = choice.note.expect("a note");
    assert!(
        note.contains("so the contractions of node `sensitive` multiply f32; bf16x3 keeps 50%"),
        "{note}"
    );
    let report = choice.report.expect("it ran");
    assert!(report.max_error() <= MAX_ERROR && report.contractions == 2, "{report:?}");

    let on_tiles = |graph: &Graph| {
        let lowered = Pipeline::new(graph).options(options).lower().expect("supported");
        lowered.program.on_tiles_count()
    };
    let before = on_tiles(&graph);

    // The marked graph passes the check as it is.
    assert!(graph.keep_f32(&choice.kept).is_empty());
    assert_eq!(measured(&graph), report);
    assert_eq!((before, on_tiles(&graph)), (4, 2));
    let again = accuracy::choose_precision(&graph, &options, MAX_ERROR).expect("supported");
    assert!(again.kept.is_empty() && again.note.is_none(), "{again:?}");
    let missing = graph.keep_f32(&["first".to_string(), "none".to_string()].into());
    assert_eq!(missing.into_iter().collect::<Vec<_>>(), ["none"]);
}
