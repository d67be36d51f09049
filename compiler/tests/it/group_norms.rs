//! Group normalisations, as the operator and as PyTorch exports them: reshaped, normalised by instance, reshaped back.

use crate::{
    machine::Machine,
    models,
    protos::{float, int64_tensor, node},
};
use symshape_compiler::{
    graph::{Graph, eval::eval, tolerance::RoundingTolerance},
    import::{
        ImportOptions, Model, import, parse_dim,
        proto::{
            AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
            ValueInfoProto,
        },
    },
    pipeline::{Lowered, Pipeline},
    tensor::Tensor,
};

const CHANNELS: usize = 12;
const GROUPS: usize = 4;
const EPSILON: f32 = 0.125;

fn constant(name: &str, tensor: &Tensor) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: tensor.shape().iter().map(|size| *size as i64).collect(),
        data_type: 1,
        raw_data: Some(tensor.bytes().to_vec().into()),
        ..Default::default()
    }
}

fn epsilon() -> AttributeProto {
    AttributeProto { name: "epsilon".into(), kind: 1, f: EPSILON, ..Default::default() }
}

/// `conv` normalised to `normal`, by nodes as PyTorch exports them.
fn exported() -> Vec<NodeProto> {
    let mut normalised = node("InstanceNormalization", &["split", "ones", "zeros"], &["each"]);
    normalised.attribute = vec![epsilon()];
    vec![
        node("Reshape", &["conv", "groups"], &["split"]),
        normalised,
        node("Shape", &["conv"], &["shape"]),
        node("Reshape", &["each", "shape"], &["whole"]),
        node("Mul", &["whole", "scale"], &["scaled"]),
        node("Add", &["scaled", "shift"], &["normal"]),
    ]
}

fn operator() -> Vec<NodeProto> {
    let count = AttributeProto { name: "num_groups".into(), kind: 2, i: GROUPS as i64, ..Default::default() };
    let mut normalised = node("GroupNormalization", &["conv", "channel_scale", "channel_shift"], &["normal"]);
    normalised.attribute = vec![epsilon(), count];
    vec![normalised]
}

/// A convolution and its normalisation. The channels of the convolution are last in memory if it is not an output.
fn graph(nodes: Vec<NodeProto>, outputs: &[&str]) -> Graph {
    let mut conv = node("Conv", &["x", "w"], &["conv"]);
    conv.attribute =
        vec![AttributeProto { name: "pads".into(), kind: 7, ints: vec![1; 4], ..Default::default() }];
    let mut all = vec![conv];
    all.extend(nodes);
    let per_channel = [models::weights(&[CHANNELS], 2), models::weights(&[CHANNELS], 3)];
    let [scale, shift] = &per_channel;
    let mut initializer = vec![
        constant("w", &models::weights(&[CHANNELS, 5, 3, 3], 1)),
        constant("channel_scale", scale),
        constant("channel_shift", shift),
        constant("ones", &Tensor::from_f32(vec![GROUPS], &[1.0; GROUPS]).expect("as many")),
        constant("zeros", &Tensor::from_f32(vec![GROUPS], &[0.0; GROUPS]).expect("as many")),
        int64_tensor("groups", &[0, GROUPS as i64, -1]),
    ];
    for (name, tensor) in [("scale", scale), ("shift", shift)] {
        let mut proto = constant(name, tensor);
        proto.dims = vec![CHANNELS as i64, 1, 1];
        initializer.push(proto);
    }
    let output = outputs.iter().map(|name| ValueInfoProto { name: name.to_string(), ty: None }).collect();
    let input = vec![float("x", &["N", "5", "H", "W"])];
    let graph = GraphProto { node: all, input, output, initializer, ..Default::default() };
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 21 }];
    let model = ModelProto { ir_version: 10, graph: Some(graph), opset_import, ..Default::default() };
    let dims = ["N=1..3", "H=1..9", "W=2..7"].map(|dim| parse_dim(dim).expect("a range")).to_vec();
    import(&Model::from(model), &ImportOptions { dims, ..Default::default() }).expect("supported")
}

/// `x` of the shape `[N, C, …]`, normalised in double precision.
fn normalised(x: &Tensor) -> Vec<f64> {
    let of_sample: usize = x.shape()[1..].iter().product();
    let pixels = of_sample / CHANNELS;
    let [scale, shift] = [2, 3].map(|seed| models::weights(&[CHANNELS], seed));
    let elems: Vec<f64> = (0..x.elems()).map(|idx| x.get(idx).as_f64()).collect();
    let mut normal = Vec::new();
    for (place, group) in elems.chunks(of_sample / GROUPS).enumerate() {
        let mean = group.iter().sum::<f64>() / group.len() as f64;
        let variance = group.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / group.len() as f64;
        let inverse = 1.0 / (variance + f64::from(EPSILON)).sqrt();
        normal.extend(group.iter().enumerate().map(|(idx, x)| {
            let channel = place % GROUPS * (CHANNELS / GROUPS) + idx / pixels;
            (x - mean) * inverse * scale.get(channel).as_f64() + shift.get(channel).as_f64()
        }));
    }
    normal
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four"))).collect()
}

#[test]
fn groups_of_channels_are_normalised() {
    for (nodes, outputs) in
        [(exported(), &["normal", "conv"][..]), (operator(), &["normal", "conv"]), (exported(), &["normal"])]
    {
        let name = nodes[0].op_type.clone();
        let graph = graph(nodes, outputs);
        let Lowered { program, plan, .. } = Pipeline::new(&graph).lower().expect("supported");
        let machine = Machine::assemble(program, &plan, false).expect("supported");
        for dims in models::bindings(&graph) {
            let inputs = models::inputs(&graph, &dims);
            let expected = eval(&graph, &inputs).expect("in range");
            if let [normal, conv] = expected.as_slice() {
                for (idx, exact) in normalised(conv).into_iter().enumerate() {
                    let evaluated = normal.get(idx).as_f64();
                    assert!(
                        (evaluated - exact).abs() < 1e-4,
                        "{name} at {dims:?}: {evaluated} is not {exact}"
                    );
                }
            }

            let bytes: Vec<Vec<u8>> = inputs.iter().map(|tensor| tensor.bytes().to_vec()).collect();
            let found = machine.run(&dims, &bytes).expect("in range");
            let tolerance = RoundingTolerance::of(&graph, &inputs);
            for (expected, found) in expected.iter().zip(found) {
                let found =
                    Tensor::from_f32(expected.shape().to_vec(), &floats(&found)).expect("of the same size");
                tolerance.check(expected, &found).unwrap_or_else(|why| panic!("{name} at {dims:?}: {why}"));
            }
        }
    }
}

/// The channels of one group are few. A strip of them for each pixel would be a very short one.
#[test]
fn no_loop_over_pixels_has_strips_of_one_group() {
    for nodes in [exported(), operator()] {
        let graph = graph(nodes, &["normal"]);
        let program = Pipeline::new(&graph).lower().expect("supported").program.to_string();
        let kernels: Vec<&str> = program.split("  kernel ").skip(1).collect();
        let sums_pixels =
            |kernel: &&&str| kernel.starts_with("\"reduce node") && kernel.contains("in 0..H*W {");
        let sums: Vec<&&str> = kernels.iter().filter(sums_pixels).collect();
        assert_eq!(sums.len(), 2, "the sums of elements and of squares: {program}");
        for kernel in sums {
            assert!(kernel.contains(&format!("in 0..{CHANNELS} {{")), "{kernel}");
            assert!(!kernel.contains("reduce sum"), "{kernel}");
        }
    }
}
