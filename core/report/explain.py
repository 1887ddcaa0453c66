"""A job's decisions as text for a terminal: the page's cards without a page.

The order is that in which a person asks: what came of it, what it started from, then each decision with its reason,
what else was considered and why not, and what was measured beside what had been predicted.
"""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap

from trimtab.core.domain.job import JobState
from trimtab.core.domain.records import Considered, Decision, JobRecord
from trimtab.core.report import measures, sentences
from trimtab.core.report.data import MOST_CANDIDATES
from trimtab.core.report.words import UNKNOWN, bounds, clock, money, one_line, plan_text, samples, signed

COLUMNS = 100
MOST_FRONT = 8  # rows of the front in a terminal


def explain(record: JobRecord) -> str:
    """Every decision of `record`: when, what, why, what else, predicted beside measured. Lines of 100 at most."""
    lines = [one_line(f"{record.job_name} ({record.run_id}): {sentences.outcome(record)}")]
    lines += [*_wrapped(sentences.accounting(record)), *_wrapped(sentences.warm_start(record))]
    if measures.mean_throughput(record) is not None:
        lines += _wrapped(sentences.timeline(record))
    found = measures.numbered(record)
    running = record.state is JobState.RUNNING
    for number, decision in found:
        lines += ["", *_decision(number, decision, record)]
    if not found:
        lines += ["", "No decision yet." if running else "No decision was made."]
    lines += _came_true(record)
    if record.state is JobState.FINISHED:
        lines += ["", *_wrapped(sentences.data(record))]
    return "\n".join(lines)


def _decision(number: int, decision: Decision, record: JobRecord) -> list[str]:
    standing = sentences.standing(decision).lower()
    head = f"{number:>3}  {clock(decision.time_seconds):>7}  {sentences.action(decision)}  ({standing})"
    lines = [head, *_wrapped(decision.reason, 5)]
    lines += [line for fact in decision.evidence for line in _wrapped(f"- {one_line(fact)}", 5)]
    if decision.considered:
        lines.append("     Considered (workers × cores + PSs × cores, predicted samples/s, cost per hour):")
        lines += _candidates(decision, decision.considered[:MOST_CANDIDATES], record.prices.currency)
    if decision.kind == "start" and record.front:
        lines.append("     The front at the start, as past runs predicted it:")
        lines += _candidates(decision, _some(record.front), record.prices.currency)
    facts = []
    if decision.predicted is not None:
        facts.append(f"Predicted {sentences.predicted(decision)} samples/s")
    switch = sentences.switching(decision)
    facts += [switch[0].upper() + switch[1:]] if switch else []
    lines += [line for fact in facts for line in _wrapped(f"{fact}.", 5)]
    running = record.state is JobState.RUNNING
    after = sentences.afterwards(decision, running, measures.measured_before(record, decision))
    lines += _wrapped(after, 5) if after else []
    lines += [line for remark in sentences.remarks(decision) for line in _wrapped(remark, 5)]
    return lines


def _came_true(record: JobRecord) -> list[str]:
    """Each prediction beside what was measured, and how far off all of them were."""
    said = sentences.came_true(record)
    if not said:
        return []
    rows = [("", "predicted", "80 % range", "measured", "off", "")]
    for number, one in measures.numbered(record):
        off = measures.error(one)
        if off is None or one.predicted is None:
            continue
        within = bounds(one.predicted) or UNKNOWN
        verdict = measures.verdict(one) or "no range"
        rows.append((f"{number}", samples(one.predicted.middle), within, samples(one.measured), signed(off), verdict))
    widths = [max(len(row[place]) for row in rows) for place in range(6)]
    lines = ["", "What came true (samples/s)"]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[:5], widths, strict=False)]
        lines.append(f"{'  '.join(['  ' + cells[0], *cells[1:]])}  {row[5]}".rstrip())
    return [*lines, *_wrapped(said)]


def _some(front: tuple[Considered, ...]) -> tuple[Considered, ...]:
    """At most some ten of the front, evenly, with both ends and the chosen one."""
    step = max(1, -(-len(front) // MOST_FRONT))
    last = len(front) - 1
    return tuple(one for place, one in enumerate(front) if one.chosen or place % step == 0 or place == last)


def _candidates(decision: Decision, considered: Iterable[Considered], currency: str) -> list[str]:
    rows = []
    for one in considered:
        within = bounds(one.throughput)
        speed = samples(one.throughput.middle) + (f" ({within})" if within else "")
        now = "now" if decision.before is not None and one.plan == decision.before else ""
        why = "; ".join(part for part in (now, one_line(one.why_not)) if part)
        rows.append(("*" if one.chosen else " ", plan_text(one.plan), speed, money(one.cost_per_hour, currency), why))
    widths = [max(len(row[place]) for row in rows) for place in range(4)]
    lines = []
    for row in rows:
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        lines += [f"     {cells}  {row[4]}".rstrip()]
    return lines


def _wrapped(text: str, indent: int = 0) -> list[str]:
    margin = " " * indent
    return wrap(one_line(text), COLUMNS, initial_indent=margin, subsequent_indent=margin, break_long_words=False)
