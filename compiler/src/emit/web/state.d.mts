/** The sizes of a state. Default: a capacity of one row more than the largest length, and the smallest other sizes. */
export interface StateSizes {
{{sizes}}}

/** A pair of an input and an output that is state. */
export interface StateInfo {
  readonly input: string;
  readonly output: string;
  /** The type of the elements, such as `f32`. */
  readonly dtype: string;
  /** The dims in memory as text, such as `N` or `capacity`. */
  readonly shape: readonly string[];
  /** Whether calls append rows. They overwrite the tensor otherwise. */
  readonly isAppended: boolean;
}

/** The state of consecutive calls: rows of one sequence, or of a batch of sequences of one length. */
export class State {
  /** Rows before the next call. */
  readonly length: number;
  /** Rows that there is memory for. */
  readonly capacity: number;
  /** Bytes of its memory. */
  readonly bytes: number;
  /** Forgets everything: no rows, and zeros in overwritten tensors. */
  reset(): void;
  /** Forgets the rows after the first `length` ones. Throws if calls overwrite a tensor. */
  truncate(length: number): void;
  /** A copy of its memory, for `loadState`. */
  save(): Uint8Array;
  /** Gives its memory back to the model. The state can't be used any more. */
  free(): void;
}

