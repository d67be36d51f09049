"""Calls: arrays are read and written in place, and wrong arrays are refused by name."""

import threading

import models
import numpy as np
import pytest
from onnx import TensorProto

import symshape


@pytest.fixture(scope="module")
def pair():
    return symshape.compile(models.sum_and_difference(), {"N": (1, 8)})


@pytest.fixture(scope="module")
def product():
    return symshape.compile(models.product(), {"N": (1, 64), "K": (1, 64)})


def rows(n, start=0):
    return np.arange(start, start + 3 * n, dtype=np.float32).reshape(n, 3)


def test_outputs_by_name_and_in_order(pair):
    a, b = rows(2), rows(2, 5)
    named = pair.run({"b": b, "a": a})
    s, d = pair(a, b)
    assert list(named) == ["s", "d"]
    np.testing.assert_array_equal(named["s"], a + b)
    np.testing.assert_array_equal(s, a + b)
    np.testing.assert_array_equal(d, a - b)


def test_outputs_go_to_given_arrays(pair):
    a, b = rows(4), rows(4, 7)
    d = np.empty((4, 3), np.float32)
    result = pair.run({"a": a, "b": b}, out={"d": d})
    assert result["d"] is d
    np.testing.assert_array_equal(d, a - b)
    np.testing.assert_array_equal(result["s"], a + b)


class OnlyDlpack:
    """An array of another library on the CPU."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OnDevice(OnlyDlpack):
    """An array in the memory of a GPU."""

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **arguments):
        raise BufferError("the array is on a GPU")


def test_dlpack_arrays_are_inputs_and_outputs_export_them(pair):
    a, b = rows(3), rows(3, 1)
    s, _ = pair(OnlyDlpack(a), b)
    np.testing.assert_array_equal(np.from_dlpack(s), a + b)
    with pytest.raises(symshape.CallError, match="on a GPU"):
        pair(OnDevice(a), b)


def test_read_only_inputs_are_accepted(pair):
    a = rows(2)
    a.flags.writeable = False
    np.testing.assert_array_equal(pair(a, a)[0], a + a)


def test_wrong_arrays_are_refused_by_name(pair):
    a = rows(2)
    cases = [
        ({"a": a.astype(np.float64), "b": a}, "input `a` has elements of type float32; got float64"),
        ({"a": a.astype(">f4"), "b": a}, "input `a` has elements of type float32"),
        ({"a": np.asfortranarray(a), "b": a}, "input `a` is not in row-major order"),
        ({"a": rows(4)[::2], "b": a}, "input `a` is not in row-major order"),
        ({"a": a, "b": a[0]}, "`b` has 2 axes; got 1"),
        ({"a": a, "b": rows(3)}, "N"),
        ({"a": rows(9), "b": rows(9)}, "N = 9"),
        ({"a": rows(0), "b": rows(0)}, "N = 0"),
        ({"a": a}, "input `b` is missing"),
        ({"a": a, "b": a, "c": a}, "no input `c`"),
        ([a, a], "expected a mapping"),
    ]
    for inputs, message in cases:
        with pytest.raises(symshape.CallError, match=message):
            pair.run(inputs)
    with pytest.raises(symshape.CallError, match="got 1 inputs; the model has 2"):
        pair(a)


def test_unaligned_arrays_are_refused(pair):
    memory = np.zeros(25, np.uint8)
    a = memory[1:25].view(np.float32).reshape(2, 3)
    with pytest.raises(symshape.CallError, match="not aligned"):
        pair(a, rows(2))


def test_wrong_outputs_are_refused_by_name(pair):
    a = rows(2)
    read_only = np.empty((2, 3), np.float32)
    read_only.flags.writeable = False
    cases = [
        ({"s": np.empty((2, 4), np.float32)}, r"output `s` has shape \(2, 3\) in this call; the array has \(2, 4\)"),
        ({"s": np.empty((2, 3), np.float64)}, "output `s` has elements of type float32"),
        ({"s": read_only}, "output `s` is read-only"),
        ({"s": [0.0] * 6}, "output `s` must be a NumPy array"),
        ({"t": a}, "no output `t`"),
        ({"s": a}, "overlaps with another array"),
    ]
    for out, message in cases:
        with pytest.raises(symshape.CallError, match=message):
            pair.run({"a": a, "b": rows(2, 1)}, out=out)
    np.testing.assert_array_equal(a, rows(2))


def test_each_thread_has_its_own_memory(product):
    rng = np.random.default_rng(1)
    cases = [
        (rng.integers(-4, 4, (n, k)).astype(np.float32), rng.integers(-4, 4, (k, 5)).astype(np.float32))
        for n, k in [(1, 1), (64, 64), (13, 7), (40, 33)]
    ]
    wrong = []

    def work(a, b):
        for _ in range(200):
            if not np.array_equal(product(a, b), a @ b):
                wrong.append((a.shape, b.shape))

    threads = [threading.Thread(target=work, args=case) for case in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_several_threads_of_one_call_give_the_same_bits(product):
    a = np.random.default_rng(2).standard_normal((64, 64)).astype(np.float32)
    b = np.random.default_rng(3).standard_normal((64, 5)).astype(np.float32)
    alone = product(a, b)
    product.threads = 2
    np.testing.assert_array_equal(product(a, b), alone)
    product.threads = 1
    with pytest.raises(symshape.UsageError, match="threads = 0"):
        product.threads = 0


def test_data_dependent_output_has_its_actual_size():
    model = symshape.compile(models.non_zero(), {"N": (1, 16)})
    x = np.array([0, 1, 0, 2, 3], np.float32)
    np.testing.assert_array_equal(model(x), [[1, 3, 4]])
    assert model(np.zeros(16, np.float32)).shape == (1, 0)
    assert model.output_shapes(N=5) == {"y": (1, 5)}


def test_half_precision_types():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for code, dtype in [(TensorProto.FLOAT16, np.float16), (TensorProto.BFLOAT16, ml_dtypes.bfloat16)]:
        model = symshape.compile(models.relu(code), {"N": (1, 4)})
        x = np.array([[-1.5, 0.0, 2.5]], dtype)
        y = model(x)
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(y.astype(np.float32), [[0.0, 0.0, 2.5]])


def test_sizes_and_memory(product):
    contract = product.contract
    assert [(symbol.name, symbol.lo, symbol.hi) for symbol in contract.symbols] == [("N", 1, 64), ("K", 1, 64)]
    assert [str(tensor) for tensor in contract.inputs] == ["a: float32[N, K]", "b: float32[K, 5]"]
    assert str(contract.outputs[0]) == "y: float32[N, 5]"
    assert product.output_shapes(N=3, K=2) == {"y": (3, 5)}
    assert product.arena_bytes(N=64, K=64) <= contract.arena_max
    assert product.max_dim_for("N", contract.arena_max, K=64) == 64
    errors = [
        (lambda: product.arena_bytes(N=1), "the value of K is missing"),
        (lambda: product.arena_bytes(N=1, K=1, Z=1), "no symbol Z"),
        (lambda: product.arena_bytes(N=65, K=1), "65"),
        (lambda: product.max_dim_for("Z", 1, N=1, K=1), "the model has no symbol `Z`"),
        (lambda: product.max_dim_for("N", 1, N=1, K=1), "give only the other symbols"),
    ]
    for call, message in errors:
        with pytest.raises(symshape.UsageError, match=message):
            call()


def test_notebook_page_shows_the_contract_and_the_plan(product):
    page = product._repr_html_()
    assert "1..=64" in page and "float32[N, K]" in page and "<iframe" in page
    assert "symshape.Model" in repr(product)
