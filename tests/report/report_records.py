"""Records that reports are made of: one that shows everything, its short and failed relatives, and any at all."""

from dataclasses import replace

from hypothesis import strategies as st

from trimtab.core.domain.job import JobState, PlanChange
from trimtab.core.domain.plan import Limits, Plan, Prices, RolePlan
from trimtab.core.domain.records import (
    Considered,
    Decision,
    JobEvent,
    JobRecord,
    Observation,
    PastRun,
    PodSample,
    Range,
    Sample,
    WarmStart,
)

GIB = 2**30


def plan(workers=1, cores=0.75, servers=1, server_cores=0.25, memory=GIB):
    return Plan(RolePlan(servers, server_cores, memory), RolePlan(workers, cores, memory))


FIRST, SECOND, THIRD = plan(), plan(2), plan(2, 0.75, 1, 0.5)
SPEEDS = {FIRST: 20_400.0, SECOND: 33_900.0, THIRD: 36_200.0}


def grown():
    """A finished job: a cold start, two changes (one prediction held, one did not), two holds, a lost pod."""
    changes = ((0.0, FIRST), (42.5, SECOND), (80.0, THIRD))
    samples = []
    for second in range(4, 150, 2):
        current = [one for start, one in changes if start <= second][-1]
        speed = SPEEDS[current] * (1 + 0.02 * ((second * 7919) % 5 - 2) / 2) * min(1.0, second / 10)
        predicted = {FIRST: None, SECOND: 34_800.0, THIRD: 41_000.0}[current]
        pods = (PodSample("worker-0-1", "worker", 0.74, 900 << 20), PodSample("ps-0-1", "ps", 0.2, 300 << 20))
        gap = 112 <= second <= 116
        samples.append(Sample(float(second), None if gap else speed, predicted, pods, second * 20, second << 20))
    decisions = (
        Decision(0.0, "start", FIRST, "No similar past run: starts small. CPU shares are not enforced here.", 1,
                 "Start with 1 × 0.75 + 1 × 0.25"),
        Decision(41.2, "grow", SECOND, "Workers use 97 % of their cores; 2 workers should bring 34 k samples/s, "
                 "71 % more (31–37 k).", 2, "Add 1 worker: 1 → 2", FIRST, False,
                 ("Workers used 97 % of their cores", "PSs used 41 % of theirs", "1960 batches left"),
                 (Considered(FIRST, Range(20_300.0, 19_800.0, 20_900.0), 0.05, False, "71 % slower"),
                  Considered(SECOND, Range(34_800.0, 31_000.0, 37_200.0), 0.08, True),
                  Considered(plan(3), Range(40_100.0, 33_000.0, 45_000.0), 0.11, False, "beyond the cap of 2 cores")),
                 Range(34_800.0, 31_000.0, 37_200.0), Range(20_300.0, 19_800.0, 20_900.0), (), False, 1.3, 0.21,
                 33_900.0),
        Decision(78.0, "replace", THIRD, "The PS is at 96 % of its cores; a quarter core more should bring 12 %.", 3,
                 "Give each PS 0.25 core more: 0.25 → 0.5", SECOND, False, ("PSs used 96 % of their cores",),
                 (Considered(SECOND, Range(33_900.0, 33_000.0, 34_900.0), 0.08, False, "the PS stays the bottleneck"),
                  Considered(THIRD, Range(41_000.0, 38_000.0, 44_000.0), 0.09, True)),
                 Range(41_000.0, 38_000.0, 44_000.0), Range(33_900.0, 33_000.0, 34_900.0), ("k1",), True, 0.4, 0.05,
                 36_200.0),
        Decision(104.0, "hold", THIRD, "The best other plan gains 2 %; a change must gain at least 5 %.", 4,
                 "Keep 2 × 0.75 + 1 × 0.5", THIRD, False, (),
                 (Considered(THIRD, Range(36_200.0, 35_100.0, 37_000.0), 0.09, True),),
                 Range(36_200.0, 35_100.0, 37_000.0), Range(36_200.0, 35_100.0, 37_000.0)),
        Decision(131.0, "hold", THIRD, "About 20 s of work are left; no change would pay its switch.", 5, "", THIRD),
    )  # fmt: skip
    runs = (PastRun("20261129-201758-a1b2c3", 86_000.0, 0.97, 0.62, SECOND, 151.0, 33_000.0),
            PastRun("20261128-201758-d4e5f6", 180_000.0, 0.81, 0.38, FIRST, None, None))  # fmt: skip
    note = "warm start from 2 runs (20261129-201758-a1b2c3, 20261128-201758-d4e5f6): 1 × 0.75 + 1 × 0.25"
    tags = {"model": "dlrm", "data": "9f86d081884c7d65", "rows": "1000000", "batch_size": "1024", "mode": "auto",
            "embedding_dim": "16", "objective": "balanced"}  # fmt: skip
    figures = {"wall_seconds": 151.4, "batches_expected": 2637.0, "batches_applied": 2637.0, "batches_skipped": 0.0,
               "batches_duplicated": 0.0, "rows_applied": 2_700_000.0, "samples_per_second": 30_120.5, "auc": 0.7893,
               "log_loss": 0.4571, "max_worker_gap_seconds": 0.214}  # fmt: skip
    return JobRecord(
        "20261130-201758-0a1b2c", "daily-dlrm", JobState.FINISHED, tags,
        tuple(PlanChange(start, one, "why") for start, one in changes),
        tuple(Observation(one, SPEEDS[one], 0.018, 0.004, 1024, start + 30, 10.0, 200) for start, one in changes),
        decisions, figures, tuple(samples),
        (JobEvent(60.0, "checkpoint", "a copy of every vshard"), JobEvent(113.0, "pod_lost", "worker-1-2 was killed"),
         JobEvent(117.0, "recovered", "worker-1-3 took its place")),
        1_796_069_878.0, 1_796_070_029.0, "balanced", Limits(2.0, 6 * GIB, 4, 2), Prices(),
        warm_start=WarmStart(runs, FIRST, ("run 20261127 ran out of memory with 512Mi per PS",), Range(20_000.0), note),
    )  # fmt: skip


def warm():
    """The same job as one that began with what past runs told: a front, a law, a prediction that was checked."""
    job = grown()
    front = tuple(
        Considered(one, Range(speed), cost, one == FIRST)
        for one, speed, cost in ((plan(1, 0.4), 11_000.0, 0.03), (FIRST, 20_000.0, 0.05), (SECOND, 33_000.0, 0.08))
    )
    start = replace(job.decisions[0], considered=front[1:], predicted=Range(20_000.0), measured=20_400.0,
                    law="quota law, fitted on 12 windows of 2 past runs", held=("CPU per PS",))  # fmt: skip
    asked = ("--data", "rows.parquet", "--model", "dlrm", "--epochs", "2", "--budget", "3")
    return replace(job, front=front, decisions=(start, *job.decisions[1:]), asked=asked)


def just_begun():
    """A running job of which nothing is known but its plan."""
    plans, tags = (PlanChange(0.0, FIRST, "start"),), {"mode": "auto"}
    return JobRecord("run-1", "daily", JobState.RUNNING, tags, plans, (), (), {}, started_at=1_796_069_878.0)


def failed():
    """A job that ended by a reason."""
    stop = Decision(96.0, "stop", THIRD, "the PSs ran out of memory.", 9, "Stop the job", THIRD)
    job = grown()
    figures = job.figures | {"batches_applied": 1054.0}
    return replace(job, state=JobState.FAILED, decisions=(*job.decisions[:2], stop), figures=figures,
                   reason="the PSs ran out of memory", out_of_memory="ps")  # fmt: skip


_any_float = st.one_of(st.floats(), st.sampled_from([0.0, -1.0, 1e308, -1e308, 1.5e9]))
_maybe = st.one_of(st.none(), _any_float)
_hostile = ["</script>", "<!--<script>", "\x00", "a & b", "\ud800", "'\""]
_text = st.one_of(st.text(max_size=12), st.sampled_from(_hostile))
_texts = st.lists(_text, max_size=2).map(tuple)
_role = st.builds(RolePlan, st.integers(0, 40), _any_float, st.integers(0, 2**50))
_plan = st.builds(Plan, _role, _role)
_range = st.builds(Range, _any_float, _maybe, _maybe)
_considered = st.builds(Considered, _plan, _range, _any_float, st.booleans(), _text)
_kind = st.sampled_from(["start", "grow", "shrink", "replace", "rebalance", "memory", "hold", "stop", "other"])
_decision = st.builds(
    Decision, _any_float, _kind, _plan, _text, st.integers(0, 4), _text, st.one_of(st.none(), _plan), st.booleans(),
    _texts, st.lists(_considered, max_size=6).map(tuple), st.one_of(st.none(), _range), st.one_of(st.none(), _range),
    _texts, st.booleans(), _maybe, _maybe, _maybe,
)  # fmt: skip
_sample = st.builds(Sample, _any_float, _maybe, _maybe, st.just(()), st.integers(0, 10**12), st.integers(0, 10**15))
_past = st.builds(PastRun, _text, _any_float, _any_float, _any_float, _plan, _maybe, _maybe)
_warm = st.builds(WarmStart, st.lists(_past, max_size=2).map(tuple), st.one_of(st.none(), _plan), _texts,
                  st.one_of(st.none(), _range), _text)  # fmt: skip
_figure = st.sampled_from([
    "wall_seconds", "batches_expected", "batches_applied", "batches_skipped", "batches_duplicated", "rows_applied",
    "cost", "static_cost", "static_wall_seconds", "samples_per_second", "auc", "log_loss", "max_worker_gap_seconds",
    "checkpoints",
])  # fmt: skip
_tag = st.sampled_from(["model", "data", "rows", "batch_size", "mode", "objective", "embedding_dim"])
records = st.builds(
    JobRecord, _text, _text, st.sampled_from(JobState), st.dictionaries(_tag, _text, max_size=4),
    st.lists(st.builds(PlanChange, _any_float, _plan, _text), max_size=4).map(tuple),
    st.lists(st.builds(Observation, _plan, _any_float, _maybe, _maybe, st.integers(1, 4096), _any_float),
             max_size=2).map(tuple),
    st.lists(_decision, max_size=4).map(tuple), st.dictionaries(_figure, _any_float, max_size=6),
    st.lists(_sample, max_size=6).map(tuple),
    st.lists(st.builds(JobEvent, _any_float, _text, _text), max_size=3).map(tuple),
    _any_float, _maybe, st.just("balanced"),
    st.builds(Limits, _maybe, st.one_of(st.none(), st.integers(1, 2**50)), st.none(), st.none()),
    st.builds(Prices, _any_float, _any_float, st.sampled_from(["$", "EUR", ""])), _maybe, _maybe,
    st.one_of(st.none(), _warm), _text, front=st.lists(_considered, max_size=3).map(tuple),
)  # fmt: skip
