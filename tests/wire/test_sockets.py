"""Data connections: who may connect, and what a broken frame does."""

import socket
import tempfile
from pathlib import Path

import numpy as np
import pytest

from trimtab.core.errors import Refused, WireError
from trimtab.core.wire.frames import HEADER_BYTES, ReplyHeader, RequestHeader
from trimtab.core.wire.handshake import new_process_id
from trimtab.core.wire.sockets import DataConnection, DataServer

SECRET = b"s" * 32
ME = new_process_id()


def echo(worker, header, body):
    return ReplyHeader(1, 1, len(body), dropped=header.push_number), [body]


@pytest.fixture(params=["tcp", "unix"])
def server(request):
    with tempfile.TemporaryDirectory(prefix="tt") as directory:
        address = "tcp:127.0.0.1:0" if request.param == "tcp" else f"unix:{Path(directory) / 'data.sock'}"
        made = DataServer(address, SECRET, "job", new_process_id(), echo)
        yield made
        made.close()


def connect(server, secret=SECRET, job="job"):
    return DataConnection(server.address, secret, job, ME, 5.0)


@pytest.mark.parametrize("size", [0, 8, 64, 5_000_000])
def test_a_frame_comes_back_whole(server, size):
    data = (np.arange(size) % 251).astype(np.uint8)
    connection = connect(server)
    for number in range(3):
        connection.send(RequestHeader(0, 1, number, body_bytes=size), [data[: size // 2], data[size // 2 :]])
        reply = connection.receive_header()
        assert (reply.dropped, reply.body_bytes) == (number, size)
        back = np.zeros(size, np.uint8)
        if size:
            connection.receive_into(back)
        assert (back == data).all()
    connection.close()


@pytest.mark.parametrize(("secret", "job"), [(b"x" * 32, "job"), (SECRET, "other")])
def test_a_wrong_secret_or_job_is_refused(server, secret, job):
    with pytest.raises(Refused):
        connect(server, secret, job)
    connect(server).close()  # the server lives on


def test_a_server_that_cannot_prove_the_secret_is_refused():
    impostor = DataServer("tcp:127.0.0.1:0", b"x" * 32, "job", new_process_id(), echo)
    try:
        with pytest.raises(Refused):
            connect(impostor)
    finally:
        impostor.close()


@pytest.mark.parametrize("junk", [b"", b"GET / HTTP/1.1\r\n\r\n" + bytes(300), bytes(4000), b"TTHS" + bytes(64)])
def test_junk_instead_of_a_handshake_harms_nobody(server, junk):
    kind, _, rest = server.address.partition(":")
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    where = rest if kind == "unix" else (rest.rpartition(":")[0], int(rest.rpartition(":")[2]))
    with socket.socket(family) as raw:
        raw.connect(where)
        raw.sendall(junk)
    connect(server).close()


@pytest.mark.parametrize("junk", [bytes(HEADER_BYTES), b"TTRQ" + bytes(10), RequestHeader(0, 1, body_bytes=100).pack()])
def test_a_broken_frame_ends_its_connection_only(server, junk):
    first, second = connect(server), connect(server)
    first._socket.sendall(junk)
    first._socket.shutdown(socket.SHUT_WR)
    with pytest.raises(WireError):
        first.receive_header()
    second.send(RequestHeader(0, 1, 5), [])
    assert second.receive_header().dropped == 5
    assert server.refused == 1


def test_another_process_than_expected_is_not_refused_for_good(server):
    """A dead process's address may be given to another: that is a reason to look again, not to end the job."""
    with pytest.raises(WireError, match="another process") as error:
        DataConnection(server.address, SECRET, "other job", ME, 5.0, expected="f" * 32)
    assert not isinstance(error.value, Refused)
    DataConnection(server.address, SECRET, "job", ME, 5.0, expected=server._process).close()


def test_a_failing_accept_does_not_end_the_server(server):
    listener, failures = server._listener, [OSError(24, "Too many open files")] * 3

    class Exhausted:
        def accept(self):
            if failures:
                raise failures.pop()
            return listener.accept()

        def __getattr__(self, name):
            return getattr(listener, name)

    connect(server).close()
    server._listener = Exhausted()
    connect(server).close()  # wakes the accept that was waiting on the old object
    for _ in range(2):
        connection = connect(server)
        connection.send(RequestHeader(0, 1, 5), [])
        assert connection.receive_header().dropped == 5
        connection.close()
    assert failures == []


def test_whatever_a_handler_raises_ends_its_connection_only(server):
    def fail(worker, header, body):
        raise MemoryError

    server._handler = fail
    first = connect(server)
    first.send(RequestHeader(0, 1), [])
    with pytest.raises(WireError):
        first.receive_header()
    server._handler = echo
    second = connect(server)
    second.send(RequestHeader(0, 1, 5), [])
    assert second.receive_header().dropped == 5
    assert server.refused == 1


def test_each_side_learns_the_others_process(server):
    seen = []
    server._handler = lambda worker, header, body: (seen.append(worker), (ReplyHeader(0, 0), []))[1]
    connection = connect(server)
    assert connection.ps_process == server._process
    connection.send(RequestHeader(0, 1), [])
    connection.receive_header()
    assert seen == [ME]
