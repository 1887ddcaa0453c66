"""The channel between who asks for processes and who forks them: answers, ends, and what the new process is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trimtab.core.wire.forks import ForkAnswer, ForkChannel, ForkRequest

ZYGOTE = (
    "import sys; from trimtab.core.wire.forks import serve_forks\n"
    "def run(arguments):\n    exec(arguments[0], {'arguments': arguments})\n    return 0\n"
    "sys.exit(serve_forks(run))"
)


class Asking:
    """A zygote and the channel to it."""

    def __init__(self, folder: Path, script: str = ZYGOTE) -> None:
        self.folder, self.channel = folder, ForkChannel()
        with (folder / "zygote.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", script], stdin=self.channel.fileno_of_zygote(), stdout=log, stderr=log
            )
        self.channel.handed()
        self.answers: list[ForkAnswer] = []

    def ask(self, pod: str, program: str, log_path: str = "", door: str = "") -> bool:
        log_path = log_path or str(self.folder / f"{pod}.log")
        doors = [door] if door else []
        return self.channel.ask(ForkRequest(pod, f"python -m module {pod}", [program, "more"], log_path, doors))

    def until(self, done: Callable[[], bool], seconds: float = 20.0) -> None:
        end, never = time.monotonic() + seconds, threading.Event()
        while True:
            self.answers += self.channel.answers()
            if done():
                return
            assert time.monotonic() < end, (self.answers, (self.folder / "zygote.log").read_text())
            never.wait(0.01)

    def answer(self, pod: str) -> ForkAnswer:
        self.until(lambda: any(answer.pod == pod for answer in self.answers))
        return next(answer for answer in self.answers if answer.pod == pod)

    def says(self, pod: str, text: str) -> None:
        log = self.folder / f"{pod}.log"
        self.until(lambda: log.exists() and text in log.read_text())


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Asking]:
    made = Asking(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()
    made.channel.close()


def test_requests_made_before_it_is_ready_are_served(asking: Asking) -> None:
    assert asking.ask("a", "print(arguments[1:])")
    assert asking.ask("b", "print(arguments[1:])")
    asking.says("a", "['more']")
    asking.says("b", "['more']")
    ready, *answers = asking.answers
    assert ready == ForkAnswer()
    first, second = sorted(answers, key=lambda answer: answer.pod)  # each process answers for itself
    assert (first.pod, second.pod, first.error, second.error) == ("a", "b", "", "")
    assert first.pid not in (second.pid, asking.process.pid)


def test_the_new_process_is_nobodys_child_when_it_answers(asking: Asking) -> None:
    asking.ask("a", "import os; print('parent', os.getppid(), flush=True); import time; time.sleep(60)")
    pid = asking.answer("a").pid
    try:
        asking.says("a", "parent")
        assert f"parent {asking.process.pid}\n" not in (asking.folder / "a.log").read_text()
        assert os.getsid(pid) == os.getpgid(pid) == pid
        children = Path(f"/proc/{asking.process.pid}/task/{asking.process.pid}/children")
        if children.exists():
            assert children.read_text() == ""  # and no zombie in the zygote
    finally:
        os.killpg(pid, signal.SIGKILL)


def test_a_fork_is_no_holder_of_the_channel(asking: Asking) -> None:
    asking.ask("a", "print('up', flush=True); import time; time.sleep(60)")
    pid = asking.answer("a").pid
    try:
        asking.says("a", "up")
        asking.process.kill()
        asking.until(lambda: asking.channel.ended)  # although the fork lives
        os.kill(pid, 0)
        assert not asking.ask("b", "pass") or asking.channel.ended
    finally:
        os.killpg(pid, signal.SIGKILL)


def test_it_ends_when_it_is_let_go(asking: Asking) -> None:
    asking.until(lambda: asking.answers == [ForkAnswer()])
    asking.channel.close()
    assert asking.process.wait(20) == 0


def test_a_fork_enters_the_group_whose_door_it_is_given(asking: Asking, tmp_path: Path) -> None:
    door = tmp_path / "cgroup.procs"
    door.touch()
    asking.ask("a", "print('up')", door=str(door))
    asking.says("a", "up")
    assert door.read_text() == "0"
    asking.ask("b", "print('up')", door=str(tmp_path / "none" / "cgroup.procs"))
    asking.says("b", "up")  # it would rather run without
    assert "cannot be written" in (tmp_path / "b.log").read_text()


def test_a_fork_that_cannot_begin_says_that_nothing_runs(asking: Asking, tmp_path: Path) -> None:
    asking.ask("a", "pass", log_path=str(tmp_path / "no folder" / "a.log"))
    answer = asking.answer("a")
    assert answer.error.startswith("FileNotFoundError")
    asking.ask("b", "print('up')")
    asking.says("b", "up")


def test_the_processes_of_two_requests_share_nothing_that_was_changed(asking: Asking) -> None:
    asking.ask("a", "import sys; sys.changed = True; print('done')")
    asking.says("a", "done")
    asking.ask("b", "import sys; print(hasattr(sys, 'changed'))")
    asking.says("b", "False")


def test_what_is_no_answer_is_told_and_the_answers_beside_it_count(tmp_path: Path) -> None:
    script = "import os; os.write(0, b'{}\\nhello\\n{\"pod\": \"a\", \"pid\": 7}\\n{\"pod\": 3}\\n')"
    asking = Asking(tmp_path, script)
    asking.until(lambda: asking.channel.ended)
    asking.process.wait()
    assert asking.answers == [ForkAnswer(), ForkAnswer("a", 7)]
    assert "ForkAnswer" in asking.channel.wrong
    asking.channel.close()


def test_a_line_too_long_is_refused_at_both_ends(tmp_path: Path) -> None:
    asking = Asking(tmp_path, "import os\nos.write(0, b'x' * 100_000)")
    assert not asking.ask("a", "x" * 70_000)
    asking.until(lambda: asking.channel.ended)
    asking.process.wait()
    assert asking.channel.wrong == "an answer without an end"
    asking.channel.close()


def test_a_zygote_that_does_not_read_cannot_make_the_asking_wait(tmp_path: Path) -> None:
    asking = Asking(tmp_path, "import os\nos.write(0, b'{}\\n')\nimport time; time.sleep(60)")
    try:
        took = [asking.ask(f"pod-{number}", "x" * 10_000) for number in range(200)]
        assert took[0]
        assert not took[-1]
    finally:
        asking.process.kill()
        asking.process.wait()
        asking.channel.close()
