"""`trimtab status`: how a job stands, from its controller or from its files, once or again and again.

The text is made by pure functions from the status alone, so one form serves jobs that run, wait, died and ended. It is
redrawn on a terminal, one line at a time elsewhere, because a log full of repeated tables helps nobody.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.core.cli_display import Line, Stream, bar, harmless, say
from trimtab.core.cli_ps import columns
from trimtab.core.clock import Clock, SystemClock

UNKNOWN = "–"
INTERRUPTED = 130
WATCH_SECONDS, PLAIN_SECONDS = 1.0, 5.0
_POD_HEADS = ("pod", "state", "cores", "used", "memory", "limit", "samples/s", "batches", "rows")
_LIVES = ("answers", "silent", "elsewhere")
Status = Mapping[str, Any]
Row = tuple[str, ...]


def run(name: str, *, watch: bool, as_json: bool, clock: Clock | None = None) -> int:
    """Show how the job `name` stands; returns the exit code.

    Args:
        name: a run's id, the beginning of one, or a job's directory.
        watch: until the job has ended. as_json: as JSON objects.
        clock: the machine's by default.

    Raises:
        BadInput: no such job.
    """
    from trimtab.core.controller.places import find_job
    from trimtab.core.controller.reaching import JobLine, look_at

    job_dir, clock = find_job(name).path, clock if clock is not None else SystemClock()
    with JobLine(job_dir) as line:
        if not watch:
            told = look_at(line, job_dir, clock)
            say(json.dumps(told, allow_nan=False) if as_json else text_of(told, clock.wall()))
            return 0
        try:
            return _watch(lambda: look_at(line, job_dir, clock), clock, as_json=as_json)
        except KeyboardInterrupt:
            return INTERRUPTED


def _watch(look: Any, clock: Clock, *, as_json: bool) -> int:
    """Look again and again; the last look stays."""
    never, told = threading.Event(), look()
    redrawn = not as_json and Stream(sys.stdout).isatty()
    if redrawn:
        from rich.live import Live
        from rich.text import Text

        with Live(Text(harmless(text_of(told, clock.wall()))), auto_refresh=False, transient=True) as live:
            while lives(told):
                clock.wait(never, WATCH_SECONDS)
                told = look()
                live.update(Text(harmless(text_of(told, clock.wall()))), refresh=True)
        say(text_of(told, clock.wall()))
        return 0
    last = ""
    while True:
        text = json.dumps(told, allow_nan=False) if as_json else summary(told)
        if text != last and not say(text):
            return 0  # nobody reads it any more
        last = text
        if not lives(told):
            return 0
        clock.wait(never, PLAIN_SECONDS)
        told = look()


def lives(told: Status) -> bool:
    """Whether the job may change any more by itself."""
    return told["controller"] in _LIVES


def show(line: Line, told: Status, *, now: bool = False) -> None:
    """Show a job's progress on a line of its own."""
    done, expected = told["batches_done"], told["batches_expected"]
    share = done / expected if done is not None and expected else None
    line.show(summary(told), share, now=now)


def summary(told: Status) -> str:
    """How the job stands, on one line."""
    if not lives(told):
        return _head(told, told["as_of"] or 0.0).partition("\n")[0]
    parts = [f"{told['run_id']}: {told['phase'] or 'running'}"]
    if told["batches_expected"] is not None and told["batches_done"] is not None:
        parts.append(f"{told['batches_done']:,d} of {told['batches_expected']:,d} batches")
    if told["samples_per_second"]:
        parts.append(f"{told['samples_per_second']:,.0f} samples/s")
    if told["loss"] is not None:
        parts.append(f"loss {told['loss']:.4f}")
    if told["eta_seconds"] is not None:
        parts.append(f"{span(told['eta_seconds'])} left")
    if told["findings"]:
        parts.append(f"{len(told['findings'])} {'finding' if len(told['findings']) == 1 else 'findings'}")
    return "  ".join(parts)


def text_of(told: Status, wall: float) -> str:
    """All of it, for a person.

    Args:
        told: the status. wall: seconds since 1970, now.
    """
    lines = [_head(told, wall)]
    facts = _facts(told, wall)
    width = max((len(label) for label, _ in facts), default=0)
    lines += [f"  {label:<{width}}  {value}" for label, value in facts]
    if told["pods"]:
        lines += ["", "Pods", columns(_POD_HEADS, [_pod(one) for one in told["pods"]])]
    if told["findings"]:
        lines += ["", "What is wrong"]
        lines += [f"{one['subject']}: {one['text']} (for {span(one['seconds'])})" for one in told["findings"]]
    return "\n".join(lines)


def _head(told: Status, wall: float) -> str:
    name, word, phase = told["run_id"], told["controller"], told["phase"]
    family = f" ({told['job_name']})" if told["job_name"] else ""
    ago = "" if told["as_of"] is None else f" {span(wall - told['as_of'])} ago"
    if word == "answers":
        since = "" if told["phase_seconds"] is None else f" for {span(told['phase_seconds'])}"
        return f"{name}{family}: {phase}{since}"
    if word == "silent" and phase in ("preparing", "waiting"):
        words = {"preparing": "is being prepared", "waiting": "stands in line for a share of this machine"}
        return f"{name}{family}: {words[phase]}, process {told['pid']}"
    if word == "silent" and phase == "over":
        return f"{name}{family}: has ended and writes its record"
    if word == "silent":
        return f"{name}{family}: its controller does not answer; this is as of{ago}\n{told['message']}"
    if word == "elsewhere":
        return f"{name}{family}: runs on another machine or in another container; this is as of{ago}"
    if word == "died":
        return f"{name}{family}: failed: {told['error']}. Last seen{ago}"
    end = "" if told["ended_at"] is None else f" {span(wall - told['ended_at'])} ago"
    why = f": {told['error']}" if told["error"] else ""
    return f"{name}{family}: {told['state']}{end}{why}"


def _facts(told: Status, wall: float) -> list[tuple[str, str]]:
    done, expected, saved = told["batches_done"], told["batches_expected"], told["checkpoint"]
    found: list[tuple[str, str]] = []
    if expected:
        left = "" if told["eta_seconds"] is None else f", about {span(told['eta_seconds'])} left"
        share = "" if done is None else f"{bar(done / expected)} "
        found.append(("batches", f"{share}{_count(done)} of {expected:,d}{left}"))
    if told["samples_per_second"] is not None:
        loss = "" if told["loss"] is None else f", loss {told['loss']:.4f}"
        found.append(("throughput", f"{told['samples_per_second']:,.0f} samples/s{loss}"))
    if told["plan"] is not None:
        found.append(("plan", f"{plan_words(told['plan'])} (workers × cores + PSs × cores)"))
    if saved["batches"] is not None:
        age = "" if saved["age_seconds"] is None else f", committed {span(saved['age_seconds'])} ago"
        writing = "; another one is being written" if saved["writing"] else ""
        found.append(("checkpoint", f"{_count(saved['batches'])} batches closed{age}{writing}"))
    if told["decision"] is not None:
        decision = told["decision"]
        found.append(("last decision", f"{span(decision['time'])} {decision['action']}. {decision['reason']}"))
    if told["out_of_memory"]:
        found.append(("killed for memory", f"{_count(told['out_of_memory'])} pods"))
    if told["resends_dropped"]:
        found.append(("resends dropped", _count(told["resends_dropped"])))
    if told["message"] and told["message"] != told["error"] and told["controller"] == "answers":
        found.append(("last event", " ".join(told["message"].split())))
    if told["wall_seconds"] is not None:
        cpu = "" if told["cpu_seconds"] is None else f", {told['cpu_seconds']:,.0f} CPU seconds"
        found.append(("time", f"{span(told['wall_seconds'])}{cpu}"))
    if told["pid"] is not None:
        found.append(("controller", f"process {told['pid']}"))
    if told["metrics_url"]:
        found.append(("metrics", told["metrics_url"]))
    found.append(("record", told["job_dir"]))
    return found


def _pod(one: Mapping[str, Any]) -> Row:
    return (
        one["name"], one["state"] or UNKNOWN, _form(one["cpu"], ".2f"), _form(one["cpu_used"], ".2f"),
        size(one["rss_bytes"]), size(one["memory_bytes"]), _form(one["samples_per_second"], ",.0f"),
        _count(one["batches"]), _count(one["rows"]),
    )  # fmt: skip


def plan_words(plan: Mapping[str, Any]) -> str:
    """A plan's dictionary in the notation of every page and line."""
    from trimtab.core.domain.quantities import parse_cpu

    parts: Sequence[Mapping[str, Any]] = (plan["worker"], plan["ps"])
    return " + ".join(f"{one['replicas']} × {parse_cpu(one['cpu']):g}" for one in parts)


def size(count: int | None) -> str:
    """Bytes for a person."""
    if count is None:
        return UNKNOWN
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:,.0f} {unit}" if unit in ("B", "KiB", "MiB") else f"{value:,.1f} {unit}"


def span(seconds: float | None) -> str:
    """A time for a person: 0:07, 12:30, 3:05:00, 4 days."""
    if seconds is None:
        return UNKNOWN
    whole = max(0, round(seconds))
    if whole >= 2 * 86_400:
        return f"{whole // 86_400} days"
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,d}"


def _form(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)
