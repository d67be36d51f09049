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
from peers import OnnxRuntime, OpenVino, Symshape, limit_openvino
from side_by_side import TOLERANCE, add_arguments, error, times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, ROOT, "shapes", "shapes.md")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40, help="products, and convolutions")
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
            "work": shape.value(shape.work, sizes), "bound_ns": bound_ns, "ns": prepared_times(peers, x, args),
        })
    model.unlink()
    return points


def command(words):
    """The output of a program. Ends this one with its message if it fails."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr}")
    return done.stdout


def prepared_times(peers, x, args):
    """The times of the runtimes, after a comparison of their results."""
    expected = peers[0].run({"x": x})
    for peer in peers:
        peer.prepare({"x": x})
        peer.call()
        if not error(peer, expected) <= TOLERANCE:
            sys.exit(f"{peer.name}: the result is off by {error(peer, expected):.1e}")
    return times(peers, args)


if __name__ == "__main__":
    main()
