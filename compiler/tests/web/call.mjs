// Calls a model with the call on standard input, as c/call.c does: node call.mjs MODULE.mjs
//
// All values are 64-bit integers, little-endian. Standard input has, for each input of the model, its rank, its sizes,
// its size in bytes, and its data; then, for each output, its size in bytes. Standard output has the code of the check,
// the size of the memory, the code of the call, and the data of the outputs. A refusal is printed to standard error.
import { pathToFileURL } from "node:url";
import { inputs, number, write, writeNumbers } from "./request.mjs";

const { load, ModelError } = await import(pathToFileURL(process.argv[2]));
const model = await load();
const tensors = inputs(model);

// The memory is shared by all calls, so the second one shows whether anything is left of the first.
const buffer = model.memoryBytes;
try {
  const first = model.run(tensors);
  const second = model.runViews(tensors);
  for (const { name } of model.outputs) {
    const bytes = ({ data }) => Buffer.from(data.buffer, data.byteOffset, data.byteLength);
    if (!bytes(first[name]).equals(bytes(second[name]))) throw new Error(`${name}: two calls differ`);
  }
  for (const { name } of model.outputs) {
    const expected = number();
    const got = first[name].data.byteLength;
    if (got !== expected) throw new Error(`${name} has ${got} bytes, not ${expected}`);
  }
  writeNumbers(0, buffer, 0);
  model.outputs.forEach(({ name }) => write(first[name].data));
} catch (error) {
  if (!(error instanceof ModelError) || error.code === 0) throw error;
  process.stderr.write(`${error.message}\n`);
  writeNumbers(error.code);
}
