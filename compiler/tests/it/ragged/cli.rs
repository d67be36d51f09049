//! Ragged batches on the command line.

use crate::{
    cli::{BLOCK, json, refusal},
    npy,
    protos::{float, node},
};
use prost::Message;
use std::path::Path;
use symshape_compiler::import::proto::{GraphProto, ModelProto, OperatorSetIdProto};

/// `y = -x`, for tokens of 3 elements.
fn model() -> Vec<u8> {
    let graph = GraphProto {
        name: "tokens".into(),
        node: vec![node("Neg", &["x"], &["y"])],
        input: vec![float("x", &["N", "S", "3"])],
        output: vec![float("y", &["N", "S", "3"])],
        ..Default::default()
    };
    let opset = OperatorSetIdProto { version: 17, ..Default::default() };
    ModelProto { ir_version: 8, opset_import: vec![opset], graph: Some(graph), ..Default::default() }
        .encode_to_vec()
}

#[test]
fn compiled_models_have_offsets_as_an_input() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_string();
    let onnx = path("tokens.onnx");
    let artefact = path("tokens.so");
    std::fs::write(&onnx, model()).expect("a model");

    let dims = ["--dim", "N=1..4", "--dim", "S=1..9"];
    let ragged = ["--ragged", "S", "--max-rows", "20"];
    json(&[&["compile", &onnx, "-o", &artefact], &dims[..], &ragged].concat());

    let contract = &json(&["query", &artefact])[0];
    let ragged = &contract["ragged"];
    assert_eq!(ragged["offsets"], "offsets");
    assert_eq!((&ragged["sequences"], &ragged["rows"]), (&"N".into(), &"T".into()));
    assert_eq!((&ragged["length"]["name"], &ragged["length"]["declared"]), (&"S".into(), &"1..=9".into()));
    assert!(ragged["mask"].is_null());

    // Without offsets, a call is refused by name.
    npy::write(Path::new(&path("x.npy")), &[5, 3], &[0.0; 15]);
    let input = format!("x={}", path("x.npy"));
    let error = refusal(&["run", &artefact, "-i", &input]);
    assert!(error.contains("offsets"), "{error}");
}

#[test]
fn models_without_a_proof_are_refused_with_the_node() {
    let dims = ["--dim", "N=1..4", "--dim", "S=1..9", "--emit", "kernel"];
    let error = refusal(&[&["compile", BLOCK, "--ragged", "S"], &dims[..]].concat());
    assert!(error.contains("softmax") && error.contains("padding is not masked"), "{error}");

    let error = refusal(&[&["compile", BLOCK, "--ragged", "L"], &dims[..]].concat());
    assert!(error.contains("the model has no symbol L; it has N, S"), "{error}");
}
