#!/usr/bin/env python3
"""Offline inference over a Parquet data set with Ray Data.

    python examples/ray/offline.py rows.parquet results --model compiler/examples/block.onnx

A row has an `id` and `x`, the flat elements of one row of the model's input. The model is compiled once, for every size
of a block; each node maps one file of it. The rows of a node that dies run again elsewhere.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import ray
from node_file import local, publish

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
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(local(published)), options)

    def __call__(self, block):
        return results(block, self.session.run(None, {"x": inputs(block)})[0])


def inputs(block):
    """The rows of a block as one array of the shape [rows, LENGTH, CHANNELS]."""
    rows = np.stack(block["x"]).astype(np.float32, copy=False)
    return rows.reshape(len(rows), LENGTH, CHANNELS)


def results(block, y):
    """The mean over the positions of each row, with its id."""
    return {"id": block["id"], "y": y.mean(axis=1)}


def pipeline(data, actor, published, actors, rows=MAX_ROWS):
    """A data set of results. Each actor keeps one core, so the cluster needs more cores than actors to read the rows."""
    pool = ray.data.ActorPoolStrategy(size=actors)
    return data.map_batches(
        actor, fn_constructor_args=[published], batch_size=rows, compute=pool, num_cpus=1, batch_format="numpy"
    )


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
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("rows", help="a Parquet file or folder; made with --example")
    arguments.add_argument("results", help="the folder for the results")
    arguments.add_argument("--model", required=True)
    arguments.add_argument("--actors", type=int, default=2)
    arguments.add_argument("--onnxruntime", action="store_true", help="run the model by ONNX Runtime")
    arguments.add_argument("--example", type=int, metavar="N", help="first write N random rows")
    arguments = arguments.parse_args()

    if arguments.example:
        write_example(arguments.rows, arguments.example)
    # Without a cluster of more cores, the tasks that read share the cores of the actors.
    ray.init(num_cpus=arguments.actors + 1, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        artefact = arguments.model
        if not arguments.onnxruntime:
            artefact = Path(folder) / "model.so"
            compile_model(arguments.model, artefact)
        actor = OnnxRuntime if arguments.onnxruntime else Symshape
        data = ray.data.read_parquet(arguments.rows)
        n_rows = data.count()
        start = time.perf_counter()
        pipeline(data, actor, publish(artefact), arguments.actors).write_parquet(arguments.results)
        seconds = time.perf_counter() - start
        print(f"{n_rows} rows in {seconds:.2f} s: {n_rows / seconds:.0f} rows/s")


if __name__ == "__main__":
    main()
