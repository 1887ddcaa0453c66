"""The parameter-server process: `python -m trimtab.core.ps.main CONFIG.json`.

Exit codes: 0 told to stop, 3 orphaned (no controller for `orphan_grace_seconds`), 4 a start that can never succeed
(config, secret), 1 a crash. It holds no TensorFlow and serves a fraction of a second after its interpreter is up.
"""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path

from trimtab.core.clock import Clock, SystemClock
from trimtab.core.domain.model_spec import ModelSpec
from trimtab.core.errors import Refused, WireError
from trimtab.core.ps.server import ParameterServer
from trimtab.core.ps.table import RowTable
from trimtab.core.wire.control import serve_ps
from trimtab.core.wire.encode import read_json
from trimtab.core.wire.handshake import new_process_id
from trimtab.core.wire.messages import PsConfig
from trimtab.core.wire.secrets import read_secret
from trimtab.core.wire.sockets import DataServer

log = logging.getLogger(__name__)

STOPPED, ORPHANED, UNUSABLE = 0, 3, 4
_TICK_SECONDS = 0.1


def main(argv: list[str]) -> int:
    """Serve until told otherwise; returns the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        config = read_json(PsConfig, argv[0])
        model = read_json(ModelSpec, config.model)
        secret = read_secret(Path(config.secret_file))
    except (IndexError, OSError, WireError, Refused) as error:
        log.error("cannot start: %s", error)
        return UNUSABLE
    return serve(config, model, secret, SystemClock())


def serve(config: PsConfig, model: ModelSpec, secret: bytes, clock: Clock) -> int:
    """Run one parameter server from its configuration."""
    process = new_process_id()
    table = RowTable(model.tables, config.seed, config.memory_bytes)
    server = ParameterServer(config.job_id, process, config.term, model, table, config.batches, clock)
    signal.signal(signal.SIGTERM, lambda *_: server.stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the controller decides
    data = DataServer(config.data_address, secret, config.job_id, process, server.exchange.handle)
    server.address = data.address
    control = serve_ps(config.control_address, secret, server.sync)
    log.info("%s is process %s at %s", config.pod, process, data.address)
    try:
        while not clock.wait(server.stopping, _TICK_SECONDS):
            silence = server.seconds_without_contact()
            if silence > config.orphan_grace_seconds:
                log.warning("no controller for %.1f s: leaving", silence)
                return ORPHANED
        return STOPPED
    finally:
        control.close()
        data.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
