"""Where a job's files lie.

    job directory   spec.json, state.json, events.jsonl, result.json, record.json, report.html, report.png, ps.json
                    (what parameter servers hold), model.json, metadata.json (the dataset's), rows.json (where they came
                    from), scores.npz, controller.json and controller.lock (who acts), control.sock (a link to where it
                    answers), logs/ (of pods, and of a controller without a terminal), pods/ (configurations),
                    checkpoints/ (copies and manifests, unless --checkpoint-dir says where), snapshots/; stays
    private         sockets and the job's secret; a short path (a socket's may have 107 bytes), readable by its owner
                    only, removed at the end

A job directory belongs to one job: claiming it fails when anything lies there, so no result is ever overwritten.
"""

from __future__ import annotations

import difflib
import os
import secrets
import shlex
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from trimtab.core.clock import Clock
from trimtab.core.domain.job import JobSpec
from trimtab.core.errors import BadInput
from trimtab.core.wire.encode import to_json

PRIVATE_MARK = "trimtab-"  # how a private directory's name begins
_LONGEST_PRIVATE = 70  # bytes of the private directory's path, so that a socket's name still fits
_ADDRESS_MARKS = frozenset("%#?")  # have a meaning in the address of a socket


def home() -> Path:
    """TRIMTAB_HOME, by default ~/.trimtab; absolute, because pods are told of paths in it."""
    return Path(os.environ.get("TRIMTAB_HOME") or Path.home() / ".trimtab").absolute()


def new_run_id(clock: Clock) -> str:
    """Sorts by time of birth, and is unique: 20261130-201758-a1b2c3."""
    return datetime.fromtimestamp(clock.wall(), UTC).strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)


@dataclass(frozen=True)
class JobDir:
    """A claimed job directory; `made`: it did not exist before."""

    path: Path
    made: bool

    @property
    def copies(self) -> Path:
        """Copies and manifests."""
        return self.path / "checkpoints"

    @property
    def snapshots(self) -> Path:
        """Copies that parameter servers write on their own node; gone when the job has ended well."""
        return self.path / "snapshots"

    def make_folders(self) -> None:
        """The folders inside."""
        for name in ("logs", "pods", "checkpoints"):
            (self.path / name).mkdir(exist_ok=True)

    def abandon(self) -> None:
        """Undo the claim: nothing was started, so nothing should stay."""
        if self.made:
            shutil.rmtree(self.path, ignore_errors=True)
            return
        for entry in self.path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)


def claim_job_dir(spec: JobSpec, run_id: str) -> JobDir:
    """Make the job's directory and claim it.

    Raises:
        BadInput: it is used, is no directory, or can't be written.
    """
    chosen = spec.job_dir is not None
    field = "--job-dir" if chosen else "TRIMTAB_HOME"
    path = (Path(spec.job_dir) if spec.job_dir is not None else home() / "jobs" / run_id).absolute()
    try:
        made = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise BadInput(field, str(path), "is already used; give a new or an empty directory")
        handle = os.open(path / "spec.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(handle, to_json(spec))  # so that others see what is being prepared here
        finally:
            os.close(handle)
    except FileExistsError:
        raise BadInput(field, str(path), "is already used or no directory; give a new or an empty one") from None
    except OSError as error:
        raise BadInput(field, str(path), f"cannot be written ({error.strerror}); give a writable directory") from None
    return JobDir(path, made)


def look_at_job_dir(spec: JobSpec) -> None:
    """See that the job's directory, where one is asked for, could be claimed; nothing is made.

    Raises:
        BadInput: it is used, or is no directory.
    """
    if spec.job_dir is None:
        return
    path = Path(spec.job_dir).absolute()
    try:
        free = not path.exists() or not any(path.iterdir())
    except OSError as error:
        remedy = f"cannot be used ({error.strerror}); give a writable directory"
        raise BadInput("--job-dir", str(path), remedy) from error
    if not free:
        raise BadInput("--job-dir", str(path), "is already used; give a new or an empty directory")


def find_job(name: str) -> JobDir:
    """The directory of a job that was begun, by its run id, the beginning of only one, or its path.

    Raises:
        BadInput: there is none; names the nearest run ids.
    """
    jobs = home() / "jobs"
    if "\0" not in name and name:
        places = [jobs / name] if os.sep not in name and name not in (".", "..") else []
        for place in (*places, Path(name)):
            if _is_folder(place):
                return JobDir(place.absolute(), made=False)
    known: list[str] = []
    with suppress(OSError):
        known = sorted((path.name for path in jobs.iterdir() if _is_folder(path)), reverse=True)
    begun = [one for one in known if name and one.startswith(name)]
    if len(begun) == 1:
        return JobDir(jobs / begun[0], made=False)
    near = begun[:3] or difflib.get_close_matches(name, known, n=3, cutoff=0.5) or known[:3]
    hint = f"choose among {', '.join(near)}" if near else "there is none yet"
    raise BadInput("JOB", name, f"no such run or job directory; {hint}")


def _is_folder(path: Path) -> bool:
    """Whether a directory lies there; a name that is too long, or a place that may not be looked at, is none."""
    with suppress(OSError):
        return path.is_dir()
    return False


def private_dir() -> Path:
    """A new directory for sockets and the secret: mode 0700, with a short path.

    Raises:
        BadInput: no place has a short enough path.
    """
    # XDG_RUNTIME_DIR comes last: it is emptied when its user logs out, which a job may outlive.
    for place in (tempfile.gettempdir(), "/tmp", os.environ.get("XDG_RUNTIME_DIR")):
        base = str(Path(place).absolute()) if place else ""
        fits = base and len(os.fsencode(base)) + 20 <= _LONGEST_PRIVATE and not _ADDRESS_MARKS & set(base)
        if fits and os.access(base, os.W_OK | os.X_OK):
            return Path(tempfile.mkdtemp(prefix=PRIVATE_MARK, dir=base))
    remedy = f"give a writable directory with a path of less than {_LONGEST_PRIVATE - 20} bytes and none of % # ?"
    raise BadInput("TMPDIR", tempfile.gettempdir(), remedy)


def called(job_dir: Path) -> str:
    """What to type in a shell for the job that lies there: its directory's name where that is enough, else the path."""
    return shlex.quote(job_dir.name if job_dir.absolute().parent == home() / "jobs" else str(job_dir))
