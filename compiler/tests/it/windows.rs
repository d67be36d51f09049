//! Artefacts for Windows, linked by MinGW and run by Wine: their results have the bits of this machine's own.
//!
//! Needs Debian's `gcc-mingw-w64-x86-64`, `wine` and `wine64`, so it runs where it is asked for with `--ignored`; `.ci/run` does.

use crate::{
    foreign::{Program, object, output_types},
    models, networks,
    shared_libraries::{library, network},
};
use std::{path::Path, process::Command};
use symshape_compiler::{
    graph::Graph,
    pipeline::{Artifact, Pipeline},
    target::Level,
};

const WINDOWS: &str = "x86_64-pc-windows-gnu";
const COMPILER: &str = "x86_64-w64-mingw32-gcc";
const EMULATOR: &[&str] = &["wine"];

/// The levels that this machine has, as `--cpu` takes them: one by one, then all of them in one artefact.
fn levels() -> Vec<String> {
    let of_host: Vec<&str> = Level::ALL
        .into_iter()
        .filter(|level| level.name().starts_with("x86") && level.is_on_host())
        .map(Level::name)
        .collect();
    of_host.iter().map(|name| name.to_string()).chain([of_host.join(",")]).collect()
}

/// The form of a model for Windows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Object,
    Library,
}

/// Checks that a graph gives the same bits on Windows as here, at each of `levels` and each of `dims`.
fn check(graph: &Graph, form: Form, levels: &[String], dims: &[Vec<i64>]) {
    let lowered = Pipeline::new(graph).lower().unwrap_or_else(|error| panic!("{}: {error}", graph.name));
    let name = lowered.program.name.clone();
    for level in levels {
        let (folder, file) = object(&lowered, None, level, Artifact::Object);
        let here = Program::compile(folder, "cc", &[], &name, &file);
        let (folder, file) = match form {
            Form::Object => object(&lowered, Some(WINDOWS), level, Artifact::Object),
            Form::Library => library(&lowered, WINDOWS, Some(level), ".dll"),
        };
        let there = Program::compile(folder, COMPILER, EMULATOR, &name, &file);
        for dims in dims {
            let inputs = models::inputs(graph, dims);
            let outputs = output_types(graph, dims);
            let expected = here.outputs(&inputs, &outputs);
            let got = there.outputs(&inputs, &outputs);
            for (idx, (expected, got)) in expected.iter().zip(&got).enumerate() {
                let differs = |elem: &usize| {
                    expected.get(*elem).as_f64().to_bits() != got.get(*elem).as_f64().to_bits()
                };
                let different: Vec<(usize, f64, f64)> = (0..expected.elems())
                    .filter(differs)
                    .map(|elem| (elem, expected.get(elem).as_f64(), got.get(elem).as_f64()))
                    .collect();
                assert!(
                    expected.bytes() == got.bytes(),
                    "{name} for {level} at {dims:?}: output {idx} has {} other elements: {:?}",
                    different.len(),
                    different.first()
                );
            }
        }
    }
}

/// Each model at one level and at all levels; the levels take turns.
#[test]
#[ignore = "needs MinGW and Wine"]
fn models_give_the_bits_of_linux() {
    let mut levels = levels();
    let all = levels.pop().expect("a level");
    for ((name, model), level) in models::MODELS.iter().zip(levels.iter().cycle()) {
        let graph = model().unwrap_or_else(|error| panic!("{name}: {error}"));
        let dims = models::bindings(&graph)[2].clone();
        check(&graph, Form::Object, &[level.clone(), all.clone()], &[dims]);
    }
}

/// The networks as dynamic-link libraries, which the system finds next to the program.
#[test]
#[ignore = "needs MinGW and Wine"]
fn networks_in_libraries_give_the_bits_of_linux() {
    let all = levels().pop().expect("a level");
    for (name, network) in networks::NETWORKS {
        let graph = network().unwrap_or_else(|error| panic!("{name}: {error}"));
        let bindings = models::bindings(&graph);
        let form = Form::Library;
        check(&graph, form, std::slice::from_ref(&all), &[bindings[0].clone(), bindings[4].clone()]);
    }
}

/// Compiles C files in `folder` to a program for Windows, and returns the text that it prints.
fn run(folder: &Path, args: &[&str]) -> String {
    let compiled = Command::new(COMPILER)
        .current_dir(folder)
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-I.", "-o", "program.exe"])
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("{COMPILER} is needed by this test: {error}"));
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(EMULATOR[0])
        .arg(folder.join("program.exe"))
        .current_dir(folder)
        .output()
        .unwrap_or_else(|error| panic!("{} is needed by this test: {error}", EMULATOR[0]));
    let text = String::from_utf8_lossy(&output.stdout).trim().to_string();
    assert!(output.status.success(), "{}: {text}", output.status);
    text
}

#[test]
#[ignore = "needs MinGW and Wine"]
fn callers_keep_their_registers() {
    // Its kernels are large enough for several threads.
    let lowered = Pipeline::new(&network("mlp")).lower().expect("supported");
    for level in levels() {
        let (folder, file) = object(&lowered, Some(WINDOWS), &level, Artifact::Archive);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/saved.c");
        let macros = ["-DMODEL=mlp", "-DUPPER=MLP", "-DROWS=4", "-DCOLUMNS=784"];
        let args = [&["-include", "mlp.h"][..], &macros, &[source, &file]].concat();
        assert_eq!(run(folder.path(), &args), "kept", "{level}");
    }
}
