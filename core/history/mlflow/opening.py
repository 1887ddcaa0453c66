"""From an address to a client of MLflow, with what goes wrong there on the way.

Three things are seen to here. Telemetry is off before the import. A fresh SQLite store is made by one process while the
others wait, because a schema that several make at once is broken for all. And a server is asked for a sign of life
within seconds before MLflow's own client, with its minutes of retries, is let at it; that way no setting of the process
has to change, which in a notebook or an Airflow worker belongs to somebody else.
"""

from __future__ import annotations

import fcntl
import http.client
import logging
import os
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.core.clock import Clock
from trimtab.core.history.base import HistoryAway

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

DEFAULT_EXPERIMENT = "trimtab"
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
_SIGN_OF_LIFE_SECONDS = 3.0
_SCHEMA_SECONDS = 90.0  # how long another process may take to make the schema
_LOCK_PAUSE_SECONDS = 0.1
_SQLITE = "sqlite:///"
_LOUD = ("mlflow.store.db.utils", "alembic", "alembic.runtime.migration")


@dataclass(frozen=True)
class Place:
    """Where a store is.

    Attributes:
        uri: as MLflow takes it.
        database: the SQLite file, None for any other kind.
        server: whether it is a server that speaks HTTP.
    """

    uri: str
    database: Path | None
    server: bool

    @property
    def shown(self) -> str:
        """The address for a person: the file, or the URI without name and password."""
        return str(self.database) if self.database is not None else without_password(self.uri)

    @property
    def artifacts(self) -> Path | None:
        """Where artifacts of a SQLite store go: beside its file, wherever a command is started."""
        return self.database.parent / "mlartifacts" if self.database is not None else None


def place_of_store(uri: str | None, home: Path) -> Place:
    """`uri`, else MLFLOW_TRACKING_URI, else SQLite in `home`."""
    given = uri or os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}{home.absolute() / 'mlflow.db'}"
    if given.startswith(_SQLITE) and ":memory:" not in given:
        database = Path(given.removeprefix(_SQLITE).partition("?")[0]).absolute()
        return Place(given, database, False)
    return Place(given, None, given.startswith(("http://", "https://")))


def experiment_name() -> str:
    """MLFLOW_EXPERIMENT_NAME, or ours."""
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or DEFAULT_EXPERIMENT


def without_password(uri: str) -> str:
    """`uri` without what may be a secret in it."""
    parts = urllib.parse.urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit((parts.scheme, host, parts.path, "", "")) if parts.netloc else uri


def open_client(place: Place, clock: Clock) -> MlflowClient:
    """A client of the store, its schema made if it is a new SQLite file.

    Raises:
        HistoryAway: the file cannot be made, or another process takes too long to make it.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise HistoryAway(f"MLflow cannot be loaded ({error})") from error
    if place.database is None:
        return MlflowClient(tracking_uri=place.uri, registry_uri=place.uri)
    import_module("mlflow.store.tracking.sqlalchemy_store")  # takes seconds: not while others wait for the lock
    try:
        place.database.parent.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(place.database.with_name(place.database.name + ".lock"), clock), _quiet():
            client = MlflowClient(tracking_uri=place.uri, registry_uri=place.uri)
            client.get_experiment_by_name(DEFAULT_EXPERIMENT)  # the schema is made by the first question
            return client
    except OSError as error:
        raise HistoryAway(f"MLflow at {place.shown} cannot be opened ({error.strerror or error})") from error


def sign_of_life(place: Place) -> None:
    """Ask a server whether it is there; any answer will do.

    Raises:
        HistoryAway: no answer within a few seconds.
    """
    if not place.server:
        return
    address = f"{without_password(place.uri).rstrip('/')}/health"
    try:
        with urllib.request.urlopen(address, timeout=_SIGN_OF_LIFE_SECONDS):
            return
    except urllib.error.HTTPError as error:
        error.close()  # it answers; whether it lets us in is MLflow's own client's matter
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLError):
            return  # it answers; which certificates count is a setting of MLflow's client
        text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise HistoryAway(f"MLflow at {place.shown} does not answer ({text})") from error


@contextmanager
def _one_at_a_time(path: Path, clock: Clock) -> Iterator[None]:
    """Hold the lock file; whoever makes the schema holds it that long."""
    never = threading.Event()
    with path.open("a") as file:
        deadline = clock.now() + _SCHEMA_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if clock.now() > deadline:
                    raise HistoryAway(f"another process has held {path} for {_SCHEMA_SECONDS:g} s") from None
                clock.wait(never, _LOCK_PAUSE_SECONDS)
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """No lines about tables that are made between those of a job's display."""
    before = {name: logging.getLogger(name).level for name in _LOUD}
    for name in _LOUD:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
