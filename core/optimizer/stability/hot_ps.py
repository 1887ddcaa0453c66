"""Which parameter server everybody waits for, and why, from what all of them did at the same time.

A step ends when the last parameter server has answered, so one that is late costs every worker the difference. How long
answers were waited for says that it is so; what it does not say is why, and each cause has another remedy: too much
lies there, it lacks cores, its host gives it less than it asks for, or one vshard is so heavy that no move helps. So
load, time per request and cores are compared with its peers'. When all are late alike, none is hot: the plan is too
small, which is the optimizer's business. One sample is a mood of the machine: several in a row must say the same, and
what was sampled before a change of any kind says nothing afterwards (case 32).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median


class Cause(StrEnum):
    """Why a parameter server is late."""

    LOAD = "load"
    VSHARD = "vshard"
    CORES = "cores"
    HOST = "host"


@dataclass(frozen=True)
class HotRules:
    """When a parameter server is called hot, and how far one goes for it.

    Attributes:
        sample_seconds: of one window; longer when fewer than `batches` were done in it. samples: windows in a row that
            must agree; `sure`: before another one takes its place. fresh_seconds: older ones don't count.
        ratio: times what its peers are waited for; of two, one that takes twice as long as the other is at 3. Below
            `cool` times it is hot no more.
        worth: of a step, that could be won; less is left alone.
        full: of its cores, from which on it lacks some. slow, very_slow: of its peers' speed with equal work; of the
            second one whatever stays there is waited for. level: times its part of the traffic that is too much.
        heavy: of a place's traffic, in one vshard. room: of their cores, that others may use after a move.
        settle_seconds: after a change, that say nothing. recover_seconds: a place that was slow must have been as fast
            as its peers for so long before it gets vshards back, once.
        most_raised: times the plan's cores, for one place. most_replaced: places that get a successor in one job;
            pause_seconds: after the first, doubled with each.
        start_seconds: that a successor may take to come up.
        least_seconds: of training left at the present pace; with less nothing is begun.
    """

    sample_seconds: float = 0.7
    samples: int = 3
    sure: int = 4
    batches: int = 6
    fresh_seconds: float = 60.0
    ratio: float = 3.0
    cool: float = 2.0
    worth: float = 0.15
    full: float = 0.9
    slow: float = 0.7
    very_slow: float = 0.35
    level: float = 1.2
    heavy: float = 0.5
    room: float = 0.9
    settle_seconds: float = 0.5
    recover_seconds: float = 60.0
    most_raised: float = 3.0
    most_replaced: int = 4
    pause_seconds: float = 30.0
    start_seconds: float = 60.0
    least_seconds: float = 10.0


@dataclass(frozen=True)
class ServerLook:
    """One parameter server in one window.

    Attributes:
        share: cores it may use, 0: no limit. cpu: cores it used.
        waited: seconds that a worker waited for it in one batch, beyond what it waited for others.
        busy: seconds in which it handled a batch's requests.
        traffic: its part of all traffic. capacity: what part of its peers' it should have for its size.
    """

    share: float
    cpu: float
    waited: float
    busy: float
    traffic: float
    heaviest: float = 0.0
    capacity: float = 1.0

    @property
    def use(self) -> float:
        """Of its cores; 0 where there is no limit."""
        return self.cpu / self.share if self.share > 0 else 0.0


@dataclass(frozen=True)
class Window:
    """All parameter servers over the same seconds, by place.

    Attributes:
        at: its end. step: seconds of one worker for one batch.
        copying: places that wrote copies meanwhile, which takes their cores: it says nothing about these.
    """

    at: float
    step: float
    servers: Mapping[int, ServerLook]
    copying: frozenset[int] = frozenset()


@dataclass(frozen=True)
class ServerMark:
    """What one parameter server had reported at one time."""

    at: float
    cpu_seconds: float
    busy_seconds: float


@dataclass(frozen=True)
class Marks:
    """The beginning of a window: of each parameter server, and what workers had waited for it and done, in all.

    `copying`: places that have written copies since.
    """

    at: float
    servers: Mapping[str, ServerMark]
    waits: Mapping[str, float]
    batches: int
    copying: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Acted:
    """A remedy, and what it is to change: seconds of waiting in a batch, and of a step."""

    place: int
    process: str
    remedy: str
    at: float
    excess: float
    step: float


@dataclass(frozen=True)
class ServerWatch:
    """All that is remembered about the parameter servers' times.

    Attributes:
        basis: what voids samples when it changes. since: for how long it has been so. marks: of the window under way.
        windows: since the last change. calm: the first ones of it, to which a single parameter server is compared.
        hot_since: of a place that is hot, by process, in the job's seconds.
        acted: the last remedy, until it is measured. tried: remedies by process; none is tried twice.
        exhausted: processes for which nothing more can be done.
        replaced: how many got a successor. next_at: the next one gets none before.
        slow_at: when a place with less capacity was last seen to need it. returned: those that got theirs back.
        advised: processes of which has been said what would be done.
    """

    basis: tuple[object, ...] = ()
    since: float = 0.0
    marks: Marks | None = None
    windows: tuple[Window, ...] = ()
    calm: tuple[Window, ...] = ()
    hot_since: Mapping[str, float] = field(default_factory=dict)
    acted: Acted | None = None
    tried: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    exhausted: frozenset[str] = frozenset()
    replaced: int = 0
    next_at: float = 0.0
    slow_at: Mapping[str, float] = field(default_factory=dict)
    returned: frozenset[str] = frozenset()
    advised: frozenset[str] = frozenset()

    @property
    def acting(self) -> bool:
        """Whether something is being done: what is measured meanwhile is not what the plan brings."""
        return bool(self.hot_since.keys() - self.exhausted - self.advised)


@dataclass(frozen=True)
class HotServer:
    """A place that everybody waits for.

    Attributes:
        waited, usual: for it and for its peers, in one batch. step: of one worker, seconds.
        speed: of its peers' with equal work. use: of its cores. traffic, heaviest: see `ServerLook`.
        times: its traffic over what would be its part. alone: it has no peers that work; `usual` is from before.
        busy: seconds of a batch in which it handled requests; the rest of what was waited it was not even at work.
    """

    place: int
    cause: Cause
    waited: float
    usual: float
    step: float
    speed: float
    use: float
    traffic: float
    times: float
    heaviest: float
    alone: bool = False
    busy: float = 0.0

    @property
    def excess(self) -> float:
        """Seconds of a step that are lost to it."""
        return self.waited - self.usual


def find_hot(windows: Sequence[Window], calm: Sequence[Window], rules: HotRules) -> HotServer | None:
    """The place that is hot by the median of the last windows and nearly so in each, with its cause; None for none.

    Args:
        windows: since the last change, oldest first. calm: the first ones, for a single server.
        rules: when one is hot.
    """
    recent = windows[-rules.samples :]
    if len(recent) < rules.samples:
        return None
    waited = {place: median(one.servers[place].waited for one in recent) for place in recent[-1].servers}
    place = max(waited, key=lambda place: (waited[place], -place))
    last = _of(windows, place, rules)
    if len(last) < rules.samples or not all(_late(one, place, calm, rules.cool, rules.worth / 2) for one in last):
        return None
    found = _judged(last, place, calm, rules)
    if found.waited < rules.ratio * found.usual or found.excess < rules.worth * found.step:
        return None
    return None if found.alone and found.cause is not Cause.HOST else found


def cooled(windows: Sequence[Window], calm: Sequence[Window], place: int, rules: HotRules) -> bool:
    """Whether a place that was hot is so no more, in each of the last windows."""
    last = _of(windows, place, rules)
    if len(last) < rules.samples:
        return False
    return not any(place in one.servers and _late(one, place, calm, rules.cool, rules.worth / 2) for one in last)


def saturated(windows: Sequence[Window], rules: HotRules) -> float | None:
    """What part of their cores all parameter servers use, when all lack some and workers wait for them; else None.

    More cores or another one would help then, and more memory would not (case 12).
    """
    last = windows[-rules.samples :]
    if len(last) < rules.samples:
        return None
    for one in last:
        if one.copying or any(look.use < rules.full for look in one.servers.values()):
            return None
        if sum(look.waited for look in one.servers.values()) < one.step / 2:
            return None
    return median(look.use for one in last for look in one.servers.values())


def speed_of(windows: Sequence[Window], place: int) -> float | None:
    """How fast a place handles equal work, of its peers' speed; None where it can't be told."""
    found = [one for one in (_speed(window, place, ()) for window in windows if place in window.servers) if one]
    return median(found) if found else None


def why(hot: HotServer) -> str:
    """What is wrong, in numbers, as a clause that begins with what the server does."""
    others = "before" if hot.alone else "for each of the others"
    whose = "its speed then" if hot.alone else "their speed"
    late = f"{_ms(hot.waited)} of a step of {_ms(hot.step)} are spent waiting for it, {_ms(hot.usual)} {others}"
    reasons = {
        Cause.LOAD: f"it takes {hot.traffic:.0%} of the traffic, {hot.times:.1f} times its part",
        Cause.VSHARD: f"one vshard alone takes {hot.heaviest:.0%} of its traffic",
        Cause.CORES: f"it uses {hot.use:.0%} of its cores",
        Cause.HOST: f"it works at {hot.speed:.2f} of {whose} and gets {hot.use:.0%} of its cores",
    }
    return f"{late}: {reasons[hot.cause]}"


def _of(windows: Sequence[Window], place: int, rules: HotRules) -> Sequence[Window]:
    """The last windows that say something about a place."""
    return [one for one in windows if place not in one.copying][-rules.samples :]


def _judged(last: Sequence[Window], place: int, calm: Sequence[Window], rules: HotRules) -> HotServer:
    def middle(of: Callable[[ServerLook], float]) -> float:
        return median(of(one.servers[place]) for one in last)

    speed = median(_speed(one, place, calm) or 1.0 for one in last)
    use, traffic, heaviest = middle(lambda one: one.use), middle(lambda one: one.traffic), middle(lambda x: x.heaviest)
    times = median(_times(one, place) for one in last)
    if times >= rules.level and speed >= rules.slow:
        cause = Cause.VSHARD if heaviest >= rules.heavy else Cause.LOAD
    else:
        cause = Cause.CORES if use >= rules.full else Cause.HOST
    if cause is Cause.HOST:
        speed = min(speed, median(_answers(one, place, calm) for one in last))
    return HotServer(
        place, cause, middle(lambda one: one.waited), median(_usual(one, place, calm) for one in last),
        median(one.step for one in last), speed, use, traffic, times, heaviest,
        not any(other != place and look.traffic > 0 for one in last for other, look in one.servers.items()),
        middle(lambda one: one.busy),
    )  # fmt: skip


def _late(window: Window, place: int, calm: Sequence[Window], ratio: float, worth: float) -> bool:
    usual, waited = _usual(window, place, calm), window.servers[place].waited
    return waited >= ratio * usual and waited - usual >= worth * window.step


def _usual(window: Window, place: int, calm: Sequence[Window]) -> float:
    """What is waited for its peers; for itself before, when there are none."""
    others = [look.waited for other, look in window.servers.items() if other != place and look.traffic > 0]
    if others:
        return median(others)
    before = [one for one in calm if place in one.servers]
    if not before:
        return math.inf
    # What the whole machine makes slower is not this server's fault: its workers compute longer too.
    slower = _rest(window) / max(1e-9, median(_rest(one) for one in before))
    return median(one.servers[place].waited for one in before) * max(1.0, slower)


def _rest(window: Window) -> float:
    """Of a step, in which no server is waited for."""
    return max(0.0, window.step - math.fsum(look.waited for look in window.servers.values()))


def _speed(window: Window, place: int, calm: Sequence[Window]) -> float | None:
    """Of its peers' (or its own before), with equal work; None where it can't be told."""
    mine = _cost(window.servers[place])
    others = [_cost(look) for other, look in window.servers.items() if other != place]
    known = [one for one in others if one is not None]
    if not known:
        known = [one for one in (_cost(w.servers[place]) for w in calm if place in w.servers) if one is not None]
    return median(known) / mine if known and mine else None


def _answers(window: Window, place: int, calm: Sequence[Window]) -> float:
    """How fast a place answers, of its peers' speed: a host may be busy between two requests, when none is handled.

    Whoever is waited for last is waited for alone, and the others are not waited for any more: so of n servers whose
    times are as 1 to r, the waits are as 1 to n·r − n + 1.
    """
    usual, waited = _usual(window, place, calm), window.servers[place].waited
    working = max(1, sum(look.traffic > 0 for look in window.servers.values()))
    return working / (waited / usual + working - 1) if usual > 0 and waited > 0 else 1.0


def _cost(look: ServerLook) -> float | None:
    return look.busy / look.traffic if look.traffic > 0 and look.busy > 0 else None


def _times(window: Window, place: int) -> float:
    """A place's traffic over the part that is its own by its capacity."""
    total = math.fsum(look.capacity for look in window.servers.values())
    look = window.servers[place]
    return look.traffic * total / look.capacity if look.capacity > 0 else math.inf


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"
