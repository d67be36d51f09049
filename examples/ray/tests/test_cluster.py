"""Two nodes on this machine: each row arrives once, also if a node dies; each node has one file of the artefact."""

import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "examples/ray"))
sys.path.append(str(ROOT / "python/tests"))
import embed  # noqa: E402
import models  # noqa: E402
import node_file  # noqa: E402
import offline  # noqa: E402

N_ROWS = 4000
BLOCK = ROOT / "compiler/examples/block.onnx"
# The workers of the cluster import the modules of the example too.
ENVIRONMENT = {"env_vars": {"PYTHONPATH": f"{ROOT / 'examples/ray'}:{Path(__file__).parent}"}}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows"
    offline.write_example(path, N_ROWS, n_files=16)
    return path


@pytest.fixture(scope="module")
def artefact(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "block.so"
    offline.compile_model(BLOCK, path)
    return path


@pytest.fixture(scope="module")
def cluster():
    """The last test ends its second node."""
    # Each node has places for two of the slow actors, and one more core for a task that reads.
    places = {"resources": {"place": 2}}
    head = {"num_cpus": 3, **places, "object_store_memory": 200 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.second = cluster.add_node(num_cpus=3, **places, object_store_memory=200 << 20)
    ray.init(address=cluster.address, runtime_env=ENVIRONMENT, log_to_driver=False)
    cluster.wait_for_nodes()
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def expected(rows, artefact):
    """The results of the model alone, by id."""
    import pyarrow.parquet
    import symshape

    model = symshape.load(str(artefact))
    table = pyarrow.parquet.read_table(rows)
    x = np.stack(table["x"].to_numpy()).reshape(-1, offline.LENGTH, offline.CHANNELS)
    parts = [model(part).mean(axis=1) for part in np.array_split(x, len(x) // 100)]
    return dict(zip(table["id"].to_pylist(), np.concatenate(parts)))


def check(results, rows, artefact):
    """Each row is there once, with the bits of the model alone."""
    wanted = expected(rows, artefact)
    ids = [row["id"] for row in results]
    assert sorted(ids) == list(range(N_ROWS))
    for row in results:
        np.testing.assert_array_equal(row["y"], wanted[row["id"]])


class Slow(offline.Symshape):
    """Takes long enough for a node to die in the middle, and leaves a mark for each block that it has begun."""

    def __init__(self, published, marks):
        super().__init__(published)
        self.marks = Path(marks)

    def __call__(self, block):
        node = ray.get_runtime_context().get_node_id()
        (self.marks / f"{node}-{time.monotonic_ns()}").touch()
        # The actors of one node may be ready long before those of the other, and would do all the work.
        deadline = time.monotonic() + 60
        while len({mark.name.split("-")[0] for mark in self.marks.iterdir()}) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
        return super().__call__(block)


def test_results_in_parquet(cluster, rows, artefact, tmp_path):
    published = node_file.publish(artefact)
    offline.pipeline(ray.data.read_parquet(str(rows)), offline.Symshape, published, 2).write_parquet(str(tmp_path))
    check(ray.data.read_parquet(str(tmp_path)).take_all(), rows, artefact)
    files = {node_file.local(published) for _ in range(2)}
    assert len(files) == 1


def encoder(path):
    """An encoder with the names of exports by `optimum`."""
    model = models.encoder()
    names = {"ids": embed.TOKENS, "mask": embed.MASK}
    for port in model.graph.input:
        port.name = names.get(port.name, port.name)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    path.write_bytes(model.SerializeToString())
    return path


def test_texts_are_embedded_without_padding(cluster, tmp_path):
    import pyarrow.parquet
    import symshape

    model = encoder(tmp_path / "encoder.onnx")
    embed.write_example(tmp_path / "texts", 300, vocabulary=11, n_files=4)
    embed.compile_model(model, tmp_path / "encoder.so")
    alone = symshape.load(str(tmp_path / "encoder.so"))
    texts = pyarrow.parquet.read_table(tmp_path / "texts").to_pylist()
    rows = {}
    for actor, published in [(embed.Symshape, tmp_path / "encoder.so"), (embed.OnnxRuntime, model)]:
        data = ray.data.read_parquet(str(tmp_path / "texts"))
        blocks = embed.pipeline(data, actor, node_file.publish(published), 2).materialize()
        assert blocks.num_blocks() > 1, "one actor did all the work"
        results = blocks.take_all()
        rows[actor] = {row["id"]: row["embedding"] for row in results}
        assert sorted(row["id"] for row in results) == list(range(300))
    for text in texts:
        tokens = np.array(text["tokens"], np.int64)
        hidden = next(iter(alone.run({embed.TOKENS: tokens}, lengths=[len(tokens)]).values()))
        block = {"id": [text["id"]], "tokens": [tokens]}
        expected = embed.embeddings(block, hidden, [len(tokens)])["embedding"][0]
        np.testing.assert_array_equal(rows[embed.Symshape][text["id"]], expected)
        np.testing.assert_allclose(rows[embed.OnnxRuntime][text["id"]], expected, rtol=1e-4, atol=1e-5)


def test_requests_share_calls(cluster, artefact):
    from ray import serve

    import online

    import symshape

    alone = symshape.load(str(artefact))
    handle = serve.run(online.Predictor.bind(node_file.publish(artefact)), route_prefix=None)
    random = np.random.default_rng(2)
    requests = [random.standard_normal((1 + idx % 3, 32, 64), dtype=np.float32) for idx in range(64)]
    bad = [np.zeros((1, 31, 64), np.float32), np.zeros((1, 32, 64), np.float64), np.zeros((1, 32), np.float32)]
    answers = [handle.remote(x) for x in requests + bad]
    for x, answer in zip(requests, answers):
        np.testing.assert_array_equal(answer.result(), alone(x))
    for answer in answers[len(requests) :]:
        with pytest.raises(Exception):
            answer.result()
    assert handle.calls.remote().result() < len(requests)
    np.testing.assert_array_equal(handle.remote(requests[0]).result(), alone(requests[0]))
    serve.shutdown()


def test_every_row_arrives_once_when_a_node_dies(cluster, rows, artefact, tmp_path):
    published = node_file.publish(artefact)
    pool = ray.data.ActorPoolStrategy(size=4)
    data = ray.data.read_parquet(str(rows), override_num_blocks=16).map_batches(
        Slow, fn_constructor_args=[published, str(tmp_path)], batch_size=100, compute=pool, num_cpus=1,
        resources={"place": 1},
    )
    dead = cluster.second.node_id
    killed = threading.Event()

    def kill():
        while not any(mark.name.startswith(dead) for mark in tmp_path.iterdir()):
            time.sleep(0.05)
        cluster.remove_node(cluster.second, allow_graceful=False)
        killed.set()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    results = data.take_all()
    assert killed.is_set()
    n_begun = len(list(tmp_path.iterdir()))
    assert n_begun > N_ROWS // 100, "no block ran twice, so the node died too late"
    check(results, rows, artefact)
