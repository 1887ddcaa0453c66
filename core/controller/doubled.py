"""How fast a worker is now, and who else could finish what it holds sooner.

Near the end there is nothing left to lend, and the job lasts as long as the slowest loan. Then numbers that somebody
holds may go to a second worker, once, if it would be done with them in clearly less time. Whoever pushes a batch last
is dropped by the parameter servers, and its loss and scores count once, so this costs nothing but work that would
otherwise be idleness.
"""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.core.controller.holds import MOST_SHARDS, SHARD_SECONDS, Hold, Holds, shard_size
from trimtab.core.controller.state import Pod, State
from trimtab.core.domain.intervals import EMPTY, IntervalSet
from trimtab.core.wire.messages import EVALUATE, TRAIN

LEAST_SECONDS = 1.0  # that it must bring; a call and a batch take that long
_QUIET_BATCHES = 3.0  # times its usual batch: a worker that tells of none for longer is believed to be slower
_QUIET_SECONDS = 1.0
_UNKNOWN_SECONDS = 2.0  # of a worker that has never finished a loan: then nobody knows when it will


def usual_speed(state: State, pod: Pod) -> float | None:
    """Batches per second of a worker: as its last loans tell, unless it has become slow since; None: not known."""
    track = state.pace.tracks.get(pod.name)
    if track is None or not track.slow or track.rate is None:
        return pod.speed
    return track.rate if pod.speed is None else min(pod.speed, track.rate)


def present_speed(state: State, pod: Pod, now: float) -> float | None:
    """The same, unless the worker has told of nothing for so long that it can't be true any more."""
    speed, held = usual_speed(state, pod), _held(state, pod)
    if not speed or not held or state.served_at is None:
        return speed
    quiet = now - max(pod.worked_at, state.served_at, min(hold.given_at for hold in held))
    if quiet > _QUIET_SECONDS and quiet * speed > _QUIET_BATCHES:
        speed = min(speed, 1.0 / quiet)
    return speed


def unfinished(state: State, hold: Hold) -> IntervalSet:
    """Numbers of a loan that are not known to be done, by its holder or by anybody."""
    if hold.kind == EVALUATE:
        return IntervalSet.span(hold.lo, hold.hi) - state.evaluation.done
    pod = state.pods.get(hold.pod)
    return IntervalSet.span(hold.lo, hold.hi) - state.ledger.applied - (pod.done if pod is not None else EMPTY)


def seconds_left(state: State, pod: Pod, now: float) -> Mapping[int, float]:
    """For each loan of a worker: in how many seconds it will be through with it. A loan may be of no known end."""
    speed = present_speed(state, pod, now)
    found, before = {}, 0
    for hold in _held(state, pod):
        before += len(unfinished(state, hold))
        unknown = float("inf") if now - hold.given_at > _UNKNOWN_SECONDS else 0.0
        found[hold.id] = before / speed if speed else unknown
    return found


def second_time(state: State, name: str, kind: str, now: float) -> IntervalSet:
    """Numbers on loan to others that the worker `name` should do as well: of the loan that would take longest.

    Args:
        state: as it is, with nothing left to lend. name: of the worker's pod. kind: train | evaluate. now: the time.
    """
    pod, holds = state.pods[name], _holds(state, kind)
    speed = usual_speed(state, pod)
    if not speed or len(holds.of(name)) >= MOST_SHARDS:
        return EMPTY
    mine = max(seconds_left(state, pod, now).values(), default=0.0)
    passed = _twice(holds)
    if kind == TRAIN:  # what nobody holds any more will turn out to be applied, or to be lent again
        passed |= IntervalSet(one for entry in state.ledger.settling for one in entry.numbers.intervals)
    best: tuple[float, IntervalSet] = (0.0, EMPTY)
    for other in state.workers():
        if other.name == name:
            continue
        ends = seconds_left(state, other, now)
        for hold in holds.of(other.name):
            numbers = unfinished(state, hold) - passed
            if not numbers or hold.kind != kind:
                continue
            here = mine + len(numbers) / speed
            if ends[hold.id] > state.settings.straggling.sooner * here + LEAST_SECONDS and ends[hold.id] > best[0]:
                best = (ends[hold.id], numbers)
    return best[1]


def second_shard(pod: Pod, speed: float | None, numbers: IntervalSet) -> tuple[int, int]:
    """Which of these numbers it gets: the last ones, which their holder comes to last."""
    lo, hi = numbers.intervals[-1]
    size = shard_size(speed, pod.shard, hi - lo, 1)
    return hi - min(size, hi - lo), hi


def too_much(state: State, pod: Pod, now: float) -> tuple[int, ...]:
    """Loans that a slow worker should not begin, or go on with: more than its usual time's work.

    A single batch is left to it, however long that takes: there is no smaller loan, so it would only be taken back
    again and again, and what it has begun would be done twice.
    """
    ends = seconds_left(state, pod, now)
    late = [hold for hold in _held(state, pod) if ends[hold.id] > 2 * MOST_SHARDS * SHARD_SECONDS]
    return tuple(hold.id for hold in late if len(unfinished(state, hold)) > 1)


def _holds(state: State, kind: str) -> Holds:
    return state.ledger.holds if kind == TRAIN else state.evaluation.holds


def _twice(holds: Holds) -> IntervalSet:
    """Numbers that two workers have already."""
    found, end = [], 0
    for lo, hi in sorted((hold.lo, hold.hi) for hold in holds.by_id.values() if hold.kind in (TRAIN, EVALUATE)):
        found.append((lo, min(hi, end)))
        end = max(end, hi)
    return IntervalSet(found)


def _held(state: State, pod: Pod) -> tuple[Hold, ...]:
    """Its loans that consist of batches, in the order in which it does them."""
    holds = (*state.ledger.holds.of(pod.name), *state.evaluation.holds.of(pod.name))
    return tuple(hold for hold in holds if hold.kind in (TRAIN, EVALUATE))
