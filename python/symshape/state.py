"""States: the memory that a model keeps from call to call."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _native, arrays, dtypes
from .errors import FileError, StateError
from .files import staged

if TYPE_CHECKING:
    from .model import Model


class State:
    """The state of one sequence, or of a batch of sequences of one length: the cache of a decoder, the hidden values of
    a recurrent net.

    States come from :meth:`Model.new_state` and :meth:`Model.load_state`. A call reads a state and updates it; one call
    at a time may use it.

    Examples
    --------
    >>> state = model.new_state(capacity=1024)
    >>> logits = model(prompt, state=state)          # appends the rows of the prompt
    >>> other = state.fork()                         # a second continuation
    >>> state.truncate(state.length - 1)             # forgets the last row
    """

    def __init__(self, native: _native.State, model: Model):
        self._native = native
        self._model = model

    @property
    def model(self) -> Model:
        """The model that it belongs to."""
        return self._model

    @property
    def length(self) -> int:
        """The number of rows: of tokens that a decoder has read. 0 if the state has no rows."""
        return self._native.sizes()[0]

    @property
    def capacity(self) -> int:
        """The number of rows that there is memory for. 0 if the state has no rows."""
        return self._native.sizes()[1]

    @property
    def nbytes(self) -> int:
        """The bytes of the memory. The system commits most of it when it is first written."""
        return self._native.sizes()[2]

    def reset(self) -> None:
        """Forgets everything: no rows, and zeros in the tensors that calls overwrite."""
        self._native.reset()

    def truncate(self, length: int) -> None:
        """Forgets the rows after the first ``length`` ones. The next call appends after them.

        Raises
        ------
        StateError
            There are fewer rows, or calls overwrite a tensor of the state, whose earlier values are gone.
        """
        self._native.truncate(_count("length", length))

    def fork(self) -> State:
        """A copy with the same content and capacity. Only the valid rows are copied.

        Raises
        ------
        LimitError
            The system refuses the memory.
        """
        return State(self._native.fork(), self._model)

    def to_bytes(self) -> bytes:
        """The content, for :meth:`Model.load_state`: the valid rows only."""
        return self._native.save()

    def save(self, path: str | os.PathLike) -> None:
        """Writes the content to a file, for :meth:`Model.load_state`.

        Raises
        ------
        FileError
            The file can't be written. A file of that name keeps its content.
        """
        content = self.to_bytes()
        with staged(pathlib.Path(path)) as file:
            file.write_bytes(content)

    def tensors(self) -> dict[str, np.ndarray]:
        """Copies of the tensors by the names of their inputs, with the valid rows only."""
        return {info.input: self._tensor(k) for k, info in enumerate(self._model.contract.state)}

    def _tensor(self, k: int) -> np.ndarray:
        shape, content = self._native.tensor(k)
        dtype = dtypes.numpy_dtype(self._model.contract.state[k].code)
        return np.frombuffer(content, dtype).reshape(shape).copy()

    def set(self, tensors: Mapping[str, Any]) -> None:
        """Sets all tensors by the names of their inputs, and with them the number of rows: the beginning of a
        conversation that another program has computed.

        Raises
        ------
        StateError
            A tensor is missing or unknown, a shape differs, or the numbers of rows differ or exceed the capacity.
            The state is unchanged then.
        CallError
            A tensor has another type, or is not in row-major order.
        """
        infos = self._model.contract.state
        names = [info.input for info in infos]
        unknown = [name for name in tensors if name not in names]
        missing = [name for name in names if name not in tensors]
        if unknown or missing:
            problem = f"has no tensor `{unknown[0]}`" if unknown else f"needs `{missing[0]}`, which is missing"
            raise StateError(f"the state {problem}; it has {', '.join(names)}")
        held = [arrays.as_numpy(tensors[name]) for name in names]
        views = [
            arrays.checked(array, info.tensor, dtypes.known_dtype(info.code), "state")
            for array, info in zip(held, infos)
        ]
        self._native.set(views)

    def __repr__(self) -> str:
        length, capacity, nbytes = self._native.sizes()
        return f"<symshape.State of {self._model.name}: {length} of {capacity} rows, {nbytes} bytes>"


def new(model: Model, capacity: int | None, dims: Mapping[str, int]) -> State:
    """An empty state."""
    if capacity is None:
        capacity = model.contract.state_capacity.hi if model.contract.state_capacity else 0
    native = _native.State(model._native, _count("capacity", capacity), sizes(dims))
    return State(native, model)


def load(model: Model, source: str | os.PathLike | bytes) -> State:
    """The state in a file, or in bytes."""
    if not isinstance(source, (bytes, bytearray, memoryview)):
        try:
            source = pathlib.Path(source).read_bytes()
        except OSError as error:
            raise FileError(f"{source}: {error.strerror or error}") from error
    return State(_native.State.load(model._native, bytes(source)), model)


def sizes(dims: Mapping[str, int]) -> list[tuple[str, int]]:
    """The other sizes of a state for the native part."""
    return [(name, _count(name, value)) for name, value in dims.items()]


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise StateError(f"{name} = {value!r}: expected a number that is not negative")
    return int(value)
