"""What every benchmark shares: its options, its table, and the JSON that `make bench` gathers.

A figure has a name, a value (None where a quick run cannot give it), a unit, a goal (None where there is none) and
says whether lower or higher is better. Spread is printed beside it, because the machines are noisy.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")


@dataclass(frozen=True)
class Figure:
    """One measured number."""

    name: str
    value: float | None
    unit: str
    goal: float | None
    better: str  # lower | higher
    note: str = ""


def options(description: str, *files: tuple[str, str]) -> argparse.Namespace:
    """The two options of every benchmark, and `files` (name, help) of this one."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats and smaller sizes")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    for name, help_text in files:
        parser.add_argument(name, type=Path, help=help_text)
    return parser.parse_args()


def machine() -> str:
    """The machine, in words."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return f"{len(os.sched_getaffinity(0))} cores of {model}, Python {platform.python_version()}"


def report(title: str, figures: list[Figure], path: Path | None) -> None:
    """Print the table, and write the JSON where one was asked for."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in ("figure", "value", "unit", "goal", "spread and conditions"):
        table.add_column(column, justify="right" if column in ("value", "goal") else "left")
    for one in figures:
        sign = {"lower": "≤", "higher": "≥"}[one.better]
        goal = "" if one.goal is None else f"{sign} {one.goal:g}"
        table.add_row(one.name, "not measured" if one.value is None else f"{one.value:.4g}", one.unit, goal, one.note)
    console = Console(width=120)
    console.print(table)
    console.print(machine(), style="dim")
    if path is not None:
        fields = ("name", "value", "unit", "goal", "better")
        kept = [{key: asdict(one)[key] for key in fields} for one in figures]
        path.write_text(json.dumps({"figures": kept}, indent=1) + "\n")
