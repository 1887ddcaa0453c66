"""Rows by URL, from a server on loopback that lives as long as its test."""

import functools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from trimtab.core.errors import BadInput


class Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, nothing on stderr."""

    def log_message(self, *_):
        pass


@pytest.fixture
def url(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "rows.csv").write_text("label,x,shop\n1,2,a\n0,3,b\n1,4,a\n")
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_csv_is_read_by_url(load, url):
    dataset = load(f"{url}/rows.csv", "label: label\ndense: [{name: x, transform: none}]\ncategorical: [shop]\n")
    rows = dataset.read(np.arange(3))
    assert rows.label.tolist() == [1, 0, 1]
    assert rows.dense[:, 0].tolist() == [2, 3, 4]
    assert rows.keys[0] == rows.keys[2] != rows.keys[1]


def test_a_url_that_is_not_there_is_one_clear_line(load, url):
    with pytest.raises(BadInput) as caught:
        load(f"{url}/none.csv")
    assert str(caught.value).startswith("--data: ")
    assert f"{url}/none.csv" in str(caught.value) and "\n" not in str(caught.value)
