"""Asking a probe process what a model is, without TensorFlow in the asking process.

The answer is the same typed error that the probe raised, or the `ModelSpec` of a model that has done one training
step. All that the user's code prints is kept in a log beside it. Whatever happens (deadline, Ctrl-C, an interpreter
that crashed), no process is left behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from trimtab.core.domain.job import JobSpec
from trimtab.core.domain.model_spec import ModelSpec
from trimtab.core.errors import BadInput, DataError, ModelError
from trimtab.core.training.apart import ending, last_words, run_apart
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
            late = f"was not ready after {deadline_seconds:g} s{last_words(log)}; see {log}"
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
    return run_apart("trimtab.core.training.probe", request, log, deadline_seconds)


def _died(name: str, code: int, log: Path) -> NoReturn:
    raise ModelError("--model", name, f"the process that loads it ended {ending(code)}{last_words(log)}; see {log}")
