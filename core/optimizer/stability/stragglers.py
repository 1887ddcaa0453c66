"""Which worker is slow, from what it and its peers got done at the same time.

A worker's speed means nothing by itself: the job, the parameter servers and the machine make all of them slow or fast.
So each is compared with the median of the others over the same seconds, and only while it has work. A machine has
moods: what counts is several samples, of enough batches that a few more or less are no news, and the same answer
several times in a row. What was sampled before a change of any kind says nothing afterwards (case 32).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from trimtab.core.domain.values import replace


@dataclass(frozen=True)
class StragglerRules:
    """When a worker is called slow.

    Attributes:
        sample_seconds: between two samples. samples: so many intervals at least are judged together.
        batches: as many a healthy worker has to get done in the time that is judged, else it is made longer.
        slow, very_slow: of the median of the others; the second is worth a new pod. healthy: slow no more.
        looks: answers in a row that make one believed.
        settle_seconds: of a worker's first seconds, and of those after a change, that say nothing.
        sooner: a second worker must be done in so many times less time to get what another one has already.
        most_replaced: workers of one job that get a successor. pause_seconds: between two of them, doubled for each one
            that has not been seen to do better.
        lag_seconds: parameter servers may be apart by what the job does in so long. lag_batches: and by so many.
    """

    sample_seconds: float = 1.0
    samples: int = 5
    batches: int = 8
    slow: float = 0.5
    very_slow: float = 0.4
    healthy: float = 0.7
    looks: int = 3
    settle_seconds: float = 2.0
    sooner: float = 2.0
    most_replaced: int = 6
    pause_seconds: float = 15.0
    lag_seconds: float = 10.0
    lag_batches: int = 50


@dataclass(frozen=True)
class Reading:
    """A worker at one time: batches done since its start, cores it has, and whether it has work."""

    at: float
    batches: int
    cpu: float
    busy: bool


@dataclass(frozen=True)
class Track:
    """What is known of one worker.

    Attributes:
        since: when it was first seen at work. readings: since the last change, oldest first.
        rate: batches per second, ratio: of what its peers did with as many cores, as last judged; None: not yet.
        slow_since: since when it is slow, None while it is not.
        below, far_below, above: answers in a row under `slow`, under `very_slow`, and from `healthy` on.
        proven: it has been as fast as its peers at some time.
    """

    since: float
    readings: tuple[Reading, ...] = ()
    rate: float | None = None
    ratio: float | None = None
    slow_since: float | None = None
    below: int = 0
    far_below: int = 0
    above: int = 0
    proven: bool = False

    @property
    def slow(self) -> bool:
        """Whether it is called slow."""
        return self.slow_since is not None


@dataclass(frozen=True)
class Pace:
    """All that is remembered about the workers' speeds.

    Attributes:
        tracks: by pod. looked_at: time of the last sample.
        changes: what voids samples when it changes (plans, routing versions). quiet_until: nothing is judged before.
        start_seconds: what the quickest worker took from its start to its first batch, None: none has worked.
        replaced: how often a worker got a successor. next_at: the next one gets none before.
        successors: names of pods that came for a slow one. hopeless: places whose new pod was as slow as the old.
        told: pods of which has been said what would be done. lag_since: since when parameter servers lie far apart.
    """

    tracks: Mapping[str, Track] = field(default_factory=dict)
    looked_at: float = 0.0
    changes: tuple[int, ...] = ()
    quiet_until: float = 0.0
    start_seconds: float | None = None
    replaced: int = 0
    next_at: float = 0.0
    successors: frozenset[str] = frozenset()
    hopeless: frozenset[int] = frozenset()
    told: frozenset[str] = frozenset()
    lag_since: float | None = None


_LONGEST = 120  # readings of one worker


def cleared(tracks: Mapping[str, Track]) -> dict[str, Track]:
    """The same workers without samples: something has changed. Who was slow stays so until new ones tell."""
    return {name: replace(one, readings=(), below=0, far_below=0, above=0) for name, one in tracks.items()}


def looked(tracks: Mapping[str, Track], readings: Mapping[str, Reading], rules: StragglerRules) -> dict[str, Track]:
    """The tracks after one more sample of each worker, judged where there is enough.

    Args:
        tracks: as they were. readings: of all workers that have got something done, taken at the same time.
        rules: when a worker is slow.
    """
    found = {name: _sampled(tracks.get(name), one, rules) for name, one in readings.items()}
    length = _length(found, rules)
    if length is None:
        return found
    judged = {name: track for name, track in found.items() if len(track.readings) > length}
    rates = {name: _rate(track, length) for name, track in judged.items()}
    for name, track in judged.items():
        others = [rate for other, rate in rates.items() if other != name]
        shares = [judged[other].readings[-1].cpu for other in judged if other != name]
        usual = median(others) * min(1.0, _share(track.readings[-1].cpu, median(shares)))
        if usual > 0:
            found[name] = _judged(track, rates[name], rates[name] / usual, rules)
    return found


def very_slow(track: Track, rules: StragglerRules) -> bool:
    """Whether a worker has been so slow for so long that a new pod is worth its start."""
    return track.slow and track.far_below >= rules.looks


def lagging(applied: Mapping[str, int], rate: float, rules: StragglerRules) -> tuple[str, int] | None:
    """The parameter server that is far behind the one that is ahead, and by how many batches (case 20).

    Args:
        applied: batches in all rows of each. rate: batches per second of the whole job. rules: how far is too far.
    """
    if len(applied) < 2:
        return None
    last = min(applied, key=lambda name: (applied[name], name))
    apart = max(applied.values()) - applied[last]
    return (last, apart) if apart > max(rules.lag_batches, rate * rules.lag_seconds) else None


def _sampled(track: Track | None, reading: Reading, rules: StragglerRules) -> Track:
    if track is None:
        return Track(reading.at)
    if not reading.busy:  # who has nothing to do is not slow
        return replace(track, readings=())
    early = reading.at < track.since + rules.settle_seconds
    if early or (track.readings and reading.at <= track.readings[-1].at):
        return track
    return replace(track, readings=(*track.readings, reading)[-_LONGEST:])


def _length(tracks: Mapping[str, Track], rules: StragglerRules) -> int | None:
    """How many intervals are judged: the fewest in which a usual worker got enough done; None: too little is known."""
    for length in range(rules.samples, _LONGEST):
        done = [_done(one, length) for one in tracks.values() if len(one.readings) > length]
        if len(done) < 2:
            return None
        if median(done) >= rules.batches or max(done) >= 2 * rules.batches:  # of two workers one may be the slow one
            return length
    return None


def _done(track: Track, length: int) -> int:
    return track.readings[-1].batches - track.readings[-1 - length].batches


def _rate(track: Track, length: int) -> float:
    return _done(track, length) / (track.readings[-1].at - track.readings[-1 - length].at)


def _share(cpu: float, usual: float) -> float:
    return cpu / usual if usual > 0 else 1.0


def _judged(track: Track, rate: float, ratio: float, rules: StragglerRules) -> Track:
    below = track.below + 1 if ratio < rules.slow else 0
    above = track.above + 1 if ratio >= rules.healthy else 0
    since = track.slow_since
    if since is None and below >= rules.looks:
        since = track.readings[-1].at
    elif above >= rules.looks:
        since = None
    return replace(
        track, rate=rate, ratio=ratio, slow_since=since, below=below, above=above,
        far_below=track.far_below + 1 if ratio < rules.very_slow else 0, proven=track.proven or above >= rules.looks,
    )  # fmt: skip
