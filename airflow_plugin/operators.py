"""`TrimtabTrainOperator`: one training job as an Airflow task.

The job is the command line in a process of its own, under a keeper. In Airflow's process it would die of the SIGKILL
that follows a task's SIGTERM after five seconds, before its own processes have ended in order; it would share that
process' memory and signal handlers; and a task that crashes would take it along without a word. This way Airflow's
process holds a pipe and reads lines, and whatever happens to it, the job ends in order (see `keeper`).
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from airflow.sdk import BaseOperator

from trimtab.airflow_plugin.command import OPTIONS, fault_of, keeper_command, result_of
from trimtab.airflow_plugin.naming import family_of

_LAST_SECONDS = 5.0  # after the grace, for the keeper to end


class TrimtabTrainOperator(BaseOperator):
    """Train a recommendation model with parameter servers, every batch exactly once.

    The task's XCom result is the job's result, as `trimtab train --json` prints it. Its log has the job's progress.
    All options are templates, and text is as good as a number.

    Args:
        data: path, glob, directory or URL of rows, or another task's output that is one.
        job_name: the family of runs that warm start looks at; by default one per DAG and task.
        environment: variables for the job beside Airflow's own, such as TRIMTAB_HOME and MLFLOW_TRACKING_URI.
        grace_seconds: how long a job that is stopped may take to end in order.
        options: every other one is the option of `trimtab train` that is called like it; None is its default.
    """

    template_fields: Sequence[str] = (*OPTIONS, "environment")
    template_fields_renderers: ClassVar[dict[str, str]] = {"environment": "json"}
    ui_color = "#d7f0e5"

    def __init__(
        self,
        *,
        data: str | Any,
        columns: str | None = None,
        model: str | None = None,
        epochs: int | str | None = None,
        batch_size: int | str | None = None,
        workers: int | str | None = None,
        ps: int | str | None = None,
        max_cpu: float | str | None = None,
        max_memory: int | str | None = None,
        max_workers: int | str | None = None,
        max_ps: int | str | None = None,
        mode: str | None = None,
        objective: str | None = None,
        budget: float | str | None = None,
        deadline: float | str | None = None,
        core_hour_price: float | str | None = None,
        gib_hour_price: float | str | None = None,
        currency: str | None = None,
        learning_rate: float | str | None = None,
        job_name: str | None = None,
        job_dir: str | None = None,
        validation: float | str | None = None,
        seed: int | str | None = None,
        embedding_dim: int | str | None = None,
        checkpoint_dir: str | None = None,
        init_from: str | None = None,
        metrics_port: int | str | None = None,
        environment: Mapping[str, str] | None = None,
        grace_seconds: float = 30.0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.data, self.columns, self.model = data, columns, model
        self.epochs, self.batch_size, self.workers, self.ps = epochs, batch_size, workers, ps
        self.max_cpu, self.max_memory, self.max_workers, self.max_ps = max_cpu, max_memory, max_workers, max_ps
        self.mode, self.objective, self.learning_rate = mode, objective, learning_rate
        self.budget, self.deadline, self.currency = budget, deadline, currency
        self.core_hour_price, self.gib_hour_price = core_hour_price, gib_hour_price
        self.job_name, self.job_dir, self.validation = job_name, job_dir, validation
        self.seed, self.embedding_dim = seed, embedding_dim
        self.checkpoint_dir, self.init_from, self.metrics_port = checkpoint_dir, init_from, metrics_port
        self.environment = dict(environment or {})
        self.grace_seconds = grace_seconds
        self._process: subprocess.Popen[str] | None = None
        self._killed = False

    def execute(self, context: Any) -> dict[str, Any]:
        """Run the job to its end; its result goes to XCom.

        Raises:
            AirflowFailException: a field cannot be used; another try would end the same.
            AirflowException: the job failed or was stopped.
        """
        from airflow.sdk.exceptions import AirflowException, AirflowFailException

        options = {name: getattr(self, name) for name in OPTIONS}
        options["job_name"] = options["job_name"] or family_of(self.dag_id, self.task_id)
        code, output = self._run(keeper_command(options, self.grace_seconds))
        result = result_of(output)
        fault, useless = fault_of(code, result)
        if fault:
            raise (AirflowFailException if useless else AirflowException)(fault)
        assert result is not None
        self.log.info("run %s: auc %s, warm start %s", result["run_id"], result["auc"], result["warm_start"])
        return result

    def on_kill(self) -> None:
        """Ask the job to stop in order; Airflow may call this in a signal handler, so it waits for nothing."""
        self._killed = True
        if self._process is not None:
            self.log.info("stopping the job in order")
            _let_go(self._process)

    def _run(self, command: list[str]) -> tuple[int, str]:
        """Exit code and standard output of the keeper; what the job says on its way goes to the task's log."""
        with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.PIPE, text=True, bufsize=1,
                errors="replace", env={**os.environ, **self.environment}, start_new_session=True,
            )  # fmt: skip
            self._process = process
            if self._killed:  # between the task's start and here
                self.on_kill()
            reader = threading.Thread(target=self._log_lines, args=(process,), daemon=True)
            reader.start()
            try:
                code = process.wait()
            finally:
                _let_go(process)  # also when an exception (a timeout) ended the wait: then the job is still there
                with suppress(subprocess.TimeoutExpired):
                    process.wait(self.grace_seconds + _LAST_SECONDS)
                reader.join(_LAST_SECONDS)
            output.seek(0)
            return code, output.read()

    def _log_lines(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            if line.strip():
                self.log.info("%s", line.rstrip())


def _let_go(process: subprocess.Popen[str]) -> None:
    """Close the line that keeps the job running."""
    if process.stdin is not None and not process.stdin.closed:
        process.stdin.close()
