//! Parts of ONNX models for tests of the importer.

use symshape_compiler::{
    graph::Graph,
    import::{
        ImportOptions, Model, import, parse_dim,
        proto::{
            DimensionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
            TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
        },
    },
    tensor::Tensor,
};

/// A value of 32-bit floats; dims are numbers or names.
pub(crate) fn float(name: &str, dims: &[&str]) -> ValueInfoProto {
    value(name, 1, dims)
}

/// A value of the type `elem_type`, such as 7 for `int64`.
pub(crate) fn value(name: &str, elem_type: i32, dims: &[&str]) -> ValueInfoProto {
    let dim = |text: &&str| match text.parse() {
        Ok(value) => DimensionProto { dim_value: Some(value), dim_param: None },
        Err(_) => DimensionProto { dim_value: None, dim_param: Some(text.to_string()) },
    };
    let shape = Some(TensorShapeProto { dim: dims.iter().map(dim).collect() });
    let tensor_type = Some(TensorTypeProto { elem_type, shape });
    ValueInfoProto { name: name.into(), ty: Some(TypeProto { tensor_type, ..Default::default() }) }
}

/// A node `the OP`; an operator of another domain than ONNX's is written `domain:Op`.
pub(crate) fn node(op: &str, input: &[&str], output: &[&str]) -> NodeProto {
    let (domain, op) = op.split_once(':').unwrap_or(("", op));
    let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
    let name = format!("the {op}");
    NodeProto {
        op_type: op.into(),
        domain: domain.into(),
        name,
        input: names(input),
        output: names(output),
        ..Default::default()
    }
}

/// A vector of `int64` as an initialiser.
pub(crate) fn int64_tensor(name: &str, values: &[i64]) -> TensorProto {
    let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    TensorProto {
        name: name.into(),
        dims: vec![values.len() as i64],
        data_type: 7,
        raw_data: Some(raw.into()),
        ..Default::default()
    }
}

/// A tensor of `f32` as an initialiser.
pub(crate) fn float_tensor(name: &str, tensor: &Tensor) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: tensor.shape().iter().map(|size| *size as i64).collect(),
        data_type: 1,
        raw_data: Some(tensor.bytes().to_vec().into()),
        ..Default::default()
    }
}

/// The graph of a model with opset 21 and one output `y`, whose dimensions have these ranges, as in `N=0..2`.
pub(crate) fn imported(graph: GraphProto, dims: &[&str]) -> Graph {
    let output = vec![ValueInfoProto { name: "y".into(), ty: None }];
    let graph = Some(GraphProto { output, ..graph });
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 21 }];
    let model = ModelProto { ir_version: 10, graph, opset_import, ..Default::default() };
    let dims = dims.iter().map(|dim| parse_dim(dim).expect("a range")).collect();
    import(&Model::from(model), &ImportOptions { dims, ..Default::default() }).expect("supported")
}
