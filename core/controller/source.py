"""What `--init-from` names: a run or a checkpoint whose rows a new job starts with.

A source is looked for and compared with the new model before anything is started. What has to be equal is what gives
the stored floats their meaning: tables, widths, update rules, the order of the dense parameters. Numbers that only
steer training (learning rate, epsilon) may differ. A checkpoint lies beside a description of its model where trimtab
wrote one; without it the copies themselves are asked.
"""

from __future__ import annotations

import difflib
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.core.controller.store import FileStore
from trimtab.core.data.columns import CategoricalColumn, Columns, DenseColumn, columns_from_dict
from trimtab.core.domain.model_spec import EMBEDDING, ModelSpec, TableSpec
from trimtab.core.errors import BadInput, CorruptCopy, WireError
from trimtab.core.ps import storage
from trimtab.core.ps.copies import read_copies
from trimtab.core.ps.hashing import vshards
from trimtab.core.ps.initial import write_initial
from trimtab.core.ps.manifest import Manifest, ManifestRef, read_manifest
from trimtab.core.wire.encode import from_json, to_json

FIELD = "--init-from"
MODEL_FILE, METADATA_FILE = "model.json", "metadata.json"
TRIES = 3  # a job that still trains replaces its checkpoints: what vanished while it was read is looked for again
_MANIFEST = re.compile(r"manifest-[0-9a-f]{32}\.json")
_NO_CHECKPOINT = "that job has no checkpoint yet; let it train (or resume it) until it has one, or name another run"
_ASKED = 8  # copies that are asked what tables they hold, where nothing else tells


@dataclass(frozen=True)
class Source:
    """A checkpoint to start from.

    Attributes:
        text: as it was asked for. home: where runs were looked for.
        path: path or URL of the manifest.
        manifest: of the run `run_id`.
        model: whose tables the copies hold; None: not known.
        metadata: path or URL of the page of the data that it was trained on (columns, means); None: not known.
    """

    text: str
    home: Path
    path: str
    manifest: Manifest
    model: ModelSpec | None
    metadata: str | None

    @property
    def run_id(self) -> str:
        """The run that trained it."""
        return self.manifest.job_id

    @property
    def batches(self) -> int:
        """Batches that are in every vshard."""
        return len(self.manifest.applied())

    @property
    def columns(self) -> Columns | None:
        """Roles of the columns that it was trained on; None: not known."""
        page = self._page()
        try:
            return columns_from_dict(page["columns"]) if "columns" in page else None
        except BadInput:
            return None

    def page_of(self, metadata: bytes) -> bytes:
        """The page of the new job's data, with the source's means and deviations for the columns of its name.

        A standardised column has to be scaled as the rows that trained the weights were, whatever today's mean is.
        """
        page = json.loads(metadata)
        theirs = self._page().get("standard", {})
        page["standard"] = {
            name: [shift, *theirs.get(name, (shift, mean, deviation))[1:]]
            for name, (shift, mean, deviation) in page.get("standard", {}).items()
        }
        return json.dumps(page, indent=1).encode()

    def _page(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            found = json.loads(storage.read_bytes(self.metadata)) if self.metadata is not None else {}
            return found if isinstance(found, dict) else {}
        return {}


def find_source(text: str, home: Path) -> Source:
    """The checkpoint that `text` names.

    Args:
        text: a run id under `home`/jobs or a unique beginning of one; the directory of a job, also of one that runs;
            a manifest's path or URL; a directory of manifests (path or URL), of which the one with most batches counts.
        home: TRIMTAB_HOME.

    Raises:
        BadInput: there is none, or it cannot be read.
    """
    jobs = home / "jobs"
    if storage.is_local(text):
        if text and "/" not in text and (jobs / text).is_dir():
            return _of_job(text, home, jobs / text)
        place = Path(storage.absolute(text))
        if (place / "spec.json").exists():
            return _of_job(text, home, place)
        if place.is_file():
            return _of_manifest(text, home, str(place))
        if place.is_dir():
            return _of_directory(text, home, str(place))
        return _of_job(text, home, jobs / _run_called(text, jobs))
    if storage.name_of(text).endswith(".json"):
        return _of_manifest(text, home, text)
    return _of_directory(text, home, text)


def check_source(source: Source, model: ModelSpec, columns: Columns | None = None) -> None:
    """Whether a job of this model, trained on these columns, can start with the source's rows.

    Raises:
        BadInput: it cannot; names the first column or table that differs, and how.
    """
    if columns is not None:
        _check_columns(source, columns)
    if source.manifest.fingerprint == model.fingerprint:
        return
    if source.model is None:
        _check_copies(source, model)
        return
    theirs, ours = source.model.tables, model.tables
    for old, new in zip(theirs, ours, strict=False):
        if old.name != new.name:
            _refuse(source, f"has table '{old.name}' where this model has '{new.name}'")
        _compare(source, old, new)
    if len(theirs) != len(ours):
        here, there = {table.name for table in ours}, {table.name for table in theirs}
        _refuse(source, f"has not the same tables as this model: {', '.join(sorted(here ^ there))}")
    for name, old_value, new_value in (
        ("trained floats outside embeddings", source.model.dense_parameters, model.dense_parameters),
        ("another layout", source.model.layout, model.layout),
    ):
        if old_value != new_value and "" not in (old_value, new_value):  # models described before layouts were kept
            how = f"{old_value} {name}, this model {new_value}" if isinstance(old_value, int) else f"{name} of them"
            _refuse(source, f"has the dense parameters of another model: {how}")


def begin(
    directory: str, job_id: str, model: ModelSpec, source: Source | None, metadata: Path | None = None
) -> tuple[ManifestRef, Source | None]:
    """Write a new job's first manifest, and beside it what describes the checkpoint.

    Args:
        directory: path or URL for the job's copies and manifests; made.
        job_id, model: of the new job.
        source: checked; None: the rows are new.
        metadata: the page of the job's data, kept with the checkpoint.

    Returns:
        The first manifest, and the source as its rows were read: of a job that still trains it may be a newer one.

    Raises:
        BadInput: the source is gone, or a copy of it is damaged. OSError: the store refused.
    """
    storage.make_directory(directory)
    _write_once(storage.join(directory, MODEL_FILE), to_json(model))
    if metadata is not None:
        _write_once(storage.join(directory, METADATA_FILE), metadata.read_bytes())
    if source is None:
        return write_initial(directory, job_id, model), None
    for _ in range(TRIES - 1):
        with suppress(CorruptCopy):
            return write_initial(directory, job_id, model, source.manifest), source
        source = find_source(source.text, source.home)
    try:
        return write_initial(directory, job_id, model, source.manifest), source
    except CorruptCopy as error:
        remedy = f"its rows cannot be read ({_one_line(error)}); name another checkpoint"
        raise BadInput(FIELD, source.text, remedy) from error


# ---- finding


def _of_job(text: str, home: Path, directory: Path) -> Source:
    path = ""
    for _ in range(TRIES):
        try:
            document = FileStore(directory / "state.json").read()
        except (OSError, WireError) as error:
            raise BadInput(FIELD, text, f"the state of that job cannot be read ({_one_line(error)})") from None
        if document is None:
            raise BadInput(FIELD, text, _NO_CHECKPOINT)
        path = document.manifest.path
        beside = directory / "checkpoints" / storage.name_of(path)  # of a job that was moved
        for each in (path, str(beside)):
            with suppress(CorruptCopy):
                manifest = read_manifest(each)
                if document.spec.init_from is None and not any(one.applied for one in manifest.sets):
                    raise BadInput(FIELD, text, _NO_CHECKPOINT)  # its rows are those that any new job begins with
                return _source(text, home, each, manifest, (str(directory),))
    raise BadInput(FIELD, text, f"the checkpoint of that job cannot be read ({path}); name another run")


def _of_manifest(text: str, home: Path, path: str) -> Source:
    try:
        manifest = read_manifest(path)
    except CorruptCopy as error:
        raise BadInput(FIELD, text, f"{_one_line(error)}; name a checkpoint that is whole") from None
    return _source(text, home, path, manifest)


def _of_directory(text: str, home: Path, directory: str) -> Source:
    best: tuple[int, str, Manifest] | None = None
    why = ""
    try:
        names = storage.list_names(directory)
    except OSError as error:
        raise BadInput(FIELD, text, f"cannot be read ({_one_line(error)})") from None
    for name in filter(_MANIFEST.fullmatch, names):
        path = storage.join(directory, name)
        try:
            manifest = read_manifest(path)
        except CorruptCopy as error:
            why = f" ({_one_line(error)})"
            continue
        held = sum(len(manifest.applied_of(vshard)) for vshard in range(manifest.vshards))
        if best is None or held > best[0]:
            best = held, path, manifest
    if best is None:
        runs = [name for name in names if "." not in name]
        hint = f"; did you mean {storage.join(directory, runs[-1])}?" if runs else ""
        remedy = f"holds no checkpoint{why}{hint} Give a run's id or directory, or a directory of manifests"
        raise BadInput(FIELD, text, remedy if hint else remedy.replace(" Give", "; give"))
    return _source(text, home, best[1], best[2])


def _run_called(text: str, jobs: Path) -> str:
    # Only those that have begun: the job that asks has claimed a directory already, and must not stand in its own way.
    known = sorted((path.parent.name for path in jobs.glob("*/state.json")), reverse=True)
    found = [name for name in known if name.startswith(text)]
    if len(found) == 1:
        return found[0]
    if found:
        raise BadInput(FIELD, text, f"is the beginning of {len(found)} runs; give more of it: {', '.join(found[:3])}")
    near = difflib.get_close_matches(text, known, n=3, cutoff=0.5) or known[:3]
    hint = f"runs are {', '.join(near)}" if near else f"there is no run in {jobs}"
    raise BadInput(FIELD, text, f"no such run, job directory or checkpoint; {hint}")


def _source(text: str, home: Path, path: str, manifest: Manifest, near: tuple[str, ...] = ()) -> Source:
    """With what describes it: beside the job, beside the manifest, or (`checkpoints` in a job's directory) above."""
    folder = storage.parent(path)
    places = (*near, folder, *((storage.parent(folder),) if storage.is_local(folder) else ()))
    model, metadata = None, None
    for place in places:
        if model is None:
            with suppress(OSError, WireError):
                found = from_json(ModelSpec, storage.read_bytes(storage.join(place, MODEL_FILE)))
                model = found if found.fingerprint == manifest.fingerprint else None
        if metadata is None:
            with suppress(OSError):
                page = storage.join(place, METADATA_FILE)
                metadata = page if storage.exists(page) else None
    return Source(text, home, path, manifest, model, metadata)


# ---- comparing


def _check_columns(source: Source, ours: Columns) -> None:
    """A column of one name has to be read as it was: else the same value is another key or another number."""
    theirs = source.columns
    if theirs is None:
        return
    old = {column.name: column for column in _features(theirs)}
    for column in _features(ours):
        if column.name in old and old[column.name] != column:
            _refuse(source, f"has read column '{column.name}' as {_words(old[column.name])}, not {_words(column)}")


def _features(columns: Columns) -> tuple[DenseColumn | CategoricalColumn, ...]:
    return (*columns.dense, *columns.categorical)


def _words(column: DenseColumn | CategoricalColumn) -> str:
    if isinstance(column, DenseColumn):
        return f"a number ({column.transform})"
    buckets = f", {column.buckets} buckets" if column.buckets is not None else ""
    length = f", {column.length} ids" if column.length > 1 else ""
    return f"ids ({column.values}{buckets}{length})"


def _compare(source: Source, old: TableSpec, new: TableSpec) -> None:
    for what, there, here in (
        ("kind", old.kind, new.kind),
        ("width", old.dim, new.dim),
        ("number of blocks", old.rows, new.rows),
        ("optimizer", old.optimizer.kind, new.optimizer.kind),
    ):
        if there != here:
            _refuse(source, f"has table '{old.name}' with {what} {there}, this model with {here}")


def _check_copies(source: Source, model: ModelSpec) -> None:
    """Widths stand in each copy; a name is right if its keys hash to where they lie."""
    entries = source.manifest.entries[:_ASKED]
    try:
        for copy in read_copies(entries, model.tables):
            for table, keys in zip(model.tables, copy.content.keys, strict=True):
                if np.any(vshards(table.name, keys) != copy.vshard):
                    _refuse(source, f"has another table than '{table.name}' in its place")
                if table.kind != EMBEDDING and len(keys) and int(keys.max()) >= table.rows:
                    _refuse(source, f"has more than {table.rows} blocks in table '{table.name}'")
    except CorruptCopy as error:
        _refuse(source, f"does not fit: {_one_line(error)}")


def _refuse(source: Source, how: str) -> None:
    remedy = f"the checkpoint of run {source.run_id} {how}; train the same model, or start without it"
    raise BadInput(FIELD, source.text, remedy)


def _write_once(url: str, data: bytes) -> None:
    with suppress(FileExistsError):
        storage.write_new(url, [data])


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
