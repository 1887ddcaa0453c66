"""Processes forked from one that has imported everything, asked for over a socket pair.

TensorFlow takes seconds to import and a fraction of one to start in a fork, as long as no operation has run before.
The forking process (a zygote) does nothing else: it is started by command line with one end of the pair as its
standard input, says when it is ready, forks per request and ends when the other end is closed.

Who asks must know for certain whether a process came of a request. So the new process answers by itself, and only it
and its ancestors hold that end of the pair: an answer means that it runs, and the end of the stream without an answer
means that nobody is left who could start it. It is forked twice, so that it becomes the child of the nearest
ancestor that collects orphans, which is who asked; it answers only after that.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from trimtab.core.errors import WireError
from trimtab.core.wire.encode import from_json, to_json

log = logging.getLogger(__name__)

_LONGEST_LINE = 64 * 1024
_MOST_READS = 16  # for one look: who talks without end must not keep the asking from its work
_NOT_STARTED = 1


@dataclass(frozen=True)
class ForkRequest:
    """One process to fork.

    Attributes:
        pod: its name, which the answer carries.
        title: what lists of processes show.
        arguments: for `main`.
        log_path: gets its standard output and error.
        doors: the files to write "0" to for entering control groups.
    """

    pod: str
    title: str
    arguments: list[str]
    log_path: str
    doors: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ForkAnswer:
    """What a zygote, or a process that it forked, says: `pod` empty: ready for requests; `error`: nothing runs."""

    pod: str = ""
    pid: int = 0
    error: str = ""


class ForkChannel:
    """The end of who asks. It never waits."""

    def __init__(self) -> None:
        self._own, self._other = socket.socketpair()
        self._own.setblocking(False)
        self._held = b""
        self.ended = False  # no answer can come any more
        self.wrong = ""  # what came that is no answer

    def fileno_of_zygote(self) -> int:
        """The end to hand to the zygote as its standard input; call `handed` afterwards."""
        return self._other.fileno()

    def handed(self) -> None:
        """The zygote has its end: keep no copy, or the end of the stream would not be seen."""
        self._other.close()

    def ask(self, request: ForkRequest) -> bool:
        """Send one request; False when the zygote can't take it."""
        line = to_json(request) + b"\n"
        if len(line) > _LONGEST_LINE:
            return False
        try:
            return self._own.send(line) == len(line)
        except OSError:  # full, or gone
            return False

    def answers(self) -> list[ForkAnswer]:
        """What has arrived since the last call; see also `ended` and `wrong`."""
        for _ in range(_MOST_READS):
            if self.ended:
                break
            try:
                found = self._own.recv(_LONGEST_LINE)
            except BlockingIOError:
                break
            except OSError:
                found = b""
            self.ended = not found
            self._held += found
        *lines, self._held = self._held.split(b"\n")
        if len(self._held) > _LONGEST_LINE:
            self._held, self.wrong = b"", "an answer without an end"
        found_answers = []
        for line in lines:  # a wrong one makes the others no less true
            try:
                found_answers.append(from_json(ForkAnswer, line))
            except WireError as error:
                self.wrong = str(error)
        return found_answers

    def close(self) -> None:
        """Let the zygote go: it ends once it has read the end of the stream."""
        self._own.close()
        self._other.close()


def serve_forks(main: Callable[[list[str]], int]) -> int:
    """Fork a process that runs `main(arguments)` for each request at standard input, until the other end is closed.

    To be called when everything is imported and nothing has been started: what runs in threads is not forked.
    """
    gc.collect()
    gc.freeze()  # a collection in a fork would touch, and so copy, every object
    _say(ForkAnswer())
    held = b""
    while found := os.read(0, _LONGEST_LINE):
        *lines, held = (held + found).split(b"\n")
        if len(held) > _LONGEST_LINE:
            raise WireError(f"a request of more than {_LONGEST_LINE} bytes for a process")
        for line in lines:
            _fork(from_json(ForkRequest, line), main)
    return 0


def _fork(request: ForkRequest, main: Callable[[list[str]], int]) -> None:
    """Start one process and let go of it."""
    _flush()
    ready, go = os.pipe()
    try:
        between = os.fork()
    except OSError as error:
        _say(ForkAnswer(request.pod, error=str(error)))
        os.close(ready)
    else:
        if between == 0:
            _fork_again(request, main, ready, go)
        os.close(ready)
        os.waitpid(between, 0)
    os.close(go)  # after the one between is gone: now the new process has its final parent


def _fork_again(request: ForkRequest, main: Callable[[list[str]], int], ready: int, go: int) -> None:
    """The process between: forks the new one and ends. Never returns."""
    try:
        if os.fork() == 0:
            os.close(go)
            os.read(ready, 1)
            os.close(ready)
            _become(request, main)
    except OSError as error:
        _say(ForkAnswer(request.pod, error=str(error)))
    finally:
        os._exit(0)


def _become(request: ForkRequest, main: Callable[[list[str]], int]) -> None:
    """The new process: looks like one started by command line, and runs `main`. Never returns."""
    code, told = _NOT_STARTED, False
    try:
        os.setsid()
        output = os.open(request.log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        for door in request.doors:
            _enter(door)
        sys.argv = [request.title, *request.arguments]
        _show_as(request.title)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _say(ForkAnswer(request.pod, os.getpid()))
        told = True
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)  # lets go of the channel, too
        os.close(nothing)
        code = main(request.arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException as error:  # noqa: BLE001, as the interpreter does with what nobody caught
        traceback.print_exc()
        if not told:
            _say(ForkAnswer(request.pod, error=f"{type(error).__name__}: {error}"))
    finally:
        with suppress(Exception):
            logging.shutdown()
        _flush()
        os._exit(code & 0xFF)


def _enter(door: str) -> None:
    """Enter a control group; who asked does it as well, so a failure is no reason to give up."""
    try:
        file = os.open(door, os.O_WRONLY)
        try:
            os.write(file, b"0")
        finally:
            os.close(file)
    except OSError as error:
        log.warning("%s cannot be written: %s", door, error)


def _show_as(title: str) -> None:
    """Lists of processes show `title`, as if it were the command line."""
    try:
        from setproctitle import setproctitle
    except ImportError:  # only a nicety
        return
    setproctitle(title)


def _say(answer: ForkAnswer) -> None:
    """One line to who asked; lines this short are written whole. Nobody there: nothing to be done."""
    with suppress(OSError):
        os.write(0, to_json(answer) + b"\n")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
