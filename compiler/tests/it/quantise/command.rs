//! `symc compile --weights`.

use crate::{
    cli::{json, refusal, symc},
    models,
    protos::{float, float_tensor, node},
};
use prost::Message;
use std::{fs, path::Path};
use symshape_compiler::import::proto::{GraphProto, ModelProto, OperatorSetIdProto, TensorProto};

const DIMS: [&str; 2] = ["--dim", "N=1..4"];

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().expect("UTF-8").to_string()
}

fn weight(name: &str, shape: &[usize], seed: u32) -> TensorProto {
    float_tensor(name, &models::weights(shape, seed))
}

/// Writes the model `y = relu(x first) second`.
fn write_model(folder: &Path, file: &str, seed: u32) -> String {
    let graph = GraphProto {
        name: "layers".into(),
        node: vec![
            node("MatMul", &["x", "first"], &["h"]),
            node("Relu", &["h"], &["r"]),
            node("MatMul", &["r", "second"], &["y"]),
        ],
        input: vec![float("x", &["N", "64"])],
        output: vec![float("y", &["N", "40"])],
        initializer: vec![weight("first", &[64, 96], seed), weight("second", &[96, 40], seed + 1)],
        ..Default::default()
    };
    let opset = OperatorSetIdProto { version: 17, ..Default::default() };
    let model =
        ModelProto { ir_version: 8, opset_import: vec![opset], graph: Some(graph), ..Default::default() };
    let path = path(folder, file);
    fs::write(&path, model.encode_to_vec()).expect("the folder can be written");
    path
}

#[test]
fn activations_are_rounded_and_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let model = write_model(folder, "m.onnx", 1);
    let out = path(folder, "m.so");
    let plain = ["compile", &model, "-o", &out, "--activations", "int8"];
    let with_weights = [&plain[..], &["--weights", "int4"]].concat();
    for (words, rounded) in [(&plain[..], 0), (&with_weights[..], 2)] {
        let words = [words, &DIMS].concat();
        let summary = &json(&words)[0];
        let activations = &summary["activations"];
        assert_eq!(activations["rounded"], rounded, "{summary}");
        assert_eq!(activations["products"], rounded, "{summary}");
        let error = activations["output_error"].as_f64();
        assert_eq!(error.is_some_and(|error| error > 1e-4 && error < 0.05), rounded > 0, "{summary}");
        let text = String::from_utf8(symc(&words).stdout).expect("UTF-8");
        let last = text.lines().next_back().expect("a line");
        let expected = if rounded > 0 { "  activations: int8 in 2 of 2" } else { "  activations stay f32" };
        assert!(last.starts_with(expected), "{text}");
    }

    let wrong = [&["compile", &model, "-o", &out, "--activations", "int4"], &DIMS[..]].concat();
    assert!(refusal(&wrong).contains("expected f32 or int8"));
    let compiled = refusal(&["bench", &out, "--activations", "int8"]);
    assert!(compiled.contains("--activations is for ONNX models"), "{compiled}");
    let unbounded = ["compile", &model, "-o", &out, "--dynamic-memory", "--activations", "int8"];
    assert!(refusal(&unbounded).contains("needs upper bounds"));
}

#[test]
fn the_summary_ends_with_a_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let model = write_model(folder, "m.onnx", 1);
    let out = path(folder, "m.so");
    let words = ["compile", &model, "-o", &out, "--weights", "int4", "--weight", "second=int8"];
    let words = [&words[..], &DIMS].concat();
    let text = String::from_utf8(symc(&words).stdout).expect("UTF-8");
    let lines: Vec<&str> = text.lines().rev().take(4).collect();
    assert!(lines[3].contains("type") && lines[3].contains("outputs"), "{text}");
    assert!(lines[2].contains("int4") && lines[2].contains("first [64, 96]"), "{text}");
    assert!(
        lines[1].contains("int8") && lines[1].contains("second [96, 40] (as requested by name)"),
        "{text}"
    );
    let bytes = 64 * 96 / 2 + 2 * 96 * 2 + 96 * 40 + 3 * 40 * 2;
    let total =
        format!("2 weights: {bytes} B of {} B as f32; the outputs are off by ", 4 * (64 * 96 + 96 * 40));
    assert!(lines[0].contains(&total), "{text}");

    let line = json(&words).remove(0);
    let rows = line["quantised"]["rows"].as_array().expect("rows");
    assert_eq!((rows[0]["name"].as_str(), rows[0]["type"].as_str()), (Some("first"), Some("int4")));
    assert_eq!((rows[1]["bytes"].as_u64(), rows[1]["type"].as_str()), (Some(96 * 40 + 240), Some("int8")));
    let weight_bytes = line["weight_bytes"].as_u64().expect("a size");
    assert!(weight_bytes <= bytes + 1024, "{weight_bytes} bytes of weights");
}

#[test]
fn unknown_types_and_names_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = write_model(folder.path(), "m.onnx", 1);
    let out = path(folder.path(), "m.so");
    let refusal = |words: &[&str]| refusal(&[&["compile", &model, "-o", &out], words, &DIMS[..]].concat());
    for (words, expected) in [
        (["--weights", "int3"], "expected int8, int4, f16, bf16 or f32"),
        (["--weights", "int4:7"], "a block has a multiple of 8 elements"),
        (["--weight", "frist=int8"], "a similar one is `first`"),
        (["--weight", "first"], "expected NAME=TYPE"),
    ] {
        let error = refusal(&words);
        assert!(error.contains(expected), "{words:?}: {error}");
    }
    assert!(!Path::new(&out).exists());
}

#[test]
fn other_weights_get_the_types_of_the_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let model = write_model(folder, "m.onnx", 1);
    let out = path(folder, "m.so");
    let weights = path(folder, "m.weights");
    let words = [
        "compile",
        &model,
        "-o",
        &out,
        "--weights",
        "int8",
        "--weight",
        "second=f32",
        "--weights-file",
        &weights,
    ];
    json(&[&words[..], &DIMS].concat());

    let other = write_model(folder, "other.onnx", 5);
    let new = path(folder, "new.weights");
    json(&["weights", &other, "--for", &out, "-o", &new]);
    let len = |file: &str| fs::metadata(file).expect("a file").len();
    assert_eq!(len(&new), len(&weights));
    let same = path(folder, "same.weights");
    json(&["weights", &model, "--for", &out, "-o", &same]);
    assert_eq!(fs::read(&same).expect("a file"), fs::read(&weights).expect("a file"));
}
