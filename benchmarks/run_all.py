"""Runs every benchmark of this folder, one after the other, and writes docs/benchmarks.md with the machine named."""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import machine

HERE = Path(__file__).resolve().parent
NOT_BENCHMARKS = {
    "figures.py", "run_all.py", "resize_job.py", "model_error_job.py", "warm_start_month.py", "guard_job.py",
    "straggler_job.py", "hot_ps_job.py",
}  # fmt: skip


def first_paragraph(path: Path) -> tuple[str, str]:
    """A benchmark's title line and what it does, from its docstring."""
    import ast

    text = ast.get_docstring(ast.parse(path.read_text())) or path.stem
    title, _, rest = text.partition("\n")
    return title.strip(), " ".join(rest.split())


def row(one: dict) -> tuple[str, bool]:
    """A figure as a line of the table, and whether it misses its goal."""
    value = "not measured" if one["value"] is None else f"{one['value']:.4g}"
    sign = {"lower": "≤", "higher": "≥"}[one["better"]]
    goal = "" if one["goal"] is None else f"{sign} {one['goal']:g}"
    missed = False
    if one["goal"] is not None and one["value"] is not None:
        missed = one["value"] > one["goal"] if one["better"] == "lower" else one["value"] < one["goal"]
    return f"| `{one['name']}` | {value} | {one['unit']} | {goal}{', missed' if missed else ''} |", missed


def main() -> int:
    """Run them; a benchmark that fails and a goal that is missed are named, and the others go on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "benchmarks.md")
    chosen = parser.parse_args()
    day = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    how = "`--quick`" if chosen.quick else "in full"
    lines = [
        "# Benchmarks", "",
        "Written by `make bench`; each can be run alone with `python benchmarks/NAME.py [--quick] [--json PATH]`.", "",
        f"Run {how} on {day}: {machine()}.", "",
    ]  # fmt: skip
    failed, missed = [], []
    for path in sorted(HERE.glob("*.py")):
        if path.name in NOT_BENCHMARKS:
            continue
        title, what = first_paragraph(path)
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "figures.json"
            words = [sys.executable, str(path), "--json", str(target), *(["--quick"] if chosen.quick else [])]
            if subprocess.run(words, check=False).returncode != 0:
                failed.append(path.name)
                continue
            figures = json.loads(target.read_text())["figures"]
        lines += [f"## {path.stem}", "", f"{title} {what}".strip(), ""]
        lines += ["| figure | value | unit | goal |", "|---|---:|---|---:|"]
        for one in figures:
            line, short = row(one)
            lines.append(line)
            if short:
                missed.append(f"{one['name']} of {path.name}")
        lines.append("")
    chosen.out.write_text("\n".join(lines).rstrip() + "\n")
    if missed:
        print(f"These goals were missed: {', '.join(missed)}.")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
