"""Files that are written as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
from collections.abc import Iterator

from .errors import FileError


@contextlib.contextmanager
def staged(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """The path of a new, empty file in the folder of ``path``, which replaces ``path`` at the end. After an exception,
    ``path`` keeps its content, and the new file is removed.

    Raises
    ------
    FileError
        For any error of the system.
    """
    # `tempfile` gives its files mode 0600, whatever the umask is.
    file = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    try:
        file.touch(exist_ok=False)
        try:
            yield file
            os.replace(file, path)
        except BaseException:
            file.unlink(missing_ok=True)
            raise
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
