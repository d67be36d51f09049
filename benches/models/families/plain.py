"""Graphs that are made without torch: the forms of other tools' builders."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from case import floats, ids, ones, positions
from export import Case, Entry

VOCAB, SIZE, HEADS, KV_HEADS, HEAD_SIZE, INNER, LAYERS, MAX_LENGTH = 1000, 256, 4, 2, 64, 512, 2, 512
FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32
CONTRIB = "com.microsoft"


class Builder:
    """Collects nodes and weights; `self("Op", inputs…)` returns the name of a node's first output."""

    def __init__(self):
        self.nodes, self.weights = [], []
        self.rng = np.random.default_rng(0)

    def __call__(self, operator, *inputs, outputs=1, domain="", names=(), **attributes):
        found = list(names) or [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), found, domain=domain, **attributes))
        return found[0] if len(found) == 1 else found

    def weight(self, *shape, scale=None):
        values = self.rng.standard_normal(shape) * (scale or shape[0] ** -0.5)
        return self.constant(values.astype(np.float32))

    def constant(self, array):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def model(self, inputs, outputs, opset, contrib=False):
        """`inputs` and `outputs` map names to element types and dims."""
        values = [
            [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in part.items()]
            for part in (inputs, outputs)
        ]
        graph = helper.make_graph(self.nodes, "model", *values, self.weights)
        opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(CONTRIB, 1)] if contrib else [])
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def rotary_tables():
    angles = np.arange(MAX_LENGTH)[:, None] / 10000 ** (np.arange(HEAD_SIZE // 2) / (HEAD_SIZE // 2))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def past_tensors(batch="N"):
    """The types of the past and present keys and values."""
    past, present = {}, {}
    for layer in range(LAYERS):
        for part in ("key", "value"):
            past[f"past_key_values.{layer}.{part}"] = (FLOAT, [batch, KV_HEADS, "P", HEAD_SIZE])
            present[f"present.{layer}.{part}"] = (FLOAT, [batch, KV_HEADS, "T", HEAD_SIZE])
    return past, present


def grouped_attention(bits, batch, tokens):
    """A decoder with the operators of onnxruntime-genai: GroupQueryAttention with rotary embeddings inside,
    normalisations that add a residual, and weights of 32 or 4 bits.

    ONNX Runtime takes either one new token of many sequences or many new tokens of one sequence."""
    b = Builder()
    cos, sin = (b.constant(table) for table in rotary_tables())
    total = b("ReduceSum", "attention_mask", b.constant(np.array([1])), keepdims=0)
    lengths = b("Cast", b("Sub", total, b.constant(np.array(1))), to=INT32)
    width = b("Gather", b("Shape", "attention_mask"), b.constant(np.array(1)), axis=0)
    width = b("Cast", width, to=INT32)

    def linear(x, inside, outside):
        if bits == 32:
            return b("MatMul", x, b.weight(inside, outside))
        blocks = inside // 32
        packed = b.constant(b.rng.integers(0, 256, (outside, blocks, 16)).astype(np.uint8))
        scales = b.constant((b.rng.random((outside, blocks)) * 0.02 + 0.005).astype(np.float32))
        return b("MatMulNBits", x, packed, scales, domain=CONTRIB, K=inside, N=outside, bits=4, block_size=32)

    x = b("Gather", b.weight(VOCAB, SIZE, scale=1.0), "input_ids")
    norm = b("SimplifiedLayerNormalization", x, b.constant(np.ones(SIZE, np.float32)), axis=-1, epsilon=1e-5,
             stash_type=1)
    for layer in range(LAYERS):
        query = linear(norm, SIZE, HEADS * HEAD_SIZE)
        key = linear(norm, SIZE, KV_HEADS * HEAD_SIZE)
        value = linear(norm, SIZE, KV_HEADS * HEAD_SIZE)
        past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        mixed = b("GroupQueryAttention", query, key, value, *past, lengths, width, cos, sin, domain=CONTRIB,
                  names=[f"mixed{layer}", f"present.{layer}.key", f"present.{layer}.value"], num_heads=HEADS,
                  kv_num_heads=KV_HEADS, do_rotary=1)[0]
        norm, _, _, x = b("SkipSimplifiedLayerNormalization", x, linear(mixed, HEADS * HEAD_SIZE, SIZE),
                          b.constant(np.ones(SIZE, np.float32)), domain=CONTRIB, epsilon=1e-5,
                          names=[f"norm{layer}", "", "", f"sum{layer}"])
        gate, up = linear(norm, SIZE, INNER), linear(norm, SIZE, INNER)
        gate = b("Mul", gate, b("Sigmoid", gate))
        norm, _, _, x = b("SkipSimplifiedLayerNormalization", x, linear(b("Mul", gate, up), INNER, SIZE),
                          b.constant(np.ones(SIZE, np.float32)), domain=CONTRIB, epsilon=1e-5,
                          names=[f"next{layer}", "", "", f"next_sum{layer}"])
    b("MatMul", norm, b.weight(SIZE, VOCAB), names=["logits"])
    past, present = past_tensors(batch)
    types = {"input_ids": (INT64, [batch, "S"]), "attention_mask": (INT64, [batch, "T"]), **past}
    model = b.model(types, {"logits": (FLOAT, [batch, "S", VOCAB]), **present}, 21, contrib=True)
    inputs = {"input_ids": ids(VOCAB, batch, "S"), "attention_mask": ones(batch, "T")}
    inputs |= {name: floats(*dims) for name, (_, dims) in past.items()}
    return Case(model, inputs, [], {"N": "1..8", "S": tokens, "P": "1..128", "T": "P+S"})


def standard_attention(opset):
    """A decoder with Attention, RMSNormalization and RotaryEmbedding of the standard."""
    b = Builder()
    cos, sin = (b.constant(table) for table in rotary_tables())
    x = b("Gather", b.weight(VOCAB, SIZE, scale=1.0), "input_ids")
    ones_ = b.constant(np.ones(SIZE, np.float32))
    for layer in range(LAYERS):
        norm = b("RMSNormalization", x, ones_, axis=-1, epsilon=1e-5)
        query = b("MatMul", norm, b.weight(SIZE, HEADS * HEAD_SIZE))
        key = b("MatMul", norm, b.weight(SIZE, KV_HEADS * HEAD_SIZE))
        value = b("MatMul", norm, b.weight(SIZE, KV_HEADS * HEAD_SIZE))
        query = b("RotaryEmbedding", query, cos, sin, "position_ids", num_heads=HEADS)
        key = b("RotaryEmbedding", key, cos, sin, "position_ids", num_heads=KV_HEADS)
        past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        mixed = b("Attention", query, key, value, "", *past, is_causal=1, q_num_heads=HEADS, kv_num_heads=KV_HEADS,
                  names=[f"mixed{layer}", f"present.{layer}.key", f"present.{layer}.value"])[0]
        x = b("Add", x, b("MatMul", mixed, b.weight(HEADS * HEAD_SIZE, SIZE)))
        norm = b("RMSNormalization", x, ones_, axis=-1, epsilon=1e-5)
        gate = b("MatMul", norm, b.weight(SIZE, INNER))
        hidden = b("Mul", b("Mul", gate, b("Sigmoid", gate)), b("MatMul", norm, b.weight(SIZE, INNER)))
        x = b("Add", x, b("MatMul", hidden, b.weight(INNER, SIZE)))
    b("MatMul", b("RMSNormalization", x, ones_, axis=-1, epsilon=1e-5), b.weight(SIZE, VOCAB), names=["logits"])
    past, present = past_tensors()
    types = {"input_ids": (INT64, ["N", "S"]), "position_ids": (INT64, ["N", "S"]), **past}
    model = b.model(types, {"logits": (FLOAT, ["N", "S", VOCAB]), **present}, opset)
    inputs = {"input_ids": ids(VOCAB, "N", "S"), "position_ids": positions("P", "N", "S")}
    inputs |= {name: floats(*dims) for name, (_, dims) in past.items()}
    return Case(model, inputs, [], {"N": "1..4", "S": "1..16", "P": "1..128"})


def scan():
    """A state-space layer as Scan."""
    states = 16
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["decay", "state"], ["faded"]),
            helper.make_node("Add", ["faded", "update"], ["next"]),
            helper.make_node("Unsqueeze", ["read", "axes"], ["column"]),
            helper.make_node("MatMul", ["next", "column"], ["product"]),
            helper.make_node("Squeeze", ["product", "axes"], ["row"]),
        ],
        "step",
        [helper.make_tensor_value_info("state", FLOAT, ["N", SIZE, states])]
        + [helper.make_tensor_value_info(name, FLOAT, ["N", SIZE, states]) for name in ("decay", "update")]
        + [helper.make_tensor_value_info("read", FLOAT, ["N", states])],
        [
            helper.make_tensor_value_info("next", FLOAT, ["N", SIZE, states]),
            helper.make_tensor_value_info("row", FLOAT, ["N", SIZE]),
        ],
        [numpy_helper.from_array(np.array([-1]), "axes")],
    )
    b = Builder()
    x = b("Gather", b.weight(VOCAB, SIZE, scale=1.0), "input_ids")
    axis = b.constant(np.array([-1]))
    for layer in range(LAYERS):
        step = b("Softplus", b("MatMul", x, b.weight(SIZE, SIZE)))
        read, write = b("MatMul", x, b.weight(SIZE, states)), b("MatMul", x, b.weight(SIZE, states))
        rates = b.constant(-np.tile(np.arange(1, states + 1, dtype=np.float32), (SIZE, 1)))
        decay = b("Exp", b("Mul", b("Unsqueeze", step, axis), rates))
        update = b("Mul", b("Unsqueeze", b("Mul", step, x), axis), b("Unsqueeze", write, b.constant(np.array([2]))))
        first = b("ConstantOfShape", b("Concat", b("Shape", x, start=0, end=1),
                                       b.constant(np.array([SIZE, states])), axis=0))
        rows = b("Scan", first, decay, update, read, names=[f"last{layer}", f"rows{layer}"], body=body,
                 num_scan_inputs=3, scan_input_axes=[1, 1, 1], scan_output_axes=[1])[1]
        x = b("LayerNormalization", b("Add", x, rows), b.constant(np.ones(SIZE, np.float32)), axis=-1)
    b("MatMul", x, b.weight(SIZE, VOCAB), names=["logits"])
    model = b.model({"input_ids": (INT64, ["N", "S"])}, {"logits": (FLOAT, ["N", "S", VOCAB])}, 17)
    return Case(model, {"input_ids": ids(VOCAB, "N", "S")}, [], {"N": "1..4", "S": "1..128"})


def entries():
    makes = {
        "genai-decoder": lambda: grouped_attention(32, "N", "1..1"),
        "genai-decoder-tokens": lambda: grouped_attention(32, 1, "1..64"),
        "genai-decoder-int4": lambda: grouped_attention(4, "N", "1..1"),
        "attention-23-decoder": lambda: standard_attention(23), "attention-24-decoder": lambda: standard_attention(24),
        "scan": scan,
    }
    return [Entry(name, "graphs of other builders", make, "none") for name, make in makes.items()]
