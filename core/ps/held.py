"""The question which batches are in a server's rows, from both sides of the line.

A worker asks it of whoever became the owner of vshards, before it sends anything else there: a server that came back
with older rows is then sent what it lacks, in the old order. Answering changes nothing and holds the lock only to look
at values that never change afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.core.domain.intervals import EMPTY, IntervalSet
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.errors import WireError
from trimtab.core.ps.exchange import Exchange
from trimtab.core.wire import frames
from trimtab.core.wire.encode import from_json, to_json
from trimtab.core.wire.frames import ReplyHeader
from trimtab.core.wire.messages import HeldReply, HeldRequest, Served

MAX_ANSWER_BYTES = 64 << 20  # 512 different sets of some ten thousand intervals each; more is no honest answer


def served_of(exchange: Exchange, since: Sequence[int], vshards: int) -> tuple[Served, ...]:
    """What of `vshards` (a bitmap) is served, split by set and tenure. Takes the exchange's lock for an instant.

    Args:
        since: the tenure of each vshard, changed by others under the same lock.
    """
    with exchange.lock:
        classes, served, tenures = exchange.sets.classes(), exchange.served & vshards, tuple(since)
    found = []
    for one in classes:
        by_since: dict[int, int] = {}
        for vshard in bits_of(one.members & served):
            by_since[tenures[vshard]] = by_since.get(tenures[vshard], 0) | 1 << vshard
        for tenure, bits in by_since.items():
            found.append(Served(bitmap(bits), tenure, one.applied.intervals, one.skipped.intervals))
    return tuple(found)


def answer(
    exchange: Exchange, since: Sequence[int], body: npt.NDArray[np.uint8]
) -> tuple[ReplyHeader, Sequence[bytes]]:
    """A parameter server's answer to one `HeldRequest`. Raises WireError for a body that is none."""
    request = from_json(HeldRequest, body.tobytes())
    data = to_json(HeldReply(served_of(exchange, since, int(request.vshards, 16))))
    return ReplyHeader(frames.NONE, frames.OK, len(data)), [data]


@dataclass(frozen=True)
class Told:
    """A server's answer, as the worker wants it.

    Attributes:
        vshards: those that it serves in the tenure that was asked for, or a later one (a bitmap).
        since: i64[512], their tenures. sets: vshards (disjoint bitmaps) by applied set.
    """

    vshards: int
    since: npt.NDArray[np.int64]
    sets: tuple[tuple[int, IntervalSet], ...]

    def lacking(self, number: int) -> int:
        """Those whose rows lack the batch `number`."""
        found = 0
        for bits, applied in self.sets:
            if number not in applied:
                found |= bits
        return found

    def common(self) -> IntervalSet:
        """The batches that none of them lacks."""
        found: IntervalSet | None = None
        for _, applied in self.sets:
            found = applied if found is None else found & applied
        return EMPTY if found is None else found


def question(vshards: int) -> bytes:
    """The body of a frame that asks about `vshards` (a bitmap)."""
    return to_json(HeldRequest(bitmap(vshards)))


def told(data: bytes, asked: int, since: npt.NDArray[np.int64]) -> Told:
    """Read an answer.

    Args:
        data: the body of the reply. asked: the vshards of the question.
        since: i64[512], the tenures that are meant; what is served in an older one is as if it were not served.

    Raises:
        WireError: not an answer to this question.
    """
    reply = from_json(HeldReply, data)
    seen = fresh = 0
    tenures = np.zeros(VSHARDS, np.int64)
    by_set: dict[IntervalSet, int] = {}
    for one in reply.served:
        bits = int(one.vshards, 16)
        if bits & ~asked or bits & seen:
            raise WireError("answer about held batches names vshards twice, or others than were asked for")
        seen |= bits
        present = sum(1 << vshard for vshard in bits_of(bits) if one.since >= since[vshard])
        tenures[bits_of(present)] = one.since
        fresh |= present
        if present:
            applied = IntervalSet(one.applied)
            by_set[applied] = by_set.get(applied, 0) | present
    return Told(fresh, tenures, tuple((bits, applied) for applied, bits in by_set.items()))


def bits_of(vshards: int) -> list[int]:
    """The vshard numbers of a bitmap, ascending."""
    found = []
    while vshards:
        low = vshards & -vshards
        found.append(low.bit_length() - 1)
        vshards ^= low
    return found


def bitmap(vshards: int) -> str:
    """A bitmap as messages carry it."""
    return f"{vshards:0{VSHARDS // 4}x}"
