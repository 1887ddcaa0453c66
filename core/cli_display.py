"""What a person sees while a job runs and when it has ended.

Progress goes to stderr: redrawn in place on a terminal, as a plain line every few seconds elsewhere (a CI log, an
Airflow task), because a log full of control characters helps nobody. The closing table goes to stdout. The texts are
made by pure functions, so that they can be tested without a terminal.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self, TextIO, cast

import click

from trimtab.core.clock import Clock, SystemClock

if TYPE_CHECKING:
    from rich.live import Live

    from trimtab.core.controller.progress import Progress

PLAIN_LINE_SECONDS = 5.0
# Phases whose message is shown once and stays: which column was taken for what, where figures are served.
KEPT = ("columns", "figures")
_BAR_CELLS = 28
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line's end
_UNKNOWN = "–"


class Stream:
    """A text stream that swallows what is written once its reader has gone (a closed terminal or pipe), or when there
    is none at all: what nobody reads must not end a job.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._gone = stream is None

    def write(self, text: str) -> int:
        """Write while somebody reads."""
        if self._stream is not None and not self._gone:
            try:
                self._stream.write(text)
            except (OSError, ValueError):
                self._leave()
        return len(text)

    def flush(self) -> None:
        """Flush while somebody reads."""
        if self._stream is not None and not self._gone:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._leave()

    def isatty(self) -> bool:
        """Whether it is a terminal that is still there."""
        try:
            return self._stream is not None and not self._gone and self._stream.isatty()
        except (OSError, ValueError):
            return False

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stream's own (its encoding, say)."""
        return getattr(self._stream, name)

    def _leave(self) -> None:
        self._gone = True
        _to_nowhere(self._stream)


def _to_nowhere(stream: TextIO | None) -> None:
    """What is still buffered would fail again when Python exits, and change the exit code."""
    with suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        if stream is not None:
            os.dup2(nothing, stream.fileno())
        os.close(nothing)


def say(text: str, *, err: bool = False) -> bool:
    """One message on stdout or stderr; false, and nothing else happens, when its reader has gone."""
    try:
        click.echo(harmless(text) if Stream(sys.stderr if err else sys.stdout).isatty() else text, err=err)
    except UnicodeError:
        raise
    except (OSError, ValueError):
        _to_nowhere(sys.stderr if err else sys.stdout)
        return False
    return True


def harmless(text: str) -> str:
    """The text as a terminal may have it: what others wrote (logs, events, names) moves no cursor and sets no title."""
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


class Line:
    """One line of progress on stderr: redrawn on a terminal, written anew every few seconds elsewhere.

    Use as a context manager, so that the terminal is left clean whatever happens inside.
    """

    def __init__(self, stream: TextIO | None = None, clock: Clock | None = None) -> None:
        self._stream = Stream(stream if stream is not None else sys.stderr)
        self._clock = clock if clock is not None else SystemClock()
        self._live: Live | None = None
        self._last_text = ""
        self._last_time = -math.inf

    def __enter__(self) -> Self:
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=cast(IO[str], self._stream)), refresh_per_second=5, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, text: str, share: float | None = None, *, now: bool = False) -> None:
        """Show `text`, with a bar when the `share` (0..1) that is done is known.

        Args:
            text: one line, or two on a terminal.
            share: what is done of it.
            now: write it also when the last plain line is only moments old (a new phase).
        """
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(harmless(text if share is None else f"{bar(share)} {text}")))
            return
        if text != self._last_text and (now or self._clock.now() - self._last_time >= PLAIN_LINE_SECONDS):
            shown = text if share is None or "batches" in text else f"{text}: {share:.0%}"
            self._stream.write(shown.replace("\n", ", ") + "\n")
            self._stream.flush()
            self._last_text, self._last_time = text, self._clock.now()


    def keep(self, text: str) -> None:
        """Write one line that stays, above what is redrawn."""
        if self._live is not None:
            from rich.text import Text

            self._live.console.print(Text(harmless(text)))
            return
        self._stream.write(text + "\n")
        self._stream.flush()


class TrainDisplay(Line):
    """A job's progress: batches, samples per second, loss, the plan in force, the phase."""

    latest: Progress | None = None
    _told = 0  # decisions that stand above the line

    def progress(self, progress: Progress) -> None:
        """Take the controller's report; cheap enough for every batch."""
        changed = self.latest is None or self.latest.phase != progress.phase or self.latest.plan != progress.plan
        self.latest = progress
        if progress.phase in KEPT:
            self.keep(f"{progress.phase}: {progress.message}")
            return
        for decision in progress.decisions[self._told :]:
            from trimtab.core.report.sentences import decision_line

            self.keep(decision_line(decision))
        self._told = max(self._told, len(progress.decisions))
        share = progress.batches_done / progress.batches_expected if progress.batches_expected else None
        self.show(progress_text(progress), share, now=changed)


def bar(share: float) -> str:
    """A bar of blocks for a share of 0..1."""
    filled = round(_BAR_CELLS * min(1.0, max(0.0, share)))
    return "█" * filled + "░" * (_BAR_CELLS - filled)


def progress_text(progress: Progress) -> str:
    """Phase, batches, throughput and loss on one line; plan in force and message on the next."""
    parts = [progress.phase]
    if progress.batches_expected:
        parts.append(f"{progress.batches_done:,} of {progress.batches_expected:,} batches")
    if progress.samples_per_second:
        parts.append(f"{progress.samples_per_second:,.0f} samples/s")
    if progress.loss is not None and math.isfinite(progress.loss):
        parts.append(f"loss {progress.loss:.4f}")
    below = [] if progress.plan is None else [f"plan {progress.plan} (workers × cores + PSs × cores)"]
    if progress.message:
        below.append(progress.message)
    return "  ".join(parts) + ("\n" + "  ".join(below) if below else "")


def closing_table(result: Mapping[str, Any]) -> str:
    """The table a run ends with, from the result's dictionary (the JSON of `--json`)."""
    rows = [
        ("AUC (held-out rows)", _number(result.get("auc"), ".4f")),
        ("log loss (held-out rows)", _number(result.get("log_loss"), ".4f")),
        ("throughput", f"{_number(result.get('samples_per_second'), ',.0f')} samples/s"),
        ("batches expected", _number(result.get("batches_expected"), ",d")),
        ("batches applied", _number(result.get("batches_applied"), ",d")),
        ("batches repeated", _number(result.get("batches_duplicated"), ",d")),
        ("batches skipped", _number(result.get("batches_skipped"), ",d")),
        ("longest wait of a worker", f"{_number(result.get('max_worker_gap_seconds'), '.1f')} s"),
        ("wall time", f"{_number(result.get('wall_seconds'), '.1f')} s"),
        ("model", str(result.get("model") or _UNKNOWN)),
        ("record", str(result.get("job_dir") or _UNKNOWN)),
    ]
    width = max(len(label) for label, _ in rows)
    head = f"{result.get('run_id', 'job')}: {result.get('state', _UNKNOWN)}"
    return "\n".join([head, *(f"  {label:<{width}}  {value}" for label, value in rows)])


def _number(value: float | None, form: str) -> str:
    """A number in the given form; a dash for one that is not known, which is not zero."""
    return _UNKNOWN if value is None or not math.isfinite(value) else format(value, form)
