"""`History` in MLflow: a run per job, found by our run id, written so that writing again changes nothing.

A request that timed out may have been carried out, so nothing here counts on an answer: a run is looked for before it
is made, points carry times and steps that are the same on a retry, and what replaces is sent whole. The record that
is read back is an artifact in our own format; tags only find it. MLflow is imported when the store is first used, and a
question about a SQLite file that does not exist yet is answered without it.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from trimtab.core.clock import Clock, SystemClock
from trimtab.core.domain.records import JobRecord
from trimtab.core.errors import BadInput, TrimtabError
from trimtab.core.history.base import HistoryAway
from trimtab.core.history.mlflow import rows
from trimtab.core.history.mlflow.asking import equalities, equals, first_line, half_made, whole_number
from trimtab.core.history.mlflow.model import describe_model
from trimtab.core.history.mlflow.opening import (
    experiment_name,
    open_client,
    place_of_store,
    sign_of_life,
    without_password,
)
from trimtab.core.history.outline import Outlines, decode_outline, outline
from trimtab.core.history.record_file import FILE, decode_record, encode_record
from trimtab.core.history.sieve import sieve

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

log = logging.getLogger(__name__)

MODEL = "model"
_MOST_POINTS = 900  # per request; servers refuse more than 1000
_PAGE = 50
_MOST_UNREAD = 100  # what somebody else keeps in the experiment is not read to its end


class MlflowHistory:
    """Past jobs as runs of one MLflow experiment ("trimtab", or MLFLOW_EXPERIMENT_NAME).

    Attributes:
        skipped: runs that the last `fetch` could not read: cut, of a newer version, made by somebody else.
    """

    def __init__(self, uri: str | None, home: Path, clock: Clock | None = None) -> None:
        """Opens nothing yet.

        Args:
            uri: of the tracking store; None: MLFLOW_TRACKING_URI, or `mlflow.db` in `home`.
            home: TRIMTAB_HOME.
            clock: the machine's by default.
        """
        self.place = place_of_store(uri, home)
        self.skipped = 0
        self._clock = clock if clock is not None else SystemClock()
        self._lock = threading.RLock()
        self._client: MlflowClient | None = None
        self._experiment = ""
        self._runs: dict[str, str] = {}
        self._sent: dict[tuple[str, str], str] = {}
        self._written = 0

    def record(self, job: JobRecord) -> tuple[str, ...]:
        """Keep `job`; see `History.record`."""
        kept, dropped = sieve(job)
        with self._lock, self._talking("was not written to") as client:
            run = self._find(client, kept.run_id) or self._make(client, kept)
            self._write_points(client, run, kept, len(dropped))
            self._write_texts(client, run.info.run_id, kept)
            self._write_tags(client, run.info.run_id, kept, dropped)
            self._write_state(client, run, kept)
        return dropped

    def fetch(self, tags: Mapping[str, str], limit: int) -> tuple[JobRecord, ...]:
        """The last written records that carry `tags`; see `History.fetch`."""
        if limit < 1:
            raise BadInput("limit", limit, "give a whole number of at least 1")
        self.skipped = 0
        if self._is_new():
            return ()
        found: list[JobRecord] = []
        with self._talking("was not read") as client:
            for run in self._search(client, " AND ".join(equalities(tags)), [f"tags.`{rows.WRITTEN}` DESC"]):
                if half_made(run):
                    continue
                job = self._read(client, run)
                if job is None:
                    self.skipped += 1
                elif tags.items() <= job.tags.items():
                    found.append(job)
                if len(found) == limit or self.skipped == _MOST_UNREAD:
                    break
        return tuple(found)

    def outlines(self, tags: Mapping[str, str], limit: int) -> Outlines:
        """Outlines of the records that carry `tags`; see `History.outlines`.

        They come with the search itself; a run without one (of an older version, cut) costs a download.
        """
        if limit < 1:
            raise BadInput("limit", limit, "give a whole number of at least 1")
        if self._is_new():
            return Outlines()
        found: list[JobRecord] = []
        unread = 0
        with self._talking("was not read") as client:
            for run in self._search(client, " AND ".join(equalities(tags)), []):  # MLflow's order: last started first
                if half_made(run):
                    continue
                job = self._outline(client, run)
                if job is None:
                    unread += 1
                elif tags.items() <= job.tags.items():
                    found.append(job)
                if len(found) == limit or unread == _MOST_UNREAD:
                    break
        return Outlines(tuple(found), unread)

    def get(self, run_id: str) -> JobRecord | None:
        """The record of `run_id`; see `History.get`."""
        if self._is_new():
            return None
        with self._talking("was not read") as client:
            run = self._find(client, run_id)
            return self._read(client, run) if run is not None else None

    def link(self, run_id: str) -> str:
        """The run's page on the server; see `History.link`."""
        if not self.place.server:
            return ""
        with self._talking("was not read") as client:
            run = self._run_id(client, run_id)
            return f"{self._pages()}/{self._experiment_id(client)}/runs/{run}" if run else ""

    def experiment_link(self, server: str = "") -> str:
        """The page of all runs on `server`, by default on the store's own; the server's first page without any."""
        pages = self._pages(server)
        if self._is_new():
            return pages
        with self._talking("was not read") as client:
            experiment = self._experiment_id(client)
        return f"{pages}/{experiment}/runs" if experiment else pages

    def prepare(self) -> None:
        """Make the store and the experiment where they are not there yet; see `History.prepare`."""
        with self._lock, self._talking("cannot be used") as client:
            if not self._experiment_id(client):
                self._make_experiment(client)

    def attach(self, run_id: str, artifacts: Mapping[str, Path]) -> None:
        """Keep files beside the run; see `History.attach`."""
        for name, path in artifacts.items():
            if not path.exists():
                raise BadInput(name, str(path), "there is no such file or directory")
        with self._lock, self._talking("was not written to") as client:
            run = self._known(client, run_id)
            for name, path in artifacts.items():
                _attach(client, run, PurePosixPath(name), path)

    def log_model(self, run_id: str, directory: Path, signature: Mapping[str, object]) -> str:
        """Keep an exported model as an MLflow model beside the run; see `History.log_model`.

        Returns:
            An address for `mlflow.keras.load_model` and `mlflow.pyfunc.load_model`.
        """
        with self._lock, self._talking("was not written to") as client:
            run = self._known(client, run_id)
            with tempfile.TemporaryDirectory(prefix="trimtab-model-") as folder:
                describe_model(Path(folder), directory, signature, run, MODEL)
                client.log_artifacts(run, folder, artifact_path=MODEL)
        return f"runs:/{run}/{MODEL}"

    def _write_points(self, client: MlflowClient, run: Run, job: JobRecord, dropped: int) -> None:
        after = whole_number(run.data.tags.get(rows.LAST_STEP), -1)
        chunk: list[rows.Point] = []
        for sample in rows.points(job, after):
            if len(chunk) + len(sample) > _MOST_POINTS:
                _send(client, run.info.run_id, chunk, chunk[-1].step)
                chunk = []
            chunk += sample
        if chunk:
            _send(client, run.info.run_id, chunk, chunk[-1].step)
        stamp = rows.milliseconds(self._clock.wall())
        _send(client, run.info.run_id, rows.outcome(job, run.data.metrics, dropped, stamp), None)

    def _write_texts(self, client: MlflowClient, run: str, job: JobRecord) -> None:
        client.log_text(run, encode_record(job).decode("utf-8"), FILE)
        for name, text in rows.tables(job).items():
            if self._sent.get((run, name)) != text:
                client.log_text(run, text, name)
                self._sent[run, name] = text

    def _write_tags(self, client: MlflowClient, run: str, job: JobRecord, dropped: tuple[str, ...]) -> None:
        from mlflow.entities import RunTag

        tables = [{"path": name, "type": "table"} for name in rows.tables(job)]
        self._written = max(self._written + 1, int(self._clock.wall() * 1e6))
        values = rows.tags(job, dropped) | {
            rows.WRITTEN: f"{self._written:020d}",
            "mlflow.note.content": rows.note(job),
            "mlflow.loggedArtifacts": rows.text(tables),
        }
        client.log_batch(run, tags=[RunTag(key, value) for key, value in values.items()])

    def _write_state(self, client: MlflowClient, run: Run, job: JobRecord) -> None:
        status = rows.STATUSES[job.state]
        if job.ended_at is not None and status != "RUNNING":
            client.set_terminated(run.info.run_id, status, end_time=rows.milliseconds(job.ended_at))
        elif run.info.status != status:
            client.update_run(run.info.run_id, status=status)

    def _make(self, client: MlflowClient, job: JobRecord) -> Run:
        experiment = self._experiment_id(client) or self._make_experiment(client)
        first = {
            rows.RUN_ID: job.run_id, rows.STATE: str(job.state),
            "mlflow.source.name": "trimtab", "mlflow.source.type": "JOB",
        }  # fmt: skip
        start = rows.milliseconds(job.started_at or self._clock.wall())
        run = client.create_run(experiment, start_time=start, tags=first, run_name=job.run_id)
        self._runs[job.run_id] = run.info.run_id
        return run

    def _make_experiment(self, client: MlflowClient) -> str:
        from mlflow.exceptions import MlflowException

        name, folder = experiment_name(), self.place.artifacts
        known = client.get_experiment_by_name(name)
        if known is not None:  # it was deleted, and its name can't be given to another one
            client.restore_experiment(known.experiment_id)
            return str(known.experiment_id)
        try:
            return str(client.create_experiment(name, artifact_location=str(folder) if folder is not None else None))
        except MlflowException:
            experiment = self._experiment_id(client)  # another process was faster
            if not experiment:
                raise
            return experiment

    def _experiment_id(self, client: MlflowClient) -> str:
        """The experiment's id, "" when there is none that is not deleted."""
        if not self._experiment:
            known = client.get_experiment_by_name(experiment_name())
            if known is not None and known.lifecycle_stage == "active":
                self._experiment = str(known.experiment_id)
        return self._experiment

    def _find(self, client: MlflowClient, run_id: str) -> Run | None:
        found = self._run_id(client, run_id)
        return client.get_run(found) if found else None

    def _run_id(self, client: MlflowClient, run_id: str) -> str:
        """MLflow's id of our run, "" when there is none. Of two (nobody should make them) the first counts."""
        if run_id not in self._runs:
            wanted = equals(rows.RUN_ID, run_id)
            if wanted is None:
                return ""
            for run in self._search(client, wanted, ["attributes.start_time ASC"], most=1):
                self._runs[run_id] = run.info.run_id
        return self._runs.get(run_id, "")

    def _known(self, client: MlflowClient, run_id: str) -> str:
        found = self._run_id(client, run_id)
        if not found:
            raise BadInput("run_id", run_id, "there is no record of this run")
        return found

    def _search(self, client: MlflowClient, wanted: str, order: list[str], most: int = 0) -> Iterator[Run]:
        experiment = self._experiment_id(client)
        token: str | None = None
        while experiment:
            page = client.search_runs([experiment], wanted, max_results=most or _PAGE, order_by=order, page_token=token)
            yield from page
            token = page.token
            if most or not token:
                return

    def _read(self, client: MlflowClient, run: Run) -> JobRecord | None:
        """The record beside a run; None when it is not one of ours, was cut, or is of a newer format."""
        from mlflow.exceptions import MlflowException

        if rows.RUN_ID not in run.data.tags:
            return None
        try:
            with tempfile.TemporaryDirectory(prefix="trimtab-record-") as folder:
                path = Path(client.download_artifacts(run.info.run_id, FILE, folder))
                return decode_record(path.read_bytes(), run.info.run_id)
        except (TrimtabError, OSError, MlflowException) as error:
            log.info("run %s is passed over: %s", run.info.run_id, error)
            return None

    def _outline(self, client: MlflowClient, run: Run) -> JobRecord | None:
        """The outline of a run, from its tag or else from the record beside it; None when neither can be read."""
        packed = run.data.tags.get(rows.OUTLINE)
        try:
            if packed:
                return decode_outline(packed, run.info.run_id)
        except TrimtabError as error:
            log.info("run %s: %s", run.info.run_id, error)
        job = self._read(client, run)
        return outline(job) if job is not None else None

    def _pages(self, server: str = "") -> str:
        return f"{(server or without_password(self.place.uri)).rstrip('/')}/#/experiments"

    def _is_new(self) -> bool:
        return self.place.database is not None and not self.place.database.exists()

    @contextmanager
    def _talking(self, failed: str) -> Iterator[MlflowClient]:
        """The client; whatever it raises becomes one sentence, and is looked up anew the next time."""
        try:
            sign_of_life(self.place)
            with self._lock:
                if self._client is None:
                    self._client = open_client(self.place, self._clock)
            yield self._client
        except TrimtabError:
            raise
        except Exception as error:
            self._experiment = ""
            self._runs.clear()
            self._sent.clear()
            raise HistoryAway(f"MLflow at {self.place.shown} {failed} ({first_line(error)})") from error


def _send(client: MlflowClient, run: str, points: list[rows.Point], last_step: int | None) -> None:
    from mlflow.entities import Metric, RunTag

    if not points:
        return
    metrics = [Metric(point.key, point.value, point.timestamp, point.step) for point in points]
    marks = [RunTag(rows.LAST_STEP, str(last_step))] if last_step is not None else []
    for at in range(0, len(metrics), _MOST_POINTS):
        last = at + _MOST_POINTS >= len(metrics)
        client.log_batch(run, metrics=metrics[at : at + _MOST_POINTS], tags=marks if last else [])


def _attach(client: MlflowClient, run: str, name: PurePosixPath, path: Path) -> None:
    if path.is_dir():
        client.log_artifacts(run, str(path), artifact_path=str(name))
        return
    parent = str(name.parent) if str(name.parent) != "." else None
    if path.name == name.name:
        client.log_artifact(run, str(path), artifact_path=parent)
        return
    with tempfile.TemporaryDirectory(prefix="trimtab-artifact-") as folder:
        renamed = Path(folder) / name.name
        renamed.symlink_to(path.absolute())
        client.log_artifact(run, str(renamed), artifact_path=parent)
