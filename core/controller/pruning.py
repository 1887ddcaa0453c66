"""Old jobs' directories, and which of them may go.

A directory holds the only copy of a job's model and, until a store has it, of its record; so what is not certainly
over, delivered and needed by nobody stays, with its reason. Only what lies in the folder of jobs itself is ever looked
at: no link is followed out of it, and a job's checkpoints elsewhere are left where they are.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trimtab.core.cluster.leftovers import pods_in
from trimtab.core.controller.lost import controller_of, locked
from trimtab.core.controller.status import DIED, ENDED
from trimtab.core.controller.status_files import STATE, Left, controller_word, left_of, status_of_files
from trimtab.core.errors import BadInput, TrimtabError
from trimtab.core.history.outbox import FOLDER

PRUNED = ".pruned-"  # how the name of a directory begins that is being removed


@dataclass(frozen=True)
class Old:
    """One job's directory that is old enough.

    Attributes:
        run_id, path, state: of the job. ended_at: when it ended or was seen last, seconds since 1970.
        size: bytes in it. elsewhere: where its checkpoints lie that are not in it, "" for none.
        kept: why it stays, "" when it may go.
    """

    run_id: str
    path: Path
    state: str
    ended_at: float
    size: int
    elsewhere: str = ""
    kept: str = ""


def old_jobs(home: Path, seconds: float, wall: float) -> list[Old]:
    """Jobs that ended so long ago, the oldest first, with the reason of each that has to stay all the same.

    Args:
        home: TRIMTAB_HOME. seconds: how long ago. wall: seconds since 1970.

    Raises:
        BadInput: the folder of jobs cannot be read.
    """
    folders = [path for path in folders_of(home) if not path.is_symlink()]
    lefts, found = [left_of(path) for path in folders], []
    for left in lefts:
        with suppress(FileNotFoundError):  # somebody else has just removed it
            found.append(_old(left, lefts, home, wall))
    return sorted((one for one in found if wall - one.ended_at >= seconds), key=lambda one: one.ended_at)


def folders_of(home: Path) -> list[Path]:
    """What lies in the folder of jobs and is not being removed; [] while there is no such folder.

    Raises:
        BadInput: it cannot be read, which is not the same as that there is no job.
    """
    jobs = home / "jobs"
    try:
        return [path for path in jobs.iterdir() if path.is_dir() and not path.name.startswith(PRUNED)]
    except FileNotFoundError:
        return []
    except OSError as error:
        remedy = f"cannot be read ({error.strerror or error}); see to it, or name another place"
        raise BadInput("TRIMTAB_HOME", str(jobs), remedy) from error


def remove(old: Old) -> str:
    """Remove a job's directory; returns why it is (partly) still there, "" when it is gone.

    Nobody can go on with the job meanwhile, and whatever happens a half of it never looks like a job.
    """
    beside = old.path.with_name(f"{PRUNED}{old.path.name}")
    try:
        with locked(old.path) as alone:
            named = controller_of(old.path)
            if not alone or (named is not None and (named.alive or not named.here)):
                return "somebody has just begun to go on with it"
            old.path.rename(beside)
        shutil.rmtree(beside)
    except OSError as error:
        return f"{error.filename or beside}: {error.strerror or error}"
    return ""


def remove_halves(home: Path) -> None:
    """Finish what an earlier call was ended in the middle of."""
    for path in (home / "jobs").glob(f"{PRUNED}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


def _old(left: Left, lefts: Sequence[Left], home: Path, wall: float) -> Old:
    told = status_of_files(left, wall)
    path = Path(left.job_dir)
    ended = told["ended_at"] if told["ended_at"] is not None else told["as_of"]
    ended = path.stat().st_mtime if ended is None else ended
    found = Old(left.run_id, path, told["state"], ended, _size(path), _elsewhere(left))
    return replace(found, kept=_why_kept(left, lefts, home, told))


def _why_kept(left: Left, lefts: Sequence[Left], home: Path, told: Mapping[str, Any]) -> str:
    if controller_word(left) not in (ENDED, DIED):
        return "it runs" if told["controller"] == "silent" else "it may run on another machine"
    if left.document is None and left.spec is None and left.record is None and left.result is None:
        return "nothing in it says that it is a job's directory"
    if left.document is None and (Path(left.job_dir) / STATE).exists():
        return f"its {STATE} cannot be read; a newer trimtab may have written it"
    if pods_in(Path(left.job_dir)):
        return "some of its processes still run"
    if (home / FOLDER / f"{left.run_id}.json").exists():
        return "its record waits for the store (`trimtab history` delivers it)"
    for other in lefts:
        if other is not left and _needs(other, left):
            return f"job {other.run_id} needs its checkpoint"
    return ""


def _needs(other: Left, left: Left) -> bool:
    """Whether another job reads from this one's directory, or is about to."""
    if other.document is not None:
        return _inside(other.document.manifest.path, left.job_dir)
    source = other.spec.init_from if other.spec is not None else None
    if not source or controller_word(other) in (ENDED, DIED):
        return False
    return left.run_id.startswith(source) or _inside(source, left.job_dir)


def _inside(path: str, directory: str) -> bool:
    """Whether a path or URL leads into a directory."""
    if "://" in path:
        return path.startswith((f"file://{directory}", f"local://{directory}"))
    with suppress(OSError, TrimtabError, ValueError):
        return Path(path).absolute().resolve().is_relative_to(Path(directory).resolve())
    return False


def _elsewhere(left: Left) -> str:
    document = left.document
    if document is None or document.spec.checkpoint_dir is None or _inside(document.manifest.path, left.job_dir):
        return ""
    return document.manifest.path.rpartition("/")[0]


def _size(path: Path) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                total += (Path(folder) / name).lstat().st_size
    return total
