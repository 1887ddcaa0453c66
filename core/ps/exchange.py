"""What a parameter server does with one frame: apply the push, answer the pull, under one lock.

The rules are those of "How exactly-once works" (docs/design.md), in this order: a push names the vshards it covers;
those that this process does not serve are refused and reported, those that have the number already are dropped, the
rest is applied and marked together. Everything that can fail happens before the first row changes; a failure after
that ends the process, because its rows could no longer be trusted. A pull changes nothing.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.core.errors import WireError
from trimtab.core.ps.applied import AppliedSets
from trimtab.core.ps.rows import Floats
from trimtab.core.ps.table import Found, RowTable, TableFull
from trimtab.core.ps.tokens import Token, TokenStore
from trimtab.core.ps.traffic import Traffic
from trimtab.core.ps.watch import Watch, members
from trimtab.core.wire import frames
from trimtab.core.wire.frames import ReplyHeader, RequestBody, RequestHeader

_KEPT_FLOATS = 16 << 20  # a connection's reply buffer is kept up to this size
_RESERVED_EXIT = 70  # a push failed half-way: the rows are void, and so is this process


@dataclass
class Counters:
    """Since the process started.

    Attributes:
        pushes, duplicates, slow: pushes that were applied, dropped as doubles, on the slow path.
        bytes: of applied gradients. crowded: pushes that were refused because their new rows had no room.
        busy_seconds: in which frames of workers were handled; the lock is held for it, so it is a share of the time.
        queue_seconds: in which they waited for the lock, all of them together.
    """

    pushes: int = 0
    duplicates: int = 0
    slow: int = 0
    bytes: int = 0
    crowded: int = 0
    busy_seconds: float = 0.0
    queue_seconds: float = 0.0


class Exchange:
    """The data-plane half of a parameter server."""

    def __init__(
        self, table: RowTable, batches: int, die: Callable[[int], None] = os._exit
    ) -> None:
        """`batches` is N: numbers outside 0 .. N-1 are refused. `die` is replaced in tests."""
        self.table, self.sets, self.lock = table, AppliedSets(), threading.Lock()
        self.served = 0  # vshards that take pushes
        self.watch = Watch(table)
        self.counters = Counters()
        self.give_way: Callable[[], None] = lambda: None  # between two of many short holds of the lock
        self.wait_for_room: Callable[[], None] = lambda: None  # before a push is refused for want of room
        self._batches, self._die = batches, die
        self._tokens = TokenStore()
        self._traffic = Traffic(table)
        self._buffers = threading.local()

    def handle(
        self, worker: str, header: RequestHeader, body: npt.NDArray[np.uint8]
    ) -> tuple[ReplyHeader, Sequence[npt.NDArray[np.generic] | bytes]]:
        """One frame of one worker. Raises WireError for a frame that breaks the protocol; nothing changed then."""
        parsed = frames.parse_body(header, body, self.table.dims)
        arrived = time.perf_counter()
        with self.lock:
            began = time.perf_counter()
            crowded = self.counters.crowded
            try:
                answer = self._handled(worker, header, parsed)
            finally:
                self.counters.queue_seconds += began - arrived
                self.counters.busy_seconds += time.perf_counter() - began
            crowded = self.counters.crowded - crowded
        if crowded:  # it would come again at once, and cost what others need
            self.wait_for_room()
        return answer

    def _handled(
        self, worker: str, header: RequestHeader, parsed: RequestBody
    ) -> tuple[ReplyHeader, Sequence[npt.NDArray[np.generic] | bytes]]:
        """The answer to a frame; the lock is held."""
        push_status, refused, dropped = self._push(worker, header, parsed)
        if parsed.pull_keys is None:
            return ReplyHeader(push_status, frames.NONE, 0, dropped, refused), []
        if push_status == frames.NEED_KEYS:
            return ReplyHeader(push_status, frames.NEED_KEYS, 0, dropped, refused), []
        rows = self._pull(worker, header, parsed)
        missing = header.pull_cover & (~self.served | refused)  # what was served when the rows were read
        return ReplyHeader(push_status, frames.OK, rows.nbytes, dropped, refused, missing), [rows]

    def take_traffic(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Bytes of applied gradients to each vshard and each table since the last call. The caller holds the lock."""
        return self._traffic.take()

    def _push(self, worker: str, header: RequestHeader, body: RequestBody) -> tuple[int, int, int]:
        """Status, refused vshards, how many had the number already.

        Without room for new rows all is refused that would have to be applied, and nothing has changed: the worker
        sends it again until the table may grow, or somebody else serves these vshards.
        """
        if body.push_counts is None or body.gradients is None:
            return frames.NONE, 0, 0
        number, cover = header.push_number, header.push_cover
        if not 0 <= number < self._batches:
            raise WireError(f"batch {number} is outside this job's 0 .. {self._batches - 1}")
        if not math.isfinite(header.learning_rate):
            raise WireError(f"learning rate {header.learning_rate} of batch {number} is not finite")
        refused = cover & ~self.served
        lacking = self.sets.lacking(number, cover & self.served)
        dropped = (cover & self.served & ~lacking).bit_count()
        self.counters.duplicates += bool(dropped)
        self.counters.slow += bool(refused or dropped)
        if not lacking:
            return frames.OK, refused, dropped
        skipped = bool(header.flags & frames.SKIPPED)
        found, gradients, newborn = None, body.gradients, None
        if not skipped:
            found = self._rows_of_push(worker, header, body)
            if found is None:
                self.counters.slow += 1
                return frames.NEED_KEYS, 0, 0
            try:
                if lacking != cover:
                    found, gradients = self._only(found, gradients, lacking)
                newborn = found.places < 0 if found.absent else None
                found = self.table.bear(found)
            except TableFull:
                self.counters.crowded += 1
                self.counters.slow += 1
                return frames.OK, refused | lacking, dropped
        self._apply(found, gradients, header.learning_rate, number, lacking, newborn)
        self.counters.pushes += 1
        self.counters.bytes += gradients.nbytes if found is not None else 0
        return frames.OK, refused, dropped

    def _rows_of_push(self, worker: str, header: RequestHeader, body: RequestBody) -> Found | None:
        """Where the gradients belong: by keys or by token; None to ask for keys."""
        counts = body.push_counts
        assert counts is not None
        if body.push_keys is not None:
            found = self.table.find(body.push_keys, counts)
            if self._outside(found, header.push_cover):
                raise WireError("push has keys in vshards that it does not name")
            return found
        token = self._tokens.take(worker, header.push_token, self._still_holds)
        if token is None or token.cover != header.push_cover:
            return None
        if not np.array_equal(np.cumsum(counts, dtype=np.int64), token.found.ends):
            raise WireError("push counts are not those of the pull that its token names")
        if token.found.absent:  # another push may have borne them meanwhile
            return self.table.find(token.found.keys, counts)
        return token.found

    def _still_holds(self, token: Token) -> bool:
        return self.table.intact(token.cover, token.generation)

    def _outside(self, found: Found, cover: int) -> bool:
        return not bool(members(cover)[self.table.vshards(found)].all())

    def _only(self, found: Found, gradients: Floats, cover: int) -> tuple[Found, Floats]:
        """The part of a push that belongs to `cover`."""
        keep = members(cover)[self.table.vshards(found)]
        parts, ends, at, start, total = [], [], 0, 0, 0
        for number, dim in enumerate(self.table.dims.tolist()):
            end = int(found.ends[number])
            mine = keep[start:end]
            until = at + (end - start) * dim
            parts.append(gradients[at:until].reshape(-1, dim)[mine].reshape(-1))
            total += int(mine.sum())
            ends.append(total)
            at, start = until, end
        places = found.places[keep]
        kept = Found(found.keys[keep], np.array(ends, np.int64), places, int((places < 0).sum()))
        return kept, np.concatenate(parts)

    def _apply(
        self,
        found: Found | None,
        gradients: Floats,
        rate: float,
        number: int,
        cover: int,
        newborn: npt.NDArray[np.bool_] | None,
    ) -> None:
        """Change the rows and mark the number, both or neither; without rows the number is marked as skipped."""
        try:
            if found is not None:
                touched = self.watch.before(found, newborn) if self.watch.mask & cover else None
                self.table.update(found, gradients, rate)
                self._traffic.add(found, gradients.nbytes)
                if touched is not None:
                    self.watch.after(touched)
            self.sets.mark(number, cover, skipped=found is None)
        except BaseException:
            self._die(_RESERVED_EXIT)
            raise

    def _pull(self, worker: str, header: RequestHeader, body: RequestBody) -> Floats:
        """The rows of the pull half, also of vshards that are not served (the reply names those)."""
        counts, keys = body.pull_counts, body.pull_keys
        assert counts is not None and keys is not None
        keep = header.pull_token != 0
        found = self.table.find(keys.copy() if keep else keys, counts)  # the receive buffer is used again
        rows = self._buffer(int(counts.astype(np.int64) @ self.table.dims))
        self.table.read(found, bool(header.flags & frames.DEFAULTS), rows)
        if keep and not self._outside(found, header.pull_cover):  # a push by token is not checked key by key
            self._tokens.put(worker, header.pull_token, Token(found, header.pull_cover, self.table.generation))
        return rows

    def _buffer(self, floats: int) -> Floats:
        """This connection thread's reply buffer: free again when its next request arrives."""
        held: Floats | None = getattr(self._buffers, "rows", None)
        if held is None or len(held) < floats:
            if floats > _KEPT_FLOATS:  # one huge pull must not keep its room for the connection's life
                return frames.aligned(floats * 4).view(np.float32)
            held = frames.aligned(max(floats, 1 << 16) * 4 * 3 // 2 // 64 * 64).view(np.float32)
            self._buffers.rows = held
        return held[:floats]

