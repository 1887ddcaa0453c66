"""A simulated job whose workers have speeds of their own, told per pod and time; new pods take a while to begin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from controller_world import Worker, World, plan_of, settings

from trimtab.core.controller.inputs import PodsSeen, Tick
from trimtab.core.controller.settings import Settings
from trimtab.core.domain.plan import Limits, Plan
from trimtab.core.wire.messages import TRAIN

CAPS = Limits(8.0, 2**40, 9, 9)
BATCHES = 1600
HEALTHY = 10.0  # batches per second


def settings_of(**changes: object) -> Settings:
    """Settings of a job that is long enough for a straggler to matter."""
    chosen = {"batches": BATCHES, "evaluation_batches": 0, "checkpoint_seconds": 1e9, "limits": CAPS}
    return settings(**{**chosen, "settle_seconds": 1.0, **changes})


class StragglerWorld(World):
    """`speed(pod, seconds)` says how many batches per second a worker does; `start_seconds`: before its first."""

    def __init__(
        self, chosen: Settings, plan: Plan | None = None, start_seconds: float = 3.0, round_seconds: float = 0.25
    ) -> None:
        super().__init__(chosen, plan or plan_of(1, 4))
        self.speed: Callable[[str, float], float] = lambda pod, seconds: HEALTHY
        self.start_seconds, self.round_seconds = start_seconds, round_seconds
        self.credit: dict[str, float] = {}
        self.born_at: dict[str, float] = {}
        self.notes: list[tuple[str, str]] = []
        self.silent: set[str] = set()
        self.findings: set[str] = set()

    def feed(self, *inputs: object) -> list[object]:  # type: ignore[override]
        actions = super().feed(*inputs)  # type: ignore[arg-type]
        self.notes += [(one.kind, one.text) for one in actions if hasattr(one, "kind") and hasattr(one, "text")]
        self.findings |= {one.text for one in self.state.findings.values()}
        return actions  # type: ignore[return-value]

    def said(self, kind: str) -> list[str]:
        """Texts of all notes of a kind so far."""
        return [text for of, text in self.notes if of == kind]

    def round(self, answers: bool = True) -> None:
        """Everything on its way arrives, everybody works for as long as the round takes."""
        self.clock.advance(self.round_seconds)
        self.born_processes()
        self.feed(PodsSeen(self.cluster.observe()), Tick())
        while self.commits:
            self.commit()
        while self.requests:
            self.deliver_request()
        while self.reports:
            self.deliver_report()
        for name, worker in tuple(self.workers.items()):
            self.work(name, worker)
        while self.answers:
            self.deliver_answer()
        while self.commits:
            self.commit()

    def work(self, name: str, worker: Worker) -> None:
        """Let a worker work for one round, calling whenever it runs out, as the real one does."""
        now = self.clock.now()
        began = self.born_at.setdefault(name, now)
        if began > 1.0 and now - began < self.start_seconds:  # those of the first second have begun before
            return
        credit = self.credit.get(name, 0.0) + self.speed(name, now) * self.round_seconds
        while credit >= 1 and worker.grants and not worker.stopped:
            before = (worker.grants[0].id, worker.at)
            worker.work(self)
            if worker.grants and (worker.grants[0].id, worker.at) == before:
                break
            credit -= 1
            if not worker.grants:
                self.speak(worker)
        self.credit[name] = min(credit, 1.0) if not worker.grants else credit
        self.speak(worker)

    def speak(self, worker: Worker) -> None:
        """A worker's call and its answer."""
        if worker.pod in self.silent:
            return
        self.call(worker)
        while self.calls:
            self.deliver_call()
        while self.answers:
            self.deliver_answer()

    def until(self, done: Callable[[StragglerWorld], object], rounds: int = 3000) -> None:
        """Go on until something is so."""
        for _ in range(rounds):
            if done(self):
                return
            self.round()
        raise AssertionError(f"never: {self.state.phase}, {self.state.pace}, {self.notes[-5:]}")

    def jct(self, rounds: int = 20_000) -> float:
        """Seconds to the job's end."""
        self.until(lambda world: world.ended is not None, rounds)
        return self.clock.now()

    def trained(self) -> list[int]:
        """All numbers that were lent for training, as often as they were."""
        return [number for one in self.lent if one.kind == TRAIN for number in range(one.lo, one.hi)]


def falls(pod: str, at: float, to: float) -> Callable[[str, float], float]:
    """Speeds of workers of which one falls to a part of its speed."""
    return lambda name, seconds: HEALTHY * (to if name == pod and seconds >= at else 1.0)


def off(chosen: Settings) -> Settings:
    """The same settings with nothing done about stragglers."""
    never = replace(chosen.straggling, slow=0.0, very_slow=0.0, sooner=float("inf"))
    return replace(chosen, straggling=never)
