"""Writes the streaming encoder of encoder.py as an ONNX file.

    python export.py target/encoder.onnx
"""

import pathlib
import sys

import torch
from encoder import CHUNK_FRAMES, MELS, Encoder

# A number of streams that is no other size of the model, for the exporter.
STREAMS = 3


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    path = pathlib.Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    encoder = Encoder().eval().requires_grad_(False)
    shapes = dict(encoder.states(STREAMS))
    states = [torch.zeros(shape, dtype=dtype(name)) for name, shape in shapes.items()]
    inputs = ("x", *shapes)
    streams = torch.export.Dim("N", min=1, max=64)
    axes = [{axis_of_streams(name): streams} for name in inputs]
    torch.onnx.export(
        encoder,
        (torch.zeros(STREAMS, CHUNK_FRAMES, MELS), *states),
        path,
        input_names=list(inputs),
        output_names=["encoder_out", *(f"new_{name}" for name in shapes)],
        dynamic_shapes=(axes[0], tuple(axes[1:])),
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    print(f"{path}: {len(shapes)} states, {path.stat().st_size} bytes")


def dtype(name):
    return torch.int64 if name == "processed_lens" else torch.float32


def axis_of_streams(name):
    """The axis of the streams. Caches of attention have the frames before it."""
    is_attention = name.startswith(("cached_key", "cached_nonlin_attn", "cached_val"))
    return 1 if is_attention else 0


if __name__ == "__main__":
    main()
