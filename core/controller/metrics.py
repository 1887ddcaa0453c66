"""Figures of a running job for a program that collects them: Prometheus' text on a port of this machine.

Only on request, and only on the loopback address: whoever may log in here may read them, nobody else. One pure function
makes them from the same dictionary that `trimtab status` shows, so the two can't tell different stories. The dictionary
is made from the controller's last state, an immutable value, so reading figures never holds the controller up. A figure
that is not known is left out, which is not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trimtab.core.controller.progress import Progress
from trimtab.core.domain.quantities import parse_cpu, parse_memory
from trimtab.core.errors import BadInput

if TYPE_CHECKING:
    from prometheus_client.core import Metric

HOST, OPTION = "127.0.0.1", "--metrics-port"
FIGURES = "figures"  # the phase whose message says once where they are
LAST_PORT = 65_535
PHASES = (
    "preparing", "waiting", "starting", "training", "stopping", "closing", "evaluating", "scoring", "metrics", "over",
)  # fmt: skip

Status = Mapping[str, Any]

# Name → key of the status, what it is.
_GAUGES = {
    "batches_done": ("batches_done", "Batches applied at every vshard's owner; falls when a parameter server is lost."),
    "batches_expected": ("batches_expected", "Batches of the whole job."),
    "samples_per_second": ("samples_per_second", "Rows trained per second, of the last seconds."),
    "loss": ("loss", "Moving average over recent batches."),
    "remaining_seconds": ("eta_seconds", "Until the last batch is trained, at the present speed."),
    "elapsed_seconds": ("wall_seconds", "Since the job's first start."),
    "longest_worker_wait_seconds": ("max_worker_gap_seconds", "Longest time between two finished steps of a worker."),
    "table_bytes": ("table_bytes", "Rows, optimizer slots and index of all parameter servers together."),
    "moving": ("moving", "1 while vshards are on the move, else 0."),
}
_COUNTERS = {
    "decisions": ("decisions", "Decisions about the plan, also those that kept it."),
    "out_of_memory_kills": ("out_of_memory", "Pods that were killed for want of memory."),
    "resends_dropped": ("resends_dropped", "Pushes that came again and were dropped."),
    "cpu_seconds": ("cpu_seconds", "CPU time of all pods."),
}
_OF_PODS = {
    "pod_cpu_cores": ("cpu_used", "Cores that a pod used lately."),
    "pod_cpu_limit_cores": ("cpu", "Cores that a pod is given."),
    "pod_resident_bytes": ("rss_bytes", "Resident memory of a pod."),
    "pod_memory_limit_bytes": ("memory_bytes", "Memory that a pod is given."),
    "pod_samples_per_second": ("samples_per_second", "Rows per second of one worker."),
    "pod_table_bytes": ("table_bytes", "Rows, optimizer slots and index of one parameter server."),
}


def families(status: Status) -> Iterator[Metric]:
    """All figures of a job, from what `status_of` says of it."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"trimtab_{name}", text, labels=labels)

    job = {"run_id": str(status.get("run_id")), "job_name": str(status.get("job_name") or "")}
    yield InfoMetricFamily("trimtab_job", "Which job this is.", value=job)
    phases = gauge("phase", "1 for the phase that the job is in.", ("phase",))
    for phase in PHASES:
        phases.add_metric([phase], float(status.get("phase") == phase))
    yield phases
    for name, (key, text) in _GAUGES.items():
        if (value := status.get(key)) is not None:
            family = gauge(name, text)
            family.add_metric([], float(value))
            yield family
    for name, (key, text) in _COUNTERS.items():
        if (value := status.get(key)) is not None:
            yield CounterMetricFamily(f"trimtab_{name}", text, value=float(value))
    yield from _plan(status, gauge)
    yield from _pods(status, gauge)
    yield from _checkpoint(status, gauge)
    found = gauge("finding_seconds", "What is wrong at present, and since when.", ("kind", "subject"))
    for one in status.get("findings") or ():
        found.add_metric([str(one["kind"]), str(one["subject"])], float(one["seconds"] or 0.0))
    yield found


def _plan(status: Status, gauge: Callable[..., Any]) -> Iterator[Metric]:
    """The plan in force, and the caps it keeps."""
    replicas = gauge("plan_replicas", "Pods that the plan has.", ("role",))
    cores = gauge("plan_cpu_cores", "Cores per pod that the plan has.", ("role",))
    memory = gauge("plan_memory_bytes", "Memory per pod that the plan has.", ("role",))
    for role, part in (status.get("plan") or {}).items():
        replicas.add_metric([role], float(part["replicas"]))
        cores.add_metric([role], parse_cpu(part["cpu"]))
        memory.add_metric([role], float(parse_memory(part["memory"])))
    yield from (replicas, cores, memory)
    limits = status.get("limits") or {}
    for name, key, text in (
        ("limit_cpu_cores", "cpu", "Cores that all pods may use together."),
        ("limit_memory_bytes", "memory_bytes", "Memory that all pods may use together."),
    ):
        if limits.get(key) is not None:
            family = gauge(name, text)
            family.add_metric([], float(limits[key]))
            yield family


def _pods(status: Status, gauge: Callable[..., Any]) -> Iterator[Metric]:
    """How many pods there are, and what each uses."""
    pods = status.get("pods") or ()
    counts = gauge("pods", "Pods by role and state.", ("role", "state"))
    kinds = [(str(one["role"]), str(one["state"])) for one in pods]
    for kind in sorted(set(kinds)):
        counts.add_metric(list(kind), float(kinds.count(kind)))
    yield counts
    for name, (key, text) in _OF_PODS.items():
        family = gauge(name, text, ("pod", "role"))
        for one in pods:
            if one.get(key) is not None:
                family.add_metric([str(one["name"]), str(one["role"])], float(one[key]))
        yield family


def _checkpoint(status: Status, gauge: Callable[..., Any]) -> Iterator[Metric]:
    """How far the last checkpoint reaches, and how old it is."""
    told = status.get("checkpoint") or {}
    for name, key, text in (
        ("checkpoint_batches", "batches", "Batches that the last checkpoint holds."),
        ("checkpoint_age_seconds", "age_seconds", "Since the last checkpoint was committed."),
    ):
        if told.get(key) is not None:
            family = gauge(name, text)
            family.add_metric([], float(told[key]))
            yield family


class MetricsServer:
    """Answers on a port of this machine until it is closed.

    Args:
        port: where; 0: any that is free.
        status: how the job stands, asked at each reading, in another thread.

    Raises:
        BadInput: the port can't be used.
    """

    def __init__(self, port: int, status: Callable[[], Status]) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self.status = status
        if not 0 <= port <= LAST_PORT:
            raise BadInput(OPTION, port, f"give a port from 1 to {LAST_PORT}, or 0 for any that is free")
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Reader(self))
        try:
            self._server, self._thread = start_http_server(port, HOST, registry)
        except OSError as error:
            remedy = f"can't be used ({error.strerror or error}); give another port, or 0 for any that is free"
            raise BadInput(OPTION, port, remedy) from error

    @property
    def url(self) -> str:
        """Where the figures are."""
        return f"http://{HOST}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Answer no more, and give the port back. May be called twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Reader:
    """What a registry asks when somebody reads."""

    def __init__(self, server: MetricsServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """The figures as they are."""
        yield from families(self._server.status())


def open_metrics(
    port: int | None, run_id: str, job_name: str, waits: Callable[[], bool], show: Callable[[Progress], None]
) -> MetricsServer | None:
    """Begin to serve the figures of a job that is being prepared; None where nobody asked for them.

    Args:
        port: as asked for; None: nowhere. run_id, job_name: of the job.
        waits: whether it stands in line for room on the machine. show: hears where they are.

    Raises:
        BadInput: the port can't be used.
    """
    if port is None:
        return None

    def status() -> Status:
        return {"run_id": run_id, "job_name": job_name, "phase": "waiting" if waits() else "preparing"}

    server = MetricsServer(port, status)
    show(Progress(0, 0, 0.0, None, None, FIGURES, server.url))
    return server
