// Measures one model in turns: ours, and onnxruntime-web of npm on one thread.
//
//   node measure.mjs MODULE.mjs MODEL.onnx INPUTS.json ROUNDS
//
// INPUTS.json has, for each input, its type, its shape and its elements. Prints one JSON object: the medians in
// milliseconds, and the largest difference as a share of the largest output.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import * as ort from "onnxruntime-web/wasm";

const [moduleFile, onnxFile, inputsFile, rounds] = process.argv.slice(2);
const { load } = await import(pathToFileURL(moduleFile));
const given = JSON.parse(readFileSync(inputsFile));

const ARRAYS = { f32: Float32Array, i32: Int32Array, i64: BigInt64Array, bool: Uint8Array };
const NAMES = { f32: "float32", i32: "int32", i64: "int64", bool: "bool" };
const inputs = {};
const feeds = {};
for (const [name, { dtype, shape, data }] of Object.entries(given)) {
  const elements = ARRAYS[dtype].from(dtype === "i64" ? data.map(BigInt) : data);
  inputs[name] = { data: elements, shape };
  feeds[name] = new ort.Tensor(NAMES[dtype], elements, shape);
}

ort.env.wasm.numThreads = 1;
const session = await ort.InferenceSession.create(readFileSync(onnxFile), { graphOptimizationLevel: "all" });
const model = await load();

const median = (times) => times.sort((a, b) => a - b)[Math.floor(times.length / 2)];
const timed = async (call) => {
  const start = performance.now();
  await call();
  return performance.now() - start;
};

let ours = model.run(inputs);
let theirs = await session.run(feeds);
let error = 0;
for (const [idx, name] of session.outputNames.entries()) {
  // Outputs are in the order of the model.
  const [got, expected] = [ours[model.outputs[idx].name].data, theirs[name].data];
  let [difference, largest] = [0, 1e-9];
  for (let i = 0; i < expected.length; i++) {
    difference = Math.max(difference, Math.abs(Number(got[i]) - Number(expected[i])));
    largest = Math.max(largest, Math.abs(Number(expected[i])));
  }
  error = Math.max(error, difference / largest);
}

const times = { ours: [], theirs: [] };
for (let round = -3; round < Number(rounds); round++) {
  const one = await timed(() => model.run(inputs));
  const other = await timed(() => session.run(feeds));
  if (round < 0) continue;
  times.ours.push(one);
  times.theirs.push(other);
}
console.log(JSON.stringify({ ours_ms: median(times.ours), theirs_ms: median(times.theirs), error }));
