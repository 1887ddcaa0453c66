"""The zygotes of workers and parameter servers as they are: imports done, nothing started, forks that work."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trimtab.core.clock import SystemClock
from trimtab.core.cluster.base import PodSpec
from trimtab.core.cluster.local import LocalCluster
from trimtab.core.cluster.shares import NoShares
from trimtab.core.ps.kernel_cache import warm

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pods are forked on Linux only")

# Runs the worker's zygote; what it forks tries TensorFlow out unless it is asked to be a worker.
PROBING = '''
import json, os, sys, time

def tasks():
    return sorted(open(f"/proc/self/task/{one}/comm").read().strip() for one in os.listdir("/proc/self/task"))

def main(arguments):
    if arguments[0] != "try":
        return real(arguments)
    began = time.monotonic()
    from tensorflow.python.eager import context
    from trimtab.core.training.runtime import configure_tensorflow
    found = {"before": tasks(), "ran": context.context()._context_handle is not None}
    tf = configure_tensorflow(int(arguments[1]))
    step = tf.function(lambda x: tf.reduce_sum(tf.matmul(x, x)))
    found["sum"] = float(step(tf.ones([64, 64])))
    found["threads"] = tf.config.threading.get_intra_op_parallelism_threads()
    found["seconds"] = time.monotonic() - began
    print(json.dumps(found), flush=True)
    return 0

from trimtab.core.training import worker, zygote
real, worker.main = worker.main, main
sys.exit(zygote.serve())
'''


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    warm()
    made = LocalCluster(tmp_path, SystemClock(), 0.5, shares=NoShares("none"))
    yield made
    made.close()


def ended(cluster: LocalCluster, seconds: float = 100.0) -> None:
    end, never = time.monotonic() + seconds, threading.Event()
    while not all(status.ended for status in cluster.observe()):
        assert time.monotonic() < end, cluster.observe()
        never.wait(0.01)


def test_workers_forked_from_tensorflows_zygote_run_a_function_each(cluster: LocalCluster, tmp_path: Path) -> None:
    def pod(name: str, *arguments: str) -> PodSpec:
        argv = (sys.executable, "-m", "trimtab.core.training.worker", *arguments)
        return PodSpec(name, "worker", argv, str(tmp_path / f"{name}.log"), 1.0, 1, (sys.executable, "-c", PROBING))

    pods = [pod("a", "try", "1"), pod("b", "try", "2"), pod("c", str(tmp_path / "missing.json"))]
    cluster.apply(pods)
    ended(cluster)
    codes = {status.name: status.exit_code for status in cluster.observe()}
    logs = {name: (tmp_path / f"{name}.log").read_text() for name in codes}
    assert codes == {"a": 0, "b": 0, "c": 4}, logs
    for name, threads in (("a", 1), ("b", 2)):
        found = json.loads(logs[name].splitlines()[-1])
        assert len(found["before"]) == 1  # of the zygote's threads none is needed here
        assert not found["ran"]  # else the first operation would hang
        assert found["sum"] == 64.0**3
        assert found["threads"] == threads  # still this process's own choice
    assert "cannot start" in logs["c"]  # the real worker's main


def test_parameter_servers_are_forked_with_their_kernels(cluster: LocalCluster, tmp_path: Path) -> None:
    argv = (sys.executable, "-m", "trimtab.core.ps.main", str(tmp_path / "missing.json"))
    zygote = (sys.executable, "-m", "trimtab.core.ps.zygote")
    cluster.apply([PodSpec("ps-0", "ps", argv, str(tmp_path / "ps-0.log"), 1.0, 1, zygote)])
    ended(cluster)
    (status,) = cluster.observe()
    assert status.exit_code == 4
    assert "cannot start" in (tmp_path / "ps-0.log").read_text()
    assert (tmp_path / "zygote-ps.log").read_text() == ""


def test_a_parameter_server_runs_its_kernels_in_a_fork(cluster: LocalCluster, tmp_path: Path) -> None:
    zygote = (
        "import sys; from trimtab.core.ps import zygote; from trimtab.core.wire.forks import serve_forks\n"
        "sys.exit(serve_forks(lambda arguments: exec(arguments[0], {})))"
    )
    program = (
        "import os, sys\n"
        "assert 'trimtab.core.ps.kernels' in sys.modules and 'tensorflow' not in sys.modules\n"
        "import numpy as np; from trimtab.core.ps import kernels\n"
        "keys, vshards = np.arange(1000, dtype=np.int64), np.zeros(1000, np.uint16)\n"
        "kernels.vshards_of(keys, np.array([1000]), np.array([7], np.uint64), vshards)\n"
        "print(len(os.listdir('/proc/self/task')), 'thread', len(set(vshards.tolist())) > 300)"
    )
    argv = (sys.executable, "-m", "trimtab.core.ps.main", program)
    log = tmp_path / "ps-0.log"
    cluster.apply([PodSpec("ps-0", "ps", argv, str(log), 1.0, 1, (sys.executable, "-c", zygote))])
    ended(cluster)
    assert log.read_text() == "1 thread True\n"
