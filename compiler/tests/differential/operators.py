"""Families of operators: each function adds one node, or a few nodes that belong together, to a builder."""

import numpy as np
from onnx import TensorProto, helper

from graphs import Rejected, onnx_type

UNARY = (
    "Relu LeakyRelu Elu Selu Sigmoid Tanh Exp Log Sqrt Reciprocal Erf Sin Cos Softplus Softsign HardSigmoid Celu "
    "Atan Asinh Abs Neg Sign Floor Ceil Round Identity ThresholdedRelu".split()
)
EXACT = {"Relu", "Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Identity", "Not", "BitwiseNot", "ThresholdedRelu"}


def need(condition):
    if not condition:
        raise Rejected("does not fit")


def has_elements(value):
    """Whether the value has elements at every binding."""
    return all(min(shape, default=1) > 0 for shape in value.shapes())


def ints(b, *values):
    return b.const(values, "i8")


def unary(b):
    ops = UNARY + (["HardSwish"] if b.opset >= 14 else []) + (["Mish", "BitwiseNot"] if b.opset >= 18 else [])
    ops += ["Gelu"] if b.opset >= 20 else []
    op = b.choice(ops + ["Not", "IsNaN", "IsInf"])
    x = b.pick(lambda v: v.is_float() == (op not in ("Not", "BitwiseNot")) or op in ("Abs", "Neg", "Sign", "Relu"))
    rounding = "wave" if op in ("Sin", "Cos") else "exact" if op in EXACT else "rounded"
    return b.add(op, [x], rounding=rounding)


def broadcasts(x, y):
    """Whether the shapes broadcast at every binding in the same way."""
    for k in range(1, min(x.rank, y.rank) + 1):
        a, c = x.dims(x.rank - k), y.dims(y.rank - k)
        if a != c and set(a) != {1} and set(c) != {1}:
            return False
    return True


def like(b, x, scale=None):
    """A constant that broadcasts to `x`."""
    rank = int(b.rng.integers(0, x.rank + 1))
    dims = [x.static(x.rank - rank + k) or 1 for k in range(rank)]
    dims = [d if b.rng.random() < 0.8 else 1 for d in dims]
    return b.const(b.random(dims, x.dtype))


def other(b, x):
    if b.rng.random() < 0.35:
        return like(b, x)
    return b.pick(lambda v: v.dtype == x.dtype and broadcasts(x, v))


def binary(b):
    op = b.choice("Add Sub Mul Div Pow Max Min Add Mul PRelu Mod Mean Sum".split())
    x = b.pick(lambda v: v.is_float() or (v.is_int() and op not in ("Mean", "Sum", "PRelu")))
    y = other(b, x)
    if op == "Div" or op == "Mod":
        need(all(np.abs(c[0].astype("f8")).min(initial=1) > 0.05 for c in y.copies))
    if op == "Pow" and x.is_int():
        need(all(c[0].min(initial=0) >= 0 for c in y.copies))
    fmod = 1 if op == "Mod" and x.is_float() else None
    pair = [y, x] if op not in ("Div", "Mod", "Pow", "PRelu") and b.rng.random() < 0.3 else [x, y]
    return b.add(op, pair, rounding="exact" if op in ("Max", "Min") else "rounded", fmod=fmod)


def logic(b):
    op = b.choice(
        "Equal Less Greater LessOrEqual GreaterOrEqual And Or Xor BitShift BitwiseAnd BitwiseOr BitwiseXor".split()
    )
    need(b.opset >= 18 or not op.startswith("Bitwise"))
    kinds = {"And": "b", "Or": "b", "Xor": "b", "BitShift": "u"}.get(op, "iu" if op.startswith("Bitwise") else "fiu")
    x = b.pick(lambda v: v.dtype.kind in kinds)
    y = other(b, x)
    if op == "BitShift":
        return b.add(op, [x, b.const(1, x.dtype)], direction=b.choice(["LEFT", "RIGHT"]))
    return b.add(op, [x, y])


def where(b):
    x = b.pick()
    y = other(b, x)
    bools = [v for v in b.values if v.dtype.kind == "b" and broadcasts(v, x) and broadcasts(v, y)]
    if bools and b.rng.random() < 0.6:
        condition = b.choice(bools)
    else:
        need(x.is_float() or x.is_int())
        condition = b.add("Less", [x, b.const(0.25 if x.is_float() else 1, x.dtype)])
    return b.add("Where", [condition, x, y])


def clip(b):
    x = b.pick(lambda v: v.is_float() or v.is_int())
    low = b.const(0 if x.dtype.kind == "u" else -1, x.dtype)
    return b.add("Clip", [x, b.choice([low, None]), b.choice([b.const(2, x.dtype), None])])


def cast(b):
    x = b.pick()
    to = np.dtype(b.choice(["f4", "f4", "f4", "i4", "i8", "?", "f8", "f2", "i1", "u1"]))
    if x.is_float() and to.kind in "iu":
        need(
            all(np.abs(c[0]).max(initial=0) < 100 and (to.kind == "i" or c[0].min(initial=0) > -1) for c in x.copies)
        )
    is_narrower = x.is_float() and to.kind == "f" and to.itemsize < x.dtype.itemsize
    rounding = "rounded" if is_narrower else "exact"
    if b.opset >= 15 and b.rng.random() < 0.2:
        return b.add("CastLike", [x, b.const(1, to)], rounding=rounding)
    return b.add("Cast", [x], rounding=rounding, to=onnx_type(to))


def reduce(b):
    op = b.choice("Sum Mean Max Min Prod L1 L2 LogSumExp SumSquare LogSum".split())
    x = b.pick(
        lambda v: v.rank and (v.is_float() or (v.is_int() and op in ("Sum", "Max", "Min", "Prod", "SumSquare")))
    )
    axes = sorted(int(a) for a in b.rng.permutation(x.rank)[: b.choice([1, 1, 2, x.rank])])
    need(has_elements(x))
    axes = [a if b.rng.random() < 0.7 else a - x.rank for a in axes]
    keep = int(b.rng.integers(0, 2))
    rounding = "exact" if op in ("Max", "Min") else "sum"
    if b.rng.random() < 0.15:
        return b.add("Reduce" + op, [x], rounding=rounding, keepdims=keep)
    if b.opset >= 18 or op == "Sum":
        return b.add("Reduce" + op, [x, ints(b, *axes)], rounding=rounding, keepdims=keep)
    return b.add("Reduce" + op, [x], rounding=rounding, axes=axes, keepdims=keep)


def extremum(b):
    x = b.pick(lambda v: v.rank and (v.is_float() or v.is_int()))
    last = int(b.rng.integers(0, 2))
    return b.add(
        b.choice(["ArgMax", "ArgMin"]),
        [x],
        axis=b.axis(x),
        keepdims=int(b.rng.integers(0, 2)),
        select_last_index=last,
    )


def cumsum(b):
    x = b.pick(lambda v: v.rank and (v.is_float() or v.dtype in ("i4", "i8")))
    axis = b.const(b.axis(x), "i8")
    return b.add(
        "CumSum", [x, axis], rounding="sum", exclusive=int(b.rng.integers(0, 2)), reverse=int(b.rng.integers(0, 2))
    )


def top_k(b):
    x = b.pick(lambda v: v.rank and (v.is_float() or v.is_int()))
    axis = b.axis(x)
    k = min(int(b.rng.integers(1, 5)), min(x.dims(axis)))
    return b.add("TopK", [x, ints(b, k)], n_outputs=2, axis=axis, largest=int(b.rng.integers(0, 2)), sorted=1)


def transpose(b):
    x = b.pick(lambda v: v.rank > 1)
    return b.add("Transpose", [x], perm=[int(a) for a in b.rng.permutation(x.rank)])


def reshape(b):
    """Merges or splits neighbouring axes by a constant shape."""
    x = b.pick(lambda v: v.rank)
    axis = b.axis(x)
    # A 0 keeps the dim at its place, which holds before the axis alone.
    after = [x.static(k) for k in range(axis + 1, x.rank)]
    size = x.static(axis)
    if b.rng.random() < 0.5 and size and size % 2 == 0 and after.count(None) <= 1:
        tail = [-1 if d is None else d for d in after]
        shape = [0] * axis + [2, size // 2] + tail
    else:
        need(axis + 1 < x.rank)
        rest = after[1:]
        need(None not in rest)
        shape = [0] * axis + [-1] + rest
    return b.add("Reshape", [x, ints(b, *shape)])


def shape_of(b, x, axis):
    sizes = b.add("Shape", [x])
    index = ints(b, axis) if b.rng.random() < 0.5 else b.const(axis, "i8")
    size = b.add("Gather", [sizes, index])
    return size if size.rank else b.add("Unsqueeze", [size, ints(b, 0)])


def reshape_computed(b):
    """`Shape → Gather → Concat → Reshape`, with a product of two dims."""
    x = b.pick(lambda v: v.rank >= 2)
    axis = int(b.rng.integers(0, x.rank - 1))
    sizes = [shape_of(b, x, k) for k in range(x.rank)]
    # A computed dim of 0 is a known difference if the dim of the input differs.
    moved = range(axis + 2, x.rank)
    need(all(size or x.dims(k - 1)[i] == 0 for k in moved for i, size in enumerate(x.dims(k))))
    if b.rng.random() < 0.3:
        merged = ints(b, -1)
    else:
        merged = b.add("Mul", [sizes[axis], sizes[axis + 1]])
    parts = sizes[:axis] + [merged] + sizes[axis + 2 :]
    if b.rng.random() < 0.3:
        parts.append(ints(b, 1))
    shape = b.add("Concat", parts, axis=0)
    return b.add("Reshape", [x, shape])


def slice_computed(b):
    """A slice up to half of a dim, or to the dim of another value."""
    x = b.pick(lambda v: v.rank)
    axis = b.axis(x)
    y = b.pick(lambda v: v.rank)
    size = shape_of(b, y, b.axis(y))
    end = b.add("Div", [size, ints(b, 2)]) if b.rng.random() < 0.5 else b.add("Sub", [size, ints(b, 1)])
    return b.add("Slice", [x, ints(b, 0), end, ints(b, axis)])


def fill(b):
    """`ConstantOfShape`, `Expand` or `Range` from a computed shape."""
    x = b.pick(lambda v: v.rank)
    kind = int(b.rng.integers(0, 4))
    if kind == 0:
        value = helper.make_tensor("value", TensorProto.FLOAT, [1], [float(b.rng.integers(0, 4)) / 2])
        return b.add("ConstantOfShape", [b.add("Shape", [x])], value=value)
    if kind == 1:
        y = b.pick(lambda v: broadcasts(v, x))
        return b.add("Expand", [y, b.add("Shape", [x])])
    if kind == 2:
        size = shape_of(b, x, b.axis(x))
        size = b.add("Squeeze", [size, ints(b, 0)])
        return b.add("Range", [b.const(0, "i8"), size, b.const(b.choice([1, 1, 2]), "i8")])
    return b.add("Size", [x])


def flatten(b):
    x = b.pick()
    return b.add("Flatten", [x], axis=int(b.rng.integers(0, x.rank + 1)))


def squeeze(b):
    x = b.pick(lambda v: any(v.static(k) == 1 for k in range(v.rank)))
    axes = [k for k in range(x.rank) if x.static(k) == 1]
    return b.add("Squeeze", [x, ints(b, b.choice(axes))])


def unsqueeze(b):
    x = b.pick(lambda v: v.rank < 5)
    return b.add("Unsqueeze", [x, ints(b, int(b.rng.integers(-x.rank - 1, x.rank + 1)))])


def concat(b):
    x = b.pick(lambda v: v.rank)
    axis = b.axis(x)

    def fits(v):
        same = v.dtype == x.dtype and v.rank == x.rank
        return same and all(v.dims(k) == x.dims(k) for k in range(x.rank) if k != axis)

    parts = [x] + [b.pick(fits) for _ in range(int(b.rng.integers(1, 4)))]
    return b.add("Concat", parts, axis=axis)


def split(b):
    x = b.pick(lambda v: v.rank)
    axis = b.axis(x)
    size = x.static(axis)
    if size and size >= 2:
        first = int(b.rng.integers(0, size + 1))
        return b.add("Split", [x, ints(b, first, size - first)], n_outputs=2, axis=axis)
    return b.add("Split", [x], n_outputs=2, axis=axis, num_outputs=2 if b.opset >= 18 else None)


def slice_(b):
    x = b.pick(lambda v: v.rank)
    n = int(b.rng.integers(1, x.rank + 1))
    axes = [int(a) for a in b.rng.permutation(x.rank)[:n]]
    rows = [
        b.choice([(0, 3, 1), (1, 1 << 40, 1), (-3, -1, 1), (-1, -(1 << 40), -1), (0, 1 << 31, 2), (5, 0, -2)])
        for _ in axes
    ]
    starts, ends, steps = zip(*rows)
    return b.add("Slice", [x, ints(b, *starts), ints(b, *ends), ints(b, *axes), ints(b, *steps)])


def pad(b):
    x = b.pick(lambda v: v.rank and (v.is_float() or v.dtype.kind == "i"))
    mode = b.choice(["constant", "constant", "edge", "reflect"] + (["wrap"] if b.opset >= 19 else []))
    low = -1 if mode == "constant" else 0
    pads = [int(b.rng.integers(low, 3)) if b.rng.random() < 0.6 else 0 for _ in range(2 * x.rank)]
    for k in range(x.rank):
        inside = min(x.dims(k))
        need(inside + min(pads[k], 0) + min(pads[k + x.rank], 0) >= 0)
        need(mode == "constant" or (inside > max(pads[k], pads[k + x.rank])))
    fill_value = [b.const(b.choice([0, 1]), x.dtype)] if mode == "constant" and b.rng.random() < 0.6 else []
    return b.add("Pad", [x, ints(b, *pads), *fill_value], mode=mode)


def tile(b):
    x = b.pick(lambda v: v.rank)
    return b.add("Tile", [x, ints(b, *(int(b.rng.integers(1, 4)) for _ in range(x.rank)))])


def gather(b):
    x = b.pick(lambda v: v.rank)
    axis = b.axis(x)
    size = min(x.dims(axis))
    need(size > 0)
    kind = int(b.rng.integers(0, 3))
    if kind == 0:
        shape = [int(d) for d in b.rng.integers(1, 4, int(b.rng.integers(0, 3)))]
        return b.add("Gather", [x, b.const(b.rng.integers(-size, size, shape), b.choice(["i8", "i4"]))], axis=axis)
    if kind == 1:
        indices = b.pick(lambda v: v.dtype in ("i8", "i4") and in_range(v, size))
        return b.add("Gather", [x, indices], axis=axis)
    indices = b.pick(lambda v: v.dtype in ("i8", "i4") and in_range(v, size) and v.rank == x.rank)
    return b.add("GatherElements", [x, indices], axis=axis)


def in_range(v, size):
    return all(c[0].min(initial=0) >= -size and c[0].max(initial=0) < size for c in v.copies)


def gather_nd(b):
    x = b.pick(lambda v: v.rank and all(min(s, default=0) > 0 for s in v.shapes()))
    n = int(b.rng.integers(1, x.rank + 1))
    sizes = [min(x.dims(k)) for k in range(n)]
    rows = [[int(b.rng.integers(0, s)) for s in sizes] for _ in range(int(b.rng.integers(1, 5)))]
    return b.add("GatherND", [x, b.const(rows, "i8")])


def scatter(b):
    x = b.pick(lambda v: v.rank and all(min(s, default=0) > 0 for s in v.shapes()))
    reduction = b.choice([None, "add", "mul"] if b.opset >= 16 and (x.is_float() or x.is_int()) else [None])
    rounding = "rounded" if reduction else "exact"
    if b.rng.random() < 0.5:
        axis = b.axis(x)
        size = min(x.dims(axis))
        shape = [min(2, min(x.dims(k))) for k in range(x.rank)]
        shape[axis] = int(b.rng.integers(1, size + 1))
        rows = np.moveaxis(np.zeros(shape, "i8"), axis, 0)
        rows[:] = b.rng.permutation(size)[: shape[axis]].reshape([-1] + [1] * (x.rank - 1))
        indices = b.const(np.moveaxis(rows, 0, axis))
        updates = b.const(b.random(shape, x.dtype))
        return b.add("ScatterElements", [x, indices, updates], rounding=rounding, axis=axis, reduction=reduction)
    n = x.rank
    sizes = [min(x.dims(k)) for k in range(n)]
    rows = {tuple(int(b.rng.integers(0, s)) for s in sizes) for _ in range(4)}
    updates = b.const(b.random([len(rows)], x.dtype))
    return b.add("ScatterND", [x, b.const(sorted(rows), "i8"), updates], rounding=rounding, reduction=reduction)


def blocks(b):
    x = b.pick(lambda v: v.rank == 4 and v.is_float())
    op = b.choice(["DepthToSpace", "SpaceToDepth"])
    mode = b.choice(["DCR", "CRD"]) if op == "DepthToSpace" else None
    return b.add(op, [x], blocksize=2, mode=mode)


def triangle(b):
    need(b.opset >= 14)
    x = b.pick(lambda v: v.rank >= 2)
    return b.add("Trilu", [x, b.const(b.choice([-1, 0, 1]), "i8")], upper=int(b.rng.integers(0, 2)))


def selection(b):
    kind = int(b.rng.integers(0, 4))
    if kind == 0:
        return b.add("NonZero", [b.pick(lambda v: v.rank and not v.is_noisy())])
    if kind == 1:
        x = b.pick(lambda v: v.is_int() and v.dtype.kind == "i")
        return b.add("OneHot", [x, b.const(5, "i8"), b.const([0, 1], "f4")], axis=b.choice([-1, 0]))
    x = b.pick(lambda v: v.rank and (v.is_float() or v.is_int()))
    if kind == 2:
        axis = b.axis(x)
        mask = b.const(b.rng.integers(0, 2, min(x.dims(axis))).astype(bool))
        return b.add("Compress", [x, mask], axis=axis)
    return b.add("Unique", [x], n_outputs=4)


def matmul(b):
    x = b.pick(lambda v: v.rank >= 1 and v.is_float())
    inner = x.dims(x.rank - 1)
    k = x.static(x.rank - 1)
    if k and b.rng.random() < 0.6:
        w = b.const(b.random([k, b.choice([1, 3, 8, 16, 17, 33])], x.dtype))
    else:
        w = b.pick(lambda v: v.dtype == x.dtype and v.rank >= 2 and v.dims(v.rank - 2) == inner)
    return b.add("MatMul", [x, w], rounding="sum")


def gemm(b):
    x = b.pick(lambda v: v.rank == 2 and v.is_float())
    ta = int(b.rng.integers(0, 2))
    k = x.static(0 if ta else 1)
    need(k)
    n = b.choice([1, 4, 9, 16])
    tb = int(b.rng.integers(0, 2))
    w = b.const(b.random([n, k] if tb else [k, n], x.dtype))
    c = b.choice([[], [b.const(b.random([n], x.dtype))], [b.const(b.random([1], x.dtype))]])
    alpha = b.choice([1.0, 0.5])
    return b.add("Gemm", [x, w, *c], rounding="sum", transA=ta, transB=tb, alpha=alpha, beta=b.choice([1.0, 2.0]))


def einsum(b):
    x = b.pick(lambda v: v.rank >= 2 and v.dtype == "f4")
    letters = "abcde"[: x.rank]
    k = x.static(x.rank - 1)
    if k and b.rng.random() < 0.5:
        w = b.const(b.random([k, 5], x.dtype))
        equation = b.choice([f"{letters},{letters[-1]}z->{letters[:-1]}z", "...k,kj->...j", f"...k,kj->j..."])
        return b.add("Einsum", [x, w], rounding="sum", equation=equation)
    y = b.pick(lambda v: v.dtype == x.dtype and v.shapes() == x.shapes())
    to = "".join(b.rng.permutation(list(letters))[: int(b.rng.integers(0, x.rank))])
    return b.add("Einsum", [x, y], rounding="sum", equation=f"{letters},{letters}->{to}")


def image(b, dims=(1, 2)):
    """A value of rank 3 or 4 with static channels."""
    ranks = [d + 2 for d in dims]
    return b.pick(lambda v: v.rank in ranks and v.dtype == "f4" and v.static(1))


def windows(b, x):
    """Attributes of a window that fits at every binding."""
    n = x.rank - 2
    kernel = [int(b.rng.integers(1, 4)) for _ in range(n)]
    pads = [int(b.rng.integers(0, k)) for k in kernel * 2]
    strides = [int(b.rng.integers(1, 3)) for _ in range(n)]
    dilations = [b.choice([1, 1, 2]) for _ in range(n)]
    for k in range(n):
        need(min(x.dims(k + 2)) + pads[k] + pads[k + n] >= (kernel[k] - 1) * dilations[k] + 1)
    return dict(kernel_shape=kernel, pads=pads, strides=strides, dilations=dilations)


def conv(b):
    x = image(b)
    window = windows(b, x)
    c = x.static(1)
    group = b.choice([1, 1, c] + [g for g in (2, 4) if c % g == 0])
    m = group * b.choice([1, 2, 5]) if group > 1 else b.choice([1, 3, 8, 16])
    w = b.const(b.random([m, c // group, *window["kernel_shape"]], "f4"))
    bias = [b.const(b.random([m], "f4"))] if b.rng.random() < 0.5 else []
    if b.rng.random() < 0.2:
        window.pop("pads")
        window["dilations"] = None
        window["auto_pad"] = b.choice(["SAME_UPPER", "SAME_LOWER"])
    return b.add("Conv", [x, w, *bias], rounding="sum", group=group, **window)


def conv_transpose(b):
    x = image(b)
    need(all(min(x.dims(k)) > 0 for k in range(x.rank)))
    window = windows(b, x)
    c = x.static(1)
    group = b.choice([1, 1] + [g for g in (2, 4) if c % g == 0])
    w = b.const(b.random([c, b.choice([1, 3]), *window["kernel_shape"]], "f4"))
    extra = [int(b.rng.integers(0, s)) for s in window["strides"]]
    return b.add("ConvTranspose", [x, w], rounding="sum", group=group, output_padding=extra, **window)


def pool(b):
    x = image(b)
    op = b.choice("MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool".split())
    rounding = "exact" if "Max" in op else "sum"
    if op.startswith("Global"):
        return b.add(op, [x], rounding=rounding)
    window = windows(b, x)
    if op == "AveragePool":
        window["count_include_pad"] = int(b.rng.integers(0, 2))
    if op == "LpPool" or (op == "AveragePool" and b.opset < 19):
        need(set(window.pop("dilations")) == {1})
    if op != "LpPool" or b.opset >= 18:
        window["ceil_mode"] = b.choice([0, 0, 1])
    return b.add(op, [x], rounding=rounding, **window)


def resize(b):
    x = image(b)
    mode = b.choice(["nearest", "linear", "cubic"])
    need(mode != "cubic" or x.rank == 4)
    n = x.rank - 2
    factors = [b.choice([0.5, 1, 2, 1.5, 3]) for _ in range(n)]
    scales = b.const([1, 1] + factors, "f4")
    is_whole = all(size * f == int(size * f) for k, f in enumerate(factors) for size in x.dims(k + 2))
    corners = ["align_corners"] if is_whole else []
    transform = b.choice(["half_pixel", "asymmetric", "pytorch_half_pixel", *corners])
    nearest = b.choice(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]) if mode == "nearest" else None
    return b.add(
        "Resize",
        [x, None, scales],
        rounding="sum",
        mode=mode,
        coordinate_transformation_mode=transform,
        nearest_mode=nearest,
    )


def norm(b):
    op = b.choice(
        "Softmax LogSoftmax Softmax Hardmax LayerNormalization InstanceNormalization BatchNormalization "
        "LRN LpNormalization MeanVarianceNormalization".split()
    )
    x = b.pick(lambda v: v.rank and v.dtype == "f4")
    if op in ("Softmax", "LogSoftmax", "Hardmax"):
        return b.add(op, [x], rounding="exact" if op == "Hardmax" else "rounded", axis=b.axis(x) - x.rank)
    if op == "LpNormalization":
        return b.add(op, [x], rounding="sum", axis=b.axis(x), p=b.choice([1, 2]))
    if op == "LayerNormalization":
        need(b.opset >= 17)
        size = x.static(x.rank - 1)
        need(size and size > 1)
        return b.add(
            op, [x, b.const(b.random([size], "f4")), b.const(b.random([size], "f4"))], rounding="norm", axis=-1
        )
    x = b.pick(lambda v: v.rank == 4 and v.dtype == "f4" and v.static(1))
    c = x.static(1)
    if op == "LRN":
        return b.add(op, [x], rounding="sum", size=b.choice([1, 3, 5]))
    # The deviation from the mean of one element is a rounding error.
    need(op == "BatchNormalization" or all(np.prod(shape[2:]) != 1 for shape in x.shapes()))
    if op == "MeanVarianceNormalization":
        return b.add(op, [x], rounding="norm")
    scale = [b.const(b.random([c], "f4")) for _ in range(2)]
    if op == "InstanceNormalization":
        return b.add(op, [x, *scale], rounding="norm")
    return b.add(
        op, [x, *scale, b.const(b.random([c], "f4")), b.const(np.abs(b.random([c], "f4")) + 1)], rounding="sum"
    )


def quantise(b):
    x = b.pick(lambda v: v.dtype == "f4")
    dtype = b.choice(["u1", "i1"])
    scale, zero = b.const(b.choice([0.05, 0.1, 0.013]), "f4"), b.const(b.choice([0, 3, 7]), dtype)
    q = b.add("QuantizeLinear", [x, scale, zero])
    if b.rng.random() < 0.3 and q.rank >= 2 and q.static(q.rank - 1):
        w = b.const(b.rng.integers(-9, 9, [q.static(q.rank - 1), 8]), "i1")
        return b.add("MatMulInteger", [q, w, zero])
    return b.add("DequantizeLinear", [q, scale, zero], rounding="rounded")


def body(b, x, name):
    """A short chain of nodes on the outer value `x`."""
    ops = [b.choice(["Relu", "Tanh", "Neg", "Abs", "Sigmoid"]) for _ in range(int(b.rng.integers(1, 3)))]
    nodes, source = [], x
    for k, op in enumerate(ops):
        nodes.append(helper.make_node(op, [source], [f"{name}_{k}"]))
        source = f"{name}_{k}"
    return nodes, source


def branch(b):
    x = b.pick(lambda v: v.dtype == "f4")
    flag = b.pick(
        lambda v: v.rank and not v.is_noisy() and v.dtype.kind in "fiu" and all(min(s) > 0 for s in v.shapes())
    )
    total = b.add("ReduceMax", [flag], keepdims=0)
    condition = b.add("Greater", [total, b.const(b.choice([1, 4]), total.dtype)])
    graphs = []
    for _ in range(2):
        nodes, last = body(b, x.name, b.name("inner"))
        graphs.append(
            helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)])
        )
    return b.add("If", [condition], rounding="rounded", captures=[x], then_branch=graphs[0], else_branch=graphs[1])


def loop(b):
    x = b.pick(lambda v: v.dtype == "f4")
    info = helper.make_tensor_value_info
    name = b.name("loop")
    nodes, last = body(b, f"{name}_x", f"{name}_y")
    nodes += [
        helper.make_node("Add", [last, x.name], [f"{name}_z"]),
        helper.make_node("Identity", [f"{name}_c"], [f"{name}_d"]),
    ]
    graph = helper.make_graph(
        nodes,
        "body",
        [
            info(f"{name}_i", TensorProto.INT64, []),
            info(f"{name}_c", TensorProto.BOOL, []),
            info(f"{name}_x", TensorProto.FLOAT, None),
        ],
        [info(f"{name}_d", TensorProto.BOOL, []), info(f"{name}_z", TensorProto.FLOAT, None)],
    )
    trips = b.const(int(b.rng.integers(0, 4)), "i8")
    return b.add("Loop", [trips, b.const(True), x], rounding="rounded", captures=[x], body=graph)


def recurrent(b):
    x = b.pick(lambda v: v.rank == 3 and v.dtype == "f4" and v.static(2) and all(min(s) > 0 for s in v.shapes()))
    op, gates = b.choice([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    hidden = b.choice([1, 4, 5])
    direction, n = b.choice([("forward", 1), ("reverse", 1), ("bidirectional", 2)])
    w = b.const(b.random([n, gates * hidden, x.static(2)], "f4") / 2)
    r = b.const(b.random([n, gates * hidden, hidden], "f4") / 2)
    bias = [b.const(b.random([n, 2 * gates * hidden], "f4"))] if b.rng.random() < 0.5 else []
    outputs = 3 if op == "LSTM" else 2
    return b.add(op, [x, w, r, *bias], n_outputs=outputs, rounding="sum", hidden_size=hidden, direction=direction)


# Each family with its weight.
FAMILIES = [
    (unary, 10),
    (binary, 14),
    (logic, 3),
    (where, 3),
    (clip, 2),
    (cast, 4),
    (reduce, 6),
    (extremum, 2),
    (cumsum, 2),
    (top_k, 2),
    (transpose, 4),
    (reshape, 4),
    (reshape_computed, 3),
    (slice_computed, 2),
    (fill, 3),
    (flatten, 2),
    (squeeze, 2),
    (unsqueeze, 2),
    (concat, 5),
    (split, 3),
    (slice_, 4),
    (pad, 3),
    (tile, 1),
    (gather, 4),
    (gather_nd, 1),
    (scatter, 3),
    (blocks, 2),
    (triangle, 1),
    (selection, 2),
    (matmul, 6),
    (gemm, 3),
    (einsum, 2),
    (conv, 6),
    (conv_transpose, 2),
    (pool, 4),
    (resize, 3),
    (norm, 7),
    (quantise, 3),
    (branch, 2),
    (loop, 2),
    (recurrent, 1),
]
