"""Calls compiled models with the standard library and NumPy alone.

This file is all that a deployment needs: copy it, or install the wheel without its compiler. It opens the shared objects
of ``symc compile`` and :meth:`symshape.Model.save`:

>>> from symshape.runtime import Model
>>> model = Model("model.so")
>>> outputs = model.run({"x": x})

Each thread gets its own working memory. A call releases the interpreter's lock and runs on one thread.
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
import threading
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

import numpy as np

__all__ = ["CallError", "Model"]

_MAGIC = int.from_bytes(b"symshape", "little")
_ABI_VERSION = 7
_ARENA_ALIGN = 64
# The value of a data-dependent dim before the call.
_UNKNOWN_DIM = -(1 << 63)
# The names of element types by ONNX's numbers.
DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
}  # fmt: skip


class CallError(ValueError):
    """The arrays of a call violate the contract of the model."""


class _Error(ctypes.Structure):
    _fields_ = [
        ("code", c_int32),
        ("tensor", c_uint32),
        ("axis", c_uint32),
        ("symbol", c_uint32),
        ("value", c_int64),
        ("lo", c_int64),
        ("hi", c_int64),
        ("symbol_name", c_char_p),
        ("tensor_name", c_char_p),
        ("why", c_char_p),
    ]


class _Exec(ctypes.Structure):
    _fields_ = [
        ("host", c_void_p),
        ("threads", c_uint32),
        ("policy", c_uint32),
        ("parallel_for", c_void_p),
        ("error", POINTER(_Error)),
    ]


class _Symbol(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("lo", c_int64),
        ("hi", c_int64),
        ("step", c_int64),
        ("offset", c_int64),
        ("n_values", c_uint64),
        ("values", POINTER(c_int64)),
    ]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("dtype", c_uint32),
        ("rank", c_uint32),
        ("dims", POINTER(c_char_p)),
        ("max_bytes", c_uint64),
    ]


_CHECK = ctypes.CFUNCTYPE(c_int32, POINTER(POINTER(c_int64)), POINTER(c_int64), POINTER(_Error))
_ARENA_BYTES = ctypes.CFUNCTYPE(c_size_t, POINTER(c_int64))
_OUTPUT_SHAPE = ctypes.CFUNCTYPE(c_int32, c_uint32, POINTER(c_int64), POINTER(c_int64))
_RUN = ctypes.CFUNCTYPE(c_int32, POINTER(c_void_p), POINTER(c_void_p), POINTER(c_int64), c_void_p, POINTER(_Exec))


class _Descriptor(ctypes.Structure):
    _fields_ = [
        ("magic", c_uint64),
        ("abi_version", c_uint32),
        ("n_symbols", c_uint32),
        ("n_inputs", c_uint32),
        ("n_outputs", c_uint32),
        ("name", c_char_p),
        ("symbols", POINTER(_Symbol)),
        ("inputs", POINTER(_Tensor)),
        ("outputs", POINTER(_Tensor)),
        ("arena_max", c_uint64),
        ("arena_formula", c_char_p),
        ("check", _CHECK),
        ("arena_bytes", _ARENA_BYTES),
        ("output_shape", _OUTPUT_SHAPE),
        ("run", _RUN),
        ("n_data_dependent", c_uint64),
        ("flags", c_uint64),
        ("n_partitions", c_uint64),
        ("partitions", c_void_p),
        ("frame_bytes", c_uint64),
        ("begin", c_void_p),
        ("arena_slice", c_void_p),
        ("precision", c_uint32),
        ("reserved", c_uint32),
        ("product_error", c_double),
        ("uses_tiles", c_void_p),
        ("state", c_void_p),
    ]


class Model:
    """A compiled model.

    Parameters
    ----------
    path : path
        A shared object of ``symc compile``. Opening it runs its code: open only files that you trust.

    Raises
    ------
    OSError
        The file can't be loaded, or is not a model of this version.
    """

    def __init__(self, path):
        _check_complete(path)
        self._library = ctypes.CDLL(str(path))
        try:
            self._desc = _Descriptor.in_dll(self._library, "symshape_model")
        except ValueError:
            raise OSError(f"{path}: no model is in this file") from None
        desc = self._desc
        if desc.magic != _MAGIC or desc.abi_version != _ABI_VERSION:
            raise OSError(f"{path}: interface version {desc.abi_version}; this file calls version {_ABI_VERSION}")
        if desc.state:
            raise OSError(f"{path}: the model has state, which this file can't keep: compile it without --stateful and --state")
        self.name = desc.name.decode()
        self.symbols = {s.name.decode(): (s.lo, s.hi) for s in desc.symbols[: desc.n_symbols]}
        self._inputs = [self._tensor(t) for t in desc.inputs[: desc.n_inputs]]
        self._outputs = [self._tensor(t) for t in desc.outputs[: desc.n_outputs]]
        self.inputs = {name: (dtype, dims) for name, dtype, dims in self._inputs}
        self.outputs = {name: (dtype, dims) for name, dtype, dims in self._outputs}
        self.arena_max = desc.arena_max
        self._local = threading.local()

    @staticmethod
    def _tensor(tensor):
        dims = tuple(dim.decode() for dim in tensor.dims[: tensor.rank])
        return tensor.name.decode(), DTYPES[tensor.dtype], dims

    def __call__(self, *inputs):
        """Calls the model with its inputs in order. Returns the output, or a tuple of all."""
        results = tuple(self._call(inputs))
        return results[0] if len(results) == 1 else results

    def run(self, inputs):
        """Calls the model with a dict of NumPy arrays in row-major order. Returns a dict of new arrays.

        Raises
        ------
        CallError
            An array is missing, unknown, of another type, or not in row-major order; or the sizes violate the contract.
        """
        unknown = [name for name in inputs if name not in self.inputs]
        missing = [name for name in self.inputs if name not in inputs]
        if unknown or missing:
            problem = f"no input `{unknown[0]}`" if unknown else f"an input `{missing[0]}`, which is missing"
            raise CallError(f"the model has {problem}; it has {', '.join(self.inputs)}")
        return dict(zip(self.outputs, self._call([inputs[name] for name in self.inputs])))

    def arena_bytes(self, **dims):
        """The bytes of working memory of a call at these sizes, which must be in the contract."""
        values = (c_int64 * self._n_dims())(*[dims[name] for name in self.symbols])
        return self._desc.arena_bytes(values)

    def _n_dims(self):
        return max(1, self._desc.n_symbols + self._desc.n_data_dependent)

    def _call(self, inputs):
        arrays = self._checked(inputs)
        shapes = [(c_int64 * max(1, a.ndim))(*a.shape) for a in arrays]
        shape_pointers = (POINTER(c_int64) * max(1, len(shapes)))(*[ctypes.cast(s, POINTER(c_int64)) for s in shapes])
        dims = (c_int64 * self._n_dims())(*[_UNKNOWN_DIM] * self._n_dims())
        error = _Error()
        if self._desc.check(shape_pointers, dims, ctypes.byref(error)) != 0:
            raise CallError(_text(error))

        results = [np.empty(self._shape(k, dims), _numpy(dtype)) for k, (_, dtype, _) in enumerate(self._outputs)]
        given = (c_void_p * max(1, len(arrays)))(*[a.ctypes.data for a in arrays])
        targets = (c_void_p * max(1, len(results)))(*[a.ctypes.data for a in results])
        execution = _Exec(threads=1, error=ctypes.pointer(error))
        arena = self._arena(self._desc.arena_bytes(dims))
        if self._desc.run(given, targets, dims, arena, ctypes.byref(execution)) != 0:
            raise CallError(_text(error))
        if not self._desc.n_data_dependent:
            return results
        # A data-dependent output fills the beginning of its memory.
        actual = [self._shape(k, dims) for k in range(len(results))]
        return [a.reshape(-1)[: math.prod(shape)].reshape(shape) for a, shape in zip(results, actual)]

    def _checked(self, inputs):
        if len(inputs) != len(self._inputs):
            raise CallError(f"got {len(inputs)} inputs; the model has {len(self._inputs)}")
        arrays = [np.asarray(value) for value in inputs]
        for array, (name, dtype, dims) in zip(arrays, self._inputs):
            if array.dtype.name != dtype or not array.dtype.isnative:
                raise CallError(f"`{name}` has elements of type {dtype}; got {array.dtype}")
            if array.ndim != len(dims):
                raise CallError(f"`{name}` has {len(dims)} axes; got {array.ndim}")
            if not array.flags.c_contiguous or not array.flags.aligned:
                raise CallError(f"`{name}` is not in row-major order; pass numpy.ascontiguousarray(array)")
        return arrays

    def _shape(self, output, dims):
        shape = (c_int64 * max(1, len(self._outputs[output][2])))()
        self._desc.output_shape(output, dims, shape)
        return tuple(shape[: len(self._outputs[output][2])])

    def _arena(self, n_bytes):
        """The address of working memory of this thread."""
        memory = getattr(self._local, "memory", None)
        if memory is None or len(memory) < n_bytes + _ARENA_ALIGN:
            memory = self._local.memory = np.empty(n_bytes + _ARENA_ALIGN, np.uint8)
        return -(-memory.ctypes.data // _ARENA_ALIGN) * _ARENA_ALIGN


def _check_complete(path):
    """Refuses a truncated ELF file: the system's loader maps it, and the process ends when it reads the missing part."""
    with open(path, "rb") as file:
        head = file.read(64)
        if head[:5] != b"\x7fELF\x02":
            return
        is_header = len(head) == 64
        offset, entry_bytes, n_entries = (0, 0, 0)
        if is_header:
            (offset,) = struct.unpack_from("<Q", head, 32)
            entry_bytes, n_entries = struct.unpack_from("<HH", head, 54)
            file.seek(offset)
        table = file.read(entry_bytes * n_entries)
        size = os.fstat(file.fileno()).st_size
    is_table = is_header and entry_bytes >= 56 and len(table) == entry_bytes * n_entries
    segments = [struct.unpack_from("<8xQ16xQ", table, k * entry_bytes) for k in range(n_entries)] if is_table else []
    if not segments or any(start + length > size for start, length in segments):
        raise OSError(f"{path}: the file is truncated")


def _numpy(dtype):
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


def _text(error):
    """The violation as text."""
    place = error.tensor_name.decode() if error.tensor_name else "the call"
    if error.axis != 0xFFFFFFFF and error.tensor != 0xFFFFFFFF:
        place += f" axis {error.axis}"
    symbol = error.symbol_name.decode() if error.symbol_name else "a value"
    why = f" ({error.why.decode()})" if error.why else ""
    return f"{place}: {symbol} = {error.value}, allowed {error.lo}..{error.hi}{why}"
