// Compiled by symshape {{version}}. This module is the same for all models: the contract is in the WebAssembly file.

const WASM = "{{wasm}}";

/** The section of the WebAssembly file with the contract. */
const SECTION = "symshape";

const NO_INDEX = 0xffffffff;

/** The typed array with the elements of a type. Halves are their bits. */
const ARRAYS = {
  f32: Float32Array, f64: Float64Array, f16: Uint16Array, bf16: Uint16Array,
  i8: Int8Array, i16: Int16Array, i32: Int32Array, i64: BigInt64Array,
  u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, u64: BigUint64Array, bool: Uint8Array,
};

/** The error of a call that was refused or ended early. */
export class ModelError extends Error {
  constructor(message, code = 0) {
    super(message);
    this.name = "ModelError";
    this.code = code;
  }
}

/** Loads the module, and the weights if they are in a separate file. */
export async function load(options = {}) {
  const base = import.meta.url;
  const source = options.wasm ?? new URL(encodeURIComponent(WASM), base);
  const module = source instanceof WebAssembly.Module ? source : await compile(source);
  const [section] = WebAssembly.Module.customSections(module, SECTION);
  if (section === undefined) throw new ModelError("the WebAssembly file is not a model of symshape");
  const contract = JSON.parse(new TextDecoder().decode(section));

  const instance = await WebAssembly.instantiate(module);
  const { file, address, bytes } = contract.weights;
  if (file !== null) {
    const weights = await read(options.weights ?? new URL(encodeURIComponent(file), base));
    if (weights.length < bytes) {
      throw new ModelError(`the weights file has ${weights.length} bytes; calls read ${bytes}`);
    }
    new Uint8Array(instance.exports.memory.buffer, address, bytes).set(weights.subarray(0, bytes));
  }
  return new Model(instance, contract);
}

/** A compiled module from a URL, a response or bytes. */
async function compile(source) {
  try {
    const response = await fetched(source);
    const isStream = response instanceof Response && response.headers.get("content-type") === "application/wasm";
    return isStream ? await WebAssembly.compileStreaming(response) : await WebAssembly.compile(await bytesOf(response));
  } catch (error) {
    if (!(error instanceof WebAssembly.CompileError)) throw error;
    throw new ModelError(`the WebAssembly file is damaged, or this engine has no vectors (simd128): ${error.message}`);
  }
}

async function read(source) {
  return bytesOf(await fetched(source));
}

/** The response to a request for a URL; all other sources are returned unchanged. */
async function fetched(source) {
  if (typeof source !== "string" && !(source instanceof URL)) return source;
  const url = new URL(source, import.meta.url);
  if (url.protocol === "file:" && typeof process === "object") {
    // Only Node opens files, and bundlers for browsers don't have this module.
    const { readFile } = await import(/* webpackIgnore: true */ /* @vite-ignore */ "node:fs/promises");
    return readFile(url);
  }
  const response = await fetch(url);
  if (!response.ok) throw new ModelError(`${url}: ${response.status} ${response.statusText}`);
  return response;
}

async function bytesOf(source) {
  if (source instanceof Response) return new Uint8Array(await source.arrayBuffer());
  return ArrayBuffer.isView(source)
    ? new Uint8Array(source.buffer, source.byteOffset, source.byteLength)
    : new Uint8Array(source);
}

/** A loaded model. Its memory has a fixed size, and calls allocate nothing in it. */
export class Model {
  #contract;
  #exports;
  #buffer;
  #view;

  constructor(instance, contract) {
    this.#contract = contract;
    this.#exports = instance.exports;
    this.#buffer = instance.exports.memory.buffer;
    this.#view = new DataView(this.#buffer);
    const describe = ({ name, dtype, shape, maxBytes }) => Object.freeze({ name, dtype, shape: Object.freeze(shape), maxBytes });
    this.name = contract.name;
    this.symbols = Object.freeze(contract.symbols.map((symbol) => Object.freeze(symbol)));
    this.inputs = Object.freeze(contract.inputs.map(describe));
    this.outputs = Object.freeze(contract.outputs.map(describe));
    this.memoryBytes = this.#buffer.byteLength;
    this.#writeTables();
  }

  /** Memory of the module for an input of this shape. A call that gets it copies nothing. */
  input(name, shape) {
    const port = this.#contract.inputs.find((port) => port.name === name);
    if (port === undefined) throw new ModelError(`the model has no input \`${name}\`; it has ${this.#inputNames()}`);
    checkShape(port, shape);
    return { data: this.#array(port, elements(shape)), shape: [...shape] };
  }

  /** Runs the model; the outputs belong to the caller. */
  run(inputs) {
    const outputs = this.runViews(inputs);
    for (const name of Object.keys(outputs)) outputs[name].data = outputs[name].data.slice();
    return outputs;
  }

  /** As `run`; the outputs are in the module's memory until the next call. */
  runViews(inputs) {
    const { memory, name: prefix, inputs: ports } = this.#contract;
    this.#checkNames(inputs);
    let at = memory.shapes;
    for (const port of ports) {
      const { shape } = inputs[port.name];
      checkShape(port, shape);
      for (const size of shape) {
        this.#view.setBigInt64(at, BigInt(size), true);
        at += 8;
      }
    }
    const refused = this.#exports[`${prefix}_check`](memory.shapeTable, memory.dims, memory.error);
    if (refused !== 0) throw this.#violation(refused);

    for (const port of ports) this.#fill(port, inputs[port.name]);
    const failed = this.#exports[`${prefix}_run`](
      memory.inputTable, memory.outputTable, memory.dims, memory.arena, memory.exec,
    );
    if (failed !== 0) throw this.#violation(failed);
    return this.#results();
  }

  /** The outputs of the last call. */
  #results() {
    const { memory, name: prefix, outputs } = this.#contract;
    const results = {};
    outputs.forEach((port, idx) => {
      this.#exports[`${prefix}_output_shape`](idx, memory.dims, memory.outputShape);
      const shape = port.shape.map((_, axis) => Number(this.#view.getBigInt64(memory.outputShape + 8 * axis, true)));
      results[port.name] = { data: this.#array(port, elements(shape)), shape };
    });
    return results;
  }

  /** Writes the data that all calls share: addresses, and the number of threads. */
  #writeTables() {
    const { memory, weights, inputs, outputs } = this.#contract;
    const word = (address, value) => this.#view.setUint32(address, value, true);
    let shapes = memory.shapes;
    inputs.forEach(({ shape, address }, idx) => {
      word(memory.shapeTable + 4 * idx, shapes);
      word(memory.inputTable + 4 * idx, address);
      shapes += 8 * shape.length;
    });
    word(memory.inputTable + 4 * inputs.length, weights.address);
    outputs.forEach(({ address }, idx) => word(memory.outputTable + 4 * idx, address));
    // One thread, and where the error of a call goes; the other members of `symshape_exec` are zero.
    word(memory.exec + 4, 1);
    word(memory.exec + 16, memory.error);
  }

  #array({ dtype, address, maxBytes, name }, count) {
    const Elements = ARRAYS[dtype];
    if (count * Elements.BYTES_PER_ELEMENT > maxBytes) {
      throw new ModelError(`\`${name}\` has memory for ${maxBytes} bytes; got ${count} elements`);
    }
    return new Elements(this.#buffer, address, count);
  }

  /** Copies the elements of an input to its memory, unless they are there. */
  #fill(port, { data, shape }) {
    const target = this.#array(port, elements(shape));
    if (!(data instanceof ARRAYS[port.dtype])) {
      const got = Object.entries(ARRAYS).find(([, Elements]) => data instanceof Elements);
      const type = got?.[0] ?? data?.constructor?.name ?? typeof data;
      throw new ModelError(`\`${port.name}\` has elements of type ${port.dtype}; got ${type}`);
    }
    if (data.length !== target.length) {
      throw new ModelError(`\`${port.name}\`: the shape needs ${target.byteLength} bytes; the memory has ${data.byteLength}`);
    }
    if (data.buffer !== this.#buffer || data.byteOffset !== target.byteOffset) target.set(data);
  }

  #checkNames(inputs) {
    const ports = this.#contract.inputs;
    for (const { name } of ports) {
      const input = inputs?.[name] ?? null;
      if (input === null) throw new ModelError(`input \`${name}\` is missing; the model has ${this.#inputNames()}`);
    }
    for (const name of Object.keys(inputs ?? {})) {
      if (!ports.some((port) => port.name === name)) {
        throw new ModelError(`the model has no input \`${name}\`; it has ${this.#inputNames()}`);
      }
    }
  }

  #inputNames() {
    const names = this.#contract.inputs.map(({ name }) => `\`${name}\``);
    return names.length === 0 ? "none" : names.join(", ");
  }

  /** The error that the module reports, in the words of all runtimes of symshape. */
  #violation(code) {
    const { memory, symbols, inputs } = this.#contract;
    const view = this.#view;
    const word = (offset) => view.getUint32(memory.error + offset, true);
    const number = (offset) => view.getBigInt64(memory.error + offset, true);
    const tensorIndex = word(4);
    const axis = word(8);
    const [value, lo, hi] = [number(16), number(24), number(32)];
    const declared = symbols[word(12)];
    const symbolName = this.#text(word(40));
    const tensor = this.#text(word(44)) ?? inputs[tensorIndex]?.name;
    const why = this.#text(word(48));

    const symbol = symbolName ?? declared?.name ?? "the dim";
    let where = "";
    if (tensor !== undefined) {
      // The place of an error inside the model contains a quoted name.
      where = tensor.includes("`") ? `${tensor} ` : `\`${tensor}\` `;
      if (tensorIndex !== NO_INDEX && axis !== NO_INDEX) where += `axis ${axis} `;
    }
    const because = why === undefined ? "" : ` (${why})`;
    const text = () => {
      switch (code) {
        case 1:
        case 2:
          if (why !== undefined) return `gives ${symbol} = ${value}; ${why}`;
          return `gives ${symbol} = ${value}; ${symbol} is ${declared ? `declared ${declared.declared}` : `to be ${lo}..=${hi}`}`;
        case 3: return `is ${value}; ${lo} is expected${because}`;
        case 4: return `the sizes break ${symbol}${because}`;
        case 5: {
          const what = symbolName === undefined ? `has the index ${value}` : `gives ${symbol} = ${value}`;
          return `${what}, outside ${lo}..=${hi}${because}`;
        }
        case 6: return `can't be computed at these sizes${because}`;
        default: return `failed with code ${code}${because}`;
      }
    };
    return new ModelError(where + text(), code);
  }

  /** A string of the module, or `undefined` for the address 0. */
  #text(address) {
    if (address === 0) return undefined;
    const bytes = new Uint8Array(this.#buffer, address);
    return new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0)));
  }
}

function elements(shape) {
  return shape.reduce((count, size) => count * size, 1);
}

/** Refuses shapes with a wrong number of axes, and sizes that are negative, fractional or too large for a number. */
function checkShape({ name, shape: expected }, shape) {
  const isList = Array.isArray(shape) || ArrayBuffer.isView(shape);
  if (!isList) throw new ModelError(`\`${name}\` has no shape: an input is an object { data, shape }`);
  if (shape.length !== expected.length) {
    throw new ModelError(`\`${name}\` has ${expected.length} axes; got ${shape.length}`);
  }
  for (const [axis, size] of [...shape].entries()) {
    if (!Number.isSafeInteger(size) || size < 0) {
      throw new ModelError(`\`${name}\` axis ${axis} is ${size}; a size is an integer from 0 to ${Number.MAX_SAFE_INTEGER}`);
    }
  }
}
