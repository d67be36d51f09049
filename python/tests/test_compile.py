"""Compilation: all forms of models and declarations, and its errors."""

import models
import numpy as np
import onnx
import pytest

import symshape

SIZES = {"N": (1, 9), "K": (1, 33)}


def check_product(model, sizes=((1, 1), (2, 2), (5, 17), (8, 32), (9, 33))):
    rng = np.random.default_rng(0)
    for n, k in sizes:
        a = rng.integers(-8, 8, (n, k)).astype(np.float32)
        b = rng.integers(-8, 8, (k, 5)).astype(np.float32)
        np.testing.assert_array_equal(model(a, b), a @ b)


def test_path_bytes_and_proto_are_accepted(tmp_path):
    proto = models.product()
    path = tmp_path / "product.onnx"
    onnx.save(proto, path)
    for source in (proto, proto.SerializeToString(), path, str(path)):
        check_product(symshape.compile(source, SIZES))
    assert symshape.compile(path, SIZES).name == "product"
    assert symshape.compile(proto, SIZES, name="other").name == "other"


@pytest.mark.parametrize(
    ("declaration", "text"),
    [
        ((1, 9), "1..=9"),
        (range(2, 9, 3), "2..=8 in steps of 3"),
        ({4, 1, 2}, "one of 1, 2, 4"),
        ([3], "exactly 3"),
        (7, "exactly 7"),
        ("1..8/1", "1..=8"),
        (np.int64(6), "exactly 6"),
    ],
)
def test_declarations_of_a_symbol(declaration, text):
    model = symshape.compile(models.product(), {"N": declaration, "K": (1, 4)})
    assert model.contract.symbols[0].declaration == text


def test_symbol_may_be_an_expression():
    model = symshape.compile(models.product(), {"K": (1, 8), "N": "2*K"})
    assert [symbol.name for symbol in model.contract.symbols] == ["K"]
    check_product(model, [(2, 1), (16, 8)])


def test_bounds_file_declares_the_rest(tmp_path):
    bounds = tmp_path / "bounds.json"
    bounds.write_text('{"N": [1, 9], "K": "1..33", "other": [1, 2]}')
    check_product(symshape.compile(models.product(), {"N": (1, 9)}, bounds=bounds))


def test_bound_input_is_a_constant():
    b = np.arange(20, dtype=np.float32).reshape(4, 5)
    model = symshape.compile(models.product(), {"N": (1, 9)}, inputs={"a": ("N", 4), "b": (4, 5)}, bind={"b": b})
    a = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(model(a), a @ b)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"N": True, "K": 1}, "N: True is not a size"),
        ({"N": -1, "K": 1}, "N: -1 is not a size"),
        ({"N": (1, 2, 3), "K": 1}, "is not a range"),
        ({"N": range(4, 1), "K": 1}, "has no ascending values"),
        ({"N": (9, 1), "K": 1}, "empty range"),
        ({"N": set(), "K": 1}, "is not a size"),
        ({"N": "1..x", "K": 1}, "is not a size"),
        ({"N": (1, 2), "K": (1, 2), "Z": (1, 2)}, "no input has a symbol `Z`"),
    ],
)
def test_bad_declarations(dims, message):
    with pytest.raises(symshape.UsageError, match=message):
        symshape.compile(models.product(), dims)


def test_errors_have_a_class_and_the_words_of_symc(tmp_path):
    with pytest.raises(symshape.ContractError, match="`N` .* no upper bound; declare, for example, --dim N=1..64"):
        symshape.compile(models.product())
    with pytest.raises(symshape.UnsupportedError) as error:
        symshape.compile(models.unknown(), {"N": (1, 4)})
    assert "com.acme:Foo" in str(error.value) and "com.acme:Bar" in str(error.value)
    for garbage in (b"", b"no model", b"\xff" * 100):
        with pytest.raises(symshape.ModelError):
            symshape.compile(garbage)
    with pytest.raises(symshape.FileError, match="missing.onnx"):
        symshape.compile(tmp_path / "missing.onnx")
    with pytest.raises(symshape.UsageError, match="got dict"):
        symshape.compile({})
    with pytest.raises(symshape.UsageError, match="expected one of f32"):
        symshape.compile(models.product(), SIZES, precision="f8")
    with pytest.raises(symshape.UsageError, match="threads = 0"):
        symshape.compile(models.product(), SIZES, threads=0)
    with pytest.raises(symshape.FileError, match="bounds.json"):
        symshape.compile(models.product(), bounds=tmp_path / "bounds.json")


def test_weights_get_fewer_bits():
    weights = np.random.default_rng(3).normal(size=(64, 48)).astype(np.float32)
    x = np.random.default_rng(4).normal(size=(5, 64)).astype(np.float32)
    source = models.model(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        [("x", onnx.TensorProto.FLOAT, ["N", 64])],
        [("y", onnx.TensorProto.FLOAT, ["N", 48])],
        {"w": weights},
    )
    dims = {"N": SIZES["N"]}
    exact = symshape.compile(source, dims)
    assert exact.weight_table is None
    for weight_type, size, limit in [("int4", 64 * 48 // 2 + 192, 0.1), ("int8", 64 * 48 + 192, 0.01)]:
        model = symshape.compile(source, dims, weights=weight_type)
        (row,) = model.weight_table["rows"]
        assert (row["name"], row["type"], row["bytes"]) == ("w", weight_type, size)
        assert 0 < model.weight_table["output_error"] < limit
        error = np.linalg.norm(model(x) - x @ weights) / np.linalg.norm(x @ weights)
        assert 0 < error < limit
    rounded = symshape.compile(source, dims, weights="int4", activations="int8")
    assert any("int8 in 1 of 1 products" in note for note in rounded.notes)
    error = np.linalg.norm(rounded(x) - symshape.compile(source, dims, weights="int4")(x)) / np.linalg.norm(x @ weights)
    assert 0 < error < 0.01
    with pytest.raises(symshape.UsageError, match="expected f32 or int8"):
        symshape.compile(source, dims, activations="int4")
    mixed = symshape.compile(source, dims, weights="int4", named_weights={"w": "f32"}, weight_error=1)
    assert mixed.weight_table["rows"][0]["type"] == "f32"
    with pytest.raises(symshape.UsageError, match="expected int8, int4"):
        symshape.compile(source, dims, weights="int3")
    with pytest.raises(symshape.UsageError, match="a similar one is `w`"):
        symshape.compile(source, dims, weights="int4", named_weights={"v": "int8"})


def test_progress_sees_each_step_and_can_stop():
    steps = []
    symshape.compile(models.product(), SIZES, progress=steps.append)
    assert steps[-1] == "plan" and "lower" in steps

    def stop(step):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        symshape.compile(models.product(), SIZES, progress=stop)


def test_progress_bar_is_shown(capsys):
    symshape.compile(models.product(), SIZES, progress=True)
    assert "compiling" in capsys.readouterr().err
