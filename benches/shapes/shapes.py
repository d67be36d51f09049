"""Draws shapes of products and convolutions at random, and writes each as a model.

Sizes are drawn from distributions that are uniform on a logarithmic scale. They are not rounded to multiples of
vectors or tiles.
"""

import dataclasses
import math

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# Ranges of the rows of a product, and of its reduction and columns.
ROWS, SIDES = (1, 4096), (16, 4096)
# Values of M that are drawn for each weight, one from each equal part of the logarithmic range.
ROWS_PER_WEIGHT = 4
# Ranges of channels and of the side of an image; the reduction of a convolution is within `SIDES`.
CHANNELS, IMAGE, BATCH = (16, 1024), (7, 112), (1, 8)
# The most multiply-adds of a call: about two seconds at 50 of them a nanosecond would be 1e11.
MOST_WORK = 1.2e10


@dataclasses.dataclass
class Shape:
    """A model with one product or convolution, and the sizes of its symbols that are measured.

    `matrix` has the reduction and the columns, per group for a convolution. `rows` is an expression over the symbols:
    the rows of the equivalent product. `work` is one for the multiply-adds of a call."""

    name: str
    kind: str
    dims: list
    ranges: dict
    sizes: list
    matrix: tuple
    rows: str
    work: str
    attributes: dict

    def value(self, expression, sizes):
        return int(eval(expression, {"__builtins__": {}}, dict(sizes)))  # The text is of this file.

    def model(self):
        """The model, with weights from a normal distribution."""
        rng = np.random.default_rng(0)
        if self.kind == "product":
            weights, operator = rng.standard_normal(self.matrix), "MatMul"
            output = [self.dims[0], self.matrix[1]]
        else:
            weights, operator = rng.standard_normal(self.attributes["filters"]), "Conv"
            output = [self.dims[0], self.attributes["filters"][0], None, None]
        weights = (weights / math.sqrt(self.matrix[0])).astype(np.float32)
        options = {k: v for k, v in self.attributes.items() if k != "filters"}
        node = helper.make_node(operator, ["x", "w"], ["y"], **options)
        graph = helper.make_graph(
            [node], self.name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.dims)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)],
            [numpy_helper.from_array(weights, "w")],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def logarithmic(rng, low, high):
    """An integer between the bounds."""
    return int(min(high, round(math.exp(rng.uniform(math.log(low), math.log(high + 1))))))


def product(rng, name):
    reduction, columns = logarithmic(rng, *SIDES), logarithmic(rng, *SIDES)
    edges = np.geomspace(ROWS[0], ROWS[1], ROWS_PER_WEIGHT + 1)
    rows = {logarithmic(rng, math.ceil(low), int(high)) for low, high in zip(edges, edges[1:])}
    most = MOST_WORK / (reduction * columns)
    sizes = [{"M": m} for m in sorted({int(min(m, most)) for m in rows})]
    return Shape(
        name, "product", ["M", reduction], {"M": ROWS}, sizes, (reduction, columns), "M",
        f"M * {reduction * columns}", {},
    )


def convolution(rng, name):
    kernel, stride = int(rng.choice([1, 3, 3, 5, 7])), int(rng.choice([1, 1, 2]))
    grouping = rng.choice(["none", "none", "depthwise", "groups"])
    if grouping == "depthwise":
        channels_in = channels_out = groups = logarithmic(rng, *CHANNELS)
    elif grouping == "groups":
        width, groups = logarithmic(rng, 8, 64), logarithmic(rng, 2, 16)
        channels_in = channels_out = width * groups
    else:
        most = max(CHANNELS[0], SIDES[1] // kernel**2)
        channels_in, channels_out = logarithmic(rng, CHANNELS[0], min(most, CHANNELS[1])), logarithmic(rng, *CHANNELS)
        groups = 1
    filters = [channels_out, channels_in // groups, kernel, kernel]
    pad = kernel // 2
    side = lambda symbol: f"(({symbol} + {2 * pad - kernel}) // {stride} + 1)"
    rows = f"N * {side('H')} * {side('W')}"
    matrix = (filters[1] * kernel**2, channels_out // groups)
    shape = Shape(
        name, "depthwise" if grouping == "depthwise" else "convolution", ["N", channels_in, "H", "W"],
        {"N": BATCH, "H": IMAGE, "W": IMAGE}, [], matrix, rows, f"{rows} * {matrix[0] * channels_out}",
        {"filters": filters, "group": groups, "strides": [stride] * 2, "pads": [pad] * 4},
    )
    for batch in (1, logarithmic(rng, 2, BATCH[1])):
        height = logarithmic(rng, *IMAGE)
        width = min(IMAGE[1], max(IMAGE[0], round(height * rng.uniform(0.7, 1.4))))
        sizes = {"N": batch, "H": height, "W": width}
        if shape.value(shape.work, sizes) <= MOST_WORK:
            shape.sizes.append(sizes)
    return shape


def draw(seed, count):
    """`count` products and as many convolutions. A seed always gives the same ones, and a larger count more of them."""
    found = []
    for k in range(count):
        found.append(product(np.random.default_rng([seed, 0, k]), f"product-{seed}-{k}"))
        found.append(convolution(np.random.default_rng([seed, 1, k]), f"convolution-{seed}-{k}"))
    return [shape for shape in found if shape.sizes]


def save(shape, path):
    onnx.save(shape.model(), path)
