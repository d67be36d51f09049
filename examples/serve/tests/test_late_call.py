"""A client of gRPC that answers the last ping of a service before it sends a call that it has started."""

import socket
import struct

import pytest
from service import Service, compile_block

# The types of frames, and the flags that end the header and the stream (RFC 9113, section 6).
DATA, HEADERS, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
ACK, END_STREAM, END_HEADERS = 1, 1, 4
EMPTY_MESSAGE = bytes(5)


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def call(stream):
    """The header of a call of ServerLive, without compression (RFC 7541, section 6.2.2)."""
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": b"/inference.GRPCInferenceService/ServerLive",
        b":authority": b"service",
        b"content-type": b"application/grpc",
        b"te": b"trailers",
    }
    lengths = [(bytes([len(name)]) + name, bytes([len(value)]) + value) for name, value in fields.items()]
    return frame(HEADERS, END_HEADERS, stream, b"".join(b"\0" + name + value for name, value in lengths))


def frames(file):
    """The frames that arrive, until the service closes the connection."""
    while len(header := file.read(9)) == 9:
        size, (kind, flags, stream) = int.from_bytes(header[:3], "big"), struct.unpack(">BBI", header[3:])
        yield kind, flags, stream, file.read(size)


@pytest.mark.parametrize("late_frames", ["whole", "header alone"])
def test_call_that_has_begun_is_answered(tmp_path, late_frames):
    late = call(3) + frame(WINDOW_UPDATE, 0, 3, struct.pack(">I", 5))
    if late_frames == "whole":
        late += frame(DATA, END_STREAM, 3, EMPTY_MESSAGE)
    with Service(compile_block(tmp_path)) as service:
        host, port = service.grpc.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0) + call(1))
            answers, goaways = {}, []
            for kind, flags, stream, payload in frames(connection.makefile("rb")):
                if kind == SETTINGS and not flags & ACK:
                    connection.sendall(frame(SETTINGS, ACK, 0))
                elif kind == SETTINGS:
                    # The connection is open: the service has answered its settings.
                    service.terminate()
                elif kind == PING:
                    answer = frame(PING, ACK, 0, payload)
                    connection.sendall(answer + late + frame(DATA, END_STREAM, 1, EMPTY_MESSAGE))
                elif kind == GOAWAY:
                    goaways.append(struct.unpack(">II", payload))
                elif kind == DATA:
                    answers[stream] = payload
        assert service.wait() == 0
    # A message of two bytes: the field `live`, true.
    assert answers == {1: struct.pack(">BI", 0, 2) + b"\x08\x01"}
    # All calls may end at first; then those up to the first; no error.
    assert goaways == [(2**31 - 1, 0), (1, 0)]
