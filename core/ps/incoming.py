"""The side of a move that takes: keeps vshards of another parameter server aside, refreshes them, takes them over.

The bulk is copied while its owner goes on serving. Taking over then costs what changed since the last refresh: the
owner ends its tenure, sends these rows, the sets and sums, and if the copy comes to the same sums it is served; if not,
it is thrown away and copied whole. Rows that are kept aside lie in the table already, but they are never served and
never count as a copy: what was here before of such a vshard is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import numpy as np

from trimtab.core.clock import Clock
from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.errors import WireError
from trimtab.core.ps.holdings import Holdings
from trimtab.core.ps.rows import Floats
from trimtab.core.ps.table import Found, TableFull
from trimtab.core.ps.watch import members, slices
from trimtab.core.wire import frames
from trimtab.core.wire.encode import from_json, to_json
from trimtab.core.wire.frames import RequestHeader
from trimtab.core.wire.messages import (
    MoveReply,
    MoveRequest,
    Origin,
    PrepareOrder,
    Served,
    ServeOrder,
    Staged,
    VshardSum,
    from_bitmap,
    to_bitmap,
)
from trimtab.core.wire.sockets import DataConnection

log = logging.getLogger(__name__)

Dial = Callable[[str, str], DataConnection]  # address and process of a parameter server

RESERVE = 0.1  # of a table's memory: kept for new rows while others' rows are kept aside
_PIECE = 64  # vshards asked for by one request; the origin answers with as many as make a piece
_TAKEN = 4  # vshards copied whole by one request when their tenure ends with it
_MOST_CHANGED = 1_000_000  # keys in the origin's list of changes: then they are asked for though there is more to copy
_SLICE = 8192  # rows put into the table with the lock held once
_MOST_REFRESHES = 6  # before a tenure is ended
_STILL_LESS = 0.8
_TRIES = 3  # a copy whose sums differ is made whole so often before it is a fault


class Incoming:
    """Vshards on their way to one server. Used by the server's one order thread."""

    def __init__(self, holdings: Holdings, dial: Dial | None, clock: Clock) -> None:
        self.freeze_seconds = 0.0  # the longest that vshards on their way here were served by nobody
        self._holdings, self._dial, self._clock = holdings, dial, clock
        self._exchange = holdings.exchange
        self._table = holdings.exchange.table
        self._aside: dict[int, Origin] = {}  # by vshard: whose rows lie here; their sums are in `_sums`
        self._sums = np.zeros(VSHARDS, np.uint64)
        self._refreshed: dict[tuple[str, int], int] = {}
        self._connections: dict[str, DataConnection] = {}

    def staged(self) -> tuple[Staged, ...]:
        """What is kept aside and has been refreshed at least once, by origin."""
        by_origin: dict[tuple[str, int], list[int]] = {}
        for vshard, origin in tuple(self._aside.items()):
            by_origin.setdefault((origin.process, origin.since), []).append(vshard)
        return tuple(
            Staged(to_bitmap(vshards), process, since, rows)
            for (process, since), vshards in by_origin.items()
            if (rows := self._refreshed.get((process, since))) is not None  # the order thread may take it away
        )

    # ---- beforehand

    def prepare(self, order: PrepareOrder) -> bool:
        """One piece of an order's work; returns whether more of it is left that should not wait.

        Raises:
            OSError, WireError: the origin does not answer. TableFull: no room.
        """
        lacking = [vshard for vshard in from_bitmap(order.vshards) if self._lacks(vshard, order.origin)]
        if lacking:
            # Rows that change all the time are sent once, at the end, and not again and again on the way there.
            if self._stage(lacking[:_PIECE], order.origin) > _MOST_CHANGED:
                self._refresh(order)
            return True
        self._refresh(order)
        return False

    def keep_only(self, orders: tuple[PrepareOrder, ...]) -> None:
        """Throw away what no order asks for any more, a few vshards at a time, and lines to nobody that is named."""
        wanted = {vshard: order.origin for order in orders for vshard in from_bitmap(order.vshards)}
        gone = [vshard for vshard, origin in self._aside.items() if wanted.get(vshard) != origin]
        for vshard in gone:
            if self._holdings.wanted[vshard] <= self._holdings.since[vshard]:  # else it is about to be taken over
                with self._exchange.lock:
                    self._forget(vshard)
                self._exchange.give_way()
        named = {order.origin.process for order in orders} | {origin.process for origin in self._aside.values()}
        for process in self._connections.keys() - named:
            self._connections.pop(process).close()

    def holds_any(self) -> bool:
        """Whether anything is kept aside, or a line is open."""
        return bool(self._aside or self._connections)

    def discard(self, vshard: int) -> None:
        """Nothing of `vshard` shall be here any more; the lock is held."""
        self._forget(vshard)

    def _lacks(self, vshard: int, origin: Origin) -> bool:
        """Whether a vshard should be kept aside and is not. One that this server holds newer is left alone."""
        if self._aside.get(vshard) == origin:
            return False
        served = self._exchange.served >> vshard & 1
        return not served and self._holdings.since[vshard] < origin.since

    def _stage(self, vshards: list[int], origin: Origin) -> int:
        """Keep whole vshards aside, as many of them as the origin sends; returns how many keys have changed there."""
        reply, found, rows = self._ask(origin, MoveRequest(to_bitmap(vshards), origin.since))
        covered = from_bitmap(reply.vshards)
        self._refreshed.pop((origin.process, origin.since), None)
        with self._exchange.lock:
            for vshard in covered:
                self._forget(vshard)
            self._keep_reserve(rows)
        try:
            self._put_sliced(found, rows)
        except TableFull:
            with self._exchange.lock:
                for vshard in covered:
                    self._forget(vshard)
            raise
        for vshard in covered:
            self._aside[vshard] = origin
        if not covered:
            raise WireError(f"parameter server {origin.process[:12]} does not serve what was to be prepared")
        return reply.changed

    def _refresh(self, order: PrepareOrder) -> None:
        vshards = [vshard for vshard in from_bitmap(order.vshards) if vshard in self._aside]
        if not vshards:
            return
        origin = order.origin
        asked = to_bitmap(vshards)
        try:
            reply, found, rows = self._ask(origin, MoveRequest(asked, origin.since, changes=True))
        except (OSError, WireError):  # the origin may have given its list of changes to nobody
            with self._exchange.lock:
                for vshard in vshards:
                    self._forget(vshard)
            raise
        self._put_sliced(found, rows)
        with self._exchange.lock:
            for vshard in set(vshards) - set(from_bitmap(reply.vshards)):  # the origin has lost track of these
                self._forget(vshard)
        if len(vshards) == len(from_bitmap(order.vshards)):
            self._refreshed[origin.process, origin.since] = len(found.keys)

    # ---- taking over

    def take_over(self, order: ServeOrder, origin: Origin) -> int:
        """End the origin's tenure and serve the vshards of `order` (those still wanted); returns them as a bitmap.

        What is missing in the answer is not held there in that tenure.

        Raises:
            OSError, WireError: the origin does not answer; nothing is served that is not complete.
        """
        holdings = self._holdings
        wanted = [
            vshard for vshard in from_bitmap(order.vshards)
            if holdings.wanted[vshard] == order.since > holdings.since[vshard]  # an order comes again when part is done
        ]  # fmt: skip
        prepared = [vshard for vshard in wanted if self._aside.get(vshard) == origin]
        done = 0
        if prepared:
            self._catch_up(prepared, origin)
            request = MoveRequest(to_bitmap(prepared), origin.since, changes=True, final=True)
            asked_at = self._clock.now()
            done |= self._complete(order.since, *self._ask(origin, request))
            self._was_frozen(asked_at, done)
        left = [vshard for vshard in wanted if not done >> vshard & 1]
        for at in range(0, len(left), _TAKEN):
            done |= self._take_whole(left[at : at + _TAKEN], order.since, origin)
        return done

    def _catch_up(self, vshards: list[int], origin: Origin) -> None:
        """Refresh while the origin still serves, so that what is left to send when nobody does is next to nothing.

        Each refresh leaves what changed while it was made, so it pays again as long as that becomes less.
        """
        before = np.inf
        for _ in range(_MOST_REFRESHES):
            _, found, rows = self._ask(origin, MoveRequest(to_bitmap(vshards), origin.since, changes=True))
            self._put_sliced(found, rows)
            if len(found.keys) > _STILL_LESS * before:
                break
            before = len(found.keys)

    def _take_whole(self, vshards: list[int], since: int, origin: Origin) -> int:
        """Copy vshards whole after their tenure has ended, and serve them."""
        for _ in range(_TRIES):
            with self._exchange.lock:
                for vshard in vshards:
                    self._forget(vshard)
            asked, asked_at = MoveRequest(to_bitmap(vshards), origin.since, final=True), self._clock.now()
            reply, found, rows = self._ask(origin, asked)
            done = self._complete(since, reply, found, rows)
            self._was_frozen(asked_at, done)
            if done == int(reply.vshards, 16):
                return done
        raise WireError(f"rows of vshards {vshards} from {origin.process[:12]} never came to the sums that it tells")

    def _was_frozen(self, asked_at: float, done: int) -> None:
        """Note how long a hand-over took, from before the origin was asked to end the tenure until all was served."""
        seconds = self._clock.now() - asked_at
        self.freeze_seconds = max(self.freeze_seconds, seconds)
        log.info("%d vshards were frozen for at most %.4f s", done.bit_count(), seconds)

    def _complete(self, since: int, reply: MoveReply, found: Found, rows: list[Floats]) -> int:
        """Take the last rows in, and serve every vshard whose count and sum are as told."""
        sets = {vshard: told for told in reply.served for vshard in from_bitmap(told.vshards)}
        done = 0
        with self._exchange.lock:
            self._put(found, rows)
            for told in reply.sums:
                if self._comes_to(told) and told.vshard in sets:
                    self._serve(told.vshard, since, sets[told.vshard])
                    done |= 1 << told.vshard
                else:
                    log.error("vshard %d does not come to the sum that its origin tells", told.vshard)
                    self._forget(told.vshard)
        return done

    def _comes_to(self, told: VshardSum) -> bool:
        rows = int(self._table.index.counts[told.vshard])
        return rows == told.rows and int(self._sums[told.vshard]) == told.total

    def _serve(self, vshard: int, since: int, told: Served) -> None:
        self._exchange.sets.put(1 << vshard, IntervalSet(told.applied), IntervalSet(told.skipped))
        self._holdings.serve(vshard, since)
        self._aside.pop(vshard, None)

    # ---- rows

    def _put(self, found: Found, rows: list[Floats]) -> None:
        """Write whole rows and keep the sums of what lies here; the lock is held."""
        fresh = self._table.find(found.keys, np.diff(found.ends, prepend=0).astype(np.uint32))
        self._table.add_sums(fresh, self._sums, negative=True)
        self._table.add_sums(self._table.write(fresh, rows), self._sums)

    def _put_sliced(self, found: Found, rows: list[Floats]) -> None:
        """As `_put`, of rows that nobody is served from: training here waits for a slice at most."""
        for part, part_rows in _slices(found, rows):
            with self._exchange.lock:
                self._put(part, part_rows)
            self._exchange.give_way()

    def _keep_reserve(self, rows: list[Floats]) -> None:
        """Refuse what would leave training's own new rows without room; the lock is held."""
        table = self._table
        need = table.bytes_used + sum(part.nbytes for part in rows)
        if need > table.memory_bytes * (1 - RESERVE):
            raise TableFull(
                f"table of {table.bytes_used} bytes has no room to take more over within its limit of "
                f"{table.memory_bytes}: give the parameter servers more memory, or more of them"
            )

    def _forget(self, vshard: int) -> None:
        """Nothing of `vshard` is here any more; the lock is held."""
        self._holdings.empty(vshard)
        self._sums[vshard] = 0
        self._aside.pop(vshard, None)

    # ---- the line

    def _ask(self, origin: Origin, request: MoveRequest) -> tuple[MoveReply, Found, list[Floats]]:
        """One request to the origin; a line that breaks is given up, and dialled anew by the next one."""
        if self._dial is None:
            raise WireError("this server has no way to other parameter servers")
        connection = self._connections.get(origin.process)
        if connection is None:
            connection = self._connections[origin.process] = self._dial(origin.address, origin.process)
        try:
            return self._exchange_once(connection, request)
        except (OSError, WireError):
            self._connections.pop(origin.process).close()
            raise

    def _exchange_once(self, connection: DataConnection, request: MoveRequest) -> tuple[MoveReply, Found, list[Floats]]:
        body = to_json(request)
        tables = self._table.tables
        connection.send(RequestHeader(frames.MOVE, len(tables), body_bytes=len(body)), [body])
        header = connection.receive_header()
        length = int.from_bytes(connection.discard(8), "little")
        if 8 + length > header.body_bytes:
            raise WireError(f"answer of {header.body_bytes} bytes to a move has a head of {length}")
        reply = from_json(MoveReply, connection.discard(length))
        if len(reply.counts) != len(tables) or int(reply.vshards, 16) & ~int(request.vshards, 16):
            raise WireError("answer to a move is about other tables or vshards than were asked for")
        widths = [self._table.width(number) for number in range(len(tables))]
        floats = sum(count * width for count, width in zip(reply.counts, widths, strict=True))
        if min(reply.counts) < 0 or 8 + length + 8 * sum(reply.counts) + 4 * floats != header.body_bytes:
            raise WireError(f"answer of {header.body_bytes} bytes to a move is not as long as its counts ask for")
        keys = np.empty(sum(reply.counts), np.int64)
        if len(keys):
            connection.receive_into(keys)
        rows = []
        for count, width in zip(reply.counts, widths, strict=True):
            part = np.empty((count, width), np.float32)
            if count:
                connection.receive_into(part)
            rows.append(part)
        found = Found(keys, np.cumsum(reply.counts, dtype=np.int64), keys, 0)
        if not members(int(reply.vshards, 16))[self._table.vshards(found)].all():
            raise WireError("answer to a move has rows of vshards that it does not name")
        return reply, found, rows


def _slices(found: Found, rows: list[Floats]) -> Iterator[tuple[Found, list[Floats]]]:
    """Rows some thousand at a time, as messages and tables want them: table after table."""
    starts = np.concatenate(([0], found.ends[:-1]))
    for lo, hi, begin, end in slices(found.ends, _SLICE):
        part = [one[a - s : b - s] for one, a, b, s in zip(rows, begin, end, starts, strict=True)]
        yield Found(found.keys[lo:hi], np.cumsum(end - begin, dtype=np.int64), found.keys[lo:hi], 0), part
