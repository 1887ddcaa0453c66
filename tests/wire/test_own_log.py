"""A pod's log is moved away while it writes: what it wrote stays there, and what it writes then is in a new file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from trimtab.core.clock import ManualClock
from trimtab.core.wire.own_log import follow_log

CHILD = """
import os, sys
from pathlib import Path
from trimtab.core.wire.own_log import reopen_moved
path = Path(sys.argv[1])
def say(text):
    print(text, flush=True)
    print(text, file=sys.stderr, flush=True)
say("one")
assert not reopen_moved(str(path))
path.rename(path.with_suffix(".1"))
say("two")
assert reopen_moved(str(path)) and not reopen_moved(str(path))
say("three")
os.truncate(path, 0)
say("four")
path.rename(path.with_suffix(".2"))
path.parent.rename(path.parent.with_name("away"))
assert not reopen_moved(str(path))
say("five")
"""


def test_a_log_that_is_moved_away_is_followed_by_a_new_one(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    path = folder / "worker-0.log"
    with path.open("ab") as log:
        subprocess.run([sys.executable, "-c", CHILD, str(path)], stdout=log, stderr=log, check=True, timeout=60)
    away = tmp_path / "away"
    assert (away / "worker-0.1").read_text() == "one\none\ntwo\ntwo\n"
    assert (away / "worker-0.2").read_text() == "four\nfour\nfive\nfive\n"


def test_what_is_no_log_of_this_process_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "other.log").touch()
    clock = ManualClock()
    assert not follow_log("", clock)
    assert not follow_log(str(tmp_path / "other.log"), clock)
    assert not follow_log(str(tmp_path / "none.log"), clock)
