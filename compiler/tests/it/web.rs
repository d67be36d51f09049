//! WebAssembly: modules compute the graphs in Node, and their ES modules refuse calls that break the contract.
//!
//! Most tests need a C compiler for wasm32 and Node (the environment variables `WASM_CC` and `NODE`). They run with
//! `--ignored`, as in `.ci/run`.

use crate::cli::{BLOCK, json, refusal};
use crate::foreign::Program;
use crate::models;
use crate::networks;
use crate::own_math;

use std::{fs, path::Path, process::Command};
use symshape_compiler::{
    CompileOptions, StateRequest,
    emit::web::{WasmCompiler, WasmLevel, Web, WebOptions},
    graph::{self, Graph},
    pipeline::Pipeline,
    tensor::Tensor,
};
use symshape_runtime::DType;

/// The program that calls a module with tensors.
const CALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/call.mjs");

/// The command of Node.
pub(crate) fn node() -> String {
    std::env::var("NODE").unwrap_or_else(|_| "node".into())
}

fn compile(graph: &Graph, compiler: &WasmCompiler, level: WasmLevel) -> Web {
    compile_with_state(graph, &StateRequest::default(), compiler, level)
}

/// A module of a graph with state.
pub(crate) fn compile_with_state(
    graph: &Graph,
    request: &StateRequest,
    compiler: &WasmCompiler,
    level: WasmLevel,
) -> Web {
    let options = CompileOptions::for_c_source().libm(false);
    let lowered = Pipeline::new(graph).options(options).state(request.clone()).lower();
    let lowered = lowered.unwrap_or_else(|error| panic!("{}: {error}", graph.name));
    let options = WebOptions { compiler, level, stem: "model", weights_file: None };
    lowered.web(&options).unwrap_or_else(|error| panic!("{}: {error}", graph.name))
}

/// The model as a program that reads inputs and writes outputs.
pub(crate) fn program(graph: &Graph, compiler: &WasmCompiler, level: WasmLevel) -> Program {
    let web = compile(graph, compiler, level);
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("model.wasm"), web.wasm).expect("a file");
    fs::write(folder.path().join("model.mjs"), web.module).expect("a file");
    Program::emulated(folder, &[&node(), CALL], "model.mjs")
}

fn assert_computes(graph: &Graph, compiler: &WasmCompiler) {
    let program = program(graph, compiler, WasmLevel::Simd128);
    for dims in models::bindings(graph) {
        let what = format!("{} at {dims:?}", graph.name);
        let inputs = models::inputs(graph, &dims);
        let expected = graph::eval::eval(graph, &inputs).unwrap_or_else(|error| panic!("{what}: {error}"));
        program.assert_gives(&what, &inputs, &expected);
    }
}

#[test]
#[ignore = "needs a C compiler for wasm32 and Node"]
fn modules_compute_what_graphs_say() {
    let compiler = WasmCompiler::find(WasmLevel::Simd128).expect("a C compiler for wasm32");
    for (name, model) in models::MODELS {
        let graph = model().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_computes(&graph, &compiler);
    }
}

#[test]
#[ignore = "needs a C compiler for wasm32 and Node"]
fn networks_compute_in_modules() {
    let compiler = WasmCompiler::find(WasmLevel::Simd128).expect("a C compiler for wasm32");
    for name in ["mobilenet_v2", "minilm"] {
        let (_, network) = networks::NETWORKS.iter().find(|(known, _)| *known == name).expect("a network");
        let graph = network().unwrap_or_else(|error| panic!("{name}: {error}"));
        let programs = WasmLevel::ALL.map(|level| program(&graph, &compiler, level));
        let bindings = models::bindings(&graph);
        for dims in [&bindings[0], &bindings[2], &bindings[4]] {
            let what = format!("{name} at {dims:?}");
            let inputs = models::inputs(&graph, dims);
            let expected =
                graph::eval::eval(&graph, &inputs).unwrap_or_else(|error| panic!("{what}: {error}"));
            programs.iter().for_each(|program| program.assert_gives(&what, &inputs, &expected));
        }
    }
}

#[test]
#[ignore = "needs a C compiler for wasm32 and Node"]
fn functions_of_modules_are_accurate() {
    let compiler = WasmCompiler::find(WasmLevel::Simd128).expect("a C compiler for wasm32");
    let singles = |seed| own_math::numbers(seed).into_iter().map(|x| x as f32).collect::<Vec<f32>>();
    let (x, y) = (singles(1), singles(2));
    let count = x.len();
    let graph = own_math::graph("functions", DType::F32, count);
    let inputs = [x, y].map(|list| Tensor::from_f32(vec![count], &list).expect("as many as the shape"));
    let expected = graph::eval::eval(&graph, &inputs).expect("an oracle");

    let shapes: Vec<_> = expected.iter().map(|tensor| (tensor.dtype(), tensor.shape().to_vec())).collect();
    let outputs = program(&graph, &compiler, WasmLevel::Simd128).outputs(&inputs, &shapes);
    for ((name, _), (got, want)) in graph.outputs.iter().zip(outputs.iter().zip(&expected)) {
        for idx in 0..count {
            let ulps = own_math::ulps(DType::F32, got.get(idx), want.get(idx));
            let x = inputs[0].get(idx);
            assert!(ulps <= 2, "{name}({x:?}) is {:?}, not {:?}", got.get(idx), want.get(idx));
        }
    }
}

#[test]
#[ignore = "needs a C compiler for wasm32 and Node"]
fn modules_refuse_calls_outside_the_contract() {
    let compiler = WasmCompiler::find(WasmLevel::Simd128).expect("a C compiler for wasm32");
    let (_, model) = models::MODELS[0];
    let program = program(&model().expect("a graph"), &compiler, WasmLevel::Simd128);
    let too_many = Tensor::from_f32(vec![10, 12], &[0.0; 120]).expect("as many as the shape");
    assert_eq!(program.check(&[too_many]), 1, "N is at most 9");
    let too_wide = Tensor::from_f32(vec![2, 13], &[0.0; 26]).expect("as many as the shape");
    assert_eq!(program.check(&[too_wide]), 3, "the second axis is 12");
}

/// Compiles the block of the examples by `symc` into `folder`.
fn block(folder: &Path, flags: &[&str]) -> serde_json::Value {
    let out = folder.join("block.wasm");
    let out = out.to_str().expect("UTF-8");
    json(&[&["compile", BLOCK, "--dim", "N=1..4", "--dim", "S=1..9", "-o", out], flags].concat()).remove(0)
}

/// Runs a script that imports `load` of the block, and returns what it prints.
fn run_script(folder: &Path, script: &str) -> String {
    let file = folder.join("script.mjs");
    fs::write(&file, format!("import {{ load, ModelError }} from './block.mjs';\n{script}")).expect("a file");
    let output = Command::new(node()).arg(&file).output().expect("Node starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    String::from_utf8(output.stdout).expect("UTF-8").trim_end().to_string()
}

#[test]
#[ignore = "needs a C compiler for wasm32 and Node"]
fn symc_writes_a_package() {
    let folder = tempfile::tempdir().expect("a folder");
    let summary = block(folder.path(), &[]);
    assert!(summary["memory_bytes"].as_u64() > summary["arena_max"].as_u64(), "{summary}");
    assert_eq!(summary["memory_bytes"].as_u64().expect("a number") % 65536, 0, "whole pages");

    let mut names: Vec<String> = fs::read_dir(folder.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    assert_eq!(names, ["block.d.mts", "block.mjs", "block.wasm", "package.json"]);
    let types = fs::read_to_string(folder.path().join("block.d.mts")).expect("a file");
    assert!(types.contains(r#"export type SymbolName = "N" | "S";"#), "{types}");
    assert!(types.contains("  \"x\": Tensor<Float32Array>;"), "{types}");

    // Node resolves the package by its name, and the module by the entry of the package.
    let script = "const same = await import('block'); \
                  console.log(same.load === load, WebAssembly.Module.imports(\
                  await WebAssembly.compile((await import('node:fs')).readFileSync('block.wasm'))).length);";
    fs::write(folder.path().join("script.mjs"), format!("import {{ load }} from './block.mjs';\n{script}"))
        .expect("a file");
    let output = Command::new(node()).arg("script.mjs").current_dir(folder.path()).output().expect("Node");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "true 0", "{output:?}");

    // A second run keeps the description, because users edit it.
    fs::write(folder.path().join("package.json"), "{}").expect("a file");
    block(folder.path(), &[]);
    assert_eq!(fs::read_to_string(folder.path().join("package.json")).expect("a file"), "{}");
}

#[test]
#[ignore = "needs a C compiler for wasm32 and Node"]
fn es_modules_refuse_in_the_words_of_symc() {
    let folder = tempfile::tempdir().expect("a folder");
    block(folder.path(), &[]);
    let script = r#"
const model = await load();
const f32 = (...shape) => ({ data: new Float32Array(shape.reduce((a, b) => a * b, 1)), shape });
const refusal = (inputs) => {
  try { model.run(inputs); return "accepted"; } catch (error) {
    if (!(error instanceof ModelError)) throw error;
    return `${error.code} ${error.message}`;
  }
};
console.log([
  refusal({ x: f32(5, 3, 64) }),
  refusal({ x: f32(1, 3, 65) }),
  refusal({ x: f32(1, 3) }),
  refusal({ x: { data: new Float64Array(192), shape: [1, 3, 64] } }),
  refusal({ x: { data: new Float32Array(191), shape: [1, 3, 64] } }),
  refusal({ x: { data: new Float32Array(192), shape: [1, -3, 64] } }),
  refusal({ x: { data: new Float32Array(192), shape: [1, 2 ** 60, 64] } }),
  refusal({ x: { data: new Float32Array(192), shape: [1, 1.5, 64] } }),
  refusal({ x: { data: Array(192).fill(0), shape: [1, 3, 64] } }),
  refusal({ x: { shape: [1, 3, 64] } }),
  refusal({ x: new Float32Array(192) }),
  refusal({ y: f32(1, 3, 64) }),
  refusal(undefined),
  refusal({ x: f32(1, 3, 64), z: f32(1) }),
  refusal({ x: f32(4, 9, 64) }),
].join("\n"));
"#;
    let expected = "\
1 `x` axis 0 gives N = 5; N is declared 1..=4
3 `x` axis 2 is 65; 64 is expected (declared as 64)
0 `x` has 3 axes; got 2
0 `x` has elements of type f32; got f64
0 `x`: the shape needs 768 bytes; the memory has 764
0 `x` axis 1 is -3; a size is an integer from 0 to 9007199254740991
0 `x` axis 1 is 1152921504606847000; a size is an integer from 0 to 9007199254740991
0 `x` axis 1 is 1.5; a size is an integer from 0 to 9007199254740991
0 `x` has elements of type f32; got Array
0 `x` has elements of type f32; got undefined
0 `x` has no shape: an input is an object { data, shape }
0 input `x` is missing; the model has `x`
0 input `x` is missing; the model has `x`
0 the model has no input `z`; it has `x`
accepted";
    assert_eq!(run_script(folder.path(), script), expected);
}

#[test]
#[ignore = "needs a C compiler for wasm32 and Node"]
fn calls_use_memory_of_the_module_and_files_of_weights() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = r#"
const model = await load();
const x = model.input("x", [2, 5, 64]);
for (let i = 0; i < x.data.length; i++) x.data[i] = Math.sin(i);
const copied = model.run({ x: { data: Float32Array.from(x.data), shape: x.shape } });
const [name] = Object.keys(copied);
const views = model.runViews({ x });
const same = views[name].data.every((value, i) => Object.is(value, copied[name].data[i]));
console.log(same, views[name].data.buffer === x.data.buffer, copied[name].data.buffer === x.data.buffer,
  views[name].shape.join(), x.data.buffer.byteLength === model.memoryBytes,
  copied[name].data.reduce((sum, value) => sum + value, 0).toFixed(3));
"#;
    block(folder.path(), &[]);
    let inside = run_script(folder.path(), script);
    assert!(inside.starts_with("true true false 2,5,64 true "), "{inside}");

    let weights = folder.path().join("block.weights");
    let size = || fs::metadata(folder.path().join("block.wasm")).expect("a file").len();
    let large = size();
    block(folder.path(), &["--weights-file", weights.to_str().expect("UTF-8")]);
    assert!(size() < large / 2, "the weights are in the other file");
    assert_eq!(run_script(folder.path(), script), inside);

    // Other weights are refused by the first call.
    let mut bytes = fs::read(&weights).expect("a file");
    // A byte of the hash of the artefact.
    bytes[40] ^= 1;
    fs::write(&weights, bytes).expect("a file");
    let script = "const model = await load(); try { model.run({ x: model.input('x', [1, 1, 64]) }); } \
                  catch (error) { console.log(error.code, error.message); }";
    let refused = run_script(folder.path(), script);
    assert!(refused.starts_with("12 `the weights` "), "{refused}");
}

#[test]
fn options_without_meaning_for_modules_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("block.wasm");
    let out = out.to_str().expect("UTF-8");
    let base = ["compile", BLOCK, "--dim", "N=1..4", "--dim", "S=1..9", "-o", out];
    for (flags, message) in [
        (&["--target", "x86_64-unknown-linux-gnu"][..], "omit --target"),
        (&["--no-libm"], "--no-libm is for C source"),
        (&["--partitions", "2"], "omit --partitions"),
        (&["--dynamic-memory"], "has a fixed size"),
        (&["--precision", "bf16x3"], "omit --precision"),
        (&["--cpu", "x86-64-v3"], "simd128 and relaxed-simd"),
    ] {
        let refused = refusal(&[&base[..], flags].concat());
        assert!(refused.contains(message), "{flags:?}: {refused}");
    }
    assert!(fs::read_dir(folder.path()).expect("a folder").next().is_none(), "nothing is written");
}

#[test]
fn missing_compilers_are_named_with_their_packages() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("block.wasm");
    let symc = |variable: &str, value: &str| {
        let args = ["compile", BLOCK, "--dim", "N=1..4", "--dim", "S=1..9", "-o"];
        let output = Command::new(env!("CARGO_BIN_EXE_symc"))
            .args(args)
            .arg(&out)
            .env_remove("WASM_CC")
            .env(variable, value)
            .output();
        let output = output.expect("symc starts");
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    let refused = symc("WASM_CC", "no-such-compiler --flag");
    assert!(refused.contains("pip install ziglang"), "{refused}");
    assert!(refused.contains("no-such-compiler --flag: "), "{refused}");
    let refused = symc("PATH", "");
    for command in ["clang: ", "zig cc: ", "python3 -m ziglang cc: "] {
        assert!(refused.contains(command), "{refused}");
    }
    assert!(!out.exists());
}

#[test]
fn memory_beyond_4_gib_is_refused_with_its_parts() {
    let mut graph = models::graph("large", &[("N", 1, 1 << 30)]);
    let x = graph.input("x", DType::F32, vec![symshape::Dim::symbol("N")]).expect("an input");
    let y = graph.neg(x).expect("a graph");
    graph.output("y", y).expect("an output");
    let lowered = Pipeline::new(&graph).options(CompileOptions::for_c_source()).lower().expect("supported");
    let compiler = WasmCompiler::named("no-such-compiler");
    let options =
        WebOptions { compiler: &compiler, level: WasmLevel::Simd128, stem: "m", weights_file: None };
    let error = lowered.web(&options).map(drop).expect_err("8 GiB");
    assert_eq!(error.kind(), symshape_compiler::ErrorKind::Limit);
    let message = error.message();
    assert!(
        message.contains("inputs 4294967296, outputs 4294967296") && message.contains("4 GiB"),
        "{message}"
    );
}
