"""MLflow's own pages over the store, served as long as somebody looks at them.

`mlflow server` with its defaults starts eight helpers that outlive it and takes twice the memory; one server process
without jobs is what a person's machine needs. It runs in a group of its own, so that whatever it started ends with it,
and writes to a file, because its log would bury the one line that matters: the address.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from trimtab.core.clock import Clock
from trimtab.core.errors import BadInput, TrimtabError
from trimtab.core.history.mlflow.opening import QUIET, Place
from trimtab.core.history.mlflow.store import MlflowHistory

_PR_SET_PDEATHSIG = 1
LOG = "mlflow_server.log"  # under TRIMTAB_HOME
_START_SECONDS = 180.0  # 20 s on two idle cores
_LOOK_SECONDS = 0.2
_ANSWER_SECONDS = 5.0
_END_SECONDS = 10.0
_ANYWHERE = ("0.0.0.0", "::")


def serve_pages(
    history: MlflowHistory, home: Path, host: str, port: int, clock: Clock, stop: threading.Event,
    ready: Callable[[str], None],
) -> None:  # fmt: skip
    """Serve the store's pages at `host`:`port` until `stop` is set, then end every process of it.

    Args:
        history: of a store that is no server itself.
        home: TRIMTAB_HOME, where the server's log goes.
        host: name or address to listen at. port: free.
        clock: measures waits.
        stop: set it to end the server.
        ready: called once with the address of the experiment's page, as soon as it can be opened.

    Raises:
        BadInput: the port is taken. TrimtabError: the server did not start, or ended by itself.
        HistoryAway: the store cannot be opened.
    """
    if not 1 <= port <= 65535:
        raise BadInput("--port", port, "give a port from 1 to 65535")
    own = "127.0.0.1" if host in _ANYWHERE else host
    if _answers(own, port):
        raise BadInput("--port", port, f"another program answers at {own}:{port}; give a free port")
    history.prepare()
    log = home / LOG
    home.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            _command(history.place, host, port), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True, env=_environment(), preexec_fn=_end_with_parent,
        )  # fmt: skip
    try:
        _wait_until_ready(process, own, port, clock, stop, log)
        if not stop.is_set():
            ready(history.experiment_link(f"http://{own}:{port}"))
        while not stop.is_set() and process.poll() is None:
            clock.wait(stop, _LOOK_SECONDS)
        if not stop.is_set():
            raise TrimtabError(f"MLflow's server ended by itself (exit code {process.returncode}); see {log}")
    finally:
        _end(process)


def _end_with_parent() -> None:
    """Linux: the server gets SIGTERM when this command is gone, however it went."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _command(place: Place, host: str, port: int) -> list[str]:
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", place.uri]
    if place.artifacts is not None:
        command += ["--artifacts-destination", str(place.artifacts)]
    return [*command, "--host", host, "--port", str(port), "--workers", "1"]


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    return {**kept, **QUIET, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


def _wait_until_ready(
    process: subprocess.Popen[bytes], host: str, port: int, clock: Clock, stop: threading.Event, log: Path
) -> None:
    deadline = clock.now() + _START_SECONDS
    while not stop.is_set():
        if process.poll() is not None:
            raise TrimtabError(f"MLflow's server did not start (exit code {process.returncode}); see {log}")
        if _answers(host, port):
            return
        if clock.now() > deadline:
            raise TrimtabError(f"MLflow's server did not answer within {_START_SECONDS:g} s; see {log}")
        clock.wait(stop, _LOOK_SECONDS)


def _answers(host: str, port: int) -> bool:
    """Whether something speaks at the port; a program that says nothing sensible counts."""
    connection = http.client.HTTPConnection(host, port, timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", "/health")
        connection.getresponse().read()
    except (ConnectionRefusedError, ConnectionResetError):
        return False
    except (OSError, http.client.HTTPException):
        return True
    finally:
        connection.close()
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server's whole group: politely, then at once."""
    for number, seconds in ((signal.SIGTERM, _END_SECONDS), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
