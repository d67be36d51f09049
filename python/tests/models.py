"""Small ONNX models."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def model(nodes, inputs, outputs, constants=None):
    """A model; inputs and outputs are triples of name, element type and dims, and constants are arrays by name."""
    info = helper.make_tensor_value_info
    tensors = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    inputs, outputs = [info(*item) for item in inputs], [info(*item) for item in outputs]
    graph = helper.make_graph(nodes, "test", inputs, outputs, tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    proto.ir_version = 8
    if all(not node.domain for node in nodes):
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


VOCABULARY = 11
_WIDTH = 4


def decoder_weights():
    """The embedding, and the matrices of queries, keys, values and logits."""
    rng = np.random.default_rng(5)
    shapes = [(VOCABULARY, _WIDTH), (_WIDTH, _WIDTH), (_WIDTH, _WIDTH), (_WIDTH, _WIDTH), (_WIDTH, VOCABULARY)]
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def decoder(logits="logits", mask=True):
    """A decoder with one head of attention. Its names and axes are those of exports with past keys and values."""
    node = helper.make_node
    words, query, key, value, head = decoder_weights()
    arrays = {
        "words": words, "q.weight": query, "k.weight": key, "v.weight": value, "head": head,
        "zero": np.array(0, np.int64), "one": np.array(1, np.int64), "rows": np.array([1], np.int64),
        "hidden": np.array(-1e9, np.float32),
    }  # fmt: skip
    nodes = [
        node("Gather", ["words", "input_ids"], ["x"]),
        node("MatMul", ["x", "q.weight"], ["q"]),
        node("MatMul", ["x", "k.weight"], ["k"]),
        node("MatMul", ["x", "v.weight"], ["v"]),
        node("Concat", ["past_key_values.0.key", "k"], ["present.0.key"], axis=1),
        node("Concat", ["past_key_values.0.value", "v"], ["present.0.value"], axis=1),
        # A token at position i sees the tokens at positions up to i.
        node("Shape", ["past_key_values.0.key"], ["past.shape"]),
        node("Gather", ["past.shape", "one"], ["past.length"]),
        node("Shape", ["present.0.key"], ["all.shape"]),
        node("Gather", ["all.shape", "one"], ["all.length"]),
        node("Range", ["past.length", "all.length", "one"], ["own"]),
        node("Range", ["zero", "all.length", "one"], ["other"]),
        node("Unsqueeze", ["own", "rows"], ["own.rows"]),
        node("Less", ["own.rows", "other"], ["is_future"]),
        node("Transpose", ["present.0.key"], ["keys"], perm=[0, 2, 1]),
        node("MatMul", ["q", "keys"], ["scores.all"]),
        node("Where", ["is_future", "hidden", "scores.all"], ["scores.past"]),
        node("Softmax", ["scores.masked" if mask else "scores.past"], ["shares"], axis=-1),
        node("MatMul", ["shares", "present.0.value"], ["seen"]),
        node("Add", ["x", "seen"], ["y"]),
        node("MatMul", ["y", "head"], [logits]),
    ]
    cache = ["B", "P", _WIDTH]
    inputs = [("input_ids", TensorProto.INT64, ["B", "S"])]
    if mask:
        nodes[17:17] = [
            node("Unsqueeze", ["attention_mask", "rows"], ["mask.rows"]),
            node("Equal", ["mask.rows", "zero"], ["is_hidden"]),
            node("Where", ["is_hidden", "hidden", "scores.past"], ["scores.masked"]),
        ]
        inputs.append(("attention_mask", TensorProto.INT64, ["B", "P + S"]))
    inputs += [(f"past_key_values.0.{part}", TensorProto.FLOAT, cache) for part in ("key", "value")]
    outputs = [(logits, TensorProto.FLOAT, ["B", "S", VOCABULARY])]
    outputs += [(f"present.0.{part}", TensorProto.FLOAT, ["B", "P + S", _WIDTH]) for part in ("key", "value")]
    return model(nodes, inputs, outputs, arrays)


def decoder_logits(tokens):
    """The logits of :func:`decoder` for each of these tokens of one sequence, `[tokens, VOCABULARY]`."""
    words, query, key, value, head = (weight.astype(np.float64) for weight in decoder_weights())
    x = words[list(tokens)]
    scores = (x @ query) @ (x @ key).T
    scores[np.triu_indices(len(x), 1)] = -1e9
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return (x + shares @ (x @ value)) @ head


def greedy(prompt, count, end=None):
    """The most probable tokens of :func:`decoder` after a prompt, computed from the whole sequence each time: ``count``
    of them, or those before ``end``."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        token = int(np.argmax(decoder_logits(tokens)[-1]))
        if token == end:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


def encoder(positions=False, shared=False, lengths=False, vocabulary=11, width=8):
    """An encoder of padded sequences: `ids` and `mask` of `[N, S]`; `hidden: [N, S, 8]` is one layer of attention, and
    `pooled: [N, 8]` its mean over tokens. With ``positions``, the positions of tokens are an input; with ``shared``,
    its shape is `[1, S]`. With ``lengths``, the lengths of the sequences, `[N]`, are the input in place of the mask."""
    rng = np.random.default_rng(3)
    table = rng.standard_normal((vocabulary, width)).astype(np.float32)
    places = rng.standard_normal((64, width)).astype(np.float32)
    query, key, value = (rng.standard_normal((width, width)).astype(np.float32) / 3 for _ in range(3))
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "ids"], ["words"]),
        node("Gather", ["places", "positions"], ["place"]) if positions else node("Identity", ["words"], ["place"]),
        node("Add", ["words", "place"], ["x"]),
        node("MatMul", ["x", "query"], ["q"]),
        node("MatMul", ["x", "key"], ["k"]),
        node("MatMul", ["x", "value"], ["v"]),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Cast", ["mask"], ["tokens"], to=TensorProto.FLOAT),
        node("Sub", ["one", "tokens"], ["padding"]),
        node("Mul", ["padding", "lowest"], ["far"]),
        node("Unsqueeze", ["far", "axis1"], ["bias"]),
        node("Add", ["scores", "bias"], ["masked"]),
        node("Softmax", ["masked"], ["shares"], axis=-1),
        node("MatMul", ["shares", "v"], ["seen"]),
        node("Add", ["x", "seen"], ["hidden"]),
        node("Unsqueeze", ["tokens", "axis2"], ["kept"]),
        node("Mul", ["hidden", "kept"], ["rows"]),
        node("ReduceSum", ["rows", "axis1"], ["sum"], keepdims=0),
        node("ReduceSum", ["tokens", "axis1"], ["count"], keepdims=1),
        node("Div", ["sum", "count"], ["pooled"]),
    ]
    if lengths:
        before = [
            node("Shape", ["ids"], ["size"], start=1),
            node("Squeeze", ["size"], ["end"]),
            node("Range", ["first", "end", "step"], ["numbers"]),
            node("Unsqueeze", ["lengths", "axis1"], ["ends"]),
            node("Less", ["numbers", "ends"], ["mask"]),
        ]
        nodes = before + nodes
    inputs = {"ids": ["N", "S"]}
    inputs |= {"positions": [1 if shared else "N", "S"]} if positions else {}
    inputs |= {"lengths": ["N"]} if lengths else {"mask": ["N", "S"]}
    constants = {"table": table, "query": query, "key": key, "value": value}
    constants |= {"places": places} if positions else {}
    constants |= {"first": np.array(0), "step": np.array(1)} if lengths else {}
    constants |= {"one": np.float32(1), "lowest": np.array(np.finfo(np.float32).min)}
    constants |= {"axis1": np.array([1], np.int64), "axis2": np.array([2], np.int64)}
    return model(
        nodes,
        [(name, TensorProto.INT64, shape) for name, shape in inputs.items()],
        [("hidden", TensorProto.FLOAT, ["N", "S", width]), ("pooled", TensorProto.FLOAT, ["N", width])],
        {name: np.asarray(value) for name, value in constants.items()},
    )


def time_first():
    """`y = relu(x) + scale`, where the positions are the first axis: `x: [S, N, 3]`, `scale: [3]`."""
    nodes = [helper.make_node("Relu", ["x"], ["z"]), helper.make_node("Add", ["z", "scale"], ["y"])]
    inputs = [("x", TensorProto.FLOAT, ["S", "N", 3]), ("scale", TensorProto.FLOAT, [3])]
    return model(nodes, inputs, [("y", TensorProto.FLOAT, ["S", "N", 3])])


def softmax_over_positions():
    """A softmax whose sums contain padding: it has no ragged form."""
    shape = ["N", "S", 3]
    node = helper.make_node("Softmax", ["x"], ["y"], axis=1)
    return model([node], [("x", TensorProto.FLOAT, shape)], [("y", TensorProto.FLOAT, shape)])


def running_sum():
    """`y = s + x` with `s` overwritten by `y`, both `[N, 3]`."""
    nodes = [helper.make_node("Add", ["s", "x"], ["y"]), helper.make_node("Identity", ["y"], ["sn"])]
    tensors = [(name, TensorProto.FLOAT, ["N", 3]) for name in ("x", "s", "y", "sn")]
    return model(nodes, tensors[:2], tensors[2:])


def grouped_attention(heads=4, key_heads=2, width=4, batch="B", shared=False):
    """Attention of several query heads for each key head, as one operator with a cache. The number of positions comes
    from a mask, as the builder of onnxruntime-genai writes it. A cache is longer after a call; with ``shared``, past
    and present are one buffer of `C` positions."""
    node = helper.make_node
    nodes = [
        node("ReduceSum", ["mask", "one"], ["count"]),
        node("Sub", ["count", "one"], ["last64"]),
        node("Cast", ["last64"], ["last"], to=TensorProto.INT32),
        node("Shape", ["mask"], ["shape"]),
        node("Gather", ["shape", "one"], ["total64"]),
        node("Cast", ["total64"], ["total"], to=TensorProto.INT32),
        node(
            "GroupQueryAttention",
            ["q", "k", "v", "past_k", "past_v", "last", "total"],
            ["y", "present_k", "present_v"],
            domain="com.microsoft",
            num_heads=heads,
            kv_num_heads=key_heads,
        ),
    ]
    past, present = ("C", "C") if shared else ("P", "T")
    rows = [batch, "S", heads * width]
    key_rows = [batch, "S", key_heads * width]
    inputs = [(name, TensorProto.FLOAT, dims) for name, dims in (("q", rows), ("k", key_rows), ("v", key_rows))]
    inputs.append(("mask", TensorProto.INT64, [batch, "T"]))
    inputs += [(f"past_{part}", TensorProto.FLOAT, [batch, key_heads, past, width]) for part in "kv"]
    outputs = [("y", TensorProto.FLOAT, rows)]
    outputs += [(f"present_{part}", TensorProto.FLOAT, [batch, key_heads, present, width]) for part in "kv"]
    proto = model(nodes, inputs, outputs, {"one": np.array([1], np.int64)})
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto
