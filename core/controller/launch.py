"""From a pod's name to the process that it is: command line, configuration file, addresses.

Processes start each other by command line and read one small JSON file; the secret is named there by its path and
never stands in arguments, environment or configuration.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path

from trimtab.core.cluster.base import PodSpec
from trimtab.core.controller.actions import PodName
from trimtab.core.controller.places import JobDir
from trimtab.core.domain.job import JobSpec
from trimtab.core.domain.plan import Plan, table_room
from trimtab.core.wire.encode import to_json
from trimtab.core.wire.messages import PsConfig, WorkerConfig


@dataclass(frozen=True)
class Launcher:
    """Makes pods of one job.

    Attributes:
        job_id, term, spec, plan (the first), batches: of the job.
        job_dir: where configurations and logs go. private: sockets and secret.
        dataset, validation_dataset: converted data; None: no other rows to evaluate on.
        zygotes: whether pods are forked from processes that have everything loaded.
    """

    job_id: str
    term: int
    spec: JobSpec
    plan: Plan
    batches: int
    job_dir: JobDir
    private: Path
    dataset: Path
    validation_dataset: Path | None
    zygotes: bool = True

    @property
    def secret_file(self) -> Path:
        """The job's secret."""
        return self.private / "secret"

    @property
    def controller_address(self) -> str:
        """Where the controller answers workers."""
        return str(self.private / "controller.sock")

    def control_address(self, pod: str) -> str:
        """Where a parameter server's control plane answers."""
        return str(self.private / f"{pod}.ctl")

    def pod_spec(self, pod: PodName) -> PodSpec:
        """Write the pod's configuration and say how to start it."""
        module = "trimtab.core.ps.main" if pod.role == "ps" else "trimtab.core.training.worker"
        config = self.job_dir.path / "pods" / f"{pod.name}.json"
        config.write_bytes(to_json(self._ps(pod) if pod.role == "ps" else self._worker(pod)))
        log = self._log(pod)
        argv = (sys.executable, "-m", module, str(config))
        zygote = "trimtab.core.ps.zygote" if pod.role == "ps" else "trimtab.core.training.zygote"
        parent = (sys.executable, "-m", zygote) if self.zygotes else ()
        return PodSpec(pod.name, pod.role, argv, log, pod.cpu, pod.memory_bytes, parent)

    def _log(self, pod: PodName) -> str:
        return str(self.job_dir.path / "logs" / f"{pod.name}.log")

    def _ps(self, pod: PodName) -> PsConfig:
        return PsConfig(
            job_id=self.job_id,
            pod=pod.name,
            term=self.term,
            secret_file=str(self.secret_file),
            control_address=self.control_address(pod.name),
            data_address=f"unix:{self.private / pod.name}.data",
            model=str(self.job_dir.path / "model.json"),
            seed=self.spec.seed,
            batches=self.batches,
            memory_bytes=table_room(pod.memory_bytes),
            orphan_grace_seconds=self.spec.orphan_grace_seconds,
            controller_address=self.controller_address,
            snapshots=str(self.job_dir.snapshots),
            log=self._log(pod),
        )

    def _worker(self, pod: PodName) -> WorkerConfig:
        return WorkerConfig(
            job_id=self.job_id,
            pod=pod.name,
            term=self.term,
            secret_file=str(self.secret_file),
            controller_address=self.controller_address,
            spec=str(self.job_dir.path / "spec.json"),
            model=str(self.job_dir.path / "model.json"),
            dataset=str(self.dataset),
            validation_dataset=str(self.validation_dataset) if self.validation_dataset is not None else "",
            threads=max(1, math.ceil(self.plan.worker.cpu - 1e-9)),
            orphan_grace_seconds=self.spec.orphan_grace_seconds,
            log=self._log(pod),
        )
