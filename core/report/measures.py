"""What a report computes from a record before it says or draws anything: spans, means, costs, verdicts.

A record may be of a running job, of an older version or of a broken clock, so each function takes what is there, leaves
out what is not finite, and answers None where nothing honest can be said. Nothing here is text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from trimtab.core.domain.job import PlanChange
from trimtab.core.domain.records import Decision, JobRecord, Range, Sample, idle_spans, seconds_without
from trimtab.core.report.words import known

MOST_POINTS = 600  # of one series: more would only make the file larger, a screen can't show them
_MOST_CUTS = 100


@dataclass(frozen=True)
class PlanSpan:
    """A plan and the seconds in which it was in force."""

    start: float
    end: float
    change: PlanChange


@dataclass(frozen=True)
class PredictedSpan:
    """A prediction and the seconds for which it was made."""

    start: float
    end: float
    range: Range


def length_seconds(job: JobRecord) -> float:
    """How long the job took, or has run so far: the latest that any part of the record knows of."""
    found = [known(job.figures.get("wall_seconds"))]
    if job.ended_at is not None:
        begun, ended = known(job.started_at), known(job.ended_at)
        found.append(None if begun is None or ended is None else known(ended - begun))
    for times in (job.samples, job.decisions, job.plans, job.events):
        found += [known(one.time_seconds) for one in times]
    return max((one for one in found if one is not None), default=0.0, key=lambda one: max(0.0, one))


def measured(job: JobRecord) -> tuple[tuple[float, float | None], ...]:
    """(time, throughput) of every sample in the order of time; None is a gap."""
    points = [(known(sample.time_seconds), known(sample.throughput)) for sample in job.samples]
    return tuple(sorted(((t, v) for t, v in points if t is not None and t >= 0), key=lambda point: point[0]))


def plan_spans(job: JobRecord) -> tuple[PlanSpan, ...]:
    """The plans in the order in which they came into force; the last one holds until the end."""
    dated = [(known(change.time_seconds), change) for change in job.plans]
    plans = sorted(((max(0.0, t), change) for t, change in dated if t is not None), key=lambda one: one[0])
    ends = ([t for t, _ in plans] + [length_seconds(job)])[1:]
    return tuple(PlanSpan(t, max(t, end), change) for (t, change), end in zip(plans, ends, strict=True))


def core_hours(job: JobRecord) -> float | None:
    """Cores times hours that the plans gave, whether used or not."""
    return _over_time(job, [(span, span.change.plan.cpu) for span in plan_spans(job)])


def cost(job: JobRecord) -> float | None:
    """In the job's currency: the figure if the job has one, else plans times prices."""
    stated = known(job.figures.get("cost"))
    if stated is not None:
        return stated
    return _over_time(job, [(span, job.prices.per_hour(span.change.plan)) for span in plan_spans(job)])


def _over_time(job: JobRecord, parts: Iterable[tuple[PlanSpan, float]]) -> float | None:
    """What was given over the plans' spans, without the time in which the job waited to be resumed."""
    idle = [span for span in idle_spans(job) if all(map(math.isfinite, span))]
    spent = [per_hour * seconds_without(span.start, span.end, idle) / 3600 for span, per_hour in parts]
    return known(math.fsum(spent)) if spent and all(math.isfinite(one) for one in spent) else None


def mean_throughput(job: JobRecord) -> float | None:
    """Samples per second over the whole training."""
    stated = known(job.figures.get("samples_per_second"))
    if stated is not None:
        return stated
    values = [v for _, v in measured(job) if v is not None]
    return known(math.fsum(v / len(values) for v in values)) if values else None


def span_throughput(job: JobRecord, span: PlanSpan) -> float | None:
    """Samples per second of one plan: its settled windows, or where there is none the middle of its samples."""
    plan = span.change.plan
    inside = (one for one in job.observations if one.plan == plan and span.start <= one.time_seconds <= span.end)
    settled = [value for one in inside if (value := known(one.throughput)) is not None]
    values = settled or [v for t, v in measured(job) if v is not None and span.start <= t <= span.end]
    return known(median(values)) if values else None


def measured_before(job: JobRecord, decision: Decision) -> float | None:
    """Samples per second of the plan that `decision` replaced, as its settled windows had it; None where none was."""
    found = [
        value for one in job.observations
        if one.plan == decision.before and one.time_seconds <= decision.time_seconds + 1e-6
        and (value := known(one.throughput)) is not None
    ]  # fmt: skip
    return known(median(found)) if found else None


def numbered(job: JobRecord) -> tuple[tuple[int, Decision], ...]:
    """Decisions with numbers that a reader can count: the job's own where they are a proper count."""
    numbers = [one.number for one in job.decisions]
    proper = all(number > 0 for number in numbers) and len(set(numbers)) == len(numbers)
    return tuple((one.number if proper else place, one) for place, one in enumerate(job.decisions, 1))


def verdict(decision: Decision) -> str | None:
    """'inside' or 'outside' of the predicted range; None where either is not known, or it was only advised."""
    predicted, found = decision.predicted, known(decision.measured)
    if predicted is None or found is None or decision.advised:
        return None
    low, high = known(predicted.low), known(predicted.high)
    if low is None or high is None or known(predicted.middle) is None:
        return None
    return "inside" if low <= found <= high else "outside"


@dataclass(frozen=True)
class Accuracy:
    """How true a job's predictions came.

    Attributes:
        checked: predictions of plans in force that were measured afterwards. ranged: those with a range.
        inside: those of them whose range held what was measured.
        median_error, worst_error: |measured / predicted - 1| of all checked. worst: number of that decision.
    """

    checked: int
    ranged: int
    inside: int
    median_error: float
    worst_error: float
    worst: int


def error(decision: Decision) -> float | None:
    """Measured / predicted - 1; None where either is not known, or it was only advised."""
    found = known(decision.measured)
    middle = None if decision.predicted is None else known(decision.predicted.middle)
    if decision.advised or found is None or not middle:
        return None
    return known(found / middle - 1)


def accuracy(job: JobRecord) -> Accuracy | None:
    """How true the predictions came; None where none could be checked."""
    errors = [(abs(off), number) for number, one in numbered(job) if (off := error(one)) is not None]
    if not errors:
        return None
    verdicts = [found for _, one in numbered(job) if (found := verdict(one)) is not None]
    worst, number = max(errors)
    middle = median(off for off, _ in errors)
    return Accuracy(len(errors), len(verdicts), verdicts.count("inside"), middle, worst, number)


def prediction_spans(job: JobRecord) -> tuple[PredictedSpan, ...]:
    """What was predicted for which seconds; spans do not overlap, and none begins before it was made.

    A change's prediction begins when the new plan is in full force, for until then the old plan trains. A held plan
    keeps the prediction that it was given, because one that is redrawn afterwards always comes true.
    """
    end = length_seconds(job)
    begins: list[tuple[float, Range | None]] = []
    for decision in sorted(job.decisions, key=lambda one: known(one.time_seconds) or 0.0):
        time = known(decision.time_seconds)
        if time is None or decision.advised:
            continue
        predicted = decision.predicted if decision.predicted and known(decision.predicted.middle) is not None else None
        held = decision.kind == "hold"
        if held and (predicted is None or (begins and begins[-1][1] is not None)):
            continue
        start = max(0.0, time) + (0.0 if held else max(0.0, known(decision.switch_seconds) or 0.0))
        begins.append((max(start, begins[-1][0]) if begins else start, None if decision.kind == "stop" else predicted))
    ends = ([start for start, _ in begins] + [end])[1:]
    spans = (PredictedSpan(t, min(until, end), one) for (t, one), until in zip(begins, ends, strict=True) if one)
    return tuple(span for span in spans if span.start < span.end) or _sampled_predictions(job)


def _sampled_predictions(job: JobRecord) -> tuple[PredictedSpan, ...]:
    """Where no decision says what was predicted: what the samples carry, as one span for each value."""
    samples = sorted(job.samples, key=lambda one: known(one.time_seconds) or 0.0)
    spans: list[PredictedSpan] = []
    for before, after in pairwise(samples):
        value, start, end = known(before.predicted), known(before.time_seconds), known(after.time_seconds)
        if value is None or start is None or end is None or not 0 <= start < end:
            continue
        if spans and spans[-1].range.middle == value and spans[-1].end == start:
            spans[-1] = PredictedSpan(spans[-1].start, end, spans[-1].range)
        else:
            spans.append(PredictedSpan(start, end, Range(value)))
    return tuple(spans)


def batches_done(job: JobRecord) -> float | None:
    """Batches applied or skipped so far."""
    applied, skipped = known(job.figures.get("batches_applied")), known(job.figures.get("batches_skipped"))
    if applied is not None:
        return applied + (skipped or 0.0)
    last: Sample | None = max(job.samples, key=lambda one: one.batches_done, default=None)
    return None if last is None else float(last.batches_done)


def thinned(
    points: tuple[tuple[float, float | None], ...], cuts: Iterable[float]
) -> tuple[tuple[float, float | None], ...]:
    """At most `MOST_POINTS` of `points`: lowest and highest of each bucket, and the first and last of each plan.

    Args:
        points: (time, value) in the order of time; None is a gap, and stays one.
        cuts: when plans came into force.
    """
    if len(points) <= MOST_POINTS:
        return points
    kept = {0, len(points) - 1}
    times = [t for t, _ in points]
    for cut in list(cuts)[:_MOST_CUTS]:
        first = next((place for place, t in enumerate(times) if t >= cut), None)
        if first is not None:
            kept |= {first, max(0, first - 1)}
    buckets = (MOST_POINTS - len(kept)) // 3
    for bucket in range(buckets):
        places = range(bucket * len(points) // buckets, (bucket + 1) * len(points) // buckets)
        values = [(v, place) for place in places if (v := points[place][1]) is not None]
        if values:
            kept |= {min(values)[1], max(values)[1]}
        kept |= set([place for place in places if points[place][1] is None][:1])
    return tuple(points[place] for place in sorted(kept))
