"""Jobs that meet faults from a seed, on real processes: `python tests/integration/chaos.py SEED | FIRST-LAST ...`.

Each seed is one job: its schedule (`chaos_schedule`) is carried out in the controller's process (`chaos_faults`) and
in its pods (`chaos_pods`); when the controller dies the job is resumed, until it has finished. Then the audit table
must hold each id as often as the data does, every count must be exact, and nothing of the job may be left running. A
seed that fails prints its schedule, keeps its folder, and says how it is replayed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import chaos_schedule  # noqa: E402
import numpy as np  # noqa: E402
import psutil  # noqa: E402
from chaos_faults import DONE, VIOLATIONS  # noqa: E402
from chaos_pods import ARMED, CLAIMED, FOLDER  # noqa: E402
from chaos_runner import FINISHED, INTERRUPTED, OUTCOME, spec_of  # noqa: E402
from jobs import audit  # noqa: E402

from trimtab.core.clock import SystemClock  # noqa: E402
from trimtab.core.cluster.subreaper import SUBREAPER  # noqa: E402
from trimtab.core.data.dataset import Dataset  # noqa: E402
from trimtab.core.data.numbering import numbering_of  # noqa: E402
from trimtab.core.data.prepare import prepare  # noqa: E402
from trimtab.core.data.sample import write_sample  # noqa: E402

ROWS = 12_000
COLUMNS = "label: label\ndense: [I1]\ncategorical: [C1, C5, C9, C20]\n"
LIFE_SECONDS = 150.0  # only a job that is stuck takes that long
LEAVE_SECONDS = 15.0  # for what a dead controller left
DISK_BYTES = 24 << 20
AUDIT = "audit_model:build"
_POLL_SECONDS = 0.05


@dataclass
class Outcome:
    """What became of one seed. `problems` is empty when all is well; `missed`: events that found no moment."""

    schedule: chaos_schedule.Schedule
    folder: Path
    problems: list[str] = field(default_factory=list)
    skipped: str = ""
    lives: int = 0
    missed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    result: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        seed = self.schedule.seed
        if self.skipped:
            return f"seed {seed}: skipped, {self.skipped}"
        faults = f"{len(self.schedule.events)} events, {self.lives} lives, {self.seconds:.0f} s"
        faults += f", not met: {', '.join(self.missed)}" if self.missed else ""
        if not self.problems:
            return f"seed {seed}: exact, {faults}"
        lines = [f"seed {seed}: WRONG, {faults}", *(f"  {one}" for one in self.problems), str(self.schedule)]
        return "\n".join([*lines, f"  its folder: {self.folder}", f"  replay: make chaos SEED={seed}"])


class Stage:
    """What all jobs of one call share: the rows, their cache, and the model's description."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "models").mkdir(parents=True, exist_ok=True)
        self.environment = {
            **os.environ, "TRIMTAB_HOME": str(path / "home"), "TRIMTAB_HISTORY": "none",
            "TRIMTAB_KERNEL_CACHE": os.environ.get("TRIMTAB_KERNEL_CACHE") or str(_home() / "cache" / "kernels"),
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent.parent / "src")]),
        }  # fmt: skip
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)
        if not (path / "sample.parquet").exists():
            (path / "columns.yaml").write_text(COLUMNS, encoding="utf-8")
            write_sample(str(path / "beside.parquet"), ROWS, seed=5)
            (path / "beside.parquet").replace(path / "sample.parquet")
        cache = path / "home" / "cache" / "data"
        rows = prepare(str(path / "sample.parquet"), str(path / "columns.yaml"), cache, lambda *_: None)
        self.rows = Dataset.open(rows).rows

    def numbering(self, schedule: chaos_schedule.Schedule, folder: Path) -> object:
        """The numbers of a schedule's batches."""
        return numbering_of(spec_of(schedule, folder, self.path), self.rows)

    def schedule(self, seed: int, **more: object) -> chaos_schedule.Schedule:
        """The schedule of `seed` for this stage's rows."""
        per_epoch = self.numbering(chaos_schedule.plan_chaos(seed, 1), self.path).batches_per_epoch
        return chaos_schedule.plan_chaos(seed, per_epoch, **more)


def run_schedule(schedule: chaos_schedule.Schedule, stage: Stage) -> Outcome:
    """Carry one schedule out and look at what is there afterwards; a folder without problems is removed."""
    clock = SystemClock()
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{schedule.seed}-"))
    outcome = Outcome(schedule, folder)
    for name in (DONE, ARMED, CLAIMED, "t", "disk"):
        (folder / name).mkdir()
    schedule.write(folder / "schedule.json")
    if schedule.disk and not _mount(folder / "disk"):
        outcome.skipped = "a small disk cannot be mounted here"
    began = clock.now()
    try:
        if not outcome.skipped:
            _live(outcome, stage)
            _look(outcome, stage)
    finally:
        _end_all()
        outcome.missed = [event.kind for event in schedule.events if not _was_met(folder, event)]
        outcome.seconds = clock.now() - began
        if outcome.problems:
            (folder / "outcome.txt").write_text(f"{outcome}\n", encoding="utf-8")
        elif schedule.disk:
            subprocess.run(["umount", str(folder / "disk")], check=False, capture_output=True)
        if not outcome.problems:
            shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _live(outcome: Outcome, stage: Stage) -> None:
    """The controller's lives, one after the other, until the job has finished or something is wrong."""
    folder, most = outcome.folder, 2 + sum(e.kind in chaos_schedule.ENDS_A_LIFE for e in outcome.schedule.events)
    environment = {**stage.environment, FOLDER: str(folder), "TMPDIR": str(folder / "t")}
    while outcome.lives < most:
        outcome.lives += 1
        with (folder / f"life-{outcome.lives}.log").open("wb") as log:
            life = subprocess.Popen(
                [sys.executable, "-m", "chaos_runner", str(folder), str(stage.path)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=HERE,
            )  # fmt: skip
            code = _wait(life)
        if code == FINISHED:
            return
        if code is None:
            outcome.problems.append(f"life {outcome.lives} was not over after {LIFE_SECONDS:g} s")
            return
        if code not in (-signal.SIGKILL, INTERRUPTED):
            last = (folder / f"life-{outcome.lives}.log").read_text(errors="replace").splitlines()[-3:]
            outcome.problems.append(f"life {outcome.lives} ended with exit code {code}: {' | '.join(last)}")
            return
        if any(e.words.get("orphans_leave") and _was_met(folder, e) for e in outcome.schedule.events):
            _gone(LEAVE_SECONDS)
    outcome.problems.append(f"the job was not finished after {most} lives")


def _look(outcome: Outcome, stage: Stage) -> None:
    """All that must hold after a job; what does not is a problem."""
    folder, schedule, problems = outcome.folder, outcome.schedule, outcome.problems
    left = [f"{process.pid} {_command(process)}" for process in _gone(LEAVE_SECONDS)]
    _expect(problems, not left, f"still running: {left}")
    if (folder / VIOLATIONS).exists():
        problems.append((folder / VIOLATIONS).read_text())
    if problems:
        return
    outcome.result = result = json.loads((folder / OUTCOME).read_text())
    numbering = stage.numbering(schedule, folder)
    batches, rows = numbering.batches, schedule.epochs * numbering.train_rows
    counts = {
        "state": "finished", "batches_expected": batches, "batches_applied": batches, "batches_duplicated": 0,
        "batches_skipped": 0, "rows_expected": rows, "rows_applied": rows, "rows_skipped": 0,
    }  # fmt: skip
    for name, wanted in counts.items():
        _expect(problems, result[name] == wanted, f"{name} is {result[name]}, not {wanted}: {result['error']}")
    job = folder / "job"
    kept = json.loads((job / "result.json").read_text())
    _expect(problems, kept["batches_applied"] == batches, "result.json says something else than the result")
    with np.load(job / "scores.npz", allow_pickle=False) as scores:
        held_out = stage.rows - numbering.train_rows
        _expect(problems, len(scores["labels"]) == held_out, f"{len(scores['labels'])} scores for {held_out} rows")
    resumed = (job / "events.jsonl").read_text().count('"kind": "resumed"')
    _expect(problems, resumed == outcome.lives - 1, f"{resumed} events of resuming in {outcome.lives} lives")
    for name in ("controller.json", "pids.json", "snapshots/*"):
        stays = [one.name for one in job.glob(name)]
        _expect(problems, not stays, f"these stay in the job's directory: {stays}")
    private = sorted(one.name for one in (folder / "t").iterdir())
    _expect(problems, not private, f"private files stay: {private}")
    if schedule.model == AUDIT:
        try:
            audit(SimpleNamespace(**result), schedule.epochs)
        except AssertionError as error:
            problems.append(f"audit: {error}")


def _expect(problems: list[str], holds: bool, otherwise: str) -> None:
    if not holds:
        problems.append(otherwise)


def _was_met(folder: Path, event: chaos_schedule.Event) -> bool:
    """Whether an event did happen, not only begin to wait for its moment."""
    notes = folder / DONE / str(event.number)
    if event.kind in (*chaos_schedule.OF_A_MOVE, "kill_controller_at_commit"):
        return notes.exists() and '"met"' in notes.read_text()
    if event.kind in ("kill_worker_mid_push", "cut_worker", "cut_move", "hang_child", "kill_child", "child_full"):
        return (folder / CLAIMED / f"{event.number}-0").exists()
    return notes.exists()


# ---- processes


def _wait(life: subprocess.Popen[bytes]) -> int | None:
    """The exit code; None (and killed) when it takes too long. Orphans of earlier lives are reaped meanwhile."""
    clock, never = SystemClock(), threading.Event()
    end = clock.now() + LIFE_SECONDS
    while life.poll() is None and clock.now() < end:
        _reap(but=life.pid)
        clock.wait(never, _POLL_SECONDS)
    if life.poll() is None:
        life.kill()
        life.wait()
        return None
    return life.returncode


def _reap(but: int = 0) -> None:
    """Take in what has ended: without that, a dead pod would look alive to whoever waits for its end."""
    with suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid == but:
                return
            os.waitpid(ended.si_pid, 0)


def _living() -> list[psutil.Process]:
    """Descendants of this process: all of the present job, whose orphans come here, and nobody else."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


def _gone(seconds: float) -> list[psutil.Process]:
    """Who still lives of the job after at most `seconds`."""
    clock, never = SystemClock(), threading.Event()
    end = clock.now() + seconds
    while (left := _living()) and clock.now() < end:
        _reap()
        clock.wait(never, _POLL_SECONDS)
    _reap()
    return left


def _end_all() -> None:
    for process in _living():
        with suppress(psutil.Error):
            process.kill()
    _gone(LEAVE_SECONDS)


def _command(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _mount(path: Path) -> bool:
    """A disk of its own that can be filled; False where that is not allowed."""
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    try:
        return subprocess.run(words, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def _home() -> Path:
    return Path(os.environ.get("TRIMTAB_HOME") or "~/.trimtab").expanduser()


def _seeds(words: list[str]) -> list[int]:
    found: list[int] = []
    for word in words:
        first, _, last = word.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def main(argv: list[str]) -> int:
    """Run seeds one after the other; returns 1 when one of them is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seeds", nargs="*", default=["0-199"], help="numbers, or ranges like 0-199")
    parser.add_argument("--stage", help="directory of rows and caches that several calls share")
    parser.add_argument("--show", action="store_true", help="only print the schedules")
    parser.add_argument("--model", default=AUDIT, help="instead of the audit's")
    parser.add_argument("--calm", action="store_true", help="the same jobs, and nothing happens to them")
    parser.add_argument("--results", help="file that gets the jobs' results as a JSON list")
    options = parser.parse_args(argv)
    stopping = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    assert SUBREAPER.take(), "chaos needs Linux: orphans must come here"
    wrong, results = 0, []
    with tempfile.TemporaryDirectory(prefix="chaos-stage-") as own:
        stage = Stage(Path(options.stage or own))
        for seed in _seeds(options.seeds):
            schedule = stage.schedule(seed, model=options.model)
            schedule = replace(schedule, events=(), disk=False) if options.calm else schedule
            if options.show:
                sys.stdout.write(f"{schedule}\n")
                continue
            outcome = run_schedule(schedule, stage)
            wrong += bool(outcome.problems)
            results.append(outcome.result)
            sys.stdout.write(f"{outcome}\n")
            sys.stdout.flush()
    if options.results:
        Path(options.results).write_text(json.dumps(results), encoding="utf-8")
    signal.signal(signal.SIGTERM, stopping)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
