"""The process that the fuzzing of the wire attacks: a real parameter server and a real controller's control plane.

Everything in it is the product's own; only the ends are a test's: a job that stands still in the middle of training,
and a line protocol on standard input, so that the attacker can ask how the process feels. Everything that its tables
may take is applied already, so that no frame, however well it is made, should change a row.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parent.parent / "controller"))

from controller_world import World, plan_of, settings
from fuzzing import BATCHES, EVERY, JOB, PROCESS, SECRET, SINCE, TABLES

from trimtab.core.clock import SystemClock
from trimtab.core.controller.actions import AnswerWorker, RefuseWorker
from trimtab.core.controller.commanding import Commands
from trimtab.core.controller.inputs import StopRequested, WorkerSaid
from trimtab.core.controller.state import Phase, State
from trimtab.core.controller.status import About, StatusBoard
from trimtab.core.controller.step import step
from trimtab.core.domain.intervals import EMPTY, IntervalSet
from trimtab.core.domain.model_spec import VSHARDS, ModelSpec
from trimtab.core.errors import Refused, TrimtabError
from trimtab.core.ps.server import ParameterServer
from trimtab.core.ps.table import RowTable
from trimtab.core.ps.tokens import TokenStore
from trimtab.core.wire import sockets
from trimtab.core.wire.commands import JobAnswer, JobCommand
from trimtab.core.wire.control import serve_controller, serve_ps
from trimtab.core.wire.messages import WorkerOrders, WorkerSync
from trimtab.core.wire.sockets import DataServer


class Faults(logging.Handler):
    """Keeps whatever was logged with a traceback: an exception that nobody had foreseen."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.found.append(f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"[:300])


class Controller:
    """Answers workers' calls by the real `step`, from a job in the middle of training."""

    def __init__(self, faults: Faults) -> None:
        world = World(settings(batches=BATCHES**4, evaluation_batches=4, metrics=True), plan_of(1, 1))
        while world.state.phase is not Phase.TRAINING:
            world.round()
        self.worker = next(iter(world.workers.values()))
        self._first = self._state = world.state
        self._now = world.clock.now
        self._lock = threading.Lock()
        self._faults = faults

    def answer(self, sync: WorkerSync) -> WorkerOrders:
        try:
            with self._lock:
                state = self._first if self._state.phase is Phase.OVER else self._state
                self._state, actions = step(state, [WorkerSaid(sync)], self._now())
        except Exception as error:
            self._faults.found.append(f"step: {type(error).__name__}: {error}"[:300])
            raise
        for action in actions:
            if isinstance(action, RefuseWorker):
                raise Refused(action.reason)
            if isinstance(action, AnswerWorker):
                return action.orders
        raise AssertionError("no answer")


    def ask(self, *wanted: Any) -> tuple[State, float, str]:
        """A person's command, carried out; whoever is attacked next finds the job as it was before a stop."""
        with self._lock:
            state = self._first if self._state.phase is Phase.OVER else self._state
            after, _ = step(state, wanted, self._now())
            if not any(isinstance(one, StopRequested) for one in wanted):
                self._state = after
            return after, self._now(), ""

    def command(self, request: JobCommand) -> JobAnswer:
        board = StatusBoard(About("fuzzed", "/nowhere", 1, 0.0), SystemClock().wall)
        try:
            return Commands(self.ask, board).answer(request)
        except TrimtabError:
            raise
        except Exception as error:
            self._faults.found.append(f"command: {type(error).__name__}: {error}"[:300])
            raise


def checked(server: ParameterServer, faults: Faults) -> Any:
    """`sync`, with what nobody had foreseen kept."""

    def sync(request: Any) -> Any:
        try:
            return server.sync(request)
        except TrimtabError:
            raise
        except Exception as error:
            faults.found.append(f"sync: {type(error).__name__}: {error}"[:300])
            raise

    return sync


def filled(table: RowTable) -> None:
    """Some rows in every table."""
    keys = np.concatenate([np.arange(300, dtype=np.int64)] * len(TABLES))
    table.bear(table.find(keys, np.full(len(TABLES), 300, np.uint32)))


def main(directory: str) -> None:
    """Serve, say where, and answer each line on standard input with a line of figures."""
    faults = Faults()
    logging.getLogger().addHandler(faults)
    sockets._LOGGED = 1 << 60
    table = RowTable(TABLES, 1, 64 << 20)
    filled(table)
    model = ModelSpec("test", TABLES, 0, "", "f")
    server = ParameterServer(JOB, PROCESS, 5, model, table, BATCHES, SystemClock())
    server.exchange._tokens = TokenStore(most_bytes=8 << 20)  # a bound that is reached before growth is measured
    with server.exchange.lock:
        server.exchange.sets.put(EVERY, IntervalSet.span(0, BATCHES), EMPTY)
        for vshard in range(VSHARDS):
            server._holdings.serve(vshard, SINCE)
    data = DataServer("tcp:127.0.0.1:0", SECRET, JOB, PROCESS, server.handle)
    server.address = data.address
    controller = Controller(faults)
    control = serve_ps(f"{directory}/ps.sock", SECRET, checked(server, faults))
    workers = serve_controller(f"{directory}/controller.sock", SECRET, controller.answer, controller.command)
    where = {"data": data.address, "pod": controller.worker.pod, "worker": controller.worker.process}
    sys.stdout.write(json.dumps(where) + "\n")
    sys.stdout.flush()
    me = psutil.Process()
    for _ in sys.stdin:
        with server.exchange.lock:
            sums = np.zeros(VSHARDS, np.uint64)
            for vshard in range(VSHARDS):
                table.add_sums(table.rows_in(vshard), sums)
            state = [
                sums.tolist(), table.row_count, hex(server.exchange.served),
                [[hex(one.members), one.applied.intervals, one.skipped.intervals]
                 for one in server.exchange.sets.classes()],
            ]  # fmt: skip
        told = {
            "rss": me.memory_info().rss, "threads": sum(t.name == "data" for t in threading.enumerate()),
            "descriptors": len(list(Path("/proc/self/fd").iterdir())), "table": state, "faults": faults.found,
            "refused": data.refused, "control_refused": control.refused, "workers_refused": workers.refused,
        }  # fmt: skip
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
