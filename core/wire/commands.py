"""What a person may ask of a job's controller, and what it answers: the words of the control plane's third call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

STATUS, STOP, CHECKPOINT = "status", "stop", "checkpoint"


@dataclass(frozen=True)
class JobCommand:
    """A person to the controller: tell how the job stands, and stop it or write a checkpoint now.

    Attributes:
        job_id: of the job that is meant; another one's controller refuses.
        command: what is wanted. now: a stop without a last checkpoint.
    """

    job_id: str
    command: Literal["status", "stop", "checkpoint"] = "status"
    now: bool = False


@dataclass(frozen=True)
class JobAnswer:
    """Controller's answer to a person, which may be asked for again until it shows what was wanted.

    Attributes:
        job_id: of the job. refused: why what was asked for can't be done, "" when it is.
        status: how the job stands, as `controller/status.py` says.
    """

    job_id: str
    refused: str = ""
    status: dict[str, Any] = field(default_factory=dict)
