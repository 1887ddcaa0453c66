"""A worker's lines to the parameter servers: made when needed, kept while they work, given up when anything is odd.

A line that broke is no error here. Whoever sent or waited hears that nothing came of it, and tries again by the routing
of that moment.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from trimtab.core.errors import JobFailed, Refused, WireError
from trimtab.core.ps.routing_view import RoutingView
from trimtab.core.wire import frames
from trimtab.core.wire.frames import ReplyHeader, RequestHeader
from trimtab.core.wire.sockets import Buffer, DataConnection

log = logging.getLogger(__name__)

Arrays = Sequence[npt.NDArray[np.generic]]
_MOST_ERROR_BYTES = 1 << 16  # of a reason that a server tells


class Lines:
    """One connection per parameter-server process. Used by one thread."""

    def __init__(self, secret: bytes, job_id: str, process: str, timeout_seconds: float) -> None:
        """`process` is this worker's; a server that says nothing for `timeout_seconds` is given up."""
        self._secret, self._job_id, self._process, self._timeout = secret, job_id, process, timeout_seconds
        self.waited: dict[str, float] = {}  # seconds that sending and receiving took, by server process
        self._connections: dict[str, DataConnection] = {}
        self._cleaned = 0

    def close(self) -> None:
        """Break all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def forget_gone(self, view: RoutingView) -> None:
        """Close connections to processes that the routing no longer names."""
        if self._cleaned != view.version:
            for process in self._connections.keys() - set(view.routing.processes):
                self._connections.pop(process).close()
            self._cleaned = view.version

    def to(self, view: RoutingView, server: int) -> DataConnection | None:
        """The line to one server of `view`, None when it does not answer. Raises Refused: wrong secret or job."""
        process, address = view.routing.processes[server], view.routing.addresses[server]
        known = self._connections.get(process)
        if known is not None or not process or not address:
            return known
        try:
            made = DataConnection(address, self._secret, self._job_id, self._process, self._timeout, expected=process)
        except Refused:
            raise
        except (OSError, WireError) as error:
            log.info("parameter server %s at %s: %s", process[:12], address, error)
            return None
        self._connections[process] = made
        return made

    def send(
        self, connection: DataConnection, view: RoutingView, server: int, header: RequestHeader,
        parts: Sequence[tuple[Sequence[Buffer], bool]],
    ) -> bool:  # fmt: skip
        """Send one request; returns whether it left.

        Args:
            header: its length is worked out here.
            parts: arrays of each section of the body, and whether a multiple of 64 bytes must end there.

        Raises:
            JobFailed: larger than any frame may be.
        """
        sections: list[Buffer] = []
        size = 0
        for part, pad in parts:
            size += sum(memoryview(one).nbytes for one in part)
            sections.extend(part)
            if pad and (gap := frames.padded(size) - size):
                sections.append(bytes(gap))
                size += gap
        if size > frames.MAX_BODY_BYTES:
            raise JobFailed(
                f"batch {header.push_number} sends {size} bytes to one parameter server, more than "
                f"{frames.MAX_BODY_BYTES}: use smaller batches or more parameter servers"
            )
        began = time.perf_counter()
        try:
            connection.send(replace(header, body_bytes=size), sections)
        except OSError as error:
            self.lost(view, server, error)
            return False
        finally:
            self._took(view, server, began)
        return True

    def receive(
        self, connection: DataConnection, view: RoutingView, server: int, rows: Arrays = ()
    ) -> ReplyHeader | None:
        """The next reply, its rows put into `rows`; None when it did not come or was not the answer to what was asked.

        Raises:
            JobFailed: the server says that it can't do what it should.
        """
        began = time.perf_counter()
        try:
            reply = connection.receive_header()
            if frames.FAILED in (reply.push_status, reply.pull_status):
                text = connection.discard(min(reply.body_bytes, _MOST_ERROR_BYTES))
                raise JobFailed(text.decode(errors="replace"))
            wanted = sum(piece.nbytes for piece in rows) if reply.pull_status == frames.OK else 0
            if wanted != reply.body_bytes:
                raise WireError(f"reply has {reply.body_bytes} bytes of rows, not the {wanted} that were asked for")
            for piece in rows if wanted else ():
                if piece.nbytes:
                    connection.receive_into(piece)
            return reply
        except (OSError, WireError) as error:
            self.lost(view, server, error)
            return None
        finally:
            self._took(view, server, began)

    def ask(
        self, connection: DataConnection, view: RoutingView, server: int, header: RequestHeader, body: bytes, most: int
    ) -> bytes | None:
        """Send `header` with `body`, and return the answer's body of at most `most` bytes; None when none came."""
        if not self.send(connection, view, server, header, [([body], False)]):
            return None
        try:
            reply = connection.receive_header()
            if reply.pull_status != frames.OK or reply.body_bytes > most:
                raise WireError(f"answer of status {reply.pull_status} and {reply.body_bytes} bytes to a question")
            return connection.discard(reply.body_bytes)
        except (OSError, WireError) as error:
            self.lost(view, server, error)
            return None

    def _took(self, view: RoutingView, server: int, began: float) -> None:
        """Keep how long a server made this worker wait: one that is late neither takes a message in nor answers."""
        process = view.routing.processes[server]
        self.waited[process] = self.waited.get(process, 0.0) + time.perf_counter() - began

    def lost(self, view: RoutingView, server: int, error: Exception) -> None:
        """Give the line to one server up."""
        process = view.routing.processes[server]
        log.info("connection to parameter server %s lost: %s", process[:12], error)
        connection = self._connections.pop(process, None)
        if connection is not None:
            connection.close()
