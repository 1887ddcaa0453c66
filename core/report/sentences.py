"""The sentences of a report: what came of a job, for a person who reads only the first line.

Rules: the verb first, then the number, then the reason. Gains are rounded down and losses up, so that no sentence
promises more than was measured. A comparison with the static request is a counterfactual and says "predicted";
without a baseline it is left out. No sentence is made anywhere else.
"""

from __future__ import annotations

import math

from trimtab.core.domain.job import JobState
from trimtab.core.domain.records import Decision, JobRecord
from trimtab.core.report import measures
from trimtab.core.report.words import (
    NO_BREAK,
    THIN,
    UNKNOWN,
    bounds,
    clock,
    exact_duration,
    known,
    one_line,
    plan_text,
    plural,
    samples,
    signed,
    whole,
)


def outcome(job: JobRecord) -> str:
    """One sentence on how `job` ended.

    Figures it reads, all optional: wall_seconds, batches_expected, batches_applied, batches_skipped, and for the
    comparison cost, static_wall_seconds and static_cost (predicted for the request that the job would have had
    without trimtab). The reason of a job that did not finish is the record's, or that of its last decision of kind
    "stop".
    """
    took = exact_duration(job.figures.get("wall_seconds"))
    if job.state is JobState.RUNNING:
        return "Training has begun." if trained_share(job) is None else f"Training: {trained(job)} done."
    if job.state is JobState.FINISHED:
        compared = _compared(job)
        return f"Finished in {took}{': ' + compared if compared else ''}."
    verb = "Stopped" if job.state is JobState.STOPPED else "Failed"
    reason = cause(job)
    return f"{verb} after {took}, {trained(job)} trained{_unsaved(job)}{': ' + reason if reason else ''}."


def _unsaved(job: JobRecord) -> str:
    """What a checkpoint holds, where that is less than what was trained."""
    expected, kept = known(job.figures.get("batches_expected")), measures.batches_done(job)
    trained_batches = known(job.figures.get("batches_trained"))
    if not expected or kept is None or trained_batches is None or trained_batches <= kept:
        return ""
    return f" ({math.floor(100 * kept / expected + 1e-9)}{THIN}% kept in the last checkpoint)"


def cause(job: JobRecord) -> str:
    """Why a job did not finish, without the full stop; empty when that is not known."""
    reasons = [decision.reason for decision in job.decisions if decision.kind == "stop"]
    return one_line(job.reason or (reasons[-1] if reasons else "")).rstrip(".")


def accounting(job: JobRecord) -> str:
    """The second line: plan changes, resumes if any, batches skipped, repeated and missing. A dash: not known.

    What a job that has not finished still had to do is "left", not missing.
    """
    figures = job.figures
    skipped = figures.get("batches_skipped")
    changes = max(0, len(job.plans) - 1)
    parts = [f"{changes} plan change{'' if changes == 1 else 's'}"]
    resumes = sum(event.kind == "resumed" for event in job.events)
    if resumes:
        parts.append("resumed once" if resumes == 1 else f"resumed {resumes} times")
    last = "missing" if job.state is JobState.FINISHED else "left"
    counts = (("skipped", skipped), ("repeated", figures.get("batches_duplicated")), (last, batches_left(job)))
    parts += [f"{whole(count)} batches {word}" for word, count in counts]
    return ", ".join(parts) + "."


def batches_left(job: JobRecord) -> float | None:
    """Batches that are neither applied nor skipped."""
    expected, applied = known(job.figures.get("batches_expected")), known(job.figures.get("batches_applied"))
    if expected is None or applied is None:
        return None
    return max(0.0, expected - applied - (known(job.figures.get("batches_skipped")) or 0.0))


def decision_line(decision: Decision) -> str:
    """One line for the live display: "0:41 Add 1 worker: 1 → 2. Workers use 97 % of their cores; …"."""
    said = f"{action(decision).rstrip('.')}{' (only advised)' if decision.advised else ''}. {decision.reason}"
    return f"{clock(decision.time_seconds)} {one_line(said)}"


def action(decision: Decision) -> str:
    """What changes, in a few words; made from the plans where the decision does not say."""
    if decision.action:
        return one_line(decision.action)
    if decision.kind == "hold":
        return f"Keep {plan_text(decision.plan)}"
    if decision.kind == "start":
        return f"Start with {plan_text(decision.plan)}"
    if decision.kind == "stop":
        return "Stop the job"
    change = "" if decision.before is None else f"{plan_text(decision.before)} → "
    return f"{one_line(decision.kind).capitalize()}: {change}{plan_text(decision.plan)}"


def standing(decision: Decision) -> str:
    """What became of it, in one or two words: a chip beside each decision."""
    if decision.advised:
        return "Advised"
    if decision.kind in ("hold", "start", "stop"):
        return {"hold": "Held", "start": "Started", "stop": "Stopped the job"}[decision.kind]
    return "Probed" if decision.probe else "Applied"


def switching(decision: Decision) -> str:
    """How long the change took, and what training felt of it; empty where neither is known."""
    took, paused = known(decision.switch_seconds), known(decision.paused_seconds)
    parts = [f"switch {took:.1f}{NO_BREAK}s"] if took is not None else []
    if paused is not None:
        parts.append(f"longest wait of a worker {paused:.2f}{NO_BREAK}s")
    return ", ".join(parts)


def predicted(decision: Decision) -> str:
    """'33.1 k (31.0–37.2 k)': what was predicted, with its range; a dash without a prediction."""
    if decision.predicted is None or known(decision.predicted.middle) is None:
        return UNKNOWN
    within = bounds(decision.predicted)
    return samples(decision.predicted.middle) + (f" ({within})" if within else "")


def afterwards(decision: Decision, running: bool, earlier: float | None = None) -> str:
    """What was measured beside what was predicted, as plainly when it was wrong as when it was right.

    Args:
        decision: of the job. running: it still runs, so that a measurement may come.
        earlier: throughput measured under the plan before it, None where that is not known.
    """
    if decision.advised:
        return "Only advised: the plan stayed as it was."
    found = known(decision.measured)
    middle = None if decision.predicted is None else known(decision.predicted.middle)
    if found is None:
        if decision.kind in ("hold", "stop") or (decision.kind == "start" and middle is None):
            return ""
        return "Not measured yet." if running else "Not measured: no settled window came after it."
    before = None if earlier is None else known(earlier)
    text = f"measured {samples(found)} samples/s"
    if before is not None and decision.changes_plan:
        text += f" after {samples(before)} with the plan before"
    if middle is None:
        return f"{text[0].upper()}{text[1:]}. Nothing was predicted."
    error = _ratio(found, middle)
    place = f"{_size(error)} {'over' if found >= middle else 'under'} the predicted {samples(middle)}"
    match measures.verdict(decision):
        case "inside":
            return f"Inside the predicted 80{THIN}% range: {text}."
        case "outside":
            return f"Outside the predicted range {bounds(decision.predicted)}: {text}, {place}."
        case _:
            return f"{text[0].upper()}{text[1:]}, {place}; no range was given."


def remarks(decision: Decision) -> tuple[str, ...]:
    """What a reader should know of how the decision came about, beyond its reason."""
    found = []
    if decision.probe:
        found.append("A probe: made to learn what the measurements could not tell yet.")
    if decision.law:
        found.append(f"Predicted by the {one_line(decision.law)}.")
    if decision.held:
        found.append(f"Held at a prior, because the measurements can't tell them: {', '.join(decision.held)}.")
    return tuple(found)


def timeline(job: JobRecord) -> str:
    """What the timeline shows: what the changes brought, and whether the predictions held."""
    spans = measures.plan_spans(job)
    first = measures.span_throughput(job, spans[0]) if spans else None
    last = measures.span_throughput(job, spans[-1]) if spans else None
    mean = measures.mean_throughput(job)
    settled = len(spans) < 2 or any(one.plan == spans[-1].change.plan and known(one.measured) for one in job.decisions)
    if len(spans) > 1 and settled and first is not None and last is not None and first > 0:
        changes = plural(len(spans) - 1, "plan change")
        text = f"{changes} took throughput from {samples(first)} to {samples(last)} samples/s "
        text += f"({signed(_ratio(last, first))})."
    elif mean is not None:
        kept = f"{plural(len(spans) - 1, 'plan change')}: " if len(spans) > 1 else "The plan stayed as it was: "
        text = f"{kept}{samples(mean)} samples/s on average."
    else:
        text = "No throughput was measured."
    found = predictions(job)
    return f"{text} {found}" if found else text


def predictions(job: JobRecord) -> str:
    """How many predictions held; empty where none could be checked."""
    checked = [(n, one, measures.verdict(one)) for n, one in measures.numbered(job)]
    checked = [(n, one, found) for n, one, found in checked if found is not None]
    outside = [(n, one) for n, one, found in checked if found == "outside"]
    if not checked:
        return ""
    if not outside:
        one = len(checked) == 1
        return "The prediction held." if one else f"All {len(checked)} predictions held."
    number, worst = outside[0]
    assert worst.predicted is not None  # or it would have no verdict
    error = _ratio(known(worst.measured), known(worst.predicted.middle))
    side = "over" if (error or 0) >= 0 else "under"
    text = f"Decision {number} measured {_size(error)} {side} its prediction"
    inside = len(checked) - len(outside)
    return f"{text}; {inside} of {len(checked)} predictions were inside their range."


def came_true(job: JobRecord) -> str:
    """How far off the predictions were, and how many ranges held; empty where none could be checked."""
    found = measures.accuracy(job)
    if found is None:
        return ""
    if found.checked == 1:
        text = f"One prediction was checked: {_size(-found.median_error)} off"
    else:
        text = f"{plural(found.checked, 'prediction')} were checked: {_size(-found.median_error)} off in the median, "
        text += f"{_size(-found.worst_error)} at most (decision {found.worst})"
    if not found.ranged:
        return f"{text}; none had a range."
    return f"{text}; {found.inside} of {plural(found.ranged, 'range')} held what was measured (8 of 10 are meant)."


def warm_start(job: JobRecord) -> str:
    """From which runs the first plan came, or that there was none."""
    found = job.warm_start
    if found is None:
        return "Past runs were not looked at."
    if found.note:
        note = one_line(found.note)
        return note[:1].upper() + note[1:] + ("" if note.endswith(".") else ".")
    if found.runs:
        return f"The first plan rests on {plural(len(found.runs), 'past run')}."
    return "No similar past run: the first plan is the stated default."


def data(job: JobRecord) -> str:
    """Whether every batch was applied exactly once."""
    figures, left = job.figures, batches_left(job)
    applied, doubled = known(figures.get("batches_applied")), known(figures.get("batches_duplicated"))
    skipped = known(figures.get("batches_skipped")) or 0.0
    if applied is None or left is None or doubled is None:
        return "The batches were not counted yet." if job.state is JobState.RUNNING else "The batches were not counted."
    if doubled:
        return f"{plural(doubled, 'batch').replace('batchs', 'batches')} were applied more than once."
    if job.state is JobState.FINISHED:
        if left:
            return f"{whole(left)} of {whole(figures.get('batches_expected'))} batches are missing."
        if skipped:
            return f"Every batch was applied exactly once, but {whole(skipped)} that were not finite and were skipped."
        return "Every batch was applied exactly once."
    return f"Every batch of the {whole(applied)} applied was applied exactly once; {whole(left)} are left."


def trained_share(job: JobRecord) -> float | None:
    """Share of the batches that are done, 0..1."""
    expected, done = known(job.figures.get("batches_expected")), measures.batches_done(job)
    seen = known(job.figures.get("batches_trained"))
    if job.state is not JobState.FINISHED and done is not None and seen is not None:
        done = max(done, seen)
    return None if not expected or done is None else min(1.0, max(0.0, done / expected))


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base - 1


def _size(error: float | None) -> str:
    """How far off: 4.2 % is 4 % over, and 5 % under."""
    return signed(error).lstrip("+\u2212±")


def trained(job: JobRecord) -> str:
    """Share of the batches that are done, rounded down."""
    share = trained_share(job)
    return UNKNOWN if share is None else f"{math.floor(100 * share + 1e-9)}{THIN}%"


def _compared(job: JobRecord) -> str:
    """'39 % faster and 23 % cheaper than predicted for the static request', or nothing without a baseline."""
    figures = job.figures
    words = [
        _gain(figures.get("wall_seconds"), figures.get("static_wall_seconds"), "faster", "slower"),
        _gain(figures.get("cost"), figures.get("static_cost"), "cheaper", "dearer"),
    ]
    said = [word for word in words if word]
    return " and ".join(said) + " than predicted for the static request" if said else ""


def _gain(actual: float | None, static: float | None, better: str, worse: str) -> str:
    """Relative difference in words: a gain rounded down, a loss rounded up. Nothing where one is not known."""
    actual, static = known(actual), known(static)
    if actual is None or static is None or static <= 0:
        return ""
    points = known(100 * (1 - actual / static))
    if points is None:
        return ""
    share = round(points, 6)  # rounded first: 1 - 0.61 is not quite 0.39
    percent = math.floor(share) if share >= 0 else math.ceil(-share)
    return f"{percent}{THIN}% {better if share >= 0 else worse}"
