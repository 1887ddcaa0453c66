"""A job's timeline: throughput and what each pod used, every few seconds, with what was predicted beside it.

It looks at the state from outside and decides nothing. A long job keeps a bounded number of points: when there are too
many, every other one goes and the next ones come half as often.
"""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.core.controller.state import Phase, State
from trimtab.core.domain.plan import Plan
from trimtab.core.domain.records import Decision, PodSample, Sample

SAMPLE_SECONDS = 2.0
MOST_SAMPLES = 2000
_LEAST_SPAN_SECONDS = 0.5  # of a pod's reports: a CPU rate over less would be noise


class Timeline:
    """Collects samples of one job.

    Args:
        samples: of the job's earlier controllers, which stay.
    """

    def __init__(self, samples: Sequence[Sample] = ()) -> None:
        self.samples: list[Sample] = list(samples)
        self._pause = SAMPLE_SECONDS
        self._next = 0.0
        self._last: tuple[float, int] | None = None  # time and rows
        self._pods: dict[str, tuple[float, float]] = {}  # time of report and CPU seconds, by pod

    def take(self, state: State, now: float) -> bool:
        """One more sample if it is time for it; returns whether one was taken."""
        if now < self._next:
            return False
        self._next = now + self._pause
        rows = state.losses.all_rows
        throughput = None
        if state.phase is Phase.TRAINING and self._last is not None and now > self._last[0] and rows > 0:
            throughput = (rows - self._last[1]) / (now - self._last[0])
            if self._last[1] == 0:
                throughput = None  # training began somewhere within
        self._last = (now, rows)
        pods = tuple(self._pod(name, state) for name in sorted(state.pods))
        table_bytes = sum(pod.report.table_bytes for pod in state.servers() if pod.report is not None)
        predicted = None
        if state.phase is Phase.TRAINING:
            predicted = predicted_now(state.decisions, state.document.plan)
        done = len(state.ledger.applied)
        self.samples.append(Sample(round(state.seconds(now), 3), throughput, predicted, pods, done, table_bytes))
        if len(self.samples) > MOST_SAMPLES:
            del self.samples[1::2]
            self._pause *= 2
        return True

    def _pod(self, name: str, state: State) -> PodSample:
        pod = state.pods[name]
        cpu = None
        if pod.heard_at is not None:
            then = self._pods.get(name)
            if then is None:
                self._pods[name] = (pod.heard_at, pod.cpu_seconds)
            elif pod.heard_at - then[0] >= _LEAST_SPAN_SECONDS:
                cpu = max(0.0, pod.cpu_seconds - then[1]) / (pod.heard_at - then[0])
                self._pods[name] = (pod.heard_at, pod.cpu_seconds)
        return PodSample(f"{pod.role}-{pod.slot[1]}", pod.role, cpu, pod.rss_bytes)


def predicted_now(decisions: tuple[Decision, ...], plan: Plan) -> float | None:
    """What was predicted for the plan in force, by the last decision that is about it; None if that said nothing."""
    for decision in reversed(decisions):
        if not decision.advised and decision.plan == plan:
            return decision.predicted.middle if decision.predicted is not None else None
    return None
