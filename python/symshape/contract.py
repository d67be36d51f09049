"""The contract of a compiled model, as data."""

from __future__ import annotations

import dataclasses

from . import dtypes


@dataclasses.dataclass(frozen=True)
class Symbol:
    """A size that the caller chooses.

    Attributes
    ----------
    name : str
    lo, hi : int
        The smallest and the largest value; ``hi`` is ``None`` without an upper bound.
    count : int
        The number of allowed values: less than ``hi - lo + 1`` for ranges with a step and for sets of values.
    declaration : str
        The declaration as text, such as ``1..=64`` or ``8..=64 in steps of 8``.
    """

    name: str
    lo: int
    hi: int | None
    count: int
    declaration: str


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An input or output: a dense array in row-major order.

    Attributes
    ----------
    name : str
    code : int
        ONNX's number of the element type.
    dims : tuple of str
        The dims over the symbols, such as ``N``, ``2*S + 1`` or ``3``.
    """

    name: str
    code: int
    dims: tuple[str, ...]

    @property
    def dtype(self) -> str:
        """The name of the element type, such as ``float32``."""
        return dtypes.name(self.code)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(self.dims)}]"


@dataclasses.dataclass(frozen=True)
class StateTensor:
    """A tensor of the state: an input that is an output of the call before.

    Attributes
    ----------
    input, output : str
        The names in the model.
    code : int
        ONNX's number of the element type.
    dims : tuple of str
        The dims in memory. The number of rows is the capacity of the state.
    axis : int or None
        The axis of the rows that a call appends; ``None`` if a call overwrites the tensor.
    """

    input: str
    output: str
    code: int
    dims: tuple[str, ...]
    axis: int | None

    @property
    def dtype(self) -> str:
        """The name of the element type, such as ``float32``."""
        return dtypes.name(self.code)

    @property
    def tensor(self) -> Tensor:
        """The input."""
        return Tensor(self.input, self.code, self.dims)

    def __str__(self) -> str:
        kind = "overwritten" if self.axis is None else f"rows along axis {self.axis}"
        return f"{self.tensor}, {kind}"


@dataclasses.dataclass(frozen=True)
class Ragged:
    """A batch of sequences of different lengths, whose rows follow each other.

    Attributes
    ----------
    offsets : str
        The input that holds the first row of each sequence, and at last the number of rows.
    sequences, rows : Symbol
        The number of sequences of a call, and the number of their rows.
    length : Symbol
        The length of each sequence. It is not one of the symbols of the contract.
    mask : str or None
        The input of the padded model that is 1 for tokens and 0 for padding. Ragged calls don't take it.
    lengths : str or None
        The input of the padded model that is the length of each sequence. Ragged calls don't take it.
    input_batch_axes, output_batch_axes : tuple of int or None
        For each input and output, the axis of the sequences in the padded model; ``None`` if it has no rows.
    """

    offsets: str
    sequences: Symbol
    rows: Symbol
    length: Symbol
    mask: str | None
    lengths: str | None
    input_batch_axes: tuple[int | None, ...]
    output_batch_axes: tuple[int | None, ...]

    def __str__(self) -> str:
        return f"{self.length.name} in {self.length.declaration}, of each sequence in `{self.offsets}`"


@dataclasses.dataclass(frozen=True)
class Contract:
    """All that a call must keep to.

    Attributes
    ----------
    symbols : tuple of Symbol
    inputs, outputs : tuple of Tensor
    arena_max : int
        The upper bound of the bytes of working memory of a call.
    arena_formula : str
        The bytes of working memory of a call, over the symbols.
    state : tuple of StateTensor
        The tensors that a call keeps in a :class:`symshape.State`; empty for a model without state.
    state_max : int
        The bytes of the largest state.
    state_capacity, state_length : Symbol or None
        The symbols that are the rows that a state has memory for, and the rows before a call; ``None`` without rows.
    ragged : Ragged or None
        How a call takes sequences of different lengths; ``None`` for a model that takes equal ones.
    """

    symbols: tuple[Symbol, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    arena_max: int
    arena_formula: str
    state: tuple[StateTensor, ...] = ()
    state_max: int = 0
    state_capacity: Symbol | None = None
    state_length: Symbol | None = None
    ragged: Ragged | None = None

    def __str__(self) -> str:
        lines = [f"{symbol.name} in {symbol.declaration}" for symbol in self.symbols]
        lines += [str(self.ragged)] if self.ragged else []
        lines += [f"input {tensor}" for tensor in self.inputs]
        lines += [f"output {tensor}" for tensor in self.outputs]
        lines += [f"state {tensor}" for tensor in self.state]
        return "\n".join([*lines, f"arena at most {self.arena_max} bytes"])
