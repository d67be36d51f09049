"""Runs a function in a child process, so that a fault ends only the child."""

import os
import pickle
import signal
import sys
import traceback


class Died(Exception):
    """The child ended without a result."""


def run(function, seconds):
    """The result of `function()`, which must be one that pickle can copy."""
    sys.stdout.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            signal.alarm(seconds)
            result = pickle.dumps(function())
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(result)
            sys.stdout.flush()
            status = 0
        except BaseException:
            traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)

    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        result = pipe.read()
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise Died(signal.Signals(status & 127).name if status & 127 else f"exit code {status >> 8}")
    return pickle.loads(result)
