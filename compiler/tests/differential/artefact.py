"""Compiles a model with `symc`, and calls the artefact with every buffer next to memory that must not be touched."""

import ctypes
import json
import mmap
import subprocess

import numpy as np

import child

PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
TIMEOUT = 120


class Refused(Exception):
    """A message of `symc`, or of a call."""


class Crashed(Exception):
    """A panic, a signal or a time-out."""


class Error(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_int32),
        ("tensor", ctypes.c_uint32),
        ("axis", ctypes.c_uint32),
        ("symbol", ctypes.c_uint32),
        ("value", ctypes.c_int64),
        ("lo", ctypes.c_int64),
        ("hi", ctypes.c_int64),
        ("symbol_name", ctypes.c_char_p),
        ("tensor_name", ctypes.c_char_p),
        ("why", ctypes.c_char_p),
    ]


class Exec(ctypes.Structure):
    _fields_ = [
        ("host", ctypes.c_void_p),
        ("threads", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("parallel_for", ctypes.c_void_p),
        ("error", ctypes.POINTER(Error)),
    ]


def compile_model(symc, folder):
    """Compiles `model.onnx` of a folder; its `bounds.json` has the ranges."""
    command = [symc, "compile", f"{folder}/model.onnx", "-o", f"{folder}/model.so", "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise Crashed(f"symc took more than {TIMEOUT} s") from error
    if done.returncode == 2 or done.returncode == 1:
        raise Refused(done.stderr.strip())
    if done.returncode != 0:
        raise Crashed(f"symc ended with {done.returncode}: {done.stderr.strip()[-1500:]}")


def query(symc, folder):
    done = subprocess.run([symc, "query", f"{folder}/model.so", "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def guarded(n_bytes, align, at_end):
    """The address of `n_bytes` bytes between two pages without access: at the last page, or at the first."""
    inner = -(-max(n_bytes, 1) // PAGE) * PAGE
    base = LIBC.mmap(None, inner + 2 * PAGE, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    assert base not in (None, ctypes.c_void_p(-1).value), "no memory"
    for edge in (base, base + PAGE + inner):
        assert LIBC.mprotect(edge, PAGE, 0) == 0
    ctypes.memset(base + PAGE, 0xA5, inner)
    return (base + PAGE + inner - n_bytes) & -align if at_end else base + PAGE


class Artefact:
    """A loaded shared object."""

    def __init__(self, folder, contract):
        self.lib = ctypes.CDLL(f"{folder}/model.so")
        self.lib.model_arena_bytes.restype = ctypes.c_size_t
        self.contract = contract
        self.n_dims = 64

    def output_shapes(self, dims):
        shapes = []
        for k, output in enumerate(self.contract["outputs"]):
            shape = (ctypes.c_int64 * max(len(output["shape"]), 1))()
            assert self.lib.model_output_shape(k, dims, shape) == 0
            shapes.append(list(shape)[: len(output["shape"])])
        return shapes

    def call(self, inputs, dtypes, at_end):
        """One call; `inputs` are in the order of the contract."""
        shapes = [(ctypes.c_int64 * max(a.ndim, 1))(*a.shape) for a in inputs]
        pointers = (ctypes.c_void_p * max(len(shapes), 1))(*(ctypes.addressof(s) for s in shapes))
        dims = (ctypes.c_int64 * self.n_dims)()
        error = Error()
        if self.lib.model_check(pointers, dims, ctypes.byref(error)) != 0:
            raise Refused(describe(error))
        buffers = []
        for array in inputs:
            address = guarded(array.nbytes, array.itemsize, at_end)
            ctypes.memmove(address, np.ascontiguousarray(array).ctypes.data, array.nbytes)
            buffers.append(address)
        sizes = [
            int(np.prod(s, dtype=np.int64)) * np.dtype(d).itemsize for s, d in zip(self.output_shapes(dims), dtypes)
        ]
        results = [guarded(size, np.dtype(d).itemsize, at_end) for size, d in zip(sizes, dtypes)]
        arena = guarded(self.lib.model_arena_bytes(dims), 64, at_end)
        context = Exec(None, 1, 0, None, ctypes.pointer(error))
        code = self.lib.model_run(
            (ctypes.c_void_p * max(len(buffers), 1))(*buffers),
            (ctypes.c_void_p * max(len(results), 1))(*results),
            dims,
            ctypes.c_void_p(arena),
            ctypes.byref(context),
        )
        if code != 0:
            raise Refused(describe(error))
        outputs = []
        for address, shape, dtype in zip(results, self.output_shapes(dims), dtypes):
            count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            outputs.append(np.frombuffer(ctypes.string_at(address, count), dtype=dtype).reshape(shape))
        return outputs


def describe(error):
    names = [name.decode() for name in (error.tensor_name, error.symbol_name, error.why) if name]
    return f"code {error.code} at run time, value {error.value}, allowed {error.lo}..{error.hi}: {', '.join(names)}"


def call_all(folder, contract, rows, dtypes, bindings):
    """The outputs of each row of inputs, or why a call refuses them. Called in a child process."""

    def outputs():
        results = []
        try:
            artefact = Artefact(folder, contract)
            for inputs, binding in zip(rows, bindings):
                with open(f"{folder}/at", "w", encoding="utf-8") as file:
                    file.write(str(binding))
                first, second = (artefact.call(inputs, dtypes, at_end) for at_end in (True, False))
                same = all(a.tobytes() == b.tobytes() for a, b in zip(first, second))
                results.append(first if same else "the bits depend on the place or the content of the memory")
        except Refused as error:
            results.append(f"refused: {error}")
        return results

    try:
        return child.run(outputs, TIMEOUT)
    except child.Died as error:
        with open(f"{folder}/at", encoding="utf-8") as file:
            at = file.read()
        raise Crashed(f"the call ended with {error} at {at}, with guard pages at both ends of every buffer") from error
