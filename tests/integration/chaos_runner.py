"""One life of a chaos job's controller: `python -m chaos_runner FOLDER STAGE`; the first trains, later ones resume.

The controller is the real one. Its patience is short, so that what it gives up on it gives up on soon; pods are forked
from zygotes that can put faults into them; the optimizer only keeps the plan, for the schedule changes it. The model
is looked at once and for all jobs of the stage: that process is not what is tested here.
"""

from __future__ import annotations

import json
import logging
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import chaos_schedule
from chaos_faults import Injector

from trimtab.core.controller import chronicle, looking, run
from trimtab.core.controller import resume as resuming
from trimtab.core.controller.driver import Driver
from trimtab.core.controller.launch import Launcher
from trimtab.core.controller.state import State
from trimtab.core.domain.job import JobSpec, Mode
from trimtab.core.domain.model_spec import ModelSpec
from trimtab.core.domain.plan import Limits
from trimtab.core.domain.records import Decision
from trimtab.core.errors import Interrupted
from trimtab.core.wire.encode import read_json

FINISHED, INTERRUPTED = 0, 75
PATIENCE = {"hold_seconds": 4.0, "start_seconds": 60.0, "stall_seconds": 25.0, "copy_seconds": 15.0}
CHILD_DEADLINE_SECONDS = 2.0
OUTCOME = "outcome.json"


def hold(question: Any) -> Decision:
    """The optimizer: the plan stays."""
    return Decision(question.time_seconds, "hold", question.plan, "the schedule changes it", before=question.plan)


def shorten_patience(schedule: chaos_schedule.Schedule) -> None:
    """The controller and the parameter servers wait seconds where they would wait minutes."""
    begin, ps = Driver.__init__, Launcher._ps

    def begun(driver: Driver, state: State, ports: Any) -> None:
        settings = replace(state.settings, silence_seconds=schedule.silence_seconds, **PATIENCE)
        begin(driver, replace(state, settings=settings), ports)

    def ps_config(launcher: Launcher, pod: Any) -> Any:
        return replace(
            ps(launcher, pod), snapshot_seconds=schedule.snapshot_seconds,
            snapshot_deadline_seconds=CHILD_DEADLINE_SECONDS,
        )  # fmt: skip

    Driver.__init__, Launcher._ps = begun, ps_config  # type: ignore[method-assign]


def fork_from_ours() -> None:
    """Pods come from zygotes that put faults into them."""
    plain = Launcher.pod_spec

    def pod_spec(launcher: Launcher, pod: Any) -> Any:
        made = plain(launcher, pod)
        return replace(made, zygote=(sys.executable, "-m", "chaos_pods", pod.role)) if made.zygote else made

    Launcher.pod_spec = pod_spec  # type: ignore[method-assign]


def look_once(kept: Path) -> None:
    """The model's description is worked out by the stage's first job."""
    plain = looking.probe

    def probe(spec: JobSpec, dataset: Path, out_dir: Path) -> ModelSpec:
        name = kept / spec.model.replace(":", "-")
        if not name.exists():
            found = plain(spec, dataset, out_dir)
            if not found.initial_blocks:
                beside = kept / f"{name.name}.{out_dir.parent.name}"
                shutil.copyfile(out_dir / "model.json", beside)
                beside.replace(name)
            return found
        shutil.copyfile(name, out_dir / "model.json")
        return read_json(ModelSpec, out_dir / "model.json")

    looking.probe = probe


def main(folder: Path, stage: Path) -> int:
    """Live once; returns the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born deaf to it
    schedule = chaos_schedule.read(folder / "schedule.json")
    shorten_patience(schedule)
    fork_from_ours()
    look_once(stage / "models")
    run.decide = resuming.decide = hold
    chronicle.write_picture = lambda record, path: None  # seconds of drawing
    Injector(folder, schedule).install()
    job = folder / "job"
    often = {"checkpoint_seconds": schedule.checkpoint_seconds, "settle_seconds": 0.5, "window_seconds": 1.0}
    try:
        if (job / "state.json").exists():
            result = resuming.resume(str(job), **often)
        else:
            result = run.train(spec_of(schedule, folder, stage), **often)
    except Interrupted as error:
        logging.info("interrupted: %s", error)
        return INTERRUPTED
    (folder / OUTCOME).write_text(json.dumps(result.as_dict()), encoding="utf-8")
    return FINISHED


def spec_of(schedule: chaos_schedule.Schedule, folder: Path, stage: Path) -> JobSpec:
    """The job of a schedule."""
    return JobSpec(
        str(stage / "sample.parquet"), columns=str(stage / "columns.yaml"), model=schedule.model, seed=3,
        epochs=schedule.epochs, batch_size=chaos_schedule.BATCH_SIZE, workers=schedule.workers, ps=schedule.ps,
        limits=Limits(workers=chaos_schedule.MOST_WORKERS, ps=chaos_schedule.MOST_PS), mode=Mode.AUTO,
        job_dir=str(folder / "job"), orphan_grace_seconds=2.0,
        checkpoint_dir=str(folder / "disk") if schedule.disk else None,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
