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
from trimtab.core.report.words import bounds, clock, money, one_line, plan_text, samples

COLUMNS = 100


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
