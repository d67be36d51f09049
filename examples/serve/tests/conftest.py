"""Fixtures of tests with one service for a module, which defines `artefact`, the path of a model."""

import pytest
import tritonclient.grpc
import tritonclient.http
from service import Service, load_alone


@pytest.fixture(scope="module")
def alone(artefact):
    return load_alone(artefact)


@pytest.fixture(scope="module")
def service(artefact):
    with Service(artefact) as service:
        yield service


@pytest.fixture(params=["http", "grpc"])
def protocol(request, service):
    """The module of a client, and a client."""
    module = getattr(tritonclient, request.param)
    client = module.InferenceServerClient(getattr(service, request.param))
    yield module, client
    client.close()
