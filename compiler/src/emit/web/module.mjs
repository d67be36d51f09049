// Compiled by symshape {{version}}. This module is the same for all models: the contract is in the WebAssembly file.

const WASM = "{{wasm}}";

/** The section of the WebAssembly file with the contract. */
const SECTION = "symshape";

const NO_INDEX = 0xffffffff;

/** Codes of errors. */
const OUT_OF_RANGE = 1;
const WRONG_STATE = 10;
const STATE_FULL = 11;

/** The name of the state in errors. */
const STATE = "the state";

/** States begin at multiples of this. */
const ALIGN = 64;

/** The bytes before the sizes in the header of a state. */
const STATE_WORDS = 32;

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
    const target = new Uint8Array(instance.exports.memory.buffer, address, bytes);
    await readInto(target, options.weights ?? new URL(encodeURIComponent(file), base), options.onProgress);
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

/** Copies the beginning of a file to `target`, and reports how much is there. */
async function readInto(target, source, onProgress) {
  let loaded = 0;
  for await (const chunk of chunksOf(await fetched(source))) {
    const part = chunk.subarray(0, target.length - loaded);
    target.set(part, loaded);
    loaded += part.length;
    onProgress?.(loaded, target.length);
  }
  if (loaded < target.length) {
    throw new ModelError(`the weights file has ${loaded} bytes; calls read ${target.length}`);
  }
}

/** The parts of a response as they arrive; all other sources are one part. */
async function* chunksOf(source) {
  if (!(source instanceof Response) || source.body === null) {
    yield await bytesOf(source);
    return;
  }
  const reader = source.body.getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) yield part.value;
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

/** The address of a state, for its model. */
let addressOf;

/** The state of consecutive calls of a model. Its memory is a part of that of the module. */
export class State {
  #model;
  #address;
  #view;
  #contract;
  #functions;

  constructor(model, contract, view, address, functions) {
    this.#model = model;
    this.#contract = contract;
    this.#view = view;
    this.#address = address;
    this.#functions = functions;
  }

  static {
    addressOf = (state, model) => {
      if (!(state instanceof State)) {
        throw new ModelError("the model keeps a state: pass `model.newState()` as the second argument");
      }
      if (state.#model !== model) throw new ModelError("the state belongs to another model", WRONG_STATE);
      return state.#live();
    };
  }

  /** Rows before the next call. */
  get length() { return this.#contract.hasRows ? this.#word(1) : 0; }

  /** Rows that there is memory for. */
  get capacity() { return this.#contract.hasRows ? this.#word(0) : 0; }

  /** Bytes of its memory. */
  get bytes() { return Number(this.#view.getBigUint64(this.#live() + 16, true)); }

  /** Forgets everything: no rows, and zeros in overwritten tensors. */
  reset() { this.#functions.reset(this.#live()); }

  /** Forgets the rows after the first `length` ones. */
  truncate(length) {
    if (this.#contract.tensors.some(({ isAppended }) => !isAppended)) {
      throw new ModelError("can't truncate the state: calls overwrite some of its tensors; use `reset`");
    }
    const own = this.length;
    if (!Number.isSafeInteger(length) || length < 0 || length > own) {
      throw new ModelError(`can't truncate the state to ${length} rows: it has ${own}`, OUT_OF_RANGE);
    }
    this.#view.setBigInt64(this.#live() + STATE_WORDS + 8, BigInt(length), true);
  }

  /** A copy of its memory, for `loadState`. */
  save() { return new Uint8Array(this.#view.buffer, this.#live(), this.bytes).slice(); }

  /** Gives its memory back to the model. */
  free() {
    this.#functions.free(this.#live());
    this.#address = null;
  }

  #word(idx) { return Number(this.#view.getBigInt64(this.#live() + STATE_WORDS + 8 * idx, true)); }

  #live() {
    if (this.#address === null) throw new ModelError("the state was freed");
    return this.#address;
  }
}

/** A loaded model. Its memory has a fixed size, and calls allocate nothing in it. */
export class Model {
  #contract;
  #exports;
  #buffer;
  #view;
  /** The address and the bytes of each state, in the order of their addresses. */
  #blocks = [];

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
    if (contract.state !== null) {
      this.state = Object.freeze(contract.state.tensors.map((tensor) => Object.freeze(tensor)));
      this.stateBytes = contract.state.maxBytes;
    }
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
  run(inputs, state) {
    const outputs = this.runViews(inputs, state);
    for (const name of Object.keys(outputs)) outputs[name].data = outputs[name].data.slice();
    return outputs;
  }

  /** As `run`; the outputs are in the module's memory until the next call. */
  runViews(inputs, state) {
    const { memory, name: prefix, inputs: ports, state: kept } = this.#contract;
    this.#checkNames(inputs);
    if (kept === null && state !== undefined) throw new ModelError("the model keeps no state: call it with its inputs alone");
    const block = kept === null ? null : addressOf(state, this);
    let at = memory.shapes;
    for (const port of ports) {
      const { shape } = inputs[port.name];
      checkShape(port, shape);
      for (const size of shape) {
        this.#view.setBigInt64(at, BigInt(size), true);
        at += 8;
      }
    }
    if (block !== null) {
      // The words of the state are the shape of one more input.
      this.#view.setUint32(memory.shapeTable + 4 * ports.length, block + STATE_WORDS, true);
      this.#view.setUint32(kept.table, block, true);
    }
    const refused = this.#exports[`${prefix}_check`](memory.shapeTable, memory.dims, memory.error);
    if (refused !== 0) throw this.#violation(refused);

    for (const port of ports) this.#fill(port, inputs[port.name]);
    const tables = [memory.inputTable, memory.outputTable];
    const rest = [memory.dims, memory.arena, memory.exec];
    const failed = block === null
      ? this.#exports[`${prefix}_run`](...tables, ...rest)
      : this.#exports[`${prefix}_run_stateful`](...tables, kept.table, 1, ...rest);
    if (failed !== 0) throw this.#violation(failed);
    return this.#results();
  }

  /** An empty state. */
  newState(sizes = {}) {
    const { memory, name: prefix, state, symbols } = this.#contract;
    if (state === null) throw new ModelError("the model keeps no state: compile it with --stateful");
    const all = state.words.map((symbol) => ({ symbol, ...symbols[symbol] }));
    const words = all.filter((_, idx) => !(state.hasRows && idx === 1));
    for (const name of Object.keys(sizes)) {
      if (words.some((word) => word.name === name)) continue;
      const names = words.map((word) => `\`${word.name}\``);
      throw new ModelError(`a state has no size \`${name}\`; it has ${names.length === 0 ? "none" : names.join(", ")}`);
    }
    for (const word of all) {
      const isCapacity = state.hasRows && word === all[0];
      // Calls of one row fill a state of this capacity.
      const usual = isCapacity ? Math.min(word.max, all[1].max + 1) : Math.max(word.min, 1);
      const value = words.includes(word) ? sizes[word.name] ?? usual : 0;
      if (!Number.isSafeInteger(value)) throw new ModelError(`${word.name} of a state is ${value}, not an integer`);
      if (words.includes(word) && (value < word.min || value > word.max)) {
        throw new ModelError(`${word.name} of a state is ${value}; ${word.name} is declared ${word.declared}`, OUT_OF_RANGE);
      }
      this.#view.setBigInt64(memory.dims + 8 * word.symbol, BigInt(value), true);
    }
    const bytes = this.#exports[`${prefix}_state_bytes`](memory.dims) >>> 0;
    const address = this.#allocate(bytes);
    this.#exports[`${prefix}_web_state_init`](address, memory.dims);
    return this.#stateAt(address);
  }

  /** A state with the bytes that `save` returned. */
  loadState(bytes) {
    const { name: prefix, state } = this.#contract;
    if (state === null) throw new ModelError("the model keeps no state: compile it with --stateful");
    if (!(bytes instanceof Uint8Array)) throw new ModelError("a saved state is a Uint8Array");
    const address = this.#allocate(Math.ceil(bytes.length / ALIGN) * ALIGN);
    new Uint8Array(this.#buffer, address, bytes.length).set(bytes);
    if (!this.#exports[`${prefix}_web_state_is_valid`](address, bytes.length)) {
      this.#free(address);
      throw new ModelError("the bytes are not a state of this model", WRONG_STATE);
    }
    return this.#stateAt(address);
  }

  #stateAt(address) {
    const { name: prefix, state } = this.#contract;
    const functions = { reset: this.#exports[`${prefix}_web_state_reset`], free: (own) => this.#free(own) };
    return new State(this, state, this.#view, address, functions);
  }

  #free(address) {
    this.#blocks = this.#blocks.filter((block) => block.address !== address);
  }

  /** The address of free memory for a state, whose bytes are a multiple of its alignment. */
  #allocate(bytes) {
    const { address: begin, maxBytes } = this.#contract.state;
    let at = begin;
    let idx = 0;
    while (idx < this.#blocks.length && this.#blocks[idx].address - at < bytes) {
      at = this.#blocks[idx].address + this.#blocks[idx].bytes;
      idx += 1;
    }
    if (at + bytes > begin + maxBytes) {
      const taken = this.#blocks.reduce((sum, block) => sum + block.bytes, 0);
      throw new ModelError(
        `no memory for a state of ${bytes} bytes: states have ${maxBytes} bytes, of which others take ${taken}; ` +
          "free one of them, or choose a smaller capacity",
      );
    }
    this.#blocks.splice(idx, 0, { address: at, bytes });
    return at;
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
      where = tensor.includes("`") || tensor === STATE ? `${tensor} ` : `\`${tensor}\` `;
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
        case WRONG_STATE: return `does not fit the call: ${why}`;
        case STATE_FULL: return `has memory for ${hi} rows; there would be ${value} after the call`;
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
