#!/usr/bin/env python3
"""Measures single operators next to ONNX Runtime and OpenVINO, and writes a page with the slowest first.

    python benches/operators/run.py                          # all of them, then docs/operator-speed.md
    python benches/operators/run.py --only 'Softmax' --no-page
    python benches/operators/run.py --quantised --page docs/operator-speed-quantised.md

The packages of benches/models/requirements.txt must be installed, and `symc` must be built in release mode. Results of
all runtimes are compared with those of ONNX Runtime. Times are processor time of one thread, of the fastest calls of
several rounds; the runtimes take turns.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [f"{ROOT}/compiler/tests/differential", f"{ROOT}/benches/models"]

import artefact
import onnx
import page
import quantised
from operators import operators
from peers import OnnxRuntime, OpenVino, Symshape, limit_openvino
from side_by_side import TOLERANCE, add_arguments, error, times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, ROOT, "operators", "operator-speed.md")
    parser.add_argument("--quantised", action="store_true", help="operators on 8-bit integers and on halves instead")
    args = parser.parse_args()

    os.sched_setaffinity(0, {args.core})
    limit_openvino(args.cpu)
    shutil.rmtree(args.scratch, ignore_errors=True)
    args.scratch.mkdir(parents=True)
    points = []
    families = quantised.operators() if args.quantised else operators()
    for kind, members in families.items():
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
        off = error(symshape, expected, with_steps=args.quantised)
        if not off <= TOLERANCE:
            sys.exit(f"{operator.name}: the results are off by {off:.1e}")
        peers = [reference, *openvino(operator, model, arrays), symshape]
        points.append({"name": operator.name, "kind": kind, "sizes": sizes, "ns": times(peers, args)})
    return points


def openvino(operator, model, arrays):
    """OpenVINO, if it can run the operator."""
    try:
        peer = OpenVino(str(model))
        peer.prepare(arrays)
        peer.call()
    except RuntimeError as refusal:
        print(f"{operator.name}: OpenVINO: {str(refusal).strip().splitlines()[-1]}", file=sys.stderr)
        return []
    return [peer]


if __name__ == "__main__":
    main()
