"""Models of torch, exported by torch's own ONNX exporter."""

from __future__ import annotations

import io
from typing import Any

from .errors import ModelError, UsageError


def exported(model: Any, example_inputs: tuple | None, dynamic_shapes: Any) -> tuple[bytes, None, dict]:
    """The ONNX model of a program or module, and the ranges of its dynamic dims."""
    import torch

    if isinstance(model, torch.nn.Module):
        if example_inputs is None:
            raise UsageError("a torch module needs example_inputs, a tuple of arguments")
        model = torch.export.export(model.eval(), tuple(example_inputs), dynamic_shapes=dynamic_shapes)
    elif not isinstance(model, torch.export.ExportedProgram):
        raise UsageError(f"expected a torch module or an exported program; got {type(model).__name__}")
    try:
        program = torch.onnx.export(model, dynamo=True, verbose=False)
        file = io.BytesIO()
        program.save(file)
    except Exception as error:
        raise ModelError(f"torch's ONNX exporter failed: {error}") from error
    return file.getvalue(), None, ranges(model)


def ranges(program: Any) -> dict[str, tuple[int, int]]:
    """The ranges of the dynamic dims of an exported program, by their names in the ONNX model."""
    found = {}
    for symbol, bounds in program.range_constraints.items():
        lo, hi = int(bounds.lower), bounds.upper
        # torch's upper bound of an open range is infinity or the largest integer.
        if getattr(hi, "is_finite", None) is not False and int(hi) < 1 << 40:
            found[str(symbol)] = (lo, int(hi))
    return found
