"""Generation of text: tokens from a decoder that keeps its cache as state, one after another."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Literal

import numpy as np

from .errors import CallError, UsageError
from .model import Model
from .state import State

#: Why a generation ended: a stop token, ``max_tokens``, or no place for more tokens.
Reason = Literal["stop", "length", "full"]


def generate(
    model: Model,
    state: State,
    tokens: Iterable[int],
    *,
    max_tokens: int | None = None,
    temperature: float = 0.0,
    top_p: float = 1.0,
    stop: Iterable[int] = (),
    seed: int | None = None,
    choose: Callable[[np.ndarray], int] | None = None,
) -> Generator[int, None, Reason]:
    """Reads tokens, and yields new ones as the model chooses them.

    The model is a decoder that was compiled with its cache as state. Its inputs are ``input_ids`` and, if it has them,
    ``attention_mask``, ``position_ids`` and ``cache_position``, as in exports of optimum; its output is ``logits``, or
    its only one. The prompt is read in calls of as many tokens as the contract allows.

    The next call reads on where this one ended. Each yielded token becomes part of the state when the following one is
    requested. After ``"stop"`` and ``"length"``, all of them are; after ``"full"``, the last one is not. A stop token
    is neither yielded nor read.

    Parameters
    ----------
    model : Model
    state : State
        A state of the model for one sequence. It keeps the tokens that were read before.
    tokens : iterable of int
        The prompt, or the next turn of a conversation: at least one token.
    max_tokens : int, optional
        The largest number of tokens to yield. The default is as many as the state has place for.
    temperature : float, optional
        0 takes the most probable token. Otherwise logits are divided by it, and a token is drawn.
    top_p : float, optional
        Draws are among the most probable tokens whose probabilities sum up to at least ``top_p``.
    stop : iterable of int, optional
        Tokens that end the generation.
    seed : int, optional
        The seed of the draws. Equal seeds give equal tokens.
    choose : callable, optional
        A function of the logits, ``float32[vocabulary]``, that returns the next token. It replaces ``temperature`` and
        ``top_p``.

    Returns
    -------
    generator of int
        It returns why it ended: ``"stop"``, ``"length"`` or ``"full"``.

    Raises
    ------
    UsageError
        The model is not such a decoder, or an argument is wrong.
    CallError
        The tokens don't fit the state, which is unchanged then; or the model refuses a call.

    Examples
    --------
    >>> state = model.new_state(capacity=1024)
    >>> for token in symshape.generate(model, state, tokenizer.encode("Hello").ids, stop=[eos]):
    ...     print(tokenizer.decode([token]), end="", flush=True)
    """
    prompt = [int(token) for token in tokens]
    if not prompt:
        raise UsageError("tokens: expected at least one")
    if max_tokens is not None and max_tokens < 0:
        raise UsageError(f"max_tokens = {max_tokens}: expected a number that is not negative")
    if choose is None:
        choose = sampler(temperature, top_p, seed)
    return _tokens(_Decoder(model, state), prompt, max_tokens, choose, frozenset(stop))


def _tokens(
    decoder: _Decoder,
    prompt: list[int],
    max_tokens: int | None,
    choose: Callable[[np.ndarray], int],
    stop: frozenset[int],
) -> Generator[int, None, Reason]:
    logits = decoder.read(prompt)
    count = 0
    while max_tokens is None or count < max_tokens:
        token = int(choose(logits))
        if token in stop:
            return "stop"
        yield token
        count += 1
        if decoder.place() == 0:
            return "full"
        logits = decoder.read([token])
    return "length"


def sampler(temperature: float, top_p: float, seed: int | None) -> Callable[[np.ndarray], int]:
    """The choice of a token from its logits."""
    if not temperature >= 0 or not 0 < top_p <= 1:
        raise UsageError(f"temperature = {temperature}, top_p = {top_p}: expected at least 0, and above 0 up to 1")
    if temperature == 0:
        return lambda logits: int(np.argmax(logits))
    rng = np.random.default_rng(seed)

    def choose(logits: np.ndarray) -> int:
        # The most probable token has weight 1, so no weight overflows.
        weights = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
        tokens = _nucleus(weights, top_p) if top_p < 1 else np.arange(len(weights))
        sums = np.cumsum(weights[tokens])
        place = np.searchsorted(sums, rng.random() * sums[-1], side="right")
        return int(tokens[min(place, len(tokens) - 1)])

    return choose


def _nucleus(weights: np.ndarray, top_p: float) -> np.ndarray:
    """The tokens with the largest weights, in descending order, that have at least ``top_p`` of the total."""
    total = weights.sum()
    # Tokens below this weight have less than `1 - top_p` of the total together: they are left out before the sort.
    least = (1 - top_p) * total / len(weights)
    # `~(<)` and not `>=`: if a logit is NaN, all tokens stay.
    tokens = np.flatnonzero(~(weights < least))
    tokens = tokens[np.argsort(-weights[tokens], kind="stable")]
    count = int(np.searchsorted(np.cumsum(weights[tokens]), top_p * total)) + 1
    return tokens[:count]


class _Decoder:
    """Calls of a decoder with one sequence: new tokens in, logits of the next token out."""

    # The inputs, as functions of the tokens, of the number of tokens before them, and of the element type.
    _INPUTS = {
        "input_ids": lambda tokens, past, dtype: np.array([tokens], dtype),
        "attention_mask": lambda tokens, past, dtype: np.ones((1, past + len(tokens)), dtype),
        "position_ids": lambda tokens, past, dtype: np.arange(past, past + len(tokens), dtype=dtype)[None],
        "cache_position": lambda tokens, past, dtype: np.arange(past, past + len(tokens), dtype=dtype),
    }

    def __init__(self, model: Model, state: State):
        contract = model.contract
        if not isinstance(state, State):
            raise UsageError(f"expected a symshape.State; got {type(state).__name__}")
        if contract.state_length is None:
            raise UsageError("the model keeps no keys and values as state: compile it with stateful=True")
        names = [tensor.name for tensor in contract.inputs]
        unknown = [name for name in names if name not in self._INPUTS]
        if unknown or "input_ids" not in names:
            problem = f"has an input `{unknown[0]}`" if unknown else "has no input `input_ids`"
            raise UsageError(f"the model is not a decoder of tokens: it {problem}")
        outputs = [tensor.name for tensor in contract.outputs]
        if "logits" not in outputs and len(outputs) != 1:
            names = ", ".join(outputs)
            raise UsageError(f"the model is not a decoder of tokens: no output is `logits`; it has {names}")

        self.model = model
        self.state = state
        self.dtypes = {tensor.name: tensor.dtype for tensor in contract.inputs}
        self.logits = "logits" if "logits" in outputs else outputs[0]
        highs = {symbol.name: symbol.hi for symbol in contract.symbols}
        new = next(tensor.dims[-1] for tensor in contract.inputs if tensor.name == "input_ids")
        if not new.isdigit() and new not in highs:
            raise UsageError(f"the model is not a decoder of tokens: `input_ids` has {new} tokens, not a symbol")
        # A state needs upper bounds of all its rows, so no bound here is `None`.
        self.chunk = int(new) if new.isdigit() else highs[new]
        # The last call may begin where the largest past ends.
        self.end = contract.state_length.hi + 1

    def place(self) -> int:
        """The number of tokens that the state can still take."""
        return max(0, min(self.state.capacity, self.end) - self.state.length)

    def read(self, tokens: list[int]) -> np.ndarray:
        """Appends tokens to the sequence, and returns the logits of the next one."""
        place = self.place()
        if len(tokens) > place:
            raise CallError(f"{len(tokens)} more tokens: the state has place for {place} after its {self.state.length}")
        logits = np.empty(0, np.float32)
        for first in range(0, len(tokens), self.chunk):
            logits = self._call(tokens[first : first + self.chunk])
        return logits

    def _call(self, tokens: list[int]) -> np.ndarray:
        past = self.state.length
        inputs = {name: self._INPUTS[name](tokens, past, dtype) for name, dtype in self.dtypes.items()}
        logits = self.model.run(inputs, state=self.state)[self.logits]
        return logits.reshape(-1, logits.shape[-1])[-1].astype(np.float32)
