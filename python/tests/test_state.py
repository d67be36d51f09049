"""States: rows are appended and tensors overwritten in place; wrong states are refused and keep their content."""

import os
import threading

import models
import numpy as np
import pytest

import symshape
from symshape import runtime

SIZES = {"B": (1, 3), "S": (1, 4), "P": (0, 8)}


@pytest.fixture(scope="module")
def decoder():
    return symshape.compile(models.decoder(mask=False), SIZES, stateful=True, name="decoder")


@pytest.fixture(scope="module")
def saved(decoder, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "decoder.so"
    decoder.save(path)
    return path


@pytest.fixture(scope="module")
def sums():
    return symshape.compile(models.running_sum(), {"N": (1, 5)}, state={"s": "sn"})


def ids(*tokens):
    return np.array([tokens], np.int64)


TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


def test_contract_lists_the_state(decoder):
    contract = decoder.contract
    assert [tensor.name for tensor in contract.inputs] == ["input_ids"]
    assert [tensor.name for tensor in contract.outputs] == ["logits"]
    assert [(tensor.input, tensor.output, tensor.axis) for tensor in contract.state] == [
        ("past_key_values.0.key", "present.0.key", 1),
        ("past_key_values.0.value", "present.0.value", 1),
    ]
    assert str(contract.state[0]) == "past_key_values.0.key: float32[B, capacity, 4], rows along axis 1"
    assert contract.state_length.name == "P" and contract.state_capacity.hi == 12
    assert contract.state_max == decoder.new_state(dims={"B": 3}).nbytes
    assert "state past_key_values.0.key" in str(contract) and "past_key_values.0.key" in decoder._repr_html_()


@pytest.mark.parametrize("sizes", [[1] * 9, [2] * 5, [4, 4, 3], [3, 1, 4, 2], [4, 4, 4]])
def test_steps_of_any_size_agree_with_the_whole_sequence(decoder, sizes):
    state = decoder.new_state()
    tokens = (TOKENS + [8])[: sum(sizes)]
    rows = []
    for size in sizes:
        rows.append(decoder(ids(*tokens[state.length : state.length + size]), state=state)[0])
    assert state.length == len(tokens)
    np.testing.assert_allclose(np.concatenate(rows), models.decoder_logits(tokens), rtol=1e-4, atol=1e-4)


def test_batch_of_sequences_has_the_bits_of_each(decoder):
    batch = decoder.new_state(capacity=7, dims={"B": 3})
    tokens = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    together = decoder(tokens, state=batch)
    for row in range(3):
        np.testing.assert_array_equal(together[row], decoder(tokens[row : row + 1], state=decoder.new_state(7))[0])


def test_truncated_forked_and_reset_states_go_on(decoder):
    state = decoder.new_state(capacity=12)
    first = decoder(ids(3, 1, 4), state=state)
    fork = state.fork()
    decoder(ids(9, 9), state=state)
    state.truncate(3)
    assert (state.length, state.capacity, fork.length) == (3, 12, 3)
    ahead = decoder(ids(1, 5), state=state)
    np.testing.assert_array_equal(ahead, decoder(ids(1, 5), state=fork))
    np.testing.assert_allclose(ahead[0], models.decoder_logits([3, 1, 4, 1, 5])[3:], rtol=1e-4, atol=1e-4)
    state.reset()
    assert state.length == 0
    np.testing.assert_array_equal(decoder(ids(3, 1, 4), state=state), first)


def test_saved_state_is_loaded(decoder, tmp_path):
    state = decoder.new_state(capacity=6)
    decoder(ids(3, 1, 4), state=state)
    state.save(tmp_path / "chat.state")
    expected = decoder(ids(1), state=state)
    for source in (tmp_path / "chat.state", str(tmp_path / "chat.state"), (tmp_path / "chat.state").read_bytes()):
        loaded = decoder.load_state(source)
        assert (loaded.length, loaded.capacity) == (3, 6)
        np.testing.assert_array_equal(decoder(ids(1), state=loaded), expected)


def test_tensors_are_read_and_set(decoder):
    state = decoder.new_state(capacity=6)
    decoder(ids(3, 1, 4), state=state)
    tensors = state.tensors()
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        "past_key_values.0.key": (1, 3, 4),
        "past_key_values.0.value": (1, 3, 4),
    }
    other = decoder.new_state(capacity=4)
    other.set(tensors)
    assert other.length == 3
    np.testing.assert_array_equal(decoder(ids(1), state=other), decoder(ids(1), state=state))
    key, value = tensors.values()
    cases = [
        ({"past_key_values.0.key": key}, "needs `past_key_values.0.value`"),
        ({**tensors, "other": key}, "has no tensor `other`"),
        ({"past_key_values.0.key": key[:, :2].copy(), "past_key_values.0.value": value}, "past_key_values.0.value"),
        ({name: np.zeros((1, 5, 4), np.float32) for name in tensors}, "past_key_values.0.key"),
    ]
    for given, message in cases:
        with pytest.raises(symshape.StateError, match=message):
            other.set(given)
    with pytest.raises(symshape.CallError, match="float32; got float64"):
        other.set({name: tensor.astype(np.float64) for name, tensor in tensors.items()})
    assert other.length == 4


def test_overwritten_state_keeps_values_and_refuses_to_truncate(sums):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    state = sums.new_state(dims={"N": 2})
    sums(x, state=state)
    np.testing.assert_array_equal(sums(x, state=state), 2 * x)
    np.testing.assert_array_equal(state.tensors()["s"], 2 * x)
    assert (state.length, state.capacity) == (0, 0)
    state.truncate(0)
    with pytest.raises(symshape.StateError, match="can't truncate a state of 0 rows to 1"):
        state.truncate(1)
    state.reset()
    np.testing.assert_array_equal(sums.run({"x": x}, state=state)["y"], x)
    with pytest.raises(symshape.StateError, match="no size `capacity`"):
        sums.new_state(capacity=3)
    with pytest.raises(symshape.CallError, match="N"):
        sums(x[:1], state=state)
    np.testing.assert_array_equal(state.tensors()["s"], x)


def test_capacity_for_a_memory_budget(decoder):
    for capacity in (1, 2, 5, 11, 12):
        nbytes = decoder.new_state(capacity=capacity).nbytes
        fits = decoder.max_capacity(nbytes)
        assert fits >= capacity and decoder.new_state(fits).nbytes == nbytes
    assert decoder.max_capacity(1 << 30, {"B": 2}) == 12
    assert decoder.max_capacity(8) is None
    with pytest.raises(symshape.StateError, match="no size `Z`"):
        decoder.max_capacity(1 << 20, {"Z": 2})


def test_wrong_sizes_of_a_state_are_refused(decoder):
    cases = [
        (dict(capacity=13), "capacity = 13"),
        (dict(capacity=-1), "capacity = -1"),
        (dict(capacity=2.5), "capacity = 2.5"),
        (dict(dims={"B": 4}), "B = 4; B is declared 1..=3"),
        (dict(dims={"Q": 1}), "no size `Q`; it has capacity, B"),
        (dict(dims={"P": 1}), "no size `P`"),
    ]
    for arguments, message in cases:
        with pytest.raises(symshape.StateError, match=message):
            decoder.new_state(**arguments)


def test_wrong_calls_leave_the_state_as_it_was(decoder, sums):
    state = decoder.new_state(capacity=4)
    decoder(ids(3, 1, 4), state=state)
    before = state.to_bytes()
    calls = [
        (lambda: decoder(ids(1)), "the model has state: call it with state=model.new_state"),
        (lambda: decoder(ids(1), state=sums.new_state()), "the state belongs to another model"),
        (lambda: decoder(ids(1), state=before), "expected a symshape.State; got bytes"),
        (lambda: decoder(ids(1, 2), state=state), "the state has memory for 4 rows; there would be 5"),
        (lambda: decoder(ids(1, 2, 3, 4, 5), state=state), "S = 5"),
        (lambda: decoder(np.array([[1], [2]]), state=state), "B"),
        (lambda: decoder(ids(models.VOCABULARY), state=state), "index|out of bounds"),
    ]
    for call, message in calls:
        with pytest.raises(symshape.CallError, match=message):
            call()
        assert state.to_bytes() == before
    with pytest.raises(symshape.StateError, match="can't truncate a state of 3 rows to 4"):
        state.truncate(4)
    plain = symshape.compile(models.relu(1), {"N": (1, 4)})
    with pytest.raises(symshape.CallError, match="the state belongs to another model"):
        plain(np.ones((1, 3), np.float32), state=state)
    with pytest.raises(symshape.StateError, match="the model has no state"):
        plain.new_state()


def damaged(content):
    """Wrong contents of a saved state, and a part of the message for each."""
    return [
        (b"", "it is not a saved state"),
        (b"text", "it is not a saved state"),
        (content[:20], "cut off"),
        (content[:-1], "cut off"),
        (content + b"\0", "too long"),
        (content[:8] + b"\0" * 8 + content[16:], "header is damaged"),
        (content[:16] + b"\0" * 8 + content[24:], "another model"),
        (content[:40] + b"\x7f" * 8 + content[48:], "capacity"),
        (content[:48] + b"\x7f" * 8 + content[56:], "exceeds its capacity"),
    ]


def test_damaged_states_are_refused(decoder, saved, tmp_path):
    state = decoder.new_state(capacity=4)
    decoder(ids(3, 1, 4), state=state)
    plain = runtime.Model(saved)
    for content, message in damaged(state.to_bytes()):
        with pytest.raises(symshape.StateError, match=message):
            decoder.load_state(content)
        with pytest.raises(runtime.StateError, match=message):
            plain.load_state(content)
    with pytest.raises(symshape.FileError, match="missing.state"):
        decoder.load_state(tmp_path / "missing.state")
    with pytest.raises(symshape.FileError, match="missing"):
        state.save(tmp_path / "missing" / "chat.state")


def test_failed_saving_leaves_no_file(decoder, tmp_path):
    (tmp_path / "chat.state").mkdir()
    with pytest.raises(symshape.FileError, match=rf"^{tmp_path}/chat\.state: "):
        decoder.new_state(capacity=4).save(tmp_path / "chat.state")
    assert [file.name for file in tmp_path.iterdir()] == ["chat.state"]


def test_saved_state_has_the_permissions_of_new_files(decoder, tmp_path):
    before = os.umask(0o027)
    try:
        decoder.new_state(capacity=4).save(tmp_path / "chat.state")
    finally:
        os.umask(before)
    assert (tmp_path / "chat.state").stat().st_mode & 0o777 == 0o640


def test_state_is_used_by_one_thread_at_a_time(decoder):
    state = decoder.new_state()
    done, refused, other = [], [], []

    def work():
        for _ in range(300):
            try:
                decoder(ids(1), state=state)
                done.append(1)
            except symshape.CallError as error:
                refused.append(str(error))
            except Exception as error:
                other.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The contract allows 9 calls with one token; all others are refused.
    assert len(done) == state.length == 9 and len(refused) == 591 and not other


def test_compile_refuses_pairs_that_are_no_state():
    cases = [
        (models.running_sum(), dict(state={"s": "nothing"}), "nothing"),
        (models.running_sum(), dict(state={"x*": "y"}), r"\*"),
        (models.relu(1), dict(stateful=True), "no pair of an input and an output is state"),
        (models.running_sum(), dict(stateful=True, state_type="f16"), "no pair of the state has appended rows of f32"),
        (models.running_sum(), dict(stateful=True, state_type="int4"), "expected f16 or bf16"),
        (models.relu(1), dict(state_type="f16"), "add --stateful"),
    ]
    for proto, arguments, message in cases:
        with pytest.raises(symshape.SymshapeError, match=message):
            symshape.compile(proto, {"N": (1, 4)}, **arguments)


def test_rows_of_16_bits_take_half_of_the_memory(decoder, tmp_path):
    model = symshape.compile(models.decoder(mask=False), SIZES, stateful=True, state_type="f16", name="decoder")
    state, wide = model.new_state(capacity=12), decoder.new_state(capacity=12)
    steps = []
    for first, size in ((0, 4), (4, 1), (5, 3), (8, 3)):
        tokens = ids(*TOKENS[first : first + size])
        steps.append(model(tokens, state=state)[0])
        np.testing.assert_allclose(steps[-1], decoder(tokens, state=wide)[0], rtol=2e-2, atol=2e-2)
    tensors = state.tensors()
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float16)}
    for name, tensor in wide.tensors().items():
        np.testing.assert_allclose(tensors[name], tensor, rtol=2e-3, atol=2e-3)
        assert tensors[name].nbytes == tensor.nbytes // 2

    state.save(tmp_path / "half.state")
    assert model.load_state(tmp_path / "half.state").length == len(TOKENS)
    with pytest.raises(symshape.StateError):
        decoder.load_state(tmp_path / "half.state")


def test_grouped_attention_keeps_its_cache():
    model = symshape.compile(
        models.grouped_attention(), {"B": (1, 2), "S": (1, 3), "P": (0, 6), "T": "P + S"}, state={"past_*": "present_*"}
    )
    whole, steps = model.new_state(), model.new_state()
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((1, 3, width)).astype(np.float32) for width in (16, 8, 8))
    expected = model(query, key, value, np.ones((1, 3), np.int64), state=whole)
    for k in range(3):
        row = [array[:, k : k + 1].copy() for array in (query, key, value)]
        y = model(*row, np.ones((1, k + 1), np.int64), state=steps)
        np.testing.assert_allclose(y[0, 0], expected[0, k], rtol=1e-5, atol=1e-6)
    assert steps.length == 3


def test_profile_refuses_state():
    with pytest.raises(symshape.UsageError, match="model with state"):
        symshape.profile(models.running_sum(), {"N": (1, 4)}, at={"N": 1}, stateful=True)


def test_runtime_keeps_state(decoder, saved):
    model = runtime.Model(saved)
    assert model.state == {"past_key_values.0.key": "present.0.key", "past_key_values.0.value": "present.0.value"}
    theirs, ours = model.new_state(dims={"B": 2}), decoder.new_state(dims={"B": 2})
    assert (theirs.length, theirs.capacity, theirs.nbytes) == (0, 12, ours.nbytes)
    for tokens in ([[1, 2, 3], [4, 5, 6]], [[7], [8]], [[1, 2], [3, 4]]):
        step = np.array(tokens)
        np.testing.assert_array_equal(model(step, state=theirs), decoder(step, state=ours))
    assert theirs.to_bytes() == ours.to_bytes()
    assert theirs.tensors()["past_key_values.0.key"].shape == (2, 6, 4)

    theirs.truncate(4)
    ours.truncate(4)
    fork = model.load_state(theirs.fork().to_bytes()).fork()
    step = np.array([[9], [10]])
    expected = decoder(step, state=decoder.load_state(ours.to_bytes()))
    for state in (theirs, fork, model.load_state(ours.to_bytes())):
        assert state.length == 4
        np.testing.assert_array_equal(model.run({"input_ids": step}, state=state)["logits"], expected)
    theirs.reset()
    assert theirs.length == 0


def test_runtime_overwrites_state(sums, tmp_path):
    sums.save(tmp_path / "sums.so")
    model = runtime.Model(tmp_path / "sums.so")
    state = model.new_state(dims={"N": 5})
    x = np.ones((5, 3), np.float32)
    model(x, state=state)
    np.testing.assert_array_equal(model(x, state=state), 2 * x)
    state.save(tmp_path / "sums.state")
    np.testing.assert_array_equal(sums(x, state=sums.load_state(tmp_path / "sums.state")), 3 * x)
    state.reset()
    np.testing.assert_array_equal(model(x, state=state), x)
    with pytest.raises(runtime.StateError, match="no size `capacity`; it has N"):
        model.new_state(capacity=3)


def test_runtime_refuses_wrong_states(decoder, saved, sums, tmp_path):
    model = runtime.Model(saved)
    sums.save(tmp_path / "sums.so")
    other = runtime.Model(tmp_path / "sums.so")
    state = model.new_state(capacity=2)
    cases = [
        (lambda: model(ids(1)), "the model has state"),
        (lambda: model(ids(1), state=other.new_state()), "belongs to another model"),
        (lambda: model(ids(1, 2, 3), state=state), "the state has memory for 2 rows; there would be 3"),
        (lambda: model(ids(models.VOCABULARY), state=state), "allowed"),
    ]
    for call, message in cases:
        with pytest.raises(runtime.CallError, match=message):
            call()
    assert state.length == 0
    cases = [
        (lambda: model.new_state(capacity=13), "capacity = 13; capacity is declared"),
        (lambda: model.new_state(dims={"Q": 1}), "no size `Q`; it has capacity, B"),
        (lambda: state.truncate(1), "can't truncate a state of 0 rows to 1"),
    ]
    for call, message in cases:
        with pytest.raises(runtime.StateError, match=message):
            call()
