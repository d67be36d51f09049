"""Real clients call the service: health, metadata, all forms of tensors, batches of mixed sizes, and a stop under load."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from service import CHANNELS, Service, compile_block, example

SIZES = [(1, 1), (1, 2), (3, 33), (15, 127), (16, 128)]


@pytest.fixture(scope="module")
def artefact(tmp_path_factory):
    return compile_block(tmp_path_factory.mktemp("model"))


def infer(module, client, x, **options):
    tensor = module.InferInput("x", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x)
    return client.infer("block", [tensor], **options).as_numpy("y")


def test_health(protocol):
    _, client = protocol
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("block") and client.is_model_ready("block", "1")


def test_metadata_has_minus_one_for_symbols(protocol):
    module, client = protocol
    server, model = client.get_server_metadata(), client.get_model_metadata("block")
    if module is tritonclient.grpc:
        from google.protobuf.json_format import MessageToDict

        server, model = MessageToDict(server), MessageToDict(model)
    assert server["name"] == "symshape-serve" and "binary_tensor_data" in server["extensions"]
    assert (model["name"], model["versions"]) == ("block", ["1"])
    for tensor, name in ((model["inputs"][0], "x"), (model["outputs"][0], "y")):
        assert (tensor["name"], tensor["datatype"]) == (name, "FP32")
        assert [int(dim) for dim in tensor["shape"]] == [-1, -1, CHANNELS]


def test_ranges_are_in_the_parameters(service):
    client = tritonclient.http.InferenceServerClient(service.http)
    model = client.get_model_metadata("block")
    symbols = model["parameters"]["symbols"]
    assert symbols["N"] == {"min": 1, "max": 16, "range": "1..=16"}
    assert symbols["S"] == {"min": 1, "max": 128, "range": "1..=128"}
    assert model["inputs"][0]["parameters"]["dims"] == ["N", "S", "64"]


@pytest.mark.parametrize("rows,length", SIZES)
def test_results_have_the_bits_of_the_model(protocol, alone, rows, length):
    module, client = protocol
    x = example(rows, length)
    np.testing.assert_array_equal(infer(module, client, x), alone(x))


def test_tensors_as_text(service, alone):
    x = example(2, 5)
    tensor = tritonclient.http.InferInput("x", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x, binary_data=False)
    output = tritonclient.http.InferRequestedOutput("y", binary_data=False)
    client = tritonclient.http.InferenceServerClient(service.http)
    result = client.infer("block", [tensor], outputs=[output], request_id="text", model_version="1")
    assert result.get_response()["id"] == "text"
    np.testing.assert_array_equal(result.as_numpy("y"), alone(x))

    nested = {"inputs": [{"name": "x", "shape": x.shape, "datatype": "FP32", "data": x.tolist()}]}
    status, response = service.post(json.dumps(nested).encode())
    assert status == 200 and response["outputs"][0]["shape"] == [2, 5, CHANNELS]
    np.testing.assert_array_equal(np.float32(response["outputs"][0]["data"]), alone(x).ravel())


def test_typed_contents_over_grpc(service, alone):
    from tritonclient.grpc import service_pb2, service_pb2_grpc
    import grpc

    x = example(1, 3)
    request = service_pb2.ModelInferRequest(model_name="block")
    tensor = request.inputs.add(name="x", datatype="FP32", shape=x.shape)
    tensor.contents.fp32_contents.extend(x.ravel())
    with grpc.insecure_channel(service.grpc) as channel:
        response = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    y = np.frombuffer(response.raw_output_contents[0], np.float32)
    np.testing.assert_array_equal(y, alone(x).ravel())


def test_mixed_sizes_share_batches(artefact, alone):
    """Requests of two lengths from both protocols; a long deadline shows that they are gathered."""
    sizes = [(1 + idx % 2, (7, 12)[idx // 2 % 2]) for idx in range(64)]
    with Service(artefact, "--deadline-us", "50000") as service:
        clients = threading.local()

        def call(idx):
            module = (tritonclient.http, tritonclient.grpc)[idx % 3 == 0]
            if not hasattr(clients, module.__name__):
                address = service.http if module is tritonclient.http else service.grpc
                setattr(clients, module.__name__, module.InferenceServerClient(address))
            x = example(*sizes[idx], seed=idx)
            return x, infer(module, getattr(clients, module.__name__), x)

        with ThreadPoolExecutor(32) as pool:
            for x, y in pool.map(call, range(64)):
                np.testing.assert_array_equal(y, alone(x))
        assert service.metric("symshape_rows_total") == sum(rows for rows, _ in sizes)
        assert service.metric("symshape_batches_total") <= 32
        assert service.metric("symshape_requests_total") == 64
        assert service.metric("symshape_request_seconds_count") == 64
        assert service.metric("symshape_requests_running") == 0


def test_too_many_requests_are_refused_and_retried(artefact, alone):
    options = ("--max-requests", "2", "--deadline-us", "20000")
    with Service(artefact, *options) as service:
        x = example(1, 7)
        body = {"inputs": [{"name": "x", "shape": x.shape, "datatype": "FP32", "data": x.ravel().tolist()}]}
        body = json.dumps(body).encode()

        def call(_):
            n_refused = 0
            while (answer := service.post(body))[0] == 503:
                assert "too many requests" in answer[1]["error"]
                n_refused += 1
                time.sleep(0.01)
            return n_refused, answer

        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(call, range(36)))
        assert sum(refused for refused, _ in answers) > 0
        for _, (status, response) in answers:
            assert status == 200
            np.testing.assert_array_equal(np.float32(response["outputs"][0]["data"]), alone(x).ravel())


def test_no_request_is_lost_when_the_service_stops(artefact, alone):
    """Clients send requests until the service has stopped. Each request that it began has been answered."""
    x = example(1, 31)
    expected = alone(x)
    answered, lost = {"http": 0, "grpc": 0}, []
    count = threading.Lock()
    with Service(artefact) as service:

        def loop(protocol):
            module = getattr(tritonclient, protocol)
            client = module.InferenceServerClient(getattr(service, protocol))
            while True:
                try:
                    np.testing.assert_array_equal(infer(module, client, x), expected)
                except ConnectionRefusedError:
                    return
                except tritonclient.utils.InferenceServerException as error:
                    # The status of a call that never began.
                    if error.status() != "StatusCode.UNAVAILABLE":
                        lost.append(f"{protocol}: {error}")
                    return
                except Exception as error:
                    lost.append(f"{protocol}: {error!r}")
                    return
                with count:
                    answered[protocol] += 1

        threads = [threading.Thread(target=loop, args=[protocol]) for protocol in ["http", "grpc"] * 6]
        [thread.start() for thread in threads]
        time.sleep(1)
        service.terminate()
        [thread.join() for thread in threads]
        assert service.wait() == 0
    assert lost == []
    last = service.log[-1]
    assert last["message"] == "stopped" and min(answered.values()) > 0
    assert answered == {"http": last["http_answered"], "grpc": last["grpc_answered"]}


def test_not_ready_while_it_stops(artefact):
    with Service(artefact, "--stop-delay-seconds", "2") as service:
        service.terminate()
        time.sleep(0.5)
        client = tritonclient.http.InferenceServerClient(service.http)
        assert client.is_server_live() and not client.is_server_ready()
        assert infer(tritonclient.http, client, example(1, 1)).shape == (1, 1, CHANNELS)
        assert service.wait() == 0
