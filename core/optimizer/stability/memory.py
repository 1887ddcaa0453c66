"""Which pods will meet their memory limit, and when.

What a pod needs is more than it uses at the moment. A parameter server's table is there a second time, in part, while
copies of it are written; a worker's log of gradients goes on to fill. So the need is counted with what is certain to
come, and taken on at the pace of the last samples: a table's growth slows down, so this is on the safe side. Memory
that grows beside a table while the cores are used up is a queue of work, and no memory helps against that (case 12).
Each pod is judged by itself, never by the mean of its role (case 11), and by nothing from before a change (case 32).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trimtab.core.domain.plan import PS_BASE_BYTES, SNAPSHOT_SHARE
from trimtab.core.domain.values import replace

_MEBI = 1 << 20
_DROP = 0.95  # a table that is smaller than so much of what it was has given vshards away: it begins anew
_WORKER_SECONDS = 2.0  # between two samples of a pod without a table, whose memory goes up and down
_NOISE_SECONDS = 20.0  # of samples of a worker, before a growth is one
_QUEUE_BYTES = 32 * _MEBI  # beside a table: less is no queue
_BUSY = 0.9  # of the cores
_LEAST_STEP = 32 * _MEBI
_STEP = 1.125  # a limit that is raised rises at least so much: few steps, however long a job is
_MOST_STEP = 2.0  # and at most so much at once: what grows fast at first must not take what others need
_SPARE = 1.05


@dataclass(frozen=True)
class MemoryRules:
    """When something is done about memory, in seconds until the limit would be met.

    Attributes:
        sample_seconds: between two samples. samples: so many are kept. least: with fewer nothing is said of the pace.
        raise_seconds: a higher limit in place takes a moment. move_seconds: handing rows over takes seconds; so does
            another pod. imminent_seconds: what prevents the end of the job is not put off any more.
        enough_seconds: a limit that is raised should last so long.
        pause_seconds: between two raises of one pod, so that the first is seen. patience_seconds: so long does a full
            table wait for rows that are on their way to others. refused_seconds: a limit that did not follow by then
            will not.
        told_seconds: a kill is shown for so long after it.
        most_kills: of one place that are answered with more memory. factor: times what it had.
    """

    sample_seconds: float = 0.5
    samples: int = 16
    least: int = 3
    raise_seconds: float = 20.0
    move_seconds: float = 60.0
    imminent_seconds: float = 3.0
    enough_seconds: float = 60.0
    pause_seconds: float = 1.5
    patience_seconds: float = 60.0
    refused_seconds: float = 10.0
    told_seconds: float = 600.0
    most_kills: int = 3
    factor: float = 1.5


@dataclass(frozen=True)
class Use:
    """One pod's memory at one time.

    Attributes:
        at: seconds. used: bytes that it can't give back. table: of these, a parameter server's table.
        coming: bytes that it will certainly take: a log that is not full.
        cpu_seconds: since its start. cores: that it has.
        copying: a child of it writes copies, and pages that change are there twice.
    """

    at: float
    used: int
    table: int = 0
    coming: int = 0
    cpu_seconds: float = 0.0
    cores: float = 0.0
    copying: bool = False


@dataclass(frozen=True)
class Outlook:
    """What comes of one pod's memory.

    Attributes:
        need: bytes that must have room now. rate: by which that grows per second.
        seconds_left: until it meets the limit; infinite when it does not grow.
        starved: what grows is a queue in front of cores that are used up.
        busy: share of its cores that it uses, nan where not known.
    """

    need: int
    rate: float
    seconds_left: float
    starved: bool = False
    busy: float = math.nan


@dataclass(frozen=True)
class MemoryWatch:
    """What is known of a job's memory.

    Attributes:
        next_at: of the next sample. uses: by pod. raised_at: when a pod's limit was raised last.
        tried: when each dearer remedy was tried last. full_since: since when a table has no room, by pod.
        said: pods of which something was said that was not done. routing: its version at the last look.
    """

    next_at: float = 0.0
    uses: Mapping[str, tuple[Use, ...]] = field(default_factory=dict)
    raised_at: Mapping[str, float] = field(default_factory=dict)
    tried: Mapping[str, float] = field(default_factory=dict)
    full_since: Mapping[str, float] = field(default_factory=dict)
    said: frozenset[str] = frozenset()
    routing: int = 0


def kept(uses: Sequence[Use], new: Use, rules: MemoryRules) -> tuple[Use, ...]:
    """The samples that count once `new` is there: those of a table that has given rows away say nothing."""
    if uses and (new.table < uses[-1].table * _DROP or new.at <= uses[-1].at):
        return (new,)
    if not new.table and len(uses) > 1 and new.at - uses[-2].at < _WORKER_SECONDS:
        return (*uses[:-1], replace(new, used=max(new.used, uses[-1].used)))
    return (*uses, new)[-rules.samples :]


def outlook(uses: Sequence[Use], limit: int, rules: MemoryRules) -> Outlook:
    """What comes of a pod that had these samples, oldest first, at least one.

    Args:
        uses: of one pod, all with the same rows to serve. limit: bytes that it has. rules: see there.
    """
    need = _need(uses)
    growing = _need_rate(uses, rules)
    busy = _busy(uses)
    starved = _is_queue(uses) and busy >= _BUSY
    left = (limit - need) / growing if growing > 0 else math.inf
    if need >= limit:
        left = 0.0
    return Outlook(need, growing, left, starved, busy)


def size_for(seen: Outlook, limit: int, rules: MemoryRules) -> int:
    """A limit that lasts a while: whole mebibytes, and at least a step more than the present one."""
    wanted = min((seen.need + seen.rate * rules.enough_seconds) * _SPARE, limit * _MOST_STEP)
    wanted = max(wanted, limit * _STEP, limit + _LEAST_STEP)
    return math.ceil(wanted / _MEBI) * _MEBI


def ps_need(table: float, overhead: float = 0.0) -> float:
    """Bytes of a parameter server with so large a table; `overhead`: what it was seen to use beside it."""
    return max(float(PS_BASE_BYTES), overhead) + table * (1 + SNAPSHOT_SHARE)


def _need(uses: Sequence[Use]) -> int:
    last = uses[-1]
    if not last.table:
        return max(one.used for one in uses[-3:]) + last.coming
    quiet = [one.used - one.table for one in uses if one.used and not one.copying]
    return max(last.used, int(ps_need(last.table, min(quiet, default=0))))


def _need_rate(uses: Sequence[Use], rules: MemoryRules) -> float:
    if len(uses) < rules.least:
        return 0.0
    if uses[-1].table:
        return max(0.0, _slope([(one.at, one.table) for one in uses])) * (1 + SNAPSHOT_SHARE)
    if uses[-1].at - uses[0].at < _NOISE_SECONDS:
        return 0.0
    return max(0.0, _slope([(one.at, one.used + one.coming) for one in uses]))


def _is_queue(uses: Sequence[Use]) -> bool:
    """Whether what grew was mostly beside the table."""
    quiet = [one for one in uses if one.used and not one.copying]
    if len(quiet) < 2 or not quiet[-1].table:
        return False
    first, last = quiet[0], quiet[-1]
    beside = (last.used - last.table) - (first.used - first.table)
    return beside > _QUEUE_BYTES and beside > last.table - first.table


def _busy(uses: Sequence[Use]) -> float:
    first, last = uses[0], uses[-1]
    if last.at <= first.at or last.cores <= 0 or last.cpu_seconds <= 0:
        return math.nan
    return (last.cpu_seconds - first.cpu_seconds) / (last.at - first.at) / last.cores


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the line of least squares through points (seconds, bytes)."""
    count = len(points)
    at, value = math.fsum(x for x, _ in points) / count, math.fsum(y for _, y in points) / count
    spread = math.fsum((x - at) ** 2 for x, _ in points)
    return math.fsum((x - at) * (y - value) for x, y in points) / spread if spread > 0 else 0.0
