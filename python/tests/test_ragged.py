"""Ragged batches: rows and lengths, padded tensors, the contract, and refused calls."""

import models
import numpy as np
import onnxruntime
import pytest

import symshape
from symshape import runtime

N, S = 5, 9
DIMS = {"N": (1, N), "S": (1, S)}
BATCHES = [[1], [2], [S], [1, S], [3, 1, 7, 2], [4] * N, [1] * N, [S - 1] * N, [S] * N]


@pytest.fixture(scope="module")
def model():
    return symshape.compile(models.encoder(), DIMS, ragged="S")


@pytest.fixture(scope="module")
def padded_model():
    """The padded model on ONNX Runtime: a function of the inputs."""
    session = onnxruntime.InferenceSession(models.encoder().SerializeToString(), providers=["CPUExecutionProvider"])
    return lambda inputs: dict(zip(("hidden", "pooled"), session.run(["hidden", "pooled"], inputs)))


def batch(lengths, positions=None, is_left=False):
    """Padded inputs. Padding has other ids than 0, which the results must not depend on."""
    positions = positions or max(lengths)
    rng = np.random.default_rng(sum(lengths))
    mask = np.arange(positions) < np.array(lengths)[:, None]
    mask = mask[:, ::-1] if is_left else mask
    return {"ids": rng.integers(0, 11, mask.shape), "mask": mask.astype(np.int64)}


def assert_tokens_agree(outputs, expected, tokens):
    np.testing.assert_allclose(outputs["hidden"][tokens], expected[0][tokens], rtol=1e-5, atol=1e-5)
    assert (outputs["hidden"][~tokens] == 0).all()
    np.testing.assert_allclose(outputs["pooled"], expected[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lengths", BATCHES, ids=str)
def test_padded_calls_agree_with_onnx_runtime(model, padded_model, lengths):
    for positions in {max(lengths), S}:
        inputs = batch(lengths, positions)
        expected = padded_model(inputs)
        outputs = model.run_padded(inputs, value=7)
        tokens = inputs["mask"] == 1
        assert outputs["hidden"].shape == expected["hidden"].shape
        np.testing.assert_allclose(outputs["hidden"][tokens], expected["hidden"][tokens], rtol=1e-5, atol=1e-5)
        assert (outputs["hidden"][~tokens] == 7).all()
        np.testing.assert_allclose(outputs["pooled"], expected["pooled"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lengths", BATCHES, ids=str)
def test_rows_with_lengths_and_with_offsets_are_the_same(model, lengths):
    inputs = batch(lengths)
    ids = inputs["ids"][inputs["mask"] == 1]
    outputs = model.run({"ids": ids}, lengths=lengths)
    offsets = np.cumsum([0, *lengths])
    for other in (model.run({"ids": ids, "offsets": offsets}), model.run(model.pack(inputs))):
        for name, array in outputs.items():
            np.testing.assert_array_equal(other[name], array)
    hidden, pooled = model(ids, lengths=tuple(lengths))
    np.testing.assert_array_equal(hidden, outputs["hidden"])
    # A sequence has the bits that it has alone.
    for k, (begin, end) in enumerate(zip(offsets, offsets[1:])):
        alone, alone_pooled = model(ids[begin:end], lengths=[end - begin])
        np.testing.assert_array_equal(alone, hidden[begin:end])
        np.testing.assert_array_equal(alone_pooled[0], pooled[k])


@pytest.mark.parametrize("dtype", [np.bool_, np.int32, np.float32])
def test_masks_of_any_type_and_lengths_pack_the_same_rows(model, dtype):
    lengths = [3, 1, 7, 2]
    inputs = batch(lengths, S)
    expected = model.pack(inputs)
    others = [model.pack({**inputs, "mask": inputs["mask"].astype(dtype)}), model.pack({"ids": inputs["ids"]}, lengths)]
    for packed in others:
        assert packed.keys() == {"ids", "offsets"}
        for name, array in expected.items():
            np.testing.assert_array_equal(packed[name], array)
    outputs = model.run(expected)
    padded = model.pad(outputs, lengths, positions=S)
    for name, array in model.run_padded(inputs).items():
        np.testing.assert_array_equal(padded[name], array)
    assert model.pad(outputs, lengths)["hidden"].shape == (4, 7, 8)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int16, np.uint8, np.uint64])
@pytest.mark.parametrize("lengths", BATCHES, ids=str)
def test_offsets_and_lengths_of_any_integer_type(model, lengths, dtype):
    ids = np.arange(sum(lengths)) % 11
    expected = model.run({"ids": ids}, lengths=lengths)
    offsets = np.cumsum([0, *lengths]).astype(dtype)
    others = [
        model.run({"ids": ids, "offsets": offsets}),
        model.run({"ids": ids}, lengths=np.array(lengths, dtype)),
        dict(zip(("hidden", "pooled"), model(ids, offsets))),
    ]
    for outputs in others:
        for name, array in expected.items():
            np.testing.assert_array_equal(outputs[name], array)


def test_padding_on_the_left_keeps_its_place():
    proto = models.encoder(positions=True)
    model = symshape.compile(proto, DIMS, ragged="S", mask="mask")
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = batch([3, 1, 7, 2], is_left=True)
    inputs["positions"] = np.maximum(np.cumsum(inputs["mask"], axis=1) - 1, 0)
    expected = session.run(["hidden", "pooled"], inputs)
    assert_tokens_agree(model.run_padded(inputs), expected, inputs["mask"] == 1)


def test_lengths_are_an_input_of_the_padded_model():
    proto = models.encoder(lengths=True)
    model = symshape.compile(proto, DIMS, ragged="S")
    assert (model.contract.ragged.mask, model.contract.ragged.lengths) == (None, "lengths")
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for lengths in BATCHES:
        padded = batch(lengths)
        inputs = {"ids": padded["ids"], "lengths": np.array(lengths)}
        outputs = model.run_padded(inputs)
        assert_tokens_agree(outputs, session.run(["hidden", "pooled"], inputs), padded["mask"] == 1)
        again = model.run_padded({"ids": padded["ids"]}, lengths=lengths)
        for name, array in outputs.items():
            np.testing.assert_array_equal(again[name], array)

    ids = padded["ids"]
    for inputs, lengths, message in [
        ({"ids": ids, "lengths": np.full(N, S)}, [S] * N, "lengths and the input `lengths` are given"),
        ({"ids": ids}, None, "the input `lengths` is missing; give it or lengths="),
        ({"ids": ids, "lengths": np.full(N, S + 1)}, None, r"lengths\[0\] = 10; the padded length is 9"),
        ({"ids": ids, "lengths": np.full(N, 2.0)}, None, "lengths must be a list of integers"),
        ({"ids": ids, "other": ids}, [S] * N, "no input `other`; it has ids, lengths"),
    ]:
        with pytest.raises(symshape.CallError, match=message):
            model.run_padded(inputs, lengths=lengths)


@pytest.mark.parametrize("is_left", [False, True], ids=["padding on the right", "padding on the left"])
def test_sequences_share_positions(is_left):
    proto = models.encoder(positions=True, shared=True)
    model = symshape.compile(proto, DIMS, ragged="S")
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = batch([3, 1, 7, 2], is_left=is_left)
    inputs["positions"] = np.arange(7)[None] + 20
    expected = session.run(["hidden", "pooled"], inputs)
    tokens = inputs["mask"] == 1
    np.testing.assert_array_equal(model.pack(inputs)["positions"][0], 20 + np.nonzero(tokens)[1])
    assert_tokens_agree(model.run_padded(inputs), expected, tokens)
    for positions in (inputs["positions"][:, :6], inputs["positions"][0]):
        with pytest.raises(symshape.CallError, match=r"input `positions` has shape.*expected \[1, S\] with 7 positions"):
            model.run_padded({**inputs, "positions": positions})


def test_axes_of_the_padded_model_are_kept():
    model = symshape.compile(models.time_first(), DIMS, ragged="S", ragged_batch="N")
    ragged = model.contract.ragged
    assert ragged.mask is None
    assert (ragged.input_batch_axes, ragged.output_batch_axes) == ((1, None, None), (1,))
    x, scale = np.random.default_rng(0).standard_normal((4, 3, 3)).astype(np.float32), np.ones(3, np.float32)
    y = model.run_padded({"x": x, "scale": scale}, lengths=[4, 1, 2])["y"]
    expected = np.maximum(x, 0) + 1
    for k, length in enumerate([4, 1, 2]):
        np.testing.assert_array_equal(y[:length, k], expected[:length, k])
        assert (y[length:, k] == 0).all()


def test_contract_names_the_length(model):
    ragged = model.contract.ragged
    assert (ragged.offsets, ragged.mask) == ("offsets", "mask")
    assert (ragged.sequences.name, ragged.sequences.hi) == ("N", N)
    assert (ragged.rows.name, ragged.rows.hi) == ("T", N * S)
    assert (ragged.length.name, ragged.length.lo, ragged.length.hi) == ("S", 1, S)
    assert "S in 1..=9, of each sequence in `offsets`" in str(model.contract)
    assert "of each sequence in offsets" in model._repr_html_()
    assert [symbol.name for symbol in model.contract.symbols] == ["N", "T"]
    assert model.arena_bytes(N=2, T=5) < model.arena_bytes(N=5, T=45) <= model.contract.arena_max
    assert symshape.compile(models.relu(1), {"N": (1, 4)}).contract.ragged is None


def test_saved_models_take_ragged_batches(model, tmp_path):
    model.save(tmp_path / "encoder.so")
    loaded = symshape.load(tmp_path / "encoder.so")
    assert loaded.contract == model.contract
    inputs = batch([3, 1, 7])
    expected = model.run_padded(inputs)
    for name, array in loaded.run_padded(inputs).items():
        np.testing.assert_array_equal(array, expected[name])
    outputs = runtime.Model(tmp_path / "encoder.so").run(model.pack(inputs))
    np.testing.assert_array_equal(outputs["pooled"], expected["pooled"])


def test_largest_number_of_rows():
    model = symshape.compile(models.encoder(), DIMS, ragged="S", max_rows=12)
    assert model.contract.ragged.rows.hi == 12
    model.run_padded(batch([3, 9]))
    with pytest.raises(symshape.CallError, match=r"\bT\b.*12"):
        model.run_padded(batch([4, 9]))


ROWS = np.zeros(5, np.int64)


@pytest.mark.parametrize(
    ("inputs", "lengths", "message"),
    [
        ({"ids": ROWS}, None, "input `offsets` is missing"),
        ({"ids": ROWS, "offsets": [0, 5]}, [5], "lengths and the input `offsets` are given"),
        ({"ids": ROWS}, [2, 2], "offsets"),
        ({"ids": ROWS}, [2, 2, 2], "offsets"),
        ({"ids": ROWS}, [5, 0], r"\bS\b.* 0"),
        ({"ids": np.zeros(12, np.int64)}, [2, 10], r"\bS\b.*10"),
        ({"ids": ROWS}, [1] * 6, r"\bN\b.*6"),
        ({"ids": ROWS}, [], r"\bN\b.*0"),
        ({"ids": ROWS}, [6, -1], r"lengths\[1\] = -1 is not a length"),
        ({"ids": ROWS}, [2.0, 3.0], r"a list of integers; got float64\[2\]"),
        ({"ids": ROWS}, 5, "lengths must be a list of integers"),
        ({"ids": ROWS}, [[1], [2, 2]], "lengths must be a list of integers"),
        ({"ids": ROWS}, [[5]], r"a list of integers; got int64\[1, 1\]"),
        ({"ids": ROWS, "offsets": np.array([0, 3, 2, 5])}, None, "offsets"),
        ({"ids": ROWS, "offsets": np.array([1, 5])}, None, "offsets"),
        ({"ids": ROWS, "offsets": np.array([0, 3, 2, 5], np.int32)}, None, r"\bS\b.* -1"),
        ({"ids": ROWS, "offsets": np.array([0, -1, 5], np.int8)}, None, r"\bS\b.* -1"),
        ({"ids": ROWS, "offsets": np.array([0, 2**63, 5], np.uint64)}, None, "offset 9223372036854775808 exceeds"),
        ({"ids": ROWS, "offsets": np.array([0.0, 5.0])}, None, "input `offsets` has elements of type int64; got float64"),
        ({"ids": ROWS, "offsets": np.array([[0, 5]], np.int32)}, None, "offsets"),
        ({"ids": ROWS, "mask": ROWS}, [5], "the model has no input `mask`"),
    ],
)
def test_wrong_ragged_calls_are_refused_by_name(model, inputs, lengths, message):
    with pytest.raises(symshape.CallError, match=message):
        model.run(inputs, lengths=lengths)


IDS = np.zeros((2, 4), np.int64)
MASK = np.array([[1, 1, 0, 0], [1, 1, 1, 1]])
HOLE = np.array([[1, 1, 1, 1], [1, 0, 1, 1]])


@pytest.mark.parametrize(
    ("inputs", "lengths", "message"),
    [
        ({"ids": IDS}, None, "the mask `mask` is missing; give it or lengths="),
        ({"mask": MASK}, None, "input `ids` is missing; the padded model has ids"),
        ({"ids": IDS, "mask": MASK}, [2, 4], "lengths and the mask `mask` are given"),
        ({"ids": IDS, "mask": MASK, "other": IDS}, None, "no input `other`; it has ids, mask"),
        ({"ids": IDS, "mask": MASK[0]}, None, "the mask `mask` must have two axes; got 1"),
        ({"ids": IDS, "mask": MASK * 2}, None, r"`mask`\[0, 0\] = 2; a mask has 1 for tokens"),
        ({"ids": IDS, "mask": MASK - 0.5}, None, r"`mask`\[0, 0\] = 0.5; a mask has 1 for tokens"),
        ({"ids": IDS, "mask": HOLE}, None, "sequence 1 of `mask` has padding between tokens"),
        ({"ids": IDS, "mask": MASK[:1]}, None, "input `ids` has 2 sequences of 4 positions; expected 1 of 4"),
        ({"ids": IDS[:, :3], "mask": MASK}, None, "input `ids` has 2 sequences of 3 positions; expected 2 of 4"),
        ({"ids": IDS[0], "mask": MASK}, None, r"input `ids` has 1 axes; the padded one has \[N, S\]"),
        ({"ids": IDS}, [2, 5], r"lengths\[1\] = 5; the padded length is 4"),
        ({"ids": IDS}, [2], "input `ids` has 2 sequences of 4 positions; expected 1 of 4"),
        ({"ids": IDS, "mask": MASK * 0}, None, r"\bT\b.*0"),
        ({"ids": IDS, "mask": MASK * [[0], [1]]}, None, r"\bS\b.* 0"),
        ({"ids": IDS.astype(np.int32), "mask": MASK}, None, "input `ids` has elements of type int64; got int32"),
        ([IDS, MASK], None, "expected a mapping"),
    ],
)
def test_wrong_padded_calls_are_refused_by_name(model, inputs, lengths, message):
    with pytest.raises(symshape.CallError, match=message):
        model.run_padded(inputs, lengths=lengths)


def test_wrong_outputs_are_not_padded(model):
    outputs = model.run({"ids": ROWS}, lengths=[2, 3])
    for wrong, lengths, message in [
        (outputs, [2, 2], r"output `hidden` has shape \(5, 8\); expected \[T, 8\] with 4 rows"),
        ({"hidden": [[0.0] * 8]}, [2, 3], r"output `hidden` has shape \(1, 8\)"),
        ({"other": ROWS}, [2, 3], "no output `other`; it has hidden, pooled"),
        (list(outputs), [2, 3], "expected a mapping of output names"),
    ]:
        with pytest.raises(symshape.CallError, match=message):
            model.pad(wrong, lengths)
    with pytest.raises(symshape.CallError, match=r"lengths\[1\] = 3; the padded length is 2"):
        model.pad(outputs, [2, 3], positions=2)


def test_models_without_ragged_batches_refuse_lengths():
    model = symshape.compile(models.relu(1), {"N": (1, 4)})
    x = np.zeros((2, 3), np.float32)
    calls = [
        lambda: model.run({"x": x}, lengths=[2]),
        lambda: model(x, lengths=[2]),
        lambda: model.pack({"x": x}, [2]),
        lambda: model.pad({"y": x}, [2]),
        lambda: model.run_padded({"x": x}),
    ]
    for call in calls:
        with pytest.raises(symshape.CallError, match="takes no ragged batch: compile it with ragged="):
            call()


def test_wrong_requests_are_refused():
    encoder = models.encoder()
    with pytest.raises(symshape.UsageError, match="the model has no symbol L"):
        symshape.compile(encoder, DIMS, ragged="L")
    with pytest.raises(symshape.UsageError, match="--mask other"):
        symshape.compile(encoder, DIMS, ragged="S", mask="other")
    for option in ({"mask": "mask"}, {"max_rows": 9}, {"ragged_batch": "N"}):
        with pytest.raises(symshape.UsageError, match="it needs ragged"):
            symshape.compile(encoder, DIMS, **option)
    with pytest.raises(symshape.UsageError, match="max_rows = 0"):
        symshape.compile(encoder, DIMS, ragged="S", max_rows=0)
    with pytest.raises(symshape.UnsupportedError, match="output `y`.*padding is not masked"):
        symshape.compile(models.softmax_over_positions(), DIMS, ragged="S")
