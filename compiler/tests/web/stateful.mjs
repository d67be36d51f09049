// Runs consecutive calls of a model with one state, as c/stateful.c does: node stateful.mjs MODULE.mjs
//
// All values are 64-bit integers, little-endian. Standard input has the dims of the state, then commands until 0: 1 is a
// call, with the rank, the sizes, the bytes and the data of each input, and the bytes of each output; 2 is a reset; 3 is a
// truncation, and the length. For each command, standard output has its code, the outputs of a call that succeeded, the
// bytes of the state, and its content.
import { readFileSync, writeSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { load, ModelError } = await import(pathToFileURL(process.argv[2]));
const ARRAYS = {
  f32: Float32Array, f64: Float64Array, f16: Uint16Array, bf16: Uint16Array,
  i8: Int8Array, i16: Int16Array, i32: Int32Array, i64: BigInt64Array,
  u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, u64: BigUint64Array, bool: Uint8Array,
};

const request = readFileSync(0);
let at = 0;
const number = () => Number(request.readBigInt64LE((at += 8) - 8));

function write(part) {
  const bytes = new Uint8Array(part.buffer, part.byteOffset, part.byteLength);
  for (let done = 0; done < bytes.length; ) done += writeSync(1, bytes, done);
}

const model = await load();
// The script gives only the sizes of the state; all other dims are 0.
const sizes = Object.fromEntries(model.symbols.map(({ name }) => [name, number()]).filter(([, value]) => value !== 0));
let state = model.newState(sizes);

function call() {
  const inputs = {};
  for (const { name, dtype } of model.inputs) {
    const shape = Array.from({ length: number() }, number);
    const bytes = number();
    inputs[name] = { data: new ARRAYS[dtype](new Uint8Array(request.subarray(at, at + bytes)).buffer), shape };
    at += bytes;
  }
  const expected = model.outputs.map(number);
  const outputs = model.run(inputs, state);
  return model.outputs.map(({ name }, idx) => {
    const { data } = outputs[name];
    if (data.byteLength !== expected[idx]) throw new Error(`${name} has ${data.byteLength} bytes, not ${expected[idx]}`);
    return data;
  });
}

for (let command = number(), count = 0; command !== 0; command = number(), count++) {
  let code = 0;
  let outputs = [];
  try {
    if (command === 1) outputs = call();
    if (command === 2) state.reset();
    if (command === 3) state.truncate(number());
  } catch (error) {
    if (!(error instanceof ModelError) || error.code === 0) throw error;
    code = error.code;
  }
  write(new BigInt64Array([BigInt(code)]));
  outputs.forEach(write);
  const block = state.save();
  if (block.length !== state.bytes) throw new Error(`the state has ${state.bytes} bytes, its copy ${block.length}`);
  write(new BigInt64Array([BigInt(block.length)]));
  write(block);
  // A saved state continues as the one that it was saved from.
  if (count % 2 === 1) {
    state.free();
    state = model.loadState(block);
  }
}
