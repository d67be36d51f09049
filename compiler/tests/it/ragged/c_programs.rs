//! C programs that run sequences in separate memory, and padded tensors.

use super::{graphs::encoder_of_many_ports, session};
use std::{path::Path, process::Command};
use symshape_compiler::{
    RaggedRequest,
    pipeline::{Artifact, Pipeline},
    target::Target,
};
use symshape_runtime::{Context, RaggedBatch, TensorRef};

/// Compiles and runs `c/ragged.c` in this folder, and returns what it prints.
fn program(folder: &Path, flags: &[&str]) -> String {
    let compiler = Command::new("cc")
        .current_dir(folder)
        .args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I."])
        .args(flags)
        .args([concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/ragged.c"), "ports.o", "-o", "program", "-lm"])
        .output()
        .expect("cc is needed by this test");
    let text = String::from_utf8_lossy(&compiler.stderr);
    assert!(compiler.status.success() && text.is_empty(), "{text}");

    let output = Command::new(folder.join("program")).output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn c_programs_run_sequences_and_padded_tensors_with_the_bits_of_rust() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let graph = encoder_of_many_ports();
    let request = RaggedRequest::along("S").mask("mask").max_rows(60);
    let lowered = Pipeline::new(&graph).ragged(request.clone()).lower().expect("supported");
    let target = Target::host().expect("this machine");
    let compiled = lowered.compile(&target, Artifact::Object).expect("supported");
    assert!(
        compiled.header.contains("The input `mask` of the padded model is left out."),
        "{}",
        compiled.header
    );
    std::fs::write(folder.join("ports.h"), compiled.header).expect("a header");
    let object = compiled.object.into_bytes().expect("an object");
    std::fs::write(folder.join("ports.o"), object).expect("a file");
    let printed = program(folder, &["-O1"]);

    // The sequences of the program.
    let model = session::ragged(&graph, &request);
    let mut batch = RaggedBatch::new(&model).expect("a ragged batch");
    for (number, length) in [3_usize, 1, 30, 9].into_iter().enumerate() {
        let ids: Vec<i64> = (0..length).map(|k| ((number * 31 + k * 7) % 50) as i64).collect();
        let positions: Vec<i64> = (0..length as i64).collect();
        let bias: [f32; 16] = std::array::from_fn(|k| (number * 16 + k) as f32 / 16.0);
        let scale = [0.75_f32; 16];
        let sequence = [
            TensorRef::new(&[length], &ids).expect("sized"),
            TensorRef::new(&[1, length], &positions).expect("sized"),
            TensorRef::new(&[1, 16], &bias).expect("sized"),
            TensorRef::new(&[16], &scale).expect("sized"),
        ];
        batch.push(&sequence).expect("in contract");
    }
    let mut context = Context::new(&model).expect("memory");
    let outputs = context.run_ragged(&batch).expect("in contract").all();
    let mut expected = String::new();
    for idx in 0..2 {
        for element in outputs.get(idx).elems::<f32>().expect("floats") {
            expected.push_str(&format!("{:08x}\n", element.to_bits()));
        }
    }
    assert!(printed == expected, "the program prints other bits");

    // The header is valid C++, too.
    let output = Command::new("c++")
        .current_dir(folder)
        .args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++", "ports.h"])
        .output()
        .expect("c++ is needed by this test");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}
