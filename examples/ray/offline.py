#!/usr/bin/env python3
"""Offline inference over a Parquet data set with Ray Data.

    python examples/ray/offline.py rows.parquet results --model compiler/examples/block.onnx

A row has an `id` and `x`, the flat elements of one row of the model's input. The model is compiled once, for every size
of a block; each node maps one file of it. The rows of a node that dies run again elsewhere.
"""

import functools
from pathlib import Path

import batches
import numpy as np
from node_file import local

LENGTH, CHANNELS = 32, 64
MAX_ROWS = 256


class Symshape:
    """An actor that runs blocks of up to MAX_ROWS rows."""

    def __init__(self, published):
        import symshape

        self.model = symshape.load(str(local(published)))

    def __call__(self, block):
        return results(block, self.model(inputs(block)))


class OnnxRuntime:
    """The same with ONNX Runtime, for comparison."""

    def __init__(self, published):
        self.session = batches.onnxruntime_session(published)

    def __call__(self, block):
        return results(block, self.session.run(None, {"x": inputs(block)})[0])


def inputs(block):
    """The rows of a block as one array of the shape [rows, LENGTH, CHANNELS]."""
    rows = np.stack(block["x"]).astype(np.float32, copy=False)
    return rows.reshape(len(rows), LENGTH, CHANNELS)


def results(block, y):
    """The mean over the positions of each row, with its id."""
    return {"id": block["id"], "y": y.mean(axis=1)}


pipeline = functools.partial(batches.pipeline, rows=MAX_ROWS)


def write_example(path, n_rows, n_files=8):
    """A Parquet data set of random rows."""
    import pyarrow
    import pyarrow.parquet

    Path(path).mkdir(parents=True)
    random = np.random.default_rng(1)
    for idx, ids in enumerate(np.array_split(np.arange(n_rows), n_files)):
        x = random.standard_normal((len(ids), LENGTH * CHANNELS), dtype=np.float32)
        table = pyarrow.table({"id": ids, "x": pyarrow.FixedSizeListArray.from_arrays(x.ravel(), x.shape[1])})
        pyarrow.parquet.write_table(table, Path(path) / f"{idx}.parquet")


def compile_model(model, path):
    import symshape

    symshape.compile(str(model), {"N": (1, MAX_ROWS), "S": (LENGTH, LENGTH)}).save(str(path))


def main():
    arguments = batches.parser(__doc__.splitlines()[0], "rows").parse_args()
    if arguments.example:
        write_example(arguments.data, arguments.example)
    if arguments.onnxruntime:
        batches.run(arguments, "rows", pipeline, OnnxRuntime)
    else:
        batches.run(arguments, "rows", pipeline, Symshape, compile_model)


if __name__ == "__main__":
    main()
