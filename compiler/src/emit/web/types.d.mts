// Compiled by symshape {{version}}.

/** An array of elements and the sizes of its axes, dense and row-major. */
export interface Tensor<T> {
  readonly data: T;
  readonly shape: readonly number[];
}

/** A symbol of the contract: a size that each call chooses. */
export type SymbolName = {{symbols}};

/** The inputs of a call. */
export interface Inputs {
{{inputs}}}

/** The outputs of a call. */
export interface Outputs {
{{outputs}}}

export interface SymbolInfo {
  readonly name: SymbolName;
  /** The allowed values, such as `1..=64`. */
  readonly declared: string;
  /** The smallest and the largest allowed value; `max` is null if there is none. */
  readonly min: number;
  readonly max: number | null;
}

export interface TensorInfo<N> {
  readonly name: N;
  /** The type of the elements, such as `f32`. */
  readonly dtype: string;
  /** The dims as text, such as `N` or `2*S + 1`. */
  readonly shape: readonly string[];
  /** Upper bound of the bytes over all allowed sizes. */
  readonly maxBytes: number;
}

/** The error of a call that was refused or ended early. */
export class ModelError extends Error {
  /** The code of the C header, such as 1 for a size out of range; 0 if an argument is not a tensor of the model. */
  readonly code: number;
}

/** Where the files are. Relative URLs are resolved from this file. */
export interface LoadOptions {
  /** The module: its URL, its bytes, a response, or a compiled module. Default: the file next to this one. */
  wasm?: string | URL | Response | BufferSource | WebAssembly.Module;
  /** The weights file of a model that has one: its URL, its bytes or a response. Default: the file next to this one. */
  weights?: string | URL | Response | BufferSource;
  /** Called while the weights file loads, with the bytes so far and those of all weights. */
  onProgress?: (loaded: number, total: number) => void;
}

{{state_types}}export class Model {
  readonly name: string;
  readonly symbols: readonly SymbolInfo[];
  readonly inputs: readonly TensorInfo<keyof Inputs>[];
  readonly outputs: readonly TensorInfo<keyof Outputs>[];
  /** Bytes of the module's memory. It never grows. */
  readonly memoryBytes: number;

  /** Memory of the module for an input of this shape. A call that gets it copies nothing. */
  input<N extends keyof Inputs>(name: N, shape: readonly number[]): Inputs[N];

  /** Runs the model. The outputs belong to the caller. Throws a `ModelError` if the sizes break the contract. */
  run(inputs: Inputs{{state_parameter}}): Outputs;

  /** As `run`; the outputs are in the module's memory until the next call. */
  runViews(inputs: Inputs{{state_parameter}}): Outputs;
{{state_members}}}

/** Loads the module. */
export function load(options?: LoadOptions): Promise<Model>;
