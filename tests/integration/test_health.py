"""`python -m offbeat_core.health`: what a hub's container is asked every few seconds."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from offbeat_core.errors import OffbeatError
from offbeat_core.health import check


@pytest.fixture
def served():
    """(servicer, port) of a server that has gRPC's health service alone."""
    server = grpc.server(ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, port
    server.stop(None)


def test_a_server_that_serves_is_well_also_where_it_listens_on_all_addresses(served):
    _, port = served
    check(f"127.0.0.1:{port}")
    check(f"0.0.0.0:{port}")


def test_a_server_that_ends_is_not_well(served):
    servicer, port = served
    servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    with pytest.raises(OffbeatError, match="does not serve"):
        check(f"127.0.0.1:{port}")


def test_the_command_takes_the_address_from_the_environment_and_says_what_is_wrong(served):
    _, port = served
    for address, code, text in (
        (f"127.0.0.1:{port}", 0, ""),
        ("127.0.0.1:1", 1, "UNAVAILABLE"),
        ("", 1, "HOST:PORT"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "offbeat_core.health"],
            env={**os.environ, "OFFBEAT_LISTEN": address},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert text in done.stderr
        assert "Traceback" not in done.stderr


def test_the_check_loads_no_protobuf_or_pydantic():
    code = "import sys, offbeat_core.health; print({'pydantic', 'google', 'numpy'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60).strip() == "set()"
