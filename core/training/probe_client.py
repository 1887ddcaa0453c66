"""Asking a probe process what a model is, without TensorFlow in the asking process.

The answer is the same typed error that the probe raised, or the `ModelSpec` of a model that has done one training
step. All that the user's code prints is kept in a log beside it. Whatever happens (deadline, Ctrl-C, an interpreter
that crashed), no process is left behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from trimtab.core.domain.job import JobSpec
from trimtab.core.domain.model_spec import ModelSpec
from trimtab.core.errors import BadInput, DataError, ModelError
from trimtab.core.wire.encode import read_json, to_json

REQUEST, ANSWER, LOG = "probe_request.json", "probe_answer.json", "probe.log"
MODEL, BLOCKS = "model.json", "initial_blocks.npz"
_ERRORS: dict[str, type[BadInput]] = {kind.__name__: kind for kind in (BadInput, DataError, ModelError)}


@dataclass(frozen=True)
class Request:
    """What the probe is asked: the job, its converted dataset, and how long the caller will wait."""

    spec: JobSpec
    dataset: str
    deadline_seconds: float


@dataclass(frozen=True)
class Answer:
    """Empty when the model is good; else the error's kind and parts."""

    error: str = ""
    field: str = ""
    value: str | int | float = ""
    remedy: str = ""


def probe(spec: JobSpec, dataset_path: Path, out_dir: Path, deadline_seconds: float = 120) -> ModelSpec:
    """What the parameter servers must know of the job's model.

    Args:
        spec: of the job. dataset_path: its converted rows.
        out_dir: gets `model.json`, `initial_blocks.npz` and `probe.log` (what the user's code printed).
        deadline_seconds: wall time after which the function counts as hanging.

    Raises:
        ModelError: the model cannot be trained; one line that says why, with the user's file and line where his code
            raised.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    request, answer, log = out_dir / REQUEST, out_dir / ANSWER, out_dir / LOG
    answer.unlink(missing_ok=True)
    request.write_bytes(to_json(Request(spec, str(dataset_path.resolve()), deadline_seconds)))
    try:
        code = _run(request.resolve(), log, deadline_seconds)
        if code is None:
            late = f"was not ready after {deadline_seconds:g} s{_said(log)}; see {log}"
            raise ModelError("--model", spec.model, late)
        if not answer.exists():
            _died(spec.model, code, log)
        found = read_json(Answer, answer)
    finally:
        request.unlink(missing_ok=True)
        answer.unlink(missing_ok=True)
    if found.error:
        raise _ERRORS.get(found.error, ModelError)(found.field, found.value, found.remedy)
    return read_json(ModelSpec, out_dir / MODEL)


def _run(request: Path, log: Path, deadline_seconds: float) -> int | None:
    """Exit code of the probe, or None if it was killed at the deadline. Never leaves it running."""
    # Bytecode caches make TensorFlow's import four times as fast; a variable that forbids them is meant for tools.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "trimtab.core.training.probe", str(request)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment,
            start_new_session=True,
        )  # fmt: skip
    try:
        return process.wait(deadline_seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills the probe and whatever the user's code started in it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # gone; macOS says the latter of zombies
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _died(name: str, code: int, log: Path) -> NoReturn:
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    raise ModelError("--model", name, f"the process that loads it ended {how}{_said(log)}; see {log}")


def _said(log: Path) -> str:
    """The log's last line, for the message: the log goes with a job directory that is given up."""
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return f" after saying: {lines[-1]}" if lines else ""
