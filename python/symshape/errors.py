"""Exceptions: the words are those of ``symc``, the class is the kind of the error."""


class SymshapeError(Exception):
    """The base of all exceptions of this package."""


class ModelError(SymshapeError, ValueError):
    """The model is malformed or contradicts itself."""


class UnsupportedError(SymshapeError, NotImplementedError):
    """The model needs a feature that symshape does not support."""


class ContractError(SymshapeError, ValueError):
    """The sizes are incomplete or contradictory: a symbol without an upper bound, an empty range."""


class LimitError(SymshapeError, MemoryError):
    """A size is more than the machine can address, or a limit against hostile files is reached."""


class FileError(SymshapeError, OSError):
    """A file can't be read or written."""


class UsageError(SymshapeError, ValueError):
    """An argument is wrong."""


class InternalError(SymshapeError, RuntimeError):
    """A bug in symshape; please report it."""


class ArtefactError(SymshapeError, OSError):
    """A file is not a compiled model that this version can open."""


class CallError(SymshapeError, ValueError):
    """The arrays of a call violate the contract of the model. No output was written, unless the message names an index
    in the data that is out of bounds."""


class StateError(SymshapeError, ValueError):
    """A state can't be made, changed or loaded. It keeps its content."""
