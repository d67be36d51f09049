#!/usr/bin/env python3
"""Embeddings of texts of different lengths, from Parquet to Parquet, with Ray Data.

    python examples/ray/embed.py texts results --model encoder.onnx

A row has an `id` and `tokens`, the tokens of one text. The model is an encoder with the inputs of exports by `optimum`:
`input_ids` and `attention_mask` of `[N, S]`, and zeros for `token_type_ids` if it has them. Its first output is
`[N, S, channels]`; the embedding of a text is the mean over its tokens.

A block of texts is one call of a ragged batch: no text is padded, and each has the bits that it has alone.
"""

import functools
from pathlib import Path

import batches
import numpy as np
from node_file import local

MAX_TEXTS = 32
MAX_TOKENS = 512
TOKENS, MASK = "input_ids", "attention_mask"
# Inputs that are zero for each token of a text.
ZEROS = ("token_type_ids",)


class Symshape:
    """An actor that runs blocks of up to MAX_TEXTS texts without padding."""

    def __init__(self, published):
        import symshape

        self.model = symshape.load(str(local(published)))
        offsets = self.model.contract.ragged.offsets
        self.inputs = [port.name for port in self.model.contract.inputs if port.name != offsets]
        check_inputs(self.inputs)

    def __call__(self, block):
        lengths = [len(tokens) for tokens in block["tokens"]]
        ids = np.concatenate(list(block["tokens"])).astype(np.int64, copy=False)
        inputs = {name: ids if name == TOKENS else np.zeros_like(ids) for name in self.inputs}
        hidden = next(iter(self.model.run(inputs, lengths=lengths).values()))
        return embeddings(block, hidden, lengths)


class OnnxRuntime:
    """The same with ONNX Runtime, for comparison. Each block is padded to its longest text."""

    def __init__(self, published):
        self.session = batches.onnxruntime_session(published)
        check_inputs(port.name for port in self.session.get_inputs())

    def __call__(self, block):
        lengths = [len(tokens) for tokens in block["tokens"]]
        shape = (len(lengths), max(lengths))
        mask = (np.arange(shape[1]) < np.array(lengths)[:, None]).astype(np.int64)
        ids = np.zeros(shape, np.int64)
        ids[mask == 1] = np.concatenate(list(block["tokens"]))
        given = {TOKENS: ids, MASK: mask}
        names = [port.name for port in self.session.get_inputs()]
        hidden = self.session.run(None, {name: given.get(name, np.zeros_like(ids)) for name in names})[0]
        return embeddings(block, hidden[mask == 1], lengths)


def check_inputs(names):
    """Refuses a model with inputs that this program has no values for."""
    unknown = [name for name in names if name not in (TOKENS, MASK, *ZEROS)]
    if unknown:
        known = ", ".join((TOKENS, MASK, *ZEROS))
        raise ValueError(f"the model has the inputs {', '.join(unknown)}; this program gives {known}")


def embeddings(block, hidden, lengths):
    """The means of the rows of each text, with its id."""
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    sums = np.add.reduceat(hidden, starts, axis=0)
    return {"id": block["id"], "embedding": sums / np.array(lengths, np.float32)[:, None]}


def pipeline(data, actor, published, actors):
    """A data set of embeddings. Each actor keeps one core."""
    # Ray reads small files into one block, which is the task of one actor. Texts are small, but take long.
    blocks = data.repartition(target_num_rows_per_block=4 * MAX_TEXTS)
    return batches.pipeline(blocks, actor, published, actors, rows=MAX_TEXTS)


def write_example(path, n_texts, vocabulary, n_files=8):
    """A Parquet data set of random texts. Their lengths are log-normal, with a median of 60 tokens."""
    import pyarrow
    import pyarrow.parquet

    Path(path).mkdir(parents=True)
    random = np.random.default_rng(1)
    for idx, ids in enumerate(np.array_split(np.arange(n_texts), n_files)):
        lengths = np.clip(random.lognormal(np.log(60), 0.8, len(ids)), 1, MAX_TOKENS).astype(int)
        tokens = [random.integers(1, vocabulary, length) for length in lengths]
        pyarrow.parquet.write_table(pyarrow.table({"id": ids, "tokens": tokens}), Path(path) / f"{idx}.parquet")


def compile_model(model, path, batch="N", length="S"):
    import symshape

    dims = {batch: (1, MAX_TEXTS), length: (1, MAX_TOKENS)}
    symshape.compile(str(model), dims, ragged=length).save(str(path))


def main():
    parser = batches.parser(__doc__.splitlines()[0], "texts")
    parser.add_argument("--batch", default="N", help="the symbol of the first axis of the model's inputs")
    parser.add_argument("--length", default="S", help="the symbol of their second axis")
    parser.add_argument("--vocabulary", type=int, default=30_000, help="the number of tokens that texts are made of")
    arguments = parser.parse_args()

    if arguments.example:
        write_example(arguments.data, arguments.example, arguments.vocabulary)
    if arguments.onnxruntime:
        batches.run(arguments, "texts", pipeline, OnnxRuntime)
    else:
        compiler = functools.partial(compile_model, batch=arguments.batch, length=arguments.length)
        batches.run(arguments, "texts", pipeline, Symshape, compiler)


if __name__ == "__main__":
    main()
