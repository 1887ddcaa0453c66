"""trimtab keeps parameter-server training of deep recommendation models right-sized.

This is the front door: the names a program needs, each loaded when it is first asked for, because `import trimtab`
runs in every Airflow process and before every `--help` and must cost nothing.

    import trimtab
    result = trimtab.train(trimtab.JobSpec(data="day_0.parquet", epochs=1))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trimtab.core.controller.detached import submit as submit
    from trimtab.core.controller.progress import Progress as Progress
    from trimtab.core.controller.result import JobResult as JobResult
    from trimtab.core.controller.resume import resume as resume
    from trimtab.core.controller.run import train as train
    from trimtab.core.domain.job import JobSpec as JobSpec
    from trimtab.core.domain.job import JobState as JobState
    from trimtab.core.domain.job import Mode as Mode
    from trimtab.core.domain.plan import Limits as Limits
    from trimtab.core.domain.plan import Plan as Plan
    from trimtab.core.domain.plan import Prices as Prices
    from trimtab.core.domain.plan import RolePlan as RolePlan
    from trimtab.core.errors import BadInput as BadInput
    from trimtab.core.errors import DataError as DataError
    from trimtab.core.errors import Interrupted as Interrupted
    from trimtab.core.errors import JobFailed as JobFailed
    from trimtab.core.errors import ModelError as ModelError
    from trimtab.core.errors import TrimtabError as TrimtabError

__version__ = "0.1.0"

_HOME_OF = {
    "train": "trimtab.core.controller.run",
    "resume": "trimtab.core.controller.resume",
    "submit": "trimtab.core.controller.detached",
    "JobResult": "trimtab.core.controller.result",
    "Progress": "trimtab.core.controller.progress",
    "JobSpec": "trimtab.core.domain.job",
    "JobState": "trimtab.core.domain.job",
    "Mode": "trimtab.core.domain.job",
    "Limits": "trimtab.core.domain.plan",
    "Plan": "trimtab.core.domain.plan",
    "Prices": "trimtab.core.domain.plan",
    "RolePlan": "trimtab.core.domain.plan",
    "BadInput": "trimtab.core.errors",
    "DataError": "trimtab.core.errors",
    "Interrupted": "trimtab.core.errors",
    "JobFailed": "trimtab.core.errors",
    "ModelError": "trimtab.core.errors",
    "TrimtabError": "trimtab.core.errors",
}

__all__ = [  # noqa: RUF022 (by meaning: what to call, what to hand in, what comes back, what goes wrong)
    "train", "submit", "resume",
    "JobSpec", "Limits", "Mode", "Prices",
    "JobResult", "JobState", "Plan", "Progress", "RolePlan",
    "BadInput", "DataError", "Interrupted", "JobFailed", "ModelError", "TrimtabError",
    "__version__",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Load `name` from the room that owns it, once."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'trimtab' has no attribute '{name}'")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted(__all__)
