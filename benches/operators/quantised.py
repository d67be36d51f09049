"""Single operators on 8-bit integers and on halves, with the sizes at which they are measured.

A quantised operator is between its DequantizeLinear and QuantizeLinear nodes, as tools of quantisation write it.
"""

import numpy as np
from onnx import TensorProto

from operators import IMAGES, ROWS, SIGNALS, TOKENS, Operator, ints, simple, weights

IMAGE = lambda channels: ["N", channels, "H", "W"]
SIGNAL = lambda channels: ["N", channels, "L"]
ZERO_POINTS = {"u8": np.uint8(121), "i8": np.int8(3)}


def scales(name, kind, scale=0.03):
    """The constants of a scale and a zero point."""
    return {f"{name}_s": np.float32(scale), f"{name}_z": ZERO_POINTS[kind]}


def dequantise(name, kind="u8"):
    """The node that dequantises a value, and its constants."""
    return ("DequantizeLinear", [name, f"{name}_s", f"{name}_z"], [f"{name}_f"], {}), scales(name, kind)


def quantised(name, node, inputs, sizes, integers=None, constants=None, kind="u8", scale=0.03, channel=0, **options):
    """The node between nodes of quantisation. `integers` are weights of 8 bits with a scale for each index of their
    axis `channel`; `constants` are operands of other types."""
    nodes, found = [], dict(constants or {})
    for operand in inputs:
        before, values = dequantise(operand, kind)
        nodes.append(before)
        found |= values
    operands = [f"{operand}_f" for operand in inputs]
    for operand, value in (integers or {}).items():
        steps = np.full(value.shape[channel], 0.01, np.float32)
        found |= {operand: int8(value), f"{operand}_s": steps, f"{operand}_z": np.zeros(steps.shape, np.int8)}
        nodes.append(("DequantizeLinear", [operand, f"{operand}_s", f"{operand}_z"], [f"{operand}_f"], {"axis": channel}))
        operands.append(f"{operand}_f")
    operands += list(constants or {})
    nodes.append((node, operands, ["y_f"], options))
    nodes.append(("QuantizeLinear", ["y_f", "y_s", "y_z"], ["y"], {}))
    found |= scales("y", kind, scale)
    return Operator(f"{name}, {kind}", nodes, inputs, sizes, found, types=dict.fromkeys(inputs, kind))


def int8(value):
    """Weights of 8 bits."""
    return np.clip(np.rint(value / np.abs(value).max() * 127), -127, 127).astype(np.int8)


def halves(operator):
    """The operator on halves."""
    constants = {
        name: value.astype(np.float16) if np.asarray(value).dtype == np.float32 else value
        for name, value in operator.constants.items()
    }
    inputs = {name: "f16" for name in operator.inputs if name not in operator.indices}
    return Operator(
        f"{operator.name}, f16", operator.nodes, operator.inputs, operator.sizes, constants, operator.indices,
        operator.positive, inputs,
    )


def convolutions():
    for kind in ("u8", "i8"):
        for c, o, k, stride, groups in [
            (3, 32, 3, 2, 1), (3, 64, 7, 2, 1), (1, 16, 3, 1, 1), (16, 16, 3, 1, 1), (24, 24, 3, 1, 1),
            (32, 64, 3, 1, 1), (64, 64, 3, 1, 1), (64, 64, 3, 2, 1), (64, 64, 1, 1, 1), (64, 256, 1, 1, 1),
            (256, 64, 1, 1, 1), (256, 256, 1, 1, 1), (128, 128, 3, 1, 1), (16, 96, 1, 1, 1), (96, 24, 1, 1, 1),
            (512, 19, 1, 1, 1), (64, 1, 1, 1, 1), (64, 1, 3, 1, 1), (64, 3, 3, 1, 1), (48, 8, 1, 1, 1),
            (64, 64, 3, 1, 64), (64, 64, 3, 2, 64), (96, 96, 5, 1, 96), (240, 240, 5, 2, 240), (72, 72, 7, 1, 72),
            (64, 64, 3, 1, 2), (128, 128, 3, 1, 32), (256, 256, 1, 2, 1),
        ]:
            yield quantised(
                f"Conv {o}×{c // groups}×{k}×{k}, stride {stride}, {groups} groups", "Conv", {"x": IMAGE(c)}, IMAGES,
                {"w": weights(o, c // groups, k, k)}, kind=kind, scale=0.2, group=groups, strides=[stride] * 2,
                pads=[k // 2] * 4,
            )
    for c, o, k, stride, step, groups in [
        (64, 64, 3, 1, 1, 1), (80, 256, 7, 1, 1, 1), (32, 32, 7, 1, 3, 1), (64, 64, 31, 1, 1, 64), (1, 64, 10, 5, 1, 1),
    ]:
        yield quantised(
            f"Conv {o}×{c // groups}×{k}, stride {stride}, dilation {step}", "Conv", {"x": SIGNAL(c)}, SIGNALS,
            {"w": weights(o, c // groups, k)}, scale=0.2, group=groups, strides=[stride], dilations=[step],
            pads=[step * (k - 1) // 2] * 2,
        )
    for c, o, k, stride, pad in [(64, 32, 4, 2, 1), (32, 16, 2, 2, 0), (64, 64, 3, 2, 1), (32, 1, 4, 2, 1)]:
        yield quantised(
            f"ConvTranspose {c}×{o}×{k}×{k}, stride {stride}", "ConvTranspose", {"x": IMAGE(c)}, IMAGES,
            {"w": weights(c, o, k, k)}, scale=0.2, channel=1, strides=[stride] * 2, pads=[pad] * 4,
        )
    for c, o, k in [(16, 32, 3), (64, 64, 1)]:
        found = {
            "x_s": np.float32(0.03), "x_z": np.uint8(121), "w": int8(weights(o, c, k, k)), "w_s": np.float32(0.01),
            "w_z": np.int8(0), "y_s": np.float32(0.2), "y_z": np.uint8(121),
        }
        yield Operator(f"QLinearConv {o}×{c}×{k}×{k}, u8",
                       [("QLinearConv", ["x", *found], ["y"], {"pads": [k // 2] * 4})], {"x": IMAGE(c)}, IMAGES, found,
                       types={"x": "u8"})
        found = {"w": int8(weights(o, c, k, k)), "z": np.uint8(121)}
        yield Operator(f"ConvInteger {o}×{c}×{k}×{k}", [("ConvInteger", ["x", *found], ["y"], {"pads": [k // 2] * 4})],
                       {"x": IMAGE(c)}, IMAGES, found, types={"x": "u8"})


def products():
    for kind in ("u8", "i8"):
        for k, n in [(64, 64), (128, 30), (256, 1), (256, 4), (16, 16), (300, 300), (384, 384), (384, 1536), (1536, 384),
                     (768, 768), (1024, 1000)]:
            yield quantised(f"MatMul {k} × {n}", "MatMul", {"x": ["N", "S", k]}, TOKENS, {"w": weights(k, n)},
                            kind=kind, scale=0.3, channel=1)
        heads = ["N", 4, "S", 32]
        yield quantised("MatMul of attention", "MatMul", {"x": ["N", 4, "S", "S"], "z": heads}, TOKENS, kind=kind, scale=0.3)
    yield quantised("Gemm 512 × 256", "Gemm", {"x": ["N", 512]}, [{"N": 1}, {"N": 64}], {"w": weights(256, 512)},
                    scale=0.3, transB=1)
    for k, n in [(64, 64), (384, 384), (384, 1536), (768, 768)]:
        yield dynamic(k, n)
        found = {
            "x_s": np.float32(0.03), "x_z": np.uint8(121), "w": int8(weights(k, n)), "w_s": np.float32(0.01),
            "w_z": np.int8(0), "y_s": np.float32(0.3), "y_z": np.uint8(121),
        }
        yield Operator(f"QLinearMatMul {k} × {n}, u8", [("QLinearMatMul", ["x", *found], ["y"], {})],
                       {"x": ["N", "S", k]}, TOKENS, found, types={"x": "u8"})
        found = {"w": int8(weights(k, n)), "z": np.uint8(121)}
        yield Operator(f"MatMulInteger {k} × {n}", [("MatMulInteger", ["x", *found], ["y"], {})],
                       {"x": ["N", "S", k]}, TOKENS, found, types={"x": "u8"})


def dynamic(k, n):
    """A product whose left operand is quantised by its extremes, as in exports with dynamic quantisation."""
    nodes = [
        ("DynamicQuantizeLinear", ["x"], ["q", "q_s", "q_z"], {}),
        ("MatMulInteger", ["q", "w", "q_z", "w_z"], ["i"], {}),
        ("Cast", ["i"], ["f"], {"to": TensorProto.FLOAT}),
        ("Mul", ["q_s", "w_s"], ["s"], {}),
        ("Mul", ["f", "s"], ["p"], {}),
        ("Add", ["p", "b"], ["y"], {}),
    ]
    found = {"w": int8(weights(k, n)), "w_z": np.int8(0), "w_s": np.float32(0.01), "b": weights(n)}
    return Operator(f"dynamic MatMul {k} × {n}", nodes, {"x": ["N", "S", k]}, TOKENS, found)


def others():
    for kind in ("u8", "i8"):
        for node in ("Add", "Mul"):
            yield quantised(f"{node}, equal shapes", node, {"x": IMAGE(32), "z": IMAGE(32)}, IMAGES, kind=kind)
            yield quantised(f"{node}, channels", node, {"x": IMAGE(32), "z": ["N", 32, 1, 1]}, IMAGES, kind=kind)
        yield quantised("Concat", "Concat", {"x": IMAGE(16), "z": IMAGE(24)}, IMAGES, kind=kind, axis=1)
        for node in ("Relu", "Sigmoid", "Tanh", "HardSwish", "LeakyRelu", "Gelu"):
            yield quantised(node, node, {"x": ["N", "S", 64]}, ROWS, kind=kind)
        for k, stride in [(2, 2), (3, 2), (3, 1), (5, 1)]:
            for node in ("MaxPool", "AveragePool"):
                yield quantised(f"{node} {k}×{k}, stride {stride}", node, {"x": IMAGE(32)}, IMAGES, kind=kind,
                                kernel_shape=[k, k], strides=[stride] * 2, pads=[k // 2 if k > 2 else 0] * 4)
        yield quantised("GlobalAveragePool", "GlobalAveragePool", {"x": IMAGE(64)}, IMAGES, kind=kind)
        yield quantised("ReduceMean", "ReduceMean", {"x": IMAGE(64)}, IMAGES, constants={"a": ints(2, 3)}, kind=kind)
        for size in (10, 100, 384):
            yield quantised(f"Softmax of {size}", "Softmax", {"x": ["N", "S", size]}, ROWS, kind=kind, scale=0.004)
        yield quantised("LayerNormalization of 384", "LayerNormalization", {"x": ["N", "S", 384]}, ROWS,
                        constants={"g": weights(384), "b": weights(384)}, kind=kind)
        yield quantised("Transpose (0, 2, 1, 3)", "Transpose", {"x": IMAGE(32)}, IMAGES, kind=kind, perm=[0, 2, 1, 3])
        yield quantised("Transpose (0, 2, 3, 1)", "Transpose", {"x": IMAGE(32)}, IMAGES, kind=kind, perm=[0, 2, 3, 1])
    for mode in ("nearest", "linear"):
        nodes = [
            ("DequantizeLinear", ["x", "x_s", "x_z"], ["x_f"], {}),
            ("Resize", ["x_f", "", "f"], ["y_f"], {"mode": mode}),
            ("QuantizeLinear", ["y_f", "x_s", "x_z"], ["y"], {}),
        ]
        found = {**scales("x", "u8"), "f": np.array([1, 1, 2, 2], np.float32)}
        yield Operator(f"Resize {mode}, u8", nodes, {"x": IMAGE(32)}, IMAGES, found, types={"x": "u8"})
    yield simple("QuantizeLinear", "QuantizeLinear", IMAGE(32), IMAGES, scales("y", "u8"))
    yield simple("QuantizeLinear by channel", "QuantizeLinear", IMAGE(32), IMAGES,
                 {"s": abs(weights(32)) + 0.01, "z": np.zeros(32, np.uint8)}, axis=1)
    yield Operator("DequantizeLinear", [("DequantizeLinear", ["x", "x_s", "x_z"], ["y"], {})], {"x": IMAGE(32)}, IMAGES,
                   scales("x", "u8"), types={"x": "u8"})
    yield Operator("DynamicQuantizeLinear", [("DynamicQuantizeLinear", ["x"], ["y", "s", "z"], {})],
                   {"x": ["N", "S", 384]}, TOKENS)
    yield Operator("Cast of an image", [("Cast", ["x"], ["y"], {"to": TensorProto.FLOAT})],
                   {"x": ["N", "H", "W", 3]}, IMAGES, types={"x": "u8"})


def floats():
    """Some of the operators on halves."""
    image = lambda name, node, *rest, **options: halves(simple(name, node, IMAGE(64), IMAGES, *rest, **options))
    row = lambda node, size, *rest, **options: halves(simple(f"{node} of {size}", node, ["N", "S", size], ROWS, *rest, **options))
    yield image("Conv 64×64×3×3", "Conv", {"w": weights(64, 64, 3, 3)}, pads=[1] * 4)
    yield image("Conv 64×64×1×1", "Conv", {"w": weights(64, 64, 1, 1)})
    yield image("Conv 64 groups, 3×3", "Conv", {"w": weights(64, 1, 3, 3)}, pads=[1] * 4, group=64)
    yield image("ConvTranspose 64×32×4×4", "ConvTranspose", {"w": weights(64, 32, 4, 4)}, strides=[2, 2], pads=[1] * 4)
    yield image("MaxPool 3×3", "MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    yield image("AveragePool 3×3", "AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    yield image("GlobalAveragePool", "GlobalAveragePool")
    yield image("InstanceNormalization", "InstanceNormalization", {"g": weights(64), "b": weights(64)})
    yield image("Transpose (0, 2, 3, 1)", "Transpose", perm=[0, 2, 3, 1])
    yield image("Transpose (0, 2, 1, 3)", "Transpose", perm=[0, 2, 1, 3])
    for size in (10, 100, 1000):
        yield row("Softmax", size, axis=-1)
    for size in (100, 384):
        yield row("LayerNormalization", size, {"g": weights(size), "b": weights(size)}, axis=-1)
    for node in ("Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Gelu", "Sin", "Softplus"):
        yield row(node, 64)
    for node in ("ReduceMean", "ReduceMax"):
        for axes in ([1], [2]):
            yield halves(simple(f"{node} {axes}", node, ["N", "S", 48], ROWS, {"a": ints(*axes)}, keepdims=0))
    for node in ("Add", "Mul", "Div", "Max"):
        yield halves(Operator(f"{node}, equal shapes", [(node, ["x", "z"], ["y"], {})],
                              {"x": ["N", "S", 64], "z": ["N", "S", 64]}, ROWS, positive=("z",)))
    for k, n in [(64, 64), (384, 384), (384, 1536), (256, 1)]:
        yield halves(simple(f"MatMul {k} × {n}", "MatMul", ["N", "S", k], TOKENS, {"w": weights(k, n)}))
    yield halves(Operator("Gather of rows", [("Gather", ["w", "i"], ["y"], {})], {"i": ["N", "S"]}, ROWS,
                          {"w": weights(1000, 64)}, {"i": 1000}))


def operators():
    """All of them, by kind."""
    return {
        "quantised convolutions": list(convolutions()),
        "quantised products": list(products()),
        "other quantised operators": list(others()),
        "halves": list(floats()),
    }
