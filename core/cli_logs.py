"""`trimtab logs` and `trimtab events`: what a job's processes have said and what has happened to it, also as it comes.

Both read files in the job's directory, so they ask nobody and work for a job that has ended. To follow ends with the
job: whether it still runs is looked at before the last reading, so that its last words are never lost.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from trimtab.core.cli_display import say
from trimtab.core.cli_follow import Tail
from trimtab.core.clock import Clock, SystemClock
from trimtab.core.errors import BadInput

INTERRUPTED = 130
POLL_SECONDS = 0.5
CONTROLLER = "controller"
_EVENTS = "events.jsonl"
Said = tuple[str, str]  # who, and the line


class _Read(Protocol):
    """Reads what has come since the last call; `final`: also what no line's end has come for."""

    def __call__(self, *, final: bool) -> Iterator[Said]: ...


def logs(
    name: str, pod: str | None, *, follow: bool, last: int | None, as_json: bool, clock: Clock | None = None
) -> int:
    """Show what the processes of the job `name` have said; returns the exit code.

    Args:
        name: a run's id, the beginning of one, or a job's directory.
        pod: only this one, or those whose names begin so; None: all.
        follow: until the job has ended. last: so many lines of each to begin with, None: all.
        as_json: as JSON objects. clock: the machine's by default.

    Raises:
        BadInput: no such job or pod.
    """
    from trimtab.core.controller.places import find_job

    job_dir = find_job(name).path
    folder = job_dir / "logs"
    if pod is not None and not _wanted(folder, pod):
        raise BadInput("POD", pod, _near(folder, pod))
    tails: dict[Path, Tail] = {}

    begun = False  # of a log that appears later every line is new

    def read(*, final: bool) -> Iterator[Said]:
        nonlocal begun
        for path in dict.fromkeys([*_wanted(folder, pod), *tails]):  # one may have been moved away
            tail = tails.setdefault(path, Tail(path, None if begun else last))
            lines = tail.read() + (tail.rest() if final else [])
            yield from ((path.stem, line) for line in lines)
        begun = True

    alone = pod is not None and [path.stem for path in _wanted(folder, pod)] == [pod]
    form: Callable[[Said], str] = (lambda said: said[1]) if alone else (lambda said: f"{said[0]} | {said[1]}")
    if as_json:
        form = _log_line
    whole = (lambda found: json.dumps({"run": job_dir.name, "logs": _by_pod(found)})) if as_json else None
    return _show(job_dir, read, form, whole, follow, last, clock)


def events(name: str, *, follow: bool, last: int | None, as_json: bool, clock: Clock | None = None) -> int:
    """Show what has happened to the job `name`; returns the exit code. Arguments as for `logs`.

    Raises:
        BadInput: no such job.
    """
    from trimtab.core.controller.places import find_job

    job_dir = find_job(name).path
    tail = Tail(job_dir / _EVENTS)

    def read(*, final: bool) -> Iterator[Said]:
        lines = [line for line in tail.read() if line]
        rest = tail.rest() if final else []
        return (("", line) for line in lines + [line for line in rest if _event(line) is not None])  # others were cut

    form: Callable[[Said], str] = (lambda said: said[1]) if as_json else (lambda said: event_text(said[1]))
    whole = None
    if as_json:

        def whole(found: Sequence[Said]) -> str:
            told = [_event(line) for _, line in found]
            return json.dumps({"run": job_dir.name, "events": [one for one in told if one is not None]})

    return _show(job_dir, read, form, whole, follow, last, clock)


def _show(
    job_dir: Path,
    read: _Read,
    form: Callable[[Said], str],
    whole: Callable[[Sequence[Said]], str] | None,
    follow: bool,
    last: int | None,
    clock: Clock | None,
) -> int:
    """Show what is there, and what comes until the job has ended."""
    from trimtab.core.controller.status_files import still_runs

    clock, never = clock if clock is not None else SystemClock(), threading.Event()
    try:
        running = follow and still_runs(job_dir)
        found = _last_of(list(read(final=not running)), last)
        if whole is not None and not follow:
            say(whole(found))
            return 0
        while True:
            if found and not say("\n".join(map(form, found))):
                return 0  # nobody reads it any more
            if not running:
                return 0
            clock.wait(never, POLL_SECONDS)
            running = still_runs(job_dir)
            found = list(read(final=not running))
    except KeyboardInterrupt:
        if whole is not None and not follow:
            raise  # one object is owed all the same
        return INTERRUPTED


def event_text(line: str) -> str:
    """An event for a person; a line that is none as it is."""
    from trimtab.core.cli_status import span

    told = _event(line)
    if told is None:
        return line
    text = " ".join(str(told.get("text", "")).split())
    return f"{span(told['seconds']):>8}  {told['kind']!s:<16}  {text}"


def _event(line: str) -> dict[str, Any] | None:
    with suppress(ValueError, RecursionError):
        told = json.loads(line)
        if isinstance(told, dict) and "kind" in told:
            at = told.get("seconds")
            return told if isinstance(at, int | float) and math.isfinite(at) else None
    return None


def _wanted(folder: Path, pod: str | None) -> list[Path]:
    """Logs to show, the controller's first, then by role and place."""
    with suppress(OSError):
        found = [path for path in folder.iterdir() if path.suffix == ".log"]
        if pod is not None:
            exact = [path for path in found if path.stem == pod]
            found = exact or [path for path in found if path.stem.startswith(f"{pod}-")]
        return sorted(found, key=lambda path: (path.stem != CONTROLLER, _natural(path.stem)))
    return []


def _natural(name: str) -> tuple[tuple[str, int], ...]:
    """Sorts worker-10 behind worker-9."""
    return tuple((word, int(number or 0)) for word, number in re.findall(r"(\D*)(\d*)", name))


def _near(folder: Path, pod: str) -> str:
    names = [path.stem for path in _wanted(folder, None)]
    if not names:
        return "none of the job's processes has said anything yet"
    near = difflib.get_close_matches(pod, names, n=3, cutoff=0.4) or names[:3]
    hint = "; a controller has a log only where its job was submitted" if pod == CONTROLLER else ""
    return f"no such pod; choose among {', '.join(near)}{hint}"


def _last_of(found: list[Said], last: int | None) -> list[Said]:
    """The last lines of each."""
    if last is None:
        return found
    left: dict[str, int] = {}
    kept = []
    for said in reversed(found):
        left[said[0]] = left.get(said[0], last) - 1
        if left[said[0]] >= 0:
            kept.append(said)
    return kept[::-1]


def _log_line(said: Said) -> str:
    return json.dumps({"pod": said[0], "line": said[1]}, ensure_ascii=False)


def _by_pod(found: Sequence[Said]) -> list[dict[str, object]]:
    lines: dict[str, list[str]] = {}
    for pod, line in found:
        lines.setdefault(pod, []).append(line)
    return [{"pod": pod, "lines": said} for pod, said in lines.items()]
