"""Figures for programs: one story with the status, on the loopback address only, and a port that is told when taken."""

from __future__ import annotations

import socket
import urllib.request
from dataclasses import replace

import pytest
from controller_world import new_state, settings

from trimtab.core import cli
from trimtab.core.controller.metrics import HOST, MetricsServer, families, open_metrics
from trimtab.core.controller.state import Phase, Pod
from trimtab.core.controller.status import About, Seen, nothing_known, status_of
from trimtab.core.domain.records import Finding
from trimtab.core.errors import BadInput

FIRST = {"run_id": "r", "job_name": "train", "phase": "preparing"}


def figures(status):
    """Name and labels → value."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families(status) for sample in family.samples
    }  # fmt: skip


def status(**changes):
    state = new_state(settings())
    pod = Pod("worker-0-t1-g1", ("worker", 0), 0.0, seen=True, heard_at=9.0, speed=2.0, cpu_seconds=4.0, rss_bytes=7)
    finding = Finding("straggler", "worker-0", "it is slow", 3.0)
    state = replace(
        state, phase=Phase.TRAINING, pods={pod.name: pod}, findings={("straggler", "worker-0"): finding}, **changes
    )
    seen = Seen(Phase.TRAINING, 1.0, {pod.name: 0.4})
    return status_of(state, 10.0, About("train", "/jobs/r", 1, 0.0), seen, "", 1_700_000_000.0)


def test_figures_are_those_of_the_status():
    told = status()
    found = figures(told)
    assert found["trimtab_job_info", ("job_name", "train"), ("run_id", told["run_id"])] == 1.0
    assert found["trimtab_phase", ("phase", "training")] == 1.0 and found["trimtab_phase", ("phase", "over")] == 0.0
    assert found[("trimtab_batches_expected",)] == told["batches_expected"]
    assert found[("trimtab_elapsed_seconds",)] == told["wall_seconds"]
    assert found[("trimtab_decisions_total",)] == 0.0
    assert found["trimtab_plan_replicas", ("role", "worker")] == 2.0
    assert found["trimtab_plan_cpu_cores", ("role", "ps")] == 0.5
    assert found["trimtab_plan_memory_bytes", ("role", "ps")] == 2**28
    pod = (("pod", "worker-0-t1-g1"), ("role", "worker"))
    assert found["trimtab_pod_cpu_cores", *pod] == 0.4
    assert found["trimtab_pod_resident_bytes", *pod] == 7.0
    assert found["trimtab_pod_samples_per_second", *pod] == told["pods"][0]["samples_per_second"]
    assert found["trimtab_pods", ("role", "worker"), ("state", "running")] == 1.0
    assert found["trimtab_finding_seconds", ("kind", "straggler"), ("subject", "worker-0")] == 7.0
    assert found[("trimtab_checkpoint_batches",)] == 0.0


def test_what_is_not_known_is_left_out():
    told = status()
    assert told["loss"] is None and told["limits"]["cpu"] is None
    names = {name for name, *_ in figures(told)}
    assert not {"trimtab_loss", "trimtab_limit_cpu_cores", "trimtab_checkpoint_age_seconds"} & names
    for little in (FIRST, nothing_known("r", "/jobs/r")):
        found = figures(little)
        assert found["trimtab_job_info", ("job_name", little.get("job_name") or ""), ("run_id", "r")] == 1.0


def test_every_figure_has_a_unit_or_counts_something():
    for family in families(status()):
        assert family.name.startswith("trimtab_") and family.documentation.endswith(".")
        words = family.name.split("_")
        assert not {"ms", "millis", "mb", "gib", "percent"} & set(words), family.name


@pytest.fixture
def served():
    servers = []

    def serve(port, told=lambda: FIRST):
        servers.append(MetricsServer(port, told))
        return servers[-1]

    yield serve
    for server in servers:
        server.close()


def read(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_it_is_prometheus_text_and_follows_the_job(served):
    server = served(0)
    kind, text = read(server.url)
    assert kind.startswith("text/plain; version=") and 'trimtab_phase{phase="preparing"} 1.0' in text
    server.status = status
    _, text = read(server.url)
    assert "# TYPE trimtab_batches_done gauge" in text and 'trimtab_phase{phase="training"} 1.0' in text
    assert "# HELP trimtab_decisions_total" in text


def test_only_this_machine_can_ask(served):
    server = served(0)
    assert server.url.startswith(f"http://{HOST}:") and HOST == "127.0.0.1"
    assert server._server.server_address[0] == HOST


def test_a_port_in_use_is_bad_input(served):
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BadInput, match=f"--metrics-port: {port}: can't be used \\(Address already in use\\)"):
            served(port)


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_that_there_is_not_is_bad_input(served, port):
    with pytest.raises(BadInput, match="give a port from 1 to 65535"):
        served(port)


def test_closing_gives_the_port_back(served):
    server = MetricsServer(0, lambda: FIRST)
    port = int(server.url.split(":")[-1].split("/")[0])
    server.close()
    server.close()
    assert served(port).url == server.url


def test_before_the_job_has_begun_it_prepares_or_waits():
    shown, waits = [], [False]
    assert open_metrics(None, "r", "train", lambda: waits[0], shown.append) is None and shown == []
    server = open_metrics(0, "r", "train", lambda: waits[0], shown.append)
    try:
        assert (shown[0].phase, shown[0].message) == ("figures", server.url)
        assert 'trimtab_phase{phase="preparing"} 1.0' in read(server.url)[1]
        waits[0] = True
        assert 'trimtab_phase{phase="waiting"} 1.0' in read(server.url)[1]
    finally:
        server.close()


def test_a_status_that_fails_once_costs_one_reading(served):
    broken = [True]

    def told():
        if broken[0]:
            raise RuntimeError("not now")
        return FIRST

    server = served(0, told)
    with pytest.raises(Exception, match=r"500|closed|reset|Remote"):
        read(server.url)
    broken[0] = False
    assert "trimtab_job_info" in read(server.url)[1]


@pytest.mark.parametrize("port", ["seven", "-1", "65536", "taken"])
def test_a_bad_port_is_one_line_before_anything_is_made(port, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "home"))
    with socket.create_server((HOST, 0)) as other:
        given = str(other.getsockname()[1]) if port == "taken" else port
        with pytest.raises(SystemExit) as left:
            cli.main(["train", "--data", str(tmp_path / "not-there.csv"), "--metrics-port", given])
    said = capsys.readouterr().err.strip().splitlines()
    assert left.value.code == 2 and said[-1].startswith("trimtab: --metrics-port: ")
    assert not (tmp_path / "home").exists()
