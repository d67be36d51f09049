#!/usr/bin/env python3
"""Measures single operators next to ONNX Runtime and OpenVINO, and writes a page with the slowest first.

    python benches/operators/run.py                          # all of them, then docs/operator-speed.md
    python benches/operators/run.py --only 'Softmax' --no-page

The packages of benches/models/requirements.txt must be installed, and `symc` must be built in release mode. Results of
all runtimes are compared with those of ONNX Runtime. Times are processor time of one thread, of the fastest calls of
several rounds; the runtimes take turns.
"""

import argparse
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [f"{ROOT}/compiler/tests/differential", f"{ROOT}/benches/models"]

import artefact
import onnx
import page
from operators import operators
from peers import OnnxRuntime, OpenVino, Symshape, fastest_ns, limit_openvino

# The largest difference from ONNX Runtime, relative to the largest magnitude of the output.
TOLERANCE = 1e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=pathlib.Path, default=ROOT / "target/operators", help="folder of models")
    parser.add_argument("--symc", default=f"{ROOT}/target/release/symc", help="the compiler")
    parser.add_argument("--cpu", help="the ISA level of symshape, which limits OpenVINO too")
    parser.add_argument("--only", default="", help="a regular expression that the name contains")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--milliseconds", type=int, default=10, help="length of a burst of calls")
    parser.add_argument("--core", type=int, default=0, help="the core that everything runs on")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/operator-speed.md", help="the page to write")
    parser.add_argument("--note", default="", help="a sentence of the page about the conditions of the run")
    parser.add_argument("--no-page", action="store_true", help="write no page")
    args = parser.parse_args()

    os.sched_setaffinity(0, {args.core})
    limit_openvino(args.cpu)
    shutil.rmtree(args.scratch, ignore_errors=True)
    args.scratch.mkdir(parents=True)
    points = []
    for kind, members in operators().items():
        for operator in members:
            if re.search(args.only, operator.name):
                found = measured(operator, kind, args.scratch / str(len(points)), args)
                points += found
                for point in found:
                    print(page.line(point), flush=True)
    print(page.summary(points))
    if not args.no_page:
        page.write(args.page, points, args)


def measured(operator, kind, folder, args):
    """Compiles the model and measures it at each of its sizes. A loaded artefact stays, so each has a folder."""
    folder.mkdir()
    model = folder / "model.onnx"
    onnx.save(operator.model(), model)
    flags = [f"--dim={name}={low}..{high}" for name, (low, high) in operator.ranges.items()]
    flags += [f"--cpu={args.cpu}"] if args.cpu else []
    done = subprocess.run([args.symc, "compile", model, *flags, "-o", folder / "model.so"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{operator.name}: {done.stderr}")

    points = []
    for sizes in operator.sizes:
        arrays = operator.arrays(sizes)
        reference = OnnxRuntime(str(model))
        expected = reference.run(arrays)
        types = {name: value.dtype for name, value in expected.items()}
        symshape = Symshape(str(folder), artefact.query(args.symc, str(folder)), types)
        for peer in (reference, symshape):
            peer.prepare(arrays)
            peer.call()
        check(operator, symshape, expected)
        peers = [reference, *openvino(operator, model, arrays), symshape]
        points.append({"name": operator.name, "kind": kind, "sizes": sizes, "ns": times(peers, args)})
    return points


def openvino(operator, model, arrays):
    """OpenVINO, if it can run the operator."""
    try:
        peer = OpenVino(str(model))
        peer.prepare(arrays)
        peer.call()
    except RuntimeError as error:
        print(f"{operator.name}: OpenVINO: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
        return []
    return [peer]


def times(peers, args):
    """The median over the rounds of the fastest calls of a burst, by runtime, in nanoseconds of processor time."""
    found = {peer.name: [] for peer in peers}
    for _ in range(args.rounds):
        for peer in peers:
            found[peer.name].append(fastest_ns(peer, args.milliseconds))
    return {name: statistics.median(values) for name, values in found.items()}


def check(operator, peer, expected):
    """Ends the program if the runtime computes another result."""
    for name, result in peer.results().items():
        want = expected[name].astype(np.float64)
        error = float(np.abs(result.astype(np.float64) - want).max() / max(np.abs(want).max(), 1e-9))
        if not error <= TOLERANCE:
            sys.exit(f"{operator.name}: {peer.name}: the result `{name}` is off by {error:.1e}")


if __name__ == "__main__":
    main()
