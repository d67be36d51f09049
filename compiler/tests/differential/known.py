"""The differences from ONNX Runtime that docs/operators.md lists. Each is tried, so that the list stays true.

The random graphs avoid these cases.
"""

import json
import tempfile
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

import artefact
import graphs


@dataclass
class Known:
    """A model with the input `x`, where `N` is `n`; `ours` and `theirs` are the outcomes.

    `row` starts a row of the table in docs/operators.md.
    """

    row: str
    nodes: list
    shape: list
    n: int
    ours: str
    theirs: str
    constants: dict = field(default_factory=dict)


def node(op, inputs, output="y", **attributes):
    return helper.make_node(op, inputs, [output], **attributes)


FIRST_DIM = [node("Shape", ["x"], "dims"), node("Slice", ["dims", "zero", "one"], "n")]
INTS = {"zero": [0], "one": [1], "four": [4], "open": [-1]}

REFUSED = "refused"
POOLS = "AveragePool, MaxPool | a window larger than the padded input by a stride or more"
REDUCTIONS = "Reduce operators | a negative axis of a tensor without elements"
RESHAPE = "Reshape | a computed dim that is 0 in a call"
KNOWN = [
    Known(
        "all operators in 16-bit floats | a result that is not stored",
        [
            node("Cast", ["x"], "half", to=onnx.TensorProto.FLOAT16),
            node("Mul", ["half", "small"], "once"),
            node("Mul", ["once", "small"], "twice"),
            node("Sign", ["twice"], "sign"),
            node("Cast", ["sign"], to=onnx.TensorProto.FLOAT),
        ],
        ["N"],
        1,
        "[1] [1.0]",
        "[1] [0.0]",
        {"small": np.array(2.0**-13, "f2")},
    ),
    Known(
        "all operators that broadcast | a symbolic dim that is 1",
        [node("Add", ["x", "two_rows"])],
        ["N", 1],
        1,
        REFUSED,
        "[2, 1] [2.0, 2.0]",
        {"two_rows": np.ones([2, 1], "f4")},
    ),
    Known(POOLS, [node("AveragePool", ["x"], kernel_shape=[4])], ["N", 1, 2], 1, "[1, 1, 0] []", REFUSED),
    Known(
        "GlobalAveragePool | an image without elements",
        [node("GlobalAveragePool", ["x"])],
        ["N", 2, 0],
        1,
        "[1, 2, 1] [nan, nan]",
        REFUSED,
    ),
    Known(
        "GlobalMaxPool | an image without elements",
        [node("GlobalMaxPool", ["x"])],
        ["N", 2, 0],
        1,
        "[1, 2, 1] [-inf, -inf]",
        REFUSED,
    ),
    Known(
        'Pad | `mode="reflect"`',
        [node("Pad", ["x", "pads"], mode="reflect")],
        ["N", 2],
        1,
        "[1, 5] [1.0, 2.0, 1.0, 2.0, 1.0]",
        REFUSED,
        {"pads": [0, 0, 0, 3]},
    ),
    Known(
        "QuantizeLinear | an element that is NaN",
        [
            node("Neg", ["x"], "negative"),
            node("Sqrt", ["negative"], "nan"),
            node("QuantizeLinear", ["nan", "scale", "three"], "quantised"),
            node("Cast", ["quantised"], to=onnx.TensorProto.FLOAT),
        ],
        ["N"],
        1,
        "[1] [0.0]",
        "[1] [-128.0]",
        {"scale": np.float32(1), "three": np.int8(3)},
    ),
    Known(
        "ReduceMean | an empty axis",
        [node("ReduceMean", ["x", "zero"])],
        ["N", 2],
        0,
        "[1, 2] [nan, nan]",
        "[1, 2] [0.0, 0.0]",
        INTS,
    ),
    Known(REDUCTIONS, [node("ReduceSum", ["x", "open"])], ["N", 0], 2, "[2, 1] [0.0, 0.0]", "[2, 0] []", INTS),
    Known(REDUCTIONS, [node("ReduceMax", ["x", "open"])], ["N", 3], 0, "[0, 1] []", "[0, 3] []", INTS),
    Known(
        RESHAPE,
        FIRST_DIM + [node("Concat", ["four", "n"], "to", axis=0), node("Reshape", ["x", "to"])],
        ["N", 4],
        0,
        "[4, 0] []",
        REFUSED,
        INTS,
    ),
    Known(
        RESHAPE,
        [
            node("Shape", ["x"], "columns", start=2),
            node("Concat", ["open", "columns"], "to", axis=0),
            node("Reshape", ["x", "to"]),
        ],
        [2, 3, "N"],
        0,
        "[6, 0] []",
        "[0, 3] []",
        INTS,
    ),
    Known(
        "Resize | `align_corners`",
        [node("Resize", ["x", "", "scales"], mode="linear", coordinate_transformation_mode="align_corners")],
        ["N", 3],
        1,
        "[1, 4] [1.0, 1.571, 2.143, 2.714]",
        "[1, 4] [1.0, 1.667, 2.333, 3.0]",
        {"scales": np.array([1, 1.5], "f4")},
    ),
]


def text(array):
    return f"{list(array.shape)} {[round(float(x), 3) for x in array.ravel()]}"


def model_of(known):
    constants = [onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in known.constants.items()]
    tensors = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims)
        for name, dims in (("x", known.shape), ("y", None))
    ]
    return graphs.make_model(helper.make_graph(known.nodes, "known", tensors[:1], tensors[1:], constants), 18)


def their_outcome(model, x):
    try:
        return text(graphs.session(model).run(None, {"x": x})[0])
    except Exception:
        return REFUSED


def our_outcome(model, x, n, symc):
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model, f"{folder}/model.onnx")
        with open(f"{folder}/bounds.json", "w", encoding="utf-8") as file:
            json.dump({"N": [n, 6]}, file)
        try:
            artefact.compile_model(symc, folder)
            result = artefact.call_all(folder, artefact.query(symc, folder), [[x]], ["f4"], [{}])[0]
        except artefact.Refused:
            return REFUSED
        if isinstance(result, str):
            return REFUSED if result.startswith(REFUSED) else result
        return text(result[0])


def check(symc, page):
    """The rows that no longer hold."""
    with open(page, encoding="utf-8") as file:
        table = file.read()
    wrong = []
    for known in KNOWN:
        shape = [known.n if dim == "N" else dim for dim in known.shape]
        x = np.arange(1, 1 + int(np.prod(shape)), dtype="f4").reshape(shape)
        model = model_of(known)
        found = [our_outcome(model, x, known.n, symc), their_outcome(model, x)]
        if found != [known.ours, known.theirs]:
            wrong.append(known.row)
            print(f"{known.row}: symshape {found[0]}, ONNX Runtime {found[1]}; update the table in docs/operators.md")
        if f"| {known.row}" not in table:
            wrong.append(known.row)
            print(f"{known.row}: this row is not in {page}")
    return wrong
