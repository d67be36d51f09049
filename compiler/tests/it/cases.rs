//! `symc test` and bounds.json: flags of all cases, refused models, relations between symbols.

use crate::{
    cli,
    protos::{float, node, value},
};
use prost::Message;
use std::{
    fs,
    path::{Path, PathBuf},
};
use symshape_compiler::import::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
};

/// `(concat(past, new) + mask) * scale`, whose mask has an axis `T`; then the nodes `more`.
fn decoder(more: Vec<NodeProto>) -> ModelProto {
    let mut concat = node("Concat", &["past", "new"], &["all"]);
    concat.attribute.push(AttributeProto { name: "axis".into(), i: 1, kind: 2, ..Default::default() });
    let add = node("Add", &["all", "mask"], &["masked"]);
    let scaled = node("Mul", &["masked", "scale"], &["y"]);
    let graph = GraphProto {
        name: "decoder".into(),
        node: [concat, add, scaled].into_iter().chain(more).collect(),
        input: vec![
            float("past", &["N", "P"]),
            float("new", &["N", "S"]),
            float("mask", &["N", "T"]),
            float("scale", &[]),
        ],
        output: vec![float("y", &["N", "T"])],
        ..Default::default()
    };
    let opset = OperatorSetIdProto { version: 17, ..Default::default() };
    ModelProto { ir_version: 8, opset_import: vec![opset], graph: Some(graph), ..Default::default() }
}

pub(crate) fn write_tensor(path: &Path, shape: &[i64], elems: &[f32]) {
    let raw: Vec<u8> = elems.iter().flat_map(|elem| elem.to_le_bytes()).collect();
    let tensor = TensorProto {
        dims: shape.to_vec(),
        data_type: 1,
        raw_data: Some(raw.into()),
        ..TensorProto::default()
    };
    fs::write(path, tensor.encode_to_vec()).expect("a tensor");
}

/// A case with one data set for each size of the past.
fn case(folder: &Path, name: &str, model: &ModelProto, pasts: &[i64]) -> PathBuf {
    let case = folder.join(name);
    fs::create_dir_all(&case).expect("a folder");
    fs::write(case.join("model.onnx"), model.encode_to_vec()).expect("a model");
    let (n, s) = (2_i64, 3_i64);
    for (set, p) in pasts.iter().enumerate() {
        let set = case.join(format!("test_data_set_{set}"));
        fs::create_dir_all(&set).expect("a folder");
        let all = |len: i64, value: f32| vec![value; (n * len) as usize];
        write_tensor(&set.join("input_0.pb"), &[n, *p], &all(*p, 1.0));
        write_tensor(&set.join("input_1.pb"), &[n, s], &all(s, 2.0));
        write_tensor(&set.join("input_2.pb"), &[n, p + s], &all(p + s, 0.5));
        write_tensor(&set.join("input_3.pb"), &[], &[2.0]);
        let row: Vec<f32> = (0..p + s).map(|at| if at < *p { 3.0 } else { 5.0 }).collect();
        write_tensor(&set.join("output_0.pb"), &[n, p + s], &row.repeat(n as usize));
    }
    case
}

/// The exit code of `symc test`, and the text of both outputs.
fn test(case: &Path, flags: &[&str]) -> (Option<i32>, String, String) {
    let output = cli::symc(&[&["test", case.to_str().expect("a path")], flags].concat());
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_bounds_file_has_steps_sets_and_relations() {
    let folder = tempfile::tempdir().expect("a folder");
    let case = case(folder.path(), "decoder", &decoder(vec![]), &[0, 4]);
    let bounds = case.join("bounds.json");
    fs::write(&bounds, r#"{"N": [1, 4], "S": "1..9/2", "P": "0,2,4", "T": "P + S", "Unused": "A + B"}"#)
        .unwrap();
    let (code, out, err) = test(&case, &[]);
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(err.contains("get their ranges from") && err.contains("bounds.json"), "{err}");

    // Values outside of the set and of the steps violate the contract; flags go first.
    for (values, flag) in
        [(r#""P": "2,4", "S": "1..9/2""#, "P=0..4"), (r#""P": [0, 4], "S": "2..8/2""#, "S=1..8")]
    {
        fs::write(&bounds, format!(r#"{{"N": [1, 4], {values}, "T": "P + S"}}"#)).unwrap();
        let (code, out, _) = test(&case, &[]);
        assert_eq!(code, Some(1), "{out}");
        assert!(out.starts_with("error ") && out.contains(&flag[..1]), "{out}");
        let (code, out, _) = test(&case, &["--dim", flag]);
        assert_eq!(code, Some(0), "{out}");
    }

    let other = folder.path().join("other.json");
    fs::write(&other, r#"{"N": [2, 2], "P": [0, 4], "S": [3, 3], "T": "P + S"}"#).unwrap();
    let (code, out, err) = test(&case, &["--bounds", other.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{out}");
    assert!(!err.contains("bounds.json"), "{err}");
}

/// The data set has no seed, and the numbers of another generator.
#[test]
fn random_results_are_compared_by_type_and_shape() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut model = decoder(vec![node("RandomUniformLike", &["y"], &["r"])]);
    model.graph.as_mut().expect("there is one").output = vec![float("r", &["N", "T"])];
    let case = case(folder.path(), "random", &model, &[0, 4]);
    let flags = ["--dim", "N=1..4", "--dim", "P=0..4", "--dim", "S=1..8", "--dim", "T=P+S"];
    let (code, out, err) = test(&case, &flags);
    assert_eq!(code, Some(0), "{out}{err}");

    write_tensor(&case.join("test_data_set_0/output_0.pb"), &[2, 2], &[0.5; 4]);
    let (code, out, _) = test(&case, &flags);
    assert_eq!(code, Some(1), "{out}");
}

#[test]
fn malformed_bounds_files_are_refused_with_a_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("model.onnx");
    fs::write(&model, decoder(vec![]).encode_to_vec()).unwrap();
    let bounds = folder.path().join("bounds.json");
    for (text, part) in [
        ("[1, 2]", "not an object"),
        (r#"{"N": [4, 1]}"#, "`N` has the value [4,1]"),
        (r#"{"N": 7}"#, "`N` has the value 7"),
        (r#"{"N": "4..1"}"#, "empty range for N"),
        (r#"{"N": "N + 1"}"#, "contains N itself"),
        (r#"{"N": "S", "S": "N", "P": [1, 2], "T": [1, 9]}"#, "form a cycle"),
        (r#"{"N": ""}"#, "NAME=LO..HI"),
        (r#"{"N": "A*A*A*A*A*A*A*A", "A": "B*B*B*B*B*B*B*B", "B": "N*N*N*N*N*N*N*N"}"#, "form a cycle"),
    ] {
        fs::write(&bounds, text).unwrap();
        let said = cli::refusal(&["compile", model.to_str().unwrap(), "--emit", "graph"]);
        assert!(said.contains(part), "{text}: {said}");
    }
}

#[test]
fn a_symbol_can_be_an_expression_of_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("model.onnx");
    fs::write(&model, decoder(vec![]).encode_to_vec()).unwrap();
    let sizes = ["--dim", "N=1..4", "--dim", "P=0..4", "--dim", "S=1..8"];
    let base = [&["compile", model.to_str().unwrap(), "--emit", "graph"][..], &sizes].concat();
    let compile = |flags: &[&'static str]| [&base[..], flags].concat();
    let graph = cli::symc(&compile(&["--dim", "T=P+S"]));
    let graph = String::from_utf8(graph.stdout).unwrap();
    assert!(graph.contains("input mask: f32[N, P + S]") && !graph.contains("symbol T"), "{graph}");

    let chain = cli::symc(&compile(&["--dim", "T=R+S", "--dim", "R=P"]));
    assert_eq!(String::from_utf8(chain.stdout).unwrap(), graph);
    assert!(cli::refusal(&compile(&["--dim", "U=P+S"])).contains("no input has a symbol `U`"));
    assert!(cli::refusal(&compile(&["--dim", "T=P+S", "--dim", "T=1..9"])).contains("also has a range"));
}

#[test]
fn flags_of_a_test_apply_to_its_cases() {
    let folder = tempfile::tempdir().expect("a folder");
    let case = case(folder.path(), "decoder", &decoder(vec![]), &[1, 4]);
    let sizes = ["--dim", "N=1..4", "--dim", "P=0..4", "--dim", "S=1..8"];
    let (code, out, err) = test(&case, &sizes[..4]);
    assert_eq!(code, Some(1), "{out}");
    assert!(out.ends_with("0 passed, 0 failed, 1 skipped\n"), "{out}");
    assert!(out.contains("`S` (input `new` axis 1) has no upper bound"), "{out}");
    assert!(err.contains("1 model is refused") && err.contains("--allow-refused"), "{err}");
    assert_eq!(test(&case, &[&sizes[..4], &["--allow-refused"]].concat()).0, Some(0));

    for more in
        [&[][..], &["--dim", "T=P+S"], &["--input", "mask=N,P+S"], &["--dim", "T=P+S", "--bind", "scale=2"]]
    {
        let (code, out, err) = test(&case, &[&sizes[..], more].concat());
        assert_eq!(code, Some(0), "{more:?}: {out}{err}");
        assert!(out.ends_with("1 passed, 0 failed, 0 skipped\n"), "{out}");
    }
    let (code, out, _) = test(&case, &[&sizes[..], &["--dim", "T=P+S", "--bind", "scale=3"]].concat());
    assert!(code == Some(1) && out.starts_with("fail "), "{out}");
}

#[test]
fn a_refused_model_fails_the_test() {
    let folder = tempfile::tempdir().expect("a folder");
    let bounds = r#"{"N": [1, 4], "S": [1, 8], "P": [0, 4], "T": "P + S"}"#;
    for (name, more) in [("good", vec![]), ("odd", vec![node("com.acme:Odd", &["y"], &["z"])])] {
        let mut model = decoder(more);
        if name == "odd"
            && let Some(graph) = &mut model.graph
        {
            graph.output[0].name = "z".into();
        }
        let case = case(folder.path(), name, &model, &[2]);
        fs::write(case.join("bounds.json"), bounds).unwrap();
    }
    let (code, out, err) = test(folder.path(), &[]);
    assert_eq!(code, Some(1), "{out}");
    assert!(out.ends_with("1 passed, 0 failed, 1 skipped\n") && out.contains("unsupported "), "{out}");
    assert!(err.contains("next to the model in 2 of 2 cases"), "{err}");
    assert_eq!(test(folder.path(), &["--allow-refused"]).0, Some(0));
}

/// The flags of the sizes of `decoder`.
const SIZES: [&str; 8] = ["--dim", "N=1..4", "--dim", "P=0..4", "--dim", "S=1..8", "--dim", "T=P+S"];

/// Cases that pass, that have wrong data, and that break the contract.
fn check_programs(machine: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let flags = [&SIZES[..], machine].concat();
    let good = case(folder.path(), "decoder", &decoder(vec![]), &[0, 4]);
    let (code, out, err) = test(&good, &flags);
    assert_eq!(code, Some(0), "{out}{err}");

    // The size of the output is known after the call only.
    let mut model = decoder(vec![node("NonZero", &["y"], &["z"])]);
    model.graph.as_mut().expect("there is one").output = vec![value("z", 7, &["A", "B"])];
    let places = case(folder.path(), "places", &model, &[1]);
    let rows = [vec![0; 4], vec![1; 4], (0..4).collect(), (0..4).collect()].concat();
    write_integers(&places.join("test_data_set_0/output_0.pb"), &[2, 8], &rows);
    let (code, out, err) = test(&places, &flags);
    assert_eq!(code, Some(0), "{out}{err}");

    // The seed is an input that data sets lack.
    let mut model = decoder(vec![node("RandomUniformLike", &["y"], &["r"])]);
    model.graph.as_mut().expect("there is one").output = vec![float("r", &["N", "T"])];
    let random = case(folder.path(), "random", &model, &[4]);
    assert_eq!(test(&random, &flags).0, Some(0));

    write_tensor(&good.join("test_data_set_1/output_0.pb"), &[2, 7], &[0.5; 14]);
    let (code, out, _) = test(&good, &flags);
    assert!(code == Some(1) && out.contains("set 1: `y`: "), "{out}");
    let outside = case(folder.path(), "outside", &decoder(vec![]), &[5]);
    let (code, out, _) = test(&outside, &flags);
    assert!(code == Some(1) && out.starts_with("error ") && out.contains("is 5, allowed 0 to 4"), "{out}");
}

fn write_integers(path: &Path, shape: &[i64], elems: &[i64]) {
    let raw: Vec<u8> = elems.iter().flat_map(|elem| elem.to_le_bytes()).collect();
    let tensor = TensorProto {
        dims: shape.to_vec(),
        data_type: 7,
        raw_data: Some(raw.into()),
        ..TensorProto::default()
    };
    fs::write(path, tensor.encode_to_vec()).expect("a tensor");
}

#[test]
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn cases_run_as_programs_of_this_machine() {
    check_programs(&["--cpu", "x86-64-v2"]);
    check_programs(&["--runner", "env LEVEL=any"]);
}

#[test]
#[ignore = "needs a cross compiler and qemu"]
fn cases_run_as_programs_of_another_machine() {
    let aarch64 = ["--target", "aarch64-unknown-linux-gnu"];
    for (levels, runner) in [
        ("aarch64", "qemu-aarch64 -cpu cortex-a57"),
        ("aarch64,aarch64-dotprod,aarch64-i8mm", "qemu-aarch64 -cpu max"),
    ] {
        check_programs(&[&aarch64[..], &["--cpu", levels, "--runner", runner]].concat());
    }
    check_programs(&["--target", "riscv64gc-unknown-linux-gnu", "--runner", "qemu-riscv64"]);
}

#[test]
fn programs_of_cases_need_a_runner_and_a_compiler() {
    let folder = tempfile::tempdir().expect("a folder");
    let case = case(folder.path(), "decoder", &decoder(vec![]), &[0]);
    let case = case.to_str().expect("a path");
    let said = |flags: &[&str]| cli::refusal(&[&["test", case], &SIZES[..], flags].concat());

    let message = said(&["--target", "aarch64-unknown-none"]);
    assert!(message.contains("--runner qemu-aarch64 (of Debian's qemu-user)"), "{message}");
    assert!(said(&["--cpu", "x86-64-v33"]).contains("did you mean x86-64-v3"));
    for flag in [&["--stateful"][..], &["--ragged", "S"]] {
        assert!(said(&[&["--runner", "env"], flag].concat()).contains("omit --target, --cpu and --runner"));
    }
    let message = said(&["--runner", "no-such-emulator"]);
    assert!(message.contains("`no-such-emulator` can't be started"), "{message}");
    let message = said(&["--runner", "false"]);
    assert!(message.contains("`false` can't run programs"), "{message}");
}

/// A program that does not end is killed, and so is its runner.
#[test]
#[cfg(target_os = "linux")]
fn programs_of_cases_have_a_time_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let case = case(folder.path(), "decoder", &decoder(vec![]), &[0]);
    let runner = folder.path().join("runner");
    // The first program is the one that tries the runner out.
    let script = "#!/bin/sh\nif [ -e \"$0.used\" ]; then exec sleep 100; fi\n: > \"$0.used\"\nexec \"$@\"\n";
    fs::write(&runner, script).expect("a file");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&runner, mode).expect("a mode");
    let runner = runner.to_str().expect("a path");
    let (code, out, _) = test(&case, &[&SIZES[..], &["--timeout", "3", "--runner", runner]].concat());
    assert!(code == Some(1) && out.starts_with("timeout "), "{out}");
}
