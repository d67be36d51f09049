"""Generation: tokens one after another, whatever the sizes of the calls."""

import itertools

import models
import numpy as np
import pytest

import symshape
from symshape.generation import sampler

PROMPT = [3, 1, 4, 1, 5, 9, 2]


@pytest.fixture(scope="module")
def decoder():
    return symshape.compile(models.decoder(), {"B": (1, 2), "S": (1, 3), "P": (0, 29)}, stateful=True)


def result(generator):
    """The tokens, and the reason of the end."""
    tokens = []
    while True:
        try:
            tokens.append(next(generator))
        except StopIteration as end:
            return tokens, end.value


def test_greedy_tokens_are_the_most_probable(decoder):
    state = decoder.new_state()
    tokens, reason = result(symshape.generate(decoder, state, PROMPT, max_tokens=8))
    assert tokens == models.greedy(PROMPT, 8) and reason == "length"
    assert state.length == len(PROMPT) + 8


def test_turns_continue_the_sequence(decoder):
    state = decoder.new_state()
    first = list(symshape.generate(decoder, state, PROMPT, max_tokens=4))
    second = list(symshape.generate(decoder, state, [7, 7], max_tokens=4))
    assert second == models.greedy([*PROMPT, *first, 7, 7], 4)


def test_abandoned_generation_leaves_the_last_token_unread(decoder):
    state = decoder.new_state()
    tokens = list(itertools.islice(symshape.generate(decoder, state, PROMPT), 3))
    assert tokens == models.greedy(PROMPT, 3) and state.length == len(PROMPT) + 2


def test_stop_token_ends_and_is_not_read(decoder):
    expected = models.greedy(PROMPT, 20)
    stop = expected[5]
    count = expected.index(stop)
    state = decoder.new_state()
    tokens, reason = result(symshape.generate(decoder, state, PROMPT, stop=[stop, 999]))
    assert tokens == expected[:count] and reason == "stop"
    assert state.length == len(PROMPT) + count


def test_generation_ends_when_the_state_is_full(decoder):
    # 30 positions can be read, and one more token follows from the last of them.
    for capacity, limit in [(10, 10), (32, 30)]:
        state = decoder.new_state(capacity=capacity)
        tokens, reason = result(symshape.generate(decoder, state, PROMPT))
        assert reason == "full" and tokens == models.greedy(PROMPT, limit - len(PROMPT) + 1)
        assert state.length == limit


def test_model_without_mask_and_with_another_output_name():
    model = symshape.compile(models.decoder("scores", mask=False), {"B": 1, "S": (1, 4), "P": (0, 16)}, stateful=True)
    assert list(symshape.generate(model, model.new_state(), PROMPT, max_tokens=5)) == models.greedy(PROMPT, 5)


def test_seeds_and_choices_are_reproducible(decoder):
    def tokens(**arguments):
        return list(symshape.generate(decoder, decoder.new_state(), PROMPT, max_tokens=12, **arguments))

    assert tokens(temperature=5.0, seed=1) == tokens(temperature=5.0, seed=1)
    assert len({tuple(tokens(temperature=5.0, seed=seed)) for seed in range(5)}) > 1
    assert tokens(temperature=5.0, top_p=1e-6, seed=1) == models.greedy(PROMPT, 12)
    least = tokens(choose=lambda logits: np.argmin(logits))
    assert least[0] == int(np.argmin(models.decoder_logits(PROMPT)[-1]))


def test_draws_follow_the_probabilities():
    logits = np.log(np.array([0.6, 0.1, 0.3], np.float32))

    def counts(temperature, top_p):
        choose = sampler(temperature, top_p, 7)
        return np.bincount([choose(logits) for _ in range(10_000)], minlength=3)

    np.testing.assert_allclose(counts(1.0, 1.0), [6000, 1000, 3000], atol=200)
    np.testing.assert_allclose(counts(1.0, 0.85), [6667, 0, 3333], atol=200)
    np.testing.assert_array_equal(counts(1.0, 0.5), [10_000, 0, 0])
    assert counts(0.5, 1.0)[0] > 7500
    assert sampler(0.0, 1.0, None)(np.array([1.0, 5.0, 5.0])) == 1


def test_wrong_arguments_are_refused(decoder):
    state = decoder.new_state(capacity=8)
    sums = symshape.compile(models.running_sum(), {"N": (1, 2)}, stateful=True)
    cases = [
        (lambda: symshape.generate(decoder, state, []), "expected at least one"),
        (lambda: symshape.generate(decoder, state, [1], temperature=-1.0), "temperature = -1.0"),
        (lambda: symshape.generate(decoder, state, [1], temperature=float("nan")), "temperature = nan"),
        (lambda: symshape.generate(decoder, state, [1], top_p=0.0), "top_p = 0.0"),
        (lambda: symshape.generate(decoder, state, [1], max_tokens=-1), "max_tokens = -1"),
        (lambda: symshape.generate(decoder, None, [1]), "expected a symshape.State"),
        (lambda: symshape.generate(sums, sums.new_state(), [1]), "keeps no keys and values"),
    ]
    for call, message in cases:
        with pytest.raises(symshape.UsageError, match=message):
            call()
    with pytest.raises(symshape.CallError, match="9 more tokens: the state has place for 8 after its 0"):
        next(symshape.generate(decoder, state, range(9)))
    assert state.length == 0
    assert list(symshape.generate(decoder, state, [1], max_tokens=0)) == []
