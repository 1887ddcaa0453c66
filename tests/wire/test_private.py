"""What orphans leave behind: nothing, unless somebody still needs it."""

import socket
import tempfile
from pathlib import Path

import pytest

from trimtab.core.errors import Refused
from trimtab.core.wire.messages import PROTOCOL, PsConfig, check_protocol
from trimtab.core.wire.private import leave_orphaned


@pytest.fixture
def private():
    with tempfile.TemporaryDirectory(prefix="tt") as name:
        directory = Path(name) / "private"
        directory.mkdir(mode=0o700)
        for file in ("secret", "ps-0.ctl", "ps-0.data", "ps-1.ctl"):
            (directory / file).touch()
        yield directory


def test_the_last_orphan_removes_the_secret(private):
    controller = private / "controller.sock"
    assert not leave_orphaned(controller, [private / "ps-0.ctl", private / "ps-0.data"])
    assert sorted(one.name for one in private.iterdir()) == ["ps-1.ctl", "secret"]
    assert not leave_orphaned(controller, ())  # a worker that leaves before ps-1
    assert leave_orphaned(controller, [private / "ps-1.ctl"])
    assert not private.exists()
    assert leave_orphaned(controller, ())


def test_a_controller_that_answers_keeps_its_files(private):
    controller = private / "controller.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(controller))
        listener.listen()
        mine = [private / name for name in ("ps-0.ctl", "ps-0.data", "ps-1.ctl")]
        assert not leave_orphaned(controller, mine)
        assert (private / "secret").exists()
    assert leave_orphaned(controller, ())  # the socket's file is there, and nobody behind it


def test_a_configuration_of_another_protocol_is_refused():
    config = PsConfig("job", "ps-0", 1, "", "", "", "", 0, 1, 1, 1.0)
    check_protocol(config)
    with pytest.raises(Refused, match=f"protocol {PROTOCOL + 1}"):
        check_protocol(PsConfig("job", "ps-0", 1, "", "", "", "", 0, 1, 1, 1.0, protocol=PROTOCOL + 1))
