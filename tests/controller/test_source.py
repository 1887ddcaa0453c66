"""What `--init-from` may name, how a wrong name is told, and which models may go on from which."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from trimtab.core.controller.document import Document
from trimtab.core.controller.source import begin, check_source, find_source
from trimtab.core.controller.store import FileStore
from trimtab.core.data.columns import columns_from_dict
from trimtab.core.domain.intervals import EMPTY, IntervalSet
from trimtab.core.domain.job import JobSpec
from trimtab.core.domain.model_spec import InitializerSpec, ModelSpec, OptimizerSpec, TableSpec
from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.errors import BadInput
from trimtab.core.ps.copies import VshardCopy, read_copies, write_copies
from trimtab.core.ps.hashing import vshards
from trimtab.core.ps.manifest import Manifest, read_manifest, write_manifest
from trimtab.core.ps.rows import VshardRows
from trimtab.core.wire.encode import to_json

sys.path.append(str(Path(__file__).parent.parent / "ps"))
from odd_stores import odd_store

SGD = OptimizerSpec("sgd")
TABLES = (
    TableSpec("user", 4, "embedding", 0, InitializerSpec("uniform", -0.05, 0.05), SGD),
    TableSpec("item", 4, "embedding", 0, InitializerSpec("zeros"), SGD),
    TableSpec("dense", 256, "dense", 3, InitializerSpec(), SGD),
)
MODEL = ModelSpec("test", TABLES, 700, "", "f1", (), "layout-1")
PLAN = Plan(RolePlan(1, 0.5, 2**28), RolePlan(1, 0.5, 2**28))
ROWS = 300


def content_of(vshard, tables=TABLES, value=1.0):
    keys, rows = [], []
    for table in tables:
        mine = np.arange(ROWS if table.kind == "embedding" else table.rows, dtype=np.int64)
        mine = mine[vshards(table.name, mine) == vshard]
        keys.append(mine)
        rows.append(np.full((len(mine), table.dim), value, np.float32))
    return VshardRows(tuple(keys), tuple(rows))


def checkpoint(place, batches=5, job="old-job", model=MODEL, name="c.ttc", tables=None, value=1.0):
    """Copies that hold so many batches in all vshards but one, which lacks the last of them."""
    tables = tables if tables is not None else model.tables
    copies = (
        VshardCopy(v, 3, IntervalSet.span(0, batches - (v == 7)) if batches else EMPTY, EMPTY,
                   content_of(v, tables, value))
        for v in range(512)
    )  # fmt: skip
    written = write_copies(f"{place}/{name}", copies, tables, 1)
    return write_manifest(place, Manifest(1, job, model.fingerprint, 512, written.entries, written.sets))


def job_in(directory, run_id="old-job", batches=5, model=MODEL, place=None):
    """A job's directory as a controller leaves it, its checkpoint there or at `place`."""
    (directory / "checkpoints").mkdir(parents=True)
    ref = checkpoint(place or directory / "checkpoints", batches, run_id, model)
    spec = JobSpec("rows.csv")
    (directory / "spec.json").write_bytes(to_json(spec))
    (directory / "model.json").write_bytes(to_json(model))
    (directory / "metadata.json").write_text("{}")
    FileStore(directory / "state.json").compare_and_swap(Document(run_id, spec, PLAN, ref), 0)
    return ref


@pytest.fixture
def home(tmp_path):
    (tmp_path / "home" / "jobs").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture
def refused(home):
    """Looks for a source and checks that it is refused in our words; returns them."""

    def look(text):
        with pytest.raises(BadInput) as raised:
            find_source(str(text), home)
        assert (raised.value.field, raised.value.value) == ("--init-from", str(text))
        assert "\n" not in str(raised.value)
        return str(raised.value)

    return look


def test_a_run_is_found_by_its_id_a_beginning_of_it_and_its_directory(home, tmp_path, monkeypatch):
    ref = job_in(home / "jobs" / "20260101-aaa", "20260101-aaa")
    job_in(home / "jobs" / "20260102-bbb", "20260102-bbb")
    monkeypatch.chdir(home / "jobs")
    for text in ("20260101-aaa", "20260101", str(home / "jobs" / "20260101-aaa"), "./20260101-aaa", ref.path):
        found = find_source(text, home)
        assert (found.run_id, found.path, found.model) == ("20260101-aaa", ref.path, MODEL), text
        assert found.metadata == str(home / "jobs" / "20260101-aaa" / "metadata.json")
        assert found.batches == 4, "what all vshards have"


def test_a_name_that_fits_no_run_or_several_is_refused(home, refused, tmp_path):
    assert "there is no run in" in refused("20260101")
    job_in(home / "jobs" / "20260101-aaa")
    job_in(home / "jobs" / "20260101-bbb")
    assert "is the beginning of 2 runs" in refused("2026")
    (home / "jobs" / "20260102-claimed").mkdir()
    (home / "jobs" / "20260102-claimed" / "spec.json").write_text("")
    assert "claimed" not in refused("none"), "the job that asks is no answer"
    assert "no such run" in refused("20260102")
    job_in(home / "jobs" / "20260102-ccc", "20260102-ccc")
    assert find_source("20260102", home).run_id == "20260102-ccc", "nor does it make a beginning mean two"
    assert "20260101-aaa" in refused("20260101-aab"), "a near name is offered"
    assert "no such run, job directory or checkpoint" in refused(tmp_path / "none")
    (tmp_path / "text.json").write_text("{}")
    assert "checksum is wrong" in refused(tmp_path / "text.json")
    assert "holds no checkpoint" in refused(tmp_path)


def test_a_run_without_a_checkpoint_or_with_a_damaged_state_is_refused(home, refused):
    (home / "jobs" / "new").mkdir()
    (home / "jobs" / "new" / "spec.json").write_text("")
    assert "no checkpoint yet" in refused("new")
    (home / "jobs" / "new" / "state.json").write_text("{")
    assert "cannot be read" in refused("new")
    job_in(home / "jobs" / "young", batches=0)
    assert "no checkpoint yet" in refused("young"), "its rows are those that any new job begins with"
    ref = job_in(home / "jobs" / "gone")
    Path(ref.path).unlink()
    assert ref.path in refused("gone")


def test_a_job_that_was_started_from_another_one_has_rows_before_its_first_checkpoint(home):
    job_in(home / "jobs" / "second", batches=0)
    store = FileStore(home / "jobs" / "second" / "state.json")
    present = store.read()
    store.compare_and_swap(
        dataclasses.replace(present, spec=dataclasses.replace(present.spec, init_from="first")), present.version
    )
    assert find_source("second", home).batches == 0


def test_a_job_that_was_moved_is_found_with_all_that_describes_it(home, tmp_path):
    job_in(tmp_path / "job")
    (tmp_path / "job").rename(tmp_path / "moved")
    found = find_source(str(tmp_path / "moved"), home)
    assert found.model == MODEL
    assert len(list(read_copies(found.manifest.entries, TABLES))) == 512


def test_of_a_directory_of_manifests_the_one_with_most_batches_counts(home, tmp_path, monkeypatch, refused):
    store = odd_store(tmp_path, monkeypatch)
    for place, url in ((tmp_path / "here", str(tmp_path / "here")), (store.folder / "run", f"{store.url}/run")):
        place.mkdir()
        most = [checkpoint(place, batches, name=f"{batches}.ttc") for batches in (3, 9, 6)][1]
        (place / "manifest-stranger.json").write_text("{}")
        damaged = checkpoint(place, 30, name="30.ttc").path
        Path(damaged).write_bytes(Path(damaged).read_bytes()[:-1])
        found = find_source(url, home)
        assert found.path == f"{url}/{most.path.rsplit('/', 1)[1]}"
        assert found.manifest == dataclasses.replace(
            read_manifest(most),
            entries=tuple(dataclasses.replace(e, file=f"{url}/9.ttc") for e in found.manifest.entries),
        )
        assert find_source(found.path, home).manifest == found.manifest
        assert found.model is None and found.metadata is None
        (place / "model.json").write_bytes(to_json(MODEL))
        (place / "metadata.json").write_text("{}")
        found = find_source(url, home)
        assert (found.model, found.metadata) == (MODEL, f"{url}/metadata.json")
        (place / "model.json").write_bytes(to_json(dataclasses.replace(MODEL, fingerprint="another")))
        assert find_source(url, home).model is None, "a description of another model describes nothing"
    assert f"did you mean {store.url}/run? Give" in refused(store.url)
    assert "holds no checkpoint" in refused(f"{store.url}/none")
    assert "cannot be read" in refused(f"{store.url}/run/manifest-none.json")
    store.faults(strange=True)
    assert "moody" in refused(found.path)
    assert "not known" in refused("nosuch://bucket/run")


def test_a_checkpoint_elsewhere_is_found_through_its_job(home, tmp_path, monkeypatch):
    store = odd_store(tmp_path, monkeypatch)
    ref = job_in(home / "jobs" / "away", place=store.url)
    found = find_source("away", home)
    assert found.path == ref.path and found.path.startswith("odd://")
    assert found.model == MODEL


def changed(number, **fields):
    tables = list(TABLES)
    tables[number] = dataclasses.replace(tables[number], **fields)
    return dataclasses.replace(MODEL, tables=tuple(tables), fingerprint="f2")


REFUSED = [
    (changed(1, dim=8), "table 'item' with width 4, this model with 8"),
    (changed(0, optimizer=OptimizerSpec("adam")), "table 'user' with optimizer sgd, this model with adam"),
    (changed(2, rows=4), "table 'dense' with number of blocks 3, this model with 4"),
    (changed(1, kind="state"), "table 'item' with kind embedding, this model with state"),
    (changed(0, name="who"), "has table 'user' where this model has 'who'"),
    (dataclasses.replace(MODEL, tables=TABLES[:2], fingerprint="f2"), "not the same tables as this model: dense"),
    (dataclasses.replace(MODEL, tables=(TABLES[1], TABLES[0], TABLES[2]), fingerprint="f2"), "'user' where"),
    (dataclasses.replace(MODEL, dense_parameters=701, fingerprint="f2"), "700 trained floats outside embeddings"),
    (dataclasses.replace(MODEL, layout="layout-2", fingerprint="f2"), "another layout"),
]


@pytest.mark.parametrize(("model", "text"), REFUSED)
def test_what_gives_the_floats_their_meaning_has_to_be_the_same(home, model, text):
    job_in(home / "jobs" / "old")
    with pytest.raises(BadInput, match=text) as raised:
        check_source(find_source("old", home), model)
    assert "checkpoint of run old-job" in raised.value.remedy


@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer": OptimizerSpec("sgd", epsilon=1e-3, initial_accumulator=0.5, beta_1=0.5, beta_2=0.5)},
        {"initializer": InitializerSpec("normal", 0.0, 1.0)},
    ],
)
def test_what_only_steers_training_may_differ(home, fields):
    job_in(home / "jobs" / "old")
    check_source(find_source("old", home), changed(0, **fields))


def test_models_described_before_layouts_were_kept_are_taken_by_their_tables(home):
    job_in(home / "jobs" / "old", model=dataclasses.replace(MODEL, layout=""))
    check_source(find_source("old", home), dataclasses.replace(MODEL, fingerprint="f2"))


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (changed(1, dim=8), "rows of 4 floats, not 8"),
        (changed(0, optimizer=OptimizerSpec("adam")), "rows of 4 floats, not 13"),
        (changed(1, name="thing"), "another table than 'thing'"),
        (dataclasses.replace(MODEL, tables=TABLES[:2], fingerprint="f2"), "3 tables; the model has 2"),
    ],
)
def test_copies_that_nothing_describes_are_asked_themselves(home, tmp_path, model, text):
    checkpoint(tmp_path)
    source = find_source(str(tmp_path), home)
    assert source.model is None
    check_source(source, dataclasses.replace(MODEL, fingerprint="f2"))
    with pytest.raises(BadInput, match=text):
        check_source(source, model)


def test_a_new_job_begins_with_the_rows_and_describes_its_own_checkpoint(home, tmp_path, monkeypatch):
    store = odd_store(tmp_path, monkeypatch)
    job_in(home / "jobs" / "old")
    page = tmp_path / "page.json"
    page.write_text('{"columns": 1}')
    new = dataclasses.replace(MODEL, fingerprint="f2")
    source = find_source("old", home)
    ref, used = begin(f"{store.url}/new", "new-job", new, source, page)
    assert used == source
    found = find_source(f"{store.url}/new", home)
    assert found.path == ref.path
    assert (found.run_id, found.model, found.batches) == ("new-job", new, 0)
    assert json.loads((store.folder / "new" / "metadata.json").read_text()) == {"columns": 1}
    for copy in read_copies(found.manifest.entries, TABLES):
        assert (copy.since, copy.applied, copy.skipped) == (0, EMPTY, EMPTY)
        wanted = content_of(copy.vshard)
        assert all((a == b).all() for a, b in zip(copy.content.keys, wanted.keys, strict=True))
        assert all((a == b).all() for a, b in zip(copy.content.rows, wanted.rows, strict=True))


def test_a_source_that_still_trains_may_replace_its_checkpoint_meanwhile(home, tmp_path):
    """The copies that were found are gone when they are read: the job's newest are taken."""
    directory = home / "jobs" / "old"
    ref = job_in(directory)
    source = find_source("old", home)
    store = FileStore(directory / "state.json")
    newer = checkpoint(directory / "checkpoints", 8, name="newer.ttc", value=2.0)
    present = store.read()
    store.compare_and_swap(dataclasses.replace(present, manifest=newer), present.version)
    (directory / "checkpoints" / "c.ttc").unlink()
    Path(ref.path).unlink()
    begun_with, used = begin(str(tmp_path / "new"), "new", MODEL, source)
    begun = read_manifest(begun_with)
    assert used is not None
    assert (used.path, used.batches, source.batches) == (newer.path, 7, 4), "what is told is what was taken"
    rows = np.concatenate([copy.content.rows[0] for copy in read_copies(begun.entries, TABLES)])
    assert (rows == 2.0).all() and len(rows) == ROWS
    (directory / "checkpoints" / "newer.ttc").unlink()
    with pytest.raises(BadInput, match=r"--init-from: 'old': its rows cannot be read \(.*name another checkpoint"):
        begin(str(tmp_path / "another"), "another", MODEL, find_source("old", home))


PAGE = {
    "columns": {
        "label": "y",
        "dense": [{"name": "price", "transform": "standard"}],
        "categorical": [{"name": "user", "values": "hex", "buckets": 100}],
    },
    "standard": {"price": [1.0, 5.0, 2.0]},
}


@pytest.fixture
def described(home):
    job_in(home / "jobs" / "old")
    (home / "jobs" / "old" / "metadata.json").write_text(json.dumps(PAGE))
    return find_source("old", home)


def test_columns_are_known_from_the_page_of_the_data(described, home):
    assert described.columns == columns_from_dict(PAGE["columns"])
    for text in ("{", "[]", "{}", '{"columns": {"label": 1}}'):
        (home / "jobs" / "old" / "metadata.json").write_text(text)
        assert find_source("old", home).columns is None


def test_a_column_has_to_be_read_as_it_was(described):
    check_source(described, MODEL, columns_from_dict(PAGE["columns"]))
    more = {"label": "z", "dense": ["weight"], "categorical": [*PAGE["columns"]["categorical"], {"name": "shop"}]}
    check_source(described, MODEL, columns_from_dict(more))
    for change, text in (
        (
            {"dense": [{"name": "price", "transform": "log1p"}]},
            r"'price' as a number \(standard\), not a number \(log1p",
        ),
        (
            {"categorical": [{"name": "user", "values": "text", "buckets": 100}]},
            r"ids \(hex, 100 buckets\), not ids \(text",
        ),
        ({"categorical": [{"name": "user", "values": "hex"}]}, r"not ids \(hex\)"),
        ({"categorical": [{"name": "price", "values": "hex"}], "dense": ["user"]}, "'user' as ids"),
    ):
        with pytest.raises(BadInput, match=text):
            check_source(described, MODEL, columns_from_dict({**PAGE["columns"], **change}))


def test_a_new_jobs_page_keeps_its_rows_and_takes_the_sources_means(described):
    own = {"rows": 7, "standard": {"price": [10.0, 11.0, 12.0], "new": [1.0, 2.0, 3.0]}}
    page = json.loads(described.page_of(json.dumps(own).encode()))
    assert page == {"rows": 7, "standard": {"price": [10.0, 5.0, 2.0], "new": [1.0, 2.0, 3.0]}}
