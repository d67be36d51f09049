//! Random operators: their distributions, and that an element depends on the seed and its place alone.

use crate::foreign::Program;
use crate::protos::{float, int64_tensor, node};
use crate::tensors::refs;
use symshape_compiler::{
    CompileOptions,
    graph::{Graph, eval::eval},
    import::{
        ImportOptions, Model, import, parse_bind, parse_dim,
        proto::{
            AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
            ValueInfoProto,
        },
    },
    pipeline::{Pipeline, jit},
    tensor::{Bytes, Tensor},
};
use symshape_runtime::Context;

fn value(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: name.into(), ty: None }
}

fn with_float(mut node: NodeProto, name: &str, value: f32) -> NodeProto {
    node.attribute.push(AttributeProto { name: name.into(), kind: 1, f: value, ..Default::default() });
    node
}

fn with_int(mut node: NodeProto, name: &str, value: i64) -> NodeProto {
    node.attribute.push(AttributeProto { name: name.into(), kind: 2, i: value, ..Default::default() });
    node
}

/// A model with the input `x: f32[N, C]`, these nodes, and these outputs.
fn model(nodes: Vec<NodeProto>, outputs: &[&str]) -> ModelProto {
    let graph = GraphProto {
        node: nodes,
        input: vec![float("x", &["N", "C"])],
        output: outputs.iter().map(|name| value(name)).collect(),
        ..Default::default()
    };
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 21 }];
    ModelProto { ir_version: 10, graph: Some(graph), opset_import, ..Default::default() }
}

fn options() -> ImportOptions {
    let dims = ["N=1..512", "C=1..256"].map(|text| parse_dim(text).expect("a range"));
    ImportOptions { dims: dims.into(), ..Default::default() }
}

fn imported(proto: &ModelProto) -> Graph {
    import(&Model::from(proto.clone()), &options()).expect("random operators are imported")
}

fn x(rows: usize, columns: usize) -> Tensor {
    Tensor::from_f32(vec![rows, columns], &vec![0.5; rows * columns]).expect("as many elements")
}

fn seed(value: i64) -> Tensor {
    Tensor::from_i64(Vec::new(), &[value]).expect("one element")
}

/// The outputs of the oracle.
fn drawn(graph: &Graph, rows: usize, columns: usize, with_seed: i64) -> Vec<Vec<f64>> {
    let outputs = eval(graph, &[x(rows, columns), seed(with_seed)]).expect("it computes");
    let elems = |tensor: &Tensor| (0..tensor.elems()).map(|k| tensor.get(k).as_f64()).collect();
    outputs.iter().map(elems).collect()
}

/// The largest distance of the empirical distribution from `cdf`, times the root of the number of samples.
fn kolmogorov(mut samples: Vec<f64>, cdf: impl Fn(f64) -> f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let count = samples.len() as f64;
    let distance = |(k, sample): (usize, &f64)| {
        let at = cdf(*sample);
        (at - k as f64 / count).abs().max(((k + 1) as f64 / count - at).abs())
    };
    samples.iter().enumerate().map(distance).fold(0.0, f64::max) * count.sqrt()
}

/// The distribution function of the standard normal distribution, by the series of Abramowitz and Stegun, 26.2.11.
fn normal_cdf(z: f64) -> f64 {
    let mut term = z;
    let mut sum = z;
    for k in 1..100 {
        term *= z * z / f64::from(2 * k + 1);
        sum += term;
    }
    0.5 + (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt() * sum
}

fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len() as f64
}

/// The mean of the products of both samples' deviations from their means.
fn covariance(a: &[f64], b: &[f64]) -> f64 {
    let means = [mean(a), mean(b)];
    let products = a.iter().zip(b).map(|(a, b)| (a - means[0]) * (b - means[1]));
    products.sum::<f64>() / a.len() as f64
}

#[test]
fn uniform_numbers_are_uniform_and_independent() {
    let like = |output: &str| node("RandomUniformLike", &["x"], &[output]);
    let graph = imported(&model(vec![like("a"), like("b")], &["a", "b"]));
    let drawn = drawn(&graph, 128, 256, 12345);
    let [a, b] = [&drawn[0], &drawn[1]];
    let count = a.len() as f64;

    for samples in [a, b] {
        assert!(samples.iter().all(|sample| (0.0..1.0).contains(sample)));
        // The bounds are four standard deviations, and the 99.99% quantile of Kolmogorov's distribution.
        assert!((mean(samples) - 0.5).abs() < 4.0 * (1.0 / 12.0 / count).sqrt());
        assert!((covariance(samples, samples) - 1.0 / 12.0).abs() < 4.0 * (1.0 / 180.0 / count).sqrt());
        assert!(kolmogorov(samples.clone(), |x| x) < 2.23);
        let next = &samples[1..];
        assert!((covariance(&samples[..next.len()], next)).abs() < 4.0 / 12.0 / count.sqrt());
    }
    assert!(covariance(a, b).abs() < 4.0 / 12.0 / count.sqrt());
}

#[test]
fn normal_numbers_are_normal_and_independent() {
    let like = |output: &str| node("RandomNormalLike", &["x"], &[output]);
    let scaled = with_float(with_float(like("c"), "mean", 3.0), "scale", 0.5);
    let graph = imported(&model(vec![like("a"), like("b"), scaled], &["a", "b", "c"]));
    let drawn = drawn(&graph, 128, 256, -7);
    let [a, b] = [&drawn[0], &drawn[1]];
    let c: Vec<f64> = drawn[2].iter().map(|sample| (sample - 3.0) / 0.5).collect();
    let count = a.len() as f64;

    for samples in [a, b, &c] {
        assert!(mean(samples).abs() < 4.0 / count.sqrt());
        assert!((covariance(samples, samples) - 1.0).abs() < 4.0 * (2.0 / count).sqrt());
        assert!(kolmogorov(samples.clone(), normal_cdf) < 2.23);
        let fourth: Vec<f64> = samples.iter().map(|sample| sample.powi(4)).collect();
        assert!((mean(&fourth) - 3.0).abs() < 4.0 * (96.0 / count).sqrt());
    }
    assert!(covariance(a, b).abs() < 4.0 / count.sqrt());
    assert!(covariance(a, &c).abs() < 4.0 / count.sqrt());
}

#[test]
fn normal_numbers_are_quantiles() {
    let graph = imported(&model(vec![node("RandomNormalLike", &["x"], &["y"])], &["y"]));
    let uniform = imported(&model(vec![node("RandomUniformLike", &["x"], &["y"])], &["y"]));
    let normal = drawn(&graph, 32, 64, 3).remove(0);
    let uniform = drawn(&uniform, 32, 64, 3).remove(0);
    // Both take the same word, of which the uniform number has 24 bits. The word is twice the tail's probability.
    for (z, share) in normal.iter().zip(uniform) {
        let tail = normal_cdf(-z.abs());
        assert!(
            (tail - share / 2.0).abs() < 2_f64.powi(-24) + 1e-7,
            "{z} has the tail {tail}, not {share} / 2"
        );
    }
}

#[test]
fn classes_follow_their_probabilities() {
    let sampled = with_int(node("Multinomial", &["logits"], &["y"]), "sample_size", 20_000);
    let mut proto = model(vec![node("Identity", &["x"], &["z"]), sampled], &["y", "z"]);
    let weights: [f64; 5] = [0.1, 0.0, 0.4, 0.25, 0.25];
    let logits: Vec<f32> = weights.iter().map(|weight| (weight * 8.0).ln() as f32).collect();
    proto.graph.as_mut().expect("there is one").initializer.push(TensorProto {
        name: "logits".into(),
        dims: vec![1, 5],
        data_type: 1,
        float_data: logits,
        ..Default::default()
    });
    let samples = drawn(&imported(&proto), 1, 1, 99).remove(0);
    let mut chi_square = 0.0;
    for (class, weight) in weights.iter().enumerate() {
        let found = samples.iter().filter(|sample| **sample == class as f64).count() as f64;
        let wanted = weight * samples.len() as f64;
        if wanted == 0.0 {
            assert_eq!(found, 0.0, "an impossible class was drawn");
        } else {
            chi_square += (found - wanted).powi(2) / wanted;
        }
    }
    // The 99.9% quantile for three degrees of freedom.
    assert!(chi_square < 16.3, "{chi_square}");
}

/// A model with all random operators.
fn all_operators() -> ModelProto {
    let nodes = vec![
        node("RandomNormalLike", &["x"], &["a"]),
        node("RandomUniformLike", &["x"], &["b"]),
        node("Bernoulli", &["x"], &["c"]),
        node("Dropout", &["x", "ratio", "training"], &["d", "mask"]),
        with_int(node("Multinomial", &["x"], &["e"]), "sample_size", 3),
    ];
    let mut proto = model(nodes, &["a", "b", "c", "d", "e"]);
    let scalar = |name: &str, data_type: i32, bytes: Vec<u8>| TensorProto {
        name: name.into(),
        data_type,
        raw_data: Some(bytes.into()),
        ..Default::default()
    };
    let graph = proto.graph.as_mut().expect("there is one");
    graph.initializer.push(scalar("ratio", 1, 0.25_f32.to_le_bytes().to_vec()));
    graph.initializer.push(scalar("training", 9, vec![1]));
    proto
}

fn outputs_of(context: &mut Context, inputs: &[Tensor]) -> Vec<Tensor> {
    let outputs = context.run_views(&refs(inputs)).expect("the call is in contract");
    let copy = |k: usize| {
        let output = outputs.get(k);
        Tensor::new(output.dtype(), output.shape().to_vec(), Bytes::Owned(output.bytes().into()))
    };
    (0..outputs.len()).map(|k| copy(k).expect("as many bytes as the shape")).collect()
}

fn assert_same_bytes(at: &str, got: &[Tensor], wanted: &[Tensor]) {
    for (k, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        assert_eq!(got.shape(), wanted.shape(), "{at}: output {k}");
        assert!(got.bytes() == wanted.bytes(), "{at}: output {k} has other bits");
    }
}

#[test]
fn machine_code_has_the_bits_of_the_oracle_on_any_threads() {
    let graph = imported(&all_operators());
    let model = jit(&graph).expect("code is generated");
    let mut context = Context::new(&model).expect("there is memory");
    for threads in [1, 3] {
        context.set_threads(threads).expect("threads start");
        for [rows, columns] in [[1, 1], [2, 2], [7, 33], [511, 2], [3, 255], [512, 256]] {
            let inputs = [x(rows, columns), seed(i64::MIN + 5)];
            let wanted = eval(&graph, &inputs).expect("it computes");
            let got = outputs_of(&mut context, &inputs);
            assert_same_bytes(&format!("{rows} x {columns} on {threads} threads"), &got, &wanted);
        }
    }
}

#[test]
fn c_source_has_the_bits_of_the_oracle() {
    let mut graph = imported(&all_operators());
    graph.name = "random".into();
    let options = CompileOptions::for_c_source();
    let lowered = Pipeline::new(&graph).options(options).lower().expect("the graph is lowered");
    let source = lowered.source("random.h").expect("all operators have a C form");
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("random.h"), source.header).expect("a header");
    std::fs::write(folder.path().join("random.c"), source.code).expect("a source");
    let program = Program::compile(folder, "cc", &[], "random", "random.c");
    let inputs = [x(5, 34), seed(77)];
    let wanted = eval(&graph, &inputs).expect("it computes");
    let types: Vec<_> = wanted.iter().map(|tensor| (tensor.dtype(), tensor.shape().to_vec())).collect();
    assert_same_bytes("C source", &program.outputs(&inputs, &types), &wanted);
}

#[test]
fn samples_do_not_depend_on_the_batch() {
    let graph = imported(&all_operators());
    let few = drawn(&graph, 3, 9, 4);
    let many = drawn(&graph, 8, 9, 4);
    for (few, many) in few.iter().zip(&many) {
        assert_eq!(few[..], many[..few.len()]);
    }
    let other = drawn(&graph, 3, 9, 5);
    assert!(few.iter().zip(&other).take(2).all(|(few, other)| few.iter().zip(other).all(|(a, b)| a != b)));
    assert_ne!(few[0][..9], few[0][9..18], "two samples are equal");
}

#[test]
fn dropout_keeps_a_share_and_its_mean() {
    let outputs = drawn(&imported(&all_operators()), 512, 64, 8);
    let kept = outputs[3].iter().filter(|x| **x != 0.0).count() as f64;
    let count = outputs[3].len() as f64;
    assert!((kept / count - 0.75).abs() < 4.0 * (0.75 * 0.25 / count).sqrt());
    assert!(outputs[3].iter().all(|x| *x == 0.0 || (*x - 0.5 / 0.75).abs() < 1e-6));
    assert!((mean(&outputs[2]) - 0.5).abs() < 4.0 * 0.5 / count.sqrt());
}

#[test]
fn the_seed_is_an_input_a_constant_or_an_attribute() {
    let plain = model(vec![node("RandomNormalLike", &["x"], &["y"])], &["y"]);
    let names = |graph: &Graph| graph.inputs.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&imported(&plain)), ["x", "seed"]);

    let binds = vec![parse_bind("seed=9").expect("a constant")];
    let bound = import(&Model::from(plain.clone()), &ImportOptions { binds, ..options() });
    let bound = bound.expect("the seed can be bound");
    assert_eq!(names(&bound), ["x"]);
    let of_bound = eval(&bound, &[x(2, 3)]).expect("it computes").remove(0);
    let of_call = eval(&imported(&plain), &[x(2, 3), seed(9)]).expect("it computes").remove(0);
    assert_eq!(of_bound.bytes(), of_call.bytes());

    let own = |output: &str| with_float(node("RandomNormalLike", &["x"], &[output]), "seed", 2.5);
    let graph = imported(&model(vec![own("a"), own("b")], &["a", "b"]));
    assert_eq!(names(&graph), ["x"]);
    let outputs = eval(&graph, &[x(2, 3)]).expect("it computes");
    assert_eq!(outputs[0].bytes(), outputs[1].bytes());

    let inference = model(vec![node("Dropout", &["x"], &["y"])], &["y"]);
    assert_eq!(names(&imported(&inference)), ["x"]);

    let mut taken = plain;
    taken.graph.as_mut().expect("there is one").input.push(float("seed", &["N"]));
    assert_eq!(names(&imported(&taken)), ["x", "seed", "random_seed"]);
}

#[test]
fn iterations_draw_other_numbers() {
    let body = GraphProto {
        node: vec![node("RandomUniformLike", &["x"], &["drawn"]), node("Identity", &["go in"], &["go"])],
        input: ["round", "go in"].map(value).into(),
        output: ["go", "drawn"].map(value).into(),
        ..Default::default()
    };
    let mut rounds = node("Loop", &["times", ""], &["y"]);
    rounds.attribute.push(AttributeProto {
        name: "body".into(),
        kind: 5,
        g: Some(body),
        ..Default::default()
    });
    let mut proto = model(vec![rounds], &["y"]);
    proto.graph.as_mut().expect("there is one").initializer.push(int64_tensor("times", &[3]));

    let graph = imported(&proto);
    let inputs = [x(2, 5), seed(1)];
    let wanted = eval(&graph, &inputs).expect("it computes");
    let elems: Vec<f64> = (0..30).map(|k| wanted[0].get(k).as_f64()).collect();
    let mut distinct = elems.clone();
    distinct.sort_by(f64::total_cmp);
    distinct.dedup();
    assert_eq!(distinct.len(), 30, "{elems:?}");

    let model = jit(&graph).expect("code is generated");
    let mut context = Context::new(&model).expect("there is memory");
    assert_same_bytes("a loop", &outputs_of(&mut context, &inputs), &wanted);
}
