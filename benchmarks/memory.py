"""A parameter server's table as it grows to 20 million rows, and after half of it has left.

One server's table (dimension 16, Adagrad: 128 bytes per row) grows by pushes of 26,000 keys that nobody has seen, each
a real frame, as in the first steps of a job. Times are CPU seconds of the pushing thread, page faults included: others
on the machine do not count. A virtual machine may not have its memory yet: its host takes 5 to 25 ms to give 2 MB of
it. So this process holds memory that it has touched, and lets a little go before each push. Growth falls on the same
pushes every time, disturbances do not: the table is grown three times, and the shortest of three counts for each push.
After the first time every second vshard is dropped, as after a move, and the table is compacted.
"""

from __future__ import annotations

import gc
import mmap
import os
import statistics
import sys
import time

import numpy as np
from figures import Figure, options, report

DIM, KEYS = 16, 26_000
MILLION = 1_000_000
MEMORY_BYTES = 8 << 30
REPEATS = 3
HALF = range(0, 512, 2)
AT_HAND = 8 << 20  # bytes that a push may touch for the first time: rows, and segments that grow


def resident() -> int:
    """This process's resident bytes."""
    with open("/proc/self/statm") as file:  # noqa: PTH123 - read often
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


class AtHand:
    """Memory that was touched and is let go bit by bit."""

    def __init__(self, nbytes: int) -> None:
        self._space = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._space.madvise(mmap.MADV_HUGEPAGE)
        np.frombuffer(self._space, np.uint8)[:: mmap.PAGESIZE] = 1
        self.left = nbytes

    def let_go(self, nbytes: int) -> None:
        """Give `nbytes` back to the system, which has them at hand for whoever asks next."""
        nbytes = min(nbytes, self.left)
        if nbytes:
            self.left -= nbytes
            self._space.madvise(mmap.MADV_DONTNEED, self.left, nbytes)


class Server:
    """One exchange, and frames that push to it."""

    def __init__(self, pushes: int) -> None:
        from trimtab.core.domain.intervals import EMPTY
        from trimtab.core.domain.model_spec import InitializerSpec, OptimizerSpec, TableSpec
        from trimtab.core.ps.exchange import Exchange
        from trimtab.core.ps.table import RowTable
        from trimtab.core.wire import frames

        spec = TableSpec("t", DIM, "embedding", 0, InitializerSpec("uniform", -0.05, 0.05), OptimizerSpec("adagrad"))
        self.table = RowTable((spec,), 1, MEMORY_BYTES)
        self.exchange = Exchange(self.table, pushes)
        self.exchange.served = self.cover = (1 << 512) - 1
        self.exchange.sets.put(self.cover, EMPTY, EMPTY)
        self.frames = frames
        self.body = frames.aligned(64 + frames.padded(8 * KEYS) + 4 * KEYS * DIM)
        self.body[:4].view(np.uint32)[0] = KEYS
        self.keys = self.body[64 : 64 + 8 * KEYS].view(np.int64)
        self.body[64 + frames.padded(8 * KEYS) :].view(np.float32)[:] = 1e-3
        self.pushed = 0
        self.at_hand = AtHand(pushes * AT_HAND)
        self.empty = 0

    def resident(self) -> int:
        """Resident bytes of all but the memory at hand."""
        return resident() - self.at_hand.left

    def push(self) -> float:
        """One push of keys that are new; returns its CPU seconds."""
        first = self.pushed * KEYS
        self.keys[:] = np.arange(first, first + KEYS) * 7_919 + 13
        header = self.frames.RequestHeader(
            self.frames.PUSH | self.frames.KEYS, 1, self.pushed, learning_rate=0.01,
            body_bytes=len(self.body), push_cover=self.cover,
        )  # fmt: skip
        self.at_hand.let_go(AT_HAND)
        start = time.thread_time()
        reply, _ = self.exchange.handle("w", header, self.body)
        took = time.thread_time() - start
        if reply.push_status != self.frames.OK:
            raise RuntimeError(f"push {self.pushed} was answered with status {reply.push_status}")
        self.pushed += 1
        return took


def pause_of(times: list[tuple[int, float]]) -> float:
    """The longest push minus the median of its size class: pushes that began with the same power of two of rows."""
    classes: dict[int, list[float]] = {}
    for rows, took in times:
        classes.setdefault(max(rows, KEYS).bit_length(), []).append(took)
    return max(max(one) - statistics.median(one) for one in classes.values())


def grow(server: Server, marks: list[int]) -> tuple[list[tuple[int, float]], list[float], float]:
    """Push up to the last mark.

    Returns rows before and seconds of each push, bytes per row without index at the marks, with it alone at the last.
    """
    times: list[tuple[int, float]] = []
    per_row: list[float] = []
    index_bytes = 0
    for mark in marks:
        while server.table.row_count < mark:
            rows = server.table.row_count
            times.append((rows, server.push()))
        index_bytes = server.table.index.bytes_used
        per_row.append((server.resident() - server.empty - index_bytes) / server.table.row_count)
    return times, per_row, index_bytes / server.table.row_count


def shrink(server: Server) -> tuple[float, float, float]:
    """Drop every second vshard and compact; share of resident bytes that is freed, longest drop, longest piece."""
    before, table = server.resident(), server.table
    drops, pieces = [], []
    for vshard in HALF:
        start = time.thread_time()
        table.drop(vshard)
        drops.append(time.thread_time() - start)
    while table.wants_compaction:
        start = time.thread_time()
        table.compact_piece()
        pieces.append(time.thread_time() - start)
    half = (before - server.empty) / 2
    return (before - server.resident()) / half, max(drops), max(pieces, default=0.0)


def started(pushes: int) -> Server:
    """A server whose compiled code is loaded and whose buffers exist."""
    server = Server(pushes)
    server.push()
    server.empty = server.resident()
    return server


def main() -> int:
    chosen = options(__doc__ or "")
    marks = [n * MILLION for n in ((1, 2) if chosen.quick else (1, 2, 5, 10, 20))]
    pushes = marks[-1] // KEYS + 10
    gc.disable()
    server = started(pushes)
    first, per_row, index = grow(server, marks)
    spread = 100 * (max(per_row) - min(per_row)) / statistics.mean(per_row)
    freed, drop, piece = shrink(server)
    runs = [first]
    for _ in range(REPEATS - 1):
        del server  # its memory goes back
        gc.collect()
        server = started(pushes)
        runs.append(grow(server, marks)[0])
    times = [(same[0][0], min(took for _, took in same)) for same in zip(*runs, strict=True)]
    longest = ", ".join(f"{max(took for _, took in run):.4f}" for run in runs)
    median = statistics.median(took for _, took in times)
    shown = ", ".join(f"{one:.1f}" for one in per_row)
    where = ", ".join(f"{mark // MILLION}" for mark in marks)
    figures = [
        Figure("bytes_per_row_spread_percent", spread, "%", 5, "lower",
               f"{shown} resident bytes per row without index at {where} million rows"),
        Figure("growth_pause_seconds", pause_of(times), "s", 0.02, "lower",
               f"longest push above the median of its size class (a doubling of rows); median push {median:.4f} s, "
               f"longest of each run {longest} s"),
        Figure("index_bytes_per_row", index, "bytes", None, "lower", f"at {marks[-1] // MILLION} million rows"),
        Figure("freed_share", freed, "1", None, "higher",
               f"of half of the table's memory, after half of the vshards left; longest drop {drop:.4f} s"),
        Figure("compaction_piece_seconds", piece, "s", None, "lower", "longest time that the lock is held for it"),
    ]  # fmt: skip
    report("Memory of a parameter server", figures, chosen.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
