//! The C interface of state: a program that steps, forks, truncates and is refused.

use super::graphs::decoder;
use crate::foreign;
use std::process::Command;
use symshape_compiler::{
    StateRequest,
    pipeline::{Artifact, Compiled, Pipeline},
    target::Target,
};
use symshape_runtime::{Context, State, TensorRef};

fn compiled() -> Compiled {
    let lowered = Pipeline::new(&decoder(4, 12)).state(StateRequest::find()).lower().expect("supported");
    lowered.compile(&Target::host().expect("this machine"), Artifact::Object).expect("supported")
}

/// The input of a step, as the C program has it.
fn x(length: usize, steps: usize) -> Vec<f32> {
    (0..steps * 16).map(|at| ((7 * (at + 5 * length)) % 11) as f32 * 0.1 - 0.5).collect()
}

/// The first output of steps of these sizes.
fn expected(steps: &[usize]) -> Vec<String> {
    let model = Pipeline::new(&decoder(4, 12)).state(StateRequest::find()).jit().expect("supported");
    let mut context = Context::new(&model).expect("memory");
    let mut state = State::new(&model, 9).expect("a capacity in range");
    let mut lines = Vec::new();
    for steps in steps {
        let length = state.length();
        let x = x(length, *steps);
        let bias = vec![0.0_f32; steps * (length + steps)];
        let inputs = [
            TensorRef::new(&[1, *steps, 16], &x).expect("sized"),
            TensorRef::new(&[1, 1, *steps, length + steps], &bias).expect("sized"),
        ];
        let outputs = context.run_stateful_views(&inputs, &mut state).expect("a call in range");
        let y = outputs.get(0).elems::<f32>().expect("floats")[0];
        lines.push(format!("length {}: {y:.4}", state.length()));
    }
    lines
}

#[test]
fn c_programs_step_fork_and_truncate() {
    let compiled = compiled();
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("decoder.h"), &compiled.header).expect("a header");
    std::fs::write(folder.path().join("decoder.o"), compiled.object.into_bytes().expect("an object"))
        .expect("a file");
    let main = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/state.c");
    let output = Command::new("cc")
        .current_dir(folder.path())
        .args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "-I.",
            main,
            "decoder.o",
            "-o",
            "program",
        ])
        .output()
        .expect("a C compiler is needed by this test");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.is_empty(), "cc: {text}");

    let output = Command::new(folder.path().join("program")).output().expect("it runs");
    assert!(output.status.success(), "{:?}", output.status);
    let printed = String::from_utf8_lossy(&output.stdout);
    let mut lines = expected(&[4, 1, 3]);
    lines.push("full: 11".into());
    lines.push("fork length 8".into());
    lines.push("truncated to 5".into());
    // The step after the truncation is the one before it.
    lines.push(expected(&[4, 1, 3])[2].clone());
    let alone = [expected(&[4, 1, 1]), expected(&[4, 1])];
    let values =
        alone.map(|lines| lines.last().expect("a step").split(": ").nth(1).expect("a value").to_string());
    lines.push(format!("lengths 6 and 5: {} and {}", values[0], values[1]));
    let twice = "the call has it twice, and a state takes one step at a time";
    lines.push(format!("twice: 10, state 2: {twice}"));
    let damaged = "its header is damaged: it has another number of bytes than its sizes give";
    lines.push(format!("damaged: 10, state 2: {damaged}"));
    lines.push("foreign: 10".into());
    lines.push("valid 1, cut 0".into());
    lines.push("capacity for the bytes: 9".into());
    assert_eq!(printed.lines().collect::<Vec<_>>(), lines);
}

#[test]
fn the_chapter_compiles_in_c() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("decoder.h"), compiled().header).expect("a header");
    let chapter = include_str!("../../../../docs/generation.md");
    let snippets: Vec<&str> =
        chapter.split("```c\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(!snippets.is_empty(), "the chapter shows a step in C");
    for snippet in snippets {
        let text = format!("#include \"decoder.h\"\n{snippet}");
        std::fs::write(folder.path().join("snippet.c"), text).expect("a file");
        foreign::compile(folder.path(), "cc", "snippet.c", &[]);
    }
}
