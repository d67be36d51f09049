#!/usr/bin/env python3
"""Exports models of many architectures, compiles each once, and compares it with ONNX Runtime and OpenVINO.

    python run.py                       # all models, then the table docs/models.md
    python run.py --only 'bert|vit'     # models whose names match
    python run.py --list

The packages of requirements.txt must be installed, which needs the network, and `symc` must be built in release mode.
The models have random weights, so nothing is downloaded. Exports and results are kept in the folder of `--scratch`: an
interrupted run goes on where it stopped. A model is measured again if its file, `symc` or the flags differ.
"""

import argparse
import functools
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(f"{HERE}/../..")
sys.path.append(f"{ROOT}/compiler/tests/differential")

import catalogue
import child
import export
import table

EXPORT_SECONDS = 400
MEASURE_SECONDS = 900


def last_line(text):
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:400] if lines else "no message"


def exported(entry, scratch):
    """Exports a model unless its folder has it. Returns the folder, and why the export failed or None."""
    folder = f"{scratch}/{entry.name}"
    if os.path.exists(f"{folder}/contract.json"):
        return folder, None
    os.makedirs(folder, exist_ok=True)
    log = f"{folder}/export.log"
    preload()

    def write():
        with open(log, "w", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        export.export(entry, folder)

    try:
        child.run(write, EXPORT_SECONDS)
    except child.Died as error:
        with open(log, encoding="utf-8") as file:
            return folder, f"{error}: {last_line(file.read())}"
    return folder, None


@functools.cache
def preload():
    """Imports in this process the packages that every export needs; each export runs in a copy of it."""
    import diffusers
    import timm
    import torch
    import torchvision
    import tqdm
    import transformers
    import transformers.masking_utils
    import transformers.modeling_utils

    # A copy of this process must not wait for threads that only the original has.
    torch.set_num_threads(1)
    tqdm.tqdm.monitor_interval = 0
    # Exporters import most of their parts when they are called.
    module, tensors = torch.nn.Linear(2, 2).eval(), (torch.zeros(2, 2),)
    torch.onnx.export(module, tensors, io.BytesIO(), dynamo=False)
    torch.onnx.export(module, tensors, dynamo=True, verbose=False)
    return torch, torchvision, transformers, timm, diffusers


def digest(*paths):
    state = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                state.update(block)
    return state.hexdigest()[:16]


def measured(folder, args):
    """The result of measure.py, which runs in a separate process."""
    command = [sys.executable, f"{HERE}/measure.py", folder, "--symc", args.symc]
    command += ["--rounds", str(args.rounds), "--core", str(args.core)]
    command += ["--cpu", args.cpu] if args.cpu else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MEASURE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"status": "timeout", "detail": f"the comparison took more than {MEASURE_SECONDS} s"}
    if done.returncode != 0:
        return {"status": "crashed", "detail": last_line(done.stderr)}
    return json.loads(done.stdout.strip().splitlines()[-1])


def summary(row):
    """A result as one line."""
    parts = [f"{row['name']:24s} {row['status']:14s}"]
    if "max_error" in row:
        parts.append(f"error {row['max_error']:.1e}")
    for place, ratios in row.get("ratios", {}).items():
        parts.append(f"{place} " + " ".join(f"{peer} {ratio:.2f}" for peer, ratio in ratios.items()))
    if "compile_s" in row:
        parts.append(f"compiled in {row['compile_s']} s")
    if row["status"] != "equal":
        parts.append(row.get("detail", "").splitlines()[0][:300] if row.get("detail") else row.get("reference", ""))
    return "  ".join(parts)


def run(entry, args, symc):
    """The row of a model, from an earlier run if nothing has changed."""
    path = f"{results(args)}/{entry.name}.json"
    folder, failure = exported(entry, args.scratch)
    base = {"name": entry.name, "family": entry.family, "exporter": entry.exporter, "convert": entry.convert}
    if failure:
        row = {**base, "status": "not exported", "detail": failure}
    else:
        state = digest(f"{folder}/model.onnx", f"{folder}/contract.json") + symc
        if os.path.exists(path) and not args.again:
            with open(path, encoding="utf-8") as file:
                row = json.load(file)
            if row.get("state") == state or (args.keep and "state" in row):
                return {**row, **base}
        row = {**base, "state": state, **measured(folder, args)}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(row, file, indent=1)
    return row


def results(args):
    """The folder of the results at an ISA level."""
    return f"{args.scratch}/results{f'-{args.cpu}' if args.cpu else ''}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", default=f"{ROOT}/target/models", help="folder of exports and results")
    parser.add_argument("--symc", default=f"{ROOT}/target/release/symc", help="the compiler")
    parser.add_argument("--only", default="", help="a regular expression that the name contains")
    parser.add_argument("--family", default="", help="a regular expression that the family contains")
    parser.add_argument("--rounds", type=int, default=5, help="bursts of calls of each peer")
    parser.add_argument("--core", type=int, default=0, help="the core that everything runs on")
    parser.add_argument("--cpu", help="the ISA level of symshape, which limits OpenVINO too")
    parser.add_argument("--export", action="store_true", help="export the models, and measure none")
    parser.add_argument("--again", action="store_true", help="also measure models that have results")
    parser.add_argument("--keep", action="store_true", help="keep results of another `symc`")
    parser.add_argument("--table", default=f"{ROOT}/docs/models.md", help="the table to write")
    parser.add_argument("--note", default="", help="a sentence of the table about the conditions of the run")
    parser.add_argument("--no-table", action="store_true", help="write no table")
    parser.add_argument("--list", action="store_true", help="list the models")
    args = parser.parse_args()

    args.scratch = os.path.abspath(args.scratch)
    entries = catalogue.entries()
    entries = [e for e in entries if re.search(args.only, e.name) and re.search(args.family, e.family)]
    if args.list:
        for entry in entries:
            print(f"{entry.name:28s} {entry.family:20s} {entry.exporter:8s} {entry.convert}")
        print(f"{len(entries)} models")
        return

    os.makedirs(results(args), exist_ok=True)
    symc = digest(args.symc)
    for k, entry in enumerate(entries):
        start = time.monotonic()
        if args.export:
            text = f"{entry.name:24s} {exported(entry, args.scratch)[1] or 'exported'}"
        else:
            text = summary(run(entry, args, symc))
        print(f"[{k + 1}/{len(entries)}] {text}  ({time.monotonic() - start:.0f} s)", flush=True)
    if not args.no_table and not args.export:
        table.write(args.table, results(args), catalogue.entries(), args.cpu, args.note)


if __name__ == "__main__":
    main()
