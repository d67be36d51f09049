"""One grouped attention over a long past: 16 query heads and 8 key heads of 64, as one operator of ONNX Runtime.

Each class has `step()`, which attends from one new token to the past and returns nanoseconds, and `result()`, the
output of the last step. All steps find the same number of positions."""

import importlib.util
import pathlib

import numpy as np
from peers import imported, timed

HEADS, KEY_HEADS, WIDTH = 16, 8, 64
PAST = 4095
CAPACITY = PAST + 1


def model(shared):
    """The operator. With a shared buffer, past and present have the same number of positions."""
    imported("onnx")
    path = pathlib.Path(__file__).resolve().parents[2] / "python/tests/models.py"
    spec = importlib.util.spec_from_file_location("models", path)
    models = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(models)
    return models.grouped_attention(HEADS, KEY_HEADS, WIDTH, batch=1, shared=shared)


def inputs():
    """The inputs of one step without the past, and the past."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    new = {
        "q": normal(1, 1, HEADS * WIDTH),
        "k": normal(1, 1, KEY_HEADS * WIDTH),
        "v": normal(1, 1, KEY_HEADS * WIDTH),
        "mask": np.ones((1, CAPACITY), np.int64),
    }
    return new, [normal(1, KEY_HEADS, PAST, WIDTH) for _ in range(2)]


class Symshape:
    def __init__(self, threads):
        symshape = imported("symshape")
        dims = {"S": (1, 4), "P": (0, PAST), "T": "P + S"}
        self.model = symshape.compile(model(shared=False), dims, stateful=True, threads=threads)
        self.new, past = inputs()
        self.state = self.model.new_state(CAPACITY)
        self.state.set(dict(zip((tensor.input for tensor in self.model.contract.state), past)))
        self.y = {"y": np.zeros((1, 1, HEADS * WIDTH), np.float32)}

    def step(self):
        self.state.truncate(PAST)
        return timed(lambda: self.model.run(self.new, self.y, state=self.state))

    def result(self):
        return self.y["y"]


class OnnxRuntime:
    """ONNX Runtime; with a shared buffer it writes the new row, otherwise it copies the past."""

    def __init__(self, threads, shared):
        runtime = imported("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = runtime.InferenceSession(
            model(shared).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        new, past = inputs()
        self.binding = self.session.io_binding()
        for name, array in new.items():
            self.binding.bind_cpu_input(name, array)
        for name, array in zip(("past_k", "past_v"), past):
            if shared:
                array = np.concatenate([array, np.zeros((1, KEY_HEADS, 1, WIDTH), np.float32)], axis=2)
            value = runtime.OrtValue.ortvalue_from_numpy(array)
            self.binding.bind_ortvalue_input(name, value)
            present = name.replace("past", "present")
            if not shared:
                value = runtime.OrtValue.ortvalue_from_shape_and_type((1, KEY_HEADS, CAPACITY, WIDTH), np.float32)
            self.binding.bind_ortvalue_output(present, value)
        self.binding.bind_output("y", "cpu")

    def step(self):
        return timed(lambda: self.session.run_with_iobinding(self.binding))

    def result(self):
        # The outputs are in the order in which they were bound.
        return self.binding.copy_outputs_to_cpu()[-1]


PEERS = {
    "symshape": Symshape,
    "onnxruntime": lambda threads: OnnxRuntime(threads, shared=False),
    "onnxruntime, shared buffer": lambda threads: OnnxRuntime(threads, shared=True),
}
