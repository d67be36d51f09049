"""An artefact on every node of a cluster: one file for each node, mapped by all processes of the node."""

import hashlib
import os
import stat
import tempfile
from pathlib import Path


def publish(path):
    """Puts an artefact into Ray's object store. Returns a reference and a digest, for `local` on any node."""
    import ray

    artefact = Path(path).read_bytes()
    return ray.put(artefact), hashlib.sha256(artefact).hexdigest()


def local(published, folder=None):
    """The path of the artefact on this node; the first process that asks writes it.

    Processes map the file, so the node has its code and weights in memory once. `folder` must be local to the node,
    and writable only by users that may choose the code that runs; the default is a folder of this user.
    """
    import ray

    reference, digest = published
    folder = Path(folder or Path(tempfile.gettempdir()) / f"symshape-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"other users may write to {folder}; run `chmod go-w` on it")
    path = folder / f"{digest}.so"
    if not path.exists():
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(ray.get(reference))
        # A rename is atomic: others see no file or the whole file.
        os.replace(file.name, path)
    return path
