"""Random graphs with symbolic dims, and the values that ONNX Runtime computes for them.

A graph grows node by node. ONNX Runtime runs each new node at every binding of the symbols, so that a node is kept only
if it is valid at all of them. Each node also runs on copies of its inputs that differ by a few units in the last place.
The spread of these copies at the outputs is the error that rounding may explain.
"""

from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

ort.set_default_logger_severity(4)

# Copies of each value: the first is exact, the others have rounding errors.
N_COPIES = 4
# The largest rounding error of a copy, in units in the last place: functions such as `exp` may differ by a few.
NOISE_ULPS = 8
# The error of each term of a sum that is added term by term, in units in the last place: equal terms round alike.
SUM_ULPS = 0.25
MAX_ELEMS = 1 << 14
MAX_MAGNITUDE = 1e6


class Rejected(Exception):
    """A node that does not fit the graph, or that ONNX Runtime refuses."""


@dataclass
class Value:
    """A tensor of the graph: `copies[binding][copy]`."""

    name: str
    copies: list
    is_constant: bool = False

    @property
    def dtype(self):
        return self.copies[0][0].dtype

    @property
    def rank(self):
        return self.copies[0][0].ndim

    def dims(self, axis):
        return tuple(copies[0].shape[axis] for copies in self.copies)

    def shapes(self):
        return tuple(copies[0].shape for copies in self.copies)

    def static(self, axis):
        """The size of an axis that is the same at every binding, or None."""
        dims = set(self.dims(axis))
        return dims.pop() if len(dims) == 1 else None

    def is_noisy(self):
        return any(copy is not copies[0] for copies in self.copies for copy in copies)

    def is_float(self):
        return self.dtype.kind == "f"

    def is_int(self):
        return self.dtype.kind in "iu"


@dataclass
class Step:
    """A node with the names that it reads, those inside of its subgraphs included, and its kind of rounding.

    `exact` has no rounding error. The error is relative to the result for `rounded`, to the terms for `sum` and `norm`,
    and to 1 for `wave`.
    """

    node: onnx.NodeProto
    reads: list
    rounding: str


@dataclass
class Case:
    """A graph, the ranges of its symbols, and its inputs at each binding."""

    seed: int
    opset: int
    ranges: dict
    bindings: list
    inputs: dict = field(default_factory=dict)
    constants: dict = field(default_factory=dict)
    steps: list = field(default_factory=list)
    outputs: list = field(default_factory=list)

    def model(self, types):
        """The model; `types` are the element types of the outputs."""
        used = {name for step in self.steps for name in step.reads} | set(self.outputs)
        graph_inputs = [
            helper.make_tensor_value_info(name, onnx_type(arrays[0].dtype), dims)
            for name, (dims, arrays) in self.inputs.items()
        ]
        constants = [onnx.numpy_helper.from_array(a, name) for name, a in self.constants.items() if name in used]
        outputs = [helper.make_tensor_value_info(name, onnx_type(types[name]), None) for name in self.outputs]
        nodes = [step.node for step in self.steps]
        graph = helper.make_graph(nodes, "random", graph_inputs, outputs, constants)
        return make_model(graph, self.opset)


def make_model(graph, opset):
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def onnx_type(dtype):
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def session(model):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    # Each node as the standard defines it, without the fusions of the peer.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run_step(step, values, opset, rng):
    """The values of the node's outputs, or `Rejected`."""
    reads = [values[name] for name in step.reads]
    open_reads = [value for value in reads if not value.is_constant]
    infos = [helper.make_tensor_value_info(v.name, onnx_type(v.dtype), [None] * v.rank) for v in open_reads]
    constants = [onnx.numpy_helper.from_array(v.copies[0][0], v.name) for v in reads if v.is_constant]
    names = [name for name in step.node.output if name]
    outputs = [onnx.ValueInfoProto(name=name) for name in names]
    graph = helper.make_graph([step.node], "node", infos, outputs, constants)
    try:
        node = session(make_model(graph, opset))
        is_norm = step.rounding == "norm"
        is_noisy = is_norm or any(value.is_noisy() for value in open_reads)
        n_copies = N_COPIES if is_noisy else 1
        results = []
        for k in range(len(reads[0].copies) if reads else 1):
            feeds = [{v.name: v.copies[k][c] for v in open_reads} for c in range(n_copies)]
            if is_norm:
                # Deviations from a mean may be much smaller than the elements, whose rounding errors they have.
                feeds[1:] = [{name: shaken(array, rng) for name, array in feed.items()} for feed in feeds[1:]]
            results.append([node.run(names, feed) for feed in feeds])
    except Exception as error:
        raise Rejected(str(error)) from error
    return [
        with_noise(
            Value(name, [[row[min(c, n_copies - 1)][i] for c in range(N_COPIES)] for row in results]),
            step,
            reads,
            rng,
        )
        for i, name in enumerate(names)
    ]


def with_noise(value, step, reads, rng):
    """Checks the copies of an output against each other, and adds the rounding error of its node."""
    if len({copies[0].ndim for copies in value.copies}) > 1:
        raise Rejected("a rank that depends on the sizes")
    for copies in value.copies:
        first = copies[0]
        if any(copy.shape != first.shape or copy.size > MAX_ELEMS for copy in copies):
            raise Rejected("a shape that depends on rounding, or a large tensor")
        if value.dtype.kind not in "fiub":
            raise Rejected("an unusual type")
        magnitudes = np.abs(first.astype(np.float64))
        if not all(np.all(np.isfinite(copy)) for copy in copies) or magnitudes.max(initial=0) > MAX_MAGNITUDE:
            raise Rejected("a number that is not finite, or large")
        if not value.is_float() and any(not np.array_equal(first, copy) for copy in copies):
            raise Rejected("integers that depend on rounding")

    if not value.is_float():
        value.copies = [[copies[0]] * N_COPIES for copies in value.copies]
    elif step.rounding != "exact":
        for k, copies in enumerate(value.copies):
            ulps, scale = rounding_error(step.rounding, reads, k, copies[0])
            noise = ulps * np.finfo(value.dtype).eps
            value.copies[k] = [copies[0]] + [noisy(copy, noise, scale, rng) for copy in copies[1:]]
    return value


def rounding_error(kind, reads, k, result):
    """The error of a result in units in the last place, and the smallest number that these are relative to."""
    size = max((v.copies[k][0].size for v in reads if v.is_float()), default=1)
    terms = size / max(1, result.size)
    if kind == "norm":
        # Each channel is scaled by sums of all its elements.
        terms = size / max(1, result.shape[1])
    if kind in ("sum", "norm"):
        return max(NOISE_ULPS, terms * SUM_ULPS), magnitude(reads, k) * max(1, terms**0.5)
    return NOISE_ULPS, 1 if kind == "wave" else 0


def magnitude(reads, k):
    """The size of the terms of a sum: its rounding error is relative to them and not to the result."""
    largest = [float(np.abs(v.copies[k][0]).max(initial=0)) for v in reads if v.is_float()]
    return max(largest, default=0) * max(1, min(largest, default=0))


def noisy(array, noise, scale, rng):
    """A copy with errors relative to each element, but to no element below `scale` or the smallest normal number."""
    array64 = array.astype(np.float64)
    scale = max(scale, float(np.finfo(array.dtype).tiny))
    return (array64 + rng.uniform(-noise, noise, array.shape) * np.maximum(np.abs(array64), scale)).astype(array.dtype)


def shaken(array, rng):
    """A copy with errors relative to the largest element."""
    return noisy(array, 2 * np.finfo(array.dtype).eps, float(np.abs(array).max(initial=0)), rng)


def replay(case):
    """The values of a case, computed from its inputs."""
    rng = np.random.default_rng(case.seed)
    values = {name: constant(name, array, len(case.bindings)) for name, array in case.constants.items()}
    for name, (_, arrays) in case.inputs.items():
        values[name] = Value(name, [[array] * N_COPIES for array in arrays])
    for step in case.steps:
        for value in run_step(step, values, case.opset, rng):
            values[value.name] = value
    return values


def constant(name, array, n_bindings):
    return Value(name, [[array] * N_COPIES] * n_bindings, is_constant=True)


class Builder:
    """A case while it grows."""

    def __init__(self, seed):
        rng = self.rng = np.random.default_rng(seed)
        self.opset = int(rng.integers(13, 22))
        n_symbols = int(rng.integers(1, 4))
        ranges = {}
        for name in ["N", "S", "M"][:n_symbols]:
            lo = int(rng.choice([0, 1, 1, 1, 2]))
            ranges[name] = (lo, lo + int(rng.choice([3, 6, 8, 15, 30])))
        self.case = Case(seed, self.opset, ranges, bindings_of(ranges, rng))
        self.values = []
        self.n_names = 0
        for _ in range(int(rng.integers(1, 4))):
            self.input(list(ranges))
        missing = [name for name in ranges if not any(name in dims for dims, _ in self.case.inputs.values())]
        if missing:
            self.input(missing, all_of_them=True)

    def name(self, prefix):
        self.n_names += 1
        return f"{prefix}{self.n_names}"

    def input(self, symbols, all_of_them=False):
        rng = self.rng
        rank = int(rng.choice([1, 2, 3, 3, 4, 4]))
        dims = [int(rng.choice([1, 2, 3, 4, 5, 8, 16])) for _ in range(rank)]
        chosen = symbols if all_of_them else rng.permutation(symbols)[: int(rng.integers(1, rank + 1))]
        chosen = [str(name) for name in chosen]
        dims = dims + [1] * (len(chosen) - rank)
        for axis, symbol in zip(rng.permutation(len(dims)), chosen):
            dims[axis] = symbol
        kinds = ["f4"] * 8 + ["i4", "i8", "i8", "f8", "?", "u1", "i1", "f2"]
        dtype = np.dtype(str(rng.choice(kinds)))
        shapes = [[b.get(d, d) for d in dims] for b in self.case.bindings]
        arrays = [self.random(shape, dtype) for shape in shapes]
        if any(array.size > MAX_ELEMS for array in arrays):
            return self.input(symbols, all_of_them)
        name = self.name("x")
        self.case.inputs[name] = (dims, arrays)
        value = Value(name, [[array] * N_COPIES for array in arrays])
        self.values.append(value)
        return value

    def random(self, shape, dtype):
        dtype = np.dtype(dtype)
        if dtype.kind == "f":
            return self.rng.uniform(-2, 2, shape).astype(dtype)
        if dtype.kind == "b":
            return self.rng.integers(0, 2, shape).astype(bool)
        low = 0 if dtype.kind == "u" else -5
        return self.rng.integers(low, 9, shape).astype(dtype)

    def const(self, array, dtype=None):
        array = np.array(array, dtype=dtype)
        name = self.name("c")
        self.case.constants[name] = array
        return constant(name, array, len(self.case.bindings))

    def add(self, op, inputs, n_outputs=1, rounding="exact", captures=(), **attributes):
        """Adds a node; returns its output, or a list of them."""
        names = [value.name if value is not None else "" for value in inputs]
        outputs = [self.name("v") for _ in range(n_outputs)]
        attributes = {key: item for key, item in attributes.items() if item is not None}
        node = helper.make_node(op, names, outputs, **attributes)
        read = {value.name: value for value in [*inputs, *captures] if value is not None}
        step = Step(node, list(read), rounding)
        results = run_step(step, read, self.opset, self.rng)
        if not read:
            for value in results:
                value.copies = value.copies * len(self.case.bindings)
        self.case.steps.append(step)
        self.values += results
        return results[0] if n_outputs == 1 else results

    def pick(self, fits=lambda value: True):
        """One of the values that fit; later values are more likely."""
        fitting = [value for value in self.values if fits(value)]
        if not fitting:
            raise Rejected("no value fits")
        weights = np.arange(1, len(fitting) + 1, dtype=float) ** 1.5
        return fitting[int(self.rng.choice(len(fitting), p=weights / weights.sum()))]

    def axis(self, value):
        if value.rank == 0:
            raise Rejected("a scalar has no axis")
        return int(self.rng.integers(0, value.rank))

    def choice(self, options):
        return options[int(self.rng.integers(0, len(options)))]

    def state(self):
        return len(self.case.steps), len(self.values)

    def rollback(self, state):
        del self.case.steps[state[0] :]
        del self.values[state[1] :]

    def finish(self):
        """The case. Its outputs are the values without a reader, and one more."""
        read = {name for step in self.case.steps for name in step.reads}
        inner = [value for value in self.values if value.name not in self.case.inputs]
        leaves = [value.name for value in inner if value.name not in read]
        extra = self.choice(inner).name
        self.case.outputs = leaves + ([extra] if extra not in leaves and self.rng.random() < 0.3 else [])
        return self.case


def bindings_of(ranges, rng):
    """Smallest, second smallest, odd and largest values of all symbols, and two mixtures."""
    edges = {name: [lo, lo + 1, ((lo + hi) // 2) | 1, hi] for name, (lo, hi) in ranges.items()}
    rows = [{name: values[k] for name, values in edges.items()} for k in range(4)]
    for _ in range(2):
        rows.append({name: int(rng.integers(lo, hi + 1)) for name, (lo, hi) in ranges.items()})
    return rows


def generate(seed, families):
    """The case of a seed: 5 to 25 nodes."""
    builder = Builder(seed)
    n_nodes = int(builder.rng.integers(5, 26))
    weights = np.array([weight for _, weight in families], dtype=float)
    weights /= weights.sum()
    for _ in range(40 * n_nodes):
        if len(builder.case.steps) >= n_nodes:
            break
        state = builder.state()
        family = families[int(builder.rng.choice(len(families), p=weights))][0]
        try:
            family(builder)
        except Rejected:
            builder.rollback(state)
    return builder.finish()
