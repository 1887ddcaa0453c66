"""What is observed, decided and remembered.

`PodReport` is what one process says about one interval; settled reports of one plan become an `Observation`; a job
ends as a `JobRecord`. Decisions carry their reason in words, because explaining them is half of the product. Everything
here is plain data that JSON can hold, so that controller, history, report and command line show the same thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trimtab.core.domain.job import JobState, PlanChange
from trimtab.core.domain.plan import Limits, Plan, Prices


@dataclass(frozen=True)
class PodReport:
    """One pod's measurements since its last report.

    Attributes:
        pod: its name; role: worker | ps.
        interval_seconds: wall time covered.
        cpu_seconds: CPU time used in it (None: not known, which is not zero).
        rss_bytes: resident memory at its end.
        steps: batches computed (worker) or pushes applied (PS).
        phase_seconds: seconds per phase (worker: read, pull, compute, push, wait).
    """

    pod: str
    role: str
    interval_seconds: float
    cpu_seconds: float | None
    rss_bytes: int
    steps: int
    phase_seconds: dict[str, float]


@dataclass(frozen=True)
class Observation:
    """Settled behaviour of one plan: what `perf` fits.

    Attributes:
        plan: what was in force.
        throughput: samples per second of the job.
        worker_cpu_seconds, ps_cpu_seconds: CPU seconds per batch, all pods of the role together (None: not known).
        batch_size: rows per batch.
        time_seconds: end of the window, since the job's start.
        window_seconds: how long was observed.
        batches: how many batches the window covers.
        ps_skew: CPU of the busiest parameter server over the mean of all (None: not known).
        slowest_worker: batches of the slowest worker over the median of all (None: not known, or one worker).
        phase_seconds: seconds per batch of one worker in each phase (read, compute, exchange).
    """

    plan: Plan
    throughput: float
    worker_cpu_seconds: float | None
    ps_cpu_seconds: float | None
    batch_size: int
    time_seconds: float = 0.0
    window_seconds: float = 0.0
    batches: int = 0
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    ps_skew: float | None = None
    slowest_worker: float | None = None


@dataclass(frozen=True)
class Range:
    """A prediction in samples per second: the middle, and the bounds that should hold the truth in 80 % of cases.

    `low` and `high` are None where no recent observation allows an honest range.
    """

    middle: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Considered:
    """One plan that a decision looked at.

    Attributes:
        plan: the plan. throughput: predicted.
        cost_per_hour: in the job's currency.
        chosen: whether it is the decision's plan.
        why_not: why it was not chosen, "" for the chosen one.
    """

    plan: Plan
    throughput: Range
    cost_per_hour: float
    chosen: bool = False
    why_not: str = ""


@dataclass(frozen=True)
class Decision:
    """One answer to "should the plan change?", also when the answer is to hold.

    Attributes:
        time_seconds: since the job's start.
        kind: start | grow | shrink | replace | rebalance | memory | hold | stop. `replace`: some of the plan grows and
            some shrinks. `start`: the first plan of the job.
        plan: the plan that it decides for; the one in force afterwards unless only advised.
        reason: a sentence a person can act on, with the number that caused it.
        number: 1, 2, ... within the job (0: not numbered yet).
        action: what changes, in a few words ("Add 1 worker: 1 → 2", "Keep 2 × 0.75 + 1 × 0.5").
        before: the plan in force when it was made, None for the first.
        advised: mode advise: it was only said.
        evidence: short facts it rests on ("PSs used 97 % of their cores").
        considered: at most five plans, the chosen and the present one among them.
        predicted: throughput of `plan`; present: predicted (anchored) throughput of `before`.
        held: names of coefficients that the data could not identify and that were held at a prior.
        law: what the predictions rest on, in a few words ("quota law, fitted on 3 plans"); "" without predictions.
        barred: the plan before it could not be carried out; so many pods of the role are not asked for again.
        probe: it was made to learn, not because a gain was predicted.
        switch_seconds: from the decision to the new plan in full force; paused_seconds: the longest that a worker
            waited between two steps meanwhile. measured: throughput afterwards, first settled window. All three are
            filled in when they are known.
    """

    time_seconds: float
    kind: str
    plan: Plan
    reason: str
    number: int = 0
    action: str = ""
    before: Plan | None = None
    advised: bool = False
    evidence: tuple[str, ...] = ()
    considered: tuple[Considered, ...] = ()
    predicted: Range | None = None
    present: Range | None = None
    held: tuple[str, ...] = ()
    probe: bool = False
    switch_seconds: float | None = None
    paused_seconds: float | None = None
    measured: float | None = None
    barred: bool = False
    law: str = ""

    @property
    def changes_plan(self) -> bool:
        """Whether the plan in force is another one afterwards."""
        return self.before is not None and self.plan != self.before and not self.advised


@dataclass(frozen=True)
class PodSample:
    """One pod at one time: cores used since the last sample (None: not known) and resident bytes."""

    pod: str
    role: str
    cpu: float | None
    rss_bytes: int


@dataclass(frozen=True)
class Sample:
    """One point of a job's timeline.

    Attributes:
        time_seconds: since the job's start.
        throughput: samples per second since the last sample; None while nothing is trained.
        predicted: samples per second that was predicted for the plan in force; None without a prediction.
        pods: what the pods used.
        batches_done: applied at every vshard's owner.
        table_bytes: rows, slots and index of all parameter servers together.
    """

    time_seconds: float
    throughput: float | None
    predicted: float | None
    pods: tuple[PodSample, ...] = ()
    batches_done: int = 0
    table_bytes: int = 0


@dataclass(frozen=True)
class JobEvent:
    """Something that happened to the job and is neither plan nor decision: a pod lost, a checkpoint, a store away."""

    time_seconds: float
    kind: str
    text: str


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a running job at present, for whoever looks at it.

    Attributes:
        kind: straggler | hot_ps | memory | out_of_memory | lag | history | disk | events | cpu | machine.
        subject: the pod or the thing it is about ("worker-2", "mlflow").
        text: a sentence with its numbers, and what is done about it.
        since_seconds: since when, in seconds since the job's start.
    """

    kind: str
    subject: str
    text: str
    since_seconds: float = 0.0


@dataclass(frozen=True)
class PastRun:
    """A past run that a warm start rests on: its id, how many seconds ago it ended, similarity (0..1], weight (0..1],
    the plan it ended with, how long it took and how fast it trained (None: not known).
    """

    run_id: str
    age_seconds: float
    similarity: float
    weight: float
    plan: Plan
    wall_seconds: float | None = None
    throughput: float | None = None


@dataclass(frozen=True)
class WarmStart:
    """What the first plan rests on.

    Attributes:
        runs: the runs that it was made from, heaviest first; empty: a cold start.
        plan: the plan that came out (before the caller's wishes for workers and PSs).
        floors: what failed runs ask for at least, in words ("run X ran out of memory with 512Mi per PS").
        predicted: throughput of the plan by those runs.
        note: one sentence: from which runs with which plan, or why there is none.
    """

    runs: tuple[PastRun, ...] = ()
    plan: Plan | None = None
    floors: tuple[str, ...] = ()
    predicted: Range | None = None
    note: str = ""


@dataclass(frozen=True)
class JobRecord:
    """What history keeps of one job.

    Attributes:
        run_id: the job id; job_name: its family.
        state: running | finished | stopped | failed.
        tags: identity that warm start matches on (see `history.identity`).
        plans: every plan that was in force.
        observations: settled behaviour per plan.
        decisions: every decision with its reason.
        figures: outcome numbers (auc, log_loss, samples_per_second, ...); only finite ones.
        samples: the timeline. events: what happened.
        started_at: seconds since 1970. ended_at: None while it runs.
        objective: balanced | fastest | cheapest. limits: caps as they held. prices: as given.
        budget, deadline_seconds: as given, None: none.
        warm_start: what the first plan rested on, None when it was not looked for.
        reason: why the job did not finish, "" if it did. out_of_memory: a role whose memory was the reason ("ps",
            "worker"), "" otherwise.
        job_dir: where its files lie, "" when unknown.
        front: plans that nobody beat in cost and throughput at the start, by rising cost, as past runs predicted them;
            empty without similar past runs.
        asked: words behind `trimtab train` that ask for the same job; empty when unknown.
    """

    run_id: str
    job_name: str
    state: JobState
    tags: dict[str, str]
    plans: tuple[PlanChange, ...]
    observations: tuple[Observation, ...]
    decisions: tuple[Decision, ...]
    figures: dict[str, float]
    samples: tuple[Sample, ...] = ()
    events: tuple[JobEvent, ...] = ()
    started_at: float = 0.0
    ended_at: float | None = None
    objective: str = "balanced"
    limits: Limits = field(default_factory=Limits)
    prices: Prices = field(default_factory=Prices)
    budget: float | None = None
    deadline_seconds: float | None = None
    warm_start: WarmStart | None = None
    reason: str = ""
    out_of_memory: str = ""
    job_dir: str = ""
    front: tuple[Considered, ...] = ()
    asked: tuple[str, ...] = ()


def idle_spans(record: JobRecord, until: float | None = None) -> tuple[tuple[float, float], ...]:
    """Seconds of a resumed job in which no controller ran it: nothing was in force, and nothing was paid for.

    Each begins with the last that the record knows of a controller, so what one did after it last wrote its record
    counts as idle.

    Args:
        record: of the job.
        until: the job goes on at this moment and its record does not say so yet; None: it does.
    """
    seen = [one.time_seconds for one in record.samples]
    seen += [one.time_seconds for one in record.events if one.kind != "resumed"]
    ends = [one.time_seconds for one in record.events if one.kind == "resumed"] + ([until] if until is not None else [])
    spans = []
    for end in ends:
        before = [time for time in (*seen, *ends) if time < end]  # another resume is a sign of a controller as well
        if seen and before:
            spans.append((max(before), end))
    return tuple(sorted(set(spans)))


def seconds_without(start: float, end: float, spans: Iterable[tuple[float, float]]) -> float:
    """How long it is from `start` to `end` without what lies in `spans`, which do not overlap; never below 0."""
    inside = sum(max(0.0, min(end, until) - max(start, since)) for since, until in spans)
    return max(0.0, end - start - inside)
