"""A SQLite store with its schema made once, and one MLflow server on loopback for the whole session."""

import http.client
import shutil
import sys
import threading
from pathlib import Path

import pytest

from trimtab.core.clock import SystemClock
from trimtab.core.history.mlflow.server import serve_pages
from trimtab.core.history.mlflow.store import MlflowHistory

sys.path.insert(0, str(Path(__file__).parent))


def free_port():
    """A port that nobody holds right now."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(autouse=True)
def _no_store_of_the_environment(monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def made_store(tmp_path_factory):
    """A SQLite file with MLflow's schema and nothing in it; making one takes seconds."""
    from trimtab.core.history.mlflow.opening import open_client, place_of_store

    home = tmp_path_factory.mktemp("made")
    place = place_of_store(f"sqlite:///{home / 'mlflow.db'}", home)
    open_client(place, SystemClock())
    return place.database


@pytest.fixture
def home(tmp_path, made_store):
    """A TRIMTAB_HOME with a store of its own that is empty."""
    shutil.copy(made_store, tmp_path / "mlflow.db")
    return tmp_path


@pytest.fixture
def history(home):
    return MlflowHistory(None, home)


@pytest.fixture(scope="session")
def server(tmp_path_factory, made_store):
    """The address of an MLflow server on loopback."""
    home = tmp_path_factory.mktemp("server")
    shutil.copy(made_store, home / "mlflow.db")
    port, stop, ready, failed = free_port(), threading.Event(), threading.Event(), []
    store = MlflowHistory(f"sqlite:///{home / 'mlflow.db'}", home)

    def serve():
        try:
            serve_pages(store, home, "127.0.0.1", port, SystemClock(), stop, lambda link: ready.set())
        except Exception as error:  # noqa: BLE001 - the fixture tells it
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(200)
    assert not failed, failed
    yield f"http://127.0.0.1:{port}"
    stop.set()
    thread.join(30)
    assert not thread.is_alive()
    with pytest.raises(OSError):
        http.client.HTTPConnection("127.0.0.1", port, timeout=2).connect()
    assert not any("mlflow" in line and str(port) in line for line in command_lines())


def command_lines():
    """The command lines of all processes."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return lines
