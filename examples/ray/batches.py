"""Inference over a Parquet data set with Ray Data: actors that keep a model map its blocks."""

import argparse
import tempfile
import time
from pathlib import Path

import ray
from node_file import local, publish


def onnxruntime_session(published):
    """A session of ONNX Runtime on one core, for comparison."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(local(published)), options)


def pipeline(data, actor, published, actors, rows):
    """A data set of results. Each actor keeps one core, so the cluster needs more cores than actors to read rows."""
    pool = ray.data.ActorPoolStrategy(size=actors)
    return data.map_batches(
        actor, fn_constructor_args=[published], batch_size=rows, compute=pool, num_cpus=1, batch_format="numpy"
    )


def parser(description, items):
    """The arguments of a program whose rows are called `items`."""
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("data", metavar=items, help="a Parquet file or folder; made with --example")
    arguments.add_argument("results", help="the folder for the results")
    arguments.add_argument("--model", required=True)
    arguments.add_argument("--actors", type=int, default=2)
    arguments.add_argument("--onnxruntime", action="store_true", help="run the model by ONNX Runtime")
    arguments.add_argument("--example", type=int, metavar="N", help=f"first write N random {items}")
    return arguments


def run(arguments, items, pipeline, actor, compile_model=None):
    """Writes the results of `pipeline(data, actor, published, actors)`, and prints their number per second.

    `compile_model(model, path)` writes the artefact that the actors load; without it, they load the model itself.
    """
    # Without a cluster of more cores, the tasks that read share the cores of the actors.
    ray.init(num_cpus=arguments.actors + 1, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.model
        if compile_model:
            path = Path(folder) / "model.so"
            compile_model(arguments.model, path)
        data = ray.data.read_parquet(arguments.data)
        n_rows = data.count()
        start = time.perf_counter()
        pipeline(data, actor, publish(path), arguments.actors).write_parquet(arguments.results)
        seconds = time.perf_counter() - start
        print(f"{n_rows} {items} in {seconds:.2f} s: {n_rows / seconds:.0f} {items}/s")
