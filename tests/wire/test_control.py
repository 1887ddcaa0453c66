"""The control plane over real gRPC: authentication, errors, deadlines."""

import dataclasses
import tempfile
from pathlib import Path

import grpc
import pytest

from trimtab.core.errors import Refused, WireError
from trimtab.core.wire.commands import JobAnswer, JobCommand
from trimtab.core.wire.control import ControllerStub, JobStub, PsStub, Unreachable, serve_controller, serve_ps
from trimtab.core.wire.encode import to_json
from trimtab.core.wire.messages import (
    PROTOCOL,
    PsReport,
    PsSync,
    Routing,
    WorkerOrders,
    WorkerSync,
    from_bitmap,
    to_bitmap,
)
from trimtab.core.wire.secrets import proof

SECRET = b"s" * 32


@pytest.fixture
def address():
    with tempfile.TemporaryDirectory(prefix="tt") as directory:
        yield str(Path(directory) / "control.sock")


def test_a_call_goes_through_and_keeps_its_types(address):
    heard = []

    def ps_sync(request):
        heard.append(request)
        return PsReport("p1", "tcp:127.0.0.1:1", request.sequence)

    server = serve_ps(address, SECRET, ps_sync)
    stub = PsStub(address, SECRET)
    try:
        request = PsSync("job", 3, 9, "p1")
        assert stub.sync(request, 5.0) == PsReport("p1", "tcp:127.0.0.1:1", 9)
        assert heard == [request]
    finally:
        stub.close()
        server.close()


def test_a_wrong_secret_is_refused_before_the_handler_sees_anything(address):
    heard = []
    server = serve_controller(address, SECRET, heard.append)
    stub = ControllerStub(address, b"x" * 32)
    try:
        with pytest.raises(Refused, match="wrong secret"):
            stub.worker_sync(WorkerSync("job", 1, "w0", "p"), 5.0)
        assert heard == []
    finally:
        stub.close()
        server.close()


def test_a_refusal_of_the_handler_reaches_the_caller(address):
    def refuse(request):
        raise Refused("term 1 is over")

    server = serve_controller(address, SECRET, refuse)
    stub = ControllerStub(address, SECRET)
    try:
        with pytest.raises(Refused, match="term 1 is over"):
            stub.worker_sync(WorkerSync("job", 1, "w0", "p"), 5.0)
    finally:
        stub.close()
        server.close()


def test_another_protocol_is_not_accepted(address):
    heard = []
    server = serve_controller(address, SECRET, heard.append)
    body, method = to_json(WorkerSync("job", 1, "w0", "p")), "/trimtab.Controller/WorkerSync"
    metadata = (("x-trimtab-protocol", "99"), ("x-trimtab-proof", proof(SECRET, method.encode(), body).hex()))
    try:
        with grpc.insecure_channel(f"unix:{address}") as channel, pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(method)(body, timeout=5.0, metadata=metadata)
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert "protocol 99 is not 4" in refused.value.details()
        assert heard == []
    finally:
        server.close()


def test_nobody_there_is_unreachable_within_the_deadline(address):
    stub = PsStub(address, SECRET)
    try:
        with pytest.raises(Unreachable):
            stub.sync(PsSync("job", 1, 1, ""), 0.2)
    finally:
        stub.close()


def test_a_body_of_another_shape_is_not_accepted(address):
    server = serve_ps(address, SECRET, lambda request: PsReport("p", "", 0))
    stub = PsStub(address, SECRET)
    try:
        with pytest.raises(WireError, match="PsSync"):
            stub.sync(dataclasses.replace(PsSync("job", 1, 1, ""), term="one"), 5.0)
    finally:
        stub.close()
        server.close()


def test_a_restarted_server_at_the_same_address_is_found(address):
    stub = PsStub(address, SECRET)
    try:
        for process in ("first", "second"):
            server = serve_ps(address, SECRET, lambda request, p=process: PsReport(p, "", 0))
            for _ in range(100):  # a new connection takes some attempts, each with its own deadline
                try:
                    assert stub.sync(PsSync("job", 1, 1, ""), 1.0).process == process
                    break
                except Unreachable:
                    continue
            else:
                pytest.fail("the restarted server was not found")
            server.close()
    finally:
        stub.close()


def test_bitmaps_and_routing_keep_their_meaning():
    assert from_bitmap(to_bitmap([0, 5, 511])) == [0, 5, 511]
    assert len(to_bitmap([])) == 128
    assert Routing().owner == (-1,) * 512


def test_a_persons_command_goes_to_the_same_server_with_the_same_secret(address):
    heard = []

    def answer(request):
        heard.append(request)
        return JobAnswer(request.job_id, status={"phase": "training", "loss": None, "pods": [{"name": "ps-0"}]})

    server = serve_controller(address, SECRET, lambda request: WorkerOrders(1), answer)
    stub, stranger, worker = JobStub(address, SECRET), JobStub(address, b"x" * 32), ControllerStub(address, SECRET)
    try:
        command = JobCommand("job", "stop", now=True)
        found = stub.command(command, 5.0)
        assert heard == [command] and found.status["pods"] == [{"name": "ps-0"}]
        with pytest.raises(Refused, match="wrong secret"):
            stranger.command(command, 5.0)
        with pytest.raises(WireError, match="JobCommand"):
            stub.command(JobCommand("job", "delete everything"), 5.0)
        assert worker.worker_sync(WorkerSync("job", 1, "w0", "p"), 5.0).term == 1
        assert heard == [command]
    finally:
        for one in (stub, stranger, worker):
            one.close()
        server.close()


def test_a_proof_of_one_call_is_none_of_another(address):
    """What a worker was heard to say can't be sent again as a person's command."""
    heard = []
    server = serve_controller(address, SECRET, lambda request: WorkerOrders(1), heard.append)
    body, spoken = to_json(JobCommand("job", "stop")), "/trimtab.Controller/WorkerSync"
    metadata = (("x-trimtab-protocol", str(PROTOCOL)), ("x-trimtab-proof", proof(SECRET, spoken.encode(), body).hex()))
    try:
        with grpc.insecure_channel(f"unix:{address}") as channel, pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/trimtab.Controller/JobCommand")(body, timeout=5.0, metadata=metadata)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED and heard == []
    finally:
        server.close()
