"""The front at the start on the page: what else the job could have begun with, as past runs predicted it.

A drawing that needs no script, with the numbers folded below it. Without similar past runs there is no front, and no
panel: nothing is shown that nothing supports.
"""

from __future__ import annotations

from trimtab.core.domain.records import JobRecord
from trimtab.core.report.markup import details, esc, panel, table
from trimtab.core.report.words import known, money, plan_text, plural, samples

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 340, 200, 8, 26
_MOST_ROWS = 40


def front_at_start(record: JobRecord) -> str:
    """The panel; empty where the record has no front."""
    points = [
        (cost, speed, one) for one in record.front
        if (cost := known(one.cost_per_hour)) is not None and (speed := known(one.throughput.middle)) is not None
    ]  # fmt: skip
    start = next((one for one in record.decisions if one.kind == "start"), None)
    chosen = next((one for one in start.considered if one.chosen), None) if start is not None else None
    cost = known(chosen.cost_per_hour) if chosen is not None else None
    speed = known(chosen.throughput.middle) if chosen is not None else None
    if not points or chosen is None or cost is None or speed is None:
        return ""
    currency = record.prices.currency
    fastest = max(points, key=lambda one: one[1])[2]
    sentence = (
        f"{plural(len(points), 'plan')} that no other one beat in cost and throughput; the job began with "
        f"{plan_text(chosen.plan)}, the fastest was {plan_text(fastest.plan)}."
    )
    rows = [
        (plan_text(one.plan), samples(middle), f"{money(price, currency)}/h")
        for price, middle, one in points[:_MOST_ROWS]
    ]
    numbers = details("the front", table(("Workers × cores + PSs × cores", "Predicted, samples/s", "Cost"), rows))
    body = _drawing([(one[0], one[1]) for one in points], (cost, speed), currency, sentence) + numbers
    return panel("The front at the start", sentence, body)


def _drawing(front: list[tuple[float, float]], start: tuple[float, float], currency: str, label: str) -> str:
    most_x = max([x for x, _ in front] + [start[0]]) * 1.05 or 1.0
    most_y = max([y for _, y in front] + [start[1]]) * 1.1 or 1.0
    across, up = _WIDTH - 2 * _LEFT, _HEIGHT - _BOTTOM - 18

    def place(x: float, y: float) -> tuple[float, float]:
        return round(_LEFT + across * max(0.0, x / most_x), 1), round(18 + up * (1 - max(0.0, y / most_y)), 1)

    steps: list[str] = []
    before: float | None = None
    for x, y in (place(*one) for one in front):
        steps += [f"{x} {before}"] if before is not None else []
        steps.append(f"{x} {y}")
        before = y
    dots = "".join(
        f'<circle cx="{x}" cy="{y}" r="2.6" style="fill:var(--measured)"/>' for x, y in (place(*one) for one in front)
    )
    at = place(*start)
    small = "fill:var(--ink-3);font:400 11.5px var(--sans)"
    anchor = "end" if at[0] > _WIDTH * 0.6 else "start"
    shift = -10 if anchor == "end" else 10
    base = _HEIGHT - _BOTTOM
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" style="width:100%;max-width:440px" role="img" '
        f'aria-label="{esc(label)}">'
        f'<line x1="{_LEFT}" x2="{_WIDTH - _LEFT}" y1="{base}" y2="{base}" style="stroke:var(--line)"/>'
        f'<path d="M{" L".join(steps)}" '
        'style="fill:none;stroke:var(--measured);stroke-width:1.6;stroke-dasharray:4 3"/>'
        f'{dots}<circle cx="{at[0]}" cy="{at[1]}" r="6" style="fill:var(--plan);stroke:var(--surface);stroke-width:2"/>'
        f'<text x="{at[0] + shift}" y="{min(base - 4, at[1] + 16)}" text-anchor="{anchor}" '
        'style="fill:var(--ink);font:650 12px var(--sans)">start</text>'
        f'<text x="{_LEFT}" y="12" style="{small}">up to {samples(most_y / 1.1)} samples/s, predicted</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 8}" style="{small}">0</text>'
        f'<text x="{_WIDTH - _LEFT}" y="{_HEIGHT - 8}" text-anchor="end" style="{small}">'
        f"{esc(money(most_x / 1.05, currency))} per hour</text></svg>"
    )
