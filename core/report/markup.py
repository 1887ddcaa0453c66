"""The small parts of a page: escaping, marks, legends, tables, panels.

Everything that comes from a record passes `esc`, because job names and reasons come from users and logs. A swatch is
drawn in the stroke it stands for (solid measured, dashed predicted), so that a legend needs no colour to be read.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

LOGO = (
    '<svg width="22" height="16" viewBox="0 0 22 16" aria-hidden="true"><path d="M1 8C4 2.6 9 1.2 14.2 4.9V11.1C9 14.8 '
    '4 13.4 1 8Z" fill="currentColor"/><path d="M16 5.6 21 2.4 21 6.4 16 10.6Z" fill="var(--measured)"/></svg>'
)
_ICON = '<svg width="14" height="14" viewBox="0 0 14 14" aria-hidden="true">{}</svg>'
ICONS = {
    "ok": _ICON.format('<path d="M2.5 7.4l3 3 6-6.6" fill="none" stroke="currentColor" stroke-width="2"/>'),
    "no": _ICON.format('<rect x="3" y="3" width="8" height="8" rx="1.5" fill="currentColor"/>'),
    "warn": _ICON.format(
        '<path d="M7 1.6 13 12.4H1Z" fill="none" stroke="currentColor" stroke-width="1.6"/>'
        '<path d="M7 5.6v3.2M7 10.2v1" stroke="currentColor" stroke-width="1.6"/>'
    ),
    "dot": _ICON.format('<circle cx="7" cy="7" r="4" fill="currentColor"/>'),
}
SWATCHES = {
    "measured": '<svg width="22" height="10"><path d="M0 5h22" stroke="var(--measured)" stroke-width="2.2"/></svg>',
    "predicted": '<svg width="22" height="12"><rect width="22" height="12" rx="2" fill="var(--band)"/>'
    '<path d="M0 6h22" stroke="var(--measured)" stroke-width="1.4" stroke-dasharray="4 3"/></svg>',
    "plan": '<svg width="22" height="10"><path d="M0 5h22" stroke="var(--plan)" stroke-width="2.2"/></svg>',
    "change": '<b class="no sm">1</b>',
    "hold": '<b class="no sm hold">2</b>',
    "stop": '<b class="no sm stop">3</b>',
    "straggler": _ICON.format('<path d="M7 1.5 13 12.5H1Z" fill="var(--warn-mark)"/>'),
    "hot_ps": _ICON.format('<path d="M7 .8 13.2 7 7 13.2 .8 7Z" fill="var(--hot)"/>'),
    "crash": _ICON.format(
        '<path d="M2.5 2.5l9 9m0-9l-9 9" stroke="var(--bad)" stroke-width="2.8" stroke-linecap="round"/>'
    ),
    "recovery": _ICON.format(
        '<circle cx="7" cy="7" r="6.2" fill="var(--good)"/>'
        '<path d="M4 7.2l2.2 2.2L10.2 5" stroke="var(--surface)" stroke-width="1.8" fill="none"/>'
    ),
    "memory": _ICON.format('<rect x="1.5" y="1.5" width="11" height="11" rx="1.5" fill="var(--mem)"/>'),
    "note": _ICON.format('<circle cx="7" cy="7" r="3.5" fill="var(--ink-3)"/>'),
}
THEME = (
    '<div class="seg" role="group" aria-label="Colours">'
    '<button type="button" data-theme-set="auto" aria-pressed="true">Auto</button>'
    '<button type="button" data-theme-set="light" aria-pressed="false">Light</button>'
    '<button type="button" data-theme-set="dark" aria-pressed="false">Dark</button></div>'
)


def esc(text: object) -> str:
    """`text` for HTML, quotes included; control characters, which no page may hold, become spaces."""
    return html.escape(re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", " ", str(text)))


def legend(items: Iterable[tuple[str, str]], second: bool = False) -> str:
    """(swatch, word) pairs as a line over a chart."""
    parts = "".join(f"<span>{SWATCHES[swatch]}{esc(word)}</span>" for swatch, word in items)
    return f'<div class="lg{" l2" if second else ""}">{parts}</div>'


def panel(title: str, sentence: str, body: str, over: str = "") -> str:
    """One idea: heading, one sentence with numbers, then what shows it. `body` and `over` are HTML."""
    said = f'<p class="take">{esc(sentence)}</p>' if sentence else ""
    return f'<section class="panel"><header><h2>{esc(title)}</h2>{said}{over}</header>{body}</section>'


def chart(name: str, sentence: str) -> str:
    """A place that the script draws into; its name is the panel's sentence."""
    label = esc(sentence)
    return f'<div class="chart" data-chart="{name}"><div class="plot" role="img" aria-label="{label}"></div></div>'


def empty(head: str, text: str) -> str:
    """What stands where there is nothing to show, and why."""
    return f'<div class="empty"><b>{esc(head)}</b>{esc(text)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], text_columns: Sequence[int] = (0,)) -> str:
    """A plain table of texts; columns that are not `text_columns` stand to the right."""
    side = ["" if place in text_columns else ' class="r"' for place in range(len(head))]
    top = "".join(f"<th{one}>{esc(cell)}</th>" for one, cell in zip(side, head, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{one}>{esc(cell)}</td>" for one, cell in zip(side, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<table class="t"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'


def details(what: str, body: str) -> str:
    """Numbers behind a chart, folded away."""
    return f"<details><summary>Show the numbers: {esc(what)}</summary>{body}</details>"


def command(text: str) -> str:
    """A command with a button that copies it."""
    return f'<div class="cmd"><code>{esc(text)}</code><button type="button" data-copy>Copy</button></div>'
