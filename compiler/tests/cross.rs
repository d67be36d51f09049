//! Objects for other machines, linked by their C compilers and run in an emulator.
//!
//! Needs Debian's `gcc-aarch64-linux-gnu`, `gcc-riscv64-linux-gnu` and `qemu-user`, so it runs where it is asked for
//! with `--ignored`; `.ci/run` does.

mod foreign;
mod models;

use foreign::Program;
use symshape_compiler::{
    graph::{self, Graph},
    pipeline::{self, Artifact},
    target::Target,
};

/// Compiles `graph` for `triple` and links it with what its platform has.
fn compile(graph: &Graph, (triple, level): (&str, &str), compiler: &str, emulator: &[&str]) -> Program {
    let lowered = pipeline::lower(graph).unwrap_or_else(|error| panic!("{}: {error}", graph.name));
    let target = Target::parse(Some(triple), Some(level)).unwrap_or_else(|error| panic!("{triple}: {error}"));
    let compiled = pipeline::compile(&lowered, &target, Artifact::Object)
        .unwrap_or_else(|error| panic!("{} for {triple}: {error}", graph.name));
    let name = &lowered.program.name;
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join(format!("{name}.h")), compiled.header).expect("a header");
    std::fs::write(folder.path().join(format!("{name}.o")), compiled.object).expect("an object");
    Program::compile(folder, compiler, emulator, name, &format!("{name}.o"))
}

fn check((triple, level): (&str, &str), compiler: &str, emulator: &[&str]) {
    for (name, model) in models::MODELS {
        let graph = model().unwrap_or_else(|error| panic!("{name}: {error}"));
        let program = compile(&graph, (triple, level), compiler, emulator);
        for dims in models::bindings(&graph) {
            let inputs = models::inputs(&graph, &dims);
            let expected =
                graph::eval::eval(&graph, &inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
            program.assert_gives(&format!("{name} on {triple} at {dims:?}"), &inputs, &expected);
        }
    }
}

#[test]
#[ignore = "needs a cross compiler and qemu"]
fn aarch64_computes_what_graphs_say() {
    check(("aarch64-unknown-linux-gnu", "aarch64"), "aarch64-linux-gnu-gcc", &["qemu-aarch64"]);
}

#[test]
#[ignore = "needs a cross compiler and qemu"]
fn riscv64_computes_what_graphs_say() {
    check(("riscv64gc-unknown-linux-gnu", "riscv64"), "riscv64-linux-gnu-gcc", &["qemu-riscv64"]);
}

#[test]
#[ignore = "needs a cross compiler and qemu"]
fn riscv64_with_vectors_computes_what_graphs_say() {
    let emulator = ["qemu-riscv64", "-cpu", "rv64,v=true,vlen=128,vext_spec=v1.0"];
    check(("riscv64gc-unknown-linux-gnu", "riscv64v"), "riscv64-linux-gnu-gcc", &emulator);
}
