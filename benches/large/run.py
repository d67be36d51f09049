#!/usr/bin/env python3
"""Compiles a model of many bytes, and compares time and memory with copying its weights.

The model has square layers whose weights are external data in one file. The folder needs twice their size.
"""

import argparse
import pathlib
import resource
import subprocess
import tempfile
import time

import numpy
import onnx
from onnx import TensorProto, helper


def external(name: str, shape: list[int], location: str, offset: int) -> TensorProto:
    """The description of an f32 tensor in an external file."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    length = 4 * int(numpy.prod(shape))
    for key, value in [("location", location), ("offset", offset), ("length", length)]:
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def write_model(path: pathlib.Path, layers: int, width: int) -> pathlib.Path:
    """Writes a model of `layers` weights of `width` rows and columns. Returns the path of its data."""
    data = path.with_suffix(".data")
    random = numpy.random.default_rng(28)
    weights = []
    nodes = []
    value = "x"
    with data.open("wb") as file:
        for layer in range(layers):
            weight = f"layer{layer}.weight"
            weights.append(external(weight, [width, width], data.name, file.tell()))
            for _ in range(width):
                file.write(random.standard_normal(width, dtype=numpy.float32).tobytes())
            nodes.append(helper.make_node("MatMul", [value, weight], [f"product{layer}"]))
            value = f"y{layer}"
            nodes.append(helper.make_node("Relu", [f"product{layer}"], [value]))

    row = ["N", width]
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, row)],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, row)],
        weights,
    )
    opset = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return data


def copy_seconds(source: pathlib.Path, target: pathlib.Path) -> float:
    """The time of reading a file and writing it again, in pieces of 16 MB."""
    begin = time.monotonic()
    with source.open("rb") as reader, target.open("wb") as writer:
        while piece := reader.read(16 << 20):
            writer.write(piece)
    seconds = time.monotonic() - begin
    target.unlink()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--symc", default="target/release/symc", help="the compiler")
    parser.add_argument("--layers", type=int, default=6, help="number of layers (default: 6)")
    parser.add_argument("--width", type=int, default=8192, help="rows and columns of a weight (default: 8192)")
    parser.add_argument("--rounds", type=int, default=3, help="number of measurements (default: 3)")
    parser.add_argument("--folder", help="the folder for all files (default: a temporary one)")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        folder = pathlib.Path(folder)
        model = folder / "large.onnx"
        data = write_model(model, args.layers, args.width)
        data_bytes = data.stat().st_size
        print(f"weights: {data_bytes / 1e9:.2f} GB")
        for _ in range(args.rounds):
            copying = copy_seconds(data, folder / "copy")
            command = [args.symc, "compile", model, "--dim", "N=1..4", "--weights-file", folder / "large.weights"]
            begin = time.monotonic()
            subprocess.run([*command, "-o", folder / "large.so", "--json"], check=True, stdout=subprocess.DEVNULL)
            compiling = time.monotonic() - begin
            (folder / "large.weights").unlink()
            # The most of any child so far; the compiler is the only one.
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
            print(
                f"copying {copying:.1f} s, compiling {compiling:.1f} s = {compiling / copying:.2f} x, "
                f"memory {peak / 1e9:.2f} GB = {peak / data_bytes:.2f} x"
            )


if __name__ == "__main__":
    main()
