#!/usr/bin/env python3
"""Makes test cases for `symc test` out of exported models: inputs at the sizes of measure.py, and results.

    python run.py --only 'bert|resnet18' --no-table      # exports; so does any other run of run.py
    python cases.py target/cases --only 'bert|resnet18'
    python ../../compiler/tests/onnx/run.py --cases target/cases      # at each level of aarch64, in QEMU

The results are those of ONNX Runtime, with the tolerances of measure.py. With `--same`, they are those of `symc` on
this machine, and must be equal: this shows where the sums of another machine have other bits.
"""

import argparse
import json
import os
import re
import shutil
import sys
import tempfile

import numpy as np
import onnx
from onnx import numpy_helper

sys.path.append(os.path.abspath(f"{os.path.dirname(__file__)}/../../compiler/tests/differential"))

import artefact
import measure
from case import Contract
from export import flags
from peers import OnnxRuntime, Symshape

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(f"{HERE}/../..")


def results_of_symc(folder, declared, rows, args):
    """The outputs of an artefact for each row of inputs, or the message of a refusal."""
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copy(f"{folder}/model.onnx", scratch)
        done = measure.compile_model(args.symc, scratch, [*declared, "--cpu", args.cpu])
        if "status" in done:
            return done["detail"]
        query = artefact.query(args.symc, scratch)
        outputs = onnx.load(f"{folder}/model.onnx", load_external_data=False).graph.output
        numpy_type = onnx.helper.tensor_dtype_to_np_dtype
        dtypes = {value.name: numpy_type(value.type.tensor_type.elem_type) for value in outputs}
        peer = Symshape(scratch, query, dtypes)
        found = []
        for arrays in rows:
            peer.prepare(arrays)
            peer.call()
            found.append({name: array.copy() for name, array in peer.results().items()})
        return found


def spread_of(found, expected):
    """The largest difference of outputs, relative to the largest magnitude of each."""
    spreads = (measure.difference(found[name], array)[0] for name, array in expected.items())
    return max((spread for spread in spreads if np.isfinite(spread)), default=0.0)


def write_tensors(folder, kind, arrays):
    for k, (name, array) in enumerate(arrays.items()):
        with open(f"{folder}/{kind}_{k}.pb", "wb") as file:
            file.write(numpy_helper.from_array(np.ascontiguousarray(array), name).SerializeToString())


def bounds(declared):
    """The ranges of `--dim` as bounds.json has them. Other flags have no place there."""
    if any(flag.startswith("--") and flag != "--dim" for flag in declared):
        return None
    ranges = (text.split("=", 1) for text in declared if text != "--dim")
    return dict(ranges)


def make(folder, to, args):
    """Writes the case of a model, or returns why there is none."""
    model = f"{folder}/model.onnx"
    contract = Contract.load(f"{folder}/contract.json")
    kind, rounds = measure.arithmetic(model)
    if rounds:
        return "it needs --activations"
    declared = flags(contract, model, expressions=True)
    ranges = bounds(declared)
    if ranges is None:
        return "its inputs need --input"
    sizes = contract.bindings()
    if args.sizes:
        # The smallest ones and an odd one first: emulators are slow.
        sizes = [sizes[k] for k in (0, 2, 1, 3, 4) if k < len(sizes)][: args.sizes]
    rows = [contract.values(binding, measure.SEED) for binding in sizes]
    if args.same:
        expected = results_of_symc(folder, declared, rows, args)
        if isinstance(expected, str):
            return expected.splitlines()[0]
    else:
        reference = f"{folder}/reference.onnx"
        reference = reference if os.path.exists(reference) else model
        try:
            peer, unoptimised = OnnxRuntime(reference), OnnxRuntime(reference, optimised=False)
            expected = [peer.run(arrays) for arrays in rows]
            spread = max(spread_of(unoptimised.run(arrays), outputs) for arrays, outputs in zip(rows, expected))
        except Exception as error:
            return f"no reference: {str(error).splitlines()[0][:200]}"

    shutil.rmtree(to, ignore_errors=True)
    os.makedirs(to)
    os.symlink(os.path.abspath(model), f"{to}/model.onnx")
    largest = 0.0
    for k, (arrays, outputs) in enumerate(zip(rows, expected)):
        os.makedirs(f"{to}/test_data_set_{k}")
        write_tensors(f"{to}/test_data_set_{k}", "input", arrays)
        write_tensors(f"{to}/test_data_set_{k}", "output", outputs)
        for array in outputs.values():
            if array.dtype.kind == "f":
                largest = max(largest, float(np.abs(array[np.isfinite(array)]).max(initial=0)))
    allowed = 0.0 if args.same else max(measure.TOLERANCES[kind], measure.SPREADS * spread)
    tolerance = {"rtol": 0.0, "atol": allowed * largest}
    with open(f"{to}/data.json", "w", encoding="utf-8") as file:
        json.dump(tolerance, file)
    with open(f"{to}/bounds.json", "w", encoding="utf-8") as file:
        json.dump(ranges, file)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("to", help="the folder to write the cases to")
    parser.add_argument("--scratch", default=f"{ROOT}/target/models", help="folder of exports")
    parser.add_argument("--only", default="", help="a regular expression that the name contains")
    parser.add_argument("--sizes", type=int, help="number of sizes; all of them by default")
    parser.add_argument("--same", action="store_true", help="expect the bits of this machine")
    parser.add_argument("--symc", default=f"{ROOT}/target/release/symc", help="the compiler, for --same")
    parser.add_argument("--cpu", default="x86-64-v3", help="the level of this machine, for --same")
    args = parser.parse_args()
    for name in sorted(os.listdir(args.scratch)):
        folder = f"{args.scratch}/{name}"
        if not re.search(args.only, name) or not os.path.exists(f"{folder}/contract.json"):
            continue
        why = make(folder, f"{args.to}/{name}", args)
        print(f"{name}: {why or 'written'}", flush=True)


if __name__ == "__main__":
    main()
