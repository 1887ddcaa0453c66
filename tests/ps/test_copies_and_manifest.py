"""Copies are whole or void; the manifest takes only copies that may count; the end is judged on it."""

import dataclasses
import shutil
import weakref

import numpy as np
import pytest
from odd_stores import odd_store
from ps_models import embedding, spec_of

from trimtab.core.domain.intervals import EMPTY, IntervalSet
from trimtab.core.domain.model_spec import OptimizerSpec
from trimtab.core.errors import CorruptCopy
from trimtab.core.ps import copies as copies_module
from trimtab.core.ps.copies import VshardCopy, decode_copy, encode_copy, read_copies, read_copy, write_copies
from trimtab.core.ps.initial import write_initial
from trimtab.core.ps.manifest import Manifest, merge, read_manifest, remove_superseded, write_manifest
from trimtab.core.ps.reader import read_rows
from trimtab.core.ps.table import RowTable, VshardRows
from trimtab.core.wire.messages import CopiesWritten, CopyEntry, CopySet, Routing

TABLES = (embedding("a"), embedding("wide", 1))


def copy_of(vshard=3, since=1, applied=((0, 5),), rows=2):
    content = VshardRows(
        (np.arange(rows, dtype=np.int64), np.array([-7], np.int64)),
        (np.arange(4 * rows, dtype=np.float32).reshape(rows, 4), np.array([[0.5]], np.float32)),
    )
    return VshardCopy(vshard, since, IntervalSet(applied), IntervalSet(((2, 3),)), content)


def same(a, b):
    mine, theirs = ((*one.content.keys, *one.content.rows) for one in (a, b))
    equal = all((x == y).all() for x, y in zip(mine, theirs, strict=True))
    return equal and (a.vshard, a.since, a.applied, a.skipped) == (b.vshard, b.since, b.applied, b.skipped)


def test_the_layout_is_frozen():
    data = encode_copy(copy_of(rows=1), TABLES)
    assert data.hex() == (
        "54544350" "0100" "0300" "02000000" "01000000" "01000000" "0100000000000000"
        "0000000000000000" "0500000000000000" "0200000000000000" "0300000000000000"
        "0100000000000000" "04000000" "04000000" "0000000000000000" "00000000" "0000803f" "00000040" "00004040"
        "0100000000000000" "01000000" "01000000" "f9ffffffffffffff" "0000003f"
    )  # fmt: skip
    assert same(decode_copy(data, TABLES), copy_of(rows=1))


def test_every_cut_of_a_copy_is_void():
    data = encode_copy(copy_of(), TABLES)
    for length in range(len(data)):
        with pytest.raises(CorruptCopy):
            decode_copy(data[:length], TABLES)
    with pytest.raises(CorruptCopy):
        decode_copy(data + b"\0", TABLES)


def test_a_damaged_byte_is_found_by_the_checksum(tmp_path):
    path = tmp_path / "copies.ttc"
    written = write_copies(path, [copy_of(3), copy_of(4)], TABLES, 1)
    assert same(read_copy(written.entries[1], TABLES), copy_of(4))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert same(read_copy(written.entries[0], TABLES), copy_of(3))
    with pytest.raises(CorruptCopy, match="checksum"):
        read_copy(written.entries[1], TABLES)


def test_files_are_never_overwritten_and_a_failure_leaves_nothing(tmp_path):
    path = tmp_path / "copies.ttc"
    write_copies(path, [copy_of()], TABLES, 1)
    with pytest.raises(FileExistsError):
        write_copies(path, [copy_of()], TABLES, 2)

    def failing():
        yield copy_of()
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_copies(tmp_path / "other.ttc", failing(), TABLES, 2)
    assert [one.name for one in tmp_path.iterdir()] == ["copies.ttc"]


@pytest.fixture
def store(tmp_path, monkeypatch):
    return odd_store(tmp_path, monkeypatch)


def test_copies_and_manifests_lie_in_a_store_as_well_as_on_a_disk(store, model):
    """What is written there is read there, byte for byte what a disk would have."""
    place = f"{store.url}/run"
    ref = write_initial(place, "job", model)
    manifest = read_manifest(ref)
    assert ref.path == f"{place}/manifest-{ref.checksum}.json"
    assert {entry.file for entry in manifest.entries} == {f"{place}/copies-initial.ttc"}
    assert read_rows(manifest, model)["dense"][1].reshape(-1).tolist() == list(range(768))
    assert read_manifest(str(store.folder / "run" / f"manifest-{ref.checksum}.json")).sets == manifest.sets
    written = write_copies(f"{place}/next.ttc", [copy_of()], TABLES, 1)
    assert same(read_copy(written.entries[0], TABLES), copy_of())
    new = dataclasses.replace(
        manifest, entries=tuple(dataclasses.replace(e, file=f"{place}/n") for e in manifest.entries)
    )
    remove_superseded(manifest, new)
    assert sorted(one.name for one in (store.folder / "run").iterdir()) == [f"manifest-{ref.checksum}.json", "next.ttc"]


def test_a_store_that_is_full_or_cuts_leaves_no_copy_and_no_manifest(store, model):
    for faults in ({"no_space_after": 3000}, {"cut_at": 3000}):
        store.faults(**faults)
        with pytest.raises(OSError, match=r"No space|bytes have arrived"):
            write_copies(f"{store.url}/c.ttc", [copy_of(rows=100), copy_of(4, rows=100)], TABLES, 1)
        with pytest.raises(OSError, match=r"No space|bytes have arrived"):
            write_manifest(store.url, manifest_of())
        assert list(store.folder.iterdir()) == []


def test_a_manifest_of_which_a_store_kept_only_a_part_is_written_again(store):
    ref = write_manifest(store.url, manifest_of())
    path = store.folder / f"manifest-{ref.checksum}.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    assert write_manifest(store.url, manifest_of()) == ref
    assert path.read_bytes() == whole
    assert write_manifest(store.url, manifest_of()) == ref  # the same name is the same content


def test_one_copy_is_in_memory_at_a_time(tmp_path):
    contents, most = [], 0

    def made():
        nonlocal most
        for vshard in range(20):
            copy = copy_of(vshard)
            contents.append(weakref.ref(copy.content))
            most = max(most, sum(one() is not None for one in contents))
            yield copy
            del copy

    written = write_copies(tmp_path / "c.ttc", made(), TABLES, 1)
    assert len(written.entries) == 20
    assert most <= 2


@pytest.mark.parametrize("at_once", [1, 500, 1 << 20])
def test_copies_are_read_in_their_order_however_many_are_fetched_at_once(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(copies_module, "_READ_BYTES", at_once)
    one = write_copies(tmp_path / "one.ttc", [copy_of(v, rows=v + 1) for v in range(6)], TABLES, 1).entries
    other = write_copies(tmp_path / "other.ttc", [copy_of(v, rows=v + 1) for v in range(6, 9)], TABLES, 1).entries
    mixed = [one[0], one[1], one[3], one[4], other[0], one[5], other[1], other[2], one[2]]
    found = list(read_copies(mixed, TABLES))
    assert [copy.vshard for copy in found] == [0, 1, 3, 4, 6, 5, 7, 8, 2]
    assert all(same(copy, copy_of(copy.vshard, rows=copy.vshard + 1)) for copy in found)
    data = bytearray((tmp_path / "one.ttc").read_bytes())
    data[one[4].offset + 30] ^= 1
    (tmp_path / "one.ttc").write_bytes(data)
    with pytest.raises(CorruptCopy, match="vshard 4"):
        list(read_copies(one, TABLES))
    (tmp_path / "one.ttc").write_bytes(data[: one[5].offset + 3])
    with pytest.raises(CorruptCopy, match="length"):
        list(read_copies(one[5:], TABLES))


def test_a_checkpoint_that_was_moved_as_a_whole_is_as_good_as_before(model, tmp_path, store):
    ref = write_initial(tmp_path / "here", "job", model)
    name = ref.path.rsplit("/", 1)[1]
    shutil.move(tmp_path / "here", tmp_path / "there")
    moved = read_manifest(tmp_path / "there" / name)
    assert {entry.file for entry in moved.entries} == {str(tmp_path / "there" / "copies-initial.ttc")}
    assert len(read_rows(moved, model)["dense"][0]) == 3
    shutil.move(tmp_path / "there", store.folder / "run")
    uploaded = read_manifest(f"{store.url}/run/{name}")
    assert {entry.file for entry in uploaded.entries} == {f"{store.url}/run/copies-initial.ttc"}
    assert len(read_rows(uploaded, model)["dense"][0]) == 3
    (tmp_path / "alone").mkdir()
    shutil.move(store.folder / "run" / name, tmp_path / "alone" / name)
    alone = read_manifest(tmp_path / "alone" / name)
    assert {entry.file for entry in alone.entries} == {str(tmp_path / "here" / "copies-initial.ttc")}
    with pytest.raises(CorruptCopy, match="cannot be read"):
        read_rows(alone, model)


def manifest_of(applied=()):
    entries = tuple(CopyEntry(v, 0, "first", 0, 1, "", 0) for v in range(512))
    return Manifest(1, "job", "f", 512, entries, (CopySet(applied, ()),))


def routing_of(process="p", since=4):
    return Routing(since, (process,), ("tcp:x:1",), (0,) * 512, (since,) * 512)


def written_of(applied, since=4, vshards=range(512)):
    return CopiesWritten(1, tuple(CopyEntry(v, since, "second", 0, 1, "", 0) for v in vshards), (CopySet(applied, ()),))


def test_a_copy_counts_only_from_the_present_owner_in_its_present_tenure():
    old = manifest_of()
    assert merge(old, written_of(((0, 3),)), routing_of(), "p").applied() == IntervalSet(((0, 3),))
    assert merge(old, written_of(((0, 3),)), routing_of(), "zombie") == old
    assert merge(old, written_of(((0, 3),), since=3), routing_of(), "p") == old


def test_a_copy_that_would_undo_what_was_closed_does_not_count():
    old = manifest_of(((0, 5),))
    assert merge(old, written_of(((0, 3),)), routing_of(), "p") == old
    assert merge(old, written_of(((1, 9),)), routing_of(), "p") == old
    assert merge(old, written_of(((0, 6),)), routing_of(), "p").applied() == IntervalSet(((0, 6),))


def test_the_end_needs_every_vshard():
    almost = merge(manifest_of(((0, 9),)), written_of(((0, 10),), vshards=range(511)), routing_of(), "p")
    assert not almost.complete(10)
    assert almost.applied() == IntervalSet(((0, 9),))
    assert merge(almost, written_of(((0, 10),), vshards=[511]), routing_of(), "p").complete(10)


def test_a_skipped_batch_counts_once_for_any_vshard():
    sets = (CopySet(((0, 4),), ()), CopySet(((0, 4),), ((2, 3),)))
    entries = tuple(CopyEntry(v, 0, "f", 0, 1, "", int(v == 7)) for v in range(512))
    assert Manifest(1, "job", "f", 512, entries, sets).skipped() == IntervalSet(((2, 3),))


def test_a_manifest_is_whole_or_void(tmp_path):
    ref = write_manifest(tmp_path, manifest_of(((0, 2),)))
    assert read_manifest(ref) == manifest_of(((0, 2),)) == read_manifest(ref.path)
    path = tmp_path / ref.path.rsplit("/", 1)[1]
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(CorruptCopy, match="checksum"):
        read_manifest(ref)
    with pytest.raises(CorruptCopy, match="cannot be read"):
        read_manifest(tmp_path / "manifest-none.json")


@pytest.mark.parametrize(
    ("change", "text"),
    [({"version": 2}, "newer"), ({"entries": ()}, "each of 512"), ({"sets": ()}, "set that is not there")],
)
def test_a_manifest_that_does_not_hold_together_is_refused(tmp_path, change, text):
    ref = write_manifest(tmp_path, dataclasses.replace(manifest_of(), **change))
    with pytest.raises(CorruptCopy, match=text):
        read_manifest(ref)


def test_only_superseded_files_are_deleted(tmp_path):
    for name in ("first", "second", "stranger"):
        (tmp_path / name).touch()

    def at(name, held):
        entries = tuple(dataclasses.replace(entry, file=str(tmp_path / name)) for entry in held.entries)
        return dataclasses.replace(held, entries=entries)

    old = at("first", manifest_of())
    new = merge(old, at("second", written_of(((0, 1),), vshards=range(256))), routing_of(), "p")
    remove_superseded(old, new)
    assert (tmp_path / "first").exists()  # still named for the other half
    rest = at("third", written_of(((0, 1),), vshards=range(256, 512)))
    remove_superseded(new, merge(new, rest, routing_of(), "p"))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["second", "stranger"]


def test_the_first_manifest_brings_every_dense_block_and_no_batch(model, tmp_path):
    manifest = read_manifest(write_initial(tmp_path / "checkpoint", "job", model))
    assert manifest.applied() == EMPTY
    rows = read_rows(manifest, model)
    assert rows["dense"][0].tolist() == [0, 1, 2]
    assert rows["dense"][1].reshape(-1).tolist() == list(range(768))
    assert len(rows["a"][0]) == 0


def test_a_job_starts_with_all_of_another_jobs_rows_and_none_of_its_numbers(model, tmp_path):
    """Values, slots and counters are the source's bit by bit; nothing counts as applied."""
    adam = OptimizerSpec("adam")
    tables = (embedding("a", optimizer=adam), model.tables[-1])
    table = RowTable(tables, 1, 16 << 20)
    keys = np.arange(500, dtype=np.int64)
    table.bear(table.find(np.concatenate([keys, np.arange(3, dtype=np.int64)]), np.array([500, 3], np.uint32)))
    draw = np.random.default_rng(1)
    given = []
    for vshard in range(512):
        content = table.extract(vshard)
        rows = tuple(draw.normal(size=one.shape).astype(np.float32) for one in content.rows)
        held = IntervalSet(((0, 7),))
        given.append(VshardCopy(vshard, 9, held, held, VshardRows(content.keys, rows)))
    written = write_copies(tmp_path / "c.ttc", given, tables, 1)
    source = Manifest(1, "old", "f", 512, written.entries, written.sets)
    wanted = dataclasses.replace(model, tables=tables, fingerprint="new")
    manifest = read_manifest(write_initial(tmp_path / "checkpoint", "job", wanted, source))
    assert (manifest.job_id, manifest.fingerprint) == ("job", "new")
    assert manifest.sets == (CopySet((), ()),)
    for before, after in zip(given, read_copies(manifest.entries, tables), strict=True):
        assert same(after, dataclasses.replace(before, since=0, applied=EMPTY, skipped=EMPTY))
    assert {entry.file for entry in manifest.entries} == {str(tmp_path / "checkpoint" / "copies-initial.ttc")}


def test_a_source_that_is_damaged_or_of_another_model_leaves_nothing(model, tmp_path):
    source = read_manifest(write_initial(tmp_path / "source", "old", model))
    wider = dataclasses.replace(model, tables=(embedding("a", 5), *model.tables[1:]))
    more = dataclasses.replace(model, tables=(*model.tables[:-1], dataclasses.replace(model.tables[-1], rows=4)))
    for other, text in ((wider, "rows of 4 floats, not 5"), (more, "3 of 4 blocks of table 'dense'")):
        with pytest.raises(CorruptCopy, match=text):
            write_initial(tmp_path / "checkpoint", "job", other, source)
        assert list((tmp_path / "checkpoint").iterdir()) == []
    path = tmp_path / "source" / "copies-initial.ttc"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptCopy, match="length or checksum"):
        write_initial(tmp_path / "checkpoint", "job", model, source)
    assert list((tmp_path / "checkpoint").iterdir()) == []


def test_first_blocks_of_another_shape_are_refused(model, tmp_path):
    np.savez(model.initial_blocks, dense=np.zeros((2, 256), np.float32))
    with pytest.raises(CorruptCopy, match="dense"):
        write_initial(tmp_path / "checkpoint", "job", model)


def test_rows_of_another_model_are_not_read(model, tmp_path):
    manifest = read_manifest(write_initial(tmp_path / "checkpoint", "job", model))
    with pytest.raises(CorruptCopy, match="cannot be read as model other"):
        read_rows(manifest, spec_of(*model.tables, fingerprint="other"))


def test_table_contents_survive_a_copy(tmp_path):
    table = RowTable(TABLES, 1, 16 << 20)
    table.bear(table.find(np.arange(500, dtype=np.int64), np.array([400, 100], np.uint32)))
    copies = [VshardCopy(v, 1, EMPTY, EMPTY, table.extract(v)) for v in range(512)]
    written = write_copies(tmp_path / "c.ttc", copies, TABLES, 1)
    assert sum(len(k) for e in written.entries for k in read_copy(e, TABLES).content.keys) == 500
    assert len(written.sets) == 1
