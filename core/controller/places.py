"""Where a job's files lie.

    job directory   spec.json, state.json, events.jsonl, result.json, record.json, report.html, report.png, model.json,
                    metadata.json (the dataset's), scores.npz, logs/, pods/ (configurations), checkpoints/ (copies and
                    manifests); stays
    private         sockets and the job's secret; a short path (a socket's may have 107 bytes), readable by its owner
                    only, removed at the end

A job directory belongs to one job: claiming it fails when anything lies there, so no result is ever overwritten.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from trimtab.core.clock import Clock
from trimtab.core.domain.job import JobSpec
from trimtab.core.errors import BadInput

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
        os.close(handle)
    except FileExistsError:
        raise BadInput(field, str(path), "is already used or no directory; give a new or an empty one") from None
    except OSError as error:
        raise BadInput(field, str(path), f"cannot be written ({error.strerror}); give a writable directory") from None
    return JobDir(path, made)


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
            return Path(tempfile.mkdtemp(prefix="trimtab-", dir=base))
    remedy = f"give a writable directory with a path of less than {_LONGEST_PRIVATE - 20} bytes and none of % # ?"
    raise BadInput("TMPDIR", tempfile.gettempdir(), remedy)
