"""The front of a job that has not started, as a PNG or SVG: what an hour of each plan costs, and what it brings.

Grey points are plans that were compared, the line is the front; a filled mark is where the job starts, rings are where
the objective, and a person's question, point. Everything in it is predicted, which the picture says, so the line is
dashed as in every other picture. As the report's picture it touches no global state of matplotlib.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from trimtab.core.optimizer.outlook import Outlook, Preview
from trimtab.core.report.front import rests_on
from trimtab.core.report.picture import DARK, FONT, LIGHT, drawable, round_steps, short
from trimtab.core.report.whole_file import write_whole
from trimtab.core.report.words import exact_duration, money, one_line, plan_text, samples

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE = (12, 6)  # inches at 100 dots each
_MOST_LABELS = 6
_WIDE, _TALL = 1080.0, 384.0  # pixels of the axes
_LETTER, _LINE, _GAP = 8.2, 20.0, 12.0  # pixels: a bold letter, a line of labels, a label from its mark


def write_front(found: Preview, path: Path, dark: bool = False) -> None:
    """Draw the front of `found`, 1200 × 600, replacing an earlier file (raises OSError).

    Args:
        found: the preview. path: of the file; .svg makes an SVG, all else a PNG.
        dark: light text on a dark ground.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    colours = DARK if dark else LIGHT
    figure = Figure(figsize=_SIZE, dpi=100, facecolor=colours["surface"])
    FigureCanvasAgg(figure)
    _draw(figure, found, colours)
    for text in figure.findobj(Text):  # a "$" is money here and no formula
        text.set(usetex=False, parse_math=False, fontfamily=FONT, text=drawable(text.get_text()))
    form = "svg" if path.suffix.lower() == ".svg" else "png"
    # Without a date the same front is the same file.
    metadata: dict[str, Any] = {"Date": None} if form == "svg" else {}
    write_whole(
        path,
        lambda beside: figure.savefig(beside, format=form, dpi=100, facecolor=colours["surface"], metadata=metadata),
    )


def _draw(figure: Any, found: Preview, colours: dict[str, str]) -> None:
    axes: Axes = figure.add_axes((0.075, 0.13, 0.9, 0.64))
    title = f"Would start with {plan_text(found.first.plan)}"
    figure.text(0.02, 0.944, title, color=colours["ink"], fontsize=14, fontweight="bold")
    said = short(one_line(f"{_sentence(found)}. {rests_on(found)[0]}"), 250)
    figure.text(0.02, 0.92, "\n".join(wrap(said, 125)), color=colours["ink-2"], fontsize=10.5, va="top",
                linespacing=1.35)  # fmt: skip
    scale = 1.0 if found.relative or found.fastest.throughput.middle < 5000 else 1e3
    points = [(cost, speed / scale) for cost, speed in found.cloud]
    axes.scatter([x for x, _ in points], [y for _, y in points], s=7, color=colours["hair"], alpha=0.55, linewidth=0,
                 zorder=1)  # fmt: skip
    front = [(one.cost_per_hour, one.throughput.middle / scale) for one in found.front]
    axes.plot([x for x, _ in front], [y for _, y in front], color=colours["measured"], linewidth=1.8,
              linestyle=(0, (4, 3)), drawstyle="steps-post", zorder=2)  # fmt: skip
    axes.scatter([x for x, _ in front], [y for _, y in front], s=16, color=colours["measured"], linewidth=0, zorder=3)
    shown = (found.first, found.best, *found.what_if)
    most_x = 1.06 * max([x for x, _ in points] + [one.cost_per_hour for one in shown], default=1.0)
    most_y = 1.12 * max([y for _, y in points] + [one.throughput.middle / scale for one in shown], default=1.0)
    _marks(axes, found, colours, scale, (most_x, most_y))
    axes.set_xlim(0, most_x)
    axes.set_ylim(0, most_y)
    _scales(axes, found, colours, most_x, most_y, scale)


def _marks(axes: Axes, found: Preview, colours: dict[str, str], scale: float, most: tuple[float, float]) -> None:
    named: list[tuple[Outlook, str, str, str]] = [(found.first, "start", "o", "ink-2")]
    if found.best.plan != found.first.plan:
        named.append((found.best, f"{found.question.objective}", "D", "good"))
    named += [(one, "what if", "s", "hot") for one in found.what_if[:_MOST_LABELS]]
    taken: list[tuple[float, float, float]] = []
    for one, word, marker, colour in sorted(named, key=lambda entry: -entry[0].throughput.middle):
        x, y = one.cost_per_hour, one.throughput.middle / scale
        filled = colours[colour] if word == "start" else colours["surface"]
        axes.plot([x], [y], marker=marker, markersize=10, color=colours[colour], markeredgewidth=2.2, zorder=8,
                  markerfacecolor=filled, linestyle="none")  # fmt: skip
        text = _label(found, one, word)
        side, across, up = _free_place(text, x / most[0], y / most[1], taken)
        axes.annotate(text, (x, y), (across, up), textcoords="offset pixels", color=colours["ink"], fontsize=10,
                      fontweight="bold", ha=side, va="center", zorder=7,
                      bbox={"boxstyle": "round,pad=0.15", "facecolor": colours["surface"], "edgecolor": "none",
                            "alpha": 0.8})  # fmt: skip


def _free_place(text: str, x: float, y: float, taken: list[tuple[float, float, float]]) -> tuple[str, float, float]:
    """Where a label goes: its side, and how far from its mark in pixels; below the labels that are there already.

    Args:
        text: of the label. x, y: of its mark, as shares of the axes. taken: (left, right, height) of labels in pixels.
    """
    wide, long = _WIDE * x, _LETTER * len(text)
    right = wide + _GAP + long > _WIDE
    left = wide - _GAP - long if right else wide + _GAP
    height = _TALL * y + _GAP if y < 0.93 else _TALL * y
    while any(left < end and begin < left + long and abs(height - at) < _LINE for begin, end, at in taken):
        height -= _LINE / 4
    taken.append((left, left + long, height))
    return ("right" if right else "left"), (-_GAP if right else _GAP), height - _TALL * y


def _scales(
    axes: Axes, found: Preview, colours: dict[str, str], most_x: float, most_y: float, scale: float
) -> None:  # fmt: skip
    currency = found.question.prices.currency
    across, up = round_steps(most_x), round_steps(most_y)
    axes.set_xticks(across, [money(one, currency) if one else "0" for one in across])
    axes.set_yticks(up, [f"{one:g}" for one in up])
    axes.tick_params(axis="both", colors=colours["ink-3"], length=0)
    axes.grid(color=colours["line"], linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(colours["hair"])
    axes.set_facecolor("none")
    unit = "× first plan" if found.relative else "thousand samples/s" if scale > 1 else "samples/s"
    axes.text(-0.052, 1.03, f"Throughput, {unit}, predicted", transform=axes.transAxes, color=colours["ink-2"],
              fontsize=10.5)  # fmt: skip
    axes.text(1, -0.125, "Cost per hour", transform=axes.transAxes, ha="right", color=colours["ink-2"], fontsize=10.5)
    axes.text(1, 1.03, "dashed: the front · grey: other plans within the caps", transform=axes.transAxes, ha="right",
              color=colours["ink-3"], fontsize=10)  # fmt: skip


def _label(found: Preview, one: Outlook, word: str) -> str:
    batch = "" if one.batch_size == found.question.batch_size else f", batches of {one.batch_size}"
    return f"{word}: {plan_text(one.plan)}{batch}{_whole_job(found, one)}"


def _whole_job(found: Preview, one: Outlook) -> str:
    if one.seconds is None:
        return f", {one.throughput.middle / found.first.throughput.middle:.2f} ×"
    return f", {exact_duration(one.seconds)}, {money(one.cost, found.question.prices.currency)}"


def _sentence(found: Preview) -> str:
    first = found.first
    if first.seconds is None:
        return f"{found.best.plan} is what objective {found.question.objective} would go for"
    currency = found.question.prices.currency
    text = f"Predicted {samples(first.throughput.middle)} samples/s: {exact_duration(first.seconds)}"
    return f"{text} and {money(first.cost, currency)} for the whole job"
