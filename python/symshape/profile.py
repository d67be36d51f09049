"""Profiles: the time of each kernel of a model, next to a lower bound of that time on this machine."""

from __future__ import annotations

import html
import os
import pathlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from . import _native
from . import ragged as raggeds
from .compiler import Dim, _request, _size
from .errors import CallError, FileError, UsageError


@dataclass(frozen=True)
class KernelTime:
    """The time of one kernel in a call."""

    #: The kind of work and the node that the kernel comes from.
    name: str
    #: Median time in nanoseconds, on one thread.
    ns: float
    #: Lower bound of the time on this machine, in nanoseconds; None if the work depends on data.
    bound_ns: float | None
    #: Multiply-adds of contractions.
    multiplications: float
    #: Bytes that are read or written at least once.
    bytes: float

    @property
    def share(self) -> float | None:
        """The part of the machine's speed that the kernel reaches."""
        return None if self.bound_ns is None else self.bound_ns / max(self.ns, 1.0)


@dataclass(frozen=True)
class Profile:
    """The times of all kernels, for each of the measured sizes. A notebook shows it as a page."""

    #: The size of each symbol, for each profile; with ``lengths``, the lengths of the sequences.
    at: list[dict[str, int] | list[int]]
    #: Median time of a call in nanoseconds, for each profile.
    call_ns: list[float]
    #: The kernels in the order in which they run, for each profile.
    kernels: list[list[KernelTime]]
    #: The page of ``symc report --profile``.
    page: str

    def save(self, path: str | os.PathLike) -> None:
        """Writes the page. A later profile can be compared with it: ``profile(..., baseline=path)``."""
        try:
            pathlib.Path(path).write_text(self.page, encoding="utf-8")
        except OSError as error:
            raise FileError(f"{path}: {error}") from error

    def _repr_html_(self) -> str:
        page = html.escape(self.page, quote=True)
        return f"<iframe srcdoc='{page}' style='width:100%;height:900px;border:0'></iframe>"

    def __repr__(self) -> str:
        calls = ", ".join(f"{at}: {ns / 1e3:.1f} us" for at, ns in zip(self.at, self.call_ns))
        return f"Profile({calls})"


def profile(
    model: Any,
    dims: Mapping[str, Dim] | None = None,
    *,
    at: Mapping[str, int] | Iterable[Mapping[str, int]] = (),
    lengths: Iterable[int] | Iterable[Iterable[int]] = (),
    baseline: str | os.PathLike | None = None,
    **options: Any,
) -> Profile:
    """Compiles a model and measures its kernels in calls with seeded inputs, on one thread.

    Parameters
    ----------
    model, dims
        As for :func:`compile`.
    at : mapping of symbols to sizes, or several
        The sizes of the calls: ``{"N": 8, "S": 128}``. Sequences of a ragged batch have almost equal lengths.
    lengths : list of integers, or several
        The lengths of the sequences of ragged calls: ``[12, 300, 45]``. The model is compiled with ``ragged``.
    baseline : path, optional
        A page of an earlier profile, whose times the new page shows next to the new ones.
    **options
        The other arguments of :func:`compile`, except ``progress``, ``stateful`` and ``state``.

    Returns
    -------
    Profile

    Raises
    ------
    UsageError
        A symbol has no size, or one outside its range; a length is outside the range of lengths; or ``baseline`` is not
        such a page.
    SymshapeError
        As :func:`compile`.
    """
    if options.get("stateful") or options.get("state"):
        raise UsageError("calls of a model with state can't be profiled: profile it without `stateful` and `state`")
    chosen = [dict(at)] if isinstance(at, Mapping) else [dict(sizes) for sizes in at]
    chosen_lengths = _lengths(lengths)
    if not chosen and not chosen_lengths:
        raise UsageError("at: expected the sizes of at least one call, or lengths")
    sizes = [[(symbol, _size(symbol, size)) for symbol, size in sizes.items()] for sizes in chosen]
    source, path, request = _request(model, dims, **options)
    earlier = None if baseline is None else pathlib.Path(baseline)
    measured = _native.profile(source, path, request, sizes, chosen_lengths, earlier)
    profiles = measured["profiles"]
    kernels = [[KernelTime(*row) for row in rows] for _, rows in profiles]
    return Profile([*chosen, *chosen_lengths], [call_ns for call_ns, _ in profiles], kernels, measured["page"])


def _lengths(lengths: Iterable[int] | Iterable[Iterable[int]]) -> list[list[int]]:
    """A list of lengths for each call."""
    given = list(lengths)
    is_list = [hasattr(item, "__len__") for item in given]
    calls = given if all(is_list) else [given]
    try:
        return [raggeds.checked_lengths(call).tolist() for call in calls]
    except CallError as error:
        raise UsageError(str(error)) from error
