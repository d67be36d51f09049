//! Weights in other files: which paths and links a model may use.

use crate::protos::{float, node};
use std::{
    fs,
    os::unix::{fs::symlink, net::UnixListener},
    path::{Path, PathBuf},
    process::Command,
};
use symshape_compiler::{
    error::Result,
    graph::eval::eval,
    import::{
        ImportOptions, Model, import, parse_dim,
        proto::{
            GraphProto, ModelProto, OperatorSetIdProto, StringStringEntryProto, TensorProto, ValueInfoProto,
        },
    },
    tensor::Tensor,
};

/// Four weights at an offset of the file `location`.
fn weight(name: &str, location: &str, offset: usize) -> TensorProto {
    let entry = |key: &str, value: String| StringStringEntryProto { key: key.into(), value };
    TensorProto {
        name: name.into(),
        dims: vec![4],
        data_type: 1,
        data_location: 1,
        external_data: vec![entry("location", location.into()), entry("offset", offset.to_string())],
        ..Default::default()
    }
}

/// The file of a model that adds four weights at `location`.
fn write_model(path: &Path, location: &str) {
    write_sum(path, vec![weight("w", location, 0)]);
}

/// The file of a model that adds all of these weights.
fn write_sum(path: &Path, weights: Vec<TensorProto>) {
    let sum = |idx: usize| match idx {
        0 => "x".to_string(),
        idx if idx == weights.len() => "y".to_string(),
        idx => format!("sum{idx}"),
    };
    let add =
        |(idx, weight): (usize, &TensorProto)| node("Add", &[&sum(idx), &weight.name], &[&sum(idx + 1)]);
    let graph = GraphProto {
        node: weights.iter().enumerate().map(add).collect(),
        input: vec![float("x", &["N", "4"])],
        output: vec![ValueInfoProto { name: "y".into(), ty: None }],
        initializer: weights,
        ..Default::default()
    };
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 21 }];
    let proto = ModelProto { ir_version: 10, graph: Some(graph), opset_import, ..Default::default() };
    fs::write(path, prost::Message::encode_to_vec(&proto)).expect("the folder can be written");
}

fn write_weights(path: &Path) {
    let weights: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].into_iter().flat_map(f32::to_le_bytes).collect();
    fs::write(path, weights).expect("the folder can be written");
}

/// The sums of 10 and the weights.
fn sums(model: &Path) -> Result<Vec<f64>> {
    let options = ImportOptions { dims: vec![parse_dim("N=1..64").expect("a range")], ..Default::default() };
    let graph = import(&Model::open(model)?, &options)?;
    let x = Tensor::from_f32(vec![1, 4], &[10.0; 4]).expect("four elements");
    let y = eval(&graph, &[x])?.remove(0);
    Ok((0..4).map(|k| y.get(k).as_f64()).collect())
}

/// A folder `models` for models and a folder `other` next to it, which has weights.
struct Folders {
    root: tempfile::TempDir,
    model: PathBuf,
}

impl Folders {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("a folder");
        for folder in ["models", "other"] {
            fs::create_dir(root.path().join(folder)).expect("a new folder");
        }
        write_weights(&root.path().join("other/weights"));
        let model = root.path().join("models/model.onnx");
        Folders { root, model }
    }

    /// Why a model with the weights at `location` is refused.
    fn refusal(&self, location: &str) -> String {
        write_model(&self.model, location);
        sums(&self.model).expect_err("the location is bad").message().to_string()
    }

    /// A link in the folder of models, whose target is relative to that folder.
    fn link(&self, name: &str, target: &str) {
        symlink(target, self.root.path().join("models").join(name)).expect("a new link");
    }
}

/// The layout of a Hugging Face cache.
#[test]
fn links_to_files_of_a_cache_open() {
    let root = tempfile::tempdir().expect("a folder");
    let blobs = root.path().join("blobs");
    let snapshot = root.path().join("snapshots/0123/onnx");
    fs::create_dir_all(&blobs).expect("a folder");
    fs::create_dir_all(&snapshot).expect("a folder");
    write_model(&blobs.join("aaaa"), "model.onnx_data");
    write_weights(&blobs.join("bbbb"));
    for (name, blob) in [("model.onnx", "aaaa"), ("model.onnx_data", "bbbb")] {
        symlink(format!("../../../blobs/{blob}"), snapshot.join(name)).expect("a new link");
    }
    assert_eq!(sums(&snapshot.join("model.onnx")).expect("it opens"), [11.0, 12.0, 13.0, 14.0]);
}

#[test]
fn links_to_links_open() {
    let folders = Folders::new();
    folders.link("first", "second");
    folders.link("second", "../other/weights");
    write_model(&folders.model, "./first");
    assert_eq!(sums(&folders.model).expect("it opens"), [11.0, 12.0, 13.0, 14.0]);
}

#[test]
fn paths_that_leave_the_folder_are_refused() {
    let folders = Folders::new();
    folders.link("up", "..");
    folders.link("elsewhere", "../other");
    let absolute = folders.root.path().join("other/weights");
    let absolute = absolute.to_str().expect("plain letters");
    let locations =
        ["../other/weights", absolute, "up/../other/weights", "up/other/weights", "elsewhere/weights"];
    for location in locations {
        let expected = format!(
            "external data: `{location}` is outside the model's folder; move the file there, or link to it there"
        );
        assert_eq!(folders.refusal(location), expected);
    }
}

/// A pipe without a writer would stop the compiler, and `/dev/zero` has no end.
#[test]
fn links_to_other_things_than_files_are_refused() {
    let folders = Folders::new();
    folders.link("zeros", "/dev/zero");
    folders.link("folder", "../other");
    folders.link("listener", "../other/socket");
    let _listener = UnixListener::bind(folders.root.path().join("other/socket")).expect("a socket");
    let status = Command::new("mkfifo").arg(folders.root.path().join("models/pipe")).status();
    assert!(status.expect("mkfifo runs").success());
    for location in ["zeros", "folder", "listener", "pipe", ".", "./."] {
        assert_eq!(folders.refusal(location), format!("external data: `{location}` is not a regular file"));
    }
}

#[test]
fn links_without_a_target_are_refused() {
    let folders = Folders::new();
    folders.link("nowhere", "../other/missing");
    folders.link("loop", "loop");
    for location in ["nowhere", "loop", "absent", "absent/weights"] {
        let refusal = folders.refusal(location);
        let path = folders.root.path().join("models").join(location.split('/').next().unwrap_or(location));
        assert!(refusal.starts_with(&format!("external data: {}", path.display())), "{refusal}");
    }
}

#[test]
fn parts_of_a_file_are_shared_whole_or_not_at_all() {
    let root = tempfile::tempdir().expect("a folder");
    let model = root.path().join("model.onnx");
    let numbers: Vec<u8> = (0..10).flat_map(|k| (k as f32).to_le_bytes()).collect();
    fs::write(root.path().join("w"), numbers).expect("the folder can be written");
    symlink("w", root.path().join("link")).expect("a new link");
    let located = |parts: &[(&str, &str, usize)]| {
        let weights = parts.iter().map(|(name, location, offset)| weight(name, location, *offset));
        write_sum(&model, weights.collect());
        sums(&model).map_err(|error| error.to_string())
    };
    let place = |parts: &[(&str, usize)]| {
        located(&parts.iter().map(|(name, offset)| (*name, "w", *offset)).collect::<Vec<_>>())
    };
    assert_eq!(place(&[("a", 0), ("tied", 0), ("b", 16)]).expect("parts"), [14.0, 17.0, 20.0, 23.0]);

    let error = place(&[("a", 0), ("b", 12)]).expect_err("one element is in both");
    assert!(error.contains("tensor `b`"), "{error}");
    assert!(error.contains("bytes 12..28 of `w` overlap bytes 0..16, which are tensor `a`"), "{error}");
    let error = place(&[("last", 24), ("first", 20)]).expect_err("three elements are in both");
    assert!(error.contains("tensor `first`") && error.contains("tensor `last`"), "{error}");
    let error = place(&[("w", 28)]).expect_err("one element is missing");
    assert!(error.contains("16 bytes at offset 28 leave `w`, which has 40"), "{error}");

    for other in ["./w", "link"] {
        let error = located(&[("a", "w", 0), ("b", other, 12)]).expect_err("one element is in both");
        assert!(error.contains(&format!("bytes 12..28 of `{other}` overlap bytes 0..16")), "{error}");
        assert_eq!(located(&[("a", "w", 0), ("b", other, 0)]).expect("parts"), [10.0, 12.0, 14.0, 16.0]);
    }
}

/// Bytes of the mapping with this address that are in memory of this process.
#[cfg(target_os = "linux")]
fn resident_bytes(address: usize) -> usize {
    let text = fs::read_to_string("/proc/self/smaps").expect("the mappings");
    let mut lines = text.lines().skip_while(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let hex = |text| usize::from_str_radix(text, 16).ok();
        !range.is_some_and(|(begin, end)| {
            hex(begin).zip(hex(end)).is_some_and(|(begin, end)| (begin..end).contains(&address))
        })
    });
    let rss = lines.find_map(|line| line.strip_prefix("Rss:")).expect("the mapping is listed");
    rss.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
}

#[cfg(target_os = "linux")]
#[test]
fn released_pages_leave_the_memory_and_are_read_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("weights");
    let content: Vec<u8> = (0..3 << 20).map(|at| (at % 251) as u8).collect();
    fs::write(&path, &content).expect("written");
    let map = symshape_runtime::map_file(&path).expect("mapped");
    assert!(*map == content[..]);
    let address = map.as_ptr() as usize;
    assert_eq!(resident_bytes(address), 3 << 20);
    map.release(1 << 20..2 << 20);
    // The system may release more, if its pages are large.
    assert!(resident_bytes(address) <= 2 << 20);
    map.release(5..usize::MAX);
    assert!(resident_bytes(address) <= 4096);
    map.release(9 << 20..10 << 20);
    assert!(*map == content[..], "the bytes are those of the file");
}
