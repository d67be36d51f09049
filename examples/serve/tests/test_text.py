"""The client of OpenAI calls the service: completions, chats, streams, many answers at once, and bad requests."""

import json
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import onnx
import openai
import pytest
from service import PROGRAM, SYMC, Service, load_file

models = load_file("python/tests/models.py")

# Token 0 begins and token 1 ends a sequence.
WORDS = ["<s>", "</s>", "the", "cat", "dog", "sat", "ran", "on", "mat", "and", "then"]
MAX_TOKENS = 600
SETTINGS = {"start": "<s>", "before": " ", "after": " ", "next": " </s>", "dims": []}


def prepare(folder, end):
    """A decoder with random weights, and a tokenizer of whole words."""
    onnx.save(models.decoder(), folder / "decoder.onnx")
    # Steps of more than four answers take several calls.
    dims = ["--dim", "B=1..4", "--dim", "S=1..7", "--dim", f"P=0..{MAX_TOKENS - 1}"]
    command = [SYMC, "compile", folder / "decoder.onnx", *dims, "--stateful", "-o", folder / "decoder.so"]
    subprocess.run(command, check=True, capture_output=True)
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": {word: k for k, word in enumerate(WORDS)}, "unk_token": "<s>"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    system = ["<s> then ", " and"]
    (folder / "settings.json").write_text(json.dumps({**SETTINGS, "end": end, "system": system}))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("decoder"), ["</s>"])


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """The same decoder, whose answers only end when they are long enough."""
    return prepare(tmp_path_factory.mktemp("endless"), [])


def serve(folder, *options):
    return Service(folder / "decoder.so", "--text", folder, *options, protocols=["http"])


def client_of(service, **options):
    return openai.OpenAI(base_url=f"http://{service.http}/v1", api_key="none", max_retries=0, **options)


@pytest.fixture(scope="module")
def client(folder):
    with serve(folder) as service:
        yield client_of(service)


def greedy(prompt, count, end=1):
    """The words of the most probable tokens after a text, and why they end."""
    tokens = models.greedy([WORDS.index(word) for word in prompt.split()], count, end)
    return " ".join(WORDS[token] for token in tokens), "length" if len(tokens) == count else "stop"


PROMPTS = ["the cat", "the dog sat on the mat and then the cat", "ran", "on mat on mat on mat on mat on"]


def test_models_are_listed(client):
    (model,) = client.models.list().data
    assert model.id == "decoder" and client.models.retrieve("decoder").owned_by == "symshape"
    with pytest.raises(openai.NotFoundError, match="no model `other`"):
        client.models.retrieve("other")


@pytest.mark.parametrize("prompt", PROMPTS)
def test_completion_is_the_most_probable_text(client, prompt):
    expected, reason = greedy(prompt, 12)
    ids = [WORDS.index(word) for word in prompt.split()]
    for form in (prompt, [prompt], ids, [ids]):
        reply = client.completions.create(model="decoder", prompt=form, max_tokens=12, temperature=0)
        (choice,) = reply.choices
        assert choice.text.split() == expected.split() and choice.finish_reason == reason
        assert reply.usage.prompt_tokens == len(ids)
        assert reply.usage.completion_tokens == len(expected.split())


def test_streamed_text_is_the_same(client):
    for prompt in PROMPTS:
        expected, reason = greedy(prompt, 12)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        stream = client.completions.create(model="decoder", prompt=prompt, max_tokens=12, temperature=0, **options)
        *chunks, usage = stream
        assert "".join(chunk.choices[0].text for chunk in chunks).split() == expected.split()
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == [reason]
        assert usage.choices == [] and usage.usage.completion_tokens == len(expected.split())


def test_chat_has_turns(client):
    messages = [{"role": "user", "content": "the cat"}]
    text = "<s> the cat"
    for message in ("the dog", "ran on"):
        expected, reason = greedy(text, 8)
        reply = client.chat.completions.create(model="decoder", messages=messages, max_tokens=8, temperature=0)
        (choice,) = reply.choices
        assert choice.message.role == "assistant" and choice.finish_reason == reason
        assert choice.message.content.split() == expected.split()
        stream = client.chat.completions.create(
            model="decoder", messages=messages, max_completion_tokens=8, temperature=0, stream=True
        )
        first, *rest = stream
        assert first.choices[0].delta.role == "assistant"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in rest) == choice.message.content
        messages += [choice.message, {"role": "user", "content": message}]
        text = f"{text} {choice.message.content} </s> {message}"


def test_system_message_replaces_the_start(client):
    messages = [{"role": "system", "content": "sat"}, {"role": "user", "content": "the cat"}]
    reply = client.chat.completions.create(model="decoder", messages=messages, max_tokens=6, temperature=0)
    expected, _ = greedy("<s> then sat and the cat", 6)
    assert reply.choices[0].message.content.split() == expected.split()


def test_many_answers_at_once_are_those_of_each_alone(folder):
    prompts = [" ".join(WORDS[2 + (k * j) % 9] for j in range(1 + k % 13)) for k in range(40)]
    with serve(folder, "--sequences", "5") as service:
        client = client_of(service)

        def answer(prompt):
            return client.completions.create(model="decoder", prompt=prompt, max_tokens=20, temperature=0).choices[0]

        with ThreadPoolExecutor(16) as pool:
            choices = list(pool.map(answer, prompts))
        assert service.metric("symshape_batches_total") < service.metric("symshape_rows_total")
        assert service.stop() == 0
    for prompt, choice in zip(prompts, choices):
        text, reason = greedy(prompt, 20)
        assert choice.text.split() == text.split() and choice.finish_reason == reason


def test_stop_strings_end_the_text(client):
    prompt = max(PROMPTS, key=lambda prompt: len(set(greedy(prompt, 12)[0].split())))
    words = greedy(prompt, 12)[0].split()
    stop = words[-1]
    choice = client.completions.create(model="decoder", prompt=prompt, max_tokens=12, temperature=0, stop=stop).choices[0]
    assert choice.text.split() == words[: words.index(stop)] and choice.finish_reason == "stop"


def test_seeds_give_the_same_text(client):
    def text(seed):
        options = {"temperature": 2.0, "seed": seed, "max_tokens": 40}
        return client.completions.create(model="decoder", prompt="the cat", **options).choices[0].text

    assert text(7) == text(7)
    assert len({text(seed) for seed in range(6)}) > 1


def test_bad_requests_are_refused_by_name(client):
    user = [{"role": "user", "content": "the cat"}]
    long = "the " * MAX_TOKENS
    calls = [
        (lambda: client.completions.create(model="other", prompt="the"), openai.NotFoundError, "no model `other`"),
        (lambda: client.completions.create(model="decoder", prompt=""), openai.BadRequestError, "0 tokens"),
        (lambda: client.completions.create(model="decoder", prompt=long), openai.BadRequestError, f"{MAX_TOKENS} tokens"),
        (lambda: client.completions.create(model="decoder", prompt=["a", "b"]), openai.BadRequestError, "one prompt"),
        (lambda: client.completions.create(model="decoder", prompt=[99]), openai.BadRequestError, "`prompt`"),
        (lambda: client.completions.create(model="decoder", prompt="the", n=2), openai.BadRequestError, "`n` = 2"),
        (lambda: client.completions.create(model="decoder", prompt="the", temperature=9), openai.BadRequestError, "`temp"),
        (lambda: client.completions.create(model="decoder", prompt="the", logprobs=3), openai.BadRequestError, "`logprobs`"),
        (lambda: client.chat.completions.create(model="decoder", messages=[]), openai.BadRequestError, "last message"),
        (
            lambda: client.chat.completions.create(model="decoder", messages=[*user, *user]),
            openai.BadRequestError,
            "message 1 can't be of role `user`",
        ),
        (
            lambda: client.chat.completions.create(model="decoder", messages=user, extra_body={"top_k": 3}),
            openai.BadRequestError,
            "unknown field `top_k`",
        ),
    ]
    for call, kind, message in calls:
        with pytest.raises(kind, match=message):
            call()


def test_options_without_effect_are_refused(folder):
    artefact = folder / "decoder.so"
    batches = [["--max-rows", "2"], ["--deadline-us", "9"], ["--calls", "2"], ["--arena-bytes", "9"]]
    cases = [["--text", folder, *option] for option in [["--grpc", "127.0.0.1:0"], *batches]]
    for options in [*cases, ["--sequences", "2"]]:
        result = subprocess.run([PROGRAM, artefact, *options], capture_output=True, text=True, timeout=60)
        assert result.returncode == 2 and options[-2] in result.stderr and "--text" in result.stderr


def test_malformed_bodies_are_refused(folder):
    with serve(folder, "--max-body-bytes", "2000") as service:
        cases = [(b"{", 400), (b"[]", 400), (b'{"model": 3}', 400), (b"{" + b" " * 3000, 413)]
        for body, expected in cases:
            status, reply = service.post(body, path="/v1/completions")
            assert status == expected and reply["error"]["message"] and reply["error"]["type"] == "invalid_request_error"
        assert service.post(b"{}", path="/v1/embeddings")[0] == 404


def test_a_client_that_leaves_frees_its_sequence(endless):
    with serve(endless, "--sequences", "1") as service:
        client = client_of(service)
        for _ in range(3):
            stream = client.completions.create(model="decoder", prompt="the", max_tokens=590, temperature=0, stream=True)
            next(stream)
            stream.close()
        choice = client.completions.create(model="decoder", prompt="the", max_tokens=3, temperature=0).choices[0]
        assert choice.text.split() == greedy("the", 3, end=None)[0].split()


def test_answers_end_when_the_sequence_is_full(endless):
    with serve(endless) as service:
        reply = client_of(service).completions.create(model="decoder", prompt="the cat", max_tokens=9999, temperature=0)
        assert reply.choices[0].finish_reason == "length"
        # The token after the last place is known too.
        assert reply.usage.total_tokens == MAX_TOKENS + 1


def test_too_many_requests_are_refused(endless):
    with serve(endless, "--sequences", "1", "--max-requests", "1") as service:
        client = client_of(service)
        is_refused = threading.Event()
        deadline = time.monotonic() + 60

        def ask(model):
            while not is_refused.is_set() and time.monotonic() < deadline:
                try:
                    client.completions.create(model=model, prompt="the", max_tokens=590, temperature=0)
                except openai.NotFoundError:
                    assert model == "other"
                except openai.InternalServerError as error:
                    assert error.status_code == 503 and error.response.headers["retry-after"] == "1"
                    # If too many requests run, others are refused before they are read.
                    if model == "other":
                        is_refused.set()

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(ask, ["decoder", "decoder", "decoder", "other"]))
        assert is_refused.is_set()


def test_stop_lets_answers_end(endless):
    service = serve(endless, "--stop-delay-seconds", "0.2")
    client = client_of(service)
    texts, failures = [], []
    is_stopping = threading.Event()

    def ask():
        while not is_stopping.is_set():
            try:
                reply = client.completions.create(model="decoder", prompt="the", max_tokens=200, temperature=0)
                texts.append(len(reply.choices[0].text.split()))
            except openai.OpenAIError as error:
                failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    while len(texts) < 8:
        time.sleep(0.01)
    service.terminate()
    time.sleep(0.1)
    is_stopping.set()
    for thread in threads:
        thread.join()
    assert service.wait() == 0
    assert not failures and set(texts) == {200}
    assert service.log[-1]["message"] == "stopped"
