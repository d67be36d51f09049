"""Parts of the peers of several benchmarks: packages and files that may be missing, and the clock."""

import importlib
import time


class Missing(Exception):
    """A peer that can't be measured, with the reason."""


def imported(name):
    """The package of this name. Raises `Missing` without it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Missing(f"{error}: see requirements.txt") from error


def existing(path):
    """The path itself. Raises `Missing` if nothing is there."""
    if not path.exists():
        raise Missing(f"{path} is missing: see prepare.py")
    return path


def timed(function):
    """The time of a call in nanoseconds."""
    start = time.perf_counter_ns()
    function()
    return time.perf_counter_ns() - start
