"""Compilation of models."""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from . import _native, dtypes
from .errors import UsageError
from .model import Model

#: A declaration of a symbol: ``(lo, hi)`` with both ends, a ``range``, a set or list of values, one value, or a text in
#: a form of ``symc --dim``: ``"8..64/8"``, ``"1,2,4"`` or an expression over other symbols, ``"P + S"``.
Dim = tuple | range | set | list | int | str


def compile(
    model: Any,
    dims: Mapping[str, Dim] | None = None,
    *,
    example_inputs: tuple | None = None,
    dynamic_shapes: Any = None,
    inputs: Mapping[str, Iterable] | None = None,
    bind: Mapping[str, Any] | None = None,
    bounds: str | os.PathLike | None = None,
    custom: Iterable[str] = (),
    libraries: Iterable[str | os.PathLike] = (),
    stateful: bool = False,
    state: Mapping[str, str] | None = None,
    state_type: str | None = None,
    ragged: str | None = None,
    ragged_batch: str | None = None,
    mask: str | None = None,
    max_rows: int | None = None,
    name: str | None = None,
    cpu: str | None = None,
    precision: str = "f32",
    weights: str | None = None,
    named_weights: Mapping[str, str] | None = None,
    weight_error: float | None = None,
    activations: str = "f32",
    threads: int = 1,
    progress: bool | Callable[[str], None] = False,
) -> Model:
    """Compiles a model once, for every size that its symbols may take.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto, torch.export.ExportedProgram or torch.nn.Module
        The model. A module of torch needs ``example_inputs``; torch is imported only for its own models.
    dims : mapping of symbols to declarations
        The sizes of each symbol: ``{"N": (1, 64), "S": range(16, 513, 16), "T": "P + S"}``. A symbol that must be equal
        to an expression over others need not be declared.
    example_inputs : tuple, optional
        Inputs of a torch module.
    dynamic_shapes : optional
        The dynamic dims of a torch module, as for ``torch.export.export``. Ranges of ``torch.export.Dim`` become the
        ranges of symbols that ``dims`` lacks.
    inputs : mapping of names to shapes, optional
        Shapes that replace those of the model: ``{"mask": ("N", "P + S")}``.
    bind : mapping of names to arrays, optional
        Inputs that are constants.
    bounds : path, optional
        A bounds.json with declarations of symbols that ``dims`` lacks.
    custom : iterable of str, optional
        Declarations of custom operators, as for ``symc --custom``; ``libraries`` define their functions.
    libraries : iterable of paths, optional
        Shared or static libraries.
    stateful : bool, optional
        Whether to find inputs that are outputs of the call before, and keep them in a :class:`State`.
    state : mapping of inputs to outputs, optional
        Such inputs: ``{"state": "stateN"}``. One ``*`` in both names stands for any text, as in
        ``{"past_key_values.*": "present.*"}``. It is an error if a pair can't be state.
    state_type : str, optional
        The type that appended rows of ``f32`` are stored in: ``f16`` or ``bf16``. ``symc compile --state-type``
        measures the error.
    ragged : str, optional
        The symbol of the padded length: calls take the rows of sequences of different lengths, and compute nothing for
        padding. See :meth:`Model.run_padded`.
    ragged_batch : str, optional
        With ``ragged``: the symbol of the batch, if several are possible.
    mask : str, optional
        With ``ragged``: the input that is 1 for tokens and 0 for padding, or the lengths of the sequences. The default
        is the one that a proof finds.
    max_rows : int, optional
        With ``ragged``: the largest number of rows of a call. By default, all sequences may have the largest length.
    name : str, optional
        The name of the model, a C identifier. The default is the name of the file.
    cpu : str, optional
        The ISA levels, as for ``symc --cpu``. The default is that of this machine.
    precision : str, optional
        ``f32``, ``bf16x3`` or ``bf16``, as for ``symc --precision``.
    weights : str, optional
        The type that weights of matrix products and look-ups are stored in: ``int8``, ``int4``, ``int4:64``, ``f16``,
        ``bf16`` or ``f32``. :attr:`Model.weight_table` has the errors and sizes.
    named_weights : mapping of names to types, optional
        Types of single weights: ``{"lm_head.weight": "int8"}``.
    weight_error : float, optional
        A weight keeps more bits if it alone causes a larger error of an output, see ``symc --weight-error``. Infinity
        skips the trial runs.
    activations : str, optional
        ``int8`` rounds the activations of products whose weights have few bits, by row and block of the weights.
        :attr:`Model.notes` says how far that moves the outputs of a trial run.
    threads : int, optional
        The number of threads of a call that the plan assumes, and the initial :attr:`Model.threads`.
    progress : bool or callable, optional
        True shows a progress bar (of the package tqdm, if it is installed, otherwise lines on standard error). A
        callable is called with the name of each step after it has run. An exception that it raises ends the compilation.

    Returns
    -------
    Model

    Raises
    ------
    ModelError
        The model is malformed.
    UnsupportedError
        The model needs an operator or feature that symshape lacks. The message names all such nodes.
    ContractError
        A symbol has no upper bound. The message lists the symbols.
    UsageError
        An argument is wrong.
    FileError
        A file can't be read or written.
    """
    source, path, options = _request(
        model, dims, example_inputs=example_inputs, dynamic_shapes=dynamic_shapes, inputs=inputs, bind=bind,
        bounds=bounds, custom=custom, libraries=libraries, stateful=stateful, state=state, state_type=state_type,
        ragged=ragged, ragged_batch=ragged_batch, mask=mask, max_rows=max_rows, name=name, cpu=cpu, precision=precision,
        weights=weights, named_weights=named_weights, weight_error=weight_error,
        activations=activations, threads=threads,
    )
    folder = tempfile.TemporaryDirectory(prefix="symshape-")
    artefact = pathlib.Path(folder.name) / "model.so"
    with _observer(progress) as observer:
        details = _native.compile(source, path, artefact, options, observer)
    compiled = Model(_native.Model.open(artefact), artefact, folder=folder, details=details)
    compiled.threads = threads
    return compiled


def _request(
    model: Any,
    dims: Mapping[str, Dim] | None,
    *,
    example_inputs: tuple | None = None,
    dynamic_shapes: Any = None,
    inputs: Mapping[str, Iterable] | None = None,
    bind: Mapping[str, Any] | None = None,
    bounds: str | os.PathLike | None = None,
    custom: Iterable[str] = (),
    libraries: Iterable[str | os.PathLike] = (),
    stateful: bool = False,
    state: Mapping[str, str] | None = None,
    state_type: str | None = None,
    ragged: str | None = None,
    ragged_batch: str | None = None,
    mask: str | None = None,
    max_rows: int | None = None,
    name: str | None = None,
    cpu: str | None = None,
    precision: str = "f32",
    weights: str | None = None,
    named_weights: Mapping[str, str] | None = None,
    weight_error: float | None = None,
    activations: str = "f32",
    threads: int = 1,
) -> tuple[bytes | None, Any, dict]:
    """The bytes of a model or its path, and the options as texts."""
    source, path, ranges = _source(model, example_inputs, dynamic_shapes)
    declared = {**ranges, **(dims or {})}
    if not isinstance(threads, int) or not 1 <= threads <= 1024:
        raise UsageError(f"threads = {threads}: expected 1 to 1024")
    extra = {"ragged_batch": ragged_batch, "mask": mask, "max_rows": max_rows}
    for option, value in extra.items():
        if ragged is None and value is not None:
            raise UsageError(f"{option} = {value!r}: it needs ragged, the symbol of the length")
    if max_rows is not None and (not isinstance(max_rows, int) or not 1 <= max_rows < 1 << 63):
        raise UsageError(f"max_rows = {max_rows!r}: expected a number of at least 1")
    options = {
        "name": name or (None if path else "model"),
        "dims": [f"{symbol}={_declaration(symbol, value)}" for symbol, value in declared.items()],
        "inputs": [_shape(tensor, shape) for tensor, shape in (inputs or {}).items()],
        "binds": [_constant(tensor, value) for tensor, value in (bind or {}).items()],
        "customs": list(custom),
        "libraries": [pathlib.Path(library) for library in libraries],
        "stateful": bool(stateful),
        "state": [f"{given}={made}" for given, made in (state or {}).items()],
        "state_type": state_type,
        "ragged": ragged,
        **extra,
        "bounds": None if bounds is None else _text(pathlib.Path(bounds)),
        "cpu": cpu,
        "precision": precision,
        "weights": weights,
        "named_weights": [f"{weight}={value}" for weight, value in (named_weights or {}).items()],
        "weight_error": None if weight_error is None else float(weight_error),
        "activations": activations,
        "threads": threads,
    }
    return source, path, options


def _source(model: Any, example_inputs: tuple | None, dynamic_shapes: Any) -> tuple[bytes | None, Any, dict]:
    """The bytes of a model or its path, and declarations that it brings along."""
    if isinstance(model, (str, os.PathLike)):
        return None, pathlib.Path(model), {}
    if isinstance(model, (bytes, bytearray, memoryview)):
        return bytes(model), None, {}
    if hasattr(model, "SerializeToString"):
        return model.SerializeToString(), None, {}
    if type(model).__module__.startswith("torch.export") or hasattr(model, "named_parameters"):
        from . import torch

        return torch.exported(model, example_inputs, dynamic_shapes)
    raise UsageError(
        f"a model is a path, bytes, an onnx.ModelProto or a torch model; got {type(model).__name__}"
    )


def _declaration(symbol: str, value: Dim) -> str:
    """The declaration as a text in a form of ``symc --dim``."""
    if isinstance(value, str):
        return value
    if isinstance(value, range):
        if len(value) == 0 or value.step < 1:
            raise UsageError(f"{symbol}: {value} has no ascending values")
        return f"{value[0]}..{value[-1]}/{value.step}"
    if isinstance(value, tuple):
        if len(value) != 2:
            raise UsageError(f"{symbol}: {value} is not a range (lo, hi)")
        lo, hi = value
        return f"{_size(symbol, lo)}..{'' if hi is None else _size(symbol, hi)}"
    if isinstance(value, (set, frozenset, list)) and value:
        return ",".join(str(_size(symbol, item)) for item in sorted(value))
    return str(_size(symbol, value))


def _size(symbol: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise UsageError(f"{symbol}: {value!r} is not a size")
    return int(value)


def _shape(tensor: str, shape: Iterable) -> str:
    dims = [str(dim) for dim in shape]
    return f"{tensor}={','.join(dims) if dims else '()'}"


def _constant(tensor: str, value: Any) -> tuple[str, int, list[int], bytes]:
    array = np.ascontiguousarray(value)
    code = dtypes.code(array.dtype)
    if code is None:
        raise UsageError(f"the constant of `{tensor}` has the type {array.dtype}, which models don't have")
    return tensor, code, list(np.shape(value)), array.tobytes()


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        from .errors import FileError

        raise FileError(f"{path}: {error}") from error


class _observer:
    """The function that the compiler calls after each step, and the bar that it moves."""

    def __init__(self, progress: bool | Callable[[str], None]):
        self.progress = progress
        self.bar = None

    def __enter__(self) -> Callable[[str], None] | None:
        if callable(self.progress):
            return self.progress
        if not self.progress:
            return None
        try:
            from tqdm.auto import tqdm
        except ImportError:
            import sys

            return lambda step: print(f"symshape: {step}", file=sys.stderr)
        self.bar = tqdm(total=_native.steps, desc="compiling", unit="step")

        def advance(step: str) -> None:
            self.bar.set_postfix_str(step, refresh=False)
            self.bar.update()

        return advance

    def __exit__(self, *_: Any) -> None:
        if self.bar is not None:
            self.bar.close()
