"""In the place of a detached controller: its job stands in line until a file called `go` or `refuse` lies there."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trimtab.core.controller import detached_main, run
from trimtab.core.controller.progress import Milestones, Progress
from trimtab.core.domain.job import JobSpec
from trimtab.core.errors import BadInput


def train(spec: JobSpec, progress: Any, milestones: Milestones, **options: object) -> SimpleNamespace:
    """As the real one, as far as its caller can see."""
    job = Path(spec.job_dir or "job").absolute()
    job.mkdir()
    milestones.claimed("run-1", job)
    progress(Progress(0, 0, 0.0, None, None, "waiting", "another job holds 2 cores"))
    while not Path("go").exists():
        time.sleep(0.01)
        if Path("refuse").exists():
            (job / "logs" / "controller.log").unlink()
            (job / "logs").rmdir()
            job.rmdir()
            raise BadInput("--budget", 1, "past runs make it impossible")
    milestones.begun()
    progress(Progress(5, 10, 0.0, None, None, "training", ""))
    return SimpleNamespace(state="finished", error=None)


if __name__ == "__main__":
    run.train = train  # type: ignore[assignment]
    sys.exit(detached_main.main(sys.argv[1:]))
