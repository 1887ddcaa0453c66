"""The cache: one conversion per content, whole or not at all, whoever else is at it."""

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from trimtab.core.data import prepare as prepare_module
from trimtab.core.data import sources
from trimtab.core.data.columns import Columns
from trimtab.core.data.convert import Converted
from trimtab.core.data.dataset import Dataset
from trimtab.core.data.prepare import prepare
from trimtab.core.data.store import METADATA_FILE, ROWS_FILE, BlockWriter, Metadata, schema_of, whole
from trimtab.core.errors import BadInput, DataError

TEXT = "label,x\n0,1\n1,2\n0,3\n"


def converted(path):
    """When and as what the dataset was written."""
    return (path, (path / ROWS_FILE).stat().st_ino)


def test_the_second_call_converts_nothing(write, tmp_path):
    path = write("t.csv", TEXT)
    first = converted(prepare(str(path), None, tmp_path / "cache"))
    assert converted(prepare(str(path), None, tmp_path / "cache")) == first


@pytest.mark.parametrize("change", [TEXT.replace("3", "4"), TEXT + "1,1\n"])
def test_changed_contents_are_another_dataset(write, tmp_path, change):
    path = write("t.csv", TEXT)
    status = path.stat()
    before = prepare(str(path), None, tmp_path / "cache")
    path.write_text(change)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # not even the time tells
    after = prepare(str(path), None, tmp_path / "cache")
    assert after != before
    assert Dataset.open(after).metadata.label_sum == change.count("\n1,")
    assert whole(before)


def test_a_large_file_changed_between_the_samples_is_another_dataset(write, monkeypatch):
    monkeypatch.setattr(sources, "_WHOLE_BYTES", 1000)
    monkeypatch.setattr(sources, "_PIECE_BYTES", 10)
    path = write("t.csv", TEXT * 1000)
    files = sources.list_files(str(path))
    before = sources.identity(files)
    assert sources.identity(files) == before
    text = path.read_text()
    status = path.stat()
    path.write_text(text[:205] + "9" + text[206:])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert sources.identity(files) != before


def test_other_columns_are_another_dataset(write, tmp_path):
    path, columns = write("t.csv", TEXT), write("c.yaml", "label: label\ndense: [{name: x, transform: none}]\n")
    assert prepare(str(path), str(columns), tmp_path / "c") != prepare(str(path), None, tmp_path / "c")


def test_the_order_of_files_matters(write, tmp_path):
    one, two = write("d/a.csv", TEXT), write("d/b.csv", "label,x\n1,1\n")
    first = prepare(str(one.parent), None, tmp_path / "cache")
    one.rename(one.with_name("c.csv"))
    assert two.exists()
    assert prepare(str(one.parent), None, tmp_path / "cache") != first


def test_an_interrupted_conversion_leaves_nothing(write, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    path, cache = write("t.csv", TEXT), tmp_path / "cache"
    monkeypatch.setattr(prepare_module.Metadata, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepare(str(path), None, cache)
    assert [each.name for each in cache.iterdir()] == ["locks"]
    monkeypatch.undo()
    assert Dataset.open(prepare(str(path), None, cache)).rows == 3


def test_leftovers_of_a_killed_process_are_not_taken_for_whole_and_go(write, tmp_path):
    path, cache = write("t.csv", TEXT), tmp_path / "cache"
    target = prepare(str(path), None, cache)
    left = cache / f".{target.name}.1.abc.part"
    left.mkdir()
    (left / ROWS_FILE).write_bytes(b"half")
    data = (target / ROWS_FILE).read_bytes()
    (target / ROWS_FILE).write_bytes(data[:-10])  # as after a crash of the machine
    assert not whole(target)
    assert prepare(str(path), None, cache) == target
    assert Dataset.open(target).rows == 3
    assert not left.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 0}', '{"version": 1}'])
def test_metadata_that_is_not_whole(write, tmp_path, text):
    target = prepare(str(write("t.csv", TEXT)), None, tmp_path / "cache")
    (target / METADATA_FILE).write_text(text)
    with pytest.raises(BadInput, match="dataset: "):
        Dataset.open(target)


def test_a_source_that_changes_while_it_is_read_is_refused(write, tmp_path):
    path = write("t.csv", TEXT)

    def change(message, share):
        path.write_text(TEXT + "1,5\n")

    with pytest.raises(DataError, match="changed while it was read"):
        prepare(str(path), None, tmp_path / "cache", change)
    assert Dataset.open(prepare(str(path), None, tmp_path / "cache")).rows == 4


def test_two_processes_at_once_agree(sample_files, tmp_path):
    program = (
        "import sys; from pathlib import Path; from trimtab.core.data.prepare import prepare; "
        "print(prepare(sys.argv[1], None, Path(sys.argv[2])))"
    )
    command = [sys.executable, "-c", program, str(sample_files[".tsv"]), str(tmp_path / "cache")]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = {process.communicate(timeout=120)[0] for process in started}
    assert all(process.returncode == 0 for process in started)
    (answer,) = answers
    assert Dataset.open(answer.strip()).rows == 3000
    assert len(list((tmp_path / "cache").iterdir())) == 2  # the dataset and the locks


def test_without_locks_two_conversions_do_not_meet(write, tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError("not supported here")

    monkeypatch.setattr("trimtab.core.data.prepare.fcntl.flock", no_locks)
    path, cache = write("t.csv", TEXT), tmp_path / "cache"
    inner = []

    def meet(message, share):
        if not inner:
            inner.append(None)
            inner[0] = prepare(str(path), None, cache)  # another process finishes first

    assert prepare(str(path), None, cache, meet) == inner[0]
    assert Dataset.open(inner[0]).rows == 3


def test_progress_rises_to_one(sample_files, tmp_path):
    told = []
    prepare(str(sample_files[".csv"]), None, tmp_path / "cache", lambda message, share: told.append(share))
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_columns_of_another_dataset_go_before_detection(write, tmp_path):
    columns = Columns("label", None, (), Dataset.open(
        prepare(str(write("t.csv", "label,k\n0,aaaaaaaa\n1,bbbbbbbb\n")), None, tmp_path / "cache")
    ).columns.categorical)  # fmt: skip
    assert columns.categorical[0].values == "hex"
    other = write("v.csv", "label,k\n0,11111111\n1,22222222\n")  # alone these would be whole numbers
    dataset = Dataset.open(prepare(str(other), None, tmp_path / "cache", columns=columns))
    assert dataset.columns == columns
    assert dataset.read(np.array([0])).keys.tolist() == [[0x11111111]]


def test_blocks_are_whole_and_in_order(tmp_path):
    """Chunks of any size become blocks of one size: the unit of shuffling must not depend on the reader."""
    columns = Columns("y", "w", (), Columns("y").categorical)
    writer = BlockWriter(tmp_path / "rows", columns, block_rows=10)
    for first, count in ((0, 3), (3, 19), (22, 0), (22, 10), (32, 1)):
        values = np.arange(first, first + count, dtype=np.float32)
        none = np.empty((count, 0))
        writer.add(Converted(none.astype(np.float32), none.astype(np.int64), {}, values, values * 2))
    writer.close()
    file = pa.ipc.open_file(str(tmp_path / "rows"))
    batches = [file.get_batch(at) for at in range(file.num_record_batches)]
    assert [batch.num_rows for batch in batches] == [10, 10, 10, 3]
    table = file.read_all()
    assert table.column("label").to_pylist() == list(range(33))
    assert table.column("weight").to_pylist() == list(range(0, 66, 2))
    assert table.schema == schema_of(columns)


def test_metadata_comes_back(write, tmp_path):
    target = prepare(str(write("t.csv", TEXT)), None, tmp_path / "cache")
    meta = Metadata.read(target)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / ROWS_FILE).write_bytes((target / ROWS_FILE).read_bytes())
    meta.write(tmp_path / "copy")
    assert Metadata.read(tmp_path / "copy") == meta
