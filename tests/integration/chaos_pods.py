"""The zygotes of a chaos job, `python -m chaos_pods worker|ps`: the real ones, whose forks meet faults on request.

The controller's side arms a fault by putting a file into the job's folder; a pod looks there at each push, at each
frame of a move, and in each child that writes copies. A fault is claimed by making a file that must not exist yet, so
it strikes once, whichever pod of whichever generation comes first. Only the functions that carry bytes are replaced.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = "TRIMTAB_CHAOS_FOLDER"  # the variable that names the job's folder
ARMED, CLAIMED = "armed", "claimed"
COPIES_BEFORE = 40  # that a child writes before it is struck
COPY_SILENCE_SECONDS = 6.0  # of a checkpoint's child, where the product waits two minutes


class Faults:
    """The armed faults, as one pod sees them."""

    def __init__(self, folder: Path) -> None:
        self._armed, self._claimed = folder / ARMED, folder / CLAIMED
        self._known: dict[str, dict[str, Any]] = {}
        self._seen: dict[str, int] = {}

    def take(self, hook: str) -> dict[str, Any] | None:
        """The fault that strikes here and now, if one does; it is claimed with that."""
        for name in os.listdir(self._armed):  # noqa: PTH208, a dozen microseconds at each push
            if name not in self._known:
                self._known[name] = json.loads((self._armed / name).read_text(encoding="utf-8"))
            fault = self._known[name]
            if fault["hook"] != hook:
                continue
            self._seen[name] = seen = self._seen.get(name, -1) + 1
            if seen >= fault.get("skip", 0) and self._claim(name, fault.get("times", 1)):
                return fault
        return None

    def _claim(self, name: str, times: int) -> bool:
        for number in range(times):
            try:
                handle = os.open(self._claimed / f"{name}-{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                continue
            os.write(handle, f"{os.getpid()} {' '.join(sys.argv)}\n".encode())
            os.close(handle)
            return True
        return False


def strike_connections(faults: Faults, hook: str, flag: int) -> None:
    """Frames with `flag` that this process sends may be cut off, or be its last.

    A frame whose batch has gone to another server before meets faults of the hook "more_of_a_push", too.
    """
    from trimtab.core.wire import frames, sockets

    connection = sockets.DataConnection
    whole, header_of = connection.send, connection.receive_header
    deaf: set[int] = set()
    last = -1

    def cut(self: Any) -> None:
        sockets._break(self._socket)
        raise ConnectionResetError(errno.ECONNRESET, "cut off by a chaos schedule")

    def send(self: Any, header: Any, sections: Any) -> None:
        nonlocal last
        fault = faults.take(hook) if header.flags & flag else None
        if header.flags & flag & frames.PUSH:
            if fault is None and header.push_number == last:
                fault = faults.take("more_of_a_push")
            last = header.push_number
        if fault is None:
            whole(self, header, sections)
            return
        if fault["how"] == "half":
            data = header.pack() + b"".join(bytes(memoryview(one).cast("B")) for one in sections if len(one))
            self._socket.sendall(data[: len(data) // 2])
        if fault["action"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault["how"] != "reply":
            cut(self)
        whole(self, header, sections)
        deaf.add(id(self))

    def receive_header(self: Any) -> Any:
        if id(self) in deaf:  # the server has the frame, its answer is lost
            deaf.discard(id(self))
            cut(self)
        return header_of(self)

    connection.send, connection.receive_header = send, receive_header


def strike_children(faults: Faults) -> None:
    """A child that writes copies may stop, die or meet a full disk, after some copies are written."""
    from trimtab.core.ps import copies, copy_child, copying

    copying.COPY_SILENCE_SECONDS = COPY_SILENCE_SECONDS
    live = copy_child._live

    def struck(parent: int, given: int, work: Callable[[], bytes]) -> None:
        def worse() -> bytes:
            fault = faults.take("child")
            if fault is not None:
                encode, left = copies.encode_copy, [COPIES_BEFORE]

                def encode_copy(*words: Any) -> bytes:
                    left[0] -= 1
                    if left[0] < 0:
                        _strike_child(fault["action"])
                    return encode(*words)

                copies.encode_copy = encode_copy
            return work()

        live(parent, given, worse)

    copy_child._live = struck


def _strike_child(action: str) -> None:
    if action == "full":
        raise OSError(errno.ENOSPC, "no space left, by a chaos schedule")
    os.kill(os.getpid(), signal.SIGSTOP if action == "hang" else signal.SIGKILL)


def with_faults(role: str, main: Callable[[list[str]], int]) -> Callable[[list[str]], int]:
    """The pod's `main`, with the faults put in first."""

    def struck(argv: list[str]) -> int:
        from trimtab.core.wire import frames

        faults = Faults(Path(os.environ[FOLDER]))
        if role == "worker":
            strike_connections(faults, "push", frames.PUSH)
        else:
            strike_connections(faults, "move", frames.MOVE)
            strike_children(faults)
        return main(argv)

    return struck


def serve(role: str) -> int:
    """Be the zygote of `role`."""
    if role == "worker":
        from trimtab.core.training.runtime import configure_tensorflow

        configure_tensorflow()  # before the worker's own imports, as in the real zygote
        from trimtab.core.training import worker, zygote

        worker.main = with_faults(role, worker.main)
        return zygote.serve()
    from trimtab.core.ps import kernels, main, update_kernels
    from trimtab.core.wire.forks import serve_forks

    assert kernels and update_kernels
    return serve_forks(with_faults(role, main.main))


if __name__ == "__main__":
    exit_code = serve(sys.argv[1])
    os._exit(exit_code)
