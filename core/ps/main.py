"""The parameter-server process: `python -m trimtab.core.ps.main CONFIG.json`.

Exit codes: 0 told to stop, 3 orphaned (no controller for `orphan_grace_seconds`), 4 a start that can never succeed
(config, secret), 1 a crash. It holds no TensorFlow and serves a fraction of a second after its interpreter is up.
"""

from __future__ import annotations

import ctypes
import logging
import signal
import sys
import threading
from pathlib import Path

import psutil

from trimtab.core.clock import Clock, SystemClock
from trimtab.core.domain.model_spec import ModelSpec
from trimtab.core.errors import Refused, WireError
from trimtab.core.ps.copying import SnapshotRule
from trimtab.core.ps.server import ParameterServer
from trimtab.core.ps.table import RowTable
from trimtab.core.wire.control import serve_ps
from trimtab.core.wire.encode import read_json
from trimtab.core.wire.handshake import new_process_id
from trimtab.core.wire.messages import PsConfig, check_protocol
from trimtab.core.wire.own_log import follow_log
from trimtab.core.wire.private import leave_orphaned
from trimtab.core.wire.secrets import read_secret
from trimtab.core.wire.sockets import DataConnection, DataServer

log = logging.getLogger(__name__)

STOPPED, ORPHANED, UNUSABLE = 0, 3, 4
_TICK_SECONDS = 0.1
SWITCH_SECONDS = 0.001  # a thread with a push or a hand-over waits no longer for one that writes a report
_M_ARENA_MAX = -8
MOVE_TIMEOUT_SECONDS = 20.0  # without a byte from another parameter server
MOST_TABLE_BYTES = 1 << 40  # the index reserves sixteen times as many addresses, and a process has some 2^47
ALONE_SECONDS = 1.0  # a controller that lives calls several times a second


def main(argv: list[str]) -> int:
    """Serve until told otherwise; returns the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        config = read_json(PsConfig, argv[0])
        check_protocol(config)
        model = read_json(ModelSpec, config.model)
        secret = read_secret(Path(config.secret_file))
    except (IndexError, OSError, WireError, Refused) as error:
        log.error("cannot start: %s", error)
        return UNUSABLE
    few_heaps()
    follow_log(config.log, SystemClock())
    sys.setswitchinterval(SWITCH_SECONDS)
    return serve(config, model, secret, SystemClock())


def few_heaps() -> None:
    """Have the C library keep two heaps instead of one for each thread that ever asked: they never give memory back."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc's
        mallopt(_M_ARENA_MAX, 2)


def serve(config: PsConfig, model: ModelSpec, secret: bytes, clock: Clock) -> int:
    """Run one parameter server from its configuration."""
    process = new_process_id()
    most = min(psutil.virtual_memory().total, MOST_TABLE_BYTES)  # the limit may rise; addresses cost nothing
    table = RowTable(model.tables, config.seed, config.memory_bytes, most)

    def dial(address: str, peer: str) -> DataConnection:
        return DataConnection(address, secret, config.job_id, process, MOVE_TIMEOUT_SECONDS, expected=peer)

    rule = SnapshotRule(
        config.snapshots, config.snapshot_seconds, config.snapshot_bytes, config.snapshot_deadline_seconds,
        config.snapshot_share,
    )
    server = ParameterServer(config.job_id, process, config.term, model, table, config.batches, clock, dial, rule)
    # Set from another thread: the handler may run inside a wait on this very event.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.stopping.set).start())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the controller decides
    data = DataServer(config.data_address, secret, config.job_id, process, server.handle)
    server.address = data.address
    control = serve_ps(config.control_address, secret, server.sync)
    server.refusals = lambda: data.refused + control.refused
    log.info("%s is process %s at %s", config.pod, process, data.address)
    orphaned = False
    try:
        while not clock.wait(server.stopping, _TICK_SECONDS):
            server.look()
            silence = server.seconds_without_contact()
            if silence > config.orphan_grace_seconds:
                log.warning("no controller for %.1f s: leaving", silence)
                orphaned = True
                break
        return ORPHANED if orphaned else STOPPED
    finally:
        alone = server.seconds_without_contact() > ALONE_SECONDS
        control.close()
        data.close()
        if alone:  # its controller is gone: whoever goes on with the job will look for the freshest rows
            server.leave_snapshot()
        if orphaned and config.controller_address:
            own = [config.control_address, data.address.partition(":")[2]]
            leave_orphaned(Path(config.controller_address), map(Path, own))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
