
  /** The tensors of a state. */
  readonly state: readonly StateInfo[];
  /** Bytes of the memory for states: enough for one of the largest sizes, or for several smaller ones. */
  readonly stateBytes: number;

  /** An empty state. Throws a `ModelError` if a size is not allowed, or if the memory for states is full. */
  newState(sizes?: StateSizes): State;

  /** A state with the bytes that `save` returned. Throws a `ModelError` if they are not a state of this model. */
  loadState(bytes: Uint8Array): State;
