//! Group normalisations, as the operator and as PyTorch exports them: reshaped, normalised by instance, reshaped back.

use crate::{
    compiled::assert_same,
    machine::Machine,
    models,
    protos::{float, float_tensor, int64_tensor, node},
};
use symshape_compiler::{
    graph::{Graph, eval::eval},
    import::{
        ImportOptions, Model, import, parse_dim,
        proto::{AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto},
    },
    pipeline::{Lowered, Pipeline},
    tensor::Tensor,
};

const CHANNELS: usize = 12;
const GROUPS: usize = 4;
const EPSILON: f32 = 0.125;

fn epsilon() -> AttributeProto {
    AttributeProto { name: "epsilon".into(), kind: 1, f: EPSILON, ..Default::default() }
}

/// `source` normalised to `normal`, by nodes as PyTorch exports them.
fn exported() -> Vec<NodeProto> {
    let mut normalised = node("InstanceNormalization", &["split", "ones", "zeros"], &["each"]);
    normalised.attribute = vec![epsilon()];
    vec![
        node("Reshape", &["source", "groups"], &["split"]),
        normalised,
        node("Shape", &["source"], &["shape"]),
        node("Reshape", &["each", "shape"], &["whole"]),
        node("Mul", &["whole", "scale"], &["scaled"]),
        node("Add", &["scaled", "shift"], &["normal"]),
    ]
}

fn operator() -> Vec<NodeProto> {
    let count = AttributeProto { name: "num_groups".into(), kind: 2, i: GROUPS as i64, ..Default::default() };
    let mut normalised =
        node("GroupNormalization", &["source", "channel_scale", "channel_shift"], &["normal"]);
    normalised.attribute = vec![epsilon(), count];
    vec![normalised]
}

/// The channels of its result are last in memory if that is not an output.
fn convolution() -> NodeProto {
    let pads = AttributeProto { name: "pads".into(), kind: 7, ints: vec![1; 4], ..Default::default() };
    NodeProto { attribute: vec![pads], ..node("Conv", &["x", "w"], &["source"]) }
}

/// The channels of its result are first in memory.
fn input() -> NodeProto {
    node("Relu", &["x"], &["source"])
}

/// `source`, an operator that reads the input, and its normalisation.
fn graph(source: NodeProto, nodes: Vec<NodeProto>, outputs: &[&str]) -> Graph {
    let channels = CHANNELS.to_string();
    let input = vec![float("x", &["N", &channels, "H", "W"])];
    let mut all = vec![source];
    all.extend(nodes);
    let per_channel = [models::weights(&[CHANNELS], 2), models::weights(&[CHANNELS], 3)];
    let [scale, shift] = &per_channel;
    let mut initializer = vec![
        float_tensor("w", &models::weights(&[CHANNELS, CHANNELS, 3, 3], 1)),
        float_tensor("channel_scale", scale),
        float_tensor("channel_shift", shift),
        float_tensor("ones", &Tensor::from_f32(vec![GROUPS], &[1.0; GROUPS]).expect("as many")),
        float_tensor("zeros", &Tensor::from_f32(vec![GROUPS], &[0.0; GROUPS]).expect("as many")),
        int64_tensor("groups", &[0, GROUPS as i64, -1]),
    ];
    for (name, tensor) in [("scale", scale), ("shift", shift)] {
        let mut proto = float_tensor(name, tensor);
        proto.dims = vec![CHANNELS as i64, 1, 1];
        initializer.push(proto);
    }
    let output = outputs.iter().map(|name| ValueInfoProto { name: name.to_string(), ty: None }).collect();
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

#[test]
fn groups_of_channels_are_normalised() {
    for nodes in [exported(), operator()] {
        for (source, outputs) in
            [(convolution(), &["normal", "source"][..]), (convolution(), &["normal"]), (input(), &["normal"])]
        {
            let name = format!("{} of a {}", nodes[0].op_type, source.op_type);
            let graph = graph(source, nodes.clone(), outputs);
            for dims in models::bindings(&graph) {
                let results = eval(&graph, &models::inputs(&graph, &dims)).expect("in range");
                let [normal, source] = results.as_slice() else { continue };
                for (idx, exact) in normalised(source).into_iter().enumerate() {
                    let found = normal.get(idx).as_f64();
                    assert!((found - exact).abs() < 1e-4, "{name} at {dims:?}: {found} is not {exact}");
                }
            }

            let Lowered { program, plan, .. } = Pipeline::new(&graph).lower().expect("supported");
            let machine = Machine::assemble(program, &plan, false).expect("supported");
            assert_same(&name, &graph, &machine);
        }
    }
}

/// The kernels that sum elements of all pixels, as text.
fn sums_over_pixels(source: NodeProto, nodes: Vec<NodeProto>) -> Vec<String> {
    let graph = graph(source, nodes, &["normal"]);
    let program = Pipeline::new(&graph).lower().expect("supported").program.to_string();
    let kernels = program.split("  kernel ").skip(1);
    let sums = kernels.filter(|kernel| kernel.contains("node `the") && kernel.starts_with("\"reduce"));
    sums.filter(|kernel| kernel.contains("H*W {")).map(String::from).collect()
}

/// The channels of one group are few. A strip of them for each pixel would be a very short one.
#[test]
fn no_loop_over_pixels_has_strips_of_one_group() {
    for nodes in [exported(), operator()] {
        let kernels = sums_over_pixels(convolution(), nodes);
        assert_eq!(kernels.len(), 2, "the sums of elements and of squares: {kernels:?}");
        for kernel in kernels {
            assert!(kernel.contains(&format!("in 0..{CHANNELS} {{")), "{kernel}");
            assert!(!kernel.contains("reduce sum"), "{kernel}");
        }
    }
}

/// There a group is contiguous, and one kernel computes all of it while it is in the cache.
#[test]
fn groups_with_channels_first_are_one_kernel() {
    for nodes in [exported(), operator()] {
        let kernels = sums_over_pixels(input(), nodes);
        let [kernel] = kernels.as_slice() else { panic!("not one kernel: {kernels:?}") };
        assert_eq!(kernel.matches("reduce sum").count(), 2, "{kernel}");
    }
}
