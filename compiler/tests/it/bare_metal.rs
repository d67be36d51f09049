//! Programs without an operating system or a C library: objects on x86-64 and aarch64, and C source on Cortex-M cores.
//!
//! The programs for other machines need Debian's `gcc-arm-none-eabi`, `gcc-aarch64-linux-gnu`, `qemu-system-arm` and
//! `qemu-system-aarch64`, so they run with `--ignored`; `.ci/run` does.

use crate::cli::{BLOCK, refusal, symc};
use crate::models;
use crate::quantised;

use object::BinaryFormat;
use std::{fmt::Write, path::Path, process::Command};
use symshape_compiler::{
    CompileOptions, emit,
    graph::{self, Graph},
    pipeline::{Artifact, Lowered, Pipeline},
    target::Target,
    tensor::Tensor,
};
use symshape_runtime::DType;
use tempfile::TempDir;

/// The C files of these programs.
const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c");

/// Platforms without an operating system that have a code generator.
const BARE: [&str; 3] = ["x86_64-unknown-none", "aarch64-unknown-none", "riscv64gc-unknown-none-elf"];

/// How the program calls the model.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arena {
    /// That of the C source.
    OfSource,
    /// That of the program.
    OfProgram,
}

/// The call that the program makes, as C.
fn case(graph: &Graph, dims: &[i64], largest: &[i64], arena: Arena) -> String {
    let inputs = models::inputs(graph, dims);
    let expected = graph::eval::eval(graph, &inputs).expect("in contract");
    let upper = graph.name.to_uppercase();
    let mut text = format!(
        "#include \"{}.h\"\n#define CASE_N_DIMS {upper}_N_SYMBOLS\n#define CASE_CHECK {0}_check\n\
         #define CASE_RESULTS {}\n",
        graph.name,
        expected[0].elems()
    );
    let _ = match arena {
        Arena::OfSource => writeln!(text, "#define CASE_RUN {}_run_static", graph.name),
        Arena::OfProgram => {
            writeln!(text, "#define CASE_ARENA {upper}_ARENA_MAX\n#define CASE_MODEL_RUN {}_run", graph.name)
        }
    };
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

fn run(folder: &Path, tool: &str, args: &[&str]) -> String {
    let output = Command::new(tool).current_dir(folder).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{tool} is needed by this test: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool}: {}\n{text}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The largest values of the symbols in these bindings.
fn largest(bindings: &[Vec<i64>]) -> Vec<i64> {
    (0..bindings[0].len())
        .map(|k| bindings.iter().map(|dims| dims[k]).max().expect("there are bindings"))
        .collect()
}

/// The graph of a test model.
fn model(name: &str) -> Graph {
    let (_, make) = models::MODELS.iter().find(|(other, _)| *other == name).expect("the model");
    make().expect("a graph")
}

/// The test models that a case can describe: one input and one output of `f32`.
fn plain_models() -> impl Iterator<Item = Graph> {
    let graphs = models::MODELS.iter().map(|(_, make)| make().expect("a graph"));
    graphs.filter(|graph| {
        let inputs = models::inputs(graph, &models::bindings(graph)[0]);
        let is_f32 = |tensors: &[Tensor]| tensors.len() == 1 && tensors[0].dtype() == DType::F32;
        is_f32(&inputs) && is_f32(&graph::eval::eval(graph, &inputs).expect("in contract"))
    })
}

/// A folder with the object of `lowered` for `triple`, and its header.
fn object(lowered: &Lowered, triple: &str) -> TempDir {
    let target = Target::parse(Some(triple), None).expect("a platform");
    let compiled = lowered.compile(&target, Artifact::Object).expect("supported");
    let folder = tempfile::tempdir().expect("a folder");
    let name = &lowered.program.name;
    std::fs::write(folder.path().join(format!("{name}.h")), compiled.header).expect("a header");
    let bytes = compiled.object.into_bytes().expect("an object");
    std::fs::write(folder.path().join("model.o"), bytes).expect("a file");
    folder
}

/// Links `c/bare.c` with the object of each plain model without a library, and runs it.
fn check_objects(triple: &str, compiler: &str, flags: &[&str], emulator: &[&str]) {
    let mut n_models = 0;
    for graph in plain_models() {
        let lowered = Pipeline::new(&graph).lower().expect("supported");
        let folder = object(&lowered, triple);
        let bindings = models::bindings(&graph);
        for dims in [&bindings[0], &bindings[2], &bindings[4]] {
            let case = case(&graph, dims, &largest(&bindings), Arena::OfProgram);
            std::fs::write(folder.path().join("case.h"), case).expect("a case");
            let own =
                ["-O2", "-std=c11", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-nostdlib", "-static"];
            let files =
                [&format!("{FILES}/bare.c"), &format!("{FILES}/memory.c"), "model.o", "-o", "program"];
            run(folder.path(), compiler, &[&own[..], &["-I.", "-I", FILES], flags, &files].concat());
            match emulator.split_first() {
                Some((machine, args)) => run(folder.path(), machine, &[args, &["program"]].concat()),
                None => run(folder.path(), "./program", &[]),
            };
        }
        n_models += 1;
    }
    assert!(n_models >= 5, "only {n_models} models");
}

#[test]
fn objects_of_bare_targets_are_elf_without_imports() {
    for (name, make) in models::MODELS {
        let lowered = Pipeline::new(&make().expect("a graph")).lower().expect("supported");
        for triple in BARE {
            let target = Target::parse(Some(triple), None).expect("a platform");
            let compiled = lowered.compile(&target, Artifact::Object).expect("supported");
            let bytes = compiled.object.into_bytes().expect("an object");
            let file = object::File::parse(&*bytes).expect("an object");
            assert_eq!(file.format(), BinaryFormat::Elf, "{name} for {triple}");
            assert_eq!(emit::object::imports(&bytes).expect("an object"), Vec::<String>::new());
        }
    }
}

#[test]
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn x86_64_programs_without_a_library_compute_what_graphs_say() {
    check_objects("x86_64-unknown-none", "cc", &["-no-pie"], &[]);
}

#[test]
#[ignore = "needs a cross compiler and qemu"]
fn aarch64_programs_without_a_system_compute_what_graphs_say() {
    let script = format!("-T{FILES}/bare_aarch64.ld");
    let machine = [
        "-M",
        "virt",
        "-cpu",
        "cortex-a57",
        "-m",
        "256",
        "-nic",
        "none",
        "-nographic",
        "-semihosting",
        "-kernel",
    ];
    let emulator = [&["qemu-system-aarch64"][..], &machine].concat();
    check_objects("aarch64-unknown-none", "aarch64-linux-gnu-gcc", &["-no-pie", &script], &emulator);
}

/// A Cortex-M core and a machine of QEMU that has it.
struct Core {
    cpu: &'static str,
    machine: &'static str,
    /// Whether it multiplies pairs of 16-bit integers.
    has_dsp: bool,
}

const CORTEX_M3: Core = Core { cpu: "cortex-m3", machine: "mps2-an385", has_dsp: false };
const CORTEX_M4: Core = Core { cpu: "cortex-m4", machine: "mps2-an386", has_dsp: true };
const CORTEX_M7: Core = Core { cpu: "cortex-m7", machine: "mps2-an500", has_dsp: true };

/// Runs the C source of `graph` on a core. Returns the assembly of the program.
fn check_cortex_m(
    core: &Core,
    graph: &Graph,
    options: &CompileOptions,
    own: &[&str],
    libraries: &[&str],
) -> String {
    let name = &graph.name;
    let lowered = Pipeline::new(graph).options(*options).lower().expect("supported");
    let source = lowered.source(&format!("{name}.h")).expect("supported");
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    std::fs::write(folder.join(format!("{name}.h")), source.header).expect("a header");
    std::fs::write(folder.join("model.c"), source.code).expect("a source");
    let main = format!("{FILES}/cortex_m.c");
    let script = format!("-T{FILES}/cortex_m.ld");
    let arena = format!("-D{}_STATIC_ARENA", name.to_uppercase());

    let bindings = models::bindings(graph);
    for dims in &bindings[..5] {
        let case = case(graph, dims, &largest(&bindings), Arena::OfSource);
        std::fs::write(folder.join("case.h"), case).expect("a case");
        let cpu = format!("-mcpu={}", core.cpu);
        let target = [&cpu, "-mthumb", "-O2", "-std=c11", &arena];
        let strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I.", "-I", FILES, "-nostartfiles"];
        let files = [&script, &main, "model.c", "-o", "program.elf"];
        run(folder, "arm-none-eabi-gcc", &[&target[..], &strict, own, &files, libraries].concat());
        let machine = ["-M", core.machine, "-nographic", "-semihosting", "-kernel", "program.elf"];
        run(folder, "qemu-system-arm", &machine);
    }
    run(folder, "arm-none-eabi-objdump", &["-d", "program.elf"])
}

#[test]
#[ignore = "needs a compiler for bare metal and qemu"]
fn cortex_m_computes_what_graphs_say() {
    check_cortex_m(&CORTEX_M3, &model("mlp"), &CompileOptions::for_c_source(), &[], &["-lm"]);
}

#[test]
#[ignore = "needs a compiler for bare metal and qemu"]
fn cortex_m_without_a_c_library_computes_what_graphs_say() {
    let memory = format!("{FILES}/memory.c");
    let own = ["-ffreestanding", "-nostdlib"];
    for graph in plain_models() {
        let options = CompileOptions::for_c_source().libm(false);
        check_cortex_m(&CORTEX_M3, &graph, &options, &own, &[&memory, "-lgcc"]);
    }
}

/// The graph with its outputs as `f32`, which hold the integers exactly.
fn with_float_results(mut graph: Graph) -> Graph {
    for (name, value) in std::mem::take(&mut graph.outputs) {
        let float = graph.cast(DType::F32, value).expect("a cast");
        graph.output(&name, float).expect("an output");
    }
    graph
}

/// A row of bytes times weights of bytes, whose depth no group of four divides.
fn byte_products(row: &str, panel: &str) -> Graph {
    let text = format!(
        "graph bytes {{\n  symbol N = 1..5\n  input x: f32[N, 7]\n  %0 = const f32[] 90.0\n  \
         %1 = view [N, 7] [] %0\n  %2 = mul x, %1\n  %3 = cast {row} %2\n  %4 = cast i32 %3\n  \
         %5 = const {panel}[7, 20] random 1\n  %6 = cast i32 %5\n  \
         %7 = contraction i32 [ik, kj -> ij] %4, %6\n  %8 = cast f32 %7\n  output y = %8\n}}\n"
    );
    graph::text::parse(&text).expect("a graph")
}

#[test]
#[ignore = "needs a compiler for bare metal and qemu"]
fn cortex_m_multiplies_bytes_of_all_types() {
    let memory = format!("{FILES}/memory.c");
    let options = CompileOptions::for_c_source().libm(false);
    // Weights without a sign are stored with one.
    for (row, panel) in [("i8", "i8"), ("u8", "i8"), ("i8", "u8"), ("u8", "u8")] {
        let graph = byte_products(row, panel);
        let lowered = Pipeline::new(&graph).options(options).lower().expect("supported");
        let source = lowered.source("bytes.h").expect("supported").code;
        assert!(source.contains(&format!("dots_{row}_i8(")), "{row} and {panel}: {source}");
        for core in [CORTEX_M3, CORTEX_M4] {
            let own = ["-ffreestanding", "-nostdlib"];
            let assembly = check_cortex_m(&core, &graph, &options, &own, &[&memory, "-lgcc"]);
            assert_eq!(assembly.contains("smlad"), core.has_dsp, "{row} and {panel} on {}", core.cpu);
        }
    }
}

#[test]
#[ignore = "needs a compiler for bare metal and qemu"]
fn cortex_m_multiplies_bytes_exactly() {
    let memory = format!("{FILES}/memory.c");
    let own = ["-ffreestanding", "-nostdlib"];
    let options = CompileOptions::for_c_source().libm(false);
    let is_small = |name: &str| !["fewer_products", "fewer_products_down_columns"].contains(&name);
    for (name, model, _) in quantised::MODELS.iter().filter(|(name, ..)| is_small(name)) {
        let graph = with_float_results(model().unwrap_or_else(|error| panic!("{name}: {error}")));
        for core in [CORTEX_M3, CORTEX_M4, CORTEX_M7] {
            let assembly = check_cortex_m(&core, &graph, &options, &own, &[&memory, "-lgcc"]);
            let is_used = core.has_dsp && ["convolutions", "dense"].contains(name);
            assert!(assembly.contains("smlad") || !is_used, "{name} on {}", core.cpu);
        }
    }
}

#[test]
fn targets_without_a_code_generator_get_c_source() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    fn with<'a>(args: &[&'a str]) -> Vec<&'a str> {
        [&["compile", BLOCK, "--dim", "N=1..4", "--dim", "S=1..9"], args].concat()
    }

    let object = at("block.o");
    let message = refusal(&with(&["--target", "thumbv7em-none-eabi", "-o", &object]));
    assert_eq!(
        message,
        "symc: unsupported: target thumbv7em-none-eabi: there is no code generator for this machine, but its C \
         compiler takes C source: symc compile … --target thumbv7em-none-eabi -o NAME.c"
    );
    let message = refusal(&with(&["--target", "aarch64-unknown-nome", "-o", &object]));
    assert!(message.ends_with("; did you mean aarch64-unknown-none?"), "{message}");
    let message = refusal(&with(&["--cpu", "x86-64-v33", "-o", &object]));
    assert!(message.contains("did you mean x86-64-v3"), "{message}");
    let message = refusal(&with(&["--no-libm", "-o", &object]));
    assert!(message.contains("--no-libm is for C source"), "{message}");

    let source = at("block.c");
    let includes = |args: &[&str]| {
        let output = symc(&with(args));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read_to_string(&source).expect("a source").contains("#include <math.h>")
    };
    assert!(includes(&["-o", &source]));
    assert!(!includes(&["-o", &source, "--no-libm"]));
    assert!(!includes(&["-o", &source, "--target", "thumbv7em-none-eabi"]));
    assert!(includes(&["-o", &source, "--target", "armv7-unknown-linux-gnueabihf"]));
}
