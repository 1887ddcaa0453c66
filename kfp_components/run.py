"""What the components do, as plain functions: a component's body is text that KFP carries elsewhere and runs there.

The job runs in the component's own process: its main thread takes SIGTERM (a deleted pod, a cancelled run) and winds
the job down in order, with no process in between that would have to pass it on. The model that the next step gets is
the exported one, because nothing but Keras may be there to load it.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.core.domain.job import JobSpec, JobState
from trimtab.core.domain.plan import Limits, Prices
from trimtab.core.domain.quantities import parse_cpu, parse_duration, parse_memory
from trimtab.core.errors import BadInput, JobFailed

if TYPE_CHECKING:
    from trimtab.core.controller.progress import Progress

log = logging.getLogger(__name__)

_CAPS = ("max_cpu", "max_memory", "max_workers", "max_ps")
_PRICES = ("core_hour_price", "gib_hour_price", "currency")
_ZERO_IS_CHOSEN = ("workers", "ps", "max_workers", "max_ps", "learning_rate", "budget", *_PRICES)
_LINE_SHARE = 0.1  # of the batches between two lines of progress


def spec_of(options: Mapping[str, Any]) -> JobSpec:
    """The job that the component's inputs describe.

    Args:
        options: named as `JobSpec`'s fields, caps as max_cpu, max_memory, max_workers and max_ps,
            prices as core_hour_price, gib_hour_price and currency, and deadline as a time. None and "" mean
            the default, and so does 0 where 0 would be refused.

    Raises:
        BadInput: one of them cannot be used.
    """
    given = {
        name: value for name, value in options.items()
        if value is not None and value != "" and not (name in _ZERO_IS_CHOSEN and value == 0)
    }  # fmt: skip
    cpu, memory, workers, ps = (given.pop(name, None) for name in _CAPS)
    prices = {name.removesuffix("_price"): given.pop(name) for name in _PRICES if name in given}
    if "deadline" in given:
        given["deadline_seconds"] = parse_duration(str(given.pop("deadline")), "--deadline")
    if isinstance(share := given.get("validation"), str):
        with suppress(ValueError):  # a path of other rows
            given["validation"] = float(share)
    limits = Limits(
        cpu=None if cpu is None else parse_cpu(str(cpu), "--max-cpu"),
        memory_bytes=None if memory is None else parse_memory(str(memory), "--max-memory"),
        workers=workers,
        ps=ps,
    )
    if "data" not in given:
        raise BadInput("data", "", "give rows (an artifact) or data (a path, glob, directory or URL)")
    return JobSpec(limits=limits, prices=Prices(**prices), **given)


def run_job(options: Mapping[str, Any], model_dir: Path, report: Path) -> dict[str, object]:
    """Train, export the model and put the report where it belongs; returns the job's result as `--json` gives it.

    Args:
        options: as `spec_of` takes them.
        model_dir: gets the exported model; new.
        report: path of the HTML page.

    Raises:
        BadInput: something given cannot be used. JobFailed: the job did not finish; its report is there all the same
            where it has one. Interrupted: it was stopped.
    """
    from trimtab.core.controller.run import train

    spec = spec_of(options)
    result = train(spec, progress=_lines(log.info)).as_dict()
    _report(result, report)
    if result["state"] != JobState.FINISHED:
        raise JobFailed(f"run {result['run_id']} {result['state']}: {result['error']}")
    _export(result, model_dir)
    return result


def make_sample(rows: int, seed: int, target: Path) -> None:
    """Write sample rows to `target`, a Parquet file."""
    from trimtab.core.data.sample import write_sample

    target.parent.mkdir(parents=True, exist_ok=True)
    write_sample(str(target), rows, seed)


def _export(result: Mapping[str, object], model_dir: Path) -> None:
    """The plain Keras model, or, for a model that cannot be exported yet, the job's result and why not."""
    from trimtab.core.controller.places import home
    from trimtab.core.training.export_client import export_job

    try:
        export_job(Path(str(result["job_dir"])), model_dir, home() / "cache" / "data", log.info)
    except BadInput as error:
        log.warning("the model stays in the job's directory: %s", error)
        model_dir.mkdir(parents=True, exist_ok=True)
        page = {"not_exported": str(error), "job_dir": result["job_dir"], "manifest": result["model"]}
        (model_dir / "not_exported.json").write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")


def _report(result: Mapping[str, object], target: Path) -> None:
    """The job's own page, or a few words where there is none."""
    target.parent.mkdir(parents=True, exist_ok=True)
    page = Path(str(result["job_dir"])) / "report.html"
    if page.is_file():
        shutil.copyfile(page, target)
        return
    words = escape(f"run {result['run_id']}: {result['state']}; no report was written")
    target.write_text(f"<!doctype html><meta charset=utf-8><title>trimtab</title><p>{words}</p>\n", encoding="utf-8")


def _lines(write: Callable[[str], None]) -> Callable[[Progress], None]:
    """Progress as a few log lines: each new phase, each new plan, each tenth of the batches."""
    last: tuple[object, ...] = ()

    def show(progress: Progress) -> None:
        nonlocal last
        share = progress.batches_done / progress.batches_expected if progress.batches_expected else 0.0
        here = (progress.phase, progress.plan, int(share / _LINE_SHARE))
        if here == last:
            return
        last = here
        rate = f", {progress.samples_per_second:.0f} samples/s" if progress.samples_per_second else ""
        done = f"{progress.batches_done} of {progress.batches_expected} batches{rate}, "
        words = f": {progress.message}" if progress.message else ""
        write(f"{progress.phase}{words} ({done if progress.batches_expected else ''}plan {progress.plan})")

    return show
