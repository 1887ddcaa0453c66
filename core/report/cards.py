"""Decisions on the page: one card each (reason, candidates, what was measured afterwards), and a table of all.

Cards are what this product is read for, so they are complete without any script: a script only shows one at a time.
"""

from __future__ import annotations

from trimtab.core.domain.job import JobState
from trimtab.core.domain.records import Considered, Decision, JobRecord
from trimtab.core.report import measures, sentences
from trimtab.core.report.data import MOST_CANDIDATES
from trimtab.core.report.markup import ICONS, empty, esc, panel
from trimtab.core.report.words import NO_BREAK, THIN, UNKNOWN, bounds, clock, gib, known, money, plan_text, samples

_CHIPS = {"Applied": ("good", "ok"), "Probed": ("good", "ok"), "Started": ("mute", "dot"), "Held": ("mute", "dot"),
          "Advised": ("mute", "dot"), "Stopped the job": ("bad", "no")}  # fmt: skip


def rail(record: JobRecord) -> str:
    """The panel beside the timeline: one card shown, the others a click away."""
    cards = "".join(_card(number, one, record) for number, one in measures.numbered(record))
    if not cards:
        return panel("Decisions", "", _none(record))
    return (
        '<section class="panel dec" aria-label="Decision details"><div class="dnav"><h2 data-pos>Decisions</h2>'
        '<span class="sp"></span><button type="button" data-go="prev" aria-label="Previous decision">‹</button>'
        '<button type="button" data-go="next" aria-label="Next decision">›</button></div>'
        f'<div aria-live="polite">{cards}</div></section>'
    )


def everything(record: JobRecord) -> str:
    """The table of all decisions; on a phone each row becomes a block."""
    rows = "".join(_row(number, one) for number, one in measures.numbered(record))
    if not rows:
        return ""
    head = (
        '<th>No.</th><th>Time</th><th>What</th><th>Why</th><th class="r">Predicted</th><th class="r">Measured</th>'
        f'<th style="padding-left:14px">80{THIN}% range</th><th class="r">Switch</th>'
    )
    return (
        '<section class="panel" style="margin-top:16px"><header><h2>All decisions</h2></header>'
        f'<table class="t rs"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></section>'
    )


def _none(record: JobRecord) -> str:
    if record.tags.get("mode") == "fixed":
        return empty("The plan was fixed", "Nothing was decided while the job ran.")
    if record.state is JobState.RUNNING:
        return empty("No decision yet", "The first one comes when the plan has been measured long enough.")
    return empty("No decision was made", "The job ended before its plan was measured long enough.")


def _card(number: int, decision: Decision, record: JobRecord) -> str:
    standing = sentences.standing(decision)
    tone, icon = _CHIPS.get(standing, ("mute", "dot"))
    switch = sentences.switching(decision)
    parts = [
        f'<div><div class="when"><span class="chip {tone}">{ICONS[icon]}{esc(standing)}</span>'
        f"<span>at {clock(decision.time_seconds)}</span>{f'<span>{esc(switch)}</span>' if switch else ''}</div>"
        f'<p class="act" style="margin-top:6px">{esc(sentences.action(decision))}</p></div>',
        f'<p class="why">{esc(decision.reason)}</p>',
    ]
    if decision.evidence:
        parts.append('<div class="evd">' + "".join(f"<span>{esc(one)}</span>" for one in decision.evidence) + "</div>")
    if decision.considered:
        shown = decision.considered[:MOST_CANDIDATES]
        memory = len({(one.plan.worker.memory_bytes, one.plan.ps.memory_bytes) for one in shown}) > 1
        rows = "".join(_candidate(one, decision, record.prices.currency, memory) for one in shown)
        parts.append(
            '<div><h3>Candidates</h3><p class="s" style="margin-bottom:5px">Workers × cores + PSs × cores; predicted '
            f'samples/s; cost</p><div class="cands">{rows}</div></div>'
        )
    parts.append(_afterwards(decision, record))
    parts += [f'<p class="s">{esc(one)}</p>' for one in sentences.remarks(decision)]
    return f'<article class="card" data-n="{number}">{"".join(parts)}</article>'


def _candidate(one: Considered, decision: Decision, currency: str, memory: bool) -> str:
    label = esc(plan_text(one.plan))
    if memory:
        label += f", {gib(one.plan.ps.memory_bytes)} per PS"
    if decision.before is not None and one.plan == decision.before:
        label += " <small>now</small>"
    price = UNKNOWN if known(one.cost_per_hour) is None else f"{money(one.cost_per_hour, currency)}/h"
    within = bounds(one.throughput)
    said = "; ".join(part for part in (one.why_not, within) if part)
    why = f'<span class="w">{esc(said)}</span>' if said else ""
    return (
        f'<div class="cand{" on" if one.chosen else ""}"><span class="x">{ICONS["ok"] if one.chosen else "·"}</span>'
        f'<span>{label}</span><span class="n">{samples(one.throughput.middle)} <em>{esc(price)}</em></span>'
        f"{why}</div>"
    )


def _afterwards(decision: Decision, record: JobRecord) -> str:
    text = sentences.afterwards(decision, record.state is JobState.RUNNING, measures.measured_before(record, decision))
    if not text:
        return ""
    verdict = measures.verdict(decision)
    if verdict is None:
        return f'<p class="take">{esc(text)}</p>'
    tone, icon = ("v-in", "ok") if verdict == "inside" else ("v-out", "warn")
    head, colon, rest = text.partition(":")
    said = f"<b>{esc(head)}{colon}</b>{esc(rest)}" if verdict == "outside" else esc(text)
    return (
        f'<div><h3>Afterwards</h3><div style="padding:4px 0 2px">{_bullet(decision, verdict)}</div>'
        f'<p class="verdict"><span class="{tone}">{ICONS[icon]}</span><span>{said}</span></p></div>'
    )


def _bullet(decision: Decision, verdict: str) -> str:
    """The measured dot on the predicted range, as a drawing of 300 × 54 that needs no script."""
    predicted, found = decision.predicted, known(decision.measured)
    low = known(predicted.low) if predicted is not None else None
    high = known(predicted.high) if predicted is not None else None
    middle = known(predicted.middle) if predicted is not None else None
    if found is None or low is None or high is None:
        return ""
    left, right = min(low, found), max(high, found)
    margin = (right - left) * 0.28 or abs(right) * 0.1 or 1.0

    def x(value: float) -> float:
        return round(300 * (value - left + margin) / (right - left + 2 * margin), 1)

    at = x(found)
    anchor = "start" if at < 60 else "end" if at > 240 else "middle"
    colour = "var(--measured)" if verdict == "inside" else "var(--warn-mark)"
    small = "fill:var(--ink-3);font:400 11.5px var(--sans)"
    line = "" if middle is None else (
        f'<line x1="{x(middle)}" x2="{x(middle)}" y1="18" y2="36" '
        'style="stroke:var(--measured);stroke-width:1.6;stroke-dasharray:3 2"/>'
    )  # fmt: skip
    label = f"Predicted {samples(low)} to {samples(high)} samples per second, measured {samples(found)}"
    return (
        f'<svg class="bul" viewBox="0 0 300 54" role="img" aria-label="{esc(label)}">'
        '<line x1="0" x2="300" y1="27" y2="27" style="stroke:var(--line)"/>'
        f'<rect x="{x(low)}" y="20" width="{max(0.0, x(high) - x(low)):.1f}" height="14" rx="3" '
        'style="fill:var(--band)"/>'
        f'{line}<circle cx="{at}" cy="27" r="6" style="fill:{colour};stroke:var(--surface);stroke-width:2"/>'
        f'<text x="{at}" y="12" text-anchor="{anchor}" style="fill:var(--ink);font:650 12px var(--sans)">'
        f"measured {samples(found)}</text>"
        f'<text x="{x(low)}" y="50" text-anchor="middle" style="{small}">{samples(low)}</text>'
        f'<text x="{x(high)}" y="50" text-anchor="middle" style="{small}">{samples(high)}</text></svg>'
    )


def _row(number: int, decision: Decision) -> str:
    verdict = measures.verdict(decision)
    range_cell = f'<td class="mut e" style="padding-left:14px">{UNKNOWN}</td>' if verdict is None else (
        f'<td class="{"v-in" if verdict == "inside" else "v-out"}" data-l="Verdict" style="padding-left:14px">'
        f"{verdict} range</td>"
    )  # fmt: skip
    seconds = known(decision.switch_seconds)
    switch = UNKNOWN if seconds is None else f"{seconds:.1f}{NO_BREAK}s"
    middle = None if decision.predicted is None else decision.predicted.middle
    mark = decision.kind if decision.kind in ("hold", "stop") else "hold" if decision.advised else ""
    advised = " <small>advised</small>" if decision.advised else ""
    return (
        f'<tr><td><span class="no {mark}">{number}</span></td><td class="nw" data-l="Time">'
        f'{clock(decision.time_seconds)}</td><td style="font-weight:600;min-width:190px">'
        f"{esc(sentences.action(decision))}{advised}</td><td>{esc(decision.reason)}</td>"
        f"{_number_cell('Predicted', samples(middle))}{_number_cell('Measured', samples(decision.measured))}"
        f"{range_cell}{_number_cell('Switch', switch)}</tr>"
    )


def _number_cell(label: str, text: str) -> str:
    if text == UNKNOWN:
        return f'<td class="r mut e">{UNKNOWN}</td>'
    return f'<td class="r nw" data-l="{label}">{esc(text)}</td>'
