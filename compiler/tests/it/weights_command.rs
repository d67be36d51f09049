//! Files of one artefact: which weights files belong to it, and which are refused.

use crate::{
    cli::{json, refusal, symc},
    models, npy,
    protos::{float, node},
};
use prost::Message;
use std::{
    ffi::OsStr,
    fs,
    mem::offset_of,
    os::unix::ffi::OsStrExt,
    path::Path,
    process::{Command, Output},
};
use symshape_compiler::{
    CompileOptions, emit,
    import::proto::{GraphProto, ModelProto, OperatorSetIdProto, TensorProto},
    pipeline::{Artifact, Pipeline},
    target::Target,
};
use symshape_runtime::{
    Model, OpenOptions, SealedPart, Weights,
    abi::{WeightsHeader, WeightsSegment},
    check_seal, seal,
};

const DIMS: [&str; 2] = ["--dim", "N=1..4"];

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().expect("UTF-8").to_string()
}

/// Writes the model `y = x w + b` with 8 rows of weights. `weight` is the name of `w`; `b` is an input.
fn write_model(folder: &Path, file: &str, weight: &str, columns: usize) -> String {
    let elems: Vec<u8> = (0..8 * columns).flat_map(|at| ((at * 7 % 13) as f32 / 8.0).to_le_bytes()).collect();
    let w = TensorProto {
        name: weight.into(),
        dims: vec![8, columns as i64],
        data_type: 1,
        raw_data: Some(elems.into()),
        ..Default::default()
    };
    let columns = columns.to_string();
    let graph = GraphProto {
        name: "product".into(),
        node: vec![node("MatMul", &["x", weight], &["product"]), node("Add", &["product", "b"], &["y"])],
        input: vec![float("x", &["N", "8"]), float("b", &[&columns])],
        output: vec![float("y", &["N", &columns])],
        initializer: vec![w],
        ..Default::default()
    };
    let opset = OperatorSetIdProto { version: 17, ..Default::default() };
    let model =
        ModelProto { ir_version: 8, opset_import: vec![opset], graph: Some(graph), ..Default::default() };
    let path = path(folder, file);
    fs::write(&path, model.encode_to_vec()).expect("the folder can be written");
    path
}

/// An artefact of the model, and its weights file.
fn compile(folder: &Path, model: &str, artefact: &str) -> [String; 2] {
    let out = path(folder, artefact);
    let weights = Path::new(&out).with_extension("weights").to_str().expect("UTF-8").to_string();
    json(&[&["compile", model, "-o", &out, "--weights-file", &weights], &DIMS[..]].concat());
    [out, weights]
}

fn standard_error(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn other_weights_are_written_by_the_arguments_that_the_artefact_keeps() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let model = write_model(folder, "m.onnx", "w", 48);
    let [so, weights] = compile(folder, &model, "m.so");
    let again = path(folder, "again.weights");
    let [object, archive] = ["object.o", "archive.a"].map(|name| compile(folder, &model, name));
    for [artefact, own] in [[so.clone(), weights], object, archive] {
        json(&["weights", &model, "--for", &artefact, "-o", &again]);
        assert_eq!(json(&["verify", &artefact, "--weights", &again]).len(), 2);
        assert!(fs::read(own).expect("there") == fs::read(&again).expect("written"), "the same model");
    }

    // Other names of initialisers and another name of the artefact.
    let renamed = write_model(folder, "renamed.onnx", "a.longer.name.of.the.weight", 48);
    let versioned = path(folder, "m.so.1");
    fs::copy(&so, &versioned).expect("copied");
    json(&["weights", &renamed, "--for", &versioned, "-o", &again]);
    assert_eq!(json(&["verify", &versioned, "--weights", &again]).len(), 2);
    OpenOptions::new().weights(&again).verify(true).open(&versioned).expect("the same structure");

    // The error names the first weight of another size, whatever the names are.
    let wider = write_model(folder, "wider.onnx", "v", 49);
    let error = refusal(&["weights", &wider, "--for", &so, "-o", &again]);
    assert!(error.contains("the structure of the model differs: it has weight `v` of "), "{error}");
    assert!(error.contains(" bytes where the artefact has weight `w` of "), "{error}");

    let plain = path(folder, "plain.so");
    json(&[&["compile", &model, "-o", &plain], &DIMS[..]].concat());
    let error = refusal(&["weights", &model, "--for", &plain, "-o", &again]);
    assert!(error.contains("--weights-file"), "{error}");
}

#[test]
fn files_that_the_arguments_name_are_found_from_any_folder() {
    let root = tempfile::tempdir().expect("a folder");
    let [there, elsewhere] = ["there", "elsewhere"].map(|name| root.path().join(name));
    fs::create_dir(&there).expect("a new folder");
    fs::create_dir(&elsewhere).expect("a new folder");
    let model = write_model(&there, "m.onnx", "w", 48);
    npy::write(&there.join("b.npy"), &[48], &[0.5; 48]);
    fs::write(there.join("ranges.json"), "{\"N\": [1, 4]}").expect("written");
    fs::write(there.join("custom.txt"), "acme:Twice(x: T[D...]) -> T[D...] = acme_twice\n").expect("written");

    let run = |folder: &Path, args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_symc")).current_dir(folder).args(args).output();
        let output = output.expect("symc starts");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let files = ["--bounds", "ranges.json", "--bind", "b=b.npy", "--custom", "custom.txt"];
    let outputs = ["-o", "m.so", "--weights-file", "m.weights"];
    run(&there, &[&["compile", "m.onnx"], &files[..], &outputs].concat());
    let artefact = path(&there, "m.so");
    run(&elsewhere, &["weights", &model, "--for", &artefact, "-o", "again.weights"]);
    let [own, again] = [there.join("m.weights"), elsewhere.join("again.weights")];
    assert!(fs::read(own).expect("there") == fs::read(again).expect("written"), "the same model");
}

#[test]
fn weights_are_verified_only_for_artefacts_that_need_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let model = write_model(folder, "m.onnx", "w", 48);
    let [_, weights] = compile(folder, &model, "m.so");
    let plain = path(folder, "plain.so");
    json(&[&["compile", &model, "-o", &plain], &DIMS[..]].concat());
    let error = refusal(&["verify", &plain, "--weights", &weights]);
    assert!(error.contains("--weights") && error.contains("plain.so contains its weights"), "{error}");
    let error = refusal(&["verify", &weights, "--weights", &weights]);
    assert!(error.contains("m.weights is a weights file itself"), "{error}");
}

#[test]
fn archives_are_verified_with_their_weights_whatever_their_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let model = write_model(folder, "m.onnx", "w", 48);
    let [archive, weights] = compile(folder, &model, "m.a");
    let renamed = path(folder, "m.a.1");
    fs::copy(&archive, &renamed).expect("copied");
    for archive in [&archive, &renamed] {
        let answers = json(&["verify", archive]);
        assert_eq!(answers.len(), 2, "the archive and its weights: {answers:?}");
        assert_eq!(answers[1]["file"], weights.as_str());
    }

    let mut bytes = fs::read(&weights).expect("there");
    bytes[4100] ^= 1;
    fs::write(&weights, bytes).expect("written");
    let output = symc(&["verify", &archive]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.code() == Some(1) && text.contains("m.weights: refused"), "{text}");
}

#[test]
fn shared_object_and_its_weights_are_in_one_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let model = write_model(folder, "m.onnx", "w", 48);
    for name in ["x", "y"] {
        fs::create_dir(folder.join(name)).expect("a new folder");
    }
    let weights = path(folder, "y/m.weights");
    let files = ["--weights-file", &weights, DIMS[0], DIMS[1]];
    let [apart, object, together] = ["x/m.so", "x/m.o", "x/../y/m.so"].map(|name| path(folder, name));
    let error = refusal(&[&["compile", &model, "-o", &apart], &files[..]].concat());
    assert!(error.contains("must be in one folder") && error.contains("y/m.weights"), "{error}");
    assert!(fs::read_dir(folder.join("x")).expect("there").next().is_none(), "nothing is written");
    // A caller of an object passes the address of its weights, and chooses where they are.
    json(&[&["compile", &model, "-o", &object], &files[..]].concat());
    json(&[&["compile", &model, "-o", &together], &files[..]].concat());
}

#[test]
fn name_of_a_weights_file_is_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = write_model(folder.path(), "m.onnx", "w", 48);
    let weights = folder.path().join(OsStr::from_bytes(b"m\xff.weights"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_symc"));
    command.args(["compile", &model, "-o", &path(folder.path(), "m.so"), "--weights-file"]);
    let error = standard_error(&command.arg(weights).args(DIMS).output().expect("symc starts"));
    assert!(error.contains("is not UTF-8"), "{error}");
}

#[test]
fn name_of_a_weights_file_in_another_folder_is_damaged() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let model = write_model(folder, "m.onnx", "w", 48);
    let [so, _] = compile(folder, &model, "m.so");
    let mut bytes = fs::read(&so).expect("there");
    let parts = check_seal(&bytes).expect("intact");
    bytes.truncate(parts.last().expect("parts").range.end);
    let at = bytes.windows(10).position(|name| name == b"m.weights\0").expect("the name");
    for name in ["../m.weights", "/m.weights", "x\\m.weights", "..", "."] {
        bytes[at..at + 16].fill(0);
        bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
        let again = parts
            .iter()
            .map(|part| SealedPart::new(&part.name, part.range.start, &bytes[part.range.clone()]));
        let seal = seal(&again.collect::<Vec<_>>());
        fs::write(&so, [&bytes[..], &seal].concat()).expect("written");
        let error = OpenOptions::new().verify(true).open(&so).expect_err("another folder").to_string();
        assert!(error.contains("the name of its weights file is damaged"), "{name}: {error}");
        let output = symc(&["verify", &so]);
        let text = String::from_utf8(output.stdout).expect("text");
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("m.so: refused: the name of its weights file is damaged"), "{name}: {text}");
    }
}

#[test]
fn shorter_name_of_a_weights_file_replaces_a_longer_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let graph = models::MODELS[0].1().expect("a valid graph");
    let options = CompileOptions::default().weights_file(true);
    let lowered = Pipeline::new(&graph).options(options).lower().expect("supported");
    let target = Target::host().expect("supported");
    let mut object = lowered.compile(&target, Artifact::Shared).expect("supported").object;
    for name in ["", "..", "a/b.weights", "a\\b.weights", &"n".repeat(256)] {
        object.name_weights_file(name).expect_err("no name of a file");
    }
    object.name_weights_file("a_longer_name.weights").expect("a name");
    object.name_weights_file("m.weights").expect("a name");
    let file = object.weights_file().expect("asked for").clone();
    let weights = folder.path().join("m.weights");
    file.stage(&weights, &mut |_, _| {}).expect("written").commit().expect("named");
    let so = folder.path().join("m.so");
    emit::shared::shared(object, &[], &so).expect("written");
    Model::open(&so).expect("a pair of files");
}

#[test]
fn weights_of_another_artefact_are_refused_before_they_are_hashed() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let [so, _] = compile(folder, &write_model(folder, "m.onnx", "w", 48), "m.so");
    let [_, weights] = compile(folder, &write_model(folder, "other.onnx", "w", 49), "other.so");
    let mut bytes = fs::read(&weights).expect("there");
    bytes[4100] ^= 1;
    fs::write(&weights, bytes).expect("written");
    let error = OpenOptions::new().weights(&weights).verify(true).open(&so).expect_err("refused").to_string();
    assert!(error.contains("other.weights: it belongs to another artefact"), "{error}");
}

#[test]
fn artefacts_that_contain_their_weights_take_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let model = write_model(folder, "m.onnx", "w", 48);
    let [_, weights] = compile(folder, &model, "m.so");
    let plain = path(folder, "plain.so");
    json(&[&["compile", &model, "-o", &plain], &DIMS[..]].concat());
    let expected = format!("{weights}: the artefact m contains its weights, and takes no weights file");
    let error = OpenOptions::new().weights(&weights).open(&plain).expect_err("refused");
    assert_eq!(error.to_string(), expected);
    let plain = Model::open(&plain).expect("an artefact");
    let error = plain.with_weights(Weights::open(&weights).expect("a file")).expect_err("refused");
    assert_eq!(error.to_string(), expected);
}

/// Changes words of the table of a weights file, and makes the hash of its header that of the changed file.
fn forge(good: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = good.to_vec();
    let at = offset_of!(WeightsHeader, table_offset);
    let table = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as usize;
    change(&mut bytes[table..]);
    let hash = offset_of!(WeightsHeader, hash)..size_of::<WeightsHeader>();
    bytes[hash.clone()].fill(0);
    let own = blake3::Hasher::new().update(&bytes[..hash.end]).update(&bytes[table..]).finalize();
    bytes[hash].copy_from_slice(own.as_bytes());
    bytes
}

#[test]
fn names_of_weights_follow_the_table_without_gaps() {
    const ENTRY: usize = size_of::<WeightsSegment>();
    const OFFSET: usize = offset_of!(WeightsSegment, name_offset);
    const BYTES: usize = offset_of!(WeightsSegment, name_bytes);
    let folder = tempfile::tempdir().expect("a folder");
    let model = write_model(folder.path(), "m.onnx", "w", 48);
    let [_, file] = compile(folder.path(), &model, "m.so");
    let good = fs::read(&file).expect("there");
    let n_weights = Weights::open(&file).expect("intact").segments().len();
    let last = ENTRY * (n_weights - 1);
    let forged = |change: &dyn Fn(&mut [u8])| {
        fs::write(&file, forge(&good, change)).expect("written");
        Weights::open(&file).map(drop).map_err(|error| error.to_string())
    };
    forged(&|_| {}).expect("nothing is changed");
    // A name that is in the table, one that ends before the file, and one that has no end.
    let begins_before = |table: &mut [u8]| table[last + OFFSET] -= 1;
    let ends_before = |table: &mut [u8]| table[last + BYTES] -= 1;
    let is_endless = |table: &mut [u8]| table[last + BYTES..last + BYTES + 8].fill(0xff);
    for change in [&begins_before as &dyn Fn(&mut [u8]), &ends_before, &is_endless] {
        let error = forged(change).expect_err("damaged");
        assert!(error.contains("m.weights: its header or its table of weights is damaged"), "{error}");
    }
}
