"""`trimtab train`: from options to a `JobSpec`, from a `JobResult` to a table or JSON, and an orderly end on Ctrl-C.

While the job trains, a signal sets the stop event: the controller writes a last checkpoint and winds down its
processes. Before that it interrupts at once, because nothing runs yet that would have to be ended in order.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trimtab.core.cli_display import TrainDisplay, closing_table, say
from trimtab.core.controller.signals import stops_in_order
from trimtab.core.domain.job import JobSpec, JobState
from trimtab.core.domain.plan import Limits, Prices
from trimtab.core.domain.quantities import parse_cpu, parse_duration, parse_memory
from trimtab.core.errors import BadInput

if TYPE_CHECKING:
    from trimtab.core.controller.progress import Progress
    from trimtab.core.controller.result import JobResult

EXIT_CODES = {JobState.FINISHED: 0, JobState.FAILED: 1, JobState.STOPPED: 130, JobState.RUNNING: 1}


def spec_from_options(options: Mapping[str, Any]) -> JobSpec:
    """The job that the options of `trimtab train` describe.

    Args:
        options: click's parameter names and values.

    Raises:
        BadInput: an option cannot be used; names it as typed.
    """
    cpu, memory = options["max_cpu"], options["max_memory"]
    limits = Limits(
        cpu=None if cpu is None else parse_cpu(cpu, "--max-cpu"),
        memory_bytes=None if memory is None else parse_memory(memory, "--max-memory"),
        workers=options["max_workers"],
        ps=options["max_ps"],
    )
    return JobSpec(
        data=options["data"],
        columns=options["columns"],
        model=options["model"],
        epochs=options["epochs"],
        batch_size=options["batch_size"],
        workers=options["workers"],
        ps=options["ps"],
        limits=limits,
        mode=options["mode"],
        objective=options["objective"],
        budget=_number("--budget", options["budget"], "give the most that the job may cost, as a number above 0"),
        deadline_seconds=None if options["deadline"] is None else parse_duration(options["deadline"], "--deadline"),
        prices=_prices(options),
        learning_rate=_number("--learning-rate", options["learning_rate"], "give a finite number above 0"),
        job_name=options["job_name"],
        job_dir=options["job_dir"],
        validation=_validation(options["validation"]),
        seed=options["seed"],
        embedding_dim=options["embedding_dim"],
        checkpoint_dir=options["checkpoint_dir"],
        init_from=options["init_from"],
    )


def run(spec: JobSpec, *, as_json: bool, metrics_port: int | None = None) -> int:
    """Train `spec`, show its progress on stderr and its result on stdout; returns the exit code.

    Args:
        spec: the job. as_json: the result as one JSON object instead of a table.
        metrics_port: where figures are served while it runs, None: nowhere.

    Raises:
        TrimtabError: bad input, a failed or an interrupted job.
    """
    from trimtab.core.controller.run import train

    def job(progress: Callable[[Progress], None], stop: threading.Event) -> JobResult:
        return train(spec, progress=progress, stop=stop, metrics_port=metrics_port)

    return watched(job, "reading rows and model", as_json=as_json)


def watched(
    job: Callable[[Callable[[Progress], None], threading.Event], JobResult], first: str, *, as_json: bool
) -> int:
    """Run `job`, show its progress on stderr and its result on stdout; returns the exit code.

    Args:
        job: called with what shows progress, and with what stops it in order.
        first: what is shown before its first word.
        as_json: the result as one JSON object instead of a table.

    Raises:
        TrimtabError: bad input, a failed or an interrupted job.
    """
    stop = threading.Event()
    display = TrainDisplay()

    def driven() -> bool:
        return display.latest is not None and display.latest.batches_expected > 0

    with display, stops_in_order(stop, driven, always=True):
        display.show(first, now=True)
        result = job(display.progress, stop)
    found = result.as_dict()
    say(json.dumps(found, allow_nan=False) if as_json else closing_table(found))
    if result.history_problem:
        say(f"trimtab: {result.history_problem}", err=True)
    if result.error:
        say(f"trimtab: {result.error}", err=True)
    return EXIT_CODES[result.state]


def _prices(options: Mapping[str, Any]) -> Prices:
    """The prices as given, the others as they are by default."""
    remedy = "give a finite price above 0"
    core = _number("--core-hour-price", options["core_hour_price"], remedy)
    gib = _number("--gib-hour-price", options["gib_hour_price"], remedy)
    usual, currency = Prices(), options["currency"]
    return Prices(
        usual.core_hour if core is None else core, usual.gib_hour if gib is None else gib,
        usual.currency if currency is None else currency,
    )  # fmt: skip


def _number(name: str, text: str | None, remedy: str) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise BadInput(name, text, remedy) from None


def _validation(text: str) -> float | str:
    """A string that reads as a number is a share; any other is a path."""
    try:
        return float(text)
    except ValueError:
        return text
