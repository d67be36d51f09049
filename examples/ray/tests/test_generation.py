"""Replies are streamed: many at once have the tokens of each alone, and errors reach the caller."""

import importlib.util
import sys
from pathlib import Path

import pytest
import ray
from ray import serve

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "examples/ray"))
import generation  # noqa: E402
import node_file  # noqa: E402

import symshape  # noqa: E402


def load_models():
    """The small models of the Python package's tests."""
    spec = importlib.util.spec_from_file_location("models", ROOT / "python/tests/models.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


models = load_models()


@pytest.fixture(scope="module")
def handle(tmp_path_factory):
    path = tmp_path_factory.mktemp("decoder") / "decoder.so"
    symshape.compile(models.decoder(), {"B": 1, "S": (1, 4), "P": (0, 60)}, stateful=True).save(path)
    # The workers import the modules of the example, and the package that this process has.
    folders = [ROOT / "examples/ray", Path(symshape.__file__).parents[1]]
    environment = {"env_vars": {"PYTHONPATH": ":".join(map(str, folders))}}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env=environment, log_to_driver=False)
    # Handles need no proxy.
    serve.start(proxy_location="Disabled")
    app = generation.Generator.bind(node_file.publish(path), capacity=40)
    yield serve.run(app, route_prefix=None).options(stream=True)
    serve.shutdown()
    ray.shutdown()


def test_replies_are_streamed(handle):
    prompts = [[1 + (3 * k) % 10, k % 11, 4][: 1 + k % 3] for k in range(12)]
    replies = [handle.remote(prompt, max_tokens=15) for prompt in prompts]
    for prompt, reply in zip(prompts, replies):
        assert list(reply) == models.greedy(prompt, 15)


def test_errors_reach_the_caller(handle):
    with pytest.raises(Exception, match="place for 40"):
        list(handle.remote(list(range(10)) * 5))
    with pytest.raises(Exception, match="expected at least one"):
        list(handle.remote([]))
    assert list(handle.remote([3], max_tokens=2)) == models.greedy([3], 2)
