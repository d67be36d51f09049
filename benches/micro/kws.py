"""A network that spots keywords, of the shapes of MLPerf Tiny's: DS-CNN with 64 channels in int8 (QDQ), random weights."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS = 64
CLASSES = 12
INPUT = (1, 1, 49, 10)
INPUT_SCALE = 0.03
SCALE = 0.02
# Standard deviation of integers that are uniform in -127..127.
SPREAD = 73.6


class Network:
    """The nodes and weights so far."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.nodes = []
        self.weights = []

    def node(self, op, inputs, output, **attributes):
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def constant(self, name, value):
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def parameters(self, name, scale, zero):
        """The scale and the zero point of a value, or those of each channel."""
        scale = np.asarray(scale, np.float32)
        zeros = np.full(scale.shape, zero, zero.dtype)
        return [self.constant(f"{name}_scale", scale), self.constant(f"{name}_zero", zeros)]

    def weight(self, name, integers, scales):
        parameters = self.parameters(name, scales, np.zeros((), integers.dtype))
        return self.node("DequantizeLinear", [self.constant(f"{name}_q", integers), *parameters], name, axis=0)

    def rounded(self, name, value, scale, zero):
        """The value as int8 and back."""
        parameters = self.parameters(name, scale, np.int8(zero))
        stored = self.node("QuantizeLinear", [value, *parameters], f"{name}_q")
        return self.node("DequantizeLinear", [stored, *parameters], name)

    def layer(self, name, op, value, scale, shape, **attributes):
        """A product of a value of this scale with weights of this shape, and a bias."""
        integers = self.random.integers(-127, 128, shape).astype(np.int8)
        deviation = np.sqrt(np.prod(shape[1:])) * SPREAD
        scales = (self.random.uniform(1.0, 1.6, shape[0]) / deviation).astype(np.float32)
        bias = self.random.integers(-2000, 2000, shape[0]).astype(np.int32)
        weights = self.weight(f"{name}_weight", integers, scales)
        biases = self.weight(f"{name}_bias", bias, (scale * scales).astype(np.float32))
        return self.node(op, [value, weights, biases], name, **attributes)

    def convolution(self, name, value, scale, shape, **attributes):
        sums = self.layer(name, "Conv", value, scale, shape, **attributes)
        return self.rounded(f"{name}_out", self.node("Relu", [sums], f"{name}_relu"), SCALE, -128)


def model(seed=31):
    """The ONNX model; its input and its output are int8."""
    net = Network(seed)
    square = (CHANNELS, CHANNELS, 1, 1)
    x = net.node("DequantizeLinear", ["x", *net.parameters("x", INPUT_SCALE, np.int8(-5))], "x_float")
    x = net.convolution("first", x, INPUT_SCALE, (CHANNELS, 1, 10, 4), strides=(2, 2), pads=(4, 1, 5, 1))
    for block in range(4):
        each = {"group": CHANNELS, "pads": (1, 1, 1, 1)}
        x = net.convolution(f"depthwise_{block}", x, SCALE, (CHANNELS, 1, 3, 3), **each)
        x = net.convolution(f"pointwise_{block}", x, SCALE, square)
    x = net.rounded("pool_out", net.node("GlobalAveragePool", [x], "pool"), SCALE, -128)
    x = net.node("Flatten", [x], "flat")
    x = net.rounded("scores", net.layer("dense", "Gemm", x, SCALE, (CLASSES, CHANNELS), transB=1), 0.05, 0)
    x = net.node("Softmax", [x], "softmax", axis=1)
    net.node("QuantizeLinear", [x, *net.parameters("y", 1 / 256, np.int8(-128))], "y")

    inputs = [helper.make_tensor_value_info("x", TensorProto.INT8, INPUT)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT8, (1, CLASSES))]
    graph = helper.make_graph(net.nodes, "kws", inputs, outputs, net.weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return made
