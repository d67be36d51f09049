#!/usr/bin/env python3
"""Runs the cases of ONNX's backend tests on emulated machines, and compares their statuses with those of this machine.

    cargo build --release -p symshape-compiler
    python3 compiler/tests/onnx/run.py                          # 1,900 cases at each level of aarch64
    python3 compiler/tests/onnx/run.py --count 60 --seed 1      # some of them
    python3 compiler/tests/onnx/run.py --cases FOLDER           # other cases in the same layout, such as models
    python3 compiler/tests/onnx/run.py --cases FOLDER --levels aarch64 --timeout 3000

The cases are those of the wheel of onnx 1.22, the last one that has them; `pip` downloads it. Every case that passes
here must pass there. benches/models/cases.py makes cases of whole models; emulators take minutes for large ones. Needs
Debian's gcc-aarch64-linux-gnu and qemu-user.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
WHEEL = "onnx==1.22.0"
DATA = "onnx/backend/test/data/"
KINDS = ["node", "simple", "pytorch-converted", "pytorch-operator"]
TARGET = "aarch64-unknown-linux-gnu"
# Levels of the programs, and the machines that run them.
MACHINES = [
    ("aarch64", "qemu-aarch64 -cpu cortex-a57"),
    ("aarch64-dotprod", "qemu-aarch64 -cpu neoverse-n1"),
    ("aarch64-i8mm", "qemu-aarch64 -cpu max"),
]


def fetch(scratch):
    """The folder with the cases of the wheel."""
    folder = scratch / "cases"
    if folder.is_dir():
        return folder
    download = scratch / "wheel"
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "-d", download, WHEEL],
        check=True,
    )
    unpacked = scratch / "unpacked"
    with zipfile.ZipFile(next(download.glob("*.whl"))) as wheel:
        names = [name for name in wheel.namelist() if name.startswith(DATA) and name.split("/")[4] in KINDS]
        wheel.extractall(unpacked, names)
    (unpacked / DATA).rename(folder)
    shutil.rmtree(unpacked)
    shutil.rmtree(download)
    return folder


def statuses(symc, folders, scratch, flags):
    """The status of each case, by its name."""
    table = scratch / "results.json"
    table.unlink(missing_ok=True)
    command = [symc, "test", *folders, "--allow-refused", "--json", table, *flags]
    # Failures of single cases are in the table.
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if not table.exists():
        raise SystemExit(f"symc test: {done.stderr}")
    return json.loads(table.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--symc", type=Path, default=ROOT / "target/release/symc")
    parser.add_argument("--scratch", type=Path, default=ROOT / "target/onnx")
    parser.add_argument("--cases", type=Path, help="a folder with other cases")
    parser.add_argument("--count", type=int, help="number of random cases; all of them by default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=300, help="seconds that a case may take")
    parser.add_argument("--levels", nargs="+", choices=[level for level, _ in MACHINES], help="all by default")
    args = parser.parse_args()
    args.symc = args.symc.resolve()
    args.scratch.mkdir(parents=True, exist_ok=True)
    cases = sorted(path.parent for path in (args.cases or fetch(args.scratch)).rglob("model.onnx"))
    if args.count is not None:
        cases = sorted(random.Random(args.seed).sample(cases, min(args.count, len(cases))))

    jobs = ["--jobs", args.jobs, "--timeout", args.timeout]
    here = statuses(args.symc, cases, args.scratch, jobs)
    passed = {name for name, report in here.items() if report["status"] == "pass"}
    print(f"this machine: {len(passed)} of {len(here)} cases pass", flush=True)
    failed = not passed
    for level, runner in MACHINES:
        if args.levels and level not in args.levels:
            continue
        there = statuses(args.symc, cases, args.scratch, [*jobs, "--target", TARGET, "--cpu", level, "--runner", runner])
        counts = Counter(report["status"] for name, report in there.items() if name in passed)
        print(f"{level} on `{runner}`: {counts['pass']} of these pass", flush=True)
        for name in sorted(passed):
            if there[name]["status"] != "pass":
                failed = True
                print(f"  {there[name]['status']} {name} {there[name]['detail']}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
