#!/usr/bin/env python3
"""Compares compiled random graphs with ONNX Runtime.

    python run.py --count 1000 --seed 0            # seeds 0 to 999
    python run.py --count 1 --seed 17 --keep DIR   # one graph, whose files stay in DIR

Every graph is compiled once and called at six bindings of its symbols, with guard pages at both ends of every input,
output and arena. A failing graph is reduced to fewer nodes and written to a folder that `symc test` runs.
"""

import argparse
import collections
import json
import os
import re
import sys
import tempfile
import time

import numpy as np
import onnx

import artefact
import child
import graphs
import known
from graphs import Rejected
from operators import FAMILIES

# The share of graphs that `symc` may refuse, as long as each refusal is a message, and the share without a result of
# ONNX Runtime.
MAX_SKIPPED = 0.02
# The allowed error, in spreads of the copies with rounding errors.
SPREADS = 2
# The time for one graph, with its reduction.
SECONDS = 300


class Verdict:
    """`kind` is `same`, `refused` (by symc), `wrong`, `crashed` or `unjudged` (ONNX Runtime
    refuses the graph, or rounding decides an integer)."""

    def __init__(self, kind, detail=""):
        self.kind = kind
        self.detail = detail

    def symptom(self):
        """Equal for failures that are likely to have one cause."""
        if self.kind != "wrong":
            return self.cause()
        return next((word for word in ("refused", "place", "ONNX Runtime has") if word in self.detail), "elements")

    def cause(self):
        """The detail without names and numbers, to count equal causes."""
        text = re.sub(r"`[^`]*`", "`…`", self.detail.splitlines()[0] if self.detail else "")
        return re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "#", text)[:160]


def judge(case, symc, folder):
    """Compiles a case and compares it at every binding."""
    try:
        values = graphs.replay(case)
    except Rejected as error:
        return Verdict("unjudged", f"{error}")
    dtypes = {name: values[name].dtype for name in case.outputs}
    model = case.model(dtypes)
    onnx.save(model, f"{folder}/model.onnx")
    with open(f"{folder}/bounds.json", "w", encoding="utf-8") as file:
        json.dump({name: list(bounds) for name, bounds in case.ranges.items()}, file)
    try:
        reference = graphs.session(model)
        expected = [
            reference.run(case.outputs, {name: arrays[k] for name, (_, arrays) in case.inputs.items()})
            for k in range(len(case.bindings))
        ]
    except Exception as error:
        return Verdict("unjudged", f"ONNX Runtime refuses the graph, though it runs each node: {error}")
    for k, row in enumerate(expected):
        write_case(case, folder, k, row)

    try:
        artefact.compile_model(symc, folder)
        contract = artefact.query(symc, folder)
        names = [entry["name"] for entry in contract["inputs"]]
        rows = [[case.inputs[name][1][k] for name in names] for k in range(len(case.bindings))]
        types = [dtypes[entry["name"]] for entry in contract["outputs"]]
        results = artefact.call_all(folder, contract, rows, types, case.bindings)
    except artefact.Refused as error:
        return Verdict("refused", str(error))
    except artefact.Crashed as error:
        return Verdict("crashed", str(error))

    worst = None
    for k, (binding, result) in enumerate(zip(case.bindings, results)):
        wanted = dict(zip(case.outputs, expected[k]))
        # A known difference: a data-dependent dim never broadcasts. It equals the other dim at most bindings.
        if isinstance(result, str) and "broadcast" in result:
            return Verdict("refused", result)
        if isinstance(result, str):
            return Verdict("wrong", f"{result}, at {binding}")
        for entry, found in zip(contract["outputs"], result):
            name = entry["name"]
            why = difference(found, wanted[name], values[name].copies[k])
            if why and worst is None:
                worst = Verdict("wrong", f"output {name} at {binding}: {why}")
    return worst or Verdict("same")


def difference(found, expected, copies):
    """Why two tensors differ by more than rounding, or None."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype}{list(found.shape)}, ONNX Runtime has {expected.dtype}{list(expected.shape)}"
    if found.dtype.kind != "f":
        wrong = np.argwhere(found != expected)
        return f"{len(wrong)} elements differ, first at {wrong[0].tolist()}" if len(wrong) else None
    exact, *others = (copy.astype(np.float64) for copy in copies)
    spread = max((np.abs(copy - exact).max(initial=0) for copy in others), default=0)
    error = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    bad = ~(error <= SPREADS * spread)
    if not bad.any():
        return None
    at = np.unravel_index(int(np.argmax(np.where(np.isnan(error), np.inf, error))), error.shape) if error.ndim else ()
    return f"{found[at]} is not {expected[at]} at {[int(i) for i in at]}; rounding explains {SPREADS * spread:.3g}"


def write_case(case, folder, k, expected):
    """A data set in the layout that `symc test` reads."""
    data = f"{folder}/test_data_set_{k}"
    os.makedirs(data, exist_ok=True)
    for kind, arrays in (
        ("input", [arrays[k] for _, arrays in case.inputs.values()]),
        ("output", expected),
    ):
        for i, array in enumerate(arrays):
            with open(f"{data}/{kind}_{i}.pb", "wb") as file:
                file.write(onnx.numpy_helper.from_array(array).SerializeToString())


def pruned(case, outputs, steps):
    """The case without nodes that no output needs."""
    needed, kept = set(outputs), []
    for step in reversed(steps):
        if needed & set(step.node.output):
            kept.append(step)
            needed |= set(step.reads)
    kept.reverse()
    return graphs.Case(case.seed, case.opset, case.ranges, case.bindings, case.inputs, case.constants, kept, outputs)


def smaller(case, values):
    """Cases with fewer outputs or nodes."""
    if len(case.outputs) > 1:
        for name in case.outputs:
            yield pruned(case, [name], case.steps)
    for step in reversed(case.steps):
        names = [name for name in step.node.output if name]
        # The node's inputs as outputs, in its place.
        if set(names) & set(case.outputs):
            for read in step.reads:
                if read not in case.inputs and read not in case.constants and case.outputs != [read]:
                    yield pruned(case, [read], case.steps)
        # An input of the same shape in place of the node's output.
        if len(names) == 1 and not any(a.type in (5, 10) for s in case.steps for a in s.node.attribute):
            for read in step.reads:
                same = (
                    values[read].dtype == values[names[0]].dtype
                    and values[read].shapes() == values[names[0]].shapes()
                )
                if same and names[0] not in case.outputs:
                    yield pruned(
                        case, case.outputs, [renamed(s, names[0], read) for s in case.steps if s is not step]
                    )
        # A new input in place of the node's output.
        if len(names) == 1 and not set(names) & set(case.outputs) and len(case.steps) > 1:
            yield cut(case, step, values[names[0]])


def renamed(step, old, new):
    node = onnx.NodeProto()
    node.CopyFrom(step.node)
    node.input[:] = [new if name == old else name for name in node.input]
    return graphs.Step(node, list(dict.fromkeys(new if name == old else name for name in step.reads)), step.rounding)


def cut(case, step, value):
    """The case with a node's output as an input, whose dims are those of other inputs or new symbols."""
    dims, ranges = [], dict(case.ranges)
    bindings = [dict(binding) for binding in case.bindings]
    for axis in range(value.rank):
        sizes = value.dims(axis)
        symbol = next((s for s in case.ranges if tuple(b[s] for b in case.bindings) == sizes), None)
        if value.static(axis) is not None:
            dims.append(value.static(axis))
        elif symbol:
            dims.append(symbol)
        else:
            symbol = f"{value.name}_{axis}"
            ranges[symbol] = (min(sizes), max(sizes))
            for binding, size in zip(bindings, sizes):
                binding[symbol] = size
            dims.append(symbol)
    inputs = dict(case.inputs)
    inputs[value.name] = (dims, [copies[0] for copies in value.copies])
    steps = [other for other in case.steps if other is not step]
    new = pruned(case, case.outputs, steps)
    used = {name for s in new.steps for name in s.reads}
    new.inputs = {name: item for name, item in inputs.items() if name in used}
    bound = {d for item, _ in new.inputs.values() for d in item if isinstance(d, str)}
    new.ranges = {name: item for name, item in ranges.items() if name in bound}
    new.bindings = bindings
    return new


def shrink(case, verdict, symc, seconds):
    """The smallest case found that fails in the same way."""
    end = time.monotonic() + seconds
    is_smaller = True
    while is_smaller and time.monotonic() < end:
        is_smaller = False
        for candidate in smaller(case, graphs.replay(case)):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    result = judge(candidate, symc, folder)
                except Exception:
                    continue
            same = result.kind == verdict.kind and result.symptom() == verdict.symptom()
            if same:
                case, verdict, is_smaller = candidate, result, True
                break
            if time.monotonic() > end:
                break
    return case, verdict


def report(case, verdict, symc, out):
    """Reduces a failing case, writes it and prints how to run it again."""
    case, verdict = shrink(case, verdict, symc, 60)
    os.makedirs(out, exist_ok=True)
    judge(case, symc, out)
    with open(f"{out}/data.json", "w", encoding="utf-8") as file:
        json.dump({"rtol": 1e-4, "atol": 1e-5}, file)
    model = onnx.load(f"{out}/model.onnx")
    print(f"seed {case.seed}: {verdict.kind}: {verdict.detail}")
    print(onnx.printer.to_text(model.graph))
    print(f"again: python {os.path.relpath(__file__)} --seed {case.seed} --count 1, or {symc} test {out}", flush=True)


def try_seed(seed, args):
    """The verdict on the graph of a seed, and its operators. A failing graph is reported."""
    case = graphs.generate(seed, FAMILIES)
    if len(case.steps) < 5:
        return Verdict("too small"), []
    with tempfile.TemporaryDirectory() as folder:
        verdict = judge(case, args.symc, folder)
    if verdict.kind in ("wrong", "crashed") or (verdict.kind == "refused" and args.list_refusals):
        report(case, verdict, args.symc, f"{args.keep}/seed-{seed}")
    return verdict, [step.node.op_type for step in case.steps]


def main():
    root = os.path.abspath(f"{os.path.dirname(__file__)}/../../..")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="number of graphs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first graph")
    parser.add_argument("--symc", default=f"{root}/target/debug/symc", help="the compiler")
    parser.add_argument("--keep", default=f"{root}/target/differential", help="folder for failing graphs")
    parser.add_argument("--list-refusals", action="store_true", help="reduce graphs that symc refuses too")
    args = parser.parse_args()

    failed = child.run(lambda: known.check(args.symc, f"{root}/docs/operators.md"), SECONDS)
    counts, causes, operators = collections.Counter(), collections.Counter(), collections.Counter()
    for seed in range(args.seed, args.seed + args.count):
        try:
            verdict, used = child.run(lambda: try_seed(seed, args), SECONDS)
        except child.Died as error:
            print(f"seed {seed}: ONNX Runtime ended with {error}", flush=True)
            verdict, used = Verdict("unjudged", f"ONNX Runtime ended with {error}"), []
        counts[verdict.kind] += 1
        operators.update(used)
        if verdict.kind in ("refused", "unjudged"):
            causes[f"{verdict.kind}: {verdict.cause()}"] += 1
        if verdict.kind in ("wrong", "crashed"):
            failed.append(seed)

    n_judged = sum(counts.values()) - counts["too small"]
    print(f"{len(operators)} operators, {sum(operators.values())} nodes; graphs: {dict(counts)}")
    for cause, count in causes.most_common():
        print(f"{count} times {cause}")
    too_many = [kind for kind in ("refused", "unjudged") if counts[kind] > max(1, MAX_SKIPPED * n_judged)]
    for kind in too_many:
        print(f"{counts[kind]} of {n_judged} graphs are {kind}; at most {MAX_SKIPPED:.0%} are allowed")
    sys.exit(1 if failed or too_many else 0)


if __name__ == "__main__":
    main()
