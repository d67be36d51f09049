//! Softmax with masked elements: powers below `e^-86.5` are zero in `f32` and stay in `f64`.

use symshape::Declaration;
use symshape_compiler::{CompileOptions, emit, graph::Graph, pipeline::Pipeline};
use symshape_runtime::{Context, DType, Model, TensorRef};

const MOST: usize = 101;

/// Masked scores as models have them, and scores on both sides of the limit.
const SCORES: [f64; 12] = [
    -100.0,
    -1.5,
    -86.25,
    -86.75,
    -10_000.0,
    f64::NEG_INFINITY,
    -103.0,
    -87.25,
    -50.0,
    f32::MIN as f64,
    -104.5,
    -3.0,
];

/// `y[S] = softmax(x)` for S in 1..=101.
fn model(dtype: DType) -> Model {
    let mut g = Graph { name: "masked".into(), ..Graph::default() };
    let s = g.symbol("S", Declaration::range(1, MOST as i64)).expect("a range");
    let x = g.input("x", dtype, vec![s]).expect("new");
    let y = g.softmax(x, 0).expect("valid");
    g.output("y", y).expect("new");
    let lowered = Pipeline::new(&g).lower().expect("supported");
    let (model, _) =
        emit::jit::jit(&lowered.program, &lowered.plan, &CompileOptions::default()).expect("supported");
    model
}

/// The scores of a row, of which the first one is the largest.
fn scores(count: usize) -> Vec<f64> {
    (0..count).map(|at| if at == 0 { 0.0 } else { SCORES[at % SCORES.len()] }).collect()
}

/// The shares of all scores, where those below `limit` have none.
fn shares(scores: &[f64], limit: f64) -> Vec<f64> {
    let powers: Vec<f64> = scores.iter().map(|x| if *x < limit { 0.0 } else { x.exp() }).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}

#[test]
fn masked_elements_of_floats_are_zero() {
    let model = model(DType::F32);
    let mut context = Context::new(&model).expect("memory");
    for count in [1, 2, 33, MOST - 1, MOST] {
        let scores = scores(count);
        let x: Vec<f32> = scores.iter().map(|x| *x as f32).collect();
        let shape = [count];
        let outputs = context.run_views(&[TensorRef::new(&shape, &x).expect("sized")]).expect("in range");
        let y = outputs.get(0).elems::<f32>().expect("floats");
        for ((got, exact), x) in y.iter().zip(shares(&scores, -86.5)).zip(&scores) {
            // The smallest shares are subnormal, with an error of one unit.
            let error = (f64::from(*got) - exact).abs();
            assert!(error <= exact * 1e-6 + 1.5e-45, "{got:e} for {x}, instead of {exact:e}");
            assert!(*x >= -86.5 || got.to_bits() == 0, "{got:e} for {x}");
        }
    }
}

#[test]
fn masked_elements_of_doubles_keep_their_shares() {
    let model = model(DType::F64);
    let mut context = Context::new(&model).expect("memory");
    for count in [1, 2, 33, MOST - 1, MOST] {
        let x = scores(count);
        let shape = [count];
        let outputs = context.run_views(&[TensorRef::new(&shape, &x).expect("sized")]).expect("in range");
        let y = outputs.get(0).elems::<f64>().expect("doubles");
        for ((got, exact), x) in y.iter().zip(shares(&x, f64::NEG_INFINITY)).zip(&x) {
            assert!((got - exact).abs() <= exact * 1e-12, "{got:e} for {x}, instead of {exact:e}");
        }
    }
}
