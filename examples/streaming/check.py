"""Compares streams of compiled models with ONNX Runtime, chunk by chunk.

    python check.py encoder target/encoder.onnx     # the encoder that export.py writes
    python check.py vad                             # the voice-activity model of the package silero-vad

ONNX Runtime gets all states as inputs and returns them as outputs; the compiled model keeps them. Exits with 1 if an
output or a state differs by more than the tolerance. Needs the packages of requirements.txt and the package symshape.
"""

import argparse
import importlib.util
import pathlib
import sys

import numpy as np
import onnxruntime

import symshape

# Numbers of streams that are read at once.
STREAMS = (1, 2, 7, 8)
# The largest difference that is allowed, relative to 1 plus the largest magnitude.
TOLERANCE = 2e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=["encoder", "vad"])
    parser.add_argument("path", type=pathlib.Path, nargs="?")
    parser.add_argument("--chunks", type=int, default=50)
    arguments = parser.parse_args()
    if arguments.model == "encoder" and arguments.path is None:
        parser.error("encoder: the path of the ONNX file is missing")
    open_model, chunks = {"encoder": (encoder, frames), "vad": (vad, audio)}[arguments.model]
    path = arguments.path or packaged()
    model, session = open_model(path), onnxruntime.InferenceSession(path)
    worst = max(compare(model, session, n, chunks(n, arguments.chunks)) for n in STREAMS)
    if worst > TOLERANCE:
        sys.exit(f"{arguments.model}: the largest difference is {worst:.2g}")
    counts = ", ".join(map(str, STREAMS))
    print(f"{arguments.model}: {arguments.chunks} chunks of {counts} streams agree; largest difference {worst:.2g}")


def encoder(path):
    return symshape.compile(path, {"N": (1, 8)}, stateful=True)


def frames(streams, count):
    """Chunks of random frames."""
    rng = np.random.default_rng(streams)
    for _ in range(count):
        yield {"x": rng.standard_normal((streams, 45, 80), np.float32)}


def vad(path):
    shapes = {"input": ("N", 576), "state": (2, "N", 128)}
    return symshape.compile(path, {"N": (1, 8)}, inputs=shapes, stateful=True)


def audio(streams, count):
    """Chunks of noise with a tone now and then: 512 samples after 64 of the chunk before."""
    rng = np.random.default_rng(streams)
    time = np.arange(512 * count) / 16_000
    tone = np.sin(2 * np.pi * 220 * time) * (np.sin(2 * np.pi * 3 * time) > 0)
    samples = (0.02 * rng.standard_normal((streams, len(time))) + 0.4 * tone).astype(np.float32)
    samples = np.pad(samples, ((0, 0), (64, 0)))
    rate = np.array(16_000, np.int64)
    for k in range(count):
        yield {"input": samples[:, 512 * k : 512 * k + 576].copy(), "sr": rate}


def packaged():
    """The model in the package silero-vad, which is found without an import."""
    package = importlib.util.find_spec("silero_vad")
    if package is None:
        sys.exit("vad: pip install --no-deps silero-vad, or give the path of its ONNX file")
    return pathlib.Path(package.origin).parent / "data" / "silero_vad.onnx"


def compare(model, session, streams, chunks):
    """The largest difference of the outputs of all chunks, and of the states after the last one."""
    state = model.new_state(dims={"N": streams})
    names = {tensor.input: tensor.output for tensor in model.contract.state}
    outputs = [value.name for value in session.get_outputs()]
    carried = state.tensors()
    worst = 0.0
    for inputs in chunks:
        found = model.run(inputs, state=state)
        expected = dict(zip(outputs, session.run(outputs, {**inputs, **carried})))
        carried = {name: expected[output] for name, output in names.items()}
        worst = max(worst, *(difference(found[name], expected[name]) for name in found))
    return max(worst, *(difference(tensor, carried[name]) for name, tensor in state.tensors().items()))


def difference(found, expected):
    if found.shape != expected.shape or found.dtype != expected.dtype:
        sys.exit(f"shape {found.shape} {found.dtype} instead of {expected.shape} {expected.dtype}")
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    return float(np.abs(found - expected).max() / (1.0 + np.abs(expected).max()))


if __name__ == "__main__":
    main()
