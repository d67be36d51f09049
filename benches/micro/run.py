#!/usr/bin/env python3
"""Flash, memory and instructions of a keyword spotter on Cortex-M cores, in QEMU.

    apt-get install gcc-arm-none-eabi qemu-system-arm
    python3 -m venv /tmp/micro && /tmp/micro/bin/pip install -r benches/micro/requirements.txt
    cargo build --release -p symshape-compiler
    /tmp/micro/bin/python benches/micro/run.py

The results of all cores must be those of this machine. `--symc` names another program, and `--cc-flags` more flags.
"""

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

import kws
import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[2]
OWN = Path(__file__).resolve().parent
TESTS = ROOT / "compiler/tests/c"
FPU = ["-mfloat-abi=hard"]
CORES = [
    ("Cortex-M3", "mps2-an385", ["-mcpu=cortex-m3"]),
    ("Cortex-M4", "mps2-an386", ["-mcpu=cortex-m4", "-mfpu=fpv4-sp-d16", *FPU]),
    ("Cortex-M4, no DSP", "mps2-an386", ["-mcpu=cortex-m4", "-mfpu=fpv4-sp-d16", *FPU, "-U__ARM_FEATURE_DSP"]),
    ("Cortex-M7", "mps2-an500", ["-mcpu=cortex-m7", "-mfpu=fpv5-sp-d16", *FPU]),
    ("Cortex-M7, no DSP", "mps2-an500", ["-mcpu=cortex-m7", "-mfpu=fpv5-sp-d16", *FPU, "-U__ARM_FEATURE_DSP"]),
]


def run(command, folder):
    done = subprocess.run(list(map(str, command)), cwd=folder, text=True, capture_output=True, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} ends with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def expected(symc, folder):
    """The results of this machine; writes the input as a C array too."""
    x = np.random.default_rng(7).integers(-128, 128, kws.INPUT).astype(np.int8)
    np.savez(folder / "x.npz", x=x)
    elements = ", ".join(map(str, x.ravel()))
    (folder / "input.h").write_text(f"#include <stdint.h>\nstatic const int8_t x[{x.size}] = {{{elements}}};\n")
    run([symc, "run", "kws.onnx", "--inputs", "x.npz", "--output", "."], folder)
    return np.load(folder / "y.npy").ravel().tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--symc", type=Path, default=ROOT / "target/release/symc")
    parser.add_argument("--cc-flags", default="-O2")
    args = parser.parse_args()
    symc = args.symc.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        onnx.save(kws.model(), folder / "kws.onnx")
        results = expected(symc, folder)
        run([symc, "compile", "kws.onnx", "--target", "thumbv7em-none-eabi", "-o", "kws.c"], folder)
        arena = int(re.search(r"KWS_ARENA_MAX (\d+)", (folder / "kws.h").read_text())[1])
        print("| core | flash, bytes | arena | input and output | stack | instructions of a call |")
        print("|---|---|---|---|---|---|")
        for core, machine, flags in CORES:
            flags = ["-mthumb", *flags, *args.cc_flags.split(), "-std=c11", "-ffreestanding", "-nostdlib", "-nostartfiles"]
            files = ["-I.", "-I", TESTS, f"-T{TESTS}/cortex_m.ld", OWN / "call.c", "kws.c", TESTS / "memory.c"]
            run(["arm-none-eabi-gcc", *flags, "-DKWS_STATIC_ARENA", *files, "-o", "p.elf", "-lgcc"], folder)
            text, data = map(int, run(["arm-none-eabi-size", "p.elf"], folder).splitlines()[1].split()[:2])
            emulator = ["qemu-system-arm", "-M", machine, "-icount", "shift=0", "-nographic", "-semihosting"]
            said = run([*emulator, "-kernel", "p.elf"], folder)
            found = [int(y) for y in re.findall(r"^y (-?\d+)$", said, re.M)]
            if found != results:
                raise SystemExit(f"{core}: {found} instead of {results}")
            count, stack = (int(re.search(rf"^{word} (\d+)$", said, re.M)[1]) for word in ["instructions", "stack"])
            inputs = int(np.prod(kws.INPUT))
            outputs = kws.CLASSES
            print(f"| {core} | {text + data - inputs:,} | {arena:,} | {inputs + outputs} | {stack:,} | {count / 1e6:.1f} million |")


if __name__ == "__main__":
    main()
