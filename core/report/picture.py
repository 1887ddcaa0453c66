"""The report's timeline as a PNG, for places that show pictures only: MLflow, a README, a mail.

The same numbers, strokes and colours as the page's chart: solid is measured, dashed and shaded is predicted, the dark
step is the plan; a filled number is a change, a hollow one was held or only advised. It uses matplotlib's objects and
never its global state, so that a controller may draw in any thread, and nothing of a user's settings changes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from trimtab.core.domain.plan import Plan
from trimtab.core.domain.records import JobRecord, Range
from trimtab.core.report import measures, sentences
from trimtab.core.report.data import event_kind, shown_events
from trimtab.core.report.whole_file import write_whole
from trimtab.core.report.words import clock, cores, known, one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LIGHT = {"surface": "#FFFFFF", "line": "#DEE3E8", "hair": "#B4BDC7", "ink": "#161B22", "ink-2": "#47515D",
         "ink-3": "#626D79", "measured": "#0067A5", "plan": "#47515D", "bad": "#B0241A", "warn": "#C97A00",
         "good": "#0A7357", "hot": "#C2500A", "mem": "#7B4BA8"}  # fmt: skip
DARK = {"surface": "#161B21", "line": "#2A323B", "hair": "#4A5560", "ink": "#E9EDF1", "ink-2": "#B3BDC7",
        "ink-3": "#909BA7", "measured": "#5BB6F2", "plan": "#B3BDC7", "bad": "#FF8A7E", "warn": "#E9B04A",
        "good": "#46C79E", "hot": "#F08A4B", "mem": "#BD95E6"}  # fmt: skip
_EVENT_MARKS = {"straggler": ("^", "warn"), "hot_ps": ("D", "hot"), "crash": ("x", "bad"), "recovery": ("o", "good"),
                "memory": ("s", "mem"), "note": (".", "ink-3")}  # fmt: skip
_LANES: tuple[tuple[str, Callable[[Plan], float]], ...] = (
    ("Workers", lambda plan: plan.worker.replicas), ("PSs", lambda plan: plan.ps.replicas),
    ("CPU cores", lambda plan: plan.cpu),
)  # fmt: skip
FONT = "DejaVu Sans"  # comes with matplotlib
_HUGE = 1e12  # what is larger is a fault in the record, and drawing arithmetic would overflow
_NEAR = 0.022  # of the width: marks nearer than this take the second row
_ROWS = (1.235, 1.13)  # heights of the two rows of marks, in the axes' height
_TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


def write_picture(record: JobRecord, path: Path, dark: bool = False) -> None:
    """Write the picture of `record` to `path`, 1200 × 600 pixels, replacing an earlier one (raises OSError).

    Args:
        record: running or ended, whatever it knows.
        path: of the PNG.
        dark: light text on a dark ground.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    colours = DARK if dark else LIGHT
    figure = Figure(figsize=(12, 6), dpi=100, facecolor=colours["surface"])
    FigureCanvasAgg(figure)
    _draw(figure, record, colours)
    for text in figure.findobj(Text):  # a "$" in a job's name is no formula, and a user's fonts may lack our signs
        text.set(usetex=False, parse_math=False, fontfamily=FONT, text=drawable(text.get_text()))
    write_whole(path, lambda beside: figure.savefig(beside, format="png", dpi=100, facecolor=colours["surface"]))


def _draw(figure: Any, record: JobRecord, colours: dict[str, str]) -> None:
    spans = measures.plan_spans(record)
    lanes = 3 if spans else 0
    heights = [6.2, *([1.0] * lanes)]
    grid = figure.add_gridspec(1 + lanes, 1, height_ratios=heights, left=0.075, right=0.975, top=0.75, bottom=0.065,
                               hspace=0.42)  # fmt: skip
    main: Axes = figure.add_subplot(grid[0])
    length = _length(record)
    figure.text(0.02, 0.944, f"{one_line(record.job_name)}: {short(sentences.outcome(record), 105)}",
                color=colours["ink"], fontsize=14, fontweight="bold")  # fmt: skip
    said = "\n".join(wrap(short(sentences.timeline(record), 230), 125))
    figure.text(0.02, 0.92, said, color=colours["ink-2"], fontsize=10.5, va="top", linespacing=1.35)
    _throughput(main, record, colours, length)
    _marks(main, record, colours, length)
    below = [figure.add_subplot(grid[1 + place]) for place in range(lanes)]
    for axes, (name, value) in zip(below, _LANES, strict=False):
        _lane(axes, name, [(one.start, _lane_height(value(one.change.plan))) for one in spans], colours, length)
    for axes in (main, *below):
        axes.set_xlim(0, length)
        times = _ticks(length)
        axes.set_xticks(times, [clock(one) if one else "0" for one in times])
        axes.tick_params(axis="x", colors=colours["ink-3"], labelbottom=axes is (main, *below)[-1], length=3)
        for side in ("top", "left", "right"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(colours["hair"])
        axes.set_facecolor("none")
    for _, decision in measures.numbered(record):
        time = known(decision.time_seconds)
        if time is not None and 0 <= time <= length and decision.kind != "hold" and not decision.advised:
            for axes in (main, *below):
                axes.axvline(time, color=colours["hair"], linewidth=0.8, alpha=0.55, zorder=0)


def _throughput(axes: Axes, record: JobRecord, colours: dict[str, str], length: float) -> None:
    points = measures.thinned(measures.measured(record), [one.start for one in measures.plan_spans(record)])
    points = tuple((t, None if v is None or abs(v) > _HUGE else v) for t, v in points if t <= length)
    predicted = [
        one for one in measures.prediction_spans(record)
        if one.end <= length and max(abs(edge) for edge in _edges(one.range)) < _HUGE
    ]  # fmt: skip
    highest = [v for _, v in points if v is not None]
    highest += [high for one in predicted if (high := known(one.range.high) or known(one.range.middle)) is not None]
    most = max([one for one in highest if one > 0], default=1.0)
    thousand = most >= 5000
    scale = 1e3 if thousand else 1.0
    for one in predicted:
        low, high = known(one.range.low), known(one.range.high)
        middle = known(one.range.middle) or 0.0
        if low is not None and high is not None:
            axes.fill_between([one.start, one.end], [low / scale] * 2, [high / scale] * 2, color=colours["measured"],
                              alpha=0.16, linewidth=0, zorder=1)  # fmt: skip
        axes.plot([one.start, one.end], [middle / scale] * 2, color=colours["measured"], linewidth=1.2,
                  linestyle=(0, (4, 3)), zorder=2)  # fmt: skip
    values = [float("nan") if v is None else v / scale for _, v in points]
    axes.plot([t for t, _ in points], values, color=colours["measured"], linewidth=2, zorder=4)
    axes.set_ylim(0, most / scale * 1.08)
    heights = round_steps(most / scale * 1.08)
    axes.set_yticks(heights, [f"{one:g}" for one in heights])
    axes.tick_params(axis="y", colors=colours["ink-3"], length=0)
    axes.grid(axis="y", color=colours["line"], linewidth=0.8)
    axes.set_axisbelow(True)
    unit = "thousand samples/s" if thousand else "samples/s"
    axes.text(-0.052, 1.03, f"Throughput, {unit}", transform=axes.transAxes, color=colours["ink-2"], fontsize=10.5)
    axes.text(1, 1.03, "solid: measured · dashed, shaded: predicted, 80 % range", transform=axes.transAxes, ha="right",
              color=colours["ink-3"], fontsize=10)  # fmt: skip
    if not any(v is not None for _, v in points):
        axes.text(0.5, 0.5, "Too short to measure", transform=axes.transAxes, ha="center", color=colours["ink-2"])


def _marks(axes: Axes, record: JobRecord, colours: dict[str, str], length: float) -> None:
    """Numbers over the chart, in two rows where they are near; events as shapes in the lower margin."""
    last = [-1.0, -1.0]
    for number, decision in sorted(measures.numbered(record), key=lambda one: known(one[1].time_seconds) or 0.0):
        time = known(decision.time_seconds)
        if time is None or not 0 <= time <= length:
            continue
        share = time / length
        row = 0 if share - last[0] >= _NEAR or last[0] < 0 else 1
        if row == 1 and share - last[1] < _NEAR and last[1] >= 0:
            continue  # neither row has room: the page has all of them
        last[row] = share
        quiet = decision.kind == "hold" or decision.advised
        ground = colours["bad"] if decision.kind == "stop" else colours["ink-2"]
        edge = colours["warn"] if measures.verdict(decision) == "outside" else ground
        axes.text(share, _ROWS[row], str(number), transform=axes.transAxes, ha="center", va="center", fontsize=9,
                  fontweight="bold", color=ground if quiet else colours["surface"], clip_on=False, zorder=9,
                  bbox={"boxstyle": "circle,pad=0.3", "facecolor": colours["surface"] if quiet else ground,
                        "edgecolor": edge, "linewidth": 2.2 if edge != ground else 1.3})  # fmt: skip
    for event in shown_events(record):
        marker, colour = _EVENT_MARKS[event_kind(event)]
        if event.time_seconds > length:
            continue
        share = max(0.0, event.time_seconds) / length
        axes.plot([share], [0.045], marker=marker, color=colours[colour], markersize=8, markeredgewidth=2.2,
                  transform=axes.transAxes, clip_on=False, zorder=8, linestyle="none")  # fmt: skip


def _lane(axes: Axes, name: str, steps: list[tuple[float, float]], colours: dict[str, str], length: float) -> None:
    """One quantity of the plan as steps, its value written at each."""
    steps = [(time, value) for time, value in steps if time <= length] or [(0.0, steps[0][1])]
    times = [time for time, _ in steps] + [length]
    values = [value for _, value in steps] + [steps[-1][1]]
    axes.step(times, values, where="post", color=colours["plan"], linewidth=1.8)
    axes.fill_between(times, values, step="post", color=colours["plan"], alpha=0.1, linewidth=0)
    axes.set_ylim(0, (max(values) or 1.0) * 1.75)
    axes.set_yticks([])
    axes.text(-0.008, 0.3, name, transform=axes.transAxes, ha="right", va="center", color=colours["ink-2"], fontsize=10)
    before: float | None = None
    for time, value in steps:
        if value != before and 0 <= time <= length:
            axes.annotate(cores(value), (time, value), (3, 2), textcoords="offset points", color=colours["ink"],
                          fontsize=10, fontweight="bold")  # fmt: skip
        before = value


def _edges(prediction: Range) -> list[float]:
    return [known(one) or 0.0 for one in (prediction.low, prediction.middle, prediction.high)]


def _lane_height(value: float) -> float:
    return min(max(known(value) or 0.0, 0.0), _HUGE)


def _length(record: JobRecord) -> float:
    return min(max(measures.length_seconds(record), 1.0), 1e9)


def _ticks(length: float) -> list[float]:
    """Round times, about eight of them."""
    step = next((float(one) for one in _TICKS if one >= length / 9), length / 5)
    return [place * step for place in range(int(length / step + 1e-9) + 1)]


def round_steps(most: float) -> list[float]:
    """Round heights from 0 to `most`, about five of them."""
    power = 10.0 ** math.floor(math.log10(most / 5))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power * 1.001 >= most / 5)
    return [place * step for place in range(int(most / step + 1e-9) + 1)]


def short(text: str, most: int) -> str:
    """`text` on one line of at most `most` signs."""
    text = one_line(text)
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def drawable(text: str) -> str:
    """With a box for each sign that the font lacks: matplotlib would draw one too, and warn on stderr."""
    from matplotlib.font_manager import findfont, get_font

    known_signs = get_font(findfont(FONT)).get_charmap()
    return "".join(one if one == "\n" or ord(one) in known_signs else "\u25a1" for one in text)
