"""ONNX Runtime, OpenVINO and artefacts of `symc` behind one interface: `prepare` the inputs of a size, then `call`."""

import ctypes
import os
import time

import numpy as np

from artefact import Artefact, Error, Exec, Refused, describe
from levels import ONEDNN_ISAS

# Nanoseconds that a group of calls takes at least: the clock is a system call.
GROUP_NS = 100_000


def limit_openvino(cpu):
    """Limits OpenVINO to the instructions of an ISA level of symshape, before it is imported. ONNX Runtime has no
    such switch."""
    if cpu in ONEDNN_ISAS:
        os.environ["ONEDNN_MAX_CPU_ISA"] = ONEDNN_ISAS[cpu]


class OnnxRuntime:
    name = "ort"

    def __init__(self, path, optimised=True):
        import onnxruntime

        self.runtime = onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        if not optimised:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.inputs = {value.name for value in self.session.get_inputs()}
        self.outputs = [value.name for value in self.session.get_outputs()]

    def run(self, arrays):
        """The outputs by name."""
        results = self.session.run(self.outputs, {k: v for k, v in arrays.items() if k in self.inputs})
        return dict(zip(self.outputs, results))

    def prepare(self, arrays):
        self.binding = self.session.io_binding()
        self.values = []
        for name in self.inputs:
            value = self.runtime.OrtValue.ortvalue_from_numpy(arrays[name])
            self.values.append(value)
            self.binding.bind_ortvalue_input(name, value)
        for name in self.outputs:
            self.binding.bind_output(name, "cpu")

    def call(self):
        self.session.run_with_iobinding(self.binding)

    def results(self):
        """The outputs of the last call, by name."""
        return dict(zip(self.outputs, self.binding.copy_outputs_to_cpu()))


class OpenVino:
    name = "openvino"

    def __init__(self, path, rounds_activations=False):
        """With `rounds_activations`, the operands of weights of few bits are rounded to 8 bits."""
        import openvino

        self.runtime = openvino
        core = openvino.Core()
        # Without the hint, OpenVINO computes in bf16 on some machines.
        options = {
            "INFERENCE_NUM_THREADS": 1,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
            "ENABLE_CPU_PINNING": False,
        }
        # By default, OpenVINO rounds them in blocks of 32.
        if not rounds_activations:
            options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
        self.model = core.compile_model(core.read_model(path), "CPU", options)
        self.request = self.model.create_infer_request()

    def prepare(self, arrays):
        names = {name for value in self.model.inputs for name in value.get_names()}
        for name, array in arrays.items():
            if name in names:
                self.request.set_tensor(name, self.runtime.Tensor(array))

    def call(self):
        self.request.infer()

    def results(self):
        """The outputs of the last call, by name."""
        names = [sorted(value.get_names()) for value in self.model.outputs]
        return {
            name: self.request.get_output_tensor(k).data for k, found in enumerate(names) for name in found
        }


class Symshape:
    name = "symc"

    def __init__(self, folder, contract, dtypes):
        self.artefact = Artefact(folder, contract)
        self.names = [entry["name"] for entry in contract["inputs"]]
        self.output_names = [entry["name"] for entry in contract["outputs"]]
        self.dtypes = [dtypes[name] for name in self.output_names]

    def prepare(self, arrays):
        lib = self.artefact.lib
        self.arrays = [np.ascontiguousarray(arrays[name]) for name in self.names]
        shapes = [(ctypes.c_int64 * max(a.ndim, 1))(*a.shape) for a in self.arrays]
        pointers = (ctypes.c_void_p * max(len(shapes), 1))(*(ctypes.addressof(s) for s in shapes))
        self.dims = (ctypes.c_int64 * self.artefact.n_dims)()
        self.error = Error()
        if lib.model_check(pointers, self.dims, ctypes.byref(self.error)) != 0:
            raise Refused(describe(self.error))
        sizes = self.artefact.output_shapes(self.dims)
        self.tensors = [np.zeros(shape, dtype) for shape, dtype in zip(sizes, self.dtypes)]
        self.arena = np.zeros(lib.model_arena_bytes(self.dims) + 64, np.uint8)
        self.inputs = (ctypes.c_void_p * max(len(self.arrays), 1))(*(a.ctypes.data for a in self.arrays))
        self.outputs = (ctypes.c_void_p * max(len(self.tensors), 1))(*(a.ctypes.data for a in self.tensors))
        self.base = ctypes.c_void_p((self.arena.ctypes.data + 63) & -64)
        self.exec = Exec(None, 1, 0, None, ctypes.pointer(self.error))

    def call(self):
        code = self.artefact.lib.model_run(self.inputs, self.outputs, self.dims, self.base, ctypes.byref(self.exec))
        if code != 0:
            raise Refused(describe(self.error))

    def results(self):
        """The outputs of the last call, by name."""
        return dict(zip(self.output_names, self.tensors))


def fastest_ns(peer, milliseconds):
    """Processor time of a call of the fastest group of calls of a burst, in nanoseconds. There are at least three
    groups."""
    size = max(1, GROUP_NS // max(1, group_ns(peer, 1)))
    best, count = None, 0
    end = time.process_time_ns() + milliseconds * 1_000_000
    while count < 3 or time.process_time_ns() < end:
        elapsed = group_ns(peer, size)
        best = elapsed if best is None else min(best, elapsed)
        count += 1
    return best / size


def group_ns(peer, size):
    """Processor time of some calls. Other work on the machine does not count."""
    start = time.process_time_ns()
    for _ in range(size):
        peer.call()
    return time.process_time_ns() - start
