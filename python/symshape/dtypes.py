"""Element types: ONNX's numbers, which compiled models use, and NumPy's types."""

from __future__ import annotations

import numpy as np

from .errors import UsageError
from .runtime import DTYPES

_CODES = {name: code for code, name in DTYPES.items()}


def name(code: int) -> str:
    """The name of an element type, such as ``float32``."""
    return DTYPES.get(code, f"type {code}")


def code(dtype: np.dtype) -> int | None:
    """ONNX's number of a NumPy type in native byte order; ``None`` if models have no such type."""
    return _CODES.get(dtype.name) if dtype.isnative else None


def known_dtype(code: int) -> np.dtype | None:
    """NumPy's type; ``None`` for ``bfloat16`` without the package ``ml_dtypes``, as no array has it then."""
    try:
        return numpy_dtype(code)
    except UsageError:
        return None


def numpy_dtype(code: int) -> np.dtype:
    """NumPy's type. ``bfloat16`` is that of the package ``ml_dtypes``.

    Raises
    ------
    UsageError
        ``ml_dtypes`` is not installed.
    """
    if code != 16:
        return np.dtype(DTYPES[code])
    try:
        import ml_dtypes
    except ImportError:
        raise UsageError("bfloat16 arrays need the package ml_dtypes: pip install ml_dtypes") from None
    return np.dtype(ml_dtypes.bfloat16)
