//! Activations through the importer that have another form than their definition.

use crate::{
    compiled::assert_same,
    machine::Machine,
    protos::{float, imported, node},
};
use symshape_compiler::{
    graph::{Graph, eval::eval},
    import::proto::GraphProto,
    pipeline::{Lowered, Pipeline},
    tensor::Tensor,
};

/// Largest relative error: a few units in the last place of `f32`.
const MAX_ERROR: f64 = 6e-7;

/// `x * tanh(ln(1 + e^x))` as one operator, or as three.
fn mish(is_whole: bool) -> Graph {
    let nodes = if is_whole {
        vec![node("Mish", &["x"], &["y"])]
    } else {
        vec![
            node("Softplus", &["x"], &["soft"]),
            node("Tanh", &["soft"], &["weight"]),
            node("Mul", &["x", "weight"], &["y"]),
        ]
    };
    let graph = GraphProto { node: nodes, input: vec![float("x", &["N"])], ..Default::default() };
    imported(graph, &["N=0..3000"])
}

#[test]
fn mish_is_precise_for_all_sizes_of_operands() {
    let mut x: Vec<f32> = (-1000..1000).map(|k| k as f32 * 0.11).collect();
    x.extend((-30..30).flat_map(|k| [10f32.powi(k), -(10f32.powi(k))]));
    x.extend([0.0, f32::INFINITY, f32::NAN, f32::MAX]);
    for is_whole in [true, false] {
        let graph = mish(is_whole);
        let input = Tensor::from_f32(vec![x.len()], &x).expect("as many elements");
        let y = &eval(&graph, &[input]).expect("in range")[0];
        for (idx, &x) in x.iter().enumerate() {
            let exact = f64::from(x) * f64::from(x).exp().ln_1p().tanh();
            let exact = if x > 30.0 { f64::from(x) } else { exact };
            let found = y.get(idx).as_f64();
            let is_right = if exact.is_finite() {
                (found - exact).abs() <= MAX_ERROR * exact.abs() + f64::from(f32::MIN_POSITIVE)
            } else {
                found == exact || found.is_nan() && exact.is_nan()
            };
            assert!(is_right, "{found:e}, not {exact:e}, of {x:e}");
        }

        let Lowered { program, plan, .. } = Pipeline::new(&graph).lower().expect("supported");
        // The three operators have the form of the whole one.
        assert!(!program.to_string().contains("log1p"), "{program}");
        let machine = Machine::assemble(program, &plan, false).expect("supported");
        assert_same("mish", &graph, &machine);
    }
}
