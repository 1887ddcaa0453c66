"""How a job stands by what lies in its directory: when its controller has ended, died, or is out of reach.

A running controller writes its record and its figures every few seconds, and its result at the end, so there is always
something to tell; it is told with its age, and with what became of the controller. The keys are those of `status`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.core.controller import ps_stats
from trimtab.core.controller.document import Document
from trimtab.core.controller.lost import REASON, Controller, controller_of
from trimtab.core.controller.result import decision_dict
from trimtab.core.controller.status import (
    DIED,
    ELSEWHERE,
    ENDED,
    POD_KEYS,
    PREPARING,
    SILENT,
    WAITING,
    Status,
    nothing_known,
)
from trimtab.core.controller.store import FileStore
from trimtab.core.domain.job import JobSpec, JobState
from trimtab.core.domain.records import JobRecord
from trimtab.core.errors import CorruptCopy, TrimtabError
from trimtab.core.history.record_file import FILE as RECORD
from trimtab.core.history.record_file import read_record
from trimtab.core.ps.manifest import Manifest, read_manifest
from trimtab.core.wire.encode import read_json

STATE, SPEC, RESULT = "state.json", "spec.json", "result.json"
OVER = "over"
NEVER_BEGAN = "it never began: its preparation was ended before anything was started"
KINDS_OF_MEMORY = ("oom",)  # events of a pod that was killed for want of memory


@dataclass(frozen=True)
class Left:
    """What was found in a job's directory; None for what is not there or cannot be read.

    Attributes:
        run_id, job_dir: of the job. controller: whom it names.
        spec, document, record, result: the files of these names. phase: as last written, "" when nowhere.
        manifest: content of the committed one. written_at: when the newest of them was written, seconds since 1970.
        waits: it stands in line for a share of the machine.
    """

    run_id: str
    job_dir: str
    controller: Controller | None = None
    spec: JobSpec | None = None
    document: Document | None = None
    record: JobRecord | None = None
    result: Mapping[str, Any] | None = None
    phase: str = ""
    manifest: Manifest | None = None
    written_at: float | None = None
    waits: bool = False


def left_of(job_dir: Path, waiting: frozenset[str] = frozenset()) -> Left:
    """Read what lies there.

    Args:
        job_dir: of the job. waiting: directories of jobs that stand in line.
    """
    document, record, spec, manifest = None, None, None, None
    with suppress(OSError, TrimtabError):
        document = FileStore(job_dir / STATE).read()
    with suppress(OSError, TrimtabError):
        record = read_record(job_dir / RECORD)
    if document is None:
        with suppress(OSError, TrimtabError):
            spec = read_json(JobSpec, job_dir / SPEC)
    result = _json(job_dir / RESULT)
    if document is not None and result is None:
        with suppress(OSError, CorruptCopy):
            manifest = read_manifest(document.manifest)
    phase = (_json(job_dir / ps_stats.FILE) or {}).get("phase", "")
    name = document.job_id if document is not None else record.run_id if record is not None else job_dir.name
    return Left(
        name, str(job_dir), controller_of(job_dir), spec, document, record, result, str(phase), manifest,
        _written(job_dir), str(job_dir) in waiting,
    )  # fmt: skip


def status_of_files(left: Left, wall: float) -> Status:
    """How a job stands whose controller is not asked.

    Args:
        left: what was found. wall: seconds since 1970.
    """
    word = controller_word(left)
    state, error = _ended(left, word)
    told = nothing_known(left.run_id, left.job_dir)
    told |= {"state": str(state), "controller": word, "error": error, "message": error or "", "as_of": left.written_at}
    told["pid"] = left.controller.pid if left.controller is not None and word in (SILENT, ELSEWHERE) else None
    told["phase"] = _phase(left, word)
    if left.spec is not None:
        told["job_name"] = left.spec.job_name
    if left.document is not None:
        told |= _of_document(left, left.document)
    if left.record is not None:
        told |= _of_record(left.record, running=word in (SILENT, ELSEWHERE))
    if left.result is not None and word not in (SILENT, ELSEWHERE):
        told |= _of_result(left.result)
    if left.manifest is not None and word in (ENDED, DIED):
        told["batches_done"] = len(left.manifest.applied())
    ended_at = told["ended_at"] if told["ended_at"] is not None else told["as_of"]
    if told["wall_seconds"] is None and told["started_at"] is not None and ended_at is not None:
        told["wall_seconds"] = round(
            max(0.0, (wall if state is JobState.RUNNING else ended_at) - told["started_at"]), 3
        )
    told["checkpoint"]["batches"] = _closed(left)
    return told


def still_runs(job_dir: Path) -> bool:
    """Whether somebody may still write there; cheap enough to be asked again and again."""
    named = controller_of(job_dir)
    if named is None or named.alive or named.here:
        return named is not None and named.alive
    with suppress(OSError, TrimtabError):
        document = FileStore(job_dir / STATE).read()
        return document is None or document.state is JobState.RUNNING
    return True


def controller_word(left: Left) -> str:
    """What became of the controller; one that lives is called silent here, because nobody asked it."""
    named, state = left.controller, left.document.state if left.document is not None else None
    if named is not None and named.alive:
        return SILENT
    if state is not None and state is not JobState.RUNNING:
        return ENDED
    if named is not None and not named.here:
        return ELSEWHERE
    return DIED


def _ended(left: Left, word: str) -> tuple[JobState, str | None]:
    """The job's state, and why it did not finish."""
    if word in (SILENT, ELSEWHERE):
        return JobState.RUNNING, None
    if left.document is None:
        return JobState.FAILED, str((left.result or {}).get("error") or NEVER_BEGAN)
    if left.document.state is JobState.RUNNING:
        return JobState.FAILED, REASON
    return left.document.state, left.document.reason or None


def _phase(left: Left, word: str) -> str | None:
    if word in (ENDED, DIED):
        return OVER
    if word == ELSEWHERE:
        return left.phase or None
    if left.waits:
        return WAITING
    if left.controller is None or left.controller.private is None or left.document is None:
        return PREPARING
    return OVER if left.result is not None else left.phase or "starting"


def _of_document(left: Left, document: Document) -> Status:
    last = document.decisions[-1] if document.decisions else None
    return {
        "job_name": document.spec.job_name,
        "plan": document.plan.as_dict(),
        "decisions": len(document.decisions),
        "decision": decision_dict(last) if last is not None else None,
        "checkpoint": {**nothing_known("", "")["checkpoint"], "path": document.manifest.path},
    }


def _of_record(record: JobRecord, *, running: bool) -> Status:
    sample = record.samples[-1] if record.samples else None
    expected, limits = record.figures.get("batches_expected"), record.limits
    last = record.decisions[-1] if record.decisions else None
    told: Status = {
        "job_name": record.job_name,
        "started_at": record.started_at or None,
        "ended_at": record.ended_at,
        "batches_expected": None if expected is None else int(expected),
        "limits": {
            "cpu": limits.cpu, "memory_bytes": limits.memory_bytes, "workers": limits.workers, "ps": limits.ps,
        },
        "out_of_memory": sum(event.kind in KINDS_OF_MEMORY for event in record.events),
        "samples_per_second": record.figures.get("samples_per_second"),
    }  # fmt: skip
    if last is not None:
        told |= {"decisions": len(record.decisions), "decision": decision_dict(last)}
    if sample is not None:
        told["batches_done"], told["table_bytes"] = sample.batches_done, sample.table_bytes
    if running and sample is not None:
        told["samples_per_second"] = sample.throughput
        told["pods"] = [
            dict.fromkeys(POD_KEYS)
            | {"name": one.pod, "role": one.role, "cpu_used": one.cpu, "rss_bytes": one.rss_bytes or None}
            for one in sample.pods
        ]
    return told


def _of_result(result: Mapping[str, Any]) -> Status:
    same = ("batches_expected", "samples_per_second", "resends_dropped", "max_worker_gap_seconds", "wall_seconds",
            "cpu_seconds")  # fmt: skip
    told: Status = {key: _figure(result.get(key)) for key in same}
    told["batches_done"] = _held(result)
    return told


def _closed(left: Left) -> int | None:
    """Batches that the last checkpoint holds."""
    if left.manifest is not None:
        return len(left.manifest.applied())
    return _held(left.result) if left.result is not None else None


def _held(result: Mapping[str, Any]) -> int | None:
    applied, skipped = _figure(result.get("batches_applied")), _figure(result.get("batches_skipped"))
    return None if applied is None else int(applied) + int(skipped or 0)


def _figure(value: object) -> int | float | None:
    """A number that a file holds; None for anything else: one damaged directory must not hide the other jobs."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _json(path: Path) -> dict[str, Any] | None:
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else None
    return None


def _written(job_dir: Path) -> float | None:
    """When the newest of the job's own words was written."""
    times = []
    for name in (RECORD, RESULT, STATE, ps_stats.FILE, SPEC):
        with suppress(OSError):
            times.append((job_dir / name).stat().st_mtime)
    return max(times, default=None)
