//! Trials of `bf16x3`: what they find, and which sizes they take.

use crate::models;

use symshape::Dim;
use symshape_compiler::{
    CompileOptions, Result,
    accuracy::{self, Settled, Trial, WITHIN},
    graph::{Graph, Value},
    kernel::MicrokernelSupport,
    scalar::Precision,
    tensor::Tensor,
};
use symshape_runtime::DType;

/// For machines with tile registers.
const TILES: MicrokernelSupport = MicrokernelSupport::Code { multiplies_bytes: false, tiles: true };

fn tried(graph: &Graph, precision: Precision, microkernels: MicrokernelSupport) -> Trial {
    accuracy::trial(graph, &CompileOptions::default().precision(precision).support(microkernels))
        .expect("supported")
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

/// `x` times weights, and less its product with weights that are so many times as large.
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

/// Rows of `x`, of which there are these, through `dense`.
fn model(rows: (i64, i64), less: Option<f32>) -> Graph {
    graph(&[("N", rows.0, rows.1)], |g| {
        let x = input(g, "x", "N")?;
        let y = dense(g, x, less)?;
        g.output("y", y)
    })
}

#[test]
fn a_product_alone_is_off_by_little() {
    let Trial::Off { part, at } = tried(&model((1, 64), None), Precision::Bf16x3, TILES) else {
        panic!("it is tried")
    };
    assert!(part > 1e-7 && part < WITHIN, "{part}");
    assert!(["N=1", "N=32", "N=64"].contains(&at.as_str()), "{at}");
}

#[test]
fn a_difference_of_products_is_off_by_much() {
    let Trial::Off { part, .. } = tried(&model((1, 64), Some(1.01)), Precision::Bf16x3, TILES) else {
        panic!("it is tried")
    };
    assert!(part > 2.0 * WITHIN, "{part}");
}

#[test]
fn what_is_off_by_too_much_stays_f32() {
    let graph = model((1, 8), Some(1.01));
    let options = CompileOptions::default().precision(Precision::Bf16x3).support(TILES);
    let settle = |within: f64| accuracy::settle(&graph, &options, within).expect("supported");
    let settled = settle(WITHIN);
    assert_eq!(settled.precision, Precision::F32);
    let note = settled.note.expect("it is said");
    assert!(note.contains(" of the largest output off in a trial at N="), "{note}");
    assert!(note.contains(", so contractions multiply f32; within "), "{note}");
    for within in [1.0, f64::INFINITY] {
        assert_eq!(settle(within), Settled { precision: Precision::Bf16x3, note: None });
    }
}

#[test]
fn parts_that_are_no_share_are_refused() {
    for within in [-1.0, f64::NAN] {
        let refused =
            accuracy::settle(&model((1, 8), None), &CompileOptions::default(), within).expect_err("no share");
        assert!(refused.message().contains("expected a number from 0 on"), "{refused}");
    }
}

#[test]
fn what_multiplies_no_bf16_is_the_same() {
    let graph = model((1, 64), None);
    assert_eq!(tried(&graph, Precision::F32, TILES), Trial::Same);
    let no_tiles = MicrokernelSupport::Code { multiplies_bytes: false, tiles: false };
    assert_eq!(tried(&graph, Precision::Bf16x3, no_tiles), Trial::Same);
}

/// A product of the sum of two inputs, whose rows must be as many, within these ranges.
fn summed(a: (i64, i64), b: (i64, i64)) -> Graph {
    graph(&[("A", a.0, a.1), ("B", b.0, b.1)], |g| {
        let (x, y) = (input(g, "x", "A")?, input(g, "y", "B")?);
        let sum = g.add(x, y)?;
        let out = dense(g, sum, None)?;
        g.output("out", out)
    })
}

#[test]
fn sizes_that_are_refused_are_passed_over() {
    // The least sizes are equal, and the largest as multiples of 32.
    let Trial::Off { part, .. } = tried(&summed((1, 40), (1, 60)), Precision::Bf16x3, TILES) else {
        panic!("it is tried")
    };
    assert!(part > 1e-7 && part < WITHIN, "{part}");
    let Trial::Untried(why) = tried(&summed((5, 30), (1, 100)), Precision::Bf16x3, TILES) else {
        panic!("all sizes differ")
    };
    assert!(why.to_string().contains("A"), "{why}");
}

#[test]
fn what_takes_long_is_not_tried() {
    let rows = 1 << 26;
    let Trial::Untried(why) = tried(&model((rows, rows), None), Precision::Bf16x3, TILES) else {
        panic!("it takes long")
    };
    assert_eq!(why.message(), "a call at its least sizes takes long");
}
