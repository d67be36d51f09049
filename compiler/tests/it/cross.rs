//! Objects for other machines, linked by their C compilers and run in an emulator.
//!
//! Needs Debian's `gcc-aarch64-linux-gnu`, `gcc-riscv64-linux-gnu` and `qemu-user`, so it runs where it is asked for
//! with `--ignored`; `.ci/run` does.

use crate::foreign;
use crate::half_precision;
use crate::models;
use crate::networks;
use crate::quantised;
use crate::random_cases::{self, GraphCase};
use crate::tensors::as_ref;

use foreign::Program;
use symshape_compiler::{
    CompileOptions, emit,
    graph::{self, Graph},
    kernel::MicrokernelSupport,
    pipeline::{Artifact, Lowered, Pipeline},
    target::Target,
    tensor::{Bytes, Tensor},
};
use symshape_runtime::{Context, DType, TensorRef, external::Function};

/// Compiles `graph` for `triple` and links it with the libraries of its platform.
fn compile(graph: &Graph, (triple, level): (&str, &str), compiler: &str, emulator: &[&str]) -> Program {
    let lowered = Pipeline::new(graph).lower().unwrap_or_else(|error| panic!("{}: {error}", graph.name));
    link(&lowered, (triple, level), compiler, emulator)
}

/// The same of kernels that were made already.
fn link(lowered: &Lowered, machine: (&str, &str), compiler: &str, emulator: &[&str]) -> Program {
    link_with(lowered, machine, compiler, emulator, &[])
}

/// The same with C files of the tests' own.
fn link_with(
    lowered: &Lowered,
    (triple, level): (&str, &str),
    compiler: &str,
    emulator: &[&str],
    files: &[&str],
) -> Program {
    let target = Target::parse(Some(triple), Some(level)).unwrap_or_else(|error| panic!("{triple}: {error}"));
    let name = &lowered.program.name;
    let compiled = lowered
        .compile(&target, Artifact::Object)
        .unwrap_or_else(|error| panic!("{name} for {triple}: {error}"));
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join(format!("{name}.h")), compiled.header).expect("a header");
    std::fs::write(folder.path().join(format!("{name}.o")), compiled.object.into_bytes().expect("an object"))
        .expect("a file");
    let object = format!("{name}.o");
    Program::link(folder, compiler, emulator, name, &[&[object.as_str()], files].concat())
}

/// A model that calls a C function, which `c/acme.c` has.
fn check_call(machine: (&str, &str), compiler: &str, emulator: &[&str]) {
    let text = "graph acme {\n  symbol N = 1..5\n  input x: f32[N, 3]\n  \
                %0 = call acme_soft {\"alpha\" = floats [1.5]} -> (f32[N, 3]) x\n  %1 = neg %0\n  output y = %1\n}\n";
    let mut graph = graph::text::parse(text).expect("a graph");
    graph.register(&|_| {
        Some(Function::new(|call| {
            let x = call.inputs[0].elems::<f32>().map_err(|_| 1)?;
            let y = call.outputs[0].elems_mut::<f32>().map_err(|_| 2)?;
            y.iter_mut().zip(x).for_each(|(y, x)| *y = 1.5 * x / (1.0 + x.abs()));
            Ok(())
        }))
    });
    let lowered = Pipeline::new(&graph).lower().expect("supported");
    let functions = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/acme.c");
    let program = link_with(&lowered, machine, compiler, emulator, &[functions]);
    for dims in models::bindings(&graph) {
        let inputs = models::inputs(&graph, &dims);
        let expected = graph::eval::eval(&graph, &inputs).expect("the function succeeds");
        program.assert_gives(&format!("a call at {dims:?}"), &inputs, &expected);
    }
}

#[test]
#[ignore = "needs a cross compiler and qemu"]
fn functions_of_the_user_are_called_there() {
    check_call(("aarch64-unknown-linux-gnu", "aarch64"), "aarch64-linux-gnu-gcc", &["qemu-aarch64"]);
    check_call(("riscv64gc-unknown-linux-gnu", "riscv64"), "riscv64-linux-gnu-gcc", &["qemu-riscv64"]);
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

/// The results of this machine.
fn here(lowered: &Lowered, inputs: &[Tensor]) -> Vec<Tensor> {
    let options = CompileOptions::default();
    let (model, _) = emit::jit::jit(&lowered.program, &lowered.plan, &options).expect("supported here");
    let mut context = Context::new(&model).expect("memory");
    let lent: Vec<TensorRef> = inputs.iter().map(as_ref).collect();
    let outputs = context.run_views(&lent).expect("in range");
    let tensor = |idx: usize| {
        let output = outputs.get(idx);
        let bytes = Bytes::Owned(output.bytes().into());
        Tensor::new(output.dtype(), output.shape().to_vec(), bytes).expect("as many bytes as the shape")
    };
    (0..outputs.len()).map(tensor).collect()
}

/// Whole networks have the results of this machine, at the smallest and the largest sizes.
fn check_networks(machines: &[((&str, &str), &str, &[&str])]) {
    for (name, network) in networks::NETWORKS {
        let graph = network().unwrap_or_else(|error| panic!("{name}: {error}"));
        let lowered = Pipeline::new(&graph).lower().unwrap_or_else(|error| panic!("{name}: {error}"));
        let bindings = models::bindings(&graph);
        let cases: Vec<(Vec<i64>, Vec<Tensor>, Vec<Tensor>)> = [&bindings[0], &bindings[4]]
            .map(|dims| {
                let inputs = models::inputs(&graph, dims);
                let expected = here(&lowered, &inputs);
                (dims.clone(), inputs, expected)
            })
            .into();
        for (machine, compiler, emulator) in machines {
            let program = link(&lowered, *machine, compiler, emulator);
            for (dims, inputs, expected) in &cases {
                program.assert_gives(&format!("{name} on {} at {dims:?}", machine.0), inputs, expected);
            }
        }
    }
}

#[test]
#[ignore = "needs a cross compiler and qemu"]
fn networks_compute_there_what_they_compute_here() {
    check_networks(&[
        (("aarch64-unknown-linux-gnu", "aarch64"), "aarch64-linux-gnu-gcc", &["qemu-aarch64"]),
        (("riscv64gc-unknown-linux-gnu", "riscv64"), "riscv64-linux-gnu-gcc", &["qemu-riscv64"]),
    ]);
}

#[test]
#[ignore = "needs a cross compiler and qemu"]
fn aarch64_computes_what_graphs_say() {
    check(("aarch64-unknown-linux-gnu", "aarch64"), "aarch64-linux-gnu-gcc", &["qemu-aarch64"]);
}

/// The levels of artefacts, and the machines that run them.
const AARCH64_LEVELS: [(&str, &[&str]); 10] = [
    ("aarch64", &["qemu-aarch64", "-cpu", "cortex-a57"]),
    ("aarch64-dotprod", &["qemu-aarch64", "-cpu", "neoverse-n1"]),
    ("aarch64-i8mm", &["qemu-aarch64", "-cpu", "max"]),
    ("aarch64-bf16", &["qemu-aarch64", "-cpu", "max"]),
    ("aarch64,aarch64-i8mm,aarch64-bf16", &["qemu-aarch64", "-cpu", "max"]),
    ("aarch64,aarch64-dotprod", &["qemu-aarch64", "-cpu", "cortex-a57"]),
    ("aarch64,aarch64-dotprod", &["qemu-aarch64", "-cpu", "neoverse-n1"]),
    ("aarch64,aarch64-dotprod,aarch64-i8mm", &["qemu-aarch64", "-cpu", "cortex-a57"]),
    ("aarch64,aarch64-dotprod,aarch64-i8mm", &["qemu-aarch64", "-cpu", "neoverse-n1"]),
    ("aarch64,aarch64-dotprod,aarch64-i8mm", &["qemu-aarch64", "-cpu", "max"]),
];

#[test]
#[ignore = "needs a cross compiler and qemu"]
fn aarch64_multiplies_bytes_exactly_at_each_level() {
    for (name, model, _) in quantised::MODELS {
        let graph = model().unwrap_or_else(|error| panic!("{name}: {error}"));
        for (levels, emulator) in AARCH64_LEVELS {
            let machine = ("aarch64-unknown-linux-gnu", levels);
            let target = Target::parse(Some(machine.0), Some(levels)).expect("a target");
            let options = CompileOptions::for_target(&target);
            let lowered = Pipeline::new(&graph).options(options).lower().expect("supported");
            let program = link(&lowered, machine, "aarch64-linux-gnu-gcc", emulator);
            for dims in quantised::bindings(&graph) {
                let inputs = quantised::inputs(&graph, &dims);
                let expected = graph::eval::eval(&graph, &inputs).expect("the oracle takes it");
                let text = format!("{name} at {levels} on {emulator:?}, {dims:?}");
                program.assert_gives_bits(&text, &inputs, &expected);
            }
        }
    }
}

#[test]
#[ignore = "needs a cross compiler and qemu"]
fn aarch64_computes_what_random_graphs_say() {
    let machine = ("aarch64-unknown-linux-gnu", "aarch64");
    let target = Target::parse(Some(machine.0), Some(machine.1)).expect("a target");
    let mut tried = 0;
    for GraphCase { graph, text, inputs, expected } in random_cases::graph_cases(1_000..1_800) {
        let options = CompileOptions::for_target(&target);
        let Ok(lowered) = Pipeline::new(&graph).options(options).lower() else { continue };
        if lowered.compile(&target, Artifact::Object).is_err() {
            continue;
        }
        let program = link(&lowered, machine, "aarch64-linux-gnu-gcc", &["qemu-aarch64"]);
        program.assert_gives(&text, &inputs, &expected);
        tried += 1;
        if tried == 60 {
            break;
        }
    }
    assert!(tried >= 40, "only {tried} graphs could be tried");
}

#[test]
#[ignore = "needs a cross compiler and qemu"]
fn aarch64_converts_halves_as_this_machine_does() {
    let machine = ("aarch64-unknown-linux-gnu", "aarch64");
    for dtype in [DType::F16, DType::BF16] {
        let graph = half_precision::model(dtype, dtype).expect("a valid graph");
        let options = CompileOptions::default().support(MicrokernelSupport::Native {
            multiplies_bytes: false,
            sums_pairs: false,
            tiles: false,
            bf16_matrices: false,
            reads_halves: true,
            lanes: 4,
        });
        let lowered = Pipeline::new(&graph).options(options).lower().expect("supported");
        let program = link(&lowered, machine, "aarch64-linux-gnu-gcc", &["qemu-aarch64"]);
        for dims in models::bindings(&graph) {
            let inputs = models::inputs(&graph, &dims);
            let expected = here(&lowered, &inputs);
            program.assert_gives(&format!("{dtype:?} at {dims:?}"), &inputs, &expected);
        }
    }
}

/// Sums of products are added in one order on every machine that rounds them once.
#[test]
#[ignore = "needs a cross compiler and qemu"]
fn aarch64_has_the_bits_of_this_machine_in_contractions() {
    let graph = networks::NETWORKS[0].1().expect("a valid graph");
    let lowered = Pipeline::new(&graph).lower().expect("supported");
    for (levels, emulator) in AARCH64_LEVELS {
        let machine = ("aarch64-unknown-linux-gnu", levels);
        let program = link(&lowered, machine, "aarch64-linux-gnu-gcc", emulator);
        for dims in models::bindings(&graph) {
            let inputs = models::inputs(&graph, &dims);
            let expected = here(&lowered, &inputs);
            program.assert_gives_bits(&format!("{levels} on {emulator:?} at {dims:?}"), &inputs, &expected);
        }
    }
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

/// Neither machine has AVX-VNNI.
#[test]
#[ignore = "needs QEMU"]
fn machines_without_avx_vnni_use_the_level_below() {
    let graph = quantised::MODELS.iter().find(|(name, ..)| *name == "dense").expect("a model").1();
    let graph = graph.expect("a valid graph");
    let machine = ("x86_64-unknown-linux-gnu", "x86-64-v2,x86-64-v3,x86-64-v3-vnni");
    let lowered = Pipeline::new(&graph).lower().expect("supported");
    for cpu in ["Nehalem", "max"] {
        let program = link(&lowered, machine, "cc", &["qemu-x86_64", "-cpu", cpu]);
        for dims in quantised::bindings(&graph) {
            let inputs = quantised::inputs(&graph, &dims);
            let expected = graph::eval::eval(&graph, &inputs).expect("the oracle takes it");
            program.assert_gives_bits(&format!("{cpu} at {dims:?}"), &inputs, &expected);
        }
    }
}
