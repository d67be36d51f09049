//! Seals: a changed artefact is refused by name before any of its code is mapped.

use crate::{
    cli::{BLOCK, json, symc},
    random_cases::Random,
};
use std::{fs, path::Path};
use symshape_runtime::OpenOptions;

const DIMS: [&str; 4] = ["--dim", "N=1..4", "--dim", "S=1..9"];

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().expect("UTF-8").to_string()
}

/// The block as an artefact of this name.
fn compile(folder: &Path, name: &str, more: &[&str]) -> String {
    let out = path(folder, name);
    json(&[&["compile", BLOCK, "-o", &out][..], &DIMS, more].concat());
    out
}

/// A change of a file: a flipped bit, a range of zeros, new headers, or a new length. `None` if it changes nothing.
fn changed(good: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let mut bytes = good.to_vec();
    let at = random.below(good.len());
    match random.below(5) {
        0 | 1 => bytes[at] ^= 1 << random.below(8),
        2 => {
            let end = good.len().min(at + 1 + random.below(4096));
            bytes[at..end].fill(0);
        }
        3 => {
            let head = random.below(1024.min(good.len()));
            bytes[head] = bytes[head].wrapping_add(1 + random.below(255) as u8);
        }
        _ => bytes.truncate(at),
    }
    (bytes != good).then_some(bytes)
}

#[test]
fn a_thousand_changes_of_a_shared_object_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let so = compile(folder.path(), "block.so", &[]);
    let good = fs::read(&so).expect("there");
    let bad = folder.path().join("bad.so");
    let mut random = Random(28);
    let mut n_changes = 0;
    while n_changes < 1000 {
        let Some(bytes) = changed(&good, &mut random) else { continue };
        n_changes += 1;
        fs::write(&bad, &bytes).expect("written");
        let error = OpenOptions::new().verify(true).open(&bad).expect_err("changed").to_string();
        assert!(error.starts_with(&bad.display().to_string()), "{error}");
    }
    OpenOptions::new().verify(true).open(&so).expect("intact");
}

#[test]
fn libraries_of_other_formats_have_no_seal() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, target) in [("block.dll", "x86_64-pc-windows-msvc"), ("block.dylib", "aarch64-apple-darwin")] {
        let file = compile(folder.path(), name, &["--target", target]);
        let output = symc(&["verify", &file]);
        let text = String::from_utf8(output.stdout).expect("text");
        let expected = format!("{file}: refused: it has no seal at its end: it is not an ELF file, ");
        assert!(output.status.code() == Some(1) && text.starts_with(&expected), "{text}");
        let error = OpenOptions::new().verify(true).open(&file).expect_err("no seal").to_string();
        assert!(error.contains("it is not an ELF file"), "{error}");
    }
}

#[test]
fn symc_verifies_every_kind_of_artefact() {
    let folder = tempfile::tempdir().expect("a folder");
    let weights = path(folder.path(), "own.weights");
    for name in ["block.so", "block.o", "block.a"] {
        let file = compile(folder.path(), name, &[]);
        let answer = json(&["verify", &file]).remove(0);
        assert_eq!(answer["intact"], true, "{answer}");
        let parts: Vec<&str> = answer["parts"]
            .as_array()
            .expect("parts")
            .iter()
            .filter_map(|part| part["name"].as_str())
            .collect();
        assert!(parts.contains(&"code") && parts.contains(&"command line"), "{parts:?}");

        let mut bytes = fs::read(&file).expect("there");
        for at in [70, bytes.len() / 3, bytes.len() / 2, bytes.len() - 9] {
            bytes[at] ^= 4;
            fs::write(&file, &bytes).expect("written");
            let output = symc(&["verify", &file]);
            let text = String::from_utf8(output.stdout).expect("text");
            assert_eq!(output.status.code(), Some(1), "{name} at {at}: {text}");
            assert!(text.contains(&file) && text.contains("refused"), "{text}");
            bytes[at] ^= 4;
        }
    }

    let so = compile(folder.path(), "split.so", &["--weights-file", &weights]);
    assert_eq!(json(&["verify", &so]).len(), 2, "the artefact and its weights");
    let mut bytes = fs::read(&weights).expect("there");
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(&weights, bytes).expect("written");
    let output = symc(&["verify", &so]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("split.so: intact") && text.contains("own.weights: refused: weight `"), "{text}");
}
