"""The private directory of a job when its controller is dead.

Sockets and the secret lie in one directory of mode 0700 that the controller makes and removes. If the controller was
killed, nobody would: so each pod that leaves as an orphan removes its own sockets, and the one that finds none of
another pod there removes the rest, unless somebody answers at the controller's address after all.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path

_PROBE_SECONDS = 1.0


def leave_orphaned(controller_address: Path, own: Iterable[Path]) -> bool:
    """Remove `own` sockets, then the whole directory if this was the last of them; true when it is gone.

    Args:
        controller_address: the controller's socket; its directory is the private one.
        own: the caller's sockets in it.
    """
    directory = controller_address.parent
    for path in own:
        with contextlib.suppress(OSError):
            path.unlink()
    try:
        others = [one.name for one in directory.iterdir() if one.name not in (controller_address.name, "secret")]
    except OSError:
        return True  # another orphan was faster
    if others or _answers(controller_address):
        return False
    shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()


def _answers(address: Path) -> bool:
    """Whether somebody listens at the Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(str(address))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # not sure: leave it
    return True
