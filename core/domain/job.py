"""What a caller asks for, and in which state a job is.

`JobSpec` is the one object behind `trimtab train`, `trimtab.train(...)`, the KFP component and the Airflow operator.
It validates what can be known without touching data, model or machine, before anything is started.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field, replace
from enum import StrEnum

from trimtab.core.domain.plan import Limits, Plan, Prices
from trimtab.core.errors import BadInput

BUILT_IN_MODELS = ("dlrm", "wide_deep", "deepfm", "xdeepfm", "dcn")
_LARGEST = 2**63 - 1  # the widest whole number that every format and array can hold
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,48}[a-z0-9])?")
# fsspec and its chains ("simplecache::ftp://...") take a user and a password before the host.
_PASSWORD = re.compile(r"(://[^/?#@:]*):[^/?#]+@")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class Mode(StrEnum):
    """What trimtab may do to a running job's plan."""

    AUTO = "auto"
    ADVISE = "advise"
    FIXED = "fixed"


class Objective(StrEnum):
    """What a better plan is."""

    BALANCED = "balanced"
    FASTEST = "fastest"
    CHEAPEST = "cheapest"


class JobState(StrEnum):
    """Where a job is in its life."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class JobSpec:
    """One training job, as asked for.

    Attributes:
        Paths may be given as os.PathLike and are kept as strings. A URL may not hold a password: they are written down.
        data: path, glob, directory or URL (anything fsspec opens) of the rows.
        columns: path of a YAML or JSON file that names the columns' roles; None: detected and shown.
        model: a built-in's name, or MODULE:FUNCTION returning a compiled functional Keras model.
        epochs: passes over the training rows.
        batch_size: rows per batch, the same for every worker and for the job's whole life.
        workers, ps: replicas to start with (mode auto) or to keep (fixed); None: trimtab chooses.
        limits: caps that hold at every instant.
        mode: auto | advise | fixed.
        objective: balanced (as fast as pays: the knee of throughput over cost) | fastest | cheapest.
        budget: most money (of `prices`) that the whole job may cost; plans that would cost more are not chosen.
        deadline_seconds: the whole job should end so long after its start; slower plans are not chosen.
        learning_rate: overrides the compiled optimizer's; None keeps it.
        job_name: family of runs that warm start looks at; a used name is a new run of it.
        job_dir: where spec, state, events, logs and checkpoints go; must be new or empty. None: under TRIMTAB_HOME.
        validation: share of rows held out (0 to below 1), or the path of other rows to evaluate on.
        seed: decides shuffle, split, initial values and every random draw.
        embedding_dim: width of the built-in models' embeddings.
        prices: what cores and memory cost: for plans, budget and reports.
        checkpoint_dir: path or URL (anything fsspec writes) for copies and manifests; each run gets a folder of its own
            in it. None: in the job's directory.
        init_from: a run (id or directory) or a checkpoint (manifest, or a directory of them) whose rows this job starts
            with, as a new job: nothing counts as applied.
        orphan_grace_seconds: how long a pod lives without its controller.
    """

    data: str
    columns: str | None = None
    model: str = "dlrm"
    epochs: int = 1
    batch_size: int = 1024
    workers: int | None = None
    ps: int | None = None
    limits: Limits = field(default_factory=Limits)
    mode: Mode = Mode.AUTO
    objective: Objective = Objective.BALANCED
    learning_rate: float | None = None
    job_name: str = "train"
    job_dir: str | None = None
    validation: float | str = 0.1
    seed: int = 0
    embedding_dim: int = 16
    prices: Prices = field(default_factory=Prices)
    orphan_grace_seconds: float = 30.0
    checkpoint_dir: str | None = None
    init_from: str | None = None
    budget: float | None = None
    deadline_seconds: float | None = None

    def __post_init__(self) -> None:
        """Checks every field that needs neither data, model nor machine.

        Raises:
            BadInput: with the command line's name of the field.
        """
        self._set("data", _path("--data", self.data, "give a path, glob, directory or URL of rows"))
        if self.columns is not None:
            self._set("columns", _path("--columns", self.columns, "give the path of a YAML or JSON file"))
        if self.job_dir is not None:
            self._set("job_dir", _path("--job-dir", self.job_dir, "give the path of a new or an empty directory"))
        if self.checkpoint_dir is not None:
            remedy = "give a directory or a URL that can be written"
            self._set("checkpoint_dir", _path("--checkpoint-dir", self.checkpoint_dir, remedy))
        if self.init_from is not None:
            remedy = "give a run's id or directory, or a checkpoint's path or URL"
            self._set("init_from", _path("--init-from", self.init_from, remedy))
        if not isinstance(self.limits, Limits):
            raise BadInput("limits", self.limits, "give Limits(...); None in its fields lets the machine decide")
        for name, value in (("--epochs", self.epochs), ("--batch-size", self.batch_size)):
            _whole(name, value, 1)
        for name, count in (
            ("--workers", self.workers), ("--ps", self.ps),
            ("--max-workers", self.limits.workers), ("--max-ps", self.limits.ps),
        ):  # fmt: skip
            if count is not None:
                _whole(name, count, 1)
        _whole("--embedding-dim", self.embedding_dim, 1)
        _whole("--seed", self.seed, 0)
        try:
            self._set("mode", Mode(self.mode))
        except (ValueError, TypeError):
            raise BadInput("--mode", self.mode, "choose auto, advise or fixed") from None
        try:
            self._set("objective", Objective(self.objective))
        except (ValueError, TypeError):
            raise BadInput("--objective", self.objective, "choose balanced, fastest or cheapest") from None
        named = isinstance(self.model, str) and (self.model in BUILT_IN_MODELS or _FUNCTION.fullmatch(self.model))
        if not named:
            known = ", ".join(BUILT_IN_MODELS)
            raise BadInput("--model", self.model, f"choose {known}, or MODULE:FUNCTION of your own")
        if self.learning_rate is not None and not _number(self.learning_rate, above=0):
            raise BadInput("--learning-rate", self.learning_rate, "give a finite number above 0")
        if not isinstance(self.job_name, str) or not _NAME.fullmatch(self.job_name):
            remedy = "use 1 to 50 of a-z, 0-9 and '-', starting and ending with a letter or digit"
            raise BadInput("--job-name", self.job_name, remedy)
        if not (_number(self.validation) and 0 <= float(self.validation) < 1):
            remedy = "give a share of at least 0 and below 1, or a path of rows"
            share = isinstance(self.validation, int | float)
            self._set("validation", _path("--validation", None if share else self.validation, remedy, self.validation))
        self._check_caps()
        if not _number(self.orphan_grace_seconds, above=0):
            raise BadInput("orphan_grace_seconds", self.orphan_grace_seconds, "give seconds above 0")
        self._check_money()

    def _check_money(self) -> None:
        prices = self.prices
        if not isinstance(prices, Prices):
            raise BadInput("prices", prices, "give Prices(core_hour, gib_hour, currency)")
        for name, price in (("--core-hour-price", prices.core_hour), ("--gib-hour-price", prices.gib_hour)):
            if not _number(price, above=0):
                raise BadInput(name, price, "give a finite price above 0")
        word = prices.currency
        if not isinstance(word, str) or not 0 < len(word) <= 8 or not word.isprintable() or word != word.strip():
            raise BadInput("--currency", word, "give a sign or a short name, such as $ or EUR")
        if self.budget is not None and not _number(self.budget, above=0):
            raise BadInput("--budget", self.budget, "give the most that the job may cost, as a number above 0")
        if self.deadline_seconds is not None and not _number(self.deadline_seconds, above=0):
            raise BadInput("--deadline", self.deadline_seconds, "give a time above 0, such as 90s, 45m or 2h")

    def _check_caps(self) -> None:
        limits = self.limits
        if limits.cpu is not None and not _number(limits.cpu, above=0):
            raise BadInput("--max-cpu", limits.cpu, "give cores as a number above 0")
        memory = limits.memory_bytes
        if memory is None:
            return
        if not _number(memory, above=0) or memory != int(memory):
            raise BadInput("--max-memory", memory, "give bytes as a whole number above 0")
        self._set("limits", replace(limits, memory_bytes=int(memory)))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the way for a frozen dataclass to put its own fields in order

    def with_job_dir(self, job_dir: str) -> JobSpec:
        """This job with its directory decided."""
        return replace(self, job_dir=job_dir)


@dataclass(frozen=True)
class PlanChange:
    """A plan that came into force, when (seconds since the job's start) and why."""

    time_seconds: float
    plan: Plan
    reason: str

    def as_dict(self) -> dict[str, object]:
        """The form of `plans` in JSON outputs."""
        return {"time": round(self.time_seconds, 3), "plan": self.plan.as_dict(), "reason": self.reason}


def _whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadInput(name, value, f"give a whole number of at least {least}")
    if value > _LARGEST:
        raise BadInput(name, value, f"give a whole number of at most {_LARGEST}")


def _number(value: object, above: float = -math.inf) -> bool:
    """Whether `value` is a number that a float can hold and nothing else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value) and value > above
    except OverflowError:
        return False


def _path(name: str, value: object, remedy: str, shown: object = None) -> str:
    """`value` as a string that the system can take for a path; `shown` instead of it in the message."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise BadInput(name, value if shown is None else shown, remedy)
    if _PASSWORD.search(text):  # it would stand in files, events and the history, and so would this message
        remedy = "a URL with a password would be written down in many places; give credentials by the library's own "
        raise BadInput(name, _PASSWORD.sub(r"\1:***@", text), remedy + "configuration")
    return text
