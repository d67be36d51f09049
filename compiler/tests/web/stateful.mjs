// Runs consecutive calls of a model with one state, as c/stateful.c does: node stateful.mjs MODULE.mjs
//
// All values are 64-bit integers, little-endian. Standard input has the dims of the state, then commands until 0: 1 is a
// call, with the rank, the sizes, the bytes and the data of each input, and the bytes of each output; 2 is a reset; 3 is a
// truncation, and the length. For each command, standard output has its code, the outputs of a call that succeeded, the
// bytes of the state, and its content.
import { pathToFileURL } from "node:url";
import { inputs, number, write, writeNumbers } from "./request.mjs";

const { load, ModelError } = await import(pathToFileURL(process.argv[2]));
const model = await load();
// The script gives only the sizes of the state; all other dims are 0.
const sizes = Object.fromEntries(model.symbols.map(({ name }) => [name, number()]).filter(([, value]) => value !== 0));
let state = model.newState(sizes);

function call() {
  const tensors = inputs(model);
  const expected = model.outputs.map(number);
  const outputs = model.run(tensors, state);
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
  writeNumbers(code);
  outputs.forEach(write);
  const block = state.save();
  if (block.length !== state.bytes) throw new Error(`the state has ${state.bytes} bytes, its copy ${block.length}`);
  writeNumbers(block.length);
  write(block);
  // A saved state continues as the one that it was saved from.
  if (count % 2 === 1) {
    state.free();
    state = model.loadState(block);
  }
}
