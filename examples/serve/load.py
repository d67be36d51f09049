#!/usr/bin/env python3
"""Loads the service with `oha` over HTTP, for symshape and for ONNX Runtime in turns, and prints one table.

    cargo build --release --features onnxruntime --manifest-path examples/serve/Cargo.toml --target-dir target/serve
    python examples/serve/load.py

Needs `oha` (cargo install oha) and, with --onnxruntime, the Python package onnxruntime, whose library the service loads.
All that differs between the two runs is the library that runs the batches.
"""

import argparse
import importlib.util
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def parse():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--program", default=ROOT / "target/serve/release/symshape-serve")
    arguments.add_argument("--symc", default=ROOT / "target/release/symc")
    arguments.add_argument("--model", type=Path, default=ROOT / "compiler/examples/block.onnx")
    arguments.add_argument("--dim", action="append", help="as of symc compile; default N=1..16 and S=1..128")
    arguments.add_argument("--shape", default="1,32,64", help="the shape of each input of a request")
    arguments.add_argument("--connections", type=int, default=64)
    arguments.add_argument("--seconds", type=int, default=60)
    arguments.add_argument("--rounds", type=int, default=1)
    arguments.add_argument("--onnxruntime", action="store_true", help="compare with ONNX Runtime")
    arguments.add_argument("options", nargs="*", help="more options of the service, after --")
    return arguments.parse_args()


def start(command, environment):
    """The process, and the address for HTTP from its log."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    for line in process.stderr:
        entry = json.loads(line)
        if entry["message"] == "serving":
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, entry["http"]
    raise SystemExit(f"the service does not start: {line}")


def resident(process):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024


def request(address, shape, folder):
    """A file with a request of zeros, and the length of its text."""
    import urllib.request

    sizes = {"FP32": 4, "INT32": 4, "INT64": 8, "BOOL": 1, "FP16": 2, "BF16": 2, "FP64": 8}
    with urllib.request.urlopen(f"http://{address}/v2") as _:
        pass
    name = load_name(address)
    with urllib.request.urlopen(f"http://{address}/v2/models/{name}") as page:
        metadata = json.load(page)
    dims = [int(dim) for dim in shape.split(",")]
    inputs, n_bytes = [], 0
    for tensor in metadata["inputs"]:
        own = dims[: len(tensor["shape"])]
        size = sizes[tensor["datatype"]]
        for dim in own:
            size *= dim
        parameters = {"binary_data_size": size}
        inputs.append({"name": tensor["name"], "shape": own, "datatype": tensor["datatype"], "parameters": parameters})
        n_bytes += size
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    file = Path(folder) / "request"
    file.write_bytes(text + bytes(n_bytes))
    return f"http://{address}/v2/models/{name}/infer", file, len(text)


def load_name(address):
    """The name of the model, from the error of a wrong one."""
    import urllib.error
    import urllib.request

    try:
        urllib.request.urlopen(f"http://{address}/v2/models/-")
    except urllib.error.HTTPError as error:
        return re.search(r"this is `(.*)`", json.load(error)["error"])[1]


def measure(arguments, command, environment, folder):
    """One run: throughput, latencies, memory, and whether a stop under load loses requests."""
    process, address = start(command, environment)
    url, file, text = request(address, arguments.shape, folder)
    load = ["oha", "--no-tui", "--output-format", "json", "-c", str(arguments.connections), "-m", "POST"]
    load += ["-D", str(file), "-H", f"Inference-Header-Content-Length: {text}", url]
    subprocess.run([*load, "-z", "2s"], check=True, capture_output=True)
    client = subprocess.Popen([*load, "-z", f"{arguments.seconds}s", "-w"], stdout=subprocess.PIPE, text=True)
    memory = []
    reader = threading.Thread(target=lambda: setattr(client, "report", client.stdout.read()))
    reader.start()
    while reader.is_alive():
        memory.append(resident(process))
        reader.join(1)
    report = json.loads(client.report)
    process.send_signal(signal.SIGTERM)
    code = process.wait(60)
    statuses = report["statusCodeDistribution"]
    return {
        "requests/s": report["summary"]["requestsPerSec"],
        "p50 ms": report["latencyPercentiles"]["p50"] * 1e3,
        "p99 ms": report["latencyPercentiles"]["p99"] * 1e3,
        "failed": sum(report["errorDistribution"].values()) + sum(v for k, v in statuses.items() if k != "200"),
        "MiB at start": memory[min(2, len(memory) - 1)],
        "MiB at end": memory[-1],
        "exit": code,
    }


def main():
    arguments = parse()
    dims = arguments.dim or ["N=1..16", "S=1..128"]
    with tempfile.TemporaryDirectory() as folder:
        artefact = Path(folder) / "model.so"
        flags = [flag for dim in dims for flag in ("--dim", dim)]
        subprocess.run(
            [arguments.symc, "compile", arguments.model, *flags, "-o", artefact], check=True, capture_output=True
        )
        command = [arguments.program, artefact, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", *arguments.options]
        ways = {"symshape": (command, None)}
        if arguments.onnxruntime:
            package = Path(importlib.util.find_spec("onnxruntime").origin).parent
            library = next((package / "capi").glob("libonnxruntime.so*"))
            environment = {**os.environ, "ORT_DYLIB_PATH": str(library)}
            ways["ONNX Runtime"] = ([*command, "--onnxruntime", arguments.model], environment)

        results = {way: [] for way in ways}
        for _ in range(arguments.rounds):
            for way, (command, environment) in ways.items():
                results[way].append(measure(arguments, command, environment, folder))
                print(way, {key: round(value, 2) for key, value in results[way][-1].items()}, flush=True)
                time.sleep(1)
        if arguments.onnxruntime:
            rates = [[run["requests/s"] for run in results[way]] for way in ways]
            ratios = sorted(ours / theirs for ours, theirs in zip(*rates))
            print(f"throughput, symshape to ONNX Runtime: {ratios[len(ratios) // 2]:.2f}")


if __name__ == "__main__":
    main()
