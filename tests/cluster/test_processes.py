"""Logs of processes: a disk without room keeps nobody from starting; a place that can't be is an error."""

import errno
import os
from pathlib import Path

import pytest

from trimtab.core.cluster.processes import open_log


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_without_room_for_a_log_what_is_said_goes_nowhere(tmp_path, monkeypatch, number):
    plain = Path.open

    def full(self, *arguments, **words):
        if str(self).startswith(str(tmp_path)):
            raise OSError(number, os.strerror(number), str(self))
        return plain(self, *arguments, **words)

    monkeypatch.setattr(Path, "open", full)
    with open_log(str(tmp_path / "logs" / "pod.log")) as log:
        assert log.name == os.devnull
        log.write(b"nobody reads this")


def test_a_log_below_a_file_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        open_log(str(tmp_path / "file" / "pod.log"))
