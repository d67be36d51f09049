//! `symc` as a program: words, exit codes, JSON, files. The model is the transformer block of the examples.

use crate::{npy, protos};

use prost::Message;
use protos::{float, node};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};
use symshape_compiler::import::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto,
};

pub(crate) const BLOCK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/block.onnx");
const DIMS: [&str; 4] = ["--dim", "N=1..4", "--dim", "S=1..9"];

pub(crate) fn symc(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_symc")).args(args).output().expect("symc starts")
}

/// Standard output of a call that must succeed, as JSON objects, one a line.
pub(crate) fn json(args: &[&str]) -> Vec<Value> {
    let output = symc(&[args, &["--json"]].concat());
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{args:?}: {err}");
    out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// The error message of a command that must be refused; standard output stays empty.
pub(crate) fn refusal(args: &[&str]) -> String {
    let output = symc(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap().trim_end().replace(BLOCK, "block.onnx")
}

/// The block as a shared object in `folder`.
pub(crate) fn shared(folder: &Path) -> String {
    let path = path(folder, "block.so");
    json(&[&["compile", BLOCK, "-o", &path], &DIMS[..]].concat());
    path
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().expect("UTF-8").to_string()
}

/// An `.npz` without compression, of arrays of floats.
fn npz(path: &str, arrays: &[(&str, &[usize], &[f32])]) {
    let mut zip = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    for (name, shape, elems) in arrays {
        zip.start_file(format!("{name}.npy"), zip::write::SimpleFileOptions::default()).unwrap();
        std::io::Write::write_all(&mut zip, &npy::bytes(shape, elems)).unwrap();
    }
    zip.finish().unwrap();
}

#[test]
fn compile_reports_what_it_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let out = path(folder.path(), "block.o");
    let report = &json(&[&["compile", BLOCK, "-o", &out], &DIMS[..]].concat())[0];
    assert_eq!(report["artifact"], out.as_str());
    assert_eq!(report["bytes"].as_u64(), Some(std::fs::metadata(&out).unwrap().len()));
    for field in ["code_bytes", "weight_bytes", "arena_max", "compile_ms", "kernels"] {
        assert!(report[field].as_f64().unwrap() > 0.0, "{field}");
    }
    let header = std::fs::read_to_string(out.replace(".o", ".h")).unwrap();
    assert!(header.contains(&format!("#define BLOCK_ARENA_MAX {}u", report["arena_max"])));
    assert!(header.contains("#define BLOCK_N_MAX 4\n"));
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "no other files are left: {names:?}");
}

#[test]
fn partitions_are_counted_and_run_by_any_policy() {
    let folder = tempfile::tempdir().unwrap();
    let out = path(folder.path(), "block.so");
    let compile = |more: &[&str]| {
        json(&[&["compile", BLOCK, "-o", &out][..], &DIMS, more].concat()).remove(0)["partitions"].clone()
    };
    assert_eq!(compile(&[]), 0);
    assert_eq!(compile(&["--partitions", "3"]), 3);
    let inputs = path(folder.path(), "in.npz");
    npz(&inputs, &[("x", &[2, 3, 64], &[0.25; 2 * 3 * 64])]);
    let output = |policy: &str| {
        let to = path(folder.path(), policy);
        json(&["run", &out, "--inputs", &inputs, "--threads", "2", "--policy", policy, "-o", &to]);
        std::fs::read(folder.path().join(policy).join("y.npy")).unwrap()
    };
    let [serial, parallel, auto] = ["serial", "parallel", "auto"].map(output);
    assert!(serial == parallel && serial == auto);

    let page = path(folder.path(), "block.html");
    compile(&["--partitions", "3", "--report", &page]);
    let table = report_data(&std::fs::read_to_string(&page).unwrap())["partitions"].clone();
    let dims = [("N", 2.0), ("S", 3.0)];
    assert!(
        table.as_array().unwrap().iter().all(|entry| evaluate(&entry["cost"], &dims, &[]) > 0.0),
        "{table}"
    );
    assert_eq!(table.as_array().unwrap().len(), 3);

    compile(&["--partitions", "3", "--policies", "serial"]);
    assert!(refusal(&["run", &out, "--inputs", &inputs, "--policy", "parallel"]).contains("--policies any"));
    for wrong in ["0", "1.5", "many", "257"] {
        let text = refusal(&[&["compile", BLOCK, "-o", &out, "--partitions", wrong][..], &DIMS].concat());
        assert!(text.contains("partitions"), "{text}");
    }
    let source = path(folder.path(), "block.c");
    let line = json(&[&["compile", BLOCK, "-o", &source, "--partitions", "2"][..], &DIMS].concat()).remove(0);
    assert_eq!(line["partitions"], 2);
}

#[test]
fn stages_have_texts() {
    for (stage, part) in [
        ("graph", "graph"),
        ("kernel", "for "),
        ("plan", "arena_max"),
        ("clif", "function"),
        ("asm", "_run:"),
    ] {
        let output = symc(&[&["compile", BLOCK, "--emit", stage], &DIMS[..]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8(output.stdout).unwrap().contains(part), "{stage}");
    }
}

#[test]
fn run_writes_outputs() {
    let folder = tempfile::tempdir().unwrap();
    let (model, inputs) = (shared(folder.path()), path(folder.path(), "in.npz"));
    let x = vec![0.25_f32; 2 * 3 * 64];
    npz(&inputs, &[("in:x", &[2, 3, 64], &x), ("out:y", &[1], &[0.0])]);
    let out = path(folder.path(), "out");
    let from_so = &json(&["run", &model, "--inputs", &inputs, "-o", &out])[0];
    assert_eq!(from_so["dims"], serde_json::json!({"N": 2, "S": 3}));
    assert_eq!(
        from_so["outputs"],
        serde_json::json!([{"name": "y", "dtype": "float32", "shape": [2, 3, 64]}])
    );
    let first = std::fs::read(folder.path().join("out/y.npy")).unwrap();
    assert_eq!(first.len(), 128 + 4 * 2 * 3 * 64);
    json(&[&["run", BLOCK, "--inputs", &inputs, "-o", &out], &DIMS[..]].concat());
    assert_eq!(std::fs::read(folder.path().join("out/y.npy")).unwrap(), first, "the JIT runs the same code");
}

#[test]
fn bench_has_a_line_for_each_binding_and_no_heap_calls() {
    let folder = tempfile::tempdir().unwrap();
    let model = shared(folder.path());
    let lines = json(&["bench", &model, "--at", "N=1,S=1", "N=4,S=9", "--min-ms", "5"]);
    assert_eq!(lines.len(), 2);
    for (line, at) in lines.iter().zip(["N=1,S=1", "N=4,S=9"]) {
        assert_eq!(line["at"], at);
        assert_eq!(line["allocs_per_call"], 0);
        assert_eq!(line["threads"], 1);
        for field in ["median_ns", "min_ns", "first_ns", "reps", "arena_bytes", "arena_max"] {
            assert!(line[field].as_u64().unwrap() > 0, "{field}");
        }
    }
    let lines = json(&["bench", &model, "--at", "N=4,S=9", "--threads", "2", "--min-ms", "5"]);
    assert_eq!((&lines[0]["threads"], &lines[0]["allocs_per_call"]), (&2.into(), &0.into()));
    let lines = json(&["bench", &model, "--at", "N=1,S=1", "N=4,S=9", "--min-ms", "5"]);
    assert!(lines[0]["arena_bytes"].as_u64() < lines[1]["arena_bytes"].as_u64());
    assert!(lines[1]["arena_bytes"].as_u64() <= lines[1]["arena_max"].as_u64());
}

#[test]
fn selfcheck_passes_at_every_edge() {
    let lines = json(&[&["selfcheck", BLOCK], &DIMS[..]].concat());
    assert!(lines.iter().all(|line| line["status"] == "pass"), "{lines:?}");
    for at in ["N=1,S=1", "N=1,S=2", "N=1,S=8", "N=1,S=9", "N=2,S=1", "N=3,S=1", "N=4,S=1", "N=4,S=9"] {
        assert!(lines.iter().any(|line| line["at"] == at), "{at}");
    }
    let one = json(&[&["selfcheck", BLOCK, "--at", "N=2,S=7"], &DIMS[..]].concat());
    assert_eq!((one.len(), &one[0]["at"]), (1, &Value::from("N=2,S=7")));
}

#[test]
fn selfcheck_says_where_nothing_was_compared() {
    let folder = tempfile::tempdir().unwrap();
    let far = TensorProto { data_type: 1, float_data: vec![100.0], name: "far".into(), ..Default::default() };
    let to_i64 = AttributeProto { name: "to".into(), i: 7, kind: 2, ..Default::default() };
    let graph = GraphProto {
        node: vec![
            node("Add", &["x", "far"], &["place"]),
            NodeProto { attribute: vec![to_i64], ..node("Cast", &["place"], &["index"]) },
            node("Gather", &["x", "index"], &["y"]),
        ],
        initializer: vec![far],
        input: vec![float("x", &["N"])],
        output: vec![ValueInfoProto { name: "y".into(), ty: None }],
        ..Default::default()
    };
    let opset_import = vec![OperatorSetIdProto { version: 18, ..Default::default() }];
    let model = ModelProto { ir_version: 10, graph: Some(graph), opset_import, ..Default::default() };
    let path = path(folder.path(), "far.onnx");
    std::fs::write(&path, model.encode_to_vec()).unwrap();
    let lines = json(&["selfcheck", &path, "--dim", "N=0..4"]);
    for line in lines {
        let refused = line["refused"].as_str().unwrap_or_default();
        match line["at"].as_str() {
            Some("N=0") => assert_eq!(refused, ""),
            _ => assert!(refused.contains("the Gather"), "{line}"),
        }
    }
}

#[test]
fn shapes_are_symbolic() {
    let report = &json(&["shapes", BLOCK, "--dim", "N=1..4"])[0];
    assert_eq!(report["values"]["x"], serde_json::json!({"dtype": "float32", "shape": ["N", "S", 64]}));
    assert_eq!(report["values"]["y"]["shape"], serde_json::json!(["N", "S", 64]));
    let shapes: Vec<&Value> =
        report["values"].as_object().unwrap().values().map(|value| &value["shape"]).collect();
    assert!(shapes.contains(&&serde_json::json!(["N", 4, "S", "S"])), "the scores of attention");
    assert_eq!(report["symbols"]["N"], serde_json::json!([1, 4]));
    assert_eq!(report["symbols"]["S"][1], Value::Null, "it needs no bound");
}

#[test]
fn sym_answers_line_by_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = path(folder.path(), "queries.tsv");
    std::fs::write(&file, "q1\ti:0..9; j:0..7\t(floordiv (+ (* i 8) j) 8)\tsimplify\nnonsense\n").unwrap();
    let lines = json(&["sym", &file]);
    assert_eq!((&lines[0]["id"], &lines[0]["answer"]), (&Value::from("q1"), &Value::from("i")));
    assert!(lines[1]["answer"].as_str().unwrap().starts_with("error: "));
}

#[test]
fn plan_places_buffers() {
    let folder = tempfile::tempdir().unwrap();
    let file = path(folder.path(), "buffers.csv");
    std::fs::write(&file, "id,start,end,size\na,0,2,8\nb,1,3,8\nc,2,4,8\n").unwrap();
    let report = &json(&["plan", &file])[0];
    assert_eq!((&report["height"], &report["lower_bound"]), (&Value::from(16), &Value::from(16)));
    assert_eq!(
        (&report["optimal"], report["offsets"].as_array().map(Vec::len)),
        (&Value::from(true), Some(3))
    );
}

#[test]
fn dynamic_memory_compiles_without_upper_bounds() {
    let folder = tempfile::tempdir().unwrap();
    let so = path(folder.path(), "block.so");
    let bounded = refusal(&[&["compile", BLOCK, "-o", &so, "--dynamic-memory"], &DIMS[..]].concat());
    assert!(bounded.contains("every symbol has an upper bound"), "{bounded}");
    let open = ["compile", BLOCK, "-o", &so, "--dynamic-memory", "--dim", "N=1..", "--dim", "S=1..64"];
    let output = symc(&open);
    assert!(output.status.success());
    let model = symshape_runtime::Model::open(&so).unwrap();
    let said = format!("--dynamic-memory: N up to {}, ", model.symbols()[0].hi());
    assert!(String::from_utf8_lossy(&output.stderr).contains(&said), "{output:?}");
    assert!(model.grows() && model.symbols()[0].hi() > 1 << 16 && model.symbols()[1].hi() == 64);
    let mut context = symshape_runtime::Context::new(&model).unwrap();
    for (n, growths) in [(1, 1), (40, 2), (3, 2), (300, 3)] {
        let x = vec![0.5_f32; n * 2 * 64];
        let input = symshape_runtime::TensorRef::new(&[n, 2, 64], &x).unwrap();
        let outputs = context.run_views(&[input]).unwrap();
        let first = outputs.get(0).elems::<f32>().unwrap();
        assert_eq!(first[..128], first[first.len() - 128..], "all rows are equal");
        assert_eq!(context.growths(), growths, "N = {n}");
    }
}

#[test]
fn bad_command_lines_and_models_are_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let out = path(folder.path(), "m.o");
    let unbounded = refusal(&["compile", BLOCK, "-o", &out]);
    assert!(unbounded.contains("no upper bound") && unbounded.contains("--dim N=1..64"), "{unbounded}");
    let unknown = refusal(&[&["compile", BLOCK, "-o", &out, "--dim", "Q=1..2"], &DIMS[..]].concat());
    assert!(unknown.contains("Q"), "{unknown}");
    assert_eq!(
        refusal(&["compile", BLOCK, "-o", "m.exe"]),
        "symc: -o m.exe: the name must end with .o or .obj, .a or .lib, .so, .dll or .dylib, .c, or .wasm"
    );
    let portable = refusal(&["compile", BLOCK, "-o", "m.c", "--cpu", "x86-64-v3"]);
    assert!(portable.contains("C source is for any machine"), "{portable}");
    assert!(refusal(&["compile", "no.onnx", "-o", &out]).starts_with("symc: no.onnx: "));
    for names in ["", ",", "npu,"] {
        let nameless = refusal(&["compile", BLOCK, "-o", &out, "--target", names]);
        assert_eq!(nameless, format!("symc: --target {names}: a name between commas is empty"));
    }
    let nowhere = refusal(&[&["compile", BLOCK, "-o", "/no/such/m.o"], &DIMS[..]].concat());
    assert_eq!(nowhere, "symc: /no/such/m.o: can't write: there is no such folder");
    let truncated = path(folder.path(), "truncated.onnx");
    let bytes = std::fs::read(BLOCK).unwrap();
    std::fs::write(&truncated, &bytes[..bytes.len() / 2]).unwrap();
    assert!(refusal(&["compile", &truncated, "-o", &out]).contains("truncated.onnx: "));
    assert!(!PathBuf::from(&out).exists());
    assert!(refusal(&["run", &truncated.replace(".onnx", ".so")]).contains("truncated.so: "));
}

#[test]
fn where_one_file_can_t_be_written_none_is() {
    let folder = tempfile::tempdir().unwrap();
    let taken = path(folder.path(), "taken");
    std::fs::create_dir(&taken).unwrap();
    let within = |name: &str| path(folder.path(), name);
    let refused = |args: &[&str]| refusal(&[&["compile", BLOCK], args, &DIMS[..]].concat());
    for artefact in ["m.o", "m.a", "m.so", "m.c"] {
        std::fs::create_dir(within("m.h")).unwrap();
        let header = refused(&["-o", &within(artefact)]);
        assert!(header.starts_with(&format!("symc: {}: can't write: ", within("m.h"))), "{header}");
        std::fs::remove_dir(within("m.h")).unwrap();
        let report = refused(&["-o", &within(artefact), "--report", &taken]);
        assert!(report.starts_with(&format!("symc: {taken}: can't write: ")), "{report}");
        let nowhere = refused(&["-o", &within(artefact), "--report", "/no/such/r.html"]);
        assert_eq!(nowhere, "symc: /no/such/r.html: can't write: there is no such folder");
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [PathBuf::from(taken)]);
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_standard_output_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let args = [&["compile", BLOCK, "--emit", "kernel"], &DIMS[..]].concat();
    let output = Command::new(env!("CARGO_BIN_EXE_symc")).args(args).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stderr.starts_with(b"symc: standard output: "), "{output:?}");
}

#[test]
fn bad_inputs_are_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (model, inputs) = (shared(folder.path()), path(folder.path(), "in.npz"));
    let run = |arrays: &[(&str, &[usize], &[f32])]| {
        npz(&inputs, arrays);
        refusal(&["run", &model, "--inputs", &inputs])
    };
    let x = vec![0.0_f32; 5 * 64];
    assert!(run(&[("in:z", &[1], &[0.0])]).contains("input `x` is missing; `z` was given"));
    assert!(run(&[("x", &[5, 1, 64], &x)]).contains("`x` axis 0 gives N = 5; N is declared 1..=4"));
    assert!(run(&[("x", &[1, 5, 32], &x[..160])]).contains("`x` axis 2 is 32; 64 is expected"));
    assert!(run(&[("x", &[5, 64], &x)]).contains("`x` has 3 axes; got 2"));
    assert!(refusal(&["run", &model]).contains("input `x` is missing"));
    let out = path(folder.path(), "out");
    npz(&inputs, &[("x", &[1, 5, 64], &x)]);
    json(&["run", &model, "--inputs", &inputs, "-o", &out]);
    let twice = format!("x={out}/y.npy");
    assert!(refusal(&["run", &model, "-i", &twice, "-i", &twice]).contains("`x` was given before"));
    assert!(refusal(&["run", &out]).contains("it is a folder"));
    assert!(refusal(&["bench", &model, "--at", "N=9,S=1"]).contains("N = 9; N is declared 1..=4"));
    assert!(refusal(&["bench", &model, "--at", "N=1"]).contains("S is missing"));
}

/// Writes a `.pb` file with a tensor of floats.
fn pb(path: &Path, shape: &[i64], bytes: &[u8]) {
    let tensor = TensorProto {
        dims: shape.to_vec(),
        data_type: 1,
        raw_data: Some(bytes.to_vec().into()),
        ..TensorProto::default()
    };
    std::fs::write(path, tensor.encode_to_vec()).unwrap();
}

#[test]
fn test_compares_every_data_set_and_survives_bad_cases() {
    let folder = tempfile::tempdir().unwrap();
    let case = folder.path().join("kind/block");
    std::fs::create_dir_all(&case).unwrap();
    std::fs::copy(BLOCK, case.join("model.onnx")).unwrap();
    std::fs::write(case.join("bounds.json"), r#"{"N": [1, 4], "S": [1, 9]}"#).unwrap();
    let (inputs, out) = (path(folder.path(), "in.npz"), path(folder.path(), "out"));
    for (set, n, s) in [(0, 1, 9), (2, 4, 3), (7, 2, 2)] {
        let set = case.join(format!("test_data_set_{set}"));
        std::fs::create_dir_all(&set).unwrap();
        let x: Vec<f32> = (0..n * s * 64).map(|idx| (idx as f32).cos()).collect();
        npz(&inputs, &[("x", &[n, s, 64], &x)]);
        json(&[&["run", BLOCK, "--inputs", &inputs, "-o", &out], &DIMS[..]].concat());
        let y = std::fs::read(folder.path().join("out/y.npy")).unwrap();
        let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
        pb(&set.join("input_0.pb"), &[n as i64, s as i64, 64], &bytes);
        // Set 7 wants something else.
        let y = if set.ends_with("test_data_set_7") { vec![0; 4 * x.len()] } else { y[128..].to_vec() };
        pb(&set.join("output_0.pb"), &[n as i64, s as i64, 64], &y);
    }
    // No inputs at all: the call is refused.
    let empty = folder.path().join("kind/empty");
    std::fs::create_dir_all(empty.join("test_data_set_4")).unwrap();
    std::fs::copy(BLOCK, empty.join("model.onnx")).unwrap();
    std::fs::write(empty.join("bounds.json"), r#"{"N": [1, 4], "S": [1, 9]}"#).unwrap();
    let broken = folder.path().join("kind/broken");
    std::fs::create_dir_all(&broken).unwrap();
    std::fs::write(broken.join("model.onnx"), b"\xff\xff\xff").unwrap();

    let out = path(folder.path(), "out.json");
    let output = symc(&["test", folder.path().to_str().unwrap(), "--jobs", "2", "--json", &out]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.ends_with("0 passed, 2 failed, 1 skipped\n"), "{text}");
    let report: Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    assert_eq!(report["kind/block"]["sets"], serde_json::json!({"0": "pass", "2": "pass", "7": "fail"}));
    assert_eq!(report["kind/block"]["status"], "fail");
    assert!(report["kind/block"]["detail"].as_str().unwrap().starts_with("set 7: `y`: "));
    assert_eq!(report["kind/empty"]["status"], "error");
    assert_eq!(report["kind/broken"]["status"], "unsupported");

    std::fs::remove_dir_all(case.join("test_data_set_7")).unwrap();
    let output = symc(&["test", case.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("pass kind/block\n1 passed"));
}

/// The data of a report's page.
fn report_data(page: &str) -> Value {
    let begin = "<script type=\"application/json\" id=\"data\">";
    let data =
        page.split_once(begin).expect("the page has data").1.split_once("</script>").expect("it ends").0;
    serde_json::from_str(&data.replace("<\\/", "</")).expect("the data is JSON")
}

/// The value of an expression of a report; `ends` has the ends of the buffers that an offset may refer to.
fn evaluate(expression: &Value, dims: &[(&str, f64)], ends: &[f64]) -> f64 {
    let Value::Array(list) = expression else {
        let named = |name| dims.iter().find(|(dim, _)| *dim == name).expect("a symbol of the model").1;
        return expression
            .as_f64()
            .unwrap_or_else(|| named(expression.as_str().expect("a number or a name")));
    };
    if list[0] == "end" {
        return ends[list[1].as_u64().expect("an index") as usize];
    }

    let operands: Vec<f64> = list[1..].iter().map(|operand| evaluate(operand, dims, ends)).collect();
    match list[0].as_str() {
        Some("+") => operands.iter().sum(),
        Some("*") => operands.iter().product(),
        Some("min") => operands.into_iter().fold(f64::INFINITY, f64::min),
        Some("max") => operands.into_iter().fold(f64::NEG_INFINITY, f64::max),
        Some("//") => (operands[0] / operands[1]).floor(),
        Some("%") => operands[0].rem_euclid(operands[1]),
        other => panic!("{other:?} is not an operator of a report"),
    }
}

#[test]
fn a_report_places_buffers_as_the_artefact_does() {
    let folder = tempfile::tempdir().unwrap();
    let page = path(folder.path(), "block.html");
    json(&[&["report", BLOCK, "-o", &page], &DIMS[..]].concat());
    let data = report_data(&std::fs::read_to_string(&page).unwrap());
    assert_eq!(data["symbols"][0]["hi"], 4);
    assert!(!data["kernels"].as_array().unwrap().is_empty());
    assert_eq!(data["scalar_loops"].as_array().map(Vec::len), Some(0));
    for (n, s) in [(1, 1), (1, 9), (3, 7), (4, 9)] {
        let dims = [("N", f64::from(n)), ("S", f64::from(s))];
        let mut ends: Vec<f64> = Vec::new();
        for buffer in data["buffers"].as_array().unwrap() {
            let begin = evaluate(&buffer["begin"], &dims, &ends);
            let end = evaluate(&buffer["end"], &dims, &ends);
            assert!(begin <= end);
            ends.push(end);
        }
        let at = format!("N={n},S={s}");
        let bench = json(&[&["bench", BLOCK, "--min-ms", "1", "--at", &at], &DIMS[..]].concat());
        assert_eq!(ends.into_iter().fold(0.0, f64::max), bench[0]["arena_bytes"].as_f64().unwrap(), "{at}");
    }
}

#[test]
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn precision_is_in_the_artefact_and_falls_back() {
    let folder = tempfile::tempdir().unwrap();
    let (split, plain) = (path(folder.path(), "split.so"), path(folder.path(), "plain.so"));
    let levels = ["--cpu", "x86-64-v2,x86-64-v4-amx", "--precision", "bf16x3"];
    json(&[&["compile", BLOCK, "-o", &split][..], &levels, &DIMS].concat());
    json(&[&["compile", BLOCK, "-o", &plain, "--cpu", "x86-64-v2"][..], &DIMS].concat());
    let header = std::fs::read_to_string(folder.path().join("split.h")).unwrap();
    assert!(header.contains("#define BLOCK_PRECISION \"bf16x3\"\n#define BLOCK_PRODUCT_ERROR 4.61e-5\n"));
    assert!(header.contains("int32_t block_uses_tiles(void);"));
    let of_plain = std::fs::read_to_string(folder.path().join("plain.h")).unwrap();
    assert!(!of_plain.contains("PRECISION") && !of_plain.contains("uses_tiles"));

    let input = path(folder.path(), "in.npz");
    let x: Vec<f32> = (0..2 * 5 * 64).map(|idx| (idx as f32 * 0.37).sin()).collect();
    npz(&input, &[("x", &[2, 5, 64], &x)]);
    let run = |model: &str, to: &str| {
        let to = path(folder.path(), to);
        let said = json(&["run", model, "--inputs", &input, "-o", &to]);
        (said[0]["precision"].as_str().unwrap().to_string(), std::fs::read(format!("{to}/y.npy")).unwrap())
    };
    let ((used, split_bits), (_, plain_bits)) = (run(&split, "split"), run(&plain, "plain"));
    // The kernels that it falls back to are those of an artefact without tiles.
    assert_eq!(used == "f32", split_bits == plain_bits, "{used}");

    let alone = path(folder.path(), "alone.so");
    json(&[&["compile", BLOCK, "-o", &alone, "--fallback", "none"][..], &levels, &DIMS].concat());
    if used == "f32" {
        let said = refusal(&["run", &alone, "--inputs", &input]);
        assert!(said.contains("no tile registers") && said.contains("--fallback none"), "{said}");
    }
    let args =
        ["compile", BLOCK, "-o", &alone, "--cpu", "x86-64-v2", "--precision", "bf16", "--fallback", "none"];
    assert_eq!(
        refusal(&[&args[..], &DIMS].concat()),
        "symc: --precision bf16 --fallback none: no level has tile registers; add --cpu x86-64-v4-amx"
    );
}

#[test]
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn models_above_the_error_limit_stay_f32() {
    let folder = tempfile::tempdir().unwrap();
    let out = path(folder.path(), "tried.so");
    let compile = |more: &[&str]| {
        let precision: &[&str] = if more.contains(&"--precision") { &[] } else { &["--precision", "bf16x3"] };
        let levels = ["--cpu", "x86-64-v2,x86-64-v4-amx"];
        let output = symc(&[&["compile", BLOCK, "-o", &out][..], &levels, &DIMS, precision, more].concat());
        let header = std::fs::read_to_string(folder.path().join("tried.h")).unwrap_or_default();
        (output.status.code(), String::from_utf8(output.stderr).unwrap(), header)
    };
    let (code, err, header) = compile(&["--max-error", "1e-9"]);
    let checked = std::fs::read(&out).unwrap();
    // The pipeline ran at bf16x3 beside the check, and again.
    let (_, _, unchecked_header) = compile(&["--precision", "f32"]);
    assert_eq!(header, unchecked_header);
    assert!(checked == std::fs::read(&out).unwrap(), "the artefact differs from that at f32");
    assert!(err.contains("the error at N="), "{err}");
    assert!(err.contains("so contractions multiply f32; a limit of"), "{err}");
    assert!(code == Some(0) && !header.contains("PRECISION"), "{header}");
    let artefacts = [&[][..], &["--max-error", "inf"], &["--time-passes"]].map(|limit| {
        let (code, err, header) = compile(limit);
        assert!(code == Some(0) && err.is_empty() != limit.contains(&"--time-passes"), "{err}");
        assert!(header.contains("#define BLOCK_PRECISION \"bf16x3\""), "{header}");
        std::fs::read(&out).unwrap()
    });
    assert!(artefacts[1..].iter().all(|other| *other == artefacts[0]), "the check changes the artefact");
    for wrong in ["-1", "nan", "much"] {
        let (code, err, _) = compile(&[&format!("--max-error={wrong}")]);
        assert!(code == Some(2) && err.contains("a number of 0 or more, such as 1e-4, or inf"), "{err}");
    }
}

#[test]
fn selfcheck_reports_the_error_of_a_precision() {
    for (precision, least, most) in [("bf16x3", 1e-7, 5e-5), ("bf16", 1e-4, 5e-2)] {
        let args = [&["selfcheck", BLOCK, "--precision", precision, "--at", "N=2,S=5"][..], &DIMS].concat();
        let said = &json(&args)[0];
        assert!(said["status"] == "pass" && said["precision"] == precision, "{said}");
        let lost = said["defined_relative"].as_f64().unwrap();
        assert!(lost > least && lost < most, "{precision} loses {lost}");
    }
}

/// Whether this machine has tile registers or not.
#[test]
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn selfcheck_checks_the_precision_after_the_accuracy_check() {
    let args =
        [&["selfcheck", BLOCK, "--precision", "bf16x3", "--max-error", "1e-9", "--at", "N=2,S=5"][..], &DIMS];
    let said = &json(&args.concat())[0];
    assert!(said["status"] == "pass" && said["precision"] == "f32", "{said}");
    assert!(said["defined_relative"].is_null(), "{said}");
}

#[test]
fn completions_and_manual_pages_name_every_command() {
    let help = String::from_utf8_lossy(&symc(&["--help"]).stdout).into_owned();
    let commands =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let commands: Vec<_> = commands.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.contains(&"compile") && commands.contains(&"man"), "{help}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = symc(&["completions", shell]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success());
        let missing: Vec<_> = commands.iter().filter(|command| !text.contains(**command)).collect();
        assert!(missing.is_empty(), "{shell}: {missing:?}");
        assert!(text.contains("max-error"), "{shell}");
    }

    let folder = tempfile::tempdir().expect("a folder");
    let pages = path(folder.path(), "pages");
    assert!(symc(&["man", &pages]).status.success());
    for command in commands.iter().filter(|command| **command != "help") {
        let page = std::fs::read_to_string(format!("{pages}/symc-{command}.1"));
        assert!(page.expect("a page").contains(".SH OPTIONS"), "{command}");
    }
    assert!(!Path::new(&format!("{pages}/symc-case.1")).exists(), "a page of a hidden command");

    let file = path(folder.path(), "file");
    std::fs::write(&file, "").expect("a file");
    assert!(refusal(&["man", &file]).contains("file"));
}

#[test]
fn passes_are_printed_and_timed() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("block.o").display().to_string();
    let args = ["compile", BLOCK, "--dim", "N=1..4", "--dim", "S=1..4", "-o", &out];
    let observed = ["--print-after", "views", "--print-after", "plan", "--time-passes", "--json"];
    let output = symc(&[&args[..], &observed].concat());
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stdout.lines().count(), 1, "standard output holds the JSON object alone: {stdout}");
    for expected in ["; after views\ngraph block {", "; after plan\narena_max "] {
        assert!(stderr.contains(expected), "`{expected}` is missing in {stderr}");
    }
    for step in ["import", "accuracy", "views", "dead_stores", "schedule", "plan", "code", "write", "total"] {
        assert!(stderr.contains(&format!(" ms  {step}\n")), "`{step}` has no time in {stderr}");
    }

    let unknown = refusal(&[&args[..], &["--print-after", "vews"]].concat());
    assert!(unknown.contains("--print-after vews") && unknown.contains("views"), "{unknown}");
}

#[test]
fn former_flag_names_are_aliases() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("block.o").display().to_string();
    let output =
        symc(&["compile", BLOCK, "--dim", "N=1..4", "--dim", "S=1..4", "--within", "inf", "-o", &out]);
    assert!(output.status.success(), "--within: {}", String::from_utf8_lossy(&output.stderr));
    let output = symc(&["compile", BLOCK, "--dim", "S=1..4", "--grow", "-o", &out]);
    assert!(output.status.success(), "--grow: {}", String::from_utf8_lossy(&output.stderr));
    let output = symc(&["compile", BLOCK, "--dynamic-memory", "--time-passes", "-o", &out]);
    assert_eq!(output.status.code(), Some(2), "passes of a model without bounds are run several times");
}
