"""What the parameter servers of a job hold and take, as plain data for a person: `trimtab ps stats`.

The controller writes it into the job's directory every few seconds while the job runs and once at its end, so that who
looks asks no process of the job for anything, and finds it there afterwards. Traffic is what was seen last while the
job trained: when it has ended, nothing is pushed any more.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Mapping
from pathlib import Path

from trimtab.core.clock import Clock
from trimtab.core.controller.aside import Aside
from trimtab.core.controller.spreading import Balance, loads, unevenness, weights
from trimtab.core.controller.state import Phase, Pod, State
from trimtab.core.domain.job import JobState
from trimtab.core.domain.model_spec import VSHARDS, ModelSpec
from trimtab.core.ps.layout import layout_of
from trimtab.core.wire.messages import PsReport

FILE = "ps.json"
SCHEMA = "trimtab.ps/1"
WRITE_SECONDS = 2.0
HOTTEST = 10
Traffic = Mapping[str, tuple[float, ...]]


class PsStatsFile:
    """Keeps a job's file of its parameter servers up to date; a disk without room costs nothing else.

    Args:
        job_dir: where it goes. run_id, model: of the job. clock: its seconds.
        aside: writes it while the job runs; without it `watch` does.
    """

    def __init__(
        self, job_dir: Path, run_id: str, model: ModelSpec, clock: Clock, aside: Aside | None = None
    ) -> None:
        self._path, self._run_id, self._model, self._clock = job_dir / FILE, run_id, model, clock
        self._aside, self._problem = aside, ""
        self._next = -math.inf
        self._traffic: dict[str, tuple[float, ...]] = {}

    def watch(self, state: State, now: float) -> None:
        """Look at the running job; call it as often as you like."""
        if now < self._next:
            return
        self._next = now + WRITE_SECONDS
        if state.phase is Phase.TRAINING:
            for pod in state.servers():
                if pod.report is not None and len(pod.report.vshard_traffic) == VSHARDS:
                    self._traffic[pod.process] = pod.report.vshard_traffic
        traffic = dict(self._traffic)
        if self._aside is None:
            self._write(state, traffic)
        else:
            self._aside.do("ps", lambda: self._write(state, traffic))

    def trouble(self) -> str:
        """Why the file is not up to date, "" when it is."""
        return self._problem

    def finish(self, state: State) -> None:
        """The last look: the job has ended."""
        self._write(state, self._traffic, ended=True)

    def _write(self, state: State, traffic: Traffic, ended: bool = False) -> None:
        found = ps_stats(self._run_id, state, self._model, traffic, self._clock.wall(), ended=ended)
        beside = self._path.with_name(f".{FILE}.new")
        try:
            beside.write_text(json.dumps(found, allow_nan=False) + "\n", encoding="utf-8")
            beside.replace(self._path)  # not synced: after a crash of the machine nobody looks at it
            self._problem = ""
        except OSError as error:
            self._problem = f"{FILE} can't be written: {error}"


def ps_stats(
    run_id: str, state: State, model: ModelSpec, traffic: Traffic, wall: float, *, ended: bool
) -> dict[str, object]:
    """Everything that is told of the parameter servers.

    Args:
        run_id: of the job. state: the controller's. model: names and widths of the tables.
        traffic: bytes of pushes per second to each vshard, by process.
        wall: seconds since 1970. ended: the job has.
    """
    routing = state.document.routing
    pods = [pod for pod in state.servers() if pod.report is not None]
    owned = {pod.name: _owned(pod, state) for pod in pods}
    taken = {pod.name: math.fsum(_of(traffic, pod.process, one) for one in owned[pod.name]) for pod in pods}
    total = math.fsum(taken.values())
    job = state.document.state
    return {
        "schema": SCHEMA,
        "run": run_id,
        "state": str(job if job is not JobState.RUNNING or not ended else JobState.FAILED),
        "phase": str(state.phase),
        "written_at": wall,
        "routing_version": routing.version,
        "moving": state.moving or bool(state.tenancies),
        "load_ratio": _ratio(state),
        "traffic_bytes_per_second": total,
        "servers": [_server(pod, len(owned[pod.name]), taken[pod.name], total) for pod in pods],
        "tables": _tables(model, pods),
        "hottest": _hottest(pods, owned, traffic, total),
    }


def _owned(pod: Pod, state: State) -> tuple[int, ...]:
    """Vshards that the routing gives to this very process."""
    routing, place = state.document.routing, pod.slot[1]
    if place >= len(routing.processes) or routing.processes[place] != pod.process:
        return ()
    return tuple(vshard for vshard, owner in enumerate(routing.owner) if owner == place)


def _of(traffic: Traffic, process: str, vshard: int) -> float:
    values = traffic.get(process, ())
    value = values[vshard] if vshard < len(values) else 0.0
    return value if 0 <= value < math.inf else 0.0


def _number(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _ratio(state: State) -> float | None:
    """The fullest place's measured load over the mean; None before it was measured."""
    balance: Balance = state.balance
    weight, places = weights(balance.rows, balance.traffic, balance.by_traffic), state.active("ps")
    if weight is None or not balance.traffic or not places:
        return None
    return unevenness(loads(state.document.routing.owner, weight, places), balance.capacity)


def _server(pod: Pod, vshards: int, taken: float, total: float) -> dict[str, object]:
    report = _report(pod)
    return {
        "pod": pod.name,
        "place": pod.slot[1],
        "process": pod.process,
        "vshards": vshards,
        "rows": report.rows,
        "bytes": report.table_bytes,
        "rss_bytes": report.rss_bytes,
        "cpu_seconds": _number(report.cpu_seconds),
        "pushes": report.pushes,
        "resends_dropped": report.duplicates,
        "slow_pushes": report.slow_pushes,
        "traffic_bytes_per_second": taken,
        "traffic_share": taken / total if total else None,
        "refused": report.refused,
        "snapshots": report.snapshots,
        "snapshot_seconds": _number(report.snapshot_seconds),
        "snapshot_error": report.snapshot_error or None,
        "freeze_seconds": _number(report.freeze_seconds),
    }


def _tables(model: ModelSpec, pods: list[Pod]) -> list[dict[str, object]]:
    """Rows and their bytes in memory (the index is not in them) of each table, over all servers and by server."""
    found: list[dict[str, object]] = []
    for number, table in enumerate(model.tables):
        width = 4 * layout_of(table).stride
        counts = {}
        for pod in pods:
            told = _report(pod).table_rows
            counts[pod.name] = told[number] if number < len(told) else 0
        found.append({
            "name": table.name,
            "kind": table.kind,
            "dim": table.dim,
            "rows": sum(counts.values()),
            "bytes": width * sum(counts.values()),
            "servers": [{"pod": pod, "rows": rows, "bytes": width * rows} for pod, rows in counts.items()],
        })  # fmt: skip
    return found


def _hottest(
    pods: list[Pod], owned: Mapping[str, tuple[int, ...]], traffic: Traffic, total: float
) -> list[dict[str, object]]:
    """The vshards with most traffic, the hottest first; none where none was measured."""
    seen = [(_of(traffic, pod.process, vshard), vshard, pod) for pod in pods for vshard in owned[pod.name]]
    hottest = heapq.nsmallest(HOTTEST, (one for one in seen if one[0] > 0), key=lambda one: (-one[0], one[1]))
    found: list[dict[str, object]] = []
    for value, vshard, pod in hottest:
        rows = _report(pod).vshard_rows
        found.append({
            "vshard": vshard,
            "pod": pod.name,
            "traffic_bytes_per_second": value,
            "traffic_share": value / total,
            "rows": rows[vshard] if vshard < len(rows) else None,
        })  # fmt: skip
    return found


def _report(pod: Pod) -> PsReport:
    assert pod.report is not None
    return pod.report
