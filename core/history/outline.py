"""What a warm start needs of a record, small enough for a tag.

A job that starts asks for fifty past runs and needs little of each: identity, plans, figures, some windows. Whole
records hold a timeline of megabytes and lie one file each in a store, or behind one request each, so that reading fifty
took longer (0.7 s of SQLite, more from a server) than finding them. So each run carries this outline as a tag, and the
search that finds the runs brings it along. It is a record with most of it left out, so that what reads a whole record
reads it as well. It is compressed: windows as plain JSON would be longer than a tag may be.
"""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from trimtab.core.domain.job import PlanChange
from trimtab.core.domain.records import Decision, JobRecord, Observation, Sample
from trimtab.core.errors import BadInput, CorruptCopy, WireError
from trimtab.core.history.sieve import sieve
from trimtab.core.optimizer.past_memory import TABLE_FIGURE, WORKER_FIGURE, peak_worker
from trimtab.core.optimizer.warm_start import final_place, forward
from trimtab.core.wire.encode import from_json, to_json

FORMAT = 1
LONGEST = 4000  # characters of an outline as a tag
MOST_WINDOWS = 20  # with their numbers in six digits these fill a tag to three quarters
_GROWTH, _MOST_GROWTH = 1.25, 24  # times the batches, samples
_DIGITS = 6  # significant ones: windows are known to three
_LONGEST_TEXT = 200
_MOST_BYTES = 1 << 20  # of an outline, decompressed: what is longer was not written here


@dataclass(frozen=True)
class _Tag:
    format: int
    record: JobRecord


@dataclass(frozen=True)
class Outlines:
    """The answer of `History.outlines`: records, and how many runs that may have matched could not be read."""

    records: tuple[JobRecord, ...] = ()
    unread: int = 0


def outline(record: JobRecord) -> JobRecord:
    """`record` without events, front and reasons, with at most 20 windows in six digits.

    Of the timeline it has the tables' growth alone, in at most 24 steps of a quarter. `final_plan` of it is that of the
    record, and the figures of memory are there also where an older version did not write them.
    """
    last = record.samples[-1].table_bytes if record.samples else 0
    memory = {WORKER_FIGURE: peak_worker(record.samples), TABLE_FIGURE: last}
    figures = {name: float(value) for name, value in memory.items() if value > 0} | dict(record.figures)
    figures = {name: _short(value) for name, value in figures.items()}
    step = max(1, math.ceil(len(record.observations) / MOST_WINDOWS))
    windows = tuple(_window(one) for one in record.observations[::-1][::step][::-1])
    proven = [one for one in record.decisions if record.plans and one.plan == record.plans[-1].plan]
    proven = [one for one in proven if one.measured is not None]
    bare = tuple(Decision(one.time_seconds, one.kind, one.plan, "", measured=one.measured) for one in proven[-1:])
    times, place = forward(record), final_place(record)
    places = sorted({0, len(times) - 1, place if place is not None else 0}) if times else []
    plans = tuple(PlanChange(times[at], record.plans[at].plan, "") for at in places)
    short = replace(
        record, plans=plans, observations=windows, decisions=bare, figures=figures, samples=_growth(record.samples),
        events=(), front=(), warm_start=None, asked=(), reason=record.reason[:_LONGEST_TEXT], job_dir="",
    )  # fmt: skip
    return sieve(short)[0]  # what is short is sieved fast


def _growth(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """The last samples at which a quarter more batches were done than at the one before, and the very last."""
    found: list[Sample] = []
    for one in samples:
        if one.table_bytes > 0 and (not found or one.batches_done >= _GROWTH * found[-1].batches_done):
            found.append(Sample(_short(one.time_seconds), None, None, (), one.batches_done, one.table_bytes))
    last = samples[-1] if samples else None
    if last is not None and found and last.batches_done > found[-1].batches_done:
        found.append(Sample(_short(last.time_seconds), None, None, (), last.batches_done, last.table_bytes))
    return tuple(found[-_MOST_GROWTH:])


def encode_outline(record: JobRecord) -> str:
    """The outline of `record` as a tag of at most `LONGEST` characters; "" where not even that is short enough."""
    found = outline(record)
    while True:
        packed = zlib.compress(to_json(_Tag(FORMAT, found)), 9)
        text = base64.b64encode(packed).decode("ascii")
        if len(text) <= LONGEST:
            return text
        if not found.observations:
            return ""
        found = replace(found, observations=found.observations[1::2])


def decode_outline(text: str, name: str) -> JobRecord:
    """The record in a tag; `name` is said in errors.

    Raises:
        BadInput: a newer format than this version knows. CorruptCopy: no outline, or one that was cut or changed.
    """
    try:
        unpack = zlib.decompressobj()
        data = unpack.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
        if not unpack.eof:
            raise CorruptCopy(f"{name}: its outline was cut, or is too long")
        found = from_json(_Tag, data)
    except (ValueError, binascii.Error, zlib.error, WireError) as error:
        raise CorruptCopy(f"{name}: has no outline that can be read ({error})") from error
    if found.format > FORMAT:
        raise BadInput(name, f"format {found.format}", f"this version reads format {FORMAT}; use a newer trimtab")
    return found.record


def _window(one: Observation) -> Observation:
    values = {field.name: getattr(one, field.name) for field in fields(one)}
    changes: dict[str, Any] = {name: _short(value) for name, value in values.items() if isinstance(value, float)}
    changes["phase_seconds"] = {phase: _short(seconds) for phase, seconds in one.phase_seconds.items()}
    return replace(one, **changes)


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
