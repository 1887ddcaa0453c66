"""The controller's side of a chaos schedule: sees how far the job is, and makes things happen.

It lives in the controller's process, in the place of a few of its functions: the loop's turn, the calls to parameter
servers and of workers, the swap of the state document. An event that has been started is written down first, so the
next life of the job does not repeat it. What a schedule asks for and never finds (a move that was over before the
fault could meet it) is left out and can be seen in the outcome.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from chaos_pods import ARMED
from chaos_schedule import CHANGES_PLAN, OF_A_MOVE, Event, Schedule
from chaos_slowness import Slowness

from trimtab.core.cluster.local import LocalCluster
from trimtab.core.controller.caps import least_plan
from trimtab.core.controller.changing import servers_needed
from trimtab.core.controller.driver import Driver
from trimtab.core.controller.inputs import CapsChanged, CheckpointRequested, Decided, StopRequested
from trimtab.core.controller.state import Phase
from trimtab.core.controller.store import FileStore
from trimtab.core.domain.plan import Plan
from trimtab.core.domain.records import Decision
from trimtab.core.errors import Refused, WireError
from trimtab.core.wire.control import PsStub

DONE, VIOLATIONS, FILLER = "done", "violations.jsonl", "filler"
PODS_FAULTS = {
    "kill_worker_mid_push": {"hook": "push", "action": "kill", "how": "half"},
    "cut_worker": {"hook": "push", "action": "cut"},
    "cut_move": {"hook": "move", "action": "cut"},
    "hang_child": {"hook": "child", "action": "hang"},
    "kill_child": {"hook": "child", "action": "kill"},
    "child_full": {"hook": "child", "action": "full"},
}


class Injector:
    """Carries a schedule out, from the event on that no earlier life has started."""

    def __init__(self, folder: Path, schedule: Schedule) -> None:
        self._folder, self._schedule = folder, schedule
        self._left = deque(one for one in schedule.events if not (folder / DONE / str(one.number)).exists())
        self._lock = threading.Lock()
        self._fates: dict[str, deque[str]] = {"ps": deque(), "worker": deque()}
        self._held: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._pods: dict[str, str] = {}  # name by process id of parameter servers
        self._move: tuple[Event, int] | None = None
        self._commit: tuple[Event, int] | None = None
        self._paused: list[tuple[psutil.Process, int]] = []
        self._full_for = 0
        self._slowness = Slowness()
        self._starved: set[int] = set()
        self._caps: tuple[Any, int] | None = None
        self._free()

    def install(self) -> None:
        """Put itself between the controller and what it talks to."""
        turn, answer = Driver._turn, Driver._answer
        sync, swap, observe = PsStub.sync, FileStore.compare_and_swap, LocalCluster.observe

        def chaotic_turn(driver: Driver) -> None:
            self._turn(driver)
            turn(driver)

        def chaotic_answer(driver: Driver, said: Any) -> Any:
            return self._deliver("worker", said.pod, said, lambda one: answer(driver, one))

        def chaotic_sync(stub: PsStub, request: Any, timeout_seconds: float) -> Any:
            pod = Path(stub._stub._address).stem
            self._meet_move(pod, request, before=True)
            report = self._deliver("ps", pod, request, lambda one: sync(stub, one, timeout_seconds))
            self._pods[report.process] = pod
            self._meet_move(pod, request, before=False)
            return report

        def chaotic_swap(store: FileStore, document: Any, version: int) -> Any:
            kill = self._meet_swap(document)
            if kill == "before":
                self._die()
            stored = swap(store, document, version)
            if kill == "after":
                self._die()
            return stored

        def chaotic_observe(cluster: LocalCluster) -> Any:
            return tuple(self._with_reason(one) for one in observe(cluster))

        LocalCluster.observe = chaotic_observe  # type: ignore[method-assign]
        Driver._turn, Driver._answer = chaotic_turn, chaotic_answer  # type: ignore[method-assign]
        PsStub.sync = chaotic_sync  # type: ignore[method-assign]
        FileStore.compare_and_swap = chaotic_swap  # type: ignore[method-assign]

    # ---- what happens by progress

    def _turn(self, driver: Driver) -> None:
        self._go_on()
        state = driver.state
        applied = len(state.ledger.applied)
        self._slowness.look(applied if state.phase is Phase.TRAINING else 10**9)
        self._give_caps_back(driver, applied)
        while self._left and self._left[0].at <= applied and state.phase is not Phase.STARTING:
            if self._left[0].kind in CHANGES_PLAN and state.phase is Phase.TRAINING and self._undecided(driver):
                return
            event = self._left.popleft()
            self._mark(event, applied=applied, phase=str(state.phase))
            self._start(event, driver)
            state = driver.state

    @staticmethod
    def _undecided(driver: Driver) -> bool:
        return driver.state.wish is not None

    def _start(self, event: Event, driver: Driver) -> None:
        kind, words = event.kind, event.words
        if kind in CHANGES_PLAN:
            self._change(driver, words)
        if kind in OF_A_MOVE:
            self._move = (event, words["skip"])
        elif kind in PODS_FAULTS:
            path = self._folder / ARMED / str(event.number)
            beside = self._folder / f"{event.number}.new"
            beside.write_text(json.dumps({"how": "", **PODS_FAULTS[kind], **words}), encoding="utf-8")
            beside.replace(path)
        elif kind in ("kill_worker", "kill_ps"):
            self._kill(self._some(event))
        elif kind == "kill_all_ps":
            self._kill(self._living("ps"))
        elif kind == "kill_zygote":
            self._kill([pid for name, pid in self._children() if f"chaos_pods {words['role']}" in name])
        elif kind == "pause":
            for pid in self._some(event):
                with suppress(psutil.Error):
                    process = psutil.Process(pid)
                    process.suspend()
                    self._paused.append((process, words["turns"]))
        elif kind in ("ps_messages", "worker_messages"):
            self._fates[kind.removesuffix("_messages")].extend(words["fates"])
        elif kind == "disk_full":
            self._fill(words["turns"])
        elif kind in ("commit_fails", "kill_controller_at_commit"):
            self._commit = (event, words.get("times", words.get("skip", 0)))
        elif kind in ("slow_worker", "slow_ps"):
            until = event.at + words["batches"]
            for pid in self._some(event):
                self._slowness.begin(pid, words["stopped"], until)
        elif kind == "checkpoint_now":
            driver._feed(CheckpointRequested())
        elif kind == "oom":
            pids = self._some(event)
            self._starved |= set(pids)
            self._kill(pids)
        elif kind == "caps":
            self._take_caps(driver, event)
        elif kind == "stop_and_resume":
            self._slowness.end()
            driver._feed(StopRequested("stopped by a chaos schedule"))
        elif kind == "kill_controller":
            self._die()
        elif kind == "kill_everything":
            self._kill([pid for _, pid in self._children()])
            self._die()
        elif kind == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)

    def _change(self, driver: Driver, words: dict[str, Any]) -> None:
        """Decide as the optimizer would: the plan with other numbers, the cores shared out anew."""
        state = driver.state
        plan = state.document.plan
        ps = replace(plan.ps, replicas=words["ps"]) if "workers" in words else replace(plan.ps, cpu=words["ps"])
        worker = replace(plan.worker, replicas=words["workers"]) if "workers" in words else plan.worker
        if "worker" in words:
            worker = replace(worker, cpu=words["worker"])
        share = state.settings.limits.cpu / (ps.replicas * ps.cpu + worker.replicas * worker.cpu)
        if share < 1:
            ps, worker = replace(ps, cpu=ps.cpu * share), replace(worker, cpu=worker.cpu * share)
        new = Plan(ps, worker)
        now = driver._ports.clock.now()
        decision = Decision(state.seconds(now), "replace", new, "as scheduled", action=f"To {new}", before=plan)
        driver._feed(Decided(decision))

    def _take_caps(self, driver: Driver, event: Event) -> None:
        """Another job comes to the machine: this one has to make do with a share of the cores for a while."""
        state = driver.state
        whole = state.settings.limits
        least = least_plan(state, servers_needed(state, driver._ports.clock.now())).cpu
        if self._caps is None and whole.cpu is not None:
            self._caps = whole, event.at + event.words["batches"]
            driver._feed(CapsChanged(replace(whole, cpu=max(least, whole.cpu * event.words["share"]))))

    def _give_caps_back(self, driver: Driver, applied: int) -> None:
        if self._caps is not None and (applied >= self._caps[1] or driver.state.phase is not Phase.TRAINING):
            driver._feed(CapsChanged(self._caps[0]))
            self._caps = None

    def _with_reason(self, status: Any) -> Any:
        """The cluster's word on a pod, which the kernel killed for its memory if the schedule says so."""
        struck = status.pid in self._starved and status.ended
        return replace(status, out_of_memory=True) if struck else status

    def _go_on(self) -> None:
        """Let paused pods go on, and the disk have room again, after their turns."""
        for process, turns in self._paused:
            if turns == 0:
                with suppress(psutil.Error):
                    process.resume()
        self._paused = [(process, turns - 1) for process, turns in self._paused if turns > 0]
        if self._full_for:
            self._full_for -= 1
            if not self._full_for:
                self._free()

    def _fill(self, turns: int) -> None:
        self._full_for = turns
        with suppress(OSError), (self._folder / "disk" / FILLER).open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))

    def _free(self) -> None:
        (self._folder / "disk" / FILLER).unlink(missing_ok=True)

    # ---- what happens by messages

    def _deliver(self, plane: str, pod: str, message: Any, call: Callable[[Any], Any]) -> Any:
        """Deliver one message to whom it is for, as its fate has it."""
        with self._lock:
            fate = self._fates[plane].popleft() if self._fates[plane] else ""
        if fate == "lost_request":
            raise WireError("chaos: the request is lost")
        if fate == "late":
            self._held[pod] = message
            raise WireError("chaos: the request is on its way for long")
        if fate == "older_term":
            try:
                call(replace(message, term=message.term - 1))
            except Refused:
                pass
            else:
                self._violation(f"{pod} took a message of term {message.term - 1}")
        answer = call(message)
        late = self._held.pop(pod, None)
        if late is not None:
            with suppress(WireError, Refused):
                call(late)
        if fate == "doubled":
            answer = call(message)
        before, self._last[pod] = self._last.get(pod), answer
        if fate == "lost_answer":
            raise WireError("chaos: the answer is lost")
        return before if fate == "stale_answer" and before is not None else answer

    def _meet_move(self, pod: str, request: Any, before: bool) -> None:
        """Kill who the present event is about, when this call is the step of a move that it waits for."""
        with self._lock:
            if self._move is None:
                return
            event, skip = self._move
            words = event.words
            source = self._source_of(pod, request, words["step"])
            if source is None or words["before"] is not before:
                return
            self._move = (event, skip - 1) if skip else None
            if skip:
                return
        self._mark(event, met=words["step"], pod=pod, source=source)
        if event.kind == "kill_controller_in_move":
            self._die()
        self._kill_pod(source if event.kind == "kill_source" else pod)

    def _source_of(self, pod: str, request: Any, step: str) -> str | None:
        """The pod that hands vshards over in this call; None when the call is not this step of a move."""
        if step == "prepare" and request.prepare:
            return self._pods.get(request.prepare[0].origin.process)
        if step == "drop" and request.drop:
            return pod
        origins = [order.origin.process for order in request.serve if order.origin is not None]
        others = [process for process in origins if process != request.process]
        return self._pods.get(others[0]) if step == "take_over" and others else None

    def _meet_swap(self, document: Any) -> str:
        """Whether a swap of the document fails (raises OSError) or is the last thing that the controller does."""
        with self._lock:
            if self._commit is None:
                return ""
            event, left = self._commit
            self._commit = (event, left - 1) if left > (event.kind == "commit_fails") else None
        if event.kind == "commit_fails":
            raise OSError(errno.ENOSPC, "no space left, by a chaos schedule")
        if left:
            return ""
        self._mark(event, met=document.version)
        return "before" if event.words["before"] else "after"

    # ---- processes and notes

    def _children(self) -> list[tuple[str, int]]:
        found = []
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                found.append((" ".join(child.cmdline()), child.pid))
        return found

    def _living(self, role: str) -> list[int]:
        """Process ids of the role's pods, in the order of their places."""
        try:
            pids = json.loads((self._folder / "job" / "pids.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return []
        return [pid for name, pid in sorted(pids.items()) if name.startswith(f"{role}-")]

    def _some(self, event: Event) -> list[int]:
        role = event.words.get("role", event.kind.removeprefix("kill_").removeprefix("slow_"))
        pids = self._living(role)
        return [pids[event.words["which"] % len(pids)]] if pids else []

    def _kill_pod(self, name: str) -> None:
        pids = json.loads((self._folder / "job" / "pids.json").read_text(encoding="utf-8"))
        self._kill([pids[name]] if name in pids else [])

    @staticmethod
    def _kill(pids: list[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @staticmethod
    def _die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _mark(self, event: Event, **known: Any) -> None:
        with (self._folder / DONE / str(event.number)).open("a", encoding="utf-8") as out:
            out.write(json.dumps({"event": str(event), **known}) + "\n")
            out.flush()
            os.fsync(out.fileno())

    def _violation(self, text: str) -> None:
        with (self._folder / VIOLATIONS).open("a", encoding="utf-8") as out:
            out.write(json.dumps(text) + "\n")
