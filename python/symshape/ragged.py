"""Ragged batches: rows of sequences that follow each other, and padded tensors of the same sequences.

The padded tensors have an axis of sequences and an axis of positions. An array ``tokens`` of bools, ``[sequences,
positions]``, tells which places are tokens; the others are padding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from . import arrays
from .contract import Contract, Ragged, Tensor
from .errors import CallError


def required(contract: Contract) -> Ragged:
    """The ragged batch of a model.

    Raises
    ------
    CallError
        The model has none.
    """
    if contract.ragged is None:
        raise CallError("the model takes no ragged batch: compile it with ragged=")
    return contract.ragged


def offsets(lengths: Iterable[int]) -> np.ndarray:
    """The first row of each sequence, and at last the number of rows."""
    lengths = checked_lengths(lengths)
    result = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=result[1:])
    return result


def widened(array: np.ndarray) -> np.ndarray:
    """Offsets of any integer type as 64-bit integers. Other arrays stay as they are.

    Raises
    ------
    CallError
        An offset exceeds 64 bits.
    """
    if array.dtype.kind not in "iu" or array.dtype == np.int64:
        return array
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise CallError(f"offset {array.max()} exceeds 64-bit integers")
    return array.astype(np.int64)


def checked_lengths(lengths: Iterable[int]) -> np.ndarray:
    """The lengths as an array of 64-bit integers."""
    try:
        array = np.asarray(lengths if hasattr(lengths, "__len__") else list(lengths))
    except (TypeError, ValueError) as error:
        raise CallError(f"lengths must be a list of integers: {error}") from error
    if array.size == 0 and array.ndim == 1:
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise CallError(f"lengths must be a list of integers; got {array.dtype}{list(array.shape)}")
    wrong = np.flatnonzero((array < 0) | (array > np.iinfo(np.int32).max))
    if len(wrong):
        raise CallError(f"lengths[{wrong[0]}] = {array[wrong[0]]} is not a length")
    return array.astype(np.int64)


def tokens_of_lengths(lengths: Iterable[int], positions: int | None = None) -> np.ndarray:
    """The places of tokens if padding follows them. ``positions`` is the padded length, by default the longest one."""
    lengths = checked_lengths(lengths)
    longest = int(lengths.max(initial=0))
    positions = longest if positions is None else positions
    if longest > positions:
        idx = int(lengths.argmax())
        raise CallError(f"lengths[{idx}] = {longest}; the padded length is {positions}")
    return np.arange(positions) < lengths[:, None]


def _tokens_of_mask(mask: np.ndarray, name: str) -> np.ndarray:
    if mask.ndim != 2:
        raise CallError(f"the mask `{name}` must have two axes; got {mask.ndim}")
    tokens = mask != 0
    wrong = np.argwhere(tokens & (mask != 1))
    if len(wrong):
        row, column = wrong[0]
        raise CallError(f"`{name}`[{row}, {column}] = {mask[row, column]}; a mask has 1 for tokens and 0 for padding")
    is_first = tokens & ~np.pad(tokens, ((0, 0), (1, 0)))[:, :-1]
    wrong = np.flatnonzero(is_first.sum(axis=1) > 1)
    if len(wrong):
        raise CallError(f"sequence {wrong[0]} of `{name}` has padding between tokens; the tokens must be adjacent")
    return tokens


def tokens_of_inputs(contract: Contract, inputs: Mapping[str, Any], lengths: Iterable[int] | None) -> np.ndarray:
    """The places of tokens in padded inputs: those of the mask, or those of ``lengths``.

    Raises
    ------
    CallError
        There is no mask and no lengths, or both; or they are malformed.
    """
    ragged = required(contract)
    has_mask = ragged.mask is not None and ragged.mask in inputs
    if ragged.lengths is not None and ragged.lengths in inputs:
        if lengths is not None:
            raise CallError(f"lengths and the input `{ragged.lengths}` are given; expected one of them")
        lengths = arrays.as_numpy(inputs[ragged.lengths])
    if has_mask and lengths is not None:
        raise CallError(f"lengths and the mask `{ragged.mask}` are given; expected one of them")
    if has_mask:
        return _tokens_of_mask(arrays.as_numpy(inputs[ragged.mask]), ragged.mask)
    if lengths is None:
        mask = "the model has no mask" if ragged.mask is None else f"the mask `{ragged.mask}` is missing"
        mask = mask if ragged.lengths is None else f"the input `{ragged.lengths}` is missing"
        raise CallError(f"{mask}; give it or lengths=")
    for tensor, axis in zip(contract.inputs, ragged.input_batch_axes):
        if axis is not None and tensor.name in inputs:
            padded = _padded(arrays.as_numpy(inputs[tensor.name]), tensor, ragged, axis)
            return tokens_of_lengths(lengths, padded.shape[1])
    return tokens_of_lengths(lengths)


def pack(contract: Contract, inputs: Mapping[str, Any], tokens: np.ndarray) -> dict[str, Any]:
    """The inputs of a ragged call: the rows of ``tokens`` in padded inputs, and the offsets.

    Raises
    ------
    CallError
        An input is missing or unknown, or its shape is not that of ``tokens``.
    """
    ragged = required(contract)
    names = [tensor.name for tensor in contract.inputs if tensor.name != ragged.offsets]
    for name in inputs:
        if name not in (*names, ragged.mask, ragged.lengths):
            known = ", ".join([*names, *filter(None, [ragged.mask, ragged.lengths])])
            raise CallError(f"the padded model has no input `{name}`; it has {known}")
    packed: dict[str, Any] = {}
    for tensor, axis in zip(contract.inputs, ragged.input_batch_axes):
        if tensor.name == ragged.offsets:
            packed[tensor.name] = offsets(tokens.sum(axis=1))
            continue
        if tensor.name not in inputs:
            raise CallError(f"input `{tensor.name}` is missing; the padded model has {', '.join(names)}")
        packed[tensor.name] = inputs[tensor.name]
        if axis is None and ragged.rows.name in tensor.dims:
            packed[tensor.name] = _shared_rows(arrays.as_numpy(inputs[tensor.name]), tensor, ragged, tokens)
        if axis is not None:
            padded = _padded(arrays.as_numpy(inputs[tensor.name]), tensor, ragged, axis)
            if padded.shape[:2] != tokens.shape:
                raise CallError(
                    f"input `{tensor.name}` has {padded.shape[0]} sequences of {padded.shape[1]} positions; "
                    f"expected {tokens.shape[0]} of {tokens.shape[1]}"
                )
            rows = tensor.dims.index(ragged.rows.name)
            packed[tensor.name] = np.ascontiguousarray(np.moveaxis(padded[tokens], 0, rows))
    return packed


def _shared_rows(array: np.ndarray, tensor: Tensor, ragged: Ragged, tokens: np.ndarray) -> np.ndarray:
    """The rows of all sequences, from those that the sequences share in the padded model, such as positions."""
    rows = tensor.dims.index(ragged.rows.name)
    if array.ndim != len(tensor.dims) or array.shape[rows] != tokens.shape[1]:
        dims = ", ".join(ragged.length.name if dim == ragged.rows.name else dim for dim in tensor.dims)
        raise CallError(
            f"input `{tensor.name}` has shape {array.shape}; expected [{dims}] with {tokens.shape[1]} positions"
        )
    return np.take(array, np.nonzero(tokens)[1], axis=rows)


def pad(
    contract: Contract, outputs: Mapping[str, np.ndarray], tokens: np.ndarray, value: Any
) -> dict[str, np.ndarray]:
    """The outputs of the padded model, with ``value`` in place of padding. Outputs without rows stay as they are.

    Raises
    ------
    CallError
        An output is unknown, or has another number of rows than there are tokens.
    """
    ragged = required(contract)
    known = {tensor.name: (tensor, axis) for tensor, axis in zip(contract.outputs, ragged.output_batch_axes)}
    padded = {}
    for name, output in outputs.items():
        if name not in known:
            raise CallError(f"the model has no output `{name}`; it has {', '.join(known)}")
        tensor, batch = known[name]
        padded[name] = output if batch is None else _pad(arrays.as_numpy(output), tensor, ragged, batch, tokens, value)
    return padded


def _pad(
    output: np.ndarray, tensor: Tensor, ragged: Ragged, batch: int, tokens: np.ndarray, value: Any
) -> np.ndarray:
    axis = tensor.dims.index(ragged.rows.name)
    count = int(tokens.sum())
    if output.ndim != len(tensor.dims) or output.shape[axis] != count:
        dims = ", ".join(tensor.dims)
        raise CallError(f"output `{tensor.name}` has shape {output.shape}; expected [{dims}] with {count} rows")
    rows = np.moveaxis(output, axis, 0)
    padded = np.full((*tokens.shape, *rows.shape[1:]), value, output.dtype)
    padded[tokens] = rows
    return np.ascontiguousarray(np.moveaxis(padded, (0, 1), (batch, _positions(tensor, ragged, batch))))


def _padded(array: np.ndarray, tensor: Tensor, ragged: Ragged, batch: int) -> np.ndarray:
    """A padded input with its sequences and its positions as the first axes."""
    if array.ndim != len(tensor.dims) + 1:
        dims = [*tensor.dims[:batch], ragged.sequences.name, *tensor.dims[batch:]]
        dims[_positions(tensor, ragged, batch)] = ragged.length.name
        raise CallError(f"input `{tensor.name}` has {array.ndim} axes; the padded one has [{', '.join(dims)}]")
    return np.moveaxis(array, (batch, _positions(tensor, ragged, batch)), (0, 1))


def _positions(tensor: Tensor, ragged: Ragged, batch: int) -> int:
    """The axis of positions in the padded tensor, which has the sequences as its axis ``batch``."""
    rows = tensor.dims.index(ragged.rows.name)
    return rows if rows < batch else rows + 1
