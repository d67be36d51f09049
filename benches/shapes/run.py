#!/usr/bin/env python3
"""Measures products and convolutions of random shapes next to ONNX Runtime and OpenVINO, and draws heat maps.

    python benches/shapes/run.py                    # 40 products and 40 convolutions, then docs/shapes.md
    python benches/shapes/run.py --seed 7 --count 10 --no-page
    python benches/shapes/run.py --only 'product-1-3$' --no-page

The packages of benches/models/requirements.txt must be installed, and `symc` must be built in release mode. Each
weight is compiled once for all sizes. Results of all runtimes are compared with those of ONNX Runtime. Times are
processor time of one thread, of the fastest calls of several rounds; the runtimes take turns. Results are kept in the
folder of `--scratch`: an interrupted run goes on where it stopped.
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [f"{ROOT}/compiler/tests/differential", f"{ROOT}/benches/models"]

import artefact
import page
import shapes
from bound import bounds_ns
from peers import OnnxRuntime, OpenVino, Symshape, fastest_ns, limit_openvino

# The largest difference from ONNX Runtime, relative to the largest magnitude of the output.
TOLERANCE = 1e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=pathlib.Path, default=ROOT / "target/shapes", help="folder of results")
    parser.add_argument("--symc", default=f"{ROOT}/target/release/symc", help="the compiler")
    parser.add_argument("--cpu", help="the ISA level of symshape, which limits OpenVINO too")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40, help="products, and convolutions")
    parser.add_argument("--only", default="", help="a regular expression that the name contains")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--milliseconds", type=int, default=20, help="length of a burst of calls")
    parser.add_argument("--core", type=int, default=0, help="the core that everything runs on")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/shapes.md", help="the page to write")
    parser.add_argument("--note", default="", help="a sentence of the page about the conditions of the run")
    parser.add_argument("--no-page", action="store_true", help="write no page")
    args = parser.parse_args()

    os.sched_setaffinity(0, {args.core})
    limit_openvino(args.cpu)
    args.scratch.mkdir(parents=True, exist_ok=True)
    with open(args.symc, "rb") as file:
        symc = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    drawn = [shape for shape in shapes.draw(args.seed, args.count) if re.search(args.only, shape.name)]
    points = []
    for k, shape in enumerate(drawn):
        start = time.monotonic()
        found = results(shape, args, f"{symc} {args.cpu} {args.rounds}")
        points += found
        for point in found:
            print(f"[{k + 1}/{len(drawn)}] {page.line(point)}", flush=True)
        print(f"    {time.monotonic() - start:.0f} s", flush=True)
    print(page.summary(points))
    if not args.no_page:
        page.write(args.page, points, args)


def results(shape, args, state):
    """The points of a shape, from an earlier run if nothing has changed."""
    path = args.scratch / f"{shape.name}.json"
    if path.exists():
        found = json.loads(path.read_text())
        if found["state"] == state:
            return found["points"]
    points = measured(shape, args)
    path.write_text(json.dumps({"state": state, "points": points}, indent=1))
    return points


def measured(shape, args):
    """Compiles the model and measures it at each of its sizes."""
    folder = args.scratch / shape.name
    folder.mkdir(exist_ok=True)
    model = folder / "model.onnx"
    shapes.save(shape, model)
    flags = [f"--dim={name}={low}..{high}" for name, (low, high) in shape.ranges.items()]
    level = [f"--cpu={args.cpu}"] if args.cpu else []
    command([args.symc, "compile", model, *flags, *level, "-o", folder / "model.so"])
    bounds = bounds_ns(args.symc, model, flags, shape.sizes)
    query = artefact.query(args.symc, str(folder))
    peers = [OnnxRuntime(str(model)), OpenVino(str(model)), Symshape(str(folder), query, {"y": np.dtype(np.float32)})]
    points = []
    for sizes, bound_ns in zip(shape.sizes, bounds):
        dims = [sizes.get(d, d) for d in shape.dims]
        x = np.random.default_rng(1).standard_normal(dims, np.float32)
        points.append({
            "name": shape.name, "kind": shape.kind, "sizes": sizes, "matrix": shape.matrix,
            "attributes": shape.attributes, "rows": shape.value(shape.rows, sizes),
            "work": shape.value(shape.work, sizes), "bound_ns": bound_ns, "ns": times(peers, x, args),
        })
    model.unlink()
    return points


def command(words):
    """The output of a program. Ends this one with its message if it fails."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr}")
    return done.stdout


def times(peers, x, args):
    """The median over the rounds of the fastest calls of a burst, by runtime, in nanoseconds of processor time."""
    found = {peer.name: [] for peer in peers}
    expected = peers[0].run({"x": x})["y"]
    for peer in peers:
        peer.prepare({"x": x})
        peer.call()
        check(peer, expected)
    for _ in range(args.rounds):
        for peer in peers:
            found[peer.name].append(fastest_ns(peer, args.milliseconds))
    return {name: statistics.median(values) for name, values in found.items()}


def check(peer, expected):
    """Ends the program if a runtime computes another result."""
    (result,) = peer.results().values()
    error = float(np.abs(result - expected).max() / max(np.abs(expected).max(), 1e-9))
    if not error <= TOLERANCE:
        sys.exit(f"{peer.name}: the result is off by {error:.1e}")


if __name__ == "__main__":
    main()
