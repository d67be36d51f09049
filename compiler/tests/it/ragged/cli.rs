//! Ragged batches on the command line.

use crate::{
    cases::write_tensor,
    cli::{BLOCK, json, refusal, symc},
    npy,
    protos::{float, int64_tensor, node},
};
use prost::Message;
use std::path::Path;
use symshape_compiler::import::proto::{AttributeProto, GraphProto, ModelProto, OperatorSetIdProto};

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

const DIMS: [&str; 4] = ["--dim", "N=1..4", "--dim", "S=1..9"];

/// `y = -x`, and `sum`, the sum of the tokens of each sequence.
fn masked_model() -> Vec<u8> {
    let keepdims = AttributeProto { name: "keepdims".into(), i: 0, kind: 2, ..Default::default() };
    let mut sum = node("ReduceSum", &["kept", "axis"], &["sum"]);
    sum.attribute.push(keepdims);
    let graph = GraphProto {
        name: "masked".into(),
        node: vec![
            node("Neg", &["x"], &["y"]),
            node("Unsqueeze", &["mask", "last"], &["tokens"]),
            node("Mul", &["x", "tokens"], &["kept"]),
            sum,
        ],
        initializer: vec![int64_tensor("last", &[2]), int64_tensor("axis", &[1])],
        input: vec![float("x", &["N", "S", "3"]), float("mask", &["N", "S"])],
        output: vec![float("y", &["N", "S", "3"]), float("sum", &["N", "3"])],
        ..Default::default()
    };
    let opset = OperatorSetIdProto { version: 17, ..Default::default() };
    ModelProto { ir_version: 8, opset_import: vec![opset], graph: Some(graph), ..Default::default() }
        .encode_to_vec()
}

/// A folder with the masked model, and padded inputs of 2 and 4 tokens; padding is 100.
pub(super) struct Files {
    folder: tempfile::TempDir,
}

const X: [f32; 24] = {
    let mut x = [100.0; 24];
    let mut k = 0;
    while k < 6 {
        x[k] = k as f32;
        k += 1;
    }
    while k < 18 {
        x[k + 6] = k as f32;
        k += 1;
    }
    x
};
const MASK: [f32; 8] = [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0];

impl Files {
    pub(super) fn new() -> Files {
        let files = Files { folder: tempfile::tempdir().expect("a folder") };
        std::fs::write(files.path("masked.onnx"), masked_model()).expect("a model");
        npy::write(Path::new(&files.path("x.npy")), &[2, 4, 3], &X);
        npy::write(Path::new(&files.path("mask.npy")), &[2, 4], &MASK);
        files
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("UTF-8").to_string()
    }

    fn input(&self, name: &str) -> String {
        format!("{name}={}", self.path(&format!("{name}.npy")))
    }

    fn artefact(&self) -> String {
        let out = self.path("masked.so");
        json(&[&["compile", &self.path("masked.onnx"), "-o", &out, "--ragged", "S"], &DIMS[..]].concat());
        out
    }

    /// Compares an output with these elements. Its header may have other spaces than that of the test.
    fn check(&self, name: &str, shape: &[usize], elems: &[f32]) {
        let written = std::fs::read(self.path(&format!("out/{name}.npy"))).expect("an output");
        let expected = npy::bytes(shape, elems);
        let header = String::from_utf8_lossy(&written[10..128]).replace(' ', "");
        let expected_header = String::from_utf8_lossy(&expected[10..128]).replace(' ', "");
        assert_eq!(header, expected_header, "{name}");
        assert_eq!(written[128..], expected[128..], "{name}");
    }
}

#[test]
fn run_packs_padded_inputs_and_pads_the_outputs() {
    let files = Files::new();
    let artefact = files.artefact();
    let (x, mask, out) = (files.input("x"), files.input("mask"), files.path("out"));
    let padded: Vec<f32> = X.iter().map(|x| if *x == 100.0 { 0.0 } else { -x }).collect();
    let sums = [3.0, 5.0, 7.0, 42.0, 46.0, 50.0];
    let check = |args: &[&str]| {
        let line = &json(&[&["run"], args, &["-i", &x, "-o", &out]].concat())[0];
        assert_eq!(line["dims"], serde_json::json!({"N": 2, "T": 6}), "{args:?}");
        files.check("y", &[2, 4, 3], &padded);
        files.check("sum", &[2, 3], &sums);
    };
    check(&[&artefact, "-i", &mask]);
    check(&[&artefact, "--lengths", "2,4"]);
    check(&[&[files.path("masked.onnx").as_str(), "--ragged", "S", "-i", mask.as_str()], &DIMS[..]].concat());

    // The rows of all sequences stay rows.
    npy::write(Path::new(&files.path("x.npy")), &[3, 3], &[1.0; 9]);
    json(&["run", &artefact, "-i", &x, "--lengths", "1,2", "-o", &out]);
    files.check("y", &[3, 3], &[-1.0; 9]);
    files.check("sum", &[2, 3], &[1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    let line = &json(&["run", &artefact, "--lengths", "3,1,9"])[0];
    assert_eq!(line["dims"], serde_json::json!({"N": 3, "T": 13}));
}

#[test]
fn wrong_padded_inputs_and_lengths_are_refused_by_name() {
    let files = Files::new();
    let artefact = files.artefact();
    let (x, mask) = (files.input("x"), files.input("mask"));
    let refused = |args: &[&str], words: &str| {
        let error = refusal(&[&["run", artefact.as_str()], args].concat());
        assert!(error.contains(words), "{args:?}: {error}");
    };
    refused(&["-i", &x], "the lengths are missing: give the input `mask`, `offsets` or --lengths");
    refused(&["-i", &x, "-i", &mask, "--lengths", "2,4"], "mask and --lengths are given");
    refused(&["-i", &mask], "input `x` is missing");
    refused(&["-i", &x, "--lengths", "2,5"], "sequence 1 has 5 tokens; the padded length is 4");
    refused(&["-i", &x, "--lengths", "2"], "axis 0 of `x` is 2; expected 1");
    refused(&["-i", &x, "--lengths", "0,4"], "sequence 0 has 0 rows; S is declared 1..=9");
    refused(&["--lengths", "10"], "S = 10");
    refused(&["--lengths", "1,1,1,1,1"], "N = 5");
    refused(&["--lengths", "18446744073709551615,1"], "the sum is too large");
    refused(&["--lengths", "2,x"], "expected lengths, such as 12,300,45");
    npy::write(Path::new(&files.path("mask.npy")), &[2, 4], &[1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
    refused(&["-i", &x, "-i", &mask], "sequence 0 has padding between tokens, at position 1");
    npy::write(Path::new(&files.path("mask.npy")), &[2, 4], &[0.5; 8]);
    refused(&["-i", &x, "-i", &mask], "input `mask`: element [0, 0] of the mask is neither 0 nor 1");
    npy::write(Path::new(&files.path("mask.npy")), &[2, 3], &[1.0; 6]);
    refused(&["-i", &x, "-i", &mask], "axis 1 of `x` is 4; expected 3");
    refused(&["--ragged", "S"], "--ragged is for ONNX models");

    let dense = files.path("dense.so");
    json(&[&["compile", &files.path("masked.onnx"), "-o", &dense], &DIMS[..]].concat());
    let error = refusal(&["run", &dense, "--lengths", "2"]);
    assert!(error.contains("--lengths 2: the model takes no ragged batch"), "{error}");
}

#[test]
fn bench_measures_lists_of_lengths_and_padded_inputs() {
    let files = Files::new();
    let artefact = files.artefact();
    let lines = json(&["bench", &artefact, "--lengths", "2,4", "9,1,1,1", "--min-ms", "5"]);
    let at: Vec<&str> = lines.iter().map(|line| line["at"].as_str().expect("text")).collect();
    assert_eq!(at, ["N=2,T=6", "N=4,T=12"]);
    assert!(lines.iter().all(|line| line["allocs_per_call"] == 0));
    let lines = json(&["bench", &artefact, "--at", "N=4,T=7", "--min-ms", "5"]);
    assert_eq!(lines[0]["at"], "N=4,T=7");
    assert_eq!(json(&["bench", &artefact, "--min-ms", "5"]).len(), 2);
    let error = refusal(&["bench", &artefact, "--at", "N=4,T=3"]);
    assert!(error.contains("S = 0"), "{error}");
}

#[test]
fn test_packs_data_sets_and_does_not_compare_padding() {
    let files = Files::new();
    let case = files.folder.path().join("cases/masked");
    let set = case.join("test_data_set_0");
    std::fs::create_dir_all(&set).expect("a folder");
    std::fs::write(case.join("model.onnx"), masked_model()).expect("a model");
    write_tensor(&set.join("input_0.pb"), &[2, 4, 3], &X);
    write_tensor(&set.join("input_1.pb"), &[2, 4], &MASK);
    let mut y: Vec<f32> = X.iter().map(|x| -x).collect();
    // The padded model may compute anything for padding.
    y[6..12].fill(f32::NAN);
    write_tensor(&set.join("output_0.pb"), &[2, 4, 3], &y);
    write_tensor(&set.join("output_1.pb"), &[2, 3], &[3.0, 5.0, 7.0, 42.0, 46.0, 50.0]);

    let cases = files.path("cases");
    let tested = |code: i32, words: &str| {
        let output = symc(&[&["test", cases.as_str(), "--ragged", "S"], &DIMS[..]].concat());
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(words), "{text}");
    };
    tested(0, "1 passed, 0 failed");
    // A wrong token fails.
    y[12] = 1.0;
    write_tensor(&set.join("output_0.pb"), &[2, 4, 3], &y);
    tested(1, "`y`:");
}

#[test]
fn reports_count_the_work_of_a_whole_sequence() {
    let files = Files::new();
    let page = files.path("page.html");
    json(&[&["report", &files.path("masked.onnx"), "-o", &page, "--ragged", "S"], &DIMS[..]].concat());
    let page = std::fs::read_to_string(page).expect("a page");
    let (_, data) = page.split_once("id=\"data\">").expect("data");
    let data: serde_json::Value =
        serde_json::from_str(data.split("</script>").next().expect("an end")).expect("JSON");
    let kernels = data["ragged"]["kernels"].as_array().expect("a list");
    assert!(kernels.iter().any(|kernel| kernel["group"].is_null()), "{kernels:?}");
    assert!(kernels.iter().any(|kernel| !kernel["group"].is_null()), "{kernels:?}");
    for kernel in kernels {
        let symbol = if kernel["group"].is_null() { "\"T\"" } else { "\"S\"" };
        assert!(kernel["work"].to_string().contains(symbol), "{kernel}");
    }
}
