"""Thousands of broken, false, oversized and well-made but odd messages on both planes: refused, counted, survived.

The attacked process is `fuzz_target.py`, the attacks are `fuzzing.py`. TRIMTAB_FUZZ_SEED replays a seed,
TRIMTAB_FUZZ_ATTACKS says how many; what failed names both.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from fuzzing import (
    EVERY,
    HIGHEST_TERM,
    JOB,
    PROCESS,
    PS_SYNC,
    SECRET,
    SINCE,
    TABLES,
    Target,
    attack,
    call,
    dialled,
    padded,
)

from trimtab.core.wire import frames, sockets
from trimtab.core.wire.commands import JobCommand
from trimtab.core.wire.control import ControllerStub, JobStub, PsStub, Unreachable, serve_ps
from trimtab.core.wire.frames import RequestHeader
from trimtab.core.wire.handshake import new_process_id
from trimtab.core.wire.messages import PsReport, PsSync, WorkerSync
from trimtab.core.wire.sockets import DataConnection

HERE = Path(__file__).parent
MIB = 1 << 20
pause = threading.Event()


class Attacked:
    """The process under attack, and the ways to it."""

    def __init__(self, directory: str) -> None:
        with (Path(directory) / "log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "fuzz_target.py"), directory], text=True,
                env={**os.environ, "MALLOC_ARENA_MAX": "2"},  # else each of many heaps keeps its own fragments
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        where = self._line()
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", 64 * MIB)]
        self.target = Target(
            where["data"], directory, where["pod"], where["worker"],
            grpc.insecure_channel(f"unix:{directory}/ps.sock", options=options),
            grpc.insecure_channel(f"unix:{directory}/controller.sock", options=options),
        )  # fmt: skip

    def _line(self) -> dict:
        line = self.process.stdout.readline()
        assert line, f"the attacked process has ended: {self.process.wait()}"
        return json.loads(line)

    def figures(self) -> dict:
        """What it says about itself."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._line()

    def settled(self, before: dict) -> dict:
        """Its figures once all that was provoked has come to an end."""
        for _ in range(400):
            now = self.figures()
            if now["threads"] == before["threads"] and now["descriptors"] <= before["descriptors"]:
                return now
            pause.wait(0.01)
        pytest.fail(f"it never came to rest: {now['threads']} threads, {now['descriptors']} descriptors")

    def close(self) -> None:
        for channel in (self.target.ps, self.target.workers):
            channel.close()
        self.process.stdin.close()
        self.process.wait(30)


@pytest.fixture
def attacked() -> Iterator[Attacked]:
    with tempfile.TemporaryDirectory(prefix="tt") as directory:
        made = Attacked(directory)
        try:
            yield made
        finally:
            made.process.kill()
            made.close()


def rows_of(target: Target) -> bytes:
    """What a right client pulls."""
    counts = np.full(len(TABLES), 300, np.uint32)
    body = padded(counts.tobytes()) + np.concatenate([np.arange(300, dtype=np.int64)] * len(TABLES)).tobytes()
    line = DataConnection(target.data, SECRET, JOB, new_process_id(), 20.0, PROCESS)
    line.send(RequestHeader(frames.PULL, len(TABLES), body_bytes=len(body), pull_cover=EVERY), [body])
    reply = line.receive_header()
    assert (reply.pull_status, reply.pull_refused) == (frames.OK, 0)
    rows = line.discard(reply.body_bytes)
    line.close()
    return rows


def right_clients_are_served(target: Target) -> bytes:
    """A worker and a controller who do as they should are answered as ever; returns the pulled rows."""
    stub = PsStub(f"{target.directory}/ps.sock", SECRET)
    report = stub.sync(PsSync(JOB, HIGHEST_TERM, 1, PROCESS), 20.0)
    assert [(int(one.vshards, 16), one.since) for one in report.served] == [(EVERY, SINCE)]
    stub.close()
    workers = ControllerStub(f"{target.directory}/controller.sock", SECRET)
    assert workers.worker_sync(WorkerSync(JOB, 1, target.pod, target.worker), 20.0).term == 1
    workers.close()
    people = JobStub(f"{target.directory}/controller.sock", SECRET)
    assert people.command(JobCommand(JOB), 20.0).status["phase"] == "training"
    people.close()
    return rows_of(target)


def fuzz(attacked: Attacked, seed: int, attacks: int) -> None:
    target = attacked.target
    for channel in (target.ps, target.workers):  # a line that is open all the time counts as before
        call(channel, PS_SYNC, b"", ())
    rows, before = rows_of(target), attacked.figures()
    warm = None
    least = 0
    for number in range(attacks):
        where = f"attack {number} of seed {seed} (TRIMTAB_FUZZ_SEED={seed} TRIMTAB_FUZZ_ATTACKS={number + 1})"
        try:
            least += attack(seed, number, target)
        except Exception as error:
            code = attacked.process.poll()
            raise AssertionError(f"{where}: {type(error).__name__}: {error}; exit code {code}") from error
        if number % 50 == 49 or number == attacks - 1:
            figures = attacked.figures()
            assert figures["faults"] == before["faults"] == [], where
            assert figures["table"] == before["table"], where
        if number == attacks // 3:
            warm = attacked.figures()["rss"]
    after = attacked.settled(before)
    assert right_clients_are_served(target) == rows
    assert after["table"] == before["table"]
    assert after["refused"] - before["refused"] >= least > 0
    assert after["control_refused"] > attacks // 50 and after["workers_refused"] > attacks // 50
    assert after["rss"] - warm < 40 * MIB, f"{warm} bytes after a third, {after['rss']} at the end, seed {seed}"


def chosen(attacks: int) -> tuple[int, int]:
    """Seed and number of attacks: those of the environment, else a new seed, printed by pytest when it fails."""
    seed = int(os.environ.get("TRIMTAB_FUZZ_SEED") or random.SystemRandom().randrange(10**9))
    return seed, int(os.environ.get("TRIMTAB_FUZZ_ATTACKS") or attacks)


def test_a_few_hundred_attacks_always_the_same(attacked: Attacked) -> None:
    fuzz(attacked, 20261130, 600)


@pytest.mark.slow
def test_a_minute_of_attacks(attacked: Attacked) -> None:
    seed, attacks = chosen(5000)
    fuzz(attacked, seed, attacks)


def test_strangers_who_say_nothing_keep_nobody_out(attacked: Attacked) -> None:
    """Hundreds of open handshakes: right clients still come in, and the threads for them stay few."""
    before = attacked.figures()
    silent = [dialled(attacked.target) for _ in range(300)]
    try:
        for _ in range(3):
            rows_of(attacked.target)
        now = attacked.figures()
        assert now["threads"] <= 64 + 8
        assert now["refused"] - before["refused"] >= 300 - 64 - 8
    finally:
        for line in silent:
            line.close()
    attacked.settled(before)


def test_an_impostor_at_the_address_is_not_believed() -> None:
    """Who listens at the socket without the secret can answer a call, but not prove the answer."""
    with tempfile.TemporaryDirectory(prefix="tt") as directory:
        address = f"{directory}/ps.sock"
        server = serve_ps(address, SECRET, lambda request: PsReport("p", "", 0))
        good = PsStub(address, SECRET)
        assert good.sync(PsSync(JOB, 1, 1, ""), 20.0).process == "p"
        server.close()
        good.close()

        class Impostor(grpc.GenericRpcHandler):
            def service(self, details):
                answer = b'{"process": "q", "address": "", "sequence": 0}'
                return grpc.unary_unary_rpc_method_handler(lambda body, context: answer)

        false = grpc.server(ThreadPoolExecutor(1), handlers=(Impostor(),))
        false.add_insecure_port(f"unix:{address}")
        false.start()
        stub = PsStub(address, SECRET)
        try:
            with pytest.raises(Unreachable, match="cannot prove"):
                stub.sync(PsSync(JOB, 1, 1, ""), 20.0)
        finally:
            stub.close()
            false.stop(0).wait()


def test_a_peer_that_stops_in_the_middle_of_a_frame_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_STALL_SECONDS", 1)
    server = sockets.DataServer("tcp:127.0.0.1:0", SECRET, JOB, PROCESS, lambda *_: (frames.ReplyHeader(0, 0), []))
    try:
        line = DataConnection(server.address, SECRET, JOB, new_process_id(), 20.0)
        line._socket.sendall(RequestHeader(0, 1).pack()[:100])
        assert line._socket.recv(1) == b""
        assert server.refused == 1
        idle = DataConnection(server.address, SECRET, JOB, new_process_id(), 20.0)
        pause.wait(2.5)  # between two frames nobody is in a hurry
        idle.send(RequestHeader(0, 1), [])
        assert idle.receive_header().push_status == frames.NONE
    finally:
        server.close()
