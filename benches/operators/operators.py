"""Single operators as models, with the sizes at which they are measured.

Each model reads inputs and writes outputs, and has constants as weights only. So nothing hides the time of the
operator, nor that of the passes that move its operands and results. Sizes are symbols.
"""

import dataclasses
import math

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

IMAGES = [{"N": 1, "H": 32, "W": 32}, {"N": 4, "H": 64, "W": 64}]
SIGNALS = [{"N": 1, "L": 200}, {"N": 4, "L": 2000}]
ROWS = [{"N": 1, "S": 32}, {"N": 8, "S": 512}]
TOKENS = [{"N": 1, "S": 16}, {"N": 4, "S": 256}]
SEQUENCES = [{"S": 20, "N": 1}, {"S": 100, "N": 8}]
TYPES = {"f32": np.float32, "f16": np.float16, "u8": np.uint8, "i8": np.int8}


@dataclasses.dataclass
class Operator:
    """A model of one operator, or of two that belong together.

    `nodes` has a type, inputs, outputs and attributes for each node. `indices` has the bound of inputs that are
    indices. Inputs in `positive` have elements between 0.1 and 0.9. `types` has the inputs whose elements are not f32,
    with a name of TYPES."""

    name: str
    nodes: list
    inputs: dict
    sizes: list
    constants: dict = dataclasses.field(default_factory=dict)
    indices: dict = dataclasses.field(default_factory=dict)
    positive: tuple = ()
    types: dict = dataclasses.field(default_factory=dict)

    @property
    def ranges(self):
        """From half of the smallest size of a symbol to twice the largest."""
        values = {name: [sizes[name] for sizes in self.sizes] for name in self.sizes[0]}
        return {name: (1 if name == "N" else max(1, min(v) // 2), 2 * max(v)) for name, v in values.items()}

    def model(self):
        types = {
            name: helper.np_dtype_to_tensor_dtype(np.dtype(np.int64 if name in self.indices else self.dtype(name)))
            for name in self.inputs
        }
        graph = helper.make_graph(
            [helper.make_node(kind, inputs, outputs, **options) for kind, inputs, outputs, options in self.nodes],
            "operator",
            [helper.make_tensor_value_info(name, types[name], dims) for name, dims in self.inputs.items()],
            [onnx.ValueInfoProto(name=name) for name in self.nodes[-1][2]],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in self.constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        return onnx.shape_inference.infer_shapes(model)

    def dtype(self, name):
        """The type of the elements of an input that has no indices."""
        return TYPES[self.types.get(name, "f32")]

    def arrays(self, sizes):
        """Inputs of these sizes, always the same."""
        rng = np.random.default_rng(1)
        arrays = {}
        for name, dims in self.inputs.items():
            shape = [sizes.get(dim, dim) for dim in dims]
            if name in self.indices:
                arrays[name] = rng.integers(0, self.indices[name], shape)
            elif self.dtype(name) in (np.uint8, np.int8):
                limits = np.iinfo(self.dtype(name))
                arrays[name] = rng.integers(limits.min, limits.max + 1, shape, self.dtype(name))
            elif name in self.positive:
                arrays[name] = rng.uniform(0.1, 0.9, shape).astype(self.dtype(name))
            else:
                arrays[name] = rng.standard_normal(shape, np.float32).astype(self.dtype(name))
        return arrays


def weights(*shape):
    scale = math.sqrt(max(1, math.prod(shape[1:])))
    return (np.random.default_rng(0).standard_normal(shape) / scale).astype(np.float32)


def ints(*values):
    return np.array(values, np.int64)


def simple(name, kind, dims, sizes, constants=None, positive=(), **options):
    """An operator whose first operand is the input `x`, and whose others are constants."""
    constants = constants or {}
    return Operator(
        name, [(kind, ["x", *constants], ["y"], options)], {"x": dims}, sizes, constants, positive=positive
    )


def operators():
    """All of them, by kind."""
    return {
        "convolutions": list(convolutions()),
        "poolings and resizes": [*poolings(), *resizes()],
        "rows": list(rows()),
        "elementwise": list(elementwise()),
        "movement": list(movement()),
        "products": list(products()),
        "recurrences": list(recurrences()),
    }


def convolutions():
    image = lambda channels: ["N", channels, "H", "W"]
    signal = lambda channels: ["N", channels, "L"]
    for c, o, k, stride, step in [
        (32, 64, 3, 1, 2), (64, 64, 3, 1, 6), (16, 16, 3, 1, 1), (24, 24, 3, 1, 1), (3, 32, 3, 2, 1),
        (3, 64, 7, 2, 1), (1, 16, 3, 1, 1), (1, 32, 5, 1, 1), (2, 16, 3, 1, 1), (48, 8, 1, 1, 1), (64, 1, 3, 1, 1),
        (64, 2, 3, 1, 1), (64, 3, 3, 1, 1), (64, 6, 3, 1, 1), (128, 10, 3, 1, 1), (64, 1, 7, 1, 1), (32, 3, 9, 1, 1),
        (8, 8, 3, 1, 1), (4, 4, 3, 1, 1), (3, 3, 5, 1, 1), (256, 256, 1, 1, 1), (512, 19, 1, 1, 1),
        (64, 64, 3, 2, 1), (32, 32, 5, 2, 1), (64, 1, 7, 2, 1),
    ]:
        pads = [step * (k // 2)] * 4
        name = f"Conv {o}×{c}×{k}×{k}, stride {stride}, dilation {step}"
        yield simple(
            name, "Conv", image(c), IMAGES, {"w": weights(o, c, k, k)},
            strides=[stride] * 2, pads=pads, dilations=[step] * 2,
        )
    for c, groups, k, stride in [
        (64, 2, 3, 1), (64, 8, 3, 1), (128, 32, 3, 1), (96, 4, 3, 1), (64, 64, 3, 1), (64, 64, 3, 2), (32, 32, 5, 1),
        (64, 64, 9, 1), (64, 64, 13, 1),
    ]:
        yield simple(
            f"Conv {c} channels, {groups} groups, {k}×{k}, stride {stride}", "Conv", image(c), IMAGES,
            {"w": weights(c, c // groups, k, k)}, group=groups, strides=[stride] * 2, pads=[k // 2] * 4,
        )
    for c, kernel in [(32, (1, 3)), (32, (3, 1)), (64, (1, 7)), (64, (7, 1))]:
        pads = [kernel[0] // 2, kernel[1] // 2] * 2
        yield simple(f"Conv {c}×{c}×{kernel[0]}×{kernel[1]}", "Conv", image(c), IMAGES,
                     {"w": weights(c, c, *kernel)}, pads=pads)
    for c, o, k, stride, pad in [
        (64, 32, 4, 2, 1), (32, 16, 2, 2, 0), (64, 64, 3, 2, 1), (32, 3, 4, 2, 1), (16, 1, 4, 2, 1), (64, 1, 2, 2, 0),
        (56, 1, 9, 3, 4), (128, 64, 4, 2, 1), (32, 32, 3, 1, 1),
    ]:
        yield simple(f"ConvTranspose {c}×{o}×{k}×{k}, stride {stride}", "ConvTranspose", image(c), IMAGES,
                     {"w": weights(c, o, k, k)}, strides=[stride] * 2, pads=[pad] * 4)
    for c, o, k, stride, step, groups in [
        (64, 64, 3, 1, 1, 1), (32, 32, 7, 1, 3, 1), (32, 32, 11, 1, 5, 1), (1, 64, 10, 5, 1, 1), (80, 256, 7, 1, 1, 1),
        (16, 16, 3, 1, 9, 1), (32, 1, 7, 1, 1, 1), (64, 64, 31, 1, 1, 64), (256, 256, 9, 1, 1, 256), (8, 8, 3, 1, 1, 1),
        (4, 8, 15, 1, 1, 1), (64, 64, 3, 2, 1, 1), (256, 256, 1, 1, 1, 1), (2, 2, 65, 1, 1, 1),
    ]:
        yield simple(
            f"Conv {o}×{c // groups}×{k}, stride {stride}, dilation {step}, {groups} groups", "Conv", signal(c), SIGNALS,
            {"w": weights(o, c // groups, k)}, strides=[stride], pads=[step * (k - 1) // 2] * 2, dilations=[step],
            group=groups,
        )
    for c, o, k, stride, pad in [(256, 128, 16, 8, 4), (64, 32, 4, 2, 1), (32, 16, 8, 4, 2)]:
        yield simple(f"ConvTranspose {c}×{o}×{k}, stride {stride}", "ConvTranspose", signal(c), SIGNALS,
                     {"w": weights(c, o, k)}, strides=[stride], pads=[pad] * 2)
    waves = [{"N": 1, "L": 4000}, {"N": 4, "L": 16000}]
    for o in (1, 402):
        yield simple(f"Conv {o}×1×400, stride 160", "Conv", signal(1), waves, {"w": weights(o, 1, 400)}, strides=[160])
    volumes = [{"N": 1, "D": 8, "H": 16, "W": 16}, {"N": 2, "D": 16, "H": 32, "W": 32}]
    yield simple("Conv 16×16×3×3×3", "Conv", ["N", 16, "D", "H", "W"], volumes, {"w": weights(16, 16, 3, 3, 3)},
                 pads=[1] * 6)


def poolings():
    for kind in ("MaxPool", "AveragePool"):
        for k, stride, pad in [(2, 2, 0), (3, 2, 1), (3, 1, 1), (5, 1, 2), (7, 1, 3), (13, 1, 6)]:
            yield simple(f"{kind} {k}×{k}, stride {stride}", kind, ["N", 32, "H", "W"], IMAGES,
                         kernel_shape=[k, k], strides=[stride] * 2, pads=[pad] * 4)
        yield simple(f"{kind} of pairs", kind, ["N", 64, "L"], SIGNALS, kernel_shape=[2], strides=[2])
    for kind in ("GlobalAveragePool", "GlobalMaxPool"):
        yield simple(kind, kind, ["N", 64, "H", "W"], IMAGES)


def resizes():
    for mode, coordinates in [("nearest", "asymmetric"), ("linear", "half_pixel"), ("linear", "align_corners"),
                              ("cubic", "half_pixel")]:
        options = {"nearest_mode": "floor"} if mode == "nearest" else {}
        for channels in (3, 64):
            yield Operator(
                f"Resize {mode}, {coordinates}, {channels} channels, by 2",
                [("Resize", ["x", "", "s"], ["y"],
                  {"mode": mode, "coordinate_transformation_mode": coordinates, **options})],
                {"x": ["N", channels, "H", "W"]}, IMAGES, {"s": np.array([1, 1, 2, 2], np.float32)},
            )


def rows():
    for size in (2, 8, 10, 32, 100, 1000):
        yield simple(f"Softmax of {size}", "Softmax", ["N", "S", size], ROWS, axis=-1)
    yield simple("Softmax of S", "Softmax", ["N", 4, "S", "S"], [{"N": 1, "S": 32}, {"N": 4, "S": 256}], axis=-1)
    for size in (2, 21):
        yield simple(f"Softmax across {size} planes", "Softmax", ["N", size, "H", "W"], IMAGES, axis=1)
    yield simple("LogSoftmax of 30", "LogSoftmax", ["N", "S", 30], ROWS, axis=-1)
    for size in (64, 100, 384, 768):
        yield simple(f"LayerNormalization of {size}", "LayerNormalization", ["N", "S", size], ROWS,
                     {"g": weights(size), "b": weights(size)}, axis=-1)
    yield simple("InstanceNormalization", "InstanceNormalization", ["N", 32, "H", "W"], IMAGES,
                 {"g": weights(32), "b": weights(32)})
    yield simple("BatchNormalization", "BatchNormalization", ["N", 32, "H", "W"], IMAGES,
                 {"g": weights(32), "b": weights(32), "m": weights(32), "v": abs(weights(32)) + 1})
    yield simple("LRN", "LRN", ["N", 32, "H", "W"], IMAGES, size=5)
    yield simple("LpNormalization", "LpNormalization", ["N", "S", 64], ROWS, axis=-1)
    for kind in ("ReduceMean", "ReduceMax", "ReduceSum", "ReduceL2", "ReduceProd", "ReduceLogSumExp"):
        for axes in ([2], [1], [0], [1, 2]):
            yield simple(f"{kind} {axes}", kind, ["N", "S", 48], ROWS, {"a": ints(*axes)}, keepdims=0)
    for axis in range(3):
        yield simple(f"ArgMax {axis}", "ArgMax", ["N", "S", 48], ROWS, axis=axis, keepdims=0)
    yield simple("ArgMax of 21 planes", "ArgMax", ["N", 21, "H", "W"], IMAGES, axis=1, keepdims=0)
    for count, size, most in [(5, 1000, 64), (100, 8400, 8)]:
        yield Operator(f"TopK {count} of {size}", [("TopK", ["x", "k"], ["y", "i"], {"axis": -1})],
                       {"x": ["N", size]}, [{"N": 1}, {"N": most}], {"k": ints(count)})
    for axis in (1, 2):
        yield simple(f"CumSum {axis}", "CumSum", ["N", "S", 48], ROWS, {"a": np.array(axis)})


def elementwise():
    for kind in (
        "Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Sin", "Cos", "Softplus", "Elu", "Selu", "HardSigmoid", "Floor",
        "Round", "Abs", "Neg", "Reciprocal", "Sign", "LeakyRelu", "Mish", "HardSwish", "Softsign", "Atan", "Sinh",
        "Gelu",
    ):
        yield simple(kind, kind, ["N", "S", 64], ROWS)
    yield simple("Gelu by tanh", "Gelu", ["N", "S", 64], ROWS, approximate="tanh")
    for kind in ("Log", "Sqrt", "Asin"):
        yield simple(kind, kind, ["N", "S", 64], ROWS, positive=("x",))
    for exponent in (2.0, 0.5, 3.0, 1.7):
        yield simple(f"Pow {exponent}", "Pow", ["N", "S", 64], ROWS, {"e": np.float32(exponent)}, positive=("x",))
    for kind in ("Add", "Mul", "Div", "Sub", "Max", "Min", "PRelu"):
        for name, dims in [("equal shapes", ["N", "S", 64]), ("a column", ["N", "S", 1])]:
            yield Operator(f"{kind}, {name}", [(kind, ["x", "z"], ["y"], {})],
                           {"x": ["N", "S", 64], "z": dims}, ROWS, positive=("z",))
        yield simple(f"{kind}, a row", kind, ["N", "S", 64], ROWS, {"z": abs(weights(64)) + 0.5})
        yield simple(f"{kind}, channels", kind, ["N", 32, "H", "W"], IMAGES, {"z": abs(weights(32, 1, 1)) + 0.5})
    pair = {"x": ["N", "S", 64], "z": ["N", "S", 64]}
    for kind in ("Less", "Equal"):
        yield Operator(f"Where {kind}", [(kind, ["x", "z"], ["c"], {}), ("Where", ["c", "x", "z"], ["y"], {})],
                       pair, ROWS)
    yield Operator("Mod", [("Mod", ["x", "z"], ["y"], {"fmod": 1})], pair, ROWS, positive=("z",))
    yield simple("Clip", "Clip", ["N", "S", 64], ROWS, {"a": np.float32(-1), "b": np.float32(1)})
    yield simple("Cast to f16", "Cast", ["N", "S", 64], ROWS, to=TensorProto.FLOAT16)


def movement():
    for order in [(0, 2, 1), (1, 0, 2), (2, 1, 0), (2, 0, 1), (1, 2, 0)]:
        yield simple(f"Transpose {order}", "Transpose", ["N", "S", 48], ROWS, perm=list(order))
    for order in [(0, 2, 3, 1), (0, 3, 1, 2), (0, 2, 1, 3)]:
        yield simple(f"Transpose {order}", "Transpose", ["N", 32, "H", "W"], IMAGES, perm=list(order))
    yield Operator("Concat of channels", [("Concat", ["x", "z"], ["y"], {"axis": 1})],
                   {"x": ["N", 16, "H", "W"], "z": ["N", 24, "H", "W"]}, IMAGES)
    yield Operator("Concat of rows", [("Concat", ["x", "z"], ["y"], {"axis": -1})],
                   {"x": ["N", "S", 20], "z": ["N", "S", 12]}, ROWS)
    for mode in ("constant", "reflect", "edge"):
        yield simple(f"Pad {mode}", "Pad", ["N", 16, "H", "W"], IMAGES, {"p": ints(0, 0, 3, 3, 0, 0, 3, 3)}, mode=mode)
    for mode in ("DCR", "CRD"):
        yield simple(f"DepthToSpace {mode}", "DepthToSpace", ["N", 32, "H", "W"], IMAGES, blocksize=2, mode=mode)
    yield simple("Tile", "Tile", ["N", "S", 48], ROWS, {"t": ints(1, 2, 2)})
    yield simple("Expand", "Expand", ["N", 1, 48], [{"N": 1}, {"N": 8}], {"t": ints(1, 64, 48)})
    yield simple("Slice with steps", "Slice", ["N", 16, "H", "W"], IMAGES,
                 {"a": ints(0, 0), "b": ints(9999, 9999), "c": ints(2, 3), "d": ints(2, 2)})
    yield simple("Slice backwards", "Slice", ["N", "S", 48], ROWS,
                 {"a": ints(-1), "b": ints(-9999), "c": ints(1), "d": ints(-1)})
    yield Operator("Gather of rows", [("Gather", ["w", "i"], ["y"], {})], {"i": ["N", "S"]}, ROWS,
                   {"w": weights(1000, 64)}, {"i": 1000})
    yield simple("Gather of columns", "Gather", ["N", "S", 48], ROWS, {"i": np.arange(0, 48, 3)}, axis=2)
    yield Operator("GatherElements", [("GatherElements", ["x", "i"], ["y"], {"axis": 2})],
                   {"x": ["N", "S", 48], "i": ["N", "S", 48]}, ROWS, indices={"i": 48})
    yield Operator("OneHot", [("OneHot", ["i", "d", "v"], ["y"], {})], {"i": ["N", "S"]}, ROWS,
                   {"d": ints(50), "v": np.array([0, 1], np.float32)}, {"i": 50})
    yield simple("Trilu", "Trilu", ["N", "S", "S"], [{"N": 1, "S": 32}, {"N": 4, "S": 256}], upper=0)
    yield Operator("GridSample", [("GridSample", ["x", "g"], ["y"], {})],
                   {"x": ["N", 16, "H", "W"], "g": ["N", "H", "W", 2]}, IMAGES)


def products():
    for k, n in [(64, 64), (128, 30), (256, 1), (256, 2), (256, 4), (512, 6), (32, 8), (16, 16), (8, 256), (5, 64),
                 (3, 64), (1, 64), (300, 300)]:
        yield simple(f"MatMul {k} × {n}", "MatMul", ["N", "S", k], TOKENS, {"w": weights(k, n)})
    yield Operator("MatMul of a constant on the left", [("MatMul", ["w", "x"], ["y"], {})], {"x": ["N", 100, "S"]},
                   TOKENS, {"w": weights(64, 100)})
    heads = ["N", 4, "S", 32]
    yield Operator("scores of attention",
                   [("Transpose", ["z"], ["t"], {"perm": [0, 1, 3, 2]}), ("MatMul", ["x", "t"], ["y"], {})],
                   {"x": heads, "z": heads}, TOKENS)
    yield Operator("values of attention", [("MatMul", ["x", "z"], ["y"], {})],
                   {"x": ["N", 4, "S", "S"], "z": heads}, TOKENS)
    yield Operator("MatMul of 3 × 3", [("MatMul", ["x", "z"], ["y"], {})],
                   {"x": ["N", "S", 3, 3], "z": ["N", "S", 3, 3]}, TOKENS)
    yield Operator("MatMul with vectors", [("MatMul", ["x", "z"], ["y"], {})],
                   {"x": ["N", "S", 8, 16], "z": ["N", "S", 16, 1]}, TOKENS)
    yield Operator("Einsum nctv,vw->nctw", [("Einsum", ["x", "w"], ["y"], {"equation": "nctv,vw->nctw"})],
                   {"x": ["N", 16, "S", 25]}, TOKENS, {"w": weights(25, 25)})
    yield Operator("outer product", [("Einsum", ["x", "z"], ["y"], {"equation": "ni,nj->nij"})],
                   {"x": ["N", 64], "z": ["N", 64]}, [{"N": 1}, {"N": 64}])


def recurrences():
    for kind, gates, outputs, options in [
        ("LSTM", 4, ["y", "h", "c"], {}), ("GRU", 3, ["y", "h"], {"linear_before_reset": 1}), ("RNN", 1, ["y", "h"], {}),
    ]:
        for hidden in (16, 64, 256):
            yield Operator(
                f"{kind} of {hidden}",
                [(kind, ["x", "w", "r", "b"], outputs, {"hidden_size": hidden, **options})],
                {"x": ["S", "N", 40]}, SEQUENCES,
                {"w": weights(1, gates * hidden, 40), "r": weights(1, gates * hidden, hidden),
                 "b": weights(1, 2 * gates * hidden)},
            )
