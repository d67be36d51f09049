#!/usr/bin/env python3
"""Compiles one exported model with `symc`, compares it with ONNX Runtime at several sizes, and times it.

    python measure.py FOLDER --symc PATH    # prints one JSON object

FOLDER has `model.onnx` and `contract.json`, as export.py writes them.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

import numpy as np
import onnx

sys.path.append(os.path.abspath(f"{os.path.dirname(__file__)}/../../compiler/tests/differential"))

import artefact
import bound
from case import Contract
from convert import rounds_activations
from export import flags
from peers import OnnxRuntime, OpenVino, Symshape, fastest_ns, limit_openvino

# Seconds that `symc` may take for one model.
COMPILE_SECONDS = 300
# The allowed error, relative to the largest magnitude of an output, by the element type of the arithmetic.
TOLERANCES = {"f32": 1e-4, "f16": 1e-2, "bf16": 4e-2, "quantised": 3e-2}
# Where ONNX Runtime with and without its optimisations differ by more, that times this factor is allowed.
SPREADS = 4
# A runtime whose results differ by more is not timed.
MAX_PEER_ERROR = 0.1
# Seeds of the inputs.
SEED = 7


def compile_model(symc, folder, declared, cpu):
    """The JSON line of `symc compile`, or the message of a refusal."""
    command = [symc, "compile", f"{folder}/model.onnx", *declared, "-o", f"{folder}/model.so", "--json"]
    command += ["--cpu", cpu] if cpu else []
    start = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"status": "timeout", "detail": f"symc took more than {COMPILE_SECONDS} s"}
    seconds = time.monotonic() - start
    if done.returncode in (1, 2):
        return {"status": "refused", "detail": done.stderr.strip()[-1500:]}
    if done.returncode != 0:
        return {"status": "crashed", "detail": f"exit code {done.returncode}: {done.stderr.strip()[-1500:]}"}
    summary = json.loads(done.stdout.splitlines()[-1])
    return {"compile_s": round(seconds, 2), "code_bytes": summary["code_bytes"], "arena_max": summary["arena_max"]}


def arithmetic(path):
    """The row of `TOLERANCES` for a model, and whether it rounds the operands of weights of few bits."""
    model = onnx.load(path, load_external_data=False)
    operators = {node.op_type for node in model.graph.node}
    if any("Quantize" in name or "Integer" in name or name.startswith("QLinear") for name in operators):
        return "quantised", False
    if rounds_activations(model):
        return "quantised", True
    types = {tensor.data_type for tensor in model.graph.initializer}
    if onnx.TensorProto.BFLOAT16 in types:
        return "bf16", False
    return ("f16" if onnx.TensorProto.FLOAT16 in types else "f32"), False


def difference(found, expected):
    """The largest difference relative to the largest magnitude, infinite if the tensors cannot be compared, and a
    reason."""
    if found.shape != expected.shape:
        return np.inf, f"shape {list(found.shape)}, expected {list(expected.shape)}"
    if expected.dtype.kind not in "f" and expected.dtype.name != "bfloat16":
        wrong = int((found != expected).sum())
        return (np.inf, f"{wrong} of {expected.size} integers differ") if wrong else (0.0, "")
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(np.where(finite, 0.0, expected), np.where(finite, 0.0, found), equal_nan=True):
        return np.inf, "infinities or NaN at other places"
    scale = max(np.abs(expected[finite]).max(initial=0), 1e-9)
    return float(np.abs(found - expected)[finite].max(initial=0) / scale), ""


def compare(folder, contract, query, rows, expected, tolerance, unoptimised):
    """The fields of the result that say whether the artefact is right."""
    names = [entry["name"] for entry in query["inputs"]]
    dtypes = {name: array.dtype for name, array in expected[0].items()}
    types = [dtypes[entry["name"]] for entry in query["outputs"]]
    bindings = contract.bindings()
    inputs = [[row[name] for name in names] for row in rows]
    artefact.TIMEOUT = COMPILE_SECONDS
    try:
        results = artefact.call_all(folder, query, inputs, types, bindings)
    except artefact.Crashed as error:
        return {"status": "crashed", "detail": str(error)}

    worst, allowed = 0.0, tolerance
    for k, (binding, result) in enumerate(zip(bindings, results)):
        if isinstance(result, str):
            return {"status": "wrong", "detail": f"at {binding}: {result}"}
        for entry, found in zip(query["outputs"], result):
            name = entry["name"]
            error, why = difference(found, expected[k][name])
            worst = max(worst, error)
            if error <= tolerance:
                continue
            spread = difference(unoptimised().run(rows[k])[name], expected[k][name])[0]
            allowed = max(allowed, SPREADS * spread)
            if not error <= allowed:
                text = why or f"error {error:.1e}, allowed {allowed:.1e}"
                return {"status": "wrong", "detail": f"output {name} at {binding}: {text}", "max_error": error}
    return {"status": "equal", "max_error": worst, "allowed": allowed, "sizes": len(bindings)}


def measure_speed(peers, rows, expected, rounds, milliseconds):
    """Milliseconds of each peer at the smallest and at the largest size, and the ratios to `symc`."""
    times, ratios, failures = {}, {}, {}
    for place, k in (("smallest", 0), ("largest", -1)):
        bursts = {}
        for peer in peers:
            try:
                peer.prepare(rows[k])
                peer.call()
                peer.call()
                if peer.name == "openvino":
                    check(peer, expected[k])
                bursts[peer] = []
            except Exception as error:
                failures[peer.name] = str(error).splitlines()[0][:200]
        for _ in range(rounds):
            for peer, found in bursts.items():
                found.append(fastest_ns(peer, milliseconds))
        times[place] = {peer.name: statistics.median(found) / 1e6 for peer, found in bursts.items()}
        own = next((found for peer, found in bursts.items() if peer.name == "symc"), None)
        if own:
            ratios[place] = {
                peer.name: round(statistics.median(a / b for a, b in zip(found, own)), 3)
                for peer, found in bursts.items()
                if peer.name != "symc"
            }
    return {"times_ms": times, "ratios": ratios, "failures": failures}


def check(peer, expected):
    """Fails if another runtime's results are far from those of ONNX Runtime."""
    for name, found in peer.results().items():
        if name not in expected:
            continue
        error, why = difference(found, expected[name])
        if not error < MAX_PEER_ERROR:
            raise RuntimeError(f"output {name} differs from ONNX Runtime's: {why or f'{error:.1e}'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--symc", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--milliseconds", type=int, default=40, help="length of a burst of calls")
    parser.add_argument("--core", type=int, default=0, help="the core that everything runs on")
    parser.add_argument("--cpu", help="the ISA level of symshape, which limits OpenVINO too")
    args = parser.parse_args()
    os.sched_setaffinity(0, {args.core})
    limit_openvino(args.cpu)
    folder = args.folder
    model, reference = f"{folder}/model.onnx", f"{folder}/reference.onnx"
    reference = reference if os.path.exists(reference) else model
    contract = Contract.load(f"{folder}/contract.json")
    kind, rounds = arithmetic(model)
    row = {"arithmetic": kind, "model_bytes": os.path.getsize(model)}
    # Symbols that are sums of others are found where the model says so.
    forms = [flags(contract, model, expressions) for expressions in (False, True)]
    for declared in forms:
        declared += ["--activations", "int8"] if rounds else []
        row.pop("status", None)
        row.update(compile_model(args.symc, folder, declared, args.cpu), flags=declared)
        if row.get("status") != "refused":
            break
    # A size that depends on the data needs a bound, which the error names.
    if row.get("status") == "refused" and (hint := re.search(r"for example, (--dim) (\S+)", row["detail"])):
        declared += hint.groups()
        del row["status"], row["detail"]
        row.update(compile_model(args.symc, folder, declared, args.cpu), flags=declared)

    rows = [contract.values(binding, SEED) for binding in contract.bindings()]
    try:
        ort = OnnxRuntime(reference)
        expected = [ort.run(arrays) for arrays in rows]
    except Exception as error:
        row.update(status="no reference", reference=str(error).splitlines()[0][:300])
        print(json.dumps(row))
        return
    if "status" not in row:
        query = artefact.query(args.symc, folder)
        added = [entry["name"] for entry in query["inputs"] if entry["name"] not in rows[0]]
        if added:
            row.update(status="no reference", reference=f"random numbers, drawn from the input {', '.join(added)}")
            print(json.dumps(row))
            return
        row.update(
            compare(
                folder, contract, query, rows, expected, TOLERANCES[kind], lambda: OnnxRuntime(reference, False)
            )
        )
    if row["status"] == "equal":
        dtypes = {name: array.dtype for name, array in expected[0].items()}
        peers = [ort, Symshape(folder, query, dtypes)]
        try:
            peers.insert(1, OpenVino(reference, rounds))
        except Exception as error:
            row["openvino"] = str(error).strip().splitlines()[0][:300]
        row.update(measure_speed(peers, rows, expected, args.rounds, args.milliseconds))
        names = [symbol["name"] for symbol in query["symbols"]]
        try:
            ends = [{name: contract.bindings()[k][name] for name in names} for k in (0, -1)]
            bounds = bound.bounds_ns(args.symc, model, declared, ends)
            row["bounds_ms"] = dict(zip(("smallest", "largest"), (ns / 1e6 for ns in bounds)))
        except (RuntimeError, KeyError) as error:
            row["no_bound"] = str(error)[:300]
    print(json.dumps(row))


if __name__ == "__main__":
    main()
