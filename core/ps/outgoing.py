"""The side of a move that gives: answers another parameter server's requests for rows.

Rows go in pieces with the lock held for some thousand of them at a time, so training does not notice, and a server that
is busy all the time, whose lock comes by turns, does not need hundreds of turns for one small table. The last request
ends the tenure; what is left to send then are the rows changed since the one before, and the sum that proves the copy.
Asking again is harmless: an ended tenure's rows do not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.errors import WireError
from trimtab.core.ps.holdings import Holdings
from trimtab.core.ps.rows import Floats
from trimtab.core.ps.table import Found
from trimtab.core.ps.watch import Changes, slices
from trimtab.core.wire import frames
from trimtab.core.wire.encode import from_json, to_json
from trimtab.core.wire.frames import ReplyHeader
from trimtab.core.wire.messages import MoveReply, MoveRequest, Served, VshardSum, from_bitmap

_SLICE = 8192  # rows read with the lock held once
_MOST_ROWS = 4 * _SLICE  # in one answer of whole vshards, or one vshard: the rest is asked for again
_MOST_FINAL = 8  # vshards in one answer that ends their tenure; all at once would need as much memory as the table

Buffers = Sequence[npt.NDArray[np.generic] | bytes]


class Outgoing:
    """Answers `MoveRequest`s from what one server holds."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._exchange = holdings.exchange
        self._table = holdings.exchange.table

    def handle(self, body: npt.NDArray[np.uint8]) -> tuple[ReplyHeader, Buffers]:
        """One request, as a frame's handler. Raises WireError for a body that is none."""
        request = from_json(MoveRequest, body.tobytes())
        reply, keys, rows = self._changes(request) if request.changes else self._whole(request)
        head = to_json(reply)
        length = len(head).to_bytes(8, "little")
        sections: list[npt.NDArray[np.generic] | bytes] = [length, head, keys, *rows]
        size = 8 + len(head) + keys.nbytes + sum(one.nbytes for one in rows)
        return ReplyHeader(frames.NONE, frames.OK, size), sections

    def _whole(self, request: MoveRequest) -> tuple[MoveReply, npt.NDArray[np.int64], list[Floats]]:
        """All rows of the vshards, or of the first of them; from now on they are watched, or their tenure has ended."""
        vshards, covered, total, changed = from_bitmap(request.vshards), 0, 0, 0
        if request.final and len(vshards) > _MOST_FINAL:
            raise WireError(f"move ends the tenure of {len(vshards)} vshards at once; {_MOST_FINAL} are the most")
        parts: list[tuple[Found, tuple[Floats, ...]]] = []
        sums: list[VshardSum] = []
        sets: list[Served] = []
        for few in self._few(vshards, _SLICE):
            with self._exchange.lock:
                for vshard in few:
                    bit = self._holds(vshard, request)
                    if not bit:
                        continue
                    found = self._exchange.watch.begin(vshard)
                    sums.append(VshardSum(vshard, len(found.keys), int(self._exchange.watch.sums[vshard])))
                    parts.append((found, self._table.whole_rows(found)))
                    covered, total = covered | bit, total + len(found.keys)
                    if request.final:
                        sets += self._told(bit)  # under the same lock as the rows
                        self._exchange.watch.end(bit)
                changed = self._exchange.watch.logged
            self._exchange.give_way()
            if total >= _MOST_ROWS and not request.final:
                break
        keys, table_rows, counts = _by_table(parts, len(self._table.tables))
        reply = MoveReply(_bits(covered), counts, tuple(sets), tuple(sums) if request.final else (), changed)
        return reply, keys, table_rows

    def _few(self, vshards: Sequence[int], rows: int) -> Iterator[list[int]]:
        """The vshards, so many at a time that together they have about so many rows, and one at least."""
        few: list[int] = []
        size = 0
        for vshard in vshards:
            count = int(self._table.index.counts[vshard])
            if few and size + count > rows:
                yield few
                few, size = [], 0
            few.append(vshard)
            size += count
        if few:
            yield few

    def _holds(self, vshard: int, request: MoveRequest) -> int:
        if request.final:
            return self._holdings.end_tenure([vshard], request.since)
        served = self._exchange.served >> vshard & 1
        return 1 << vshard if served and self._holdings.since[vshard] == request.since else 0

    def _changes(self, request: MoveRequest) -> tuple[MoveReply, npt.NDArray[np.int64], list[Floats]]:
        """Rows that changed since they were asked for last, of vshards that are watched.

        What the lock is held for is short; when the tenure has ended, nothing of it can change afterwards either.
        """
        watch = self._exchange.watch
        sums: list[VshardSum] = []
        told: tuple[Served, ...] = ()
        with self._exchange.lock:
            covered = 0
            for vshard in from_bitmap(request.vshards):
                if watch.mask >> vshard & 1:
                    covered |= self._holds(vshard, request)
            log = watch.take()
            if request.final:
                counts = self._table.index.counts
                sums = [
                    VshardSum(vshard, int(counts[vshard]), int(watch.sums[vshard]))
                    for vshard in from_bitmap(_bits(covered))
                ]
                told = self._told(covered)
                watch.end(covered)
        changes, rest = watch.sorted_out(log, covered)
        with self._exchange.lock:
            watch.give_back(rest)
        rows = self._read(changes, request.final)
        counts_told = tuple(np.diff(changes.ends, prepend=0).tolist())
        return MoveReply(_bits(covered), counts_told, told, tuple(sums)), changes.keys, rows

    def _read(self, changes: Changes, final: bool) -> list[Floats]:
        """Whole rows by table, the lock held for a slice at a time; what changes meanwhile is in the next list."""
        pieces: list[tuple[Floats, ...]] = []
        size = max(len(changes.keys), 1) if final else _SLICE  # when the tenure has ended, nobody waits for the lock
        for lo, hi, begin, end in slices(changes.ends, size):
            counts = (end - begin).astype(np.uint32)
            with self._exchange.lock:
                part = self._table.find(changes.keys[lo:hi], counts)
                if part.absent:
                    raise WireError("rows that changed are gone: their vshard was dropped meanwhile")
                pieces.append(self._table.whole_rows(part))
            if not final:
                self._exchange.give_way()
        if len(pieces) == 1:
            return list(pieces[0])
        return [np.concatenate([piece[number] for piece in pieces]) for number in range(len(changes.ends))]

    def _told(self, covered: int) -> tuple[Served, ...]:
        """The sets of `covered`, by class; the tenure in it is of no interest to the receiver. The lock is held."""
        return tuple(
            Served(_bits(one.members & covered), 0, one.applied.intervals, one.skipped.intervals)
            for one in self._exchange.sets.classes()
            if one.members & covered
        )


def _bits(vshards: int) -> str:
    return f"{vshards:0{VSHARDS // 4}x}"


def _by_table(
    parts: list[tuple[Found, tuple[Floats, ...]]], tables: int
) -> tuple[npt.NDArray[np.int64], list[Floats], tuple[int, ...]]:
    """Several vshards' rows, table after table."""
    keys: list[npt.NDArray[np.int64]] = []
    rows: list[Floats] = []
    counts = []
    for number in range(tables):
        mine = [found.keys[(found.ends[number - 1] if number else 0) : found.ends[number]] for found, _ in parts]
        joined = np.concatenate(mine) if mine else np.empty(0, np.int64)
        keys.append(joined)
        counts.append(len(joined))
        rows.extend(table_rows[number] for _, table_rows in parts)
    return np.concatenate(keys), [np.ascontiguousarray(one) for one in rows], tuple(counts)
