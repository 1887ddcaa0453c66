"""A file is there whole or not at all, on this machine and in a store behind a URL, and is never written again."""

import errno
import os
import stat
import subprocess
import sys
import threading

import pytest
from odd_stores import odd_store

from trimtab.core.ps import storage


@pytest.fixture
def store(tmp_path, monkeypatch):
    return odd_store(tmp_path, monkeypatch)


@pytest.fixture(params=["path", "named beside", "file url", "odd url"])
def place(request, tmp_path, store, monkeypatch):
    """A directory of each kind, and where it really lies."""
    if request.param == "odd url":
        url, real = f"{store.url}/place", store.folder / "place"
    else:
        real = tmp_path / "place"
        url = f"file://{real}" if request.param == "file url" else str(real)
    if request.param == "named beside":  # a file system without files that have no name
        monkeypatch.setattr(storage, "_IN_PROC", tmp_path / "nowhere")
    storage.make_directory(url)
    storage.make_directory(url)
    return url, real


def pieces_of(*pieces, error=None):
    yield from pieces
    if error is not None:
        raise error


def test_what_is_a_path_and_what_is_a_url():
    for path in ("rows", "/a/b", "./c:d", "file:///a", "local:///a", "/tmp/a::b", "a b"):
        assert storage.is_local(path), path
    for url in ("s3://bucket/a", "memory://a", "gs://b", "abfs://c@d/e", "simplecache::s3://bucket/a"):
        assert not storage.is_local(url), url


def test_names_are_put_together_and_taken_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert storage.join("s3://bucket/a/", "b") == "s3://bucket/a/b"
    assert storage.join("/", "b") == "/b"
    assert storage.absolute("a") == str(tmp_path / "a")
    assert storage.absolute("file:///a/b") == "/a/b"
    assert storage.absolute("s3://bucket/a") == "s3://bucket/a"
    assert storage.parent("s3://bucket/a/b.ttc") == "s3://bucket/a"
    assert storage.parent("/a/b.ttc") == "/a"
    assert storage.name_of("s3://bucket/a/b.ttc") == storage.name_of("/a/b.ttc") == "b.ttc"


def test_what_was_written_is_read(place):
    url, real = place
    file = storage.join(url, "one")
    whole = bytes(range(256)) * 100
    assert storage.write_new(file, pieces_of(whole[:100], b"", whole[100:9000], whole[9000:])) == len(whole)
    assert (real / "one").read_bytes() == whole
    assert storage.read_bytes(file) == whole
    assert storage.read_range(file, 1000, 700) == whole[1000:1700]
    assert storage.read_range(file, len(whole) - 3, 700) == whole[-3:]
    assert storage.read_range(file, 5, 0) == b""
    assert storage.exists(file) and not storage.exists(file + "x")
    assert storage.list_names(url) == ["one"] == [each.name for each in real.iterdir()]
    assert storage.write_new(storage.join(url, "empty"), []) == 0
    assert storage.read_bytes(storage.join(url, "empty")) == b""


def test_a_file_is_never_written_again(place):
    url, real = place
    file = storage.join(url, "one")
    storage.write_new(file, [b"first"])
    asked = []
    with pytest.raises(FileExistsError):
        storage.write_new(file, (asked.append(1) or b"second" for _ in range(3)))
    assert asked == [], "nothing is made in vain"
    assert (real / "one").read_bytes() == b"first"
    assert storage.list_names(url) == ["one"]


def test_a_name_that_appears_meanwhile_is_left_alone(tmp_path):
    file = tmp_path / "one"

    def slow():
        yield b"second"
        file.write_bytes(b"first")

    with pytest.raises(FileExistsError):
        storage.write_new(str(file), slow())
    assert file.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("error", [RuntimeError("no"), OSError(28, "full"), KeyboardInterrupt(), GeneratorExit()])
def test_what_fails_on_its_way_leaves_nothing_and_is_told(place, error):
    url, real = place
    with pytest.raises(type(error)) as raised:
        storage.write_new(storage.join(url, "one"), pieces_of(b"x" * 10_000, error=error))
    assert raised.value is error
    assert list(real.iterdir()) == []


def test_a_missing_directory_is_told(tmp_path):
    with pytest.raises(FileNotFoundError):
        storage.write_new(str(tmp_path / "none" / "one"), [b"x"])


def test_what_is_not_there_has_no_names_and_is_removed_already(place):
    url, real = place
    storage.remove(storage.join(url, "one"))
    assert storage.list_names(storage.join(url, "none")) == []
    for read in (storage.read_bytes, lambda file: storage.read_range(file, 0, 1)):
        with pytest.raises(FileNotFoundError):
            read(storage.join(url, "one"))
    storage.write_new(storage.join(url, "one"), [b"x"])
    storage.remove_directory(url)
    assert real.exists(), "only an empty one is removed"
    storage.remove(storage.join(url, "one"))
    storage.remove_directory(url)
    assert not real.exists()
    storage.remove_directory(url)


def test_another_process_names_are_seen(store):
    assert storage.list_names(store.url) == []
    (store.folder / "late").write_bytes(b"x")
    assert storage.list_names(store.url) == ["late"], "a remembered listing is not believed"
    with pytest.raises(FileExistsError):
        storage.write_new(f"{store.url}/late", [b"y"])


def test_a_full_store_and_a_cut_upload_are_told_and_leave_nothing(store):
    file = f"{store.url}/one"
    store.faults(no_space_after=5000)
    with pytest.raises(OSError, match="No space") as raised:
        storage.write_new(file, [b"x" * 4000] * 3)
    assert raised.value.errno == errno.ENOSPC
    assert list(store.folder.iterdir()) == []
    store.faults(cut_at=100)
    with pytest.raises(OSError, match="100 of 12000 bytes"):
        storage.write_new(file, [b"x" * 4000] * 3)
    assert list(store.folder.iterdir()) == []
    store.faults()
    assert storage.write_new(file, [b"x" * 4000] * 3) == 12_000


def test_whatever_a_library_raises_is_an_oserror(store):
    storage.write_new(f"{store.url}/one", [b"x"])
    store.faults(strange=True)
    with pytest.raises(OSError, match="StoreError: the store is moody today"):
        storage.write_new(f"{store.url}/two", [b"x"])
    with pytest.raises(OSError, match="moody"):
        storage.read_bytes(f"{store.url}/one")


@pytest.mark.parametrize("url", ["nosuch://bucket/a", "odd+no://b/a"])
def test_a_url_that_nobody_knows_is_an_oserror(url):
    for call in (storage.prepare, storage.make_directory, storage.read_bytes, storage.list_names, storage.exists):
        with pytest.raises(OSError, match="not known"):
            call(url)


def test_trying_out_leaves_nothing_and_finds_what_cannot_be_written(place, store, tmp_path):
    url, real = place
    storage.try_out(url)
    assert list(real.iterdir()) == []
    store.faults(cut_at=3)
    if url.startswith("odd"):
        with pytest.raises(OSError, match="3 of 7"):
            storage.try_out(url)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError):
        storage.try_out(str(tmp_path / "file"))


KILLED = """
import os, sys
from trimtab.core.ps import storage

def pieces():
    yield b"x" * 100_000
    os.kill(os.getpid(), 9)

storage.write_new(sys.argv[1], pieces())
"""


def test_a_writer_that_is_killed_leaves_nothing(tmp_path):
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_WRONLY))
    except OSError:
        pytest.skip("this file system has no files without a name")
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "one")])
    assert ended.returncode == -9
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["path", "odd url", "memory"])
def test_a_child_of_a_process_with_threads_writes_and_reads(kind, tmp_path, store):
    url = {"path": str(tmp_path), "odd url": store.url, "memory": "memory://here"}[kind]
    storage.prepare(url)
    storage.make_directory(url)
    storage.write_new(storage.join(url, "before"), [b"b"])
    stop, busy = threading.Event(), threading.Event()

    def hammer():
        while not stop.is_set():
            storage.list_names(url)
            busy.set()

    threads = [threading.Thread(target=hammer) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert busy.wait(30)
        for number in range(20):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    file = storage.join(url, f"child-{number}")
                    storage.write_new(file, [b"c" * 9000], durable=False)
                    code = 0 if storage.read_range(file, 8999, 5) == b"c" else 2
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_names_and_bytes_survive_a_power_loss(tmp_path, monkeypatch):
    """The file is synced before it gets its name, and the directory after."""
    done = []
    plain_sync, plain_link = os.fsync, os.link

    def sync(handle):
        done.append("directory" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        plain_sync(handle)

    def link(*given, **more):
        done.append("name")
        plain_link(*given, **more)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "link", link)
    storage.write_new(str(tmp_path / "one"), [b"x"])
    assert done == ["file", "name", "directory"]
    done.clear()
    storage.write_new(str(tmp_path / "two"), [b"x"], durable=False)
    assert done == ["name"]
    done.clear()
    monkeypatch.setattr(storage, "_SYNC_BYTES", 10)
    storage.write_new(str(tmp_path / "three"), [b"four"] * 6)
    assert done == ["file", "file", "file", "name", "directory"], "no sync is left with more than a piece to do"
    done.clear()
    storage.write_new(str(tmp_path / "four"), [b"four"] * 6, durable=False)
    assert done == ["name"]
