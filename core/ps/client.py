"""A worker's side of the data plane: push batch i and pull batch i+1, whatever happens to servers and routing.

The fast path is one message per server and nothing else. Everything unusual (a server gone, a vshard moved, a token
void, a newer routing) falls through to the slow path, which repeats until done: pushes go again by the present
routing with explicit keys, only for the vshards not yet acknowledged; a pull is simply made anew. Both are safe to
repeat: servers drop doubles by batch number, and pulls change nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.core.clock import Clock
from trimtab.core.domain.model_spec import VSHARDS, TableSpec
from trimtab.core.errors import Interrupted, JobFailed, Refused, WireError
from trimtab.core.ps.hashing import vshards
from trimtab.core.ps.sheet import Section, Sheet, sections_of
from trimtab.core.wire import frames
from trimtab.core.wire.frames import ReplyHeader, RequestHeader
from trimtab.core.wire.messages import Routing
from trimtab.core.wire.sockets import Buffer, DataConnection

log = logging.getLogger(__name__)

ALL_VSHARDS = (1 << VSHARDS) - 1
_RETRY_SECONDS = 0.01
_TIMEOUT_SECONDS = 20.0


def covers_of(routing: Routing) -> list[int]:
    """The vshards of each server as a bitmap; those without an owner are in none."""
    covers = [0] * len(routing.processes)
    for vshard, owner in enumerate(routing.owner):
        if owner >= 0:
            covers[owner] |= 1 << vshard
    return covers


@dataclass(frozen=True)
class RoutingView:
    """A routing with its bitmaps worked out once; `whole`: every vshard has an owner."""

    routing: Routing
    covers: tuple[int, ...]
    owner: np.ndarray
    whole: bool

    @classmethod
    def of(cls, routing: Routing) -> RoutingView:
        """Work the bitmaps out."""
        return cls(routing, tuple(covers_of(routing)), np.array(routing.owner, np.int64), -1 not in routing.owner)

    @property
    def version(self) -> int:
        """The routing's version."""
        return self.routing.version


class PsClient:
    """One worker's connections to all parameter servers. Used by one thread; `update` may come from another."""

    def __init__(
        self,
        tables: tuple[TableSpec, ...],
        secret: bytes,
        job_id: str,
        process: str,
        regroup: Callable[[Sheet, RoutingView], None],
        clock: Clock,
        stopping: threading.Event,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        on_trouble: Callable[[], None] = lambda: None,
    ) -> None:
        """`regroup` lays a sheet out for another routing; `stopping` ends every retry with `Interrupted`.

        `on_trouble` is called before each retry: something is not where the routing says, so a newer one may exist.
        """
        self.tables, self.sections = tables, sections_of(tables)
        self.view = RoutingView.of(Routing())
        self.slow_exchanges = 0
        self._secret, self._job_id, self._process = secret, job_id, process
        self._regroup, self._clock, self._stopping = regroup, clock, stopping
        self._timeout, self._on_trouble = timeout_seconds, on_trouble
        self._connections: dict[str, DataConnection] = {}
        self._cleaned = 0

    def update(self, routing: Routing) -> None:
        """Use `routing` from the next exchange on, if it is newer."""
        if routing.version > self.view.version:
            self.view = RoutingView.of(routing)

    def close(self) -> None:
        """Break all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def exchange(self, push: Sheet | None, pull: Sheet | None, rate: float = 0.0, skipped: bool = False) -> None:
        """Apply `push`'s gradients everywhere and fill `pull`'s values, in one message per server where possible.

        Args:
            push: its gradients are applied at `rate`, or only its number marked when `skipped`.
            pull: with token 0, absent rows read as the table's default and servers keep nothing.

        Raises:
            Interrupted: `stopping` was set. JobFailed: a server cannot hold the rows. Refused: wrong secret or job.
        """
        view = self.view
        left = ALL_VSHARDS if push is not None else 0
        again = pull is not None
        if pull is not None and pull.routing_version != view.version:
            self._regroup(pull, view)
        current = push if push is not None and push.routing_version == view.version else None
        if current is not None or push is None:
            left, again = self._fast(view, current, pull, rate, skipped)
        if left and push is not None:
            self.slow_exchanges += 1
            self._push_again(push, left, rate, skipped)
        if again and pull is not None:
            self._pull_again(pull)

    # ---- one message per server

    def _forget_gone(self, view: RoutingView) -> None:
        """Close connections to processes that the routing no longer names."""
        for process in self._connections.keys() - set(view.routing.processes):
            self._connections.pop(process).close()
        self._cleaned = view.version

    def _fast(
        self, view: RoutingView, push: Sheet | None, pull: Sheet | None, rate: float, skipped: bool
    ) -> tuple[int, bool]:
        """Returns the vshards whose push is not acknowledged, and whether the pull must be made again."""
        if self._cleaned != view.version:
            self._forget_gone(view)
        left = ALL_VSHARDS if push is not None else 0
        again = False
        sent: list[tuple[int, DataConnection]] = []
        for server, cover in enumerate(view.covers):
            if not cover:
                continue
            connection = self._connection(view, server)
            if connection is None or not self._send(connection, view, server, push, pull, rate, skipped):
                again = again or pull is not None
                continue
            sent.append((server, connection))
        for server, connection in sent:
            reply = self._receive(connection, view, server, pull)
            if reply is None:
                again = again or pull is not None
                continue
            if reply.push_status == frames.OK:
                left &= ~(view.covers[server] & ~reply.push_refused)
            if pull is not None and (reply.pull_status != frames.OK or reply.pull_refused):
                again = True
        return left, again or (pull is not None and not view.whole)

    def _send(
        self,
        connection: DataConnection,
        view: RoutingView,
        server: int,
        push: Sheet | None,
        pull: Sheet | None,
        rate: float,
        skipped: bool,
    ) -> bool:
        counts: list[np.ndarray] = []
        gradients: list[np.ndarray] = []
        keys: list[np.ndarray] = []
        flags = 0
        if push is not None:
            flags |= frames.PUSH | (frames.SKIPPED if skipped else 0)
            counts.append(np.zeros(len(self.tables), np.uint32) if skipped else push.counts[server].astype(np.uint32))
            if not skipped:
                gradients = self._pieces(push, push.gradients, server)
        if pull is not None:
            flags |= frames.PULL | (0 if pull.token else frames.DEFAULTS)
            counts.append(pull.counts[server].astype(np.uint32))
            keys = self._pieces(pull, pull.keys, server)
        cover = view.covers[server]
        header = RequestHeader(
            flags, len(self.tables), push.number if push else -1, push.token if push else 0,
            pull.token if pull else 0, rate, 0, cover if push else 0, cover if pull else 0,
        )  # fmt: skip
        return self._transmit(connection, view, server, header, counts, [], gradients, keys)

    def _transmit(
        self,
        connection: DataConnection,
        view: RoutingView,
        server: int,
        header: RequestHeader,
        counts: list[np.ndarray],
        push_keys: list[np.ndarray],
        gradients: list[np.ndarray],
        pull_keys: list[np.ndarray],
    ) -> bool:
        sections: list[Buffer] = []
        size = 0
        pulls = bool(header.flags & frames.PULL)
        for part, pad in ((counts, True), (push_keys, True), (gradients, pulls), (pull_keys, False)):
            nbytes = sum(one.nbytes for one in part)
            sections.extend(part)
            size += nbytes
            if pad and (gap := frames.padded(size) - size):
                sections.append(bytes(gap))
                size += gap
        if size > frames.MAX_BODY_BYTES:
            raise JobFailed(
                f"batch {header.push_number} sends {size} bytes to one parameter server, more than "
                f"{frames.MAX_BODY_BYTES}: use smaller batches or more parameter servers"
            )
        try:
            connection.send(_with_body(header, size), sections)
        except OSError as error:
            self._lost(view, server, error)
            return False
        return True

    def _receive(
        self, connection: DataConnection, view: RoutingView, server: int, pull: Sheet | None
    ) -> ReplyHeader | None:
        try:
            reply = connection.receive_header()
            if frames.FAILED in (reply.push_status, reply.pull_status):
                raise JobFailed(connection.discard(reply.body_bytes).decode(errors="replace"))
            if reply.pull_status == frames.OK and pull is not None:
                pieces = self._pieces(pull, pull.values, server)
                if sum(piece.nbytes for piece in pieces) != reply.body_bytes:
                    raise WireError(f"reply has {reply.body_bytes} bytes of rows, not what the pull asked for")
                for piece in pieces:
                    if piece.nbytes:
                        connection.receive_into(piece)
            elif reply.body_bytes:
                connection.discard(reply.body_bytes)
            return reply
        except (OSError, WireError) as error:
            self._lost(view, server, error)
            return None

    @staticmethod
    def _pieces(sheet: Sheet, arrays: Sequence[np.ndarray], server: int) -> list[np.ndarray]:
        """What of each section belongs to one server."""
        return [one[cuts[server] : cuts[server + 1]] for one, cuts in zip(arrays, sheet.cuts, strict=True)]

    # ---- until done

    def _push_again(self, push: Sheet, left: int, rate: float, skipped: bool) -> None:
        """Send what is not acknowledged by the present routing, with keys, until every vshard has it."""
        flat = _FlatPush(push, self.tables, self.sections)
        first = True
        while left:
            if not first and self._pause():
                raise Interrupted(f"stopped while batch {push.number} was being pushed")
            first = False
            view = self.view
            for server, cover in enumerate(view.covers):
                part = cover & left
                connection = self._connection(view, server) if part else None
                if connection is None:
                    continue
                counts, keys, gradients = flat.part(part, skipped)
                flags = frames.PUSH | (frames.SKIPPED if skipped else frames.KEYS)
                header = RequestHeader(flags, len(self.tables), push.number, 0, 0, rate, 0, part, 0)
                if self._transmit(connection, view, server, header, [counts], keys, gradients, []):
                    reply = self._receive(connection, view, server, None)
                    if reply is not None and reply.push_status == frames.OK:
                        left &= ~(part & ~reply.push_refused)

    def _pull_again(self, pull: Sheet) -> None:
        """Pull by the present routing until every server answered for all its vshards."""
        while True:
            view = self.view
            if pull.routing_version != view.version:
                self._regroup(pull, view)
            _, again = self._fast(view, None, pull, 0.0, False)
            if not again:
                return
            if self._pause():
                raise Interrupted(f"stopped while batch {pull.number} was being pulled")

    def _pause(self) -> bool:
        """A moment before the next try; true when told to stop."""
        self._on_trouble()
        return self._clock.wait(self._stopping, _RETRY_SECONDS)

    # ---- connections

    def _connection(self, view: RoutingView, server: int) -> DataConnection | None:
        process, address = view.routing.processes[server], view.routing.addresses[server]
        known = self._connections.get(process)
        if known is not None or not process or not address:
            return known
        try:
            made = DataConnection(address, self._secret, self._job_id, self._process, self._timeout, expected=process)
        except OSError as error:
            log.info("parameter server %s at %s: %s", process[:12], address, error)
            return None
        except Refused:
            raise
        except WireError as error:
            log.info("parameter server %s at %s: %s", process[:12], address, error)
            return None
        self._connections[process] = made
        return made

    def _lost(self, view: RoutingView, server: int, error: Exception) -> None:
        process = view.routing.processes[server]
        log.info("connection to parameter server %s lost: %s", process[:12], error)
        connection = self._connections.pop(process, None)
        if connection is not None:
            connection.close()


class _FlatPush:
    """A sheet's gradients with each row's table and vshard worked out, so that any part can be cut out of it."""

    def __init__(self, sheet: Sheet, tables: tuple[TableSpec, ...], sections: tuple[Section, ...]) -> None:
        self._tables = tables
        self._pieces = []  # per table: keys, vshards, gradients
        for number, section in enumerate(sections):
            order = np.tile(np.arange(section.first, section.last), len(sheet.counts))
            owner_table = np.repeat(order, sheet.counts[:, section.first : section.last].reshape(-1))
            for table in range(section.first, section.last):
                mine = owner_table == table
                keys = sheet.keys[number][: len(owner_table)][mine]
                gradients = sheet.gradients[number][: len(owner_table)][mine]
                self._pieces.append((keys, vshards(tables[table].name, keys), gradients))

    def part(self, cover: int, skipped: bool) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
        """Counts u32[T], keys and gradients of the rows in `cover`."""
        counts = np.zeros(len(self._tables), np.uint32)
        keys: list[np.ndarray] = []
        gradients: list[np.ndarray] = []
        if skipped:
            return counts, keys, gradients
        raw = np.frombuffer(cover.to_bytes(frames.COVER_BYTES, "little"), np.uint8)
        members = np.unpackbits(raw, bitorder="little").astype(bool)
        for table, (table_keys, where, table_gradients) in enumerate(self._pieces):
            mine = members[where]
            counts[table] = mine.sum()
            keys.append(table_keys[mine])
            gradients.append(table_gradients[mine])
        return counts, keys, gradients


def _with_body(header: RequestHeader, size: int) -> RequestHeader:
    return RequestHeader(
        header.flags, header.tables, header.push_number, header.push_token, header.pull_token, header.learning_rate,
        size, header.push_cover, header.pull_cover,
    )  # fmt: skip
