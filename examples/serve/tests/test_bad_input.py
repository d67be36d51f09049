"""Bad requests and bad clients: each gets an error of the protocol's form, and the service goes on."""

import json
import socket
import struct
import time

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from service import Service, compile_block, example, load_alone
from tritonclient.utils import InferenceServerException


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    artefact = compile_block(tmp_path_factory.mktemp("model"))
    model = load_alone(artefact)
    with Service(artefact, "--body-seconds", "1") as service:
        before = service.memory()
        yield service
        # Whatever the tests sent, the service still answers, and has kept none of it.
        x = example(1, 9)
        status, response = service.post(request(data=x.ravel().tolist(), shape=x.shape))
        assert status == 200
        np.testing.assert_array_equal(np.float32(response["outputs"][0]["data"]), model(x).ravel())
        assert service.memory() - before < 64 << 20
        assert service.metric("symshape_requests_running") == 0
        assert service.stop() == 0


def request(**changes):
    """A request of one row of one position, with changes of its input."""
    tensor = {"name": "x", "shape": [1, 1, 64], "datatype": "FP32", "data": [0.5] * 64}
    tensor |= changes
    return json.dumps({"inputs": [{key: value for key, value in tensor.items() if value is not None}]}).encode()


def binary(size, length=None, shape=(1, 1, 64), sent=256):
    """A request with `sent` bytes of binary data, of which it says `size`, and of its text `length`."""
    text = request(shape=shape, data=None, parameters={"binary_data_size": size})
    return text + bytes(sent), {"Inference-Header-Content-Length": str(len(text) if length is None else length)}


BAD = {
    "no JSON": (b"{", "not an inference request"),
    "no bytes": (b"", "not an inference request"),
    "not UTF-8": (b'{"inputs": "\xff"}', "not an inference request"),
    "deep nesting": (b'{"inputs": ' + b"[" * 100_000, "not an inference request"),
    "deep data": (request(data=None)[:-3] + b', "data": ' + b"[" * 500 + b"]" * 500 + b"}]}", "recursion"),
    "no inputs": (b'{"inputs": []}', "input `x` is missing"),
    "wrong name": (request(name="z"), "no input `z`"),
    "twice": (b'{"inputs": [' + request()[12:-2] + b", " + request()[12:-2] + b"]}", "occurs twice"),
    "wrong dtype": (request(datatype="INT64", data=[1] * 64), "has the datatype FP32; got INT64"),
    "unknown dtype": (request(datatype="FP12"), "unknown datatype FP12"),
    "strings": (request(data=["a"] * 64), "expected numbers"),
    "too few elements": (request(data=[0.5] * 63), "has 256 bytes; got 252"),
    "too many elements": (request(data=[0.5] * 65), "has 256 bytes; got 260"),
    "negative size": (request(shape=[1, -1, 64]), "can't have the shape"),
    "overflowing size": (request(shape=[1 << 40, 1 << 40, 64]), "can't have the shape"),
    "size of another type": (request(shape=["1", 1, 64]), "not an inference request"),
    "too few axes": (request(shape=[1, 64]), "`x` has 3 axes; got 2"),
    "wrong constant": (request(shape=[1, 2, 32]), "64"),
    "no rows": (request(shape=[0, 1, 64], data=[]), "N"),
    "too many rows": (request(shape=[17, 1, 64], data=[0.5] * 64 * 17), "N"),
    "too long": (request(shape=[1, 129, 64], data=[0.5] * 64 * 129), "S"),
    "float beyond FP32": (request(data=[1e300] * 64), "not a value of FP32"),
    "NaN as text": (request()[:-70] + b"NaN]}]}", "not an inference request"),
    "unknown output": (request()[:-1] + b', "outputs": [{"name": "z"}]}', "no output `z`"),
    "lies about its size": (*binary(1 << 30), "says 1073741824 bytes"),
    "lies about its text": (*binary(256, length=1 << 40), "the body has"),
    "negative text": (*binary(256, length=-1), "not a number"),
    "data left over": (*binary(128), "no input takes"),
    "shape lies": (*binary(256, shape=(16, 128, 64)), "bytes; got 256"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_explained(service, name):
    body, *headers, words = BAD[name]
    status, response = service.post(body, *headers)
    assert status == 400 and words in response["error"], response
    assert list(response) == ["error"]


@pytest.mark.parametrize(
    "path,status",
    [
        ("/v2/models/other/infer", 404),
        ("/v2/models/block/versions/2/infer", 404),
        ("/v3", 404),
        ("/v2", 405),
        ("/v2/models/%ff/infer", 400),
    ],
)
def test_wrong_pages(service, path, status):
    answer, response = service.post(request(), path=path)
    assert answer == status and response["error"]


def test_compressed_bodies_are_refused(service):
    status, response = service.post(request(), {"Content-Encoding": "gzip"})
    assert status == 415 and "compressed" in response["error"]


def test_bodies_of_a_gigabyte_are_refused(service):
    start = time.monotonic()
    connection = service.connect()
    connection.sendall(head({"Content-Length": 1 << 30}))
    chunk = bytes(1 << 20)
    try:
        for _ in range(1 << 10):
            connection.sendall(chunk)
    except OSError:
        pass  # The service need not read all of it.
    assert b" 413 " in connection.recv(1 << 16)
    assert time.monotonic() - start < 20


def test_endless_chunks_are_refused(service):
    connection = service.connect()
    connection.sendall(head({"Transfer-Encoding": "chunked"}))
    chunk = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
    try:
        for _ in range(2 * service.max_body >> 16):
            connection.sendall(chunk)
    except OSError:
        pass
    answer = connection.recv(1 << 16)
    assert answer == b"" or b" 413 " in answer


def test_clients_that_stop_sending(service):
    body = service.connect()
    body.sendall(head({"Content-Length": 1000}) + b"{")
    answer = body.recv(1 << 16)
    assert b" 408 " in answer and b'"error"' in answer

    line = service.connect()
    line.sendall(b"POST /v2/models/bl")
    assert line.recv(1 << 16) == b""


def test_clients_that_leave(service):
    for body in (b"", b"{", request()):
        for _ in range(20):
            connection = service.connect()
            # A zero time to linger resets the connection.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(head({"Content-Length": len(request())}) + body)
            connection.close()
    deadline = time.monotonic() + 10
    while service.metric("symshape_requests_running") > 0:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_other_protocols_on_the_port(service):
    for bytes_sent in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50), b"\x00" * 100, b"GET\r\n\r\n"):
        connection = service.connect()
        connection.sendall(bytes_sent)
        answer = connection.recv(1 << 16)
        assert answer == b"" or b" 400 " in answer


def tensor(shape, datatype, data):
    x = tritonclient.grpc.InferInput("x", shape, datatype)
    x._raw_content = data
    return x


@pytest.mark.parametrize(
    "shape,datatype,data,words",
    [
        ([1, 1, 64], "INT64", bytes(512), "has the datatype FP32"),
        ([1, 1, 64], "FP32", bytes(252), "has 256 bytes; got 252"),
        ([1, -1, 64], "FP32", bytes(256), "can't have the shape"),
        ([1 << 62, 1 << 62, 64], "FP32", bytes(256), "can't have the shape"),
        ([17, 1, 64], "FP32", bytes(256 * 17), "N"),
    ],
)
def test_bad_messages_are_explained(service, shape, datatype, data, words):
    client = tritonclient.grpc.InferenceServerClient(service.grpc)
    with pytest.raises(InferenceServerException, match="INVALID_ARGUMENT") as error:
        client.infer("block", [tensor(shape, datatype, data)])
    assert words in error.value.message()
    with pytest.raises(InferenceServerException, match="NOT_FOUND"):
        client.infer("other", [tensor([1, 1, 64], "FP32", bytes(256))])


def test_messages_beyond_the_limit_are_refused(service):
    client = tritonclient.grpc.InferenceServerClient(service.grpc)
    with pytest.raises(InferenceServerException, match="OUT_OF_RANGE|RESOURCE_EXHAUSTED"):
        client.infer("block", [tensor([1, 1, 64], "FP32", bytes(service.max_body + 1))])
    assert client.is_server_live()


def head(headers):
    lines = ["POST /v2/models/block/infer HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()
