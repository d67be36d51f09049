//! State in WebAssembly: consecutive calls return and leave the bytes of machine code, up to rounding.

use super::{
    graphs::{decoder, delays, gated, layered, rows_first},
    script::{
        AGAIN,
        Command::{self, Call, Reset, Truncate},
        Script, TO_THE_END,
    },
    streaming,
};
use crate::{
    foreign::Program,
    web::{compile_with_state, node},
};
use std::{fs, path::Path, process::Command as Process};
use symshape_compiler::{
    StateRequest,
    emit::web::{WasmCompiler, WasmLevel},
    graph::Graph,
};
use symshape_runtime::DType;

/// The program that runs scripts.
const STEPS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/stateful.mjs");

/// Writes the files of a module into a folder.
fn compile(folder: &Path, graph: &Graph, request: &StateRequest) {
    let compiler = WasmCompiler::find(WasmLevel::Simd128).expect("a C compiler for wasm32");
    let web = compile_with_state(graph, request, &compiler, WasmLevel::Simd128);
    fs::write(folder.join("model.wasm"), web.wasm).expect("a file");
    fs::write(folder.join("model.mjs"), web.module).expect("a file");
    fs::write(folder.join("model.d.mts"), web.types).expect("a file");
}

fn assert_agrees(
    graph: &Graph,
    request: &StateRequest,
    batches: &[usize],
    capacity: usize,
    commands: &[Command],
) {
    let folder = tempfile::tempdir().expect("a folder");
    compile(folder.path(), graph, request);
    let program = Program::emulated(folder, &[&node(), STEPS], "model.mjs");
    for batch in batches {
        Script { graph, request, batch: *batch, capacity, commands }.assert_agrees(&program);
    }
}

#[test]
#[ignore = "needs a C compiler for wasm32 and Node"]
fn modules_append_rows() {
    let find = StateRequest::find();
    assert_agrees(&decoder(4, 12), &find, &[1, 2, 3], 16, &TO_THE_END);
    assert_agrees(&layered(3, 4, 12), &find, &[1, 3], 9, &AGAIN);
    assert_agrees(&rows_first(), &find, &[1], 20, &[Call(1), Call(5), Truncate(1), Call(2), Reset, Call(5)]);
    for row_type in [DType::F16, DType::BF16] {
        assert_agrees(&decoder(4, 12), &StateRequest::find().row_type(row_type), &[1, 2], 9, &AGAIN);
    }
}

#[test]
#[ignore = "needs a C compiler for wasm32 and Node"]
fn modules_overwrite_tensors() {
    let steps = [Call(0), Call(0), Call(0), Reset, Call(0), Call(0)];
    let request = StateRequest::pairs(["h=h_next"]).expect("a pair");
    assert_agrees(&gated(), &request, &[1, 2, 7, 8], 0, &steps);
    let request = StateRequest::pairs(["a=a_next", "b=b_next", "c=c_next"]).expect("pairs");
    assert_agrees(&delays(), &request, &[1, 4], 0, &steps);
    assert_agrees(&streaming::encoder(4, 1), &StateRequest::find(), &[1, 3], 0, &steps);
}

#[test]
#[ignore = "needs a C compiler for wasm32 and Node"]
fn states_are_made_and_refused_in_plain_words() {
    let folder = tempfile::tempdir().expect("a folder");
    compile(folder.path(), &decoder(4, 12), &StateRequest::find());
    let types = fs::read_to_string(folder.path().join("model.d.mts")).expect("a file");
    for line in
        ["  \"capacity\"?: number;", "  \"N\"?: number;", "run(inputs: Inputs, state: State): Outputs;"]
    {
        assert!(types.contains(line), "{types}");
    }
    let script = r#"
import { load, ModelError, State } from "./model.mjs";
const model = await load();
const f32 = (...shape) => ({ data: new Float32Array(shape.reduce((a, b) => a * b, 1)), shape });
const inputs = (length, steps, batch = 1) => ({ x: f32(batch, steps, 16), bias: f32(batch, 1, steps, length + steps) });
const refusal = (action) => {
  try { return `accepted ${action()}`; } catch (error) {
    if (!(error instanceof ModelError)) throw error;
    return `${error.code} ${error.message}`;
  }
};
const small = model.newState({ capacity: 3 });
const other = (await load()).newState({ capacity: 4 });
model.run(inputs(0, 2), small);
const saved = small.save();
const gone = model.newState({ capacity: 1 });
gone.free();
console.log([
  refusal(() => model.run(inputs(0, 1))),
  refusal(() => model.run(inputs(0, 1), {})),
  refusal(() => model.run(inputs(0, 1), other)),
  refusal(() => model.run(inputs(0, 1), gone)),
  refusal(() => gone.free()),
  refusal(() => model.run(inputs(2, 2), small)),
  refusal(() => model.run(inputs(3, 1), small)),
  refusal(() => model.run(inputs(2, 5), small)),
  refusal(() => small.truncate(3)),
  refusal(() => small.truncate(0.5)),
  refusal(() => model.newState({ capacity: 17 })),
  refusal(() => model.newState({ capacity: 2.5 })),
  refusal(() => model.newState({ N: 4 })),
  refusal(() => model.newState({ length: 4 })),
  refusal(() => model.newState({ capacity: 16, N: 3 })).replace(/\d+ bytes/g, "… bytes").replace(/take \d+/, "take …"),
  refusal(() => model.loadState(saved.subarray(0, 100))),
  refusal(() => model.loadState(saved.map((byte, at) => at === 9 ? byte ^ 1 : byte))),
  refusal(() => model.loadState([...saved])),
  `${small.length} of ${small.capacity}, ${model.loadState(saved).length}, ${small instanceof State}, ${model.state.length}`,
].join("\n"));

// Freed memory is used again, and a full pool is not.
small.free();
const sizes = { capacity: 2, N: 1 };
const states = [];
while (states.length < 1000) {
  try { states.push(model.newState(sizes)); } catch { break; }
}
const [first, second, third] = states;
second.free();
const again = model.newState(sizes);
model.run(inputs(0, 1), first);
model.run(inputs(0, 2), again);
model.run(inputs(0, 1), third);
console.log(states.length > 4 && states.length < 1000, first.length, again.length, third.length,
  refusal(() => model.newState(sizes)).startsWith("0 no memory"));
"#;
    fs::write(folder.path().join("script.mjs"), script).expect("a file");
    let output = Process::new(node()).arg(folder.path().join("script.mjs")).output().expect("Node starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    let expected = "\
0 the model keeps a state: pass `model.newState()` as the second argument
0 the model keeps a state: pass `model.newState()` as the second argument
10 the state belongs to another model
0 the state was freed
0 the state was freed
11 the state has memory for 3 rows; there would be 4 after the call
3 `bias` axis 3 is 4; 3 is expected (declared as P + S, whose value follows from the other dims)
1 `x` axis 1 gives S = 5; S is declared 1..=4
1 can't truncate the state to 3 rows: it has 2
1 can't truncate the state to 0.5 rows: it has 2
1 capacity of a state is 17; capacity is declared 1..=16 (rows that the state has memory for)
0 capacity of a state is 2.5, not an integer
1 N of a state is 4; N is declared 1..=3
0 a state has no size `length`; it has `capacity`, `N`
0 no memory for a state of … bytes: states have … bytes, of which others take …; free one of them, or choose a smaller capacity
10 the bytes are not a state of this model
10 the bytes are not a state of this model
0 a saved state is a Uint8Array
2 of 3, 2, true, 2
true 1 2 1 true
";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}
