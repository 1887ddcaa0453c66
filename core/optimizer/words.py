"""How a decision says what it means: plain verbs, the number that caused it, no promise beyond what is predicted.

Gains are rounded down and losses up. The sentences of a whole job are the report's; these are those of one decision,
made where the decision is, because only there is it known what decided.
"""

from __future__ import annotations

import math

from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.domain.records import Range


def rate(samples_per_second: float) -> str:
    """'950', '4.3 k', '34 k', '1.2 M'."""
    value, unit = _unit(samples_per_second)
    return f"{_digits(value)}{' ' + unit if unit else ''}"


def rates(low: float, high: float) -> str:
    """'31–37 k': a range in the unit of its upper end."""
    value, unit = _unit(high)
    factor = value / high if high > 0 else 1.0
    return f"{_digits(low * factor)}–{_digits(value)}{' ' + unit if unit else ''}"


def seconds(value: float) -> str:
    """'0.8 s', '12 s', '4 min', '2 h', rounded up."""
    if value < 10:
        return f"{math.ceil(value * 10 - 1e-9) / 10:g} s"
    if value < 120:
        return f"{math.ceil(value - 1e-9)} s"
    return f"{math.ceil(value / 60)} min" if value < 7200 else f"{math.ceil(value / 3600)} h"


def money(amount: float, currency: str) -> str:
    """'$1.50', '$0.042', '2.10 EUR', rounded up in the last digit shown."""
    digits = 2 if amount >= 1 or amount <= 0 else 1 - math.floor(math.log10(amount))
    step = 10.0**-digits
    text = f"{math.ceil(amount / step - 1e-6) * step:.{digits}f}"
    return f"{currency}{text}" if len(currency) == 1 else f"{text} {currency}"


def more_or_less(ratio: float, more: str = "more", less: str = "less") -> str:
    """'71 % more', '8 % less', 'as much': a gain rounded down, a loss rounded up."""
    percent = round(100 * (ratio - 1), 6)
    if percent >= 1:
        return f"{math.floor(percent)} % {more}"
    if percent <= -1:
        return f"{math.ceil(-percent)} % {less}"
    return f"as {'much' if more == 'more' else 'fast'}"


def share(value: float) -> str:
    """'97 %', never above 100: a window's edges can make it so."""
    return f"{min(100, round(100 * value))} %"


def count(number: int, word: str) -> str:
    """'1 worker', '2 PSs'."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def kind_of(before: Plan, after: Plan) -> str:
    """hold, grow, shrink, or replace where one part grows and another shrinks."""
    signs = {_sign(before.worker, after.worker), _sign(before.ps, after.ps)} - {0}
    if not signs:
        return "hold"
    return "replace" if len(signs) == 2 else "grow" if 1 in signs else "shrink"


def action(before: Plan, after: Plan) -> str:
    """'Add 1 worker: 1 → 2; cores per worker 1 → 0.8', or 'Keep ...'."""
    parts = []
    for name, old, new in (("worker", before.worker, after.worker), ("PS", before.ps, after.ps)):
        difference = new.replicas - old.replicas
        if difference:
            verb = "Add" if difference > 0 else "Remove"
            parts.append(f"{verb} {count(abs(difference), name)}: {old.replicas} → {new.replicas}")
    for name, old, new in (("worker", before.worker, after.worker), ("PS", before.ps, after.ps)):
        if abs(old.cpu - new.cpu) > 1e-9:
            text = f"ores per {name} {old.cpu:g} → {new.cpu:g}"
            parts.append(f"c{text}" if parts else f"C{text}")
    return "; ".join(parts) if parts else f"Keep {after}"


def target(before: Plan, after: Plan) -> str:
    """What the new plan has that the old one has not: '2 workers', '2 workers with 0.8 cores'."""
    parts = []
    for name, old, new in (("worker", before.worker, after.worker), ("PS", before.ps, after.ps)):
        pods, cores = old.replicas != new.replicas, abs(old.cpu - new.cpu) > 1e-9
        if pods or cores:
            parts.append(count(new.replicas, name) + (f" with {_cores(new.cpu)}" if cores else ""))
    return " and ".join(parts) if parts else str(after)


def expectation(predicted: Range, ratio: float) -> str:
    """'34 k samples/s, 71 % more (31–37 k)'."""
    text = f"{rate(predicted.middle)} samples/s, {more_or_less(ratio)}"
    if predicted.low is None or predicted.high is None:
        return text
    return f"{text} ({rates(predicted.low, predicted.high)})"


def _sign(before: RolePlan, after: RolePlan) -> int:
    """1 grows, -1 shrinks: by replicas, and by cores where those stay."""
    if before.replicas != after.replicas:
        return 1 if after.replicas > before.replicas else -1
    if abs(before.cpu - after.cpu) < 1e-9:
        return 0
    return 1 if after.cpu > before.cpu else -1


def _cores(cpu: float) -> str:
    return f"{cpu:g} core{'' if cpu == 1 else 's'}"


def _unit(value: float) -> tuple[float, str]:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size * 0.99995:
            return value / size, unit
    return value, ""


def _digits(value: float) -> str:
    return f"{value:.1f}" if 0 < value < 9.95 else f"{value:.0f}"
