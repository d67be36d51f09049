//! Quantised weights whose tensors don't fit each other are refused by the name of their node.

use crate::{
    protos::{float, node},
    random_cases::Random,
};
use symshape_compiler::import::{
    ImportOptions, Model, import, parse_dim,
    proto::{
        AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto,
    },
};

/// ONNX's codes of element types.
const F32: i32 = 1;
const U8: i32 = 2;
const I8: i32 = 3;
const I32: i32 = 6;
const U4: i32 = 21;
const I4: i32 = 22;

/// A tensor of zeros.
fn zeros(name: &str, data_type: i32, dims: &[i64]) -> TensorProto {
    let elems: i64 = dims.iter().product();
    let bytes = match data_type {
        F32 | I32 => elems * 4,
        I4 | U4 => (elems + 1) / 2,
        _ => elems,
    };
    let raw = vec![0; bytes as usize];
    TensorProto {
        name: name.into(),
        dims: dims.to_vec(),
        data_type,
        raw_data: Some(raw.into()),
        ..Default::default()
    }
}

fn with_attributes(mut node: NodeProto, attributes: &[(&str, i64)]) -> NodeProto {
    let attribute =
        |&(name, i): &(&str, i64)| AttributeProto { name: name.into(), kind: 2, i, ..Default::default() };
    node.attribute.extend(attributes.iter().map(attribute));
    node
}

/// The error of a model, or an empty text if it is accepted.
fn error(nodes: Vec<NodeProto>, input: ValueInfoProto, initializer: Vec<TensorProto>) -> String {
    let graph = GraphProto {
        node: nodes,
        input: vec![input],
        output: vec![ValueInfoProto { name: "y".into(), ty: None }],
        initializer,
        ..Default::default()
    };
    let version = |domain: &str, version| OperatorSetIdProto { domain: domain.into(), version };
    let opset_import = vec![version("", 21), version("com.microsoft", 1)];
    let model = ModelProto { ir_version: 10, graph: Some(graph), opset_import, ..Default::default() };
    let options = ImportOptions { dims: vec![parse_dim("M=1..4").expect("a range")], ..Default::default() };
    import(&Model::from(model), &options).map_or_else(|error| error.to_string(), |_| String::new())
}

/// Tensors by their names, types and shapes.
type Tensors<'a> = &'a [(&'a str, i32, &'a [i64])];
/// Attributes by their names.
type Attributes<'a> = &'a [(&'a str, i64)];
/// A node, and its error.
type Case<'a> = (Tensors<'a>, Attributes<'a>, &'a str);

/// Imports a node with these tensors after the inputs `first`. The error must name the node and contain `expected`; an
/// empty text means that the node is accepted. Without inputs, the result is multiplied with `x`.
fn check(op: &str, first: &[&str], tensors: Tensors<'_>, attributes: Attributes<'_>, expected: &str) {
    let names = tensors.iter().map(|(name, ..)| *name);
    let inputs: Vec<&str> = first.iter().copied().chain(names).collect();
    let nodes = match first {
        [] => vec![node(op, &inputs, &["d"]), node("MatMul", &["x", "d"], &["y"])],
        _ => vec![node(op, &inputs, &["y"])],
    };
    let nodes = nodes.into_iter().enumerate();
    let nodes =
        nodes.map(|(k, node)| if k == 0 { with_attributes(node, attributes) } else { node }).collect();
    let initializers = tensors.iter().map(|(name, data_type, dims)| zeros(name, *data_type, dims)).collect();
    let error = error(nodes, float("x", &["M", "64"]), initializers);
    assert_contains(&error, expected, &format!("{op} {tensors:?} {attributes:?}"));
}

fn assert_contains(error: &str, expected: &str, context: &str) {
    let op = context.split(' ').next().and_then(|op| op.split(':').next_back()).unwrap_or_default();
    let is_expected = match expected {
        "" => error.is_empty(),
        _ => error.contains(expected) && error.contains(&format!("`the {op}`")),
    };
    assert!(is_expected, "{context}: {error:?}, and not {expected:?}");
}

#[test]
fn scales_and_zero_points_of_dequantize_linear_fit_the_elements() {
    let blocks: &[(&str, i64)] = &[("axis", 0), ("block_size", 32)];
    let columns: &[(&str, i64)] = &[("axis", 1)];
    let wide: &[i64] = &[64, 48];
    let cases: [Case<'_>; 22] = [
        (&[("w", I4, wide), ("s", F32, &[2, 48]), ("z", I4, &[2, 48])], blocks, ""),
        (&[("w", I4, wide), ("s", F32, &[3, 48])], &[("axis", 0), ("block_size", 24)], ""),
        (&[("w", I8, wide), ("s", F32, &[48]), ("z", I8, &[48])], columns, ""),
        (&[("w", I8, wide), ("s", F32, &[1]), ("z", I8, &[])], &[("axis", 7)], ""),
        (
            &[("w", I4, wide), ("s", F32, &[3, 48])],
            blocks,
            "the scales have the shape [3, 48]; [2, 48] is needed",
        ),
        (
            &[("w", I4, wide), ("s", F32, &[2, 47])],
            blocks,
            "the scales have the shape [2, 47]; [2, 48] is needed",
        ),
        (&[("w", I4, wide), ("s", F32, &[48])], blocks, "the scales have the shape [48]"),
        (&[("w", I4, wide), ("s", F32, &[2, 48, 1])], blocks, "the scales have the shape [2, 48, 1]"),
        (
            &[("w", I4, wide), ("s", F32, &[2, 48])],
            &[("axis", 0), ("block_size", 24)],
            "[3, 48] is needed for blocks of 24",
        ),
        (
            &[("w", I4, wide), ("s", F32, &[2, 48])],
            &[("axis", 0), ("block_size", i64::MAX)],
            "[1, 48] is needed",
        ),
        (&[("w", I4, wide), ("s", F32, &[2, 48])], &[("axis", 0), ("block_size", -1)], "a block_size of -1"),
        (&[("w", I4, wide), ("s", F32, &[2, 48])], &[("axis", 0)], "[64] is needed"),
        (
            &[("w", I4, wide), ("s", F32, &[2, 48])],
            &[("axis", 2), ("block_size", 32)],
            "axis 2 is out of range",
        ),
        (
            &[("w", I4, wide), ("s", F32, &[2, 48])],
            &[("axis", -3), ("block_size", 32)],
            "axis -3 is out of range",
        ),
        (
            &[("w", I4, wide), ("s", F32, &[2, 48]), ("z", I4, &[2, 47])],
            blocks,
            "94 zero points and 96 scales",
        ),
        (
            &[("w", I4, wide), ("s", F32, &[2, 48]), ("z", I4, &[48, 2])],
            blocks,
            "the zero points have the shape [48, 2]",
        ),
        (
            &[("w", I4, wide), ("s", F32, &[2, 48]), ("z", U4, &[2, 48])],
            blocks,
            "zero points of type uint4; the elements are of type int4",
        ),
        (&[("w", I4, wide), ("s", F32, &[2, 48]), ("z", F32, &[2, 48])], blocks, "zero points of type f32"),
        (&[("w", I8, wide), ("s", F32, &[47])], columns, "the scales have the shape [47]; [48] is needed"),
        (&[("w", I8, wide), ("s", F32, &[48]), ("z", I8, &[1])], columns, "1 zero points and 48 scales"),
        (&[("w", I8, wide), ("s", I32, &[48])], columns, "of type i32; they must be floats"),
        (
            &[("w", I8, wide), ("s", F32, &[48])],
            &[("axis", 1), ("output_dtype", 6)],
            "of type i32; they must be floats",
        ),
    ];
    for (tensors, attributes, expected) in cases {
        check("DequantizeLinear", &[], tensors, attributes, expected);
    }
}

#[test]
fn scales_and_zero_points_of_lookups_fit_the_table() {
    let four: &[(&str, i64)] = &[("bits", 4), ("block_size", 32)];
    let table: &[i64] = &[100, 64];
    let bytes: &[i64] = &[100, 32];
    let cases: [Case<'_>; 15] = [
        (&[("w", I4, table), ("s", F32, &[100, 2]), ("z", I4, &[100, 2])], four, ""),
        (&[("w", U8, bytes), ("s", F32, &[100, 2]), ("z", U8, &[100, 1])], four, ""),
        (&[("w", I4, table), ("s", F32, &[100, 3])], &[("block_size", 24)], ""),
        (
            &[("w", I4, table), ("s", F32, &[100, 3])],
            four,
            "the scales have the shape [100, 3]; [100, 2] is needed",
        ),
        (
            &[("w", I4, table), ("s", F32, &[99, 2])],
            four,
            "the scales have the shape [99, 2]; [100, 2] is needed",
        ),
        (&[("w", I4, table), ("s", F32, &[200])], four, "scales of another rank"),
        (&[("w", I4, table), ("s", I32, &[100, 2])], four, "scales of type i32; they must be floats"),
        (
            &[("w", I4, table), ("s", F32, &[100, 2]), ("z", I4, &[100, 3])],
            four,
            "the zero points have the shape [100, 3]",
        ),
        (
            &[("w", I4, table), ("s", F32, &[100, 2]), ("z", I4, &[99, 2])],
            four,
            "the zero points have the shape [99, 2]",
        ),
        (
            &[("w", I4, table), ("s", F32, &[100, 2]), ("z", U8, &[100, 2])],
            four,
            "zero points of type u8 for a table of type i8",
        ),
        (
            &[("w", U8, bytes), ("s", F32, &[100, 2]), ("z", U8, &[100, 2])],
            four,
            "the zero points have the shape [100, 2]; [100, 1] is needed",
        ),
        (&[("w", I4, table), ("s", F32, &[100, 2])], &[("block_size", 24)], "[100, 3] is needed"),
        (&[("w", I4, table), ("s", F32, &[100, 2])], &[("block_size", 0)], "in blocks of 0"),
        (&[("w", U8, bytes), ("s", F32, &[100, 2])], &[("bits", 3), ("block_size", 32)], "a table of 3 bits"),
        (
            &[("w", I4, table), ("s", F32, &[100, 2])],
            &[("quantize_axis", 7), ("block_size", 32)],
            "axis 7 is out of range",
        ),
    ];
    for (tensors, attributes, expected) in cases {
        // The positions are between the table and the scales.
        let op = "com.microsoft:GatherBlockQuantized";
        let names = tensors[1..].iter().map(|(name, ..)| *name);
        let inputs: Vec<&str> = ["w", "i"].into_iter().chain(names).collect();
        let nodes = vec![with_attributes(node(op, &inputs, &["y"]), attributes)];
        let initializers =
            tensors.iter().map(|(name, data_type, dims)| zeros(name, *data_type, dims)).collect();
        let mut positions = float("i", &["M"]);
        if let Some(tensor) = positions.ty.as_mut().and_then(|ty| ty.tensor_type.as_mut()) {
            tensor.elem_type = 7;
        }
        let error = error(nodes, positions, initializers);
        assert_contains(&error, expected, &format!("{op} {tensors:?} {attributes:?}"));
    }
}

#[test]
fn tensors_of_products_have_the_rows_of_the_weights() {
    let all: &[(&str, i64)] = &[("K", 64), ("N", 48), ("bits", 4), ("block_size", 32)];
    let with = |name: &'static str, value: i64| -> Vec<(&'static str, i64)> {
        all.iter().map(|(own, old)| if *own == name { (name, value) } else { (*own, *old) }).collect()
    };
    let [narrow, wide, huge, tall, odd, block] = [
        with("K", 63),
        with("K", 65),
        with("K", i64::MAX),
        with("N", 1 << 62),
        with("bits", 3),
        with("block_size", 48),
    ];
    let weights: (&str, i32, &[i64]) = ("w", U8, &[48, 2, 16]);
    let scales: (&str, i32, &[i64]) = ("s", F32, &[96]);
    let op = "com.microsoft:MatMulNBits";
    check(op, &["x"], &[weights, ("s", F32, &[48, 2]), ("z", U8, &[48, 1])], all, "");
    check(op, &["x"], &[("w", U8, &[48, 32]), scales, ("z", U8, &[48])], all, "");
    let cases: [Case<'_>; 10] = [
        (&[("w", U8, &[2, 48, 16]), scales], all, "the weights have the shape [2, 48, 16]"),
        (&[weights, ("s", F32, &[2, 48])], all, "the scales have the shape [2, 48]"),
        (&[weights, scales, ("z", U8, &[2, 24])], all, "the zero points have the shape [2, 24]"),
        (&[weights, ("s", I8, &[96])], all, "scales of type i8; they must be floats"),
        (&[weights, scales], &narrow, "K of MatMulNBits"),
        (&[weights, scales], &wide, "the weights have 1536 elements"),
        (&[weights, scales], &huge, "elements of 4 bits"),
        (&[weights, scales], &tall, "weights of shape"),
        (&[weights, scales], &odd, "elements of 3 bits"),
        (&[weights, scales], &block, "the weights have 1536 elements"),
    ];
    for (tensors, attributes, expected) in cases {
        check(op, &["x"], tensors, attributes, expected);
    }
}

/// The seeds of the fuzz target `onnx_bytes` import, and no change of a few bytes makes the importer panic.
#[test]
fn changed_seeds_are_models_or_errors() {
    let seeds: [&[u8]; 3] = [
        include_bytes!("../../../fuzz/seeds/onnx_bytes/matmul_n_bits"),
        include_bytes!("../../../fuzz/seeds/onnx_bytes/blocked"),
        include_bytes!("../../../fuzz/seeds/onnx_bytes/lookup"),
    ];
    let options = ImportOptions { unbounded: true, ..ImportOptions::default() };
    let mut random = Random(288);
    for seed in seeds {
        let model = Model::from_bytes(seed).expect("a model");
        import(&model, &options).expect("supported");
        let mut n_refused = 0;
        for _ in 0..2000 {
            let mut bytes = seed.to_vec();
            for _ in 0..1 + random.below(3) {
                let at = random.below(bytes.len());
                bytes[at] = random.below(256) as u8;
            }
            let Ok(model) = Model::from_bytes(&bytes) else { continue };
            n_refused += usize::from(import(&model, &options).is_err());
        }
        assert!(n_refused > 100, "only {n_refused} models were refused");
    }
}
