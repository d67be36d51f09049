// The request on standard input and the answers on standard output, for the programs of this folder. All values are
// 64-bit integers, little-endian.
import { readFileSync, writeSync } from "node:fs";

const ARRAYS = {
  f32: Float32Array, f64: Float64Array, f16: Uint16Array, bf16: Uint16Array,
  i8: Int8Array, i16: Int16Array, i32: Int32Array, i64: BigInt64Array,
  u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, u64: BigUint64Array, bool: Uint8Array,
};

const request = readFileSync(0);
let at = 0;

/** The next number. */
export const number = () => Number(request.readBigInt64LE((at += 8) - 8));

/** The inputs of a call: for each, its rank, its sizes, its size in bytes, and its data. */
export function inputs(model) {
  const tensors = {};
  for (const { name, dtype } of model.inputs) {
    const shape = Array.from({ length: number() }, number);
    const bytes = number();
    const data = new Uint8Array(request.subarray(at, at + bytes)).buffer;
    at += bytes;
    tensors[name] = { data: new ARRAYS[dtype](data), shape };
  }
  return tensors;
}

/** Writes the bytes of an array. */
export function write(part) {
  const bytes = new Uint8Array(part.buffer, part.byteOffset, part.byteLength);
  for (let done = 0; done < bytes.length; ) done += writeSync(1, bytes, done);
}

/** Writes numbers. */
export const writeNumbers = (...numbers) => write(new BigInt64Array(numbers.map(BigInt)));
