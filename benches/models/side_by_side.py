"""The options, times and conditions of scripts that measure small models next to ONNX Runtime and OpenVINO."""

import platform
import statistics

import numpy as np

from peers import fastest_ns

# The names of the other runtimes on pages.
PEERS = {"ort": "ONNX Runtime", "openvino": "OpenVINO"}

# The largest difference from ONNX Runtime, relative to the largest magnitude of the output.
TOLERANCE = 1e-4


def add_arguments(parser, root, name, page):
    """The options of such a script, whose results are in `target/<name>` and whose page is `docs/<page>`."""
    parser.add_argument("--scratch", type=type(root), default=root / "target" / name, help="folder of models and results")
    parser.add_argument("--symc", default=f"{root}/target/release/symc", help="the compiler")
    parser.add_argument("--cpu", help="the ISA level of symshape, which limits OpenVINO too")
    parser.add_argument("--only", default="", help="a regular expression that the name contains")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--milliseconds", type=int, default=20, help="length of a burst of calls")
    parser.add_argument("--core", type=int, default=0, help="the core that everything runs on")
    parser.add_argument("--page", type=type(root), default=root / "docs" / page, help="the page to write")
    parser.add_argument("--note", default="", help="a sentence of the page about the conditions of the run")
    parser.add_argument("--no-page", action="store_true", help="write no page")


def times(peers, args):
    """The median over the rounds of the fastest calls of a burst, by runtime, in nanoseconds of processor time."""
    found = {peer.name: [] for peer in peers}
    for _ in range(args.rounds):
        for peer in peers:
            found[peer.name].append(fastest_ns(peer, args.milliseconds))
    return {name: statistics.median(values) for name, values in found.items()}


def error(peer, expected, with_steps=False):
    """The largest difference of the last results from the expected ones, relative to the largest magnitude.

    With `with_steps`, bytes may be off by one, because a number between two may round to either, and halves by a step
    of the largest magnitude."""
    worst = 0.0
    for name, want in expected.items():
        step = 0.0
        if with_steps and want.dtype == np.float16:
            step = float(np.spacing(np.abs(want).max()))
        elif with_steps and want.dtype in (np.uint8, np.int8):
            step = 1.0
        want = want.astype(np.float64)
        off = np.maximum(np.abs(peer.results()[name].astype(np.float64) - want) - step, 0.0).max()
        worst = float(np.fmax(worst, off / max(np.abs(want).max(), 1e-9))) if np.isfinite(off) else float("inf")
    return worst


def conditions(args):
    """The machine and the versions of the peers, as the beginning of a sentence."""
    import onnxruntime
    import openvino

    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [text.split(":")[1].strip() for text in file if text.startswith("model name")]
    machine = models[0] if models else platform.machine()
    level = f", `--cpu {args.cpu}`" if args.cpu else ""
    versions = f"ONNX Runtime {onnxruntime.__version__}, OpenVINO {openvino.__version__.split('-')[0]}"
    return f"The machine is one core of {machine}{level}; {versions}"
