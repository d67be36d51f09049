"""Compiled models and their calls."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from . import _native, arrays, dtypes, notebook
from . import ragged as raggeds
from . import state as states
from .contract import Contract, Ragged, StateTensor, Symbol, Tensor
from .errors import CallError, UsageError
from .files import staged
from .state import State


class Model:
    """A compiled model, which runs at every size of its contract.

    Models come from :func:`symshape.compile` and :meth:`Model.load`. Several threads may call one model: each gets its
    own working memory, and the interpreter's lock is released during a call.

    Examples
    --------
    >>> model = symshape.compile("mlp.onnx", {"N": (1, 64)})
    >>> y = model(x)                                  # positional inputs; one output, or a tuple
    >>> outputs = model.run({"x": x})                 # by name
    """

    def __init__(
        self,
        native: _native.Model,
        path: pathlib.Path,
        weights: pathlib.Path | None = None,
        folder: Any = None,
        details: dict | None = None,
    ):
        self._native = native
        self._path = path
        self._weights = weights
        self._folder = folder
        self._details = details or {}
        self._threads = 1
        self._local = threading.local()
        self.contract = _contract(native)
        self._input_dtypes = [dtypes.known_dtype(tensor.code) for tensor in self.contract.inputs]
        self._output_dtypes = [dtypes.known_dtype(tensor.code) for tensor in self.contract.outputs]
        self._index = {symbol.name: k for k, symbol in enumerate(self.contract.symbols)}

    @staticmethod
    def load(
        path: str | os.PathLike,
        *,
        weights: str | os.PathLike | None = None,
        verify: bool = False,
        public_key: str | os.PathLike | Sequence[str | os.PathLike] | None = None,
    ) -> Model:
        """Opens a shared object that :meth:`save` or ``symc compile`` has written.

        Opening runs code of the file: open only files that you trust.

        Parameters
        ----------
        weights : path, optional
            The weights file of the model, if it is not the one that was written with it.
        verify : bool
            Compare all bytes of the files with the hashes that they contain, before any code is mapped.
        public_key : str or path, or a sequence of them, optional
            The text of a public key of minisign, or its file. The shared object and its weights file must be signed
            with this key, or with one of several. Both are copied to memory, and later changes of the files have no
            effect. Linux only.

        Raises
        ------
        ArtefactError
            A file is missing or damaged, has no valid signature, or is not a compiled model of this version.
        UsageError
            ``public_key`` is not a public key.
        """
        path = pathlib.Path(path)
        weights = None if weights is None else pathlib.Path(weights)
        if public_key is None:
            public_key = []
        elif isinstance(public_key, (str, os.PathLike)):
            public_key = [public_key]
        native = _native.Model.open(path, weights, verify, [os.fspath(key) for key in public_key])
        name = native.weights_name()
        if weights is None and name is not None:
            weights = path.with_name(name)
        # `save` reads the files later, maybe in another working folder.
        return Model(native, path.absolute(), weights and weights.absolute())

    def save(self, path: str | os.PathLike) -> None:
        """Writes the shared object, and its weights file if it has one. It runs on its own from C, Rust and Python, on
        this operating system and on CPUs with the instructions of this one.

        The weights file is written next to the shared object, under the name that the shared object looks for. It has
        the weights of this model, also after ``load(..., weights=...)``. Files of both names are replaced.

        Raises
        ------
        FileError
            A file can't be written. The file of that name keeps its content.
        """
        path = pathlib.Path(path)
        with staged(path) as file:
            _copy(self._path, file)
            if self._weights is not None:
                self._save_weights(path.parent / self._native.weights_name())

    def _save_weights(self, path: pathlib.Path) -> None:
        # A model that is saved next to itself has its weights file there already.
        if path.exists() and path.samefile(self._weights):
            return
        with staged(path) as file:
            _copy(self._weights, file)

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._native.name()

    @property
    def header(self) -> str | None:
        """The C header of the shared object; ``None`` for a loaded model."""
        return self._details.get("header")

    @property
    def warnings(self) -> list[str]:
        """Sentences about declarations of the model that contradict its operators, and the like."""
        return list(self._details.get("warnings", ()))

    @property
    def notes(self) -> list[str]:
        """Sentences about choices of the compiler, such as sizes that follow from others."""
        return list(self._details.get("notes", ()))

    @property
    def weight_table(self) -> dict | None:
        """The types, sizes and errors of the weights, if ``compile`` was called with ``weights``.

        ``rows`` has a dict for each weight: ``name``, ``shape``, ``type``, ``bytes``, ``f32_bytes``, ``error`` (root
        mean square, relative to the weight), ``output_error`` (of the outputs in a trial run, if only this weight is
        rounded) and ``sensitive``. ``output_error`` is the error with all weights rounded, at the sizes ``at``.
        """
        text = self._details.get("weights")
        return None if text is None else json.loads(text)

    @property
    def threads(self) -> int:
        """The number of threads of a call. The results have the same bits for any number.

        Kernels with scratch memory, such as attention, use no more threads than :func:`compile` has planned for.
        """
        return self._threads

    @threads.setter
    def threads(self, count: int) -> None:
        if not 1 <= count <= 1024:
            raise UsageError(f"threads = {count}: expected 1 to 1024")
        self._threads = count
        self._local = threading.local()

    def arena_bytes(self, **dims: int) -> int:
        """The bytes of working memory of a call at these sizes: ``model.arena_bytes(N=8, S=128)``.

        Raises
        ------
        UsageError
            A symbol is missing or unknown, or a size is outside the contract.
        """
        return self._native.arena_bytes(self._dims(dims))

    def max_dim_for(self, symbol: str, bytes: int, **dims: int) -> int | None:
        """The largest value of ``symbol`` whose calls need at most ``bytes`` of working memory, at these values of the
        other symbols. ``None`` if every value needs more.

        Raises
        ------
        UsageError
            As for :meth:`arena_bytes`.
        """
        if symbol in dims:
            raise UsageError(f"{symbol} is the symbol to solve for; give only the other symbols")
        lows = {name: info.lo for name, info in zip(self._index, self.contract.symbols)}
        known = {symbol: lows[symbol]} if symbol in lows else {}
        return self._native.max_dim(symbol, bytes, self._dims({**dims, **known}))

    def output_shapes(self, **dims: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the outputs at these sizes. A data-dependent size has its upper bound.

        Raises
        ------
        UsageError
            As for :meth:`arena_bytes`.
        """
        values = self._dims(dims)
        outputs = enumerate(self.contract.outputs)
        return {tensor.name: tuple(self._native.output_shape(k, values)) for k, tensor in outputs}

    def new_state(self, capacity: int | None = None, dims: Mapping[str, int] | None = None) -> State:
        """An empty state.

        Parameters
        ----------
        capacity : int, optional
            The rows that there is memory for. The default is the largest capacity of the contract; the system commits
            memory when it is first written. A state without rows has no capacity.
        dims : mapping of symbols to sizes, optional
            Other sizes of the state: ``{"batch": 4}``. The default of each is the smallest one that is not zero.

        Raises
        ------
        StateError
            The model has no state, or a size is unknown or not allowed.
        LimitError
            The system refuses the memory.
        """
        return states.new(self, capacity, dims or {})

    def load_state(self, source: str | os.PathLike | bytes) -> State:
        """The state in a file of :meth:`State.save`, or in the bytes of :meth:`State.to_bytes`.

        Raises
        ------
        StateError
            The content is damaged, cut off, or belongs to another model.
        FileError
            The file can't be read.
        """
        return states.load(self, source)

    def max_capacity(self, bytes: int, dims: Mapping[str, int] | None = None) -> int | None:
        """The largest capacity of a state of at most ``bytes`` bytes, with these other sizes. ``None`` if none fits.

        Raises
        ------
        StateError
            The state has no rows, or a size is unknown or not allowed.
        """
        return _native.State.max_capacity(self._native, bytes, states.sizes(dims or {}))

    def __call__(self, *inputs: Any, state: State | None = None, lengths: Iterable[int] | None = None) -> Any:
        """Calls the model with its inputs in order. Returns the output, or a tuple of all. With ``lengths``, the
        offsets of a ragged batch are not among the inputs.

        Raises
        ------
        CallError
            As for :meth:`run`.
        """
        given = list(inputs)
        if lengths is not None:
            offsets = raggeds.required(self.contract).offsets
            given.insert([tensor.name for tensor in self.contract.inputs].index(offsets), raggeds.offsets(lengths))
        results = tuple(self._call(given, None, state))
        return results[0] if len(results) == 1 else results

    def run(
        self,
        inputs: Mapping[str, Any],
        out: Mapping[str, np.ndarray] | None = None,
        *,
        state: State | None = None,
        lengths: Iterable[int] | None = None,
    ) -> dict[str, np.ndarray]:
        """Calls the model.

        Parameters
        ----------
        inputs : mapping of names to arrays
            NumPy arrays, or CPU arrays of libraries that support DLPack, such as torch, in row-major order and with
            the element types of the contract. They are read in place. The offsets of a ragged batch may have any
            integer type, and are copied to 64-bit integers.
        out : mapping of names to NumPy arrays, optional
            Arrays for some or all outputs, of the exact shapes. They must not overlap with other arrays of the call.
        state : State, optional
            The state of a model with state. The call reads and updates it.
        lengths : iterable of int, optional
            The length of each sequence of a ragged batch, in place of the input of offsets.

        Returns
        -------
        dict of str to numpy.ndarray
            All outputs by name: new arrays, or those of ``out``.

        Raises
        ------
        CallError
            An array is missing, unknown, of another type or shape, or not in row-major order; or the sizes violate the
            contract. Nothing was written then. Or the model has state and none is given, or the state belongs to
            another model, is used by another thread, or has too little capacity; it is unchanged then.
        """
        names = [tensor.name for tensor in self.contract.inputs]
        _check_names("input", inputs, names)
        if lengths is not None:
            offsets = raggeds.required(self.contract).offsets
            if offsets in inputs:
                raise CallError(f"lengths and the input `{offsets}` are given; expected one of them")
            inputs = {**inputs, offsets: raggeds.offsets(lengths)}
        missing = [name for name in names if name not in inputs]
        if missing:
            raise CallError(f"input `{missing[0]}` is missing; the model has {', '.join(names)}")
        outputs = [tensor.name for tensor in self.contract.outputs]
        _check_names("output", out or {}, outputs)
        return dict(zip(outputs, self._call([inputs[name] for name in names], out, state)))

    def pack(self, inputs: Mapping[str, Any], lengths: Iterable[int] | None = None) -> dict[str, Any]:
        """The inputs of a ragged call: the rows of padded inputs that are tokens, and the offsets.

        Parameters
        ----------
        inputs : mapping of names to arrays
            The inputs of the padded model, of equal padded lengths. The mask has 1 for tokens and 0 for padding, and
            the tokens of a sequence are adjacent.
        lengths : iterable of int, optional
            The number of tokens at the beginning of each sequence, in place of the mask.

        Raises
        ------
        CallError
            The model takes no ragged batch; an input is missing, unknown or of another shape; or the mask or the
            lengths are malformed.
        """
        return raggeds.pack(self.contract, inputs, self._tokens(inputs, lengths))

    def pad(
        self, outputs: Mapping[str, np.ndarray], lengths: Iterable[int], *, positions: int | None = None, value: Any = 0
    ) -> dict[str, np.ndarray]:
        """The outputs of the padded model: each sequence is padded at its end with ``value``. Outputs without rows,
        such as pooled ones, stay as they are.

        Parameters
        ----------
        outputs : mapping of names to arrays
            Outputs of a ragged call.
        lengths : iterable of int
            The length of each sequence of the call.
        positions : int, optional
            The padded length. The default is the largest of ``lengths``.
        value : optional
            The elements of padding.

        Raises
        ------
        CallError
            The model takes no ragged batch, or the outputs are not those of these lengths.
        """
        _check_mapping("output", outputs)
        return raggeds.pad(self.contract, outputs, raggeds.tokens_of_lengths(lengths, positions), value)

    def run_padded(
        self, inputs: Mapping[str, Any], *, lengths: Iterable[int] | None = None, value: Any = 0
    ) -> dict[str, np.ndarray]:
        """Calls a model of ragged batches with padded inputs. Padding takes no time in the call.

        Parameters
        ----------
        inputs, lengths
            As for :meth:`pack`.
        value : optional
            The elements of the outputs in place of padding.

        Returns
        -------
        dict of str to numpy.ndarray
            The outputs in the shapes of the padded model.

        Raises
        ------
        CallError
            As for :meth:`pack` and :meth:`run`.
        """
        tokens = self._tokens(inputs, lengths)
        outputs = self.run(raggeds.pack(self.contract, inputs, tokens))
        return raggeds.pad(self.contract, outputs, tokens, value)

    def _tokens(self, inputs: Mapping[str, Any], lengths: Iterable[int] | None) -> np.ndarray:
        _check_mapping("input", inputs)
        return raggeds.tokens_of_inputs(self.contract, inputs, lengths)

    def _call(
        self, inputs: Sequence[Any], out: Mapping[str, np.ndarray] | None, state: State | None
    ) -> list[np.ndarray]:
        native_state = self._native_state(state)
        expected = self.contract.inputs
        if len(inputs) != len(expected):
            raise CallError(f"got {len(inputs)} inputs; the model has {len(expected)}")
        held = [arrays.as_numpy(value) for value in inputs]
        if self.contract.ragged is not None:
            offsets = [tensor.name for tensor in expected].index(self.contract.ragged.offsets)
            held[offsets] = raggeds.widened(held[offsets])
        views = [
            arrays.checked(array, tensor, dtype, "input")
            for array, tensor, dtype in zip(held, expected, self._input_dtypes)
        ]
        context = self._context()
        shapes = context.bind(views, native_state)
        results = [self._output(k, shape, out) for k, shape in enumerate(shapes)]
        targets = [
            arrays.checked(array, tensor, dtype, "output")
            for array, tensor, dtype in zip(results, self.contract.outputs, self._output_dtypes)
        ]
        actual = context.run(views, targets, native_state)
        # A data-dependent output fills the beginning of its memory.
        return [
            array if list(array.shape) == shape else array.reshape(-1)[: int(np.prod(shape))].reshape(shape)
            for array, shape in zip(results, actual)
        ]

    def _native_state(self, state: State | None) -> _native.State | None:
        """The state of a call, which must be given exactly if the model has state."""
        if state is None:
            if self.contract.state:
                raise CallError("the model has state: call it with state=model.new_state(...)")
            return None
        if not isinstance(state, State):
            raise CallError(f"expected a symshape.State; got {type(state).__name__}")
        return state._native

    def _output(self, k: int, shape: list[int], out: Mapping[str, np.ndarray] | None) -> np.ndarray:
        """The array of output ``k``."""
        tensor = self.contract.outputs[k]
        given = (out or {}).get(tensor.name)
        if given is None:
            return np.empty(shape, self._output_dtypes[k] or dtypes.numpy_dtype(tensor.code))
        if not isinstance(given, np.ndarray):
            raise CallError(f"output `{tensor.name}` must be a NumPy array; got {type(given).__name__}")
        if not given.flags.writeable:
            raise CallError(f"output `{tensor.name}` is read-only")
        if list(given.shape) != shape:
            raise CallError(f"output `{tensor.name}` has shape {tuple(shape)} in this call; the array has {given.shape}")
        return given

    def _context(self) -> _native.Context:
        """The working memory of this thread."""
        context = getattr(self._local, "context", None)
        if context is None:
            context = self._local.context = _native.Context(self._native, self._threads)
        return context

    def _dims(self, dims: Mapping[str, int]) -> list[int]:
        unknown = [name for name in dims if name not in self._index]
        known = ", ".join(self._index) or "none"
        if unknown:
            raise UsageError(f"the model has no symbol {unknown[0]}; it has {known}")
        missing = [name for name in self._index if name not in dims]
        if missing:
            raise UsageError(f"the value of {missing[0]} is missing; the symbols are {known}")
        return [dims[name] for name in self._index]

    def __repr__(self) -> str:
        symbols = ", ".join(f"{symbol.name}={symbol.declaration}" for symbol in self.contract.symbols)
        return f"<symshape.Model {self.name}: {symbols or 'no symbols'}>"

    def _repr_html_(self) -> str:
        """The contract, and the page of ``symc report`` for a model that was compiled in this process."""
        return notebook.page(self.name, self.contract, self._details.get("report"))


def _copy(source: pathlib.Path, target: pathlib.Path) -> None:
    shutil.copyfile(source, target)
    shutil.copymode(source, target)


def _check_mapping(role: str, given: Any) -> None:
    if not isinstance(given, Mapping):
        raise CallError(f"expected a mapping of {role} names to arrays; got {type(given).__name__}")


def _check_names(role: str, given: Mapping[str, Any], names: list[str]) -> None:
    _check_mapping(role, given)
    for name in given:
        if name not in names:
            raise CallError(f"the model has no {role} `{name}`; it has {', '.join(names)}")


def _contract(native: _native.Model) -> Contract:
    def tensors(items: list) -> tuple[Tensor, ...]:
        return tuple(Tensor(name, code, tuple(dims)) for name, code, dims in items)

    def symbol(k: int | None) -> Symbol | None:
        return None if k is None else symbols[k]

    symbols = tuple(Symbol(*symbol) for symbol in native.symbols())
    inputs = tensors(native.inputs())
    capacity, length = native.state_symbols()
    return Contract(
        symbols,
        inputs,
        tensors(native.outputs()),
        native.arena_max(),
        native.arena_formula(),
        tuple(StateTensor(given, made, code, tuple(dims), axis) for given, made, code, dims, axis in native.state()),
        native.state_max(),
        symbol(capacity),
        symbol(length),
        _ragged(native.ragged(), inputs, symbols),
    )


def _ragged(description: tuple | None, inputs: tuple[Tensor, ...], symbols: tuple[Symbol, ...]) -> Ragged | None:
    if description is None:
        return None
    offsets, sequences, rows, length, mask, lengths, input_axes, output_axes = description
    return Ragged(
        inputs[offsets].name,
        symbols[sequences],
        symbols[rows],
        Symbol(*length),
        mask,
        lengths,
        tuple(input_axes),
        tuple(output_axes),
    )
