"""One grouped attention over a long past: 16 query heads and 8 key heads of 64, as one operator of ONNX Runtime.

Each class has `step()`, which attends from one new token to the past and returns nanoseconds, and `result()`, the output
of the last step. All steps find the same number of positions."""

import numpy as np
from peers import imported, timed

HEADS, KEY_HEADS, WIDTH = 16, 8, 64
PAST = 4095
CAPACITY = PAST + 1


def model(shared):
    """The operator. With a shared buffer, past and present have the same number of positions."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    past = "C" if shared else "P"
    total = "C" if shared else "P + S"
    tensors = {
        "query": (TensorProto.FLOAT, [1, "S", HEADS * WIDTH]),
        "key": (TensorProto.FLOAT, [1, "S", KEY_HEADS * WIDTH]),
        "value": (TensorProto.FLOAT, [1, "S", KEY_HEADS * WIDTH]),
        "past_key": (TensorProto.FLOAT, [1, KEY_HEADS, past, WIDTH]),
        "past_value": (TensorProto.FLOAT, [1, KEY_HEADS, past, WIDTH]),
        "mask": (TensorProto.INT64, [1, "P + S"]),
    }
    present = [1, KEY_HEADS, total, WIDTH]
    outputs = {"y": [1, "S", HEADS * WIDTH], "present_key": present, "present_value": present}
    # The lengths come from a mask, as the builder of onnxruntime-genai writes it.
    nodes = [
        helper.make_node("ReduceSum", ["mask", "one"], ["count"]),
        helper.make_node("Sub", ["count", "one"], ["last64"]),
        helper.make_node("Cast", ["last64"], ["last"], to=TensorProto.INT32),
        helper.make_node("Shape", ["mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["total64"]),
        helper.make_node("Cast", ["total64"], ["total"], to=TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention", [*tensors][:5] + ["last", "total"], list(outputs), domain="com.microsoft",
            num_heads=HEADS, kv_num_heads=KEY_HEADS,
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "grouped",
        [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in tensors.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in outputs.items()],
        [numpy_helper.from_array(np.array([1], np.int64), "one")],
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=imports)
    proto.ir_version = 9
    onnx.checker.check_model(proto)
    return proto


def inputs():
    """The inputs of one step without the past, and the past."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    new = {
        "query": normal(1, 1, HEADS * WIDTH),
        "key": normal(1, 1, KEY_HEADS * WIDTH),
        "value": normal(1, 1, KEY_HEADS * WIDTH),
        "mask": np.ones((1, CAPACITY), np.int64),
    }
    return new, [normal(1, KEY_HEADS, PAST, WIDTH) for _ in range(2)]


class Symshape:
    def __init__(self, threads):
        symshape = imported("symshape")
        self.model = symshape.compile(model(shared=False), {"S": (1, 4), "P": (0, PAST)}, stateful=True)
        self.model.threads = threads
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
        for name, array in zip(("past_key", "past_value"), past):
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
