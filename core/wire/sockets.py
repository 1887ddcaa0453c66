"""Data-plane sockets: one persistent connection per (worker, parameter server), a thread per connection on the server.

Measured against gRPC streams and Unix sockets, plain TCP with `sendmsg` and `recv_into` costs a third of the CPU per
step (docs/design.md); the price is that framing, bounds and authentication are ours, which is what `frames` and
`handshake` are for. A frame that breaks a rule closes its connection, is counted and logged; the server lives on.
Strangers cost little: only so many handshakes are under way at once (the oldest gives way), each has a deadline, nobody
may stop in the middle of a frame for long, and what a large frame needed is given back after it.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trimtab.core.errors import WireError
from trimtab.core.wire.frames import HEADER_BYTES, ReplyHeader, RequestHeader, aligned
from trimtab.core.wire.handshake import accept, connect

log = logging.getLogger(__name__)

Buffer = memoryview | bytes | bytearray | npt.NDArray[np.generic]
Handler = Callable[[str, RequestHeader, npt.NDArray[np.uint8]], tuple[ReplyHeader, Sequence[Buffer]]]

_HANDSHAKE_SECONDS = 10.0
_STALL_SECONDS = 120  # a server waits so long in the middle of a frame; between frames for ever
_ACCEPT_PAUSE_SECONDS = 0.2
_MOST_CONNECTIONS = 4096  # workers of one job, and some to spare
_MOST_HANDSHAKES = 64  # at once; each takes milliseconds among friends
_FIRST_BUFFER = 1 << 20
_KEPT_BUFFER = 64 << 20  # a larger one goes with its frame
_LOGGED = 20  # refusals that are logged one by one; after these, only when their number doubles


class DataServer:
    """Accepts workers and hands their frames to `handler(worker process, header, body)`."""

    def __init__(self, address: str, secret: bytes, job_id: str, process: str, handler: Handler) -> None:
        """Listens on ``tcp:HOST:PORT`` (port 0: any free one) or ``unix:PATH``; see `address`."""
        self._secret, self._job_id, self._process, self._handler = secret, job_id, process, handler
        self._listener, self.address = _listen(address)
        self._open: set[socket.socket] = set()
        self._handshakes: dict[socket.socket, None] = {}  # under way, oldest first
        self._lock = threading.Lock()
        self._closed = False
        self._pause = threading.Event()
        self.refused = 0  # connections and frames since the start
        threading.Thread(target=self._accept, name="data-accept", daemon=True).start()

    def close(self) -> None:
        """Stop listening and break every connection."""
        with self._lock:
            self._closed = True
            connections = list(self._open)
        self._pause.set()
        for one in (self._listener, *connections):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:  # out of descriptors or memory for a moment, or closed
                if not self._closed:
                    log.warning("data connection could not be accepted: %s", error)
                    self._pause.wait(_ACCEPT_PAUSE_SECONDS)
                continue
            if not self._admit(connection):
                continue
            try:
                threading.Thread(target=self._serve, args=(connection,), name="data", daemon=True).start()
            except RuntimeError as error:
                log.warning("data connection has no thread: %s", error)
                self._forget(connection)

    def _admit(self, connection: socket.socket) -> bool:
        """Make room for one more handshake; false when there is none."""
        with self._lock:
            full = len(self._open) >= _MOST_CONNECTIONS
            if full or self._closed:
                self.refused += full
                connection.close()
                return False
            if len(self._handshakes) >= _MOST_HANDSHAKES:
                oldest = next(iter(self._handshakes))
                del self._handshakes[oldest]
                _break(oldest)
            self._open.add(connection)
            self._handshakes[connection] = None
        return True

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)
            self._handshakes.pop(connection, None)
        connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with _within(_HANDSHAKE_SECONDS, connection):
                worker = accept(connection, self._secret, self._job_id, self._process)
            with self._lock:
                self._handshakes.pop(connection, None)
            _tune(connection)
            _bound_waits(connection)
            self._frames(connection, worker)
        except WireError as error:
            self._refuse(error)
        except OSError as error:
            log.info("data connection lost: %s", error)
        except Exception as error:  # noqa: BLE001, whatever one frame provokes, the server lives on for the others
            self._refuse(error)
        finally:
            self._forget(connection)

    def _refuse(self, error: Exception) -> None:
        """Count, and log so that a peer which goes on for days does not fill the disk."""
        with self._lock:
            self.refused += 1
            count = self.refused
        if count <= _LOGGED or not count & (count - 1):
            log.warning(
                "data connection closed, %d so far: %s", count, error, exc_info=not isinstance(error, WireError)
            )

    def _frames(self, connection: socket.socket, worker: str) -> None:
        head = bytearray(HEADER_BYTES)
        buffer = aligned(_FIRST_BUFFER)
        while True:
            if not receive_into(connection, memoryview(head), end_allowed=True):
                return
            header = RequestHeader.unpack(head)
            if header.body_bytes > len(buffer):  # only an authenticated peer gets here; bounded above
                buffer = aligned(min(header.body_bytes * 3 // 2, max(header.body_bytes, _KEPT_BUFFER)))
            body = buffer[: header.body_bytes]
            if header.body_bytes:
                receive_into(connection, memoryview(body))
            reply, sections = self._handler(worker, header, body)
            send_all(connection, [reply.pack(), *sections])
            if len(buffer) > _KEPT_BUFFER:
                buffer = body = aligned(_FIRST_BUFFER)


class DataConnection:
    """A worker's connection to one parameter-server process."""

    def __init__(
        self, address: str, secret: bytes, job_id: str, process: str, timeout_seconds: float, expected: str = ""
    ) -> None:
        """Connects and proves the secret; `ps_process` is who answered.

        Args:
            expected: the parameter-server process that should answer; another one is a WireError ("" for any).

        Raises:
            OSError: nobody listens. Refused, WireError: see `handshake`.
        """
        self._socket = _dial(address, timeout_seconds)
        try:
            with _within(timeout_seconds, self._socket):
                self.ps_process = connect(self._socket, secret, job_id, process, expected)
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(timeout_seconds)
        _tune(self._socket)
        self._head = bytearray(HEADER_BYTES)

    def send(self, header: RequestHeader, sections: Sequence[Buffer]) -> None:
        """Send one request; `header.body_bytes` must be the sections' total. Raises OSError."""
        send_all(self._socket, [header.pack(), *sections])

    def receive_header(self) -> ReplyHeader:
        """The next reply's header. Raises OSError or WireError."""
        receive_into(self._socket, memoryview(self._head))
        return ReplyHeader.unpack(self._head)

    def receive_into(self, destination: Buffer) -> None:
        """Exactly as many bytes of the reply's body as `destination` holds. Raises OSError or WireError."""
        receive_into(self._socket, memoryview(destination).cast("B"))

    def discard(self, nbytes: int) -> bytes:
        """Read and return `nbytes` of a body that nobody wants in place (error texts)."""
        data = bytearray(nbytes)
        if nbytes:
            receive_into(self._socket, memoryview(data))
        return bytes(data)

    def close(self) -> None:
        """Break the connection."""
        self._socket.close()


def _break(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def receive_into(source: socket.socket, view: memoryview, end_allowed: bool = False) -> bool:
    """Fill `view`; false when the peer closed before the first byte and that is allowed. Raises WireError."""
    size, got = len(view), 0
    while got < size:
        try:
            count = source.recv_into(view[got:], size - got, socket.MSG_WAITALL)
        except BlockingIOError:  # see `_bound_waits`
            if end_allowed and got == 0:
                continue
            raise WireError(f"peer stopped for {_STALL_SECONDS} seconds, {got} bytes into {size}") from None
        if count == 0:
            if end_allowed and got == 0:
                return False
            raise WireError(f"peer closed the connection {got} bytes into {size}")
        got += count
    return True


def send_all(target: socket.socket, buffers: Sequence[Buffer]) -> None:
    """Send every buffer with as few system calls as the kernel allows."""
    views = [memoryview(one).cast("B") for one in buffers if memoryview(one).nbytes]
    while views:
        sent = target.sendmsg(views[:1000])  # IOV_MAX is 1024
        while views and sent >= len(views[0]):
            sent -= len(views.pop(0))
        if sent:
            views[0] = views[0][sent:]


@contextlib.contextmanager
def _within(seconds: float, connection: socket.socket) -> Iterator[None]:
    """Break the connection unless the block ends in time: a deadline for all of it, not for each byte."""
    deadline = threading.Timer(seconds, _break, [connection])
    deadline.daemon = True
    deadline.start()
    try:
        yield
    finally:
        deadline.cancel()


def _bound_waits(connection: socket.socket) -> None:
    """Let the kernel end waits of a blocking socket; a time-out of Python's would cost a system call for each."""
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", _STALL_SECONDS, 0))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a machine that is gone says no goodbye


def _tune(connection: socket.socket) -> None:
    if connection.family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _parts(address: str) -> tuple[int, object]:
    kind, _, rest = address.partition(":")
    if kind == "unix" and rest:
        return socket.AF_UNIX, rest
    host, _, port = rest.rpartition(":")
    if kind != "tcp" or not host or not port.isdigit():
        raise WireError(f"data address '{address}' is neither tcp:HOST:PORT nor unix:PATH")
    return socket.AF_INET, (host, int(port))


def _listen(address: str) -> tuple[socket.socket, str]:
    family, where = _parts(address)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind(where)  # type: ignore[arg-type]
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    if family == socket.AF_INET:
        host, port = listener.getsockname()[:2]
        return listener, f"tcp:{host}:{port}"
    Path(str(where)).chmod(0o600)
    return listener, address


def _dial(address: str, timeout_seconds: float) -> socket.socket:
    family, where = _parts(address)
    connection = socket.socket(family, socket.SOCK_STREAM)
    connection.settimeout(timeout_seconds)
    try:
        connection.connect(where)  # type: ignore[arg-type]
    except OSError:
        connection.close()
        raise
    return connection
