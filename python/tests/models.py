"""Small ONNX models."""

import onnx
from onnx import TensorProto, helper


def model(nodes, inputs, outputs):
    """A model; inputs and outputs are triples of name, element type and dims."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "test", [info(*item) for item in inputs], [info(*item) for item in outputs])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    proto.ir_version = 8
    onnx.checker.check_model(proto)
    return proto


def product(dtype=TensorProto.FLOAT):
    """`y = a @ b` with `a: [N, K]` and `b: [K, 5]`."""
    return model(
        [helper.make_node("MatMul", ["a", "b"], ["y"])],
        [("a", dtype, ["N", "K"]), ("b", dtype, ["K", 5])],
        [("y", dtype, ["N", 5])],
    )


def sum_and_difference():
    """Two outputs: `s = a + b` and `d = a - b`."""
    return model(
        [helper.make_node("Add", ["a", "b"], ["s"]), helper.make_node("Sub", ["a", "b"], ["d"])],
        [("a", TensorProto.FLOAT, ["N", 3]), ("b", TensorProto.FLOAT, ["N", 3])],
        [("s", TensorProto.FLOAT, ["N", 3]), ("d", TensorProto.FLOAT, ["N", 3])],
    )


def non_zero():
    """The indices of the elements that are not zero."""
    return model(
        [helper.make_node("NonZero", ["x"], ["y"])],
        [("x", TensorProto.FLOAT, ["N"])],
        [("y", TensorProto.INT64, [1, "count"])],
    )


def relu(dtype):
    return model([helper.make_node("Relu", ["x"], ["y"])], [("x", dtype, ["N", 3])], [("y", dtype, ["N", 3])])


def unknown():
    """Two operators that symshape does not know."""
    nodes = [helper.make_node(op, ["x"], [op], domain="com.acme") for op in ("Foo", "Bar")]
    nodes.append(helper.make_node("Add", ["Foo", "Bar"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"])],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.acme", 1)]
    return helper.make_model(graph, opset_imports=imports)
