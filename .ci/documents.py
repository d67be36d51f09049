#!/usr/bin/env python3
"""Runs the commands that README.md and docs/ show, in a folder with the models that they name.

A line of a `sh` block is run if it begins with `symc` or `cc`. Every other line, and those that need files that only a
test has, must have an entry in ELSEWHERE, which says where it is run or why it is not. So a new command in a document
fails until someone has decided.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SYMC = ROOT / "target/debug/symc"

# Beginnings of lines that are not run here.
ELSEWHERE = {
    "cargo run --example tour": "the step `tour`",
    "cargo test --workspace": "the step `tests`",
    "cargo bench": "the step `benchmarks` runs each once",
    "cargo +nightly fuzz": "the step `fuzz`",
    "cargo install": "`symc` is built by the tests; an installation would build it again",
    "cargo build --release": "an optimised build takes minutes",
    "pip install": "the step `Python package`",
    "python3 -m venv /tmp/models": "hours, and packages of 8 GB",
    "/tmp/models/bin/python": "hours, and packages of 8 GB",
    "cargo publish": "uploads; the step `packages` packs the crates",
    "maturin": "needs the image for old systems; the hosted workflow runs it",
    "twine": "as maturin",
    "auditwheel": "as maturin",
    "aarch64-none-elf-gcc": "the step `other machines` does so with the compilers of Linux",
    "arm-none-eabi-gcc": "the step `other machines` runs such a program",
    "cargo run -p symshape-example-targets": "the tests of examples/targets",
    "cc -O2 -Itarget": "the tests of examples/targets",
    "cc -O2 -pthread -Itarget": "the tests of examples/targets",
    "target/": "the tests of examples/targets",
    "symc compile m.onnx --dim N=1..64 --custom ops.txt": "compiler/tests/it/custom_ops.rs has a library",
    "symc selfcheck m.onnx --dim N=1..64 --custom ops.txt": "compiler/tests/it/custom_ops.rs has a library",
    "symc compile sampler.onnx": "compiler/tests/it/random_operators.rs has such models",
    "symc compile decoder.onnx": "compiler/tests/it/state has such models",
    "symc compile encoder.onnx --dim N=1..32": "compiler/tests/it/ragged has such models",
    "symc bench encoder.so": "compiler/tests/it/ragged/cli.rs",
    "symc report encoder.onnx --dim N=1..32": "compiler/tests/it/ragged/profile.rs",
    "symc test cases --dim N=1..32 --dim S=1..512 --ragged S": "compiler/tests/it/ragged/cli.rs",
    "symc bench decoder.onnx": "compiler/tests/it/state has such models",
    "symc compile vad.onnx": "compiler/tests/it/state has such models",
    "symc compile encoder.onnx --dim N=1..8": "compiler/tests/it/state/streaming.rs has such a model",
    "symc run encoder.so": "compiler/tests/it/state/cli.rs",
    "symc test cases --target": "compiler/tests/it/cases.rs",
    "symc test cases --cpu": "compiler/tests/it/cases.rs",
    "rustup target add": "changes the tool chain of the machine; an optimised build takes minutes",
    "export CARGO_TARGET": "for the optimised build of the line after it",
    "symc test --stateful": "compiler/tests/it/state/cli.rs",
    "symc run decoder.so": "compiler/tests/it/state/cli.rs",
    "symc selfcheck model.onnx --precision": "minutes without optimisation; compiler/tests/it/cli.rs",
    "symc compile model.onnx --precision": "minutes without optimisation; compiler/tests/it/cli.rs",
    "symc compile block.onnx --dim N=1..4 --dim S=1..64 -o block.wasm": "the step `WebAssembly` has the compiler",
    "cc -std=c11 program.c": "compiler/tests/it/chapters.rs compiles the program of the chapter",
}
# The models that documents name, and the files that they are.
MODELS = {
    "compiler/examples/block.onnx": "compiler/examples/block.onnx",
    "block.onnx": "compiler/examples/block.onnx",
    "m.onnx": "examples/embed/swish.onnx",
    # Weights of the same structure.
    "tuned.onnx": "compiler/examples/block.onnx",
}


def lines(document):
    """The commands of the `sh` blocks, with their line numbers."""
    in_block = False
    for number, line in enumerate(document.read_text().splitlines(), 1):
        line = line.strip()
        if line.startswith("```"):
            in_block = line == "```sh"
        elif in_block and line and not line.startswith("#"):
            yield number, line


def prepare(folder):
    for name, source in MODELS.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / source, target)
    (folder / "native").mkdir()
    (folder / "bin").mkdir()
    (folder / "bin/symc").symlink_to(SYMC)


def main():
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    failures, n_run, used = [], 0, set()
    for document in documents:
        # The commands of one document follow each other.
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            prepare(folder)
            environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
            for number, line in lines(document):
                place = f"{document.relative_to(ROOT)}:{number}: {line}"
                elsewhere = [start for start in ELSEWHERE if line.startswith(start)]
                if elsewhere:
                    used.update(elsewhere)
                    continue
                if not re.match(r"symc |cc ", line):
                    failures.append(f"{place}\n  is neither run here nor in ELSEWHERE")
                    continue
                n_run += 1
                done = subprocess.run(line, shell=True, cwd=folder, env=environment, capture_output=True, text=True)
                if done.returncode != 0:
                    failures.append(f"{place}\n  {(done.stderr or done.stdout).strip()[-600:]}")
    failures += [f"ELSEWHERE has `{start}`, which no document shows" for start in ELSEWHERE.keys() - used]
    print(*failures, sep="\n")
    print(f"commands of the documents: {n_run} ran, {len(failures)} failures")
    return bool(failures) or n_run < 8


if __name__ == "__main__":
    sys.exit(main())
