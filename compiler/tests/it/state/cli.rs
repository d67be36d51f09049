//! State on the command line: `test`, `run`, `bench` and `compile`.

use crate::{
    cli::{json, refusal, symc},
    npy,
    protos::{float, node},
};
use prost::Message;
use std::path::{Path, PathBuf};
use symshape_compiler::import::proto::{
    AttributeProto, GraphProto, ModelProto, OperatorSetIdProto, TensorProto,
};

/// `new = concat(old, x)` and `y = -new`, both of rows of 3.
fn model() -> ModelProto {
    let axis = AttributeProto { name: "axis".into(), i: 0, kind: 2, ..Default::default() };
    let mut concat = node("Concat", &["old", "x"], &["new"]);
    concat.attribute.push(axis);
    let graph = GraphProto {
        name: "rows".into(),
        node: vec![concat, node("Neg", &["new"], &["y"])],
        input: vec![float("x", &["S", "3"]), float("old", &["P", "3"])],
        output: vec![float("y", &["T", "3"]), float("new", &["T", "3"])],
        ..Default::default()
    };
    let opset = OperatorSetIdProto { version: 17, ..Default::default() };
    ModelProto { ir_version: 8, opset_import: vec![opset], graph: Some(graph), ..Default::default() }
}

fn write(path: &Path, rows: &[f32]) {
    let bytes: Vec<u8> = rows.iter().flat_map(|row| [*row; 3]).flat_map(f32::to_le_bytes).collect();
    let dims = vec![rows.len() as i64, 3];
    let tensor = TensorProto { dims, data_type: 1, raw_data: Some(bytes.into()), ..Default::default() };
    std::fs::write(path, tensor.encode_to_vec()).expect("a file");
}

/// A case of three steps; the outputs of the last one are off by `error`.
fn case(folder: &Path, error: f32) -> PathBuf {
    let case = folder.join("rows");
    std::fs::create_dir_all(&case).expect("a folder");
    std::fs::write(case.join("model.onnx"), model().encode_to_vec()).expect("a model");
    let mut rows: Vec<f32> = Vec::new();
    for (step, count) in [2, 1, 3].into_iter().enumerate() {
        let set = case.join(format!("test_data_set_{step}"));
        std::fs::create_dir_all(&set).expect("a folder");
        let x: Vec<f32> = (0..count).map(|row| (10 * step + row) as f32).collect();
        write(&set.join("input_0.pb"), &x);
        // State is not read.
        write(&set.join("input_1.pb"), &vec![-99.0; rows.len()]);
        rows.extend(x);
        let wrong = if step == 2 { error } else { 0.0 };
        write(&set.join("output_0.pb"), &rows.iter().map(|row| -row).collect::<Vec<_>>());
        write(&set.join("output_1.pb"), &rows.iter().map(|row| row + wrong).collect::<Vec<_>>());
    }
    case
}

const DIMS: [&str; 4] = ["--dim", "S=1..4", "--dim", "P=0..12"];

fn run(args: &[&str]) -> (Option<i32>, String) {
    let output = symc(args);
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn test_runs_the_data_sets_as_steps_of_one_state() {
    let folder = tempfile::tempdir().expect("a folder");
    let right = case(folder.path(), 0.0);
    let args = [&["test", "--stateful", right.to_str().expect("a path")][..], &DIMS].concat();
    let (code, text) = run(&args);
    assert_eq!(code, Some(0), "{text}");

    case(folder.path(), 0.5);
    let (code, text) = run(&args);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("set 2: `new`: "), "the state is compared: {text}");
}

#[test]
fn run_reads_and_writes_the_file_of_the_state() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("a path").to_string();
    std::fs::write(path("rows.onnx"), model().encode_to_vec()).expect("a model");
    let compile = ["compile", &path("rows.onnx"), "--state", "old=new", "-o", &path("rows.so")];
    let summary = &json(&[&compile[..], &DIMS].concat())[0];
    assert_eq!(summary["state"]["pairs"], serde_json::json!(["old=new"]));
    assert_eq!(summary["state"]["length"], "P");

    npy::write(Path::new(&path("x.npy")), &[2, 3], &[0.0; 6]);
    let x = format!("x={}", path("x.npy"));
    let (model, state) = (path("rows.so"), path("s.state"));
    for rows in [2, 4, 6] {
        let line = &json(&["run", &model, "-i", &x, "--state-file", &state])[0];
        assert_eq!(line["outputs"][0]["shape"], serde_json::json!([rows, 3]));
    }

    let mut bytes = std::fs::read(&state).expect("a state");
    bytes.truncate(bytes.len() - 1);
    std::fs::write(&state, bytes).expect("a state");
    let error = refusal(&["run", &model, "-i", &x, "--state-file", &state]);
    assert!(error.contains("not a state of this model: the file is cut off"), "{error}");
}

#[test]
fn bench_times_a_step_at_a_length() {
    let folder = tempfile::tempdir().expect("a folder");
    let model_path = folder.path().join("rows.onnx");
    std::fs::write(&model_path, model().encode_to_vec()).expect("a model");
    let model_path = model_path.to_str().expect("a path");
    let args = ["bench", model_path, "--stateful", "--at", "S=1,P=7", "S=2,P=0,capacity=5", "--min-ms", "1"];
    let lines = json(&[&args[..], &DIMS].concat());
    assert_eq!(lines[0]["at"], "S=1,P=7,capacity=16");
    assert_eq!(lines[1]["at"], "S=2,P=0,capacity=5");
    assert!(lines.iter().all(|line| line["allocs_per_call"] == 0));

    let args = ["selfcheck", model_path, "--stateful"];
    let error = refusal(&[&args[..], &DIMS].concat());
    assert!(error.contains("selfcheck takes neither --state nor --stateful"), "{error}");
}

#[test]
fn c_source_has_the_functions_of_state() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("a path").to_string();
    let model_path = path("rows.onnx");
    std::fs::write(&model_path, model().encode_to_vec()).expect("a model");
    let summary = json(&[&["compile", &model_path, "--stateful", "-o", &path("rows.c")][..], &DIMS].concat());
    assert_eq!(summary[0]["state"]["max_states"], 1);
    assert_eq!(summary[0]["state"]["one_state"], "C source runs one batch");
    let header = std::fs::read_to_string(path("rows.h")).expect("a header");
    let source = std::fs::read_to_string(path("rows.c")).expect("a source");
    for function in ["rows_state_bytes(", "rows_state_place(", "rows_run_stateful("] {
        assert!(header.contains(function) && source.contains(function), "{function}");
    }
}

#[test]
fn rows_of_16_bits_have_a_measured_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let right = case(folder.path(), 0.0);
    // Integers below 2,048 are f16.
    let args = ["test", "--stateful", "--state-type", "f16", right.to_str().expect("a path")];
    let (code, text) = run(&[&args[..], &DIMS].concat());
    assert_eq!(code, Some(0), "{text}");

    let path = |name: &str| folder.path().join(name).to_str().expect("a path").to_string();
    std::fs::write(path("rows.onnx"), model().encode_to_vec()).expect("a model");
    let compile = ["compile", &path("rows.onnx"), "--stateful", "-o", &path("rows.so"), "--state-type"];
    for (row_type, below) in [("f16", 1e-3), ("bf16", 8e-3)] {
        let summary = &json(&[&compile[..], &[row_type], &DIMS].concat())[0];
        let error = &summary["state"]["row_error"];
        assert_eq!(error["type"], row_type);
        let max_error = error["max_error"].as_f64().expect("a number");
        assert!(max_error > below / 100.0 && max_error < below, "{row_type}: {max_error}");
    }

    let error = refusal(&[&compile[..], &["i4"], &DIMS].concat());
    assert!(error.contains("--state-type") && error.contains("expected f16 or bf16"), "{error}");
    let compile = ["compile", &path("rows.onnx"), "-o", &path("rows.so"), "--state-type", "f16"];
    let error = refusal(&[&compile[..], &DIMS].concat());
    assert!(error.contains("add --stateful or --state IN=OUT"), "{error}");
}

#[test]
fn grouped_attention_is_timed_and_compiled_with_rows_of_16_bits() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("a path").to_string();
    std::fs::write(path("grouped.onnx"), super::grouped::model().encode_to_vec()).expect("a model");
    let dims = ["--dim", "N=1..3", "--dim", "S=1..5", "--dim", "P=0..12", "--dim", "T=P+S", "--stateful"];
    let bench = ["bench", &path("grouped.onnx"), "--at", "N=2,S=3,P=7", "--min-ms", "1"];
    let lines = json(&[&bench[..], &dims].concat());
    assert_eq!(lines[0]["at"], "N=2,S=3,P=7,capacity=17");

    let compile = ["compile", &path("grouped.onnx"), "-o", &path("grouped.so"), "--state-type", "f16"];
    let summary = &json(&[&compile[..], &dims].concat())[0];
    let max_error = summary["state"]["row_error"]["max_error"].as_f64().expect("a measured error");
    assert!(max_error > 1e-6 && max_error < 1e-3, "{max_error}");
}
