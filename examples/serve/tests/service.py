"""Starts the service for tests, and calls the model alone for comparison."""

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import threading
import urllib.request
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = os.environ.get("SERVE", str(ROOT / "target/serve/debug/symshape-serve"))
SYMC = os.environ.get("SYMC", str(ROOT / "target/debug/symc"))
CHANNELS = 64


def compile_block(folder):
    """The bundled transformer block, x: f32[N, S, 64], with N up to 16 and S up to 128."""
    artefact = Path(folder) / "block.so"
    command = [SYMC, "compile", ROOT / "compiler/examples/block.onnx", "--dim", "N=1..16", "--dim", "S=1..128"]
    subprocess.run([*command, "-o", artefact], check=True, capture_output=True)
    return artefact


def load_file(path):
    """A Python file of the repository as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_alone(artefact):
    """The model, called without the service by the Python file of the runtime."""
    return load_file("python/symshape/runtime.py").Model(str(artefact))


def example(rows, length, seed=0):
    """An input of the block."""
    return np.random.default_rng(seed).standard_normal((rows, length, CHANNELS), dtype=np.float32)


class Service:
    """The service as a process; its log is read until it ends."""

    def __init__(self, artefact, *options, protocols=("http", "grpc")):
        ports = [word for protocol in protocols for word in (f"--{protocol}", "127.0.0.1:0")]
        command = [PROGRAM, str(artefact), *ports, *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if '"message":"serving"' in line:
                break
        else:
            raise RuntimeError(f"the service ended with code {self.process.wait()}:\n{''.join(lines)}")
        self.log = [json.loads(line) for line in lines]
        self.http, self.grpc, self.max_body = map(self.log[-1].get, ("http", "grpc", "max_body_bytes"))
        self.reader = threading.Thread(target=lambda: self.log.extend(map(json.loads, self.process.stderr)))
        self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop()

    def stop(self):
        """Sends SIGTERM, and waits for the end."""
        self.terminate()
        return self.wait()

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def wait(self):
        code = self.process.wait(timeout=60)
        self.reader.join()
        return code

    def metric(self, name):
        """The sum of a metric over all labels."""
        with urllib.request.urlopen(f"http://{self.http}/metrics") as page:
            text = page.read().decode()
        lines = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, lines))

    def memory(self):
        """Resident bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) << 10

    def connect(self):
        host, port = self.http.rsplit(":", 1)
        connection = socket.create_connection((host, int(port)), timeout=30)
        return connection

    def post(self, body, headers=(), path="/v2/models/block/infer"):
        """Sends bytes as the body of a request; the status, and the response as JSON."""
        request = urllib.request.Request(f"http://{self.http}{path}", data=body, headers=dict(headers))
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())
