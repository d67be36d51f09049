"""Networks with random weights, as exporters of PyTorch write them: MobileNet V2, MiniLM, and the network of magika."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Net:
    """A graph under construction."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.nodes = []
        self.weights = []

    def value(self, array):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape, depth):
        """Weights such that sums of `depth` products stay about as large as the inputs."""
        return self.value((self.random.standard_normal(shape) / np.sqrt(depth)).astype(np.float32))

    def node(self, kind, *inputs, **attributes):
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def save(self, path, inputs, output):
        inputs = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs]
        self.nodes.append(helper.make_node("Identity", [output], ["y"]))
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, path.stem, inputs, outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(onnx.shape_inference.infer_shapes(model), path)

    def dense(self, x, inputs, outputs):
        y = self.node("MatMul", x, self.weight(inputs, outputs, depth=inputs))
        return self.node("Add", y, self.weight(outputs, depth=100))

    def conv(self, x, inputs, outputs, kernel, stride=1, groups=1, relu6=True):
        depth = inputs // groups * kernel * kernel
        w = self.weight(outputs, inputs // groups, kernel, kernel, depth=depth / 2)
        pad = (kernel - 1) // 2
        y = self.node(
            "Conv", x, w, self.weight(outputs, depth=100),
            kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, group=groups,
        )
        if not relu6:
            return y
        return self.node("Clip", y, self.value(np.float32(0)), self.value(np.float32(6)))

    def layer_norm(self, x, width):
        ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
        return self.node("LayerNormalization", x, self.value(ones), self.value(zeros), axis=-1, epsilon=1e-12)


def mobilenet_v2(path):
    """3.5 million weights, 0.3 billion multiplications at 224 x 224."""
    net = Net(1)
    x = net.conv("x", 3, 32, 3, stride=2)
    channels = 32
    for expansion, outputs, count, stride in [
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ]:
        for block in range(count):
            hidden = channels * expansion
            y = x if expansion == 1 else net.conv(x, channels, hidden, 1)
            y = net.conv(y, hidden, hidden, 3, stride=stride if block == 0 else 1, groups=hidden)
            y = net.conv(y, hidden, outputs, 1, relu6=False)
            is_residual = block > 0
            x = net.node("Add", x, y) if is_residual else y
            channels = outputs
    x = net.conv(x, channels, 1280, 1)
    x = net.node("GlobalAveragePool", x)
    x = net.node("Flatten", x, axis=1)
    net.save(path, [("x", TensorProto.FLOAT, ["N", 3, 224, 224])], net.dense(x, 1280, 1000))


def minilm(path, words=30522, width=384, layers=6, heads=12, hidden=1536):
    """The encoder of sentence embeddings: 6 layers of width 384."""
    net = Net(2)
    length = net.node("Shape", "ids")
    length = net.node("Slice", length, net.value(np.array([1])), net.value(np.array([2])))
    positions = net.node(
        "Slice", net.weight(1, 512, width, depth=1), net.value(np.array([0])), length, net.value(np.array([1]))
    )
    x = net.node("Gather", net.weight(words, width, depth=1), "ids", axis=0)
    x = net.layer_norm(net.node("Add", x, positions), width)
    mask = net.node("Cast", "mask", to=TensorProto.FLOAT)
    mask = net.node("Unsqueeze", mask, net.value(np.array([1, 2])))
    mask = net.node("Mul", net.node("Sub", net.value(np.float32(1)), mask), net.value(np.float32(-1e4)))
    split = net.value(np.array([0, 0, heads, width // heads]))
    joined = net.value(np.array([0, 0, width]))
    for _ in range(layers):
        q, k, v = (net.node("Reshape", net.dense(x, width, width), split) for _ in range(3))
        q, v = (net.node("Transpose", side, perm=[0, 2, 1, 3]) for side in (q, v))
        k = net.node("Transpose", k, perm=[0, 2, 3, 1])
        scores = net.node("Mul", net.node("MatMul", q, k), net.value(np.float32((width // heads) ** -0.5)))
        scores = net.node("Softmax", net.node("Add", scores, mask), axis=-1)
        y = net.node("Transpose", net.node("MatMul", scores, v), perm=[0, 2, 1, 3])
        y = net.dense(net.node("Reshape", y, joined), width, width)
        x = net.layer_norm(net.node("Add", x, y), width)
        y = net.dense(x, width, hidden)
        gate = net.node("Erf", net.node("Mul", y, net.value(np.float32(0.5**0.5))))
        gate = net.node("Mul", net.node("Add", gate, net.value(np.float32(1))), net.value(np.float32(0.5)))
        y = net.dense(net.node("Mul", y, gate), hidden, width)
        x = net.layer_norm(net.node("Add", x, y), width)
    inputs = [("ids", TensorProto.INT64, ["N", "S"]), ("mask", TensorProto.INT64, ["N", "S"])]
    net.save(path, inputs, x)


def magika(path):
    """The model of the package, which classifies the bytes of files."""
    package = Path(find_spec("magika").origin).parent
    shutil.copy(package / "models/standard_v3_3/model.onnx", path)


# For each model: how it is made, the ranges of its symbols, and the sizes that are measured.
MODELS = {
    "mobilenet_v2": (mobilenet_v2, {"N": (1, 2)}, {"N": 1}),
    "minilm": (minilm, {"N": (1, 2), "S": (1, 256)}, {"N": 1, "S": 128}),
    "magika": (magika, None, {"N": 1}),
}
