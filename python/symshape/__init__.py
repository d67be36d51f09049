"""symshape compiles a neural network once, for every size that its symbols may take.

>>> import symshape
>>> model = symshape.compile("model.onnx", {"N": (1, 64), "S": (1, 512)})
>>> y = model(x)
>>> model.save("model.so")

A saved model runs from C, Rust and Python. ``symshape.runtime`` calls it without the compiler.
"""

from ._native import __version__
from .compiler import compile
from .contract import Contract, Ragged, StateTensor, Symbol, Tensor
from .errors import (
    ArtefactError,
    CallError,
    ContractError,
    FileError,
    InternalError,
    LimitError,
    ModelError,
    StateError,
    SymshapeError,
    UnsupportedError,
    UsageError,
)
from .generation import generate
from .model import Model
from .profile import KernelTime, Profile, profile
from .state import State

load = Model.load

__all__ = [
    "ArtefactError",
    "CallError",
    "Contract",
    "ContractError",
    "FileError",
    "InternalError",
    "KernelTime",
    "LimitError",
    "Model",
    "ModelError",
    "Profile",
    "Ragged",
    "State",
    "StateError",
    "StateTensor",
    "Symbol",
    "SymshapeError",
    "Tensor",
    "UnsupportedError",
    "UsageError",
    "__version__",
    "compile",
    "generate",
    "load",
    "profile",
]
