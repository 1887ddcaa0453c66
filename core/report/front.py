"""A job before its start, as text for a terminal and as JSON: the first plan, the front, plans that were asked about.

What is not known has no number: without a level of past runs the columns say "× first plan" and no time or cost of the
whole job stands there. What the numbers rest on follows them, always.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap

from trimtab.core.domain.quantities import format_memory
from trimtab.core.domain.records import Range, WarmStart
from trimtab.core.optimizer.outlook import Outlook, Preview
from trimtab.core.optimizer.preview import thinned
from trimtab.core.report.words import (
    UNKNOWN,
    bounds,
    cores,
    exact_duration,
    known,
    money,
    one_line,
    plan_text,
    plural,
    samples,
    signed,
    whole,
)

COLUMNS = 100
MOST_ROWS = 12  # of the front in a terminal; JSON has all
_INDENT = 2


def preview_text(found: Preview, warm: WarmStart, batches: int) -> str:
    """What a terminal shows; lines of 100 at most."""
    first, question = found.first, found.question
    lines = [f"Would start with {plan_text(first.plan)} (workers × cores + PSs × cores)"]
    memory = f"{format_memory(first.plan.worker.memory_bytes)} per worker, "
    memory += f"{format_memory(first.plan.ps.memory_bytes)} per PS"
    lines += [*_wrapped(found.decision.reason, _INDENT), *_wrapped(memory + ".", _INDENT)]
    lines += ["", f"The whole job: {plural(found.rows, 'row')} in {whole(batches)} batches of {question.batch_size}"]
    lines += _table(_head(found), [_row(found, "start", first)])
    lines += ["", _front_title(found)]
    lines += _table(_head(found), [_row(found, _marks(found, one), one) for one in shown_front(found)])
    for number, one in enumerate(found.what_if):
        lines += ["", f"What if {plan_text(one.plan)}{_other_batch(found, one)}"]
        lines += _table(_head(found), [_row(found, "start", first), _row(found, "what if", one)])
        lines += _wrapped(difference(found, one), _INDENT)
        if not one.within:
            lines += _wrapped(beyond(found, one), _INDENT)
        lines += [line for text in found.what_if[number].held for line in _wrapped(f"Held: {text}.", _INDENT)]
    lines += ["", "What this rests on"]
    lines += [line for text in rests_on(found) for line in _bullet(text)]
    return "\n".join(lines)


def preview_dict(found: Preview, warm: Mapping[str, object], batches: int) -> dict[str, object]:
    """The same as JSON shows it; throughputs are multiples of the first plan's where `relative`.

    Args:
        found: the preview. warm: the past runs, as JSON shows them. batches: of the job.
    """
    question, decision = found.question, found.decision
    limits, prices = question.limits, question.prices
    return {
        "plan": decision.plan.as_dict(),
        "action": decision.action,
        "reason": decision.reason,
        "warm_start": dict(warm),
        "rows": found.rows,
        "batches": batches,
        "batch_size": question.batch_size,
        "objective": str(question.objective),
        "budget": question.budget,
        "deadline_seconds": question.deadline_seconds,
        "limits": {
            "cpu": limits.cpu, "memory_bytes": limits.memory_bytes, "workers": limits.workers, "ps": limits.ps,
        },
        "prices": {"core_hour": prices.core_hour, "gib_hour": prices.gib_hour, "currency": prices.currency},
        "relative": found.relative,
        "stated": found.stated,
        "law": found.law,
        "rests_on": list(rests_on(found)),
        "held": list(found.held),
        "first": _outlook(found, found.first),
        "best": _outlook(found, found.best),
        "fastest": _outlook(found, found.fastest),
        "cheapest": _outlook(found, found.cheapest),
        "plans_compared": found.tried,
        "front": [_outlook(found, one) for one in found.front],
        "what_if": [
            _outlook(found, one) | {
                "held": list(one.held), "within_caps": one.within,
                "seconds_more": _difference(one.seconds, found.first.seconds),
                "cost_more": _difference(one.cost, found.first.cost),
            }
            for one in found.what_if
        ],
    }  # fmt: skip


def shown_front(found: Preview, most: int = MOST_ROWS) -> tuple[Outlook, ...]:
    """Rows of the front for a reader: evenly spread, with the plans that have a name."""
    keep = (found.first, found.best, found.fastest, found.cheapest)
    return thinned(found.front, most, keep)


def rests_on(found: Preview) -> tuple[str, ...]:
    """Sentences on what the numbers are worth."""
    said = [*found.rests_on, *found.notes]
    if found.held:
        said.append(f"held, because no past run could tell them: {', '.join(found.held)}")
    if not found.relative:
        said.append("time and cost of the whole job: all rows with that one plan, without the start")
    core, gib = found.question.prices.core_hour, found.question.prices.gib_hour
    currency = found.question.prices.currency
    said.append(f"cost: {money(core, currency)} per core-hour and {money(gib, currency)} per GiB-hour, used or not")
    said.append("memory per pod and a worker's threads are as in the first plan, for the job's life")
    flat = [one_line(text).rstrip(".") for text in said]
    return tuple(f"{text[:1].upper()}{text[1:]}." for text in flat)


def difference(found: Preview, one: Outlook) -> str:
    """How a plan compares with the first one, in time and money of the whole job."""
    first, currency = found.first, found.question.prices.currency
    ratio = one.throughput.middle / first.throughput.middle - 1
    if one.seconds is None or first.seconds is None or one.cost is None or first.cost is None:
        spent = known(one.cost_per_hour / one.throughput.middle / (first.cost_per_hour / first.throughput.middle) - 1)
        return f"Against the first plan: {signed(ratio)} throughput, {signed(spent)} cost of the whole job."
    time, cost = one.seconds - first.seconds, one.cost - first.cost
    return (
        f"Against the first plan: {exact_duration(abs(time))} {'longer' if time > 0 else 'shorter'} "
        f"({signed(ratio)} throughput), {money(abs(cost), currency)} {'more' if cost > 0 else 'less'}."
    )


def beyond(found: Preview, one: Outlook) -> str:
    """Which caps a plan does not keep."""
    plan, limits = one.plan, found.question.limits
    said = []
    if plan.cpu > (limits.cpu if limits.cpu is not None else plan.cpu) + 1e-9:
        said.append(f"{cores(plan.cpu)} cores of {cores(limits.cpu)} (--max-cpu)")
    if limits.memory_bytes is not None and plan.memory_bytes > limits.memory_bytes:
        said.append(f"{_mebi(plan.memory_bytes)} of {_mebi(limits.memory_bytes)} for pods (--max-memory)")
    for name, number, cap in (
        ("workers", plan.worker.replicas, limits.workers), ("PSs", plan.ps.replicas, limits.ps),
    ):  # fmt: skip
        if cap is not None and number > cap:
            said.append(f"{number} {name} of {cap} (--max-{name.lower().removesuffix('s') if name == 'PSs' else name})")
    return f"Beyond the caps, so the job would not do it: {', '.join(said)}."


def _mebi(memory_bytes: int) -> str:
    return format_memory(-(-memory_bytes // 2**20) * 2**20)


def _front_title(found: Preview) -> str:
    some = f", {len(shown_front(found))} shown" if len(found.front) > len(shown_front(found)) else ""
    plans = plural(len(found.front), "plan")
    return f"The front: {plans} of {whole(found.tried)} that no other one beats in cost and throughput{some}"


def _other_batch(found: Preview, one: Outlook) -> str:
    return "" if one.batch_size == found.question.batch_size else f", batches of {one.batch_size}"


def _marks(found: Preview, one: Outlook) -> str:
    names = []
    for name, other in (
        ("start", found.first), (str(found.question.objective), found.best), ("fastest", found.fastest),
        ("least money", found.cheapest),
    ):  # fmt: skip
        if one.plan == other.plan and name not in names:
            names.append(name)
    return ", ".join(names)


def _head(found: Preview) -> tuple[str, ...]:
    if found.relative:
        return ("", "plan", "× first plan", "cost per hour", "whole job's cost, × first")
    return ("", "plan", "samples/s", "cost per hour", "whole job", "its cost")


def _row(found: Preview, mark: str, one: Outlook) -> tuple[str, ...]:
    currency, first = found.question.prices.currency, found.first
    price = money(one.cost_per_hour, currency)
    if found.relative or one.seconds is None:
        spent = one.cost_per_hour / one.throughput.middle / (first.cost_per_hour / first.throughput.middle)
        times = one.throughput.middle / first.throughput.middle
        return (mark, plan_text(one.plan), f"{times:.2f}", price, f"{spent:.2f}")
    within = bounds(one.throughput)
    speed = samples(one.throughput.middle) + (f" ({within})" if within else "")
    return (mark, plan_text(one.plan), speed, price, exact_duration(one.seconds), money(one.cost, currency))


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    lines = []
    for row in (head, *rows):
        cells = [
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"{' ' * _INDENT}{'  '.join(cells)}".rstrip())
    return lines


def _outlook(found: Preview, one: Outlook) -> dict[str, object]:
    relative = one.throughput.middle / found.first.throughput.middle
    absolute: Range | None = None if found.relative else one.throughput
    return {
        "plan": one.plan.as_dict(),
        "batch_size": one.batch_size,
        "cost_per_hour": known(one.cost_per_hour),
        "throughput": None if absolute is None else known(absolute.middle),
        "low": None if absolute is None else known(absolute.low),
        "high": None if absolute is None else known(absolute.high),
        "throughput_ratio": known(relative),
        "seconds": known(one.seconds),
        "cost": known(one.cost),
    }


def _difference(value: float | None, base: float | None) -> float | None:
    return None if value is None or base is None else known(value - base)


def _bullet(text: str) -> list[str]:
    margin = " " * _INDENT
    return wrap(f"- {text}", COLUMNS, initial_indent=margin, subsequent_indent=f"{margin}  ", break_on_hyphens=False)


def _wrapped(text: str, indent: int = 0) -> list[str]:
    margin, said = " " * indent, one_line(text) or UNKNOWN
    return wrap(said, COLUMNS, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False)
