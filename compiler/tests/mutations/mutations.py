"""Changes of a model: some stay valid, most don't."""

import onnx
from onnx import numpy_helper

# Numbers at the ends of types and of usual limits.
INTEGERS = [0, 1, 2, 3, 7, 31, 64, 255, 4096, 65_537, 1 << 20, (1 << 31) - 1, 1 << 40, (1 << 63) - 1]
# Ends of ranges, small and huge.
BOUNDS = [0, 1, 2, 3, 17, 64, 512, 4097, 1 << 16, 1 << 20, (1 << 31) - 1, 1 << 40, (1 << 62) + 1]
OPERATORS = [
    "Add", "Sub", "Mul", "Div", "Pow", "MatMul", "Concat", "Where", "Gather", "Reshape", "Expand", "Tile", "Slice",
    "Transpose", "Softmax", "ReduceMean", "ReduceSum", "Conv", "ConvTranspose", "Gemm", "Relu", "Erf", "Sqrt",
    "Unsqueeze", "Squeeze", "Shape", "Cast", "Pad", "Range", "CumSum", "ScatterND", "GatherND", "GatherElements",
    "NonZero", "TopK", "ArgMax", "Split", "Resize", "MaxPool", "AveragePool", "Flatten", "Identity", "Mod", "Equal",
    "OneHot", "Einsum", "LayerNormalization", "ConstantOfShape", "Trilu", "Min", "Max", "Not",
]  # fmt: skip
LARGEST_CONSTANT = 64


def number(random, old):
    """An integer near the old one, or at an end."""
    choices = [old - 1, old + 1, -old, old * 2, old * 1000 + 1, old // 2, random.choice(INTEGERS)]
    choices.append(-random.choice(INTEGERS))
    return max(-(1 << 63), min((1 << 63) - 1, random.choice(choices)))


def attribute(random, model, ranges):
    """An integer or a float of an attribute."""
    attributes = [a for node in nodes(model) for a in node.attribute if a.type in (1, 2, 6, 7)]
    if not attributes:
        return
    chosen = random.choice(attributes)
    if chosen.type == onnx.AttributeProto.INT:
        chosen.i = number(random, chosen.i)
    elif chosen.type == onnx.AttributeProto.FLOAT:
        chosen.f = random.choice([0.0, -1.0, 1e30, float("nan"), float("inf"), chosen.f * 2])
    elif chosen.type == onnx.AttributeProto.INTS and chosen.ints:
        change_list(random, chosen.ints)


def change_list(random, integers):
    """Changes, removes, adds or reorders elements."""
    position = random.randrange(len(integers))
    how = random.randrange(5)
    if how == 0:
        del integers[position]
    elif how == 1:
        integers.append(number(random, integers[position]))
    elif how == 2:
        order = list(integers)
        random.shuffle(order)
        integers[:] = order
    else:
        integers[position] = number(random, integers[position])


def constant(random, model, ranges):
    """An element of a small tensor of integers, such as a shape."""
    tensors = [t for t in model.graph.initializer if is_small(t)]
    tensors += [a.t for node in nodes(model) for a in node.attribute if a.type == 4 and is_small(a.t)]
    if not tensors:
        return
    tensor = random.choice(tensors)
    array = numpy_helper.to_array(tensor).copy()
    if tensor.data_type == onnx.TensorProto.INT32:
        value = max(-(1 << 31), min((1 << 31) - 1, number(random, int(array.flat[0]))))
    else:
        value = number(random, int(array.flat[random.randrange(array.size)]))
    array.flat[random.randrange(array.size)] = value
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(array, name))


def is_small(tensor):
    count = 1
    for dim in tensor.dims:
        count *= dim
    return tensor.data_type in (6, 7) and 0 < count <= LARGEST_CONSTANT


def weight_shape(random, model, ranges):
    """The dims of a large tensor, with the same number of elements."""
    tensors = [t for t in model.graph.initializer if len(t.dims) > 0 and not is_small(t)]
    if not tensors:
        return
    dims = random.choice(tensors).dims
    how = random.randrange(3)
    if how == 0:
        order = list(dims)
        random.shuffle(order)
        dims[:] = order
    elif how == 1:
        dims.insert(random.randrange(len(dims) + 1), 1)
    elif dims[0] % 2 == 0:
        dims[0] //= 2
        dims.append(2)


def input_dim(random, model, ranges):
    """A dim of an input: a number, another symbol or a new symbol."""
    values = [v for v in model.graph.input if v.type.tensor_type.shape.dim]
    if not values:
        return
    dim = random.choice(random.choice(values).type.tensor_type.shape.dim)
    how = random.randrange(4)
    if how == 0:
        dim.dim_value = abs(number(random, dim.dim_value))
    elif how == 1 and ranges:
        dim.dim_param = random.choice(sorted(ranges))
    elif how == 2:
        dim.dim_param = f"new{random.randrange(3)}"
        ranges[dim.dim_param] = span(random)
    elif dim.dim_value:
        dim.dim_param = f"free{dim.dim_value}"
        ranges[dim.dim_param] = f"1..{dim.dim_value * random.choice([1, 2, 1000])}"


def span(random):
    """A range of a symbol."""
    low, high = sorted(random.choice(BOUNDS) for _ in range(2))
    step = random.choice(["", "", "", "/2", "/32", "/7"])
    return f"{low}..{high}{step}"


def contract(random, model, ranges):
    """The range of a symbol, often huge."""
    if ranges:
        ranges[random.choice(sorted(ranges))] = span(random)


def rewire(random, model, ranges):
    """Inputs of a node: swapped, dropped, or another value of the graph."""
    node = random.choice(model.graph.node)
    if not node.input:
        return
    position = random.randrange(len(node.input))
    how = random.randrange(4)
    if how == 0:
        other = random.randrange(len(node.input))
        node.input[position], node.input[other] = node.input[other], node.input[position]
    elif how == 1 and len(node.input) > 1:
        del node.input[position]
    else:
        at = next(i for i, other in enumerate(model.graph.node) if other is node or other == node)
        before = [name for other in model.graph.node[max(0, at - 40) : at] for name in other.output]
        before += [value.name for value in model.graph.input]
        node.input[position] = random.choice(before)


def operator(random, model, ranges):
    """The operator of a node."""
    random.choice(model.graph.node).op_type = random.choice(OPERATORS)


def skip(random, model, ranges):
    """A node is left out: its readers read its input."""
    node = random.choice(model.graph.node)
    if node.input and node.output:
        old, new = node.output[0], node.input[0]
        for other in model.graph.node:
            if other is not node:
                other.input[:] = [new if name == old else name for name in other.input]


def repeat(random, model, ranges):
    """A chain of copies of a node with one output reads its own output."""
    at = random.randrange(len(model.graph.node))
    node = model.graph.node[at]
    if len(node.output) != 1 or not node.input:
        return
    end = node.output[0]
    copies = []
    for i in range(random.choice([2, 8, 30])):
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = f"{node.name}_again{i}"
        copy.input[0] = end if i == 0 else f"{end}_again{i - 1}"
        copy.output[0] = f"{end}_again{i}"
        copies.append(copy)
    for other in model.graph.node:
        if other is not node:
            other.input[:] = [copies[-1].output[0] if name == end else name for name in other.input]
    rest = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(rest[: at + 1] + copies + rest[at + 1 :])


MUTATIONS = [
    attribute, attribute, constant, constant, constant, weight_shape, input_dim, contract, contract, rewire, rewire,
    operator, skip, repeat,
]  # fmt: skip


def nodes(model):
    """All nodes, also of subgraphs."""
    pending = list(model.graph.node)
    while pending:
        node = pending.pop()
        yield node
        for subgraph in [a.g for a in node.attribute if a.type == 5]:
            pending.extend(subgraph.node)


def mutate(random, model, ranges):
    """Changes the model and its ranges in place, and returns the names of the changes."""
    chosen = [random.choice(MUTATIONS) for _ in range(random.choice([1, 1, 2, 3]))]
    for mutation in chosen:
        mutation(random, model, ranges)
    return [mutation.__name__ for mutation in chosen]
