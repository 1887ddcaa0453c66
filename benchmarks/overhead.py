"""What looking after a job costs: controller, reports, optimizer and stability, beside the job's own CPU.

One job trains on the sample in mode `advise`, so that all of it is at work (reports, windows, fits, decisions,
stability) and the plan stays as it is: 2 workers of 0.65 cores and a parameter server (PS) of 0.5. Its controller runs
in the benchmark's own process, whose CPU seconds while the job trains are counted whole, what `step`, the network and
the record of the job cost among them. What a report costs the pod that makes it is measured on its own (real calls
over gRPC, a hundred a second, to a real server with the sample's tables in a process of its own: the end that is called
for a PS, the end that calls for a worker) and counted for each report that was made. `overhead_cpu_percent` is the sum
over the CPU seconds of all pods in the same time; median of the repeats. `throughput_ratio` pairs stretches of 6 s
within the job, as it is and with a controller that asks only every 4 s, in turns: throughput of the first over the
second, 1: it costs nothing that can be seen. With `--quick` there is one repeat of half a minute.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from figures import Figure, options, report

ROWS, BATCH = 200_000, 512
REPEATS, SECONDS, QUICK_SECONDS = 3, 90.0, 30.0
STRETCH, SKIPPED = 6.0, 1.5  # seconds in one way of asking, of which the first are not counted
RARELY = 4.0  # seconds between two questions then
WARM_SECONDS = 4.0
CALLS, WARM_CALLS, PAUSE = 500, 50, 0.01
SECRET = b"s" * 32
GIB = 2**30


@dataclass
class Measured:
    """One job: CPU seconds of the controller and of the pods while it trained, reports made, rows by time."""

    controller: float = 0.0
    pods: float = 0.0
    seconds: float = 0.0
    ps_reports: int = 0
    worker_reports: int = 0
    stretches: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})


def pods_cpu() -> dict[int, float]:
    """CPU seconds of each process below this one."""
    found = {}
    for one in psutil.Process().children(recursive=True):
        try:
            times = one.cpu_times()
        except psutil.Error:
            continue
        found[one.pid] = times.user + times.system
    return found


def measure(sample: str, folder: Path, seconds: float) -> Measured:
    """Train for so long, one half of it with a controller that asks as it does, in turns with one that asks rarely."""
    from trimtab.core.controller import driver, run, running
    from trimtab.core.domain.job import JobSpec, Mode
    from trimtab.core.domain.plan import Limits, Plan, RolePlan
    from trimtab.core.errors import Interrupted

    found, stop = Measured(), threading.Event()
    usual, serve, stub, first_plan = driver.SYNC_SECONDS, running.serve_controller, running.PsStub, run.first_plan
    state: dict[str, Any] = {"since": None, "began": None, "turn": True, "rows": 0, "pods": {}, "cpu": 0.0,
                             "all_rows": 0}

    def first(*words: Any, **more: Any) -> Any:
        from dataclasses import replace

        decision = first_plan(*words, **more)
        plan = Plan(
            RolePlan(1, 0.5, decision.plan.ps.memory_bytes), RolePlan(2, 0.65, decision.plan.worker.memory_bytes)
        )
        return replace(decision, plan=plan)

    def turn_over(now: float) -> None:
        """End a stretch and begin the next one, the other way."""
        state["turn"] = not state["turn"]
        driver.SYNC_SECONDS = usual if state["turn"] else RARELY
        state.update({"since": now, "rows": None, "cpu": time.process_time(), "pods": pods_cpu()})

    class Counting(stub):  # type: ignore[misc, valid-type]
        def sync(self, request: Any, timeout_seconds: float) -> Any:
            found.ps_reports += state["turn"] and state["began"] is not None
            return super().sync(request, timeout_seconds)

    def listening(address: str, secret: bytes, answer: Any, *more: Any) -> Any:
        def both(sync: Any) -> Any:
            state["all_rows"] += sum(one.rows for one in sync.losses)
            found.worker_reports += state["turn"] and state["began"] is not None
            return answer(sync)

        return serve(address, secret, both, *more)

    def progress(seen: Any) -> None:
        now = time.monotonic()
        if seen.phase != "training":
            return
        if state["began"] is None:
            if state["all_rows"]:
                state["trains"] = state.get("trains", now)
            if now - state.get("trains", now) > WARM_SECONDS:
                state["began"] = now
                turn_over(now)
            return
        if now - state["began"] > seconds and not state["turn"]:
            stop.set()
            return
        if state["rows"] is None and now - state["since"] >= SKIPPED:
            state.update({"rows": state["all_rows"], "at": now})
            return
        if now - state["since"] >= STRETCH and state["rows"] is not None:
            found.stretches[state["turn"]].append((state["all_rows"] - state["rows"]) / (now - state["at"]))
            if state["turn"]:
                after = pods_cpu()
                before = state["pods"]
                found.pods += sum(after[pid] - before[pid] for pid in after.keys() & before.keys())
                found.controller += time.process_time() - state["cpu"]
                found.seconds += now - state["since"]
            turn_over(now)

    spec = JobSpec(
        sample, epochs=1000, workers=2, ps=1, mode=Mode.ADVISE, batch_size=BATCH, job_dir=str(folder / "job"),
        limits=Limits(1.8, 12 * GIB, 4, 2), validation=0.0,
    )  # fmt: skip
    from trimtab.core.controller import resources

    kept = resources.first_plan
    try:
        resources.first_plan = first
        running.serve_controller, running.PsStub = listening, Counting  # type: ignore[assignment, misc]
        run.train(spec, progress, stop=stop)
    except Interrupted:
        pass
    finally:
        resources.first_plan = kept
        driver.SYNC_SECONDS = usual
        running.serve_controller, running.PsStub = serve, stub  # type: ignore[misc]
    if not found.pods:
        raise SystemExit("the job did not train long enough to be measured")
    return found


def serve(address: str) -> None:
    """A parameter server's control plane with a table of the sample's kind, until whoever started this hangs up."""
    from trimtab.core.clock import SystemClock
    from trimtab.core.domain.model_spec import InitializerSpec, ModelSpec, OptimizerSpec, TableSpec
    from trimtab.core.ps.server import ParameterServer
    from trimtab.core.ps.table import RowTable
    from trimtab.core.wire.control import serve_ps

    tables = tuple(
        TableSpec(f"C{number}", 16, "embedding", 0, InitializerSpec("zeros"), OptimizerSpec("adagrad"))
        for number in range(1, 27)
    )
    model = ModelSpec("m", tables, 0, "", "f")
    server = ParameterServer("job", "p" * 32, 1, model, RowTable(tables, 0, 1 << 28), 1000, SystemClock(), None)
    control = serve_ps(address, SECRET, server.sync)
    sys.stdin.read()
    control.close()


def cost_of_a_report(folder: Path) -> tuple[float, float]:
    """CPU seconds of one report at the end that is called and at the end that calls, each in a process of its own.

    A parameter server is called and a worker calls; the controller is at the other end of both, and counted whole.
    """
    from trimtab.core.errors import WireError
    from trimtab.core.wire.control import PsStub
    from trimtab.core.wire.messages import PsSync

    address = str(folder / "ps.ctl")
    command = [sys.executable, "-c", "import sys, overhead; overhead.serve(sys.argv[1])", address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parent) as child:
        stub = PsStub(address, SECRET)

        def call(number: int) -> None:
            stub.sync(PsSync("job", 1, number, ""), 5.0)
            time.sleep(PAUSE)

        try:
            for _ in range(200):  # until it is up
                try:
                    call(0)
                    break
                except WireError:
                    time.sleep(0.1)
            for number in range(1, WARM_CALLS):
                call(number)
            far, near = cpu_of(child.pid), time.process_time()
            for number in range(WARM_CALLS, WARM_CALLS + CALLS):
                call(number)
            return (cpu_of(child.pid) - far) / CALLS, (time.process_time() - near) / CALLS
        finally:
            stub.close()


def cpu_of(pid: int) -> float:
    """CPU seconds of a process, to the nanosecond where the kernel tells."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(one.read_text().split()[0]) for one in files) / 1e9


def interval(first: list[float], second: list[float]) -> tuple[float, float, float]:
    """Ratio of neighbouring stretches in the median, and its 95 % interval by resampling pairs."""
    pairs = [math.log(one / other) for one, other in zip(first, second, strict=False)]
    rng = random.Random(0)
    drawn = sorted(statistics.median(rng.choices(pairs, k=len(pairs))) for _ in range(2000))
    return math.exp(statistics.median(pairs)), math.exp(drawn[50]), math.exp(drawn[-51])


def main() -> None:
    """Measure and report."""
    chosen = options(__doc__)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["TRIMTAB_HISTORY"] = "none"
    from trimtab.core.data.sample import write_sample

    with tempfile.TemporaryDirectory(prefix="tt") as place:
        folder = Path(place)
        os.environ["TRIMTAB_HOME"] = str(folder / "home")
        os.environ.setdefault("TRIMTAB_KERNEL_CACHE", str(Path.home() / ".trimtab" / "cache" / "kernels"))
        sample = str(folder / "sample.parquet")
        write_sample(sample, ROWS, seed=1)
        called, calls = cost_of_a_report(folder)
        jobs = []
        for number in range(1 if chosen.quick else REPEATS):
            jobs.append(measure(sample, folder / str(number), QUICK_SECONDS if chosen.quick else SECONDS))
    controller = [100 * one.controller / one.pods for one in jobs]
    reports = [100 * (called * one.ps_reports + calls * one.worker_reports) / one.pods for one in jobs]
    total = [one + other for one, other in zip(controller, reports, strict=True)]
    usual, rare = [one for job in jobs for one in job.stretches[True]], [
        one for job in jobs for one in job.stretches[False]
    ]
    ratio, low, high = interval(usual, rare)
    spread = f"{min(total):.2f} to {max(total):.2f}; pods used {jobs[0].pods / jobs[0].seconds:.2f} cores"
    found = [
        Figure("overhead_cpu_percent", statistics.median(total), "%", 3.0, "lower", spread),
        Figure("controller_cpu_percent", statistics.median(controller), "%", None, "lower", "its process, optimizer "
               "and stability included"),
        Figure("reports_cpu_percent", statistics.median(reports), "%", None, "lower",
               f"{1e3 * called:.2f} ms of CPU of a PS per report, {1e3 * calls:.2f} ms of a worker"),
        Figure("throughput_ratio", ratio, "", None, "higher", f"95 %: {low:.3f} to {high:.3f}, {len(rare)} pairs"),
    ]  # fmt: skip
    report("What looking after a job costs", found, chosen.json)


if __name__ == "__main__":
    main()
