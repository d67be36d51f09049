"""Arrays of a call: checked, never copied."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import dtypes
from .contract import Tensor
from .errors import CallError


def as_numpy(value: Any) -> np.ndarray:
    """A NumPy view of a CPU array that supports DLPack, or the array itself. Numbers and lists become arrays.

    Raises
    ------
    CallError
        The array is not on the CPU, or requires a gradient.
    """
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        if str(getattr(value, "dtype", "")) == "torch.bfloat16":
            return _torch_bfloat16(value)
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError) as error:
            raise CallError(f"an array of type {type(value).__name__} can't be read: {error}") from error
    return np.asarray(value)


def _torch_bfloat16(tensor: Any) -> np.ndarray:
    """A view of a tensor whose type NumPy's DLPack does not know."""
    import torch

    bits = np.from_dlpack(tensor.detach().view(torch.int16))
    return bits.view(dtypes.numpy_dtype(16))


def checked(array: np.ndarray, tensor: Tensor, dtype: np.dtype | None, role: str) -> tuple[int, int, tuple[int, ...]]:
    """The address, type and shape of an array. ``dtype`` is the type of the tensor, if NumPy has it.

    Raises
    ------
    CallError
        The array has another type, is not in row-major order, or is not aligned.
    """
    if array.dtype != dtype:
        raise CallError(f"{role} `{tensor.name}` has elements of type {tensor.dtype}; got {array.dtype}")
    flags = array.flags
    if not flags.c_contiguous:
        raise CallError(
            f"{role} `{tensor.name}` is not in row-major order (strides {array.strides}); "
            "pass numpy.ascontiguousarray(array)"
        )
    if not flags.aligned:
        raise CallError(f"{role} `{tensor.name}` is not aligned to its elements; pass array.copy()")
    return array.__array_interface__["data"][0], tensor.code, array.shape
