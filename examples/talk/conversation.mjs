// A conversation with a language model: prompts become tokens, calls extend the state, and tokens become text.

/** The model's symbol of new tokens in a call, and the most of them. */
function chunkSize(model) {
  const [, steps] = model.inputs.find(({ name }) => name === "input_ids").shape;
  return model.symbols.find(({ name }) => name === steps).max;
}

/** The index of the largest element. */
function largest(values) {
  let best = 0;
  for (let idx = 1; idx < values.length; idx++) if (values[idx] > values[best]) best = idx;
  return best;
}

export class Conversation {
  #model;
  #tokenizer;
  #settings;
  #state;
  #ends;
  /** Tokens that the next call reads first: the last one of an answer that was cut off. */
  #unread = [];

  /** `settings` has the texts around the turns of a conversation, and those that end an answer. */
  constructor(model, tokenizer, settings) {
    this.#model = model;
    this.#tokenizer = tokenizer;
    this.#settings = settings;
    this.#state = model.newState();
    this.#ends = new Set(settings.end.map((text) => tokenizer.token_to_id(text)));
  }

  /** Tokens so far, and the most that fit. */
  get length() { return this.#state.length; }
  get capacity() { return this.#state.capacity; }

  /** Begins a new conversation. */
  reset() {
    this.#state.reset();
    this.#unread = [];
  }

  /**
   * The answer to a message: yields the text so far after each token, and whether more follows. It ends after
   * `maxTokens` tokens, at an end of the model's, or where the state is full.
   */
  *answer(message, maxTokens) {
    const { start, before, after, next } = this.#settings;
    const head = this.#state.length === 0 ? start : next;
    const ids = this.#tokenizer.encode(head + before + message + after, { add_special_tokens: false }).ids;
    const prompt = [...this.#unread, ...ids];
    if (this.#state.length + prompt.length > this.capacity) {
      throw new Error(`the conversation has ${this.length} tokens, the message ${ids.length}, and ${this.capacity} fit`);
    }

    const own = [];
    let token = this.#read(prompt);
    this.#unread = [];
    while (own.length < maxTokens && !this.#ends.has(token)) {
      own.push(token);
      this.#unread = [token];
      yield { text: this.#text(own), tokens: own.length };
      if (own.length === maxTokens || this.#state.length === this.capacity) return;
      token = this.#read([token]);
      this.#unread = [];
    }
  }

  /** The text of tokens, without a character at the end whose bytes are not complete. */
  #text(ids) {
    return this.#tokenizer.decode(ids, { skip_special_tokens: true }).replace(/\ufffd+$/, "");
  }

  /** Extends the state by tokens; returns the most probable next one. */
  #read(ids) {
    const most = chunkSize(this.#model);
    let token = 0;
    for (let at = 0; at < ids.length; at += most) token = this.#step(ids.slice(at, at + most));
    return token;
  }

  #step(ids) {
    const past = this.#state.length;
    const inputs = {};
    for (const { name } of this.#model.inputs) {
      const count = name === "attention_mask" ? past + ids.length : ids.length;
      const input = this.#model.input(name, [1, count]);
      const element = { input_ids: (idx) => ids[idx], attention_mask: () => 1, position_ids: (idx) => past + idx }[name];
      for (let idx = 0; idx < count; idx++) input.data[idx] = BigInt(element(idx));
      inputs[name] = input;
    }
    const { data, shape } = this.#model.runViews(inputs, this.#state).logits;
    const vocabulary = shape.at(-1);
    return largest(data.subarray(data.length - vocabulary));
  }
}
