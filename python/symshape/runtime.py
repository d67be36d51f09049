"""Calls compiled models with the standard library and NumPy alone.

This file is all that a deployment needs: copy it, or install the wheel without its compiler. It opens the shared objects
of ``symc compile`` and :meth:`symshape.Model.save`:

>>> from symshape.runtime import Model
>>> model = Model("model.so")
>>> outputs = model.run({"x": x})

A model with state is called with one:

>>> state = model.new_state(capacity=1024)
>>> outputs = model.run({"input_ids": ids}, state=state)

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

__all__ = ["CallError", "Model", "State", "StateError"]

_MAGIC = int.from_bytes(b"symshape", "little")
_ABI_VERSION = 9
_ALIGN = 64
# The first word of a state, and the first bytes of a saved one.
_STATE_MAGIC = int.from_bytes(b"symstate", "little")
_SAVED_MAGIC = b"symsave1"
# The bytes of a state before the values of its symbols.
_WORDS_AT = 32
# The code of a call whose rows don't fit the state.
_STATE_FULL = 11
# The axis of the rows of a tensor that calls overwrite.
_NO_AXIS = 0xFFFFFFFF
# The value of a data-dependent dim before the call.
_UNKNOWN_DIM = -(1 << 63)
# The names of element types by ONNX's numbers.
DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
}  # fmt: skip


class CallError(ValueError):
    """The arrays of a call violate the contract of the model."""


class StateError(ValueError):
    """A state can't be made, changed or loaded. It keeps its content."""


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


_PLACE = ctypes.CFUNCTYPE(c_int32, c_uint32, POINTER(c_int64), POINTER(c_int64))
_POINTERS = POINTER(c_void_p)
_RUN_STATEFUL = ctypes.CFUNCTYPE(
    c_int32, _POINTERS, _POINTERS, _POINTERS, c_uint32, POINTER(c_int64), c_void_p, POINTER(_Exec)
)


class _StateTensor(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("output", c_char_p), ("axis", c_uint32), ("reserved", c_uint32)]


class _State(ctypes.Structure):
    _fields_ = [
        ("id", c_uint64),
        ("max_bytes", c_uint64),
        ("n_tensors", c_uint32),
        ("n_words", c_uint32),
        ("header_bytes", c_uint32),
        ("has_rows", c_uint32),
        ("words", POINTER(c_uint32)),
        ("tensors", POINTER(_StateTensor)),
        ("bytes", _ARENA_BYTES),
        ("place", _PLACE),
        ("run", _RUN_STATEFUL),
    ]


class _Weights(ctypes.Structure):
    _fields_ = [
        ("artefact", ctypes.c_ubyte * 32),
        ("table_offset", c_uint64),
        ("file_name", ctypes.c_char * 256),
    ]


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
        ("state", POINTER(_State)),
        ("weights", POINTER(_Weights)),
        ("ragged", c_void_p),
    ]


class Model:
    """A compiled model.

    Parameters
    ----------
    path : path
        A shared object of ``symc compile``. Opening it runs its code: open only files that you trust.
    weights : path, optional
        The weights file of the model, if it is not the one that was written with it.

    Raises
    ------
    OSError
        A file can't be loaded, or is not a model of this version.
    """

    def __init__(self, path, weights=None):
        _check_complete(path)
        self._library = ctypes.CDLL(str(path))
        try:
            self._desc = _Descriptor.in_dll(self._library, "symshape_model")
        except ValueError:
            raise OSError(f"{path}: no model is in this file") from None
        desc = self._desc
        if desc.magic != _MAGIC or desc.abi_version != _ABI_VERSION:
            raise OSError(f"{path}: interface version {desc.abi_version}; this file calls version {_ABI_VERSION}")
        self._weights = _weights(desc, path, weights)
        self.name = desc.name.decode()
        self.symbols = {s.name.decode(): (s.lo, s.hi) for s in desc.symbols[: desc.n_symbols]}
        self._inputs = [self._tensor(t) for t in desc.inputs[: desc.n_inputs]]
        self._outputs = [self._tensor(t) for t in desc.outputs[: desc.n_outputs]]
        self.inputs = {name: (dtype, dims) for name, dtype, dims in self._inputs}
        self.outputs = {name: (dtype, dims) for name, dtype, dims in self._outputs}
        self.arena_max = desc.arena_max
        self._table = desc.state.contents if desc.state else None
        self.state = {t.tensor.name.decode(): t.output.decode() for t in self._state_tensors()}
        self._local = threading.local()

    @staticmethod
    def _tensor(tensor):
        dims = tuple(dim.decode() for dim in tensor.dims[: tensor.rank])
        return tensor.name.decode(), DTYPES[tensor.dtype], dims

    def _state_tensors(self):
        return self._table.tensors[: self._table.n_tensors] if self._table else []

    def new_state(self, capacity=None, dims=None):
        """An empty state.

        Parameters
        ----------
        capacity : int, optional
            The rows that there is memory for. The default is the largest capacity of the contract.
        dims : dict, optional
            Other sizes of the state: ``{"batch": 4}``. The default of each is the smallest one that is not zero.

        Raises
        ------
        StateError
            The model has no state, or a size is unknown or not allowed.
        """
        return State(self, _state_values(self, capacity, dims))

    def load_state(self, source):
        """The state in a file of :meth:`State.save`, or in bytes.

        Raises
        ------
        StateError
            The content is damaged, cut off, or belongs to another model.
        """
        if not isinstance(source, (bytes, bytearray)):
            with open(source, "rb") as file:
                source = file.read()
        return _loaded_state(self, bytes(source))

    def __call__(self, *inputs, state=None):
        """Calls the model with its inputs in order. Returns the output, or a tuple of all."""
        results = tuple(self._call(inputs, state))
        return results[0] if len(results) == 1 else results

    def run(self, inputs, state=None):
        """Calls the model with a dict of NumPy arrays in row-major order. Returns a dict of new arrays.

        A model with state needs a :class:`State`, which the call reads and updates. One call at a time may use it.

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
        return dict(zip(self.outputs, self._call([inputs[name] for name in self.inputs], state)))

    def arena_bytes(self, **dims):
        """The bytes of working memory of a call at these sizes, which must be in the contract."""
        values = (c_int64 * self._n_dims())(*[dims[name] for name in self.symbols])
        return self._desc.arena_bytes(values)

    def _n_dims(self):
        return max(1, self._desc.n_symbols + self._desc.n_data_dependent)

    def _call(self, inputs, state=None):
        arrays = self._checked(inputs)
        shapes = [(c_int64 * max(1, a.ndim))(*a.shape) for a in arrays]
        if (state is None) != (self._table is None):
            has_state = "the model has state: call it with state=model.new_state(...)"
            raise CallError(has_state if self._table else "the model has no state")
        if state is not None:
            if state._model._table.id != self._table.id:
                raise CallError("the state belongs to another model")
            shapes.append(state._words)
        shape_pointers = (POINTER(c_int64) * max(1, len(shapes)))(*[ctypes.cast(s, POINTER(c_int64)) for s in shapes])
        dims = (c_int64 * self._n_dims())(*[_UNKNOWN_DIM] * self._n_dims())
        error = _Error()
        if self._desc.check(shape_pointers, dims, ctypes.byref(error)) != 0:
            raise CallError(_text(error))

        results = [np.empty(self._shape(k, dims), _numpy(dtype)) for k, (_, dtype, _) in enumerate(self._outputs)]
        given = (c_void_p * (len(arrays) + 1))(*[a.ctypes.data for a in arrays])
        if self._weights is not None:
            given[len(arrays)] = self._weights.ctypes.data
        targets = (c_void_p * max(1, len(results)))(*[a.ctypes.data for a in results])
        execution = _Exec(threads=1, error=ctypes.pointer(error))
        arena = self._arena(self._desc.arena_bytes(dims))
        if state is None:
            code = self._desc.run(given, targets, dims, arena, ctypes.byref(execution))
        else:
            states = (c_void_p * 1)(state._address)
            code = self._table.run(given, targets, states, 1, dims, arena, ctypes.byref(execution))
        if code != 0:
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
        if memory is None or len(memory) < n_bytes + _ALIGN:
            memory = self._local.memory = np.empty(n_bytes + _ALIGN, np.uint8)
        return -(-memory.ctypes.data // _ALIGN) * _ALIGN


class State:
    """The state of one sequence, or of a batch of sequences of one length. See :meth:`Model.new_state`."""

    def __init__(self, model, values):
        """An empty state with these values of the model's symbols."""
        table = model._table
        self._model = model
        self._dims = (c_int64 * model._n_dims())(*values)
        self._n_bytes = table.bytes(self._dims)
        memory = np.zeros(self._n_bytes + _ALIGN, np.uint8)
        start = -memory.ctypes.data % _ALIGN
        self._block = memory[start : start + self._n_bytes]
        self._address = self._block.ctypes.data
        self._words = (c_int64 * max(1, table.n_words)).from_address(self._address + _WORDS_AT)
        header = struct.pack("=4Q", _STATE_MAGIC, table.id, self._n_bytes, 0)
        self._block[:_WORDS_AT] = np.frombuffer(header, np.uint8)
        for word, at in enumerate(table.words[: table.n_words]):
            self._words[word] = values[at]
        self._set_length(0)

    @property
    def length(self):
        """The number of rows. 0 if the state has no rows."""
        return self._words[1] if self._model._table.has_rows else 0

    @property
    def capacity(self):
        """The number of rows that there is memory for. 0 if the state has no rows."""
        return self._words[0] if self._model._table.has_rows else 0

    @property
    def nbytes(self):
        """The bytes of the memory."""
        return self._n_bytes

    def reset(self):
        """Forgets everything: no rows, and zeros in the tensors that calls overwrite."""
        for tensor, rows in self._views():
            if rows is ...:
                tensor[...] = 0
        self._set_length(0)

    def truncate(self, length):
        """Forgets the rows after the first ``length`` ones.

        Raises
        ------
        StateError
            There are fewer rows, or calls overwrite a tensor of the state, whose earlier values are gone.
        """
        if not 0 <= length <= self.length:
            raise StateError(f"can't truncate a state of {self.length} rows to {length}")
        overwritten = [t.tensor.name.decode() for t in self._model._state_tensors() if t.axis == _NO_AXIS]
        if overwritten and length < self.length:
            cause = f"`{overwritten[0]}` is overwritten by each call; load a saved state, or keep a fork"
            raise StateError(f"can't truncate the state: {cause}")
        self._set_length(length)

    def fork(self):
        """A copy with the same content and capacity."""
        copy = State(self._model, list(self._dims))
        copy._set_length(self.length)
        for (ours, rows), (theirs, _) in zip(self._views(), copy._views()):
            theirs[rows] = ours[rows]
        return copy

    def to_bytes(self):
        """The content, for :meth:`Model.load_state`: the valid rows only."""
        header = self._block[: self._model._table.header_bytes].tobytes()
        return _SAVED_MAGIC + header + b"".join(tensor[rows].tobytes() for tensor, rows in self._views())

    def save(self, path):
        """Writes the content to a file, for :meth:`Model.load_state`."""
        with open(path, "wb") as file:
            file.write(self.to_bytes())

    def tensors(self):
        """Copies of the tensors by the names of their inputs, with the valid rows only."""
        views = zip(self._model.state, self._views())
        return {name: tensor[rows].copy() for name, (tensor, rows) in views}

    def _set_length(self, length):
        if self._model._table.has_rows:
            self._words[1] = length

    def _views(self):
        """Each tensor in the block, and the index of its valid rows."""
        for k, info in enumerate(self._model._state_tensors()):
            rank = info.tensor.rank
            place = (c_int64 * (1 + rank))()
            self._model._table.place(k, self._dims, place)
            dtype = _numpy(DTYPES[info.tensor.dtype])
            shape = tuple(place[1:])
            end = place[0] + math.prod(shape) * dtype.itemsize
            tensor = self._block[place[0] : end].view(dtype).reshape(shape)
            is_appended = info.axis != _NO_AXIS
            yield tensor, (slice(None),) * info.axis + (slice(self.length),) if is_appended else ...


def _state_values(model, capacity, dims):
    """The values of all symbols for a state with these sizes."""
    table = model._table
    if table is None:
        raise StateError("the model has no state: compile it with --stateful or --state")
    symbols = model._desc.symbols
    words = table.words[: table.n_words]
    chosen = dict(dims or {})
    sizes = {symbols[at].name.decode(): at for at in words}
    if table.has_rows:
        del sizes[symbols[words[1]].name.decode()]
        chosen[symbols[words[0]].name.decode()] = symbols[words[0]].hi if capacity is None else capacity
    elif capacity:
        chosen["capacity"] = capacity

    values = [_smallest(symbol) for symbol in symbols[: model._desc.n_symbols]]
    for name, value in chosen.items():
        if name not in sizes:
            raise StateError(f"the state has no size `{name}`; it has {', '.join(sizes) or 'none'}")
        symbol = symbols[sizes[name]]
        if not _allows(symbol, value):
            raise StateError(f"{name} = {value}; {name} is declared {symbol.lo}..={symbol.hi}")
        values[sizes[name]] = value
    return values


def _loaded_state(model, content):
    """The state whose content :meth:`State.to_bytes` gave."""

    def refused(cause):
        return StateError(f"not a state of this model: {cause}")

    table = model._table
    if table is None:
        raise StateError("the model has no state: compile it with --stateful or --state")
    if not content.startswith(_SAVED_MAGIC):
        raise refused("it is not a saved state")
    header, rest = content[8 : 8 + table.header_bytes], content[8 + table.header_bytes :]
    if len(header) < table.header_bytes:
        raise refused("the file is cut off")
    magic, identity = struct.unpack_from("=2Q", header)
    if magic != _STATE_MAGIC:
        raise refused("its header is damaged")
    if identity != table.id:
        raise refused("it belongs to another model, or to another version of it")

    words = struct.unpack_from(f"={table.n_words}q", header, _WORDS_AT)
    capacity, length, *_ = words if table.has_rows else (None, 0)
    first = 2 if table.has_rows else 0
    names = [model._desc.symbols[at].name.decode() for at in table.words[first : table.n_words]]
    state = State(model, _state_values(model, capacity, dict(zip(names, words[first:]))))
    if table.has_rows and not 0 <= length <= capacity:
        raise refused("its length exceeds its capacity")
    state._set_length(length)
    for tensor, rows in state._views():
        own = tensor[rows]
        if len(rest) < own.nbytes:
            raise refused("the file is cut off")
        tensor[rows] = np.frombuffer(rest[: own.nbytes], own.dtype).reshape(own.shape)
        rest = rest[own.nbytes :]
    if rest:
        raise refused("the file is too long")
    return state


def _allows(symbol, value):
    """Whether the declaration of a symbol allows this value."""
    values = symbol.values[: symbol.n_values]
    is_listed = not values or value in values
    return symbol.lo <= value <= symbol.hi and is_listed and (value - symbol.offset) % symbol.step == 0


def _smallest(symbol):
    """The smallest allowed value that is not zero, or zero."""
    if symbol.n_values:
        values = symbol.values[: symbol.n_values]
        return next((value for value in values if value > 0), values[0])
    first = symbol.lo + (symbol.offset - symbol.lo) % symbol.step
    return first if first > 0 or first + symbol.step > symbol.hi else first + symbol.step


def _weights(desc, path, weights):
    """The weights file of a model, mapped for reading; ``None`` if the model contains its weights."""
    if not desc.weights:
        if weights is not None:
            raise OSError(f"{path}: the model contains its weights, and takes no weights file")
        return None
    own = desc.weights.contents
    name = os.fsdecode(own.file_name)
    if name in ("", ".", "..") or "/" in name or "\\" in name:
        raise OSError(f"{path}: the name of its weights file is damaged")
    file = weights if weights is not None else os.path.join(os.path.dirname(path), name)
    size = os.stat(file).st_size
    head = np.fromfile(file, np.uint8, 64).tobytes()
    if head[:12] != b"symwghts" + struct.pack("<I", 1):
        raise OSError(f"{file}: not a weights file of this version")
    if head[32:64] != bytes(own.artefact):
        raise OSError(f"{file}: the weights belong to another artefact than {path}")
    file_bytes, table_offset = struct.unpack_from("<QQ", head, 16)
    if file_bytes != size or table_offset != own.table_offset or table_offset > size:
        raise OSError(f"{file}: the file is truncated, or its header is damaged")
    return np.memmap(file, np.uint8, "r")


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
    if error.code == _STATE_FULL:
        return f"the state has memory for {error.hi} rows; there would be {error.value} after the call"
    place = error.tensor_name.decode() if error.tensor_name else "the call"
    if error.axis != 0xFFFFFFFF and error.tensor != 0xFFFFFFFF:
        place += f" axis {error.axis}"
    symbol = error.symbol_name.decode() if error.symbol_name else "a value"
    why = f" ({error.why.decode()})" if error.why else ""
    return f"{place}: {symbol} = {error.value}, allowed {error.lo}..{error.hi}{why}"
