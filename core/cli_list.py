"""`trimtab jobs` and `trimtab jobs prune`: the jobs of this machine at a glance, and room where old ones were.

Each job is asked for a moment if its controller lives, and read from its directory otherwise; a job whose controller
died is shown as such, for it goes on only if somebody resumes it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trimtab.core.cli_display import say
from trimtab.core.cli_status import UNKNOWN, plan_words, size, span
from trimtab.core.clock import Clock, SystemClock
from trimtab.core.errors import JobFailed

ASK_SECONDS = 2.0  # for an answer: one that hangs must not hide the others for long
_HEADS = ("run", "family", "state", "begun", "progress", "samples/s", "plan")
_KEYS = (
    "run_id", "job_name", "state", "controller", "phase", "pid", "started_at", "ended_at", "wall_seconds",
    "batches_done", "batches_expected", "samples_per_second", "eta_seconds", "plan", "job_dir", "error",
)  # fmt: skip
Status = Mapping[str, Any]


def jobs(*, as_json: bool, clock: Clock | None = None) -> int:
    """List the jobs under TRIMTAB_HOME on stdout, the last one first; returns the exit code.

    Args:
        as_json: one JSON object instead of a table. clock: the machine's by default.
    """
    from trimtab.core.controller.places import home

    clock = clock if clock is not None else SystemClock()
    found = stand(home() / "jobs", clock)
    if as_json:
        listed = [{key: told[key] for key in _KEYS} for told in found]
        say(json.dumps({"jobs": listed, "folder": str(home() / "jobs")}, allow_nan=False))
        return 0
    say(table(found, clock.wall()) if found else f"no jobs in {home() / 'jobs'} yet")
    return 0


def stand(folder: Path, clock: Clock) -> list[Status]:
    """How each job in the folder stands, the last one first; those that run are asked all at once."""
    from trimtab.core.controller.pruning import folders_of
    from trimtab.core.controller.reaching import JobLine, NoAnswer, waiting_jobs
    from trimtab.core.controller.status_files import left_of, status_of_files

    places = sorted(folders_of(folder.parent), reverse=True)
    waiting, live = waiting_jobs(clock), dict[Path, Status]()

    def ask(path: Path) -> None:
        with suppress(NoAnswer), JobLine(path, ASK_SECONDS) as line:
            live[path] = line.ask().status

    told = {path: status_of_files(left_of(path, waiting), clock.wall()) for path in places}
    asking = [threading.Thread(target=ask, args=(path,)) for path in places if told[path]["controller"] == "silent"]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    return [live.get(path, told[path]) for path in places]


def table(found: Sequence[Status], wall: float) -> str:
    """The jobs as text in columns."""
    rows = [_HEADS, *(_row(told, wall) for told in found)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEADS))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _row(told: Status, wall: float) -> tuple[str, ...]:
    begun = UNKNOWN if told["started_at"] is None else f"{span(wall - told['started_at'])} ago"
    done, expected = told["batches_done"], told["batches_expected"]
    progress = UNKNOWN
    if done is not None and expected:
        progress = f"{done:,d} of {expected:,d} ({done / expected:.0%})"
    rate = told["samples_per_second"]
    return (
        told["run_id"], told["job_name"] or UNKNOWN, state_words(told), begun, progress,
        UNKNOWN if rate is None else f"{rate:,.0f}", UNKNOWN if told["plan"] is None else plan_words(told["plan"]),
    )  # fmt: skip


def state_words(told: Status) -> str:
    """State and phase in one or two words."""
    word = told["controller"]
    if word == "died":
        return "controller died"
    if word == "elsewhere":
        return "elsewhere"
    if word == "ended":
        return str(told["state"])
    phase = told["phase"] or "running"
    return f"{phase} (no answer)" if word == "silent" and phase not in ("preparing", "waiting", "over") else str(phase)


def prune(older_than: str, *, dry_run: bool, as_json: bool, clock: Clock | None = None) -> int:
    """Remove directories of jobs that ended long ago, and say which; returns the exit code.

    Args:
        older_than: how long ago, as a time such as 30d.
        dry_run: only say what would go. as_json: one JSON object. clock: the machine's by default.

    Raises:
        BadInput: no such time. JobFailed: something could not be removed.
    """
    from trimtab.core.controller.places import home
    from trimtab.core.controller.pruning import old_jobs, remove, remove_halves
    from trimtab.core.domain.quantities import parse_duration

    clock = clock if clock is not None else SystemClock()
    seconds = parse_duration(older_than, "--older-than")
    found = old_jobs(home(), seconds, clock.wall())
    going, kept = [one for one in found if not one.kept], [one for one in found if one.kept]
    problems: dict[str, str] = {}
    if not dry_run:
        remove_halves(home())
        problems = {one.run_id: why for one in going if (why := remove(one))}
    gone = [one for one in going if one.run_id not in problems]
    if as_json:
        listed = [
            {"run_id": one.run_id, "job_dir": str(one.path), "state": one.state, "ended_at": one.ended_at,
             "bytes": one.size, "checkpoints_left_in": one.elsewhere or None}
            for one in gone
        ]  # fmt: skip
        stays = {one.run_id: one.kept for one in kept}
        say(json.dumps({"dry_run": dry_run, "removed": listed, "kept": stays, "failed": problems}, allow_nan=False))
        return 1 if problems else 0
    for one in gone:
        verb = "would remove" if dry_run else "removed"
        left = f"; its checkpoints in {one.elsewhere} stay" if one.elsewhere else ""
        ago = span(clock.wall() - one.ended_at)
        say(f"{verb} {one.run_id} ({one.state} {ago} ago, {size(one.size)}){left}")
    for one in kept:
        say(f"kept {one.run_id}: {one.kept}")
    total = size(sum(one.size for one in gone))
    count = f"{len(gone)} job" if len(gone) == 1 else f"{len(gone)} jobs"
    say(f"{count} {'would go' if dry_run else 'gone'}, {total}")
    if problems:
        raise JobFailed("; ".join(f"{run} could not be removed: {why}" for run, why in problems.items()))
    return 0
