"""A ragged model: real clients send rows of sequences and their offsets, and requests of mixed lengths share calls."""

import json
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
import tritonclient.grpc
import tritonclient.http
from service import SYMC, Service, load_file
from tritonclient.utils import InferenceServerException

SEQUENCES, LENGTH = 16, 40
BATCHES = [[1], [2], [LENGTH], [1] * SEQUENCES, [LENGTH] * 4, [LENGTH, 1, 1, 1, 2], [3, 7, 39, 12]]


@pytest.fixture(scope="module")
def artefact(tmp_path_factory):
    """The encoder of the tests of Python, ids: i64[T]; hidden: f32[T, 8] and pooled: f32[N, 8]."""
    folder = tmp_path_factory.mktemp("model")
    onnx.save(load_file("python/tests/models.py").encoder(), folder / "encoder.onnx")
    command = [SYMC, "compile", folder / "encoder.onnx", "--ragged", "S", "--max-rows", "300"]
    command += ["--dim", f"N=1..{SEQUENCES}", "--dim", f"S=1..{LENGTH}", "-o", folder / "encoder.so"]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "encoder.so"


@pytest.fixture(scope="module")
def service(service):
    yield service
    assert service.metric("symshape_requests_running") == 0


def call(lengths, seed=0):
    """The inputs of a call."""
    ids = np.random.default_rng(seed).integers(0, 11, sum(lengths))
    return {"ids": ids, "offsets": np.cumsum([0, *lengths])}


def infer(module, client, inputs, datatype="INT64"):
    tensors = []
    for name, array in inputs.items():
        tensors.append(module.InferInput(name, list(array.shape), datatype if name == "offsets" else "INT64"))
        tensors[-1].set_data_from_numpy(array)
    result = client.infer("encoder", tensors)
    return {name: result.as_numpy(name) for name in ("hidden", "pooled")}


def assert_same(outputs, expected):
    for name, array in expected.items():
        np.testing.assert_array_equal(outputs[name], array)


@pytest.mark.parametrize("lengths", BATCHES, ids=str)
def test_results_have_the_bits_of_each_sequence_alone(protocol, alone, lengths):
    module, client = protocol
    inputs = call(lengths)
    outputs = infer(module, client, inputs)
    assert_same(outputs, alone.run(inputs))
    for k, (begin, end) in enumerate(zip(inputs["offsets"], inputs["offsets"][1:])):
        one = alone.run({"ids": inputs["ids"][begin:end], "offsets": np.array([0, end - begin])})
        np.testing.assert_array_equal(outputs["hidden"][begin:end], one["hidden"])
        np.testing.assert_array_equal(outputs["pooled"][k], one["pooled"][0])


def test_mixed_lengths_share_calls_within_a_budget_of_tokens(artefact, alone):
    """Requests of all lengths from both protocols; a long deadline shows that they are gathered."""
    requests = [call([1 + (7 * idx) % LENGTH, 1 + idx % 3][: 1 + idx % 2], seed=idx) for idx in range(64)]
    with Service(artefact, "--deadline-us", "50000", "--max-rows", "120") as service:
        clients = threading.local()

        def run(idx):
            module = (tritonclient.http, tritonclient.grpc)[idx % 3 == 0]
            if not hasattr(clients, module.__name__):
                address = service.http if module is tritonclient.http else service.grpc
                setattr(clients, module.__name__, module.InferenceServerClient(address))
            return infer(module, getattr(clients, module.__name__), requests[idx])

        with ThreadPoolExecutor(32) as pool:
            for request, outputs in zip(requests, pool.map(run, range(64))):
                assert_same(outputs, alone.run(request))
        rows = sum(len(request["ids"]) for request in requests)
        assert service.metric("symshape_rows_total") == rows
        # Padded batches would have one length each, and the requests have 40.
        assert rows / 120 <= service.metric("symshape_batches_total") <= 36
        assert service.metric("symshape_requests_total") == 64


def test_contract_has_the_offsets_and_the_lengths(service):
    model = tritonclient.http.InferenceServerClient(service.http).get_model_metadata("encoder")
    assert [(tensor["name"], tensor["datatype"], tensor["shape"]) for tensor in model["inputs"]] == [
        ("ids", "INT64", [-1]),
        ("offsets", "INT64", [-1]),
    ]
    parameters = model["parameters"]
    assert parameters["symbols"]["N"]["max"] == SEQUENCES and parameters["symbols"]["T"]["max"] == 300
    assert parameters["max_rows"] == 300
    assert parameters["ragged"] == {
        "offsets": "offsets",
        "length": {"name": "S", "min": 1, "max": LENGTH, "range": f"1..={LENGTH}"},
    }


WRONG = {
    "not from 0": ([1, 3], 3, "offset 0 of the request is 1"),
    "more rows than sent": ([0, 4], 3, "offset 1 of the request is 4"),
    "fewer rows than sent": ([0, 2], 3, "offset 1 of the request is 2"),
    "an empty sequence": ([0, 2, 2, 3], 3, "S is 0"),
    "not increasing": ([0, 3, 1, 3], 3, "S is -2"),
    "negative": ([0, -1, 3], 3, "S is -1"),
    "overflowing": ([0, -(1 << 63), 3], 3, "S is -9223372036854775808"),
    "too long": ([0, LENGTH + 1], LENGTH + 1, f"S is {LENGTH + 1}"),
    "too many rows": ([*range(0, 320, 32)], 288 + 32, "T"),
    "too many sequences": ([*range(SEQUENCES + 2)], SEQUENCES + 1, "N = 17"),
    "no sequence": ([0], 3, "N"),
    "no offsets": ([], 3, "N"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_offsets_are_refused_by_name(protocol, name):
    module, client = protocol
    offsets, rows, words = WRONG[name]
    inputs = {"ids": np.ones(rows, np.int64), "offsets": np.array(offsets, np.int64)}
    with pytest.raises(InferenceServerException, match=words) as error:
        infer(module, client, inputs)
    assert error.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    # The service goes on.
    infer(module, client, call([2, 3]))


def test_other_wrong_inputs_are_refused_by_name(protocol):
    module, client = protocol
    narrow = {"ids": np.ones(3, np.int64), "offsets": np.array([0, 3], np.int32)}
    with pytest.raises(InferenceServerException, match="`offsets` has the datatype INT64; got INT32"):
        infer(module, client, narrow, "INT32")
    with pytest.raises(InferenceServerException, match="input `offsets` is missing"):
        infer(module, client, {"ids": np.ones(3, np.int64)})
    padded = {"ids": np.ones((1, 3), np.int64), "offsets": np.array([0, 3])}
    with pytest.raises(InferenceServerException, match="`ids` has 1 ax"):
        infer(module, client, padded)
    unknown = {"ids": np.array([1, 99, 1]), "offsets": np.array([0, 3])}
    with pytest.raises(InferenceServerException, match="99"):
        infer(module, client, unknown)


def test_offsets_as_text(service, alone):
    inputs = call([3, 1, 7])
    tensors = [
        {"name": name, "shape": array.shape, "datatype": "INT64", "data": array.tolist()}
        for name, array in inputs.items()
    ]
    status, response = service.post(json.dumps({"inputs": tensors}).encode(), path="/v2/models/encoder/infer")
    assert status == 200
    outputs = {tensor["name"]: np.float32(tensor["data"]).reshape(tensor["shape"]) for tensor in response["outputs"]}
    assert_same(outputs, alone.run(inputs))
