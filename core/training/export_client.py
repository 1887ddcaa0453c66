"""A finished job's model as a plain Keras model, without TensorFlow in the asking process.

What can be wrong with the job or the place is said here, cheapest first; then a short-lived process rebuilds the user's
model, writes it, reads it back and compares. The directory gets all files at once at the end or none, so that nobody
takes half a model for a whole one.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimtab.core.data.prepare import prepare
from trimtab.core.data.store import METADATA_FILE
from trimtab.core.domain.job import JobSpec, JobState
from trimtab.core.errors import BadInput, CorruptCopy, DataError, JobFailed, ModelError, TrimtabError, WireError
from trimtab.core.ps import storage
from trimtab.core.training.apart import ending, last_words, run_apart
from trimtab.core.wire.encode import from_json, read_json, to_json

MODEL, SIGNATURE, EXAMPLE = "model.keras", "signature.json", "predict.py"
FORMAT = 1  # of signature.json
DEADLINE_SECONDS = 900.0
_REQUEST, _ANSWER, _LOG = "request.json", "answer.json", "export.log"
_ERRORS: dict[str, type[BadInput]] = {kind.__name__: kind for kind in (BadInput, DataError, ModelError)}
_FIELD = "RUN"


@dataclass(frozen=True)
class Data:
    """How the job's data was read: what its cached dataset's page says of it.

    Attributes:
        columns: roles, as `Columns.as_dict` gives them.
        standard: for each standard column shift, mean and deviation.
    """

    columns: dict[str, Any]
    standard: dict[str, tuple[float, float, float]]


@dataclass(frozen=True)
class _Config:
    """Of a worker's configuration only where its rows lie: the rest may have changed since the job ran."""

    dataset: str


@dataclass(frozen=True)
class FinishedJob:
    """What export needs to know of a job, read from its directory.

    Attributes:
        run_id, spec: of the job.
        manifest: path or URL of its final manifest.
        model: path of the description of its tables.
    """

    run_id: str
    path: Path
    spec: JobSpec
    manifest: str
    model: Path


@dataclass(frozen=True)
class Request:
    """What the export process is asked: the trained tables, how the data was read, and where the files go."""

    run_id: str
    spec: JobSpec
    model: str
    manifest: str
    data: Data
    out: str
    deadline_seconds: float


@dataclass(frozen=True)
class Answer:
    """Rows written by table; or the error's kind and parts (an error that is no `BadInput` has its text as remedy)."""

    rows: dict[str, int] = field(default_factory=dict)
    error: str = ""
    field: str = ""
    value: str | int | float = ""
    remedy: str = ""


@dataclass(frozen=True)
class Exported:
    """A model on disk.

    Attributes:
        run_id: of the job that trained it.
        directory: holds `model.keras`, `signature.json` and `predict.py`.
        signature: inputs and outputs, as in `signature.json`.
        rows: trained rows by embedding table.
    """

    run_id: str
    directory: Path
    signature: Mapping[str, Any]
    rows: Mapping[str, int]

    def as_dict(self) -> dict[str, object]:
        """The form of `trimtab export --json`."""
        return {
            "run_id": self.run_id,
            "directory": str(self.directory),
            "model": str(self.directory / MODEL),
            "inputs": self.signature["inputs"],
            "outputs": self.signature["outputs"],
            "rows": dict(self.rows),
        }


def export_job(
    job_dir: Path, out: Path, cache: Path, tell: Callable[[str], None] | None = None,
    deadline_seconds: float = DEADLINE_SECONDS,
) -> Exported:  # fmt: skip
    """Write the model of the finished job in `job_dir` to `out`.

    Args:
        job_dir: of the job. out: a new or an empty directory; made.
        cache: of converted data; looked at again only when the job's own entry is gone.
        tell: called with what is being done.
        deadline_seconds: wall time for the process that rebuilds the model.

    Raises:
        BadInput: the job has no final model, `out` is used, or the model cannot be exported (ModelError).
        CorruptCopy: a copy of the model is damaged. JobFailed: the process died or was not ready in time.
    """
    say = tell if tell is not None else lambda message: None
    out = Path(out).absolute()
    job = read_job(Path(job_dir).absolute())
    made = _claim(out)
    work = Path(tempfile.mkdtemp(prefix=".export-", dir=out))
    try:
        request = Request(
            job.run_id, job.spec, str(job.model), job.manifest, _data_of(job, cache, say), str(work),
            deadline_seconds,
        )  # fmt: skip
        say("building the model")
        rows = _ask(request, work)
        for name in (MODEL, EXAMPLE, SIGNATURE):
            (work / name).replace(out / name)
        made = False  # from now on it is a model
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if made:
            with suppress(OSError):
                out.rmdir()
    signature = json.loads((out / SIGNATURE).read_text(encoding="utf-8"))
    return Exported(job.run_id, out, signature, rows)


def read_job(job_dir: Path) -> FinishedJob:
    """The job in a directory.

    Raises:
        BadInput: it is no job's directory, or the job has not finished.
    """
    try:
        result = json.loads((job_dir / "result.json").read_text(encoding="utf-8"))
        state, run_id, manifest = str(result["state"]), str(result["run_id"]), str(result["model"])
        spec = read_json(JobSpec, job_dir / "spec.json")
    except FileNotFoundError:
        remedy = "it holds no finished job; name a run that has ended, or its directory"
        raise BadInput(_FIELD, str(job_dir), remedy) from None
    except (OSError, ValueError, KeyError, TypeError, WireError) as error:
        raise BadInput(_FIELD, str(job_dir), f"its files cannot be read ({_one_line(error)})") from None
    if state != JobState.FINISHED:
        raise BadInput(_FIELD, str(job_dir), f"the job is {state}; only a finished job has a final model")
    if storage.is_local(manifest) and not storage.exists(manifest):  # the directory may have been moved since
        manifest = str(job_dir / "checkpoints" / storage.name_of(manifest))
    return FinishedJob(run_id, job_dir, spec, manifest, job_dir / "model.json")


def _claim(out: Path) -> bool:
    """Make the directory; returns whether it was not there before."""
    try:
        made = not out.exists()
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise BadInput("--out", str(out), "is already used; give a new or an empty directory")
    except FileExistsError:
        raise BadInput("--out", str(out), "is no directory; give a new or an empty one") from None
    except OSError as error:
        remedy = f"cannot be written ({error.strerror}); give a writable directory"
        raise BadInput("--out", str(out), remedy) from None
    return made


def _data_of(job: FinishedJob, cache: Path, say: Callable[[str], None]) -> Data:
    """The page of the job's converted data; converted again where the cache was emptied meanwhile."""
    configs = sorted((job.path / "pods").glob("worker*.json"))
    places = [job.path]
    with suppress(OSError, WireError, IndexError):
        places.append(Path(read_json(_Config, configs[0]).dataset))
    for place in places:
        with suppress(OSError, WireError):
            return from_json(Data, (place / METADATA_FILE).read_bytes())
    again = prepare(job.spec.data, job.spec.columns, cache, lambda message, share: say(message))
    return read_json(Data, again / METADATA_FILE)


def _ask(request: Request, work: Path) -> dict[str, int]:
    path, answer, log = work / _REQUEST, work / _ANSWER, work / _LOG
    path.write_bytes(to_json(request))
    code = _run(path, log, request.deadline_seconds)
    if code is None:
        raise JobFailed(f"the export was not ready after {request.deadline_seconds:g} s{last_words(log)}")
    if not answer.exists():
        raise JobFailed(f"the process that writes the model ended {ending(code)}{last_words(log)}")
    found = read_json(Answer, answer)
    if found.error in _ERRORS:
        raise _ERRORS[found.error](found.field, found.value, found.remedy)
    if found.error:
        kind: type[TrimtabError] = CorruptCopy if found.error == CorruptCopy.__name__ else JobFailed
        raise kind(found.remedy)
    return found.rows


def _run(request: Path, log: Path, deadline_seconds: float) -> int | None:
    return run_apart("trimtab.core.training.export", request, log, deadline_seconds)


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
