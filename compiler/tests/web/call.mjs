// Calls a model with the call on standard input, as c/call.c does: node call.mjs MODULE.mjs
//
// All values are 64-bit integers, little-endian. Standard input has, for each input of the model, its rank, its sizes,
// its size in bytes, and its data; then, for each output, its size in bytes. Standard output has the code of the check,
// the size of the memory, the code of the call, and the data of the outputs. A refusal is printed to standard error.
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

const model = await load();
const inputs = {};
for (const { name, dtype } of model.inputs) {
  const shape = Array.from({ length: number() }, number);
  const bytes = number();
  const data = new Uint8Array(request.subarray(at, at + bytes)).buffer;
  at += bytes;
  inputs[name] = { data: new ARRAYS[dtype](data), shape };
}

const reply = (codes, outputs) => {
  const head = new BigInt64Array(codes.map(BigInt));
  for (const part of [head, ...outputs]) {
    const bytes = new Uint8Array(part.buffer, part.byteOffset, part.byteLength);
    for (let done = 0; done < bytes.length; ) done += writeSync(1, bytes, done);
  }
};

// The memory is shared by all calls, so the second one shows whether anything is left of the first.
const buffer = model.memoryBytes;
try {
  const first = model.run(inputs);
  const second = model.runViews(inputs);
  for (const { name } of model.outputs) {
    const bytes = ({ data }) => Buffer.from(data.buffer, data.byteOffset, data.byteLength);
    if (!bytes(first[name]).equals(bytes(second[name]))) throw new Error(`${name}: two calls differ`);
  }
  for (const { name } of model.outputs) {
    const expected = number();
    const got = first[name].data.byteLength;
    if (got !== expected) throw new Error(`${name} has ${got} bytes, not ${expected}`);
  }
  reply([0, buffer, 0], model.outputs.map(({ name }) => first[name].data));
} catch (error) {
  if (!(error instanceof ModelError) || error.code === 0) throw error;
  process.stderr.write(`${error.message}\n`);
  reply([error.code], []);
}
