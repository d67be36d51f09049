#!/usr/bin/env python3
"""Compiles mutated models, and lists those that take long or end without a message.

    python run.py DIR… --count 1500               # seeds 0 to 1499, spread over the models below DIR
    python run.py DIR… --seed 17 --count 1 --keep OUT

A model is a file `model.onnx`; the ranges of its symbols are in `bounds.json` or `contract.json` next to it. `symc` may
refuse a mutated model or compile it. It must do so within `--seconds` of processor time, and must not crash.
"""

import argparse
import collections
import json
import os
import random
import resource
import subprocess
import sys
import tempfile

import onnx

import mutations

# The processor time after which a compilation is ended, in multiples of the limit.
PATIENCE = 30
MEMORY_BYTES = 12 << 30


def models(folders):
    """The paths of all models below some folders, the smallest first."""
    found = {file for folder in folders for file in walk(folder)}
    return sorted(found, key=lambda path: (os.path.getsize(path), path))


def walk(folder):
    if folder.endswith(".onnx"):
        yield folder
    for parent, _, files in os.walk(folder):
        if "model.onnx" in files:
            yield f"{parent}/model.onnx"


def declared(path):
    """The ranges of the symbols of a model, as texts."""
    folder = os.path.dirname(path)
    for name in ("bounds.json", "contract.json"):
        if os.path.exists(f"{folder}/{name}"):
            with open(f"{folder}/{name}", encoding="utf-8") as file:
                fields = json.load(file)
            fields = fields.get("ranges", fields)
            return {k: v if isinstance(v, str) else f"{v[0]}..{v[1]}" for k, v in fields.items()}
    return {}


def limit(seconds):
    def apply():
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))

    return apply


def compiled(symc, folder, ranges, seconds):
    """The exit code, the processor time and the last message of a compilation."""
    command = [symc, "compile", f"{folder}/model.onnx", "-o", f"{folder}/model.o"]
    for name, value in sorted(ranges.items()):
        command += ["--dim", f"{name}={value}"]
    with open(f"{folder}/messages.txt", "w+", encoding="utf-8", errors="replace") as messages:
        with open(f"{folder}/command.json", "w", encoding="utf-8") as file:
            json.dump(command, file)
        process = subprocess.Popen(command, stdout=messages, stderr=messages, preexec_fn=limit(PATIENCE * seconds))
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        messages.seek(0)
        lines = messages.read().strip().splitlines()
    time = usage.ru_utime + usage.ru_stime
    return process.returncode, time, usage.ru_maxrss // 1024, lines[-1] if lines else ""


def main():
    root = os.path.abspath(f"{os.path.dirname(__file__)}/../../..")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", help="folders with models")
    parser.add_argument("--count", type=int, default=100, help="number of mutated models")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first model")
    parser.add_argument("--seconds", type=int, default=5, help="processor time that a model may take")
    parser.add_argument("--max-megabytes", type=int, default=100, help="larger models are left out")
    parser.add_argument("--symc", default=f"{root}/target/release/symc", help="the compiler")
    parser.add_argument("--keep", default=f"{root}/target/mutations", help="folder for models that fail")
    args = parser.parse_args()

    paths = [path for path in models(args.folders) if os.path.getsize(path) <= args.max_megabytes << 20]
    if not paths:
        sys.exit("no model.onnx below these folders")
    counts, times = collections.Counter(), []
    for seed in range(args.seed, args.seed + args.count):
        source = random.Random(seed)
        path = paths[seed % len(paths)]
        model, ranges = onnx.load(path), declared(path)
        changes = mutations.mutate(source, model, ranges)
        with tempfile.TemporaryDirectory() as folder:
            onnx.save(model, f"{folder}/model.onnx")
            code, time, megabytes, message = compiled(args.symc, folder, ranges, args.seconds)
            kind = {0: "compiled", 2: "refused"}.get(code, "crashed")
            if time > args.seconds:
                kind = "slow"
            counts[kind] += 1
            times.append(time)
            if kind in ("slow", "crashed"):
                print(f"seed {seed}: {kind}, exit code {code}, {time:.1f} s, {megabytes} MB, {path}")
                print(f"    {', '.join(changes)}: {message[:300]}", flush=True)
                keep(folder, f"{args.keep}/seed-{seed}", model)

    times.sort()
    print(f"{len(paths)} models, {len(times)} mutations: {dict(counts)}")
    print(f"processor time: median {times[len(times) // 2]:.2f} s, largest {times[-1]:.2f} s")
    sys.exit(1 if counts["slow"] + counts["crashed"] else 0)


def keep(folder, out, model):
    """Writes a model that failed, and the command that compiles it."""
    os.makedirs(out, exist_ok=True)
    onnx.save(model, f"{out}/model.onnx")
    with open(f"{folder}/command.json", encoding="utf-8") as file:
        command = [word.replace(folder, out) for word in json.load(file)]
    with open(f"{out}/command.sh", "w", encoding="utf-8") as file:
        file.write(" ".join(command) + "\n")


if __name__ == "__main__":
    main()
