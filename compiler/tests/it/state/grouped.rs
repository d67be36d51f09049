//! `GroupQueryAttention` with a cache that is state.

use super::session::Session;
use crate::protos::{float, int64_tensor, node};
use prost::Message;
use symshape::Declaration;
use symshape_compiler::{
    StateRequest,
    graph::Graph,
    import::{
        self, ImportOptions, parse_relation,
        proto::{AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto},
    },
};

fn with(mut node: NodeProto, attributes: &[(&str, i64)]) -> NodeProto {
    let attribute = |(name, i): &(&str, i64)| AttributeProto {
        name: (*name).into(),
        i: *i,
        kind: 2,
        ..Default::default()
    };
    node.attribute.extend(attributes.iter().map(attribute));
    node
}

fn int64(name: &str, dims: &[&str]) -> ValueInfoProto {
    let mut value = float(name, dims);
    if let Some(tensor) = value.ty.as_mut().and_then(|ty| ty.tensor_type.as_mut()) {
        tensor.elem_type = 7;
    }
    value
}

/// Attention of four query heads and two key heads of 8, whose lengths are those of a mask.
pub(super) fn model() -> ModelProto {
    let grouped = node(
        "com.microsoft:GroupQueryAttention",
        &["q", "k", "v", "past_k", "past_v", "last", "total"],
        &["y", "present_k", "present_v"],
    );
    let nodes = vec![
        node("Shape", &["mask"], &["shape"]),
        node("Gather", &["shape", "one"], &["total64"]),
        with(node("Cast", &["total64"], &["total"]), &[("to", 6)]),
        node("ReduceSum", &["mask", "one"], &["count"]),
        node("Sub", &["count", "one"], &["last64"]),
        with(node("Cast", &["last64"], &["last"]), &[("to", 6)]),
        with(grouped, &[("num_heads", 4), ("kv_num_heads", 2)]),
    ];
    let graph = GraphProto {
        name: "grouped".into(),
        node: nodes,
        initializer: vec![int64_tensor("one", &[1])],
        input: vec![
            float("q", &["N", "S", "32"]),
            float("k", &["N", "S", "16"]),
            float("v", &["N", "S", "16"]),
            int64("mask", &["N", "T"]),
            float("past_k", &["N", "2", "P", "8"]),
            float("past_v", &["N", "2", "P", "8"]),
        ],
        output: vec![
            float("y", &["N", "S", "32"]),
            float("present_k", &["N", "2", "T", "8"]),
            float("present_v", &["N", "2", "T", "8"]),
        ],
        ..Default::default()
    };
    let opsets = [("", 17), ("com.microsoft", 1)];
    let opset_import =
        opsets.map(|(domain, version)| OperatorSetIdProto { domain: domain.into(), version }).to_vec();
    ModelProto { ir_version: 8, opset_import, graph: Some(graph), ..Default::default() }
}

fn graph(keeps_state: bool) -> Graph {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("grouped.onnx");
    std::fs::write(&path, model().encode_to_vec()).expect("a model");
    let range = |lo: i64, hi: i64| Declaration::range(lo, hi);
    let options = ImportOptions {
        dims: vec![("N".into(), range(1, 3)), ("S".into(), range(1, 5)), ("P".into(), range(0, 12))],
        relations: parse_relation("T=P+S").expect("a relation").into_iter().collect(),
        keeps_state,
        ..ImportOptions::default()
    };
    import::import(&import::Model::open(&path).expect("a model"), &options).expect("supported")
}

#[test]
fn grouped_attention_appends_in_place() {
    for batch in [1, 3] {
        let mut session = Session::between(&graph(true), &graph(false), &StateRequest::find(), batch, 16);
        assert_eq!(session.model().state().len(), 2);
        assert!(session.model().state().iter().all(|tensor| tensor.axis() == Some(2)));
        [5, 1, 1, 3, 2].iter().for_each(|chunk| session.step(*chunk));
    }
}

#[test]
fn grouped_attention_refuses_padded_sequences() {
    let mut session = Session::between(&graph(true), &graph(false), &StateRequest::find(), 2, 16);
    session.step(4);
    let error = session.masked_step(2).expect_err("a shorter sequence");
    assert!(error.to_string().contains("GroupQueryAttention"), "{error}");
    assert_eq!(session.state.length(), 4);
    session.step(2);
}
