//! C source on a Cortex-M3 without an operating system, emulated.
//!
//! Needs Debian's `gcc-arm-none-eabi`, `libnewlib-arm-none-eabi` and `qemu-system-arm`, so it runs where it is asked
//! for with `--ignored`; `.ci/run` does.

use crate::models;

use std::{fmt::Write, path::Path, process::Command};
use symshape_compiler::{
    CompileOptions,
    graph::{self, Graph},
    pipeline::Pipeline,
    tensor::Tensor,
};

/// The call that the program makes, as C.
fn case(graph: &Graph, dims: &[i64], largest: &[i64]) -> String {
    let inputs = models::inputs(graph, dims);
    let expected = graph::eval::eval(graph, &inputs).expect("in contract");
    let upper = graph.name.to_uppercase();
    let mut text = format!(
        "#include \"{}.h\"\n#define CASE_N_DIMS {upper}_N_SYMBOLS\n#define CASE_CHECK {0}_check\n\
         #define CASE_RUN {0}_run_static\n#define CASE_RESULTS {}\n",
        graph.name,
        expected[0].elems()
    );
    let list = |tensor: &Tensor| {
        let elems = (0..tensor.elems()).map(|idx| format!("{:?}f", tensor.get(idx).as_f64() as f32));
        // C has no arrays without elements.
        elems.chain(["0".to_string()]).collect::<Vec<_>>().join(", ")
    };
    let shape = |shape: &[usize]| shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let _ = writeln!(text, "static const float case_input[] = {{{}}};", list(&inputs[0]));
    let _ = writeln!(text, "static const float case_results[] = {{{}}};", list(&expected[0]));
    let mut beyond = inputs[0].shape().to_vec();
    beyond[0] = usize::try_from(largest[0]).expect("a size") + 1;
    for (name, sizes) in [("case_shapes", inputs[0].shape()), ("case_too_large", &beyond)] {
        let _ = writeln!(text, "static const int64_t {name}_0[] = {{{}}};", shape(sizes));
        let _ = writeln!(text, "static const int64_t *const {name}[] = {{{name}_0}};");
    }
    text
}

fn run(folder: &Path, tool: &str, args: &[&str]) {
    let output = Command::new(tool).current_dir(folder).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{tool} is needed by this test: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool}: {}\n{text}", output.status);
}

#[test]
#[ignore = "needs a compiler for bare metal and qemu"]
fn cortex_m_computes_what_graphs_say() {
    let graph =
        models::MODELS.iter().find(|(name, _)| *name == "mlp").expect("the model").1().expect("a graph");
    let lowered = Pipeline::new(&graph).options(CompileOptions::for_c_source()).lower().expect("supported");
    let source = lowered.source("mlp.h").expect("supported");
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    std::fs::write(folder.join("mlp.h"), source.header).expect("a header");
    std::fs::write(folder.join("mlp.c"), source.code).expect("a source");
    let main = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/cortex_m.c");
    let script = concat!("-T", env!("CARGO_MANIFEST_DIR"), "/tests/c/cortex_m.ld");
    let bindings = models::bindings(&graph);
    let largest: Vec<i64> = (0..bindings[0].len())
        .map(|k| bindings.iter().map(|dims| dims[k]).max().expect("there are bindings"))
        .collect();
    for dims in &bindings[..5] {
        std::fs::write(folder.join("case.h"), case(&graph, dims, &largest)).expect("a case");
        let target = ["-mcpu=cortex-m3", "-mthumb", "-O2", "-std=c11", "-DMLP_STATIC_ARENA"];
        let strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I.", "-nostartfiles"];
        let files = [script, main, "mlp.c", "-lm", "-o", "program.elf"];
        run(folder, "arm-none-eabi-gcc", &[&target[..], &strict, &files].concat());
        let machine = ["-M", "mps2-an385", "-nographic", "-semihosting", "-kernel", "program.elf"];
        run(folder, "qemu-system-arm", &machine);
    }
}
