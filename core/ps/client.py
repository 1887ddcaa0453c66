"""A worker's side of the data plane: push batch i and pull batch i+1, whatever happens to servers and routing.

The fast path is one message per server and nothing else. Everything unusual (a server gone, a vshard moved, a token
void, a newer routing) falls through to the slow path, which repeats until done: pushes go again by the present
routing with explicit keys, only for the vshards not yet acknowledged; a pull is simply made anew. Both are safe to
repeat: servers drop doubles by batch number, and pulls change nothing.

Before anything goes to vshards that have a new owner, the client catches up: it asks which batches are in their rows
and sends again, in the old order, what it still has of those that some lack. After a planned move nothing lacks; after
a crash the rows come out as if there had been none.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import numpy as np

from trimtab.core.clock import Clock
from trimtab.core.domain.model_spec import VSHARDS, TableSpec
from trimtab.core.errors import Interrupted, WireError
from trimtab.core.ps import held
from trimtab.core.ps.gradient_log import LOG_BYTES, GradientLog
from trimtab.core.ps.lines import Lines
from trimtab.core.ps.routing_view import ALL_VSHARDS, RoutingView, covers_of
from trimtab.core.ps.rows import Floats, Int64s
from trimtab.core.ps.sheet import FlatPush, Push, Sheet, sections_of
from trimtab.core.wire import frames
from trimtab.core.wire.frames import Counts, RequestHeader
from trimtab.core.wire.messages import Routing
from trimtab.core.wire.sockets import Buffer, DataConnection

__all__ = ["ALL_VSHARDS", "PsClient", "RoutingView", "covers_of"]

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.01
_TIMEOUT_SECONDS = 20.0


class PsClient:
    """One worker's connections to all parameter servers. Used by one thread; `update` may come from another.

    Attributes:
        view: the routing in use. log: what was pushed lately.
        slow_exchanges: pushes that needed more than one message per server. questions: asked about held batches.
        sent_again: logged pushes that some vshard of a new owner lacked.
    """

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
        log_bytes: int = LOG_BYTES,
    ) -> None:
        """`regroup` lays a sheet out for another routing; `stopping` ends every retry with `Interrupted`.

        `on_trouble` is called before each retry: something is not where the routing says, so a newer one may exist.
        `log_bytes` bounds what is kept of pushes.
        """
        self.tables, self.sections = tables, sections_of(tables)
        self.view = RoutingView.of(Routing())
        self.log = GradientLog(len(tables), self.sections, log_bytes)
        self.slow_exchanges = self.questions = self.sent_again = 0
        self._regroup, self._clock, self._stopping = regroup, clock, stopping
        self._on_trouble = on_trouble
        self._lines = Lines(secret, job_id, process, timeout_seconds)
        self._turns = 0
        self._caught_up = np.full(VSHARDS, -1, np.int64)  # the tenure in which each vshard has all that is logged

    def update(self, routing: Routing) -> None:
        """Use `routing` from the next exchange on, if it is newer."""
        if routing.version > self.view.version:
            self.view = RoutingView.of(routing)

    def close(self) -> None:
        """Break all connections."""
        self._lines.close()

    def take_waits(self) -> dict[str, float]:
        """Seconds that messages and answers took since the last call, by server process; for the one thread."""
        taken, self._lines.waited = self._lines.waited, {}
        return taken

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
        current = push is None or push.routing_version == view.version
        if current and not self._behind(view, in_flight=push is not None):
            left, again = self._fast(view, push, pull, rate, skipped)
        if push is not None:
            if left:
                self.slow_exchanges += 1
                self._push_again(Push.of(push, rate, skipped), left)
            self.log.add(Push.of(push, rate, skipped))  # unless the fast path has
        if again and pull is not None:
            self._pull_again(pull)

    def resend(self, number: int) -> bool:
        """Push a batch once more from the log; false when it is not there. Whoever has it drops it.

        Raises:
            As `exchange`.
        """
        push = self.log.get(number)
        if push is not None:
            self._push_again(push, ALL_VSHARDS)
        return push is not None

    # ---- one message per server

    def _fast(
        self, view: RoutingView, push: Sheet | None, pull: Sheet | None, rate: float, skipped: bool
    ) -> tuple[int, bool]:
        """Returns the vshards whose push is not acknowledged, and whether the pull must be made again."""
        self._lines.forget_gone(view)
        left = ALL_VSHARDS if push is not None else 0
        again = False
        sent: list[tuple[int, DataConnection]] = []
        for server, cover in enumerate(view.covers):
            if not cover:
                continue
            connection = self._lines.to(view, server)
            if connection is None or not self._send(connection, view, server, push, pull, rate, skipped):
                again = again or pull is not None
                continue
            sent.append((server, connection))
        if push is not None:  # here the copy costs no time: the servers are at work, and the gradients in the cache
            self.log.add(Push.of(push, rate, skipped))
        if len(sent) > 1:  # nobody is the first always: what one makes the others wait would stand in its name
            first = self._turns % len(sent)
            sent = sent[first:] + sent[:first]
            self._turns += 1
        for server, connection in sent:
            rows = _pieces(pull, pull.values, server) if pull is not None else []
            reply = self._lines.receive(connection, view, server, rows)
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
                gradients = _pieces(push, push.gradients, server)
        if pull is not None:
            flags |= frames.PULL | (0 if pull.token else frames.DEFAULTS)
            counts.append(pull.counts[server].astype(np.uint32))
            keys = _pieces(pull, pull.keys, server)
        cover = view.covers[server]
        header = RequestHeader(
            flags, len(self.tables), push.number if push else -1, push.token if push else 0,
            pull.token if pull else 0, rate, 0, cover if push else 0, cover if pull else 0,
        )  # fmt: skip
        parts = [(counts, True), (gradients, pull is not None), (keys, False)]
        return self._lines.send(connection, view, server, header, parts)

    # ---- until done

    def _push_again(self, push: Push, left: int) -> None:
        """Send what is not acknowledged by the present routing, with keys, until every vshard has it."""
        flat = FlatPush(push, self.tables, self.sections)
        first = True
        while left:
            if not first and self._pause():
                raise Interrupted(f"stopped while batch {push.number} was being pushed")
            first = False
            view = self.view
            left = self._catch_up(view, push, left)
            ready = left & ~self._behind(view, in_flight=True)
            for server, cover in enumerate(view.covers):
                if cover & ready:
                    left &= ~self._send_part(view, server, flat, cover & ready)

    def _send_part(self, view: RoutingView, server: int, flat: FlatPush, cover: int) -> int:
        """Push the rows in `cover` to one server; returns what it has now (a bitmap)."""
        connection = self._begin_part(view, server, flat.push, cover, flat.part(cover))
        return self._end_part(connection, view, server, cover)

    def _begin_part(
        self, view: RoutingView, server: int, push: Push, cover: int, part: tuple[Counts, list[Int64s], list[Floats]]
    ) -> DataConnection | None:
        """Send a part of a push; the line on which its answer comes, None where it did not get out."""
        connection = self._lines.to(view, server)
        if connection is None:
            return None
        counts, keys, gradients = part
        flags = frames.PUSH | (frames.SKIPPED if push.skipped else frames.KEYS)
        header = RequestHeader(flags, len(self.tables), push.number, 0, 0, push.rate, 0, cover, 0)
        parts: list[tuple[Sequence[Buffer], bool]] = [([counts], True), (keys, True), (gradients, False)]
        return connection if self._lines.send(connection, view, server, header, parts) else None

    def _end_part(self, connection: DataConnection | None, view: RoutingView, server: int, cover: int) -> int:
        """What the server says that it has of a part (a bitmap)."""
        reply = self._lines.receive(connection, view, server) if connection is not None else None
        return cover & ~reply.push_refused if reply is not None and reply.push_status == frames.OK else 0

    def _pull_again(self, pull: Sheet) -> None:
        """Pull by the present routing until every server answered for all its vshards."""
        while True:
            view = self.view
            self._catch_up(view, None, 0)
            if not self._behind(view):
                if pull.routing_version != view.version:
                    self._regroup(pull, view)
                if not self._fast(view, None, pull, 0.0, False)[1]:
                    return
            if self._pause():
                raise Interrupted(f"stopped while batch {pull.number} was being pulled")

    def _pause(self) -> bool:
        """A moment before the next try; true when told to stop."""
        self._on_trouble()
        return self._clock.wait(self._stopping, _RETRY_SECONDS)

    # ---- catching up with new owners

    def _behind(self, view: RoutingView, in_flight: bool = False) -> int:
        """Vshards whose present tenure may lack what was pushed (a bitmap); `in_flight`: some of it is not logged."""
        late = (view.since > self._caught_up) & (view.owner >= 0)
        if not late.any():
            return 0
        if not self.log and not in_flight:
            self._caught_up[late] = view.since[late]
            return 0
        return int.from_bytes(np.packbits(late, bitorder="little").tobytes(), "little")

    def _catch_up(self, view: RoutingView, push: Push | None, left: int) -> int:
        """Let new owners have what they lack of the log, one try each.

        Args:
            push: in flight; `left`: its vshards that are not acknowledged.

        Returns:
            `left` by what the new owners say: an acknowledgement of a former owner may have gone with it.
        """
        behind = self._behind(view, in_flight=push is not None)
        for server, cover in enumerate(view.covers if behind else ()):
            asked = cover & behind
            told = self._ask(view, server, asked) if asked else None
            if told is None or told.vshards != asked or not self._send_lacking(view, server, told):
                continue  # it does not serve all of them yet, or no longer
            new = held.bits_of(asked)
            self._caught_up[new] = told.since[new]
            if push is not None:
                left &= ~asked
                left |= 0 if push.number in self.log else told.lacking(push.number)
        return left

    def _ask(self, view: RoutingView, server: int, vshards: int) -> held.Told | None:
        """Which batches are in the rows of `vshards` at one server."""
        connection = self._lines.to(view, server)
        if connection is None:
            return None
        self.questions += 1
        body = held.question(vshards)
        header = RequestHeader(frames.HELD, len(self.tables))
        data = self._lines.ask(connection, view, server, header, body, held.MAX_ANSWER_BYTES)
        if data is None:
            return None
        try:
            return held.told(data, vshards, view.since)
        except WireError as error:
            self._lines.lost(view, server, error)
            return None

    def _send_lacking(self, view: RoutingView, server: int, told: held.Told) -> bool:
        """Send what is logged and lacking, oldest first; false when not all of it arrived."""
        common = told.common()
        sent, under_way, line = 0, 0, None
        for number in self.log.numbers():
            lacking = told.lacking(number) if number not in common else 0
            push = self.log.get(number) if lacking else None
            if push is None:
                continue
            part = FlatPush(push, self.tables, self.sections).part(lacking)  # while the server is at the one before
            if self._end_part(line, view, server, under_way) != under_way or self._stopping.is_set():
                return False
            line, under_way = self._begin_part(view, server, push, lacking, part), lacking
            sent += 1
        if self._end_part(line, view, server, under_way) != under_way:
            return False
        if sent:
            self.sent_again += sent
            log.info("sent %d batches again to parameter server %s", sent, view.routing.processes[server][:12])
        return True


def _pieces(sheet: Sheet, arrays: Sequence[np.ndarray], server: int) -> list[np.ndarray]:
    """What of each section belongs to one server."""
    return [one[cuts[server] : cuts[server + 1]] for one, cuts in zip(arrays, sheet.cuts, strict=True)]
