"""The inputs of a model, the ranges of its symbols, and the sizes at which results are compared."""

import dataclasses
import json

import numpy as np

# The largest number of values of a symbol that are listed.
MAX_VALUES = 1 << 16


@dataclasses.dataclass
class Input:
    """`dims` are symbols or integers. `fill` names a function of `FILLS`; `limit` is its argument, an integer or an
    expression over symbols."""

    dims: list
    dtype: str = "float32"
    fill: str = "normal"
    limit: object = 0


def floats(*dims):
    """Normally distributed floats."""
    return Input(list(dims))


def image(*dims):
    """Floats between 0 and 1."""
    return Input(list(dims), fill="uniform")


def ids(limit, *dims):
    """Integers from 0 to `limit - 1`."""
    return Input(list(dims), "int64", "ids", limit)


def ones(*dims):
    return Input(list(dims), "int64", "ones")


def mask(*dims):
    """Ones, except for some zeros at the end of each row but the first, as of padded sentences."""
    return Input(list(dims), "int64", "mask")


def positions(start, *dims):
    """`start`, `start + 1`, … along the last axis."""
    return Input(list(dims), "int64", "positions", start)


def _normal(rng, shape, limit):
    return rng.standard_normal(shape)


def _uniform(rng, shape, limit):
    return rng.random(shape)


def _ids(rng, shape, limit):
    return rng.integers(0, limit, shape)


def _ones(rng, shape, limit):
    return np.ones(shape)


def _mask(rng, shape, limit):
    rows = np.ones(shape)
    for k, row in enumerate(rows.reshape(-1, shape[-1])):
        row[shape[-1] - min(k, shape[-1] // 2) :] = 0
    return rows


def _positions(rng, shape, limit):
    return np.broadcast_to(np.arange(limit, limit + shape[-1]), shape)


FILLS = {"normal": _normal, "uniform": _uniform, "ids": _ids, "ones": _ones, "mask": _mask, "positions": _positions}


@dataclasses.dataclass
class Contract:
    """The inputs of a model by name, and its symbols: `ranges` maps each to a range, a set of values or an expression, in
    the forms of `--dim`."""

    inputs: dict
    ranges: dict

    def free(self):
        """The values of each symbol that is not an expression."""
        values = {name: listed(text) for name, text in self.ranges.items()}
        return {name: items for name, items in values.items() if items}

    def complete(self, binding):
        """A binding with the symbols that are expressions."""
        binding = dict(binding)
        for name, text in self.ranges.items():
            if name not in binding:
                binding[name] = evaluate(text, binding)
        return binding

    def bindings(self):
        """The smallest size, the second, odd sizes, the second largest and the largest, of all symbols at once."""
        free = self.free()
        rows = [{}]
        if free:
            rows = [
                {name: values[0] for name, values in free.items()},
                {name: values[min(1, len(values) - 1)] for name, values in free.items()},
                {name: inner(values, k) for k, (name, values) in enumerate(free.items())},
                {name: values[max(len(values) - 2, 0)] for name, values in free.items()},
                {name: values[-1] for name, values in free.items()},
            ]
        unique = []
        for row in rows:
            row = self.complete(row)
            if row not in unique:
                unique.append(row)
        return unique

    def example(self):
        """Sizes for the exporter. No size is 1, and no two symbols have the same size, as exporters take both for
        constants."""
        chosen, used = {}, set()
        for name, values in self.free().items():
            candidates = [v for v in values if v > 1 and v not in used] or values
            chosen[name] = candidates[len(candidates) // 3]
            used.add(chosen[name])
        return self.complete(chosen)

    def values(self, binding, seed):
        """An array for each input."""
        rng = np.random.default_rng(seed)
        arrays = {}
        for name, item in self.inputs.items():
            shape = tuple(evaluate(d, binding) for d in item.dims)
            array = FILLS[item.fill](rng, shape, evaluate(item.limit, binding))
            arrays[name] = np.ascontiguousarray(np.asarray(array).astype(item.dtype))
        return arrays

    def save(self, path):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(self), file, indent=1)

    @staticmethod
    def load(path):
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        return Contract({name: Input(**item) for name, item in data["inputs"].items()}, data["ranges"])


def listed(text):
    """The values of a range or a set, or None if the text is an expression."""
    if ".." in text:
        bounds, _, step = text.partition("/")
        low, high = bounds.split("..")
        return list(range(int(low), int(high) + 1, int(step or 1)))[:MAX_VALUES]
    items = text.split(",")
    return [int(item) for item in items] if all(item.strip().isdigit() for item in items) else None


def inner(values, k):
    """An odd value between the ends if there is one, another one for each `k`."""
    middle = values[1:-1] or values
    odd = [v for v in middle if v % 2] or middle
    return odd[(len(odd) // 2 + k) % len(odd)]


def evaluate(dim, binding):
    """The value of an integer or of an expression over symbols."""
    return int(eval(dim, {"__builtins__": {}}, binding)) if isinstance(dim, str) else dim  # The text is of this folder.
