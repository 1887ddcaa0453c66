"""The zygotes of one job: processes that have imported everything and fork pods.

A zygote is started with the first pod that names it. Until it is ready, its pods wait here and nothing else waits:
every call returns at once. A zygote that dies, answers what is no answer or takes too long is given up for good, and
its pods are started cold; but one that was asked for is only then started cold when the channel's end proves that no
process can come of the request any more (`core/wire/forks.py`).
"""

from __future__ import annotations

import logging
import signal
from dataclasses import dataclass, field
from pathlib import Path

from trimtab.core.clock import Clock
from trimtab.core.cluster.base import PodSpec
from trimtab.core.cluster.processes import Process, open_log, reap_group, start
from trimtab.core.cluster.shares import Shares
from trimtab.core.wire.forks import ForkChannel, ForkRequest

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 60.0  # for the imports, and for each fork
ZYGOTE_CPU = 1.0  # cores while it imports; afterwards it sleeps
_END_SECONDS = 2.0  # from a polite signal to a kill, and from a death to giving up the channel's end


@dataclass(frozen=True)
class Fork:
    """What became of a pod that was handed in: `pid` of the process, or None: start it cold."""

    spec: PodSpec
    pid: int | None


@dataclass
class _Zygote:
    """One zygote; `waiting` pods were not asked for yet, `asked` ones were, at that time."""

    name: str
    process: Process
    channel: ForkChannel
    started_at: float
    ready: bool = False
    given_up: bool = False
    kill_at: float | None = None
    ended_at: float | None = None
    reaped: bool = False
    waiting: list[PodSpec] = field(default_factory=list)
    asked: dict[str, tuple[PodSpec, float]] = field(default_factory=dict)


class Zygotes:
    """Starts zygotes and asks them.

    Args:
        clock: for patience.
        shares: their groups are named as they are.
        patience_seconds: how long imports, or one fork, may take.
    """

    def __init__(self, clock: Clock, shares: Shares, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._clock, self._shares, self._patience = clock, shares, patience_seconds
        self._zygotes: dict[tuple[str, ...], _Zygote | None] = {}
        self._groups: list[int] = []
        self.cpu_seconds = 0.0  # of the ended ones

    def take(self, spec: PodSpec) -> bool:
        """Fork this pod as soon as possible; False: its zygote is no good, start it cold."""
        if spec.zygote not in self._zygotes:
            self._zygotes[spec.zygote] = self._start(spec)
        zygote = self._zygotes[spec.zygote]
        if zygote is None or zygote.given_up:
            return False
        zygote.waiting.append(spec)
        self._send(zygote)
        return True

    def cancel(self, name: str) -> bool:
        """Take back a pod; False when it was asked for already and may come."""
        for zygote in self._living():
            for spec in zygote.waiting:
                if spec.name == name:
                    zygote.waiting.remove(spec)
                    return True
        return False

    def poll(self) -> list[Fork]:
        """What became of pods since the last call."""
        found: list[Fork] = []
        now = self._clock.now()
        for zygote in self._living():
            self._read(zygote, found)
            self._look(zygote, now)
            self._send(zygote)
            if zygote.given_up:
                found += [Fork(spec, None) for spec in zygote.waiting]
                zygote.waiting.clear()
            lost = zygote.ended_at is not None and now > zygote.ended_at + _END_SECONDS
            if zygote.given_up and (zygote.channel.ended or lost):
                found += [Fork(spec, None) for spec, _ in zygote.asked.values()]
                zygote.asked.clear()
        self._reap_groups()
        return found

    def pids(self) -> dict[str, int]:
        """Process ids of the living ones by name."""
        return {zygote.name: zygote.process.pid for zygote in self._living() if not zygote.reaped}

    def end(self) -> None:
        """Ask all to end; `poll` goes on until `busy` is false."""
        now = self._clock.now()
        for zygote in self._living():
            if not zygote.reaped and zygote.kill_at is None:
                zygote.given_up = True
                zygote.process.signal(signal.SIGTERM)
                zygote.kill_at = now + _END_SECONDS

    def busy(self) -> bool:
        """Whether a zygote lives, or something of one is not reaped."""
        return bool(self._groups) or any(not zygote.reaped for zygote in self._living())

    def close(self) -> None:
        """Let go of the channels."""
        for zygote in self._living():
            zygote.channel.close()

    def _living(self) -> list[_Zygote]:
        return [zygote for zygote in self._zygotes.values() if zygote is not None]

    def _start(self, spec: PodSpec) -> _Zygote | None:
        name = f"zygote-{spec.role}"
        taken = {zygote.name for zygote in self._living()}
        if name in taken:
            name = f"{name}-{len(taken) + 1}"
        channel = ForkChannel()
        try:
            self._shares.give(name, ZYGOTE_CPU)
            with open_log(str(Path(spec.log_path).parent / f"{name}.log")) as output:
                process = start(spec.zygote, output, channel.fileno_of_zygote())
        except OSError as error:
            log.warning("%s could not be started, its pods start cold: %s", name, error)
            self._shares.drop(name)
            channel.close()
            return None
        channel.handed()
        self._shares.enter(name, process.pid)
        return _Zygote(name, process, channel, self._clock.now())

    def _send(self, zygote: _Zygote) -> None:
        """Ask for what waits, once the zygote is ready."""
        while zygote.ready and not zygote.given_up and zygote.waiting:
            spec = zygote.waiting[0]
            self._shares.give(spec.name, spec.cpu)
            self._shares.hold(spec.name, spec.memory_bytes)
            request = ForkRequest(
                spec.name, " ".join(spec.argv), list(spec.argv[3:]), spec.log_path, self._shares.doors(spec.name)
            )
            if not zygote.channel.ask(request):
                self._give_up(zygote, "takes no requests")
                return
            zygote.waiting.pop(0)
            zygote.asked[spec.name] = (spec, self._clock.now())

    def _read(self, zygote: _Zygote, found: list[Fork]) -> None:
        for answer in zygote.channel.answers():
            if not answer.pod:
                zygote.ready = True
            elif answer.pod in zygote.asked:
                spec, _ = zygote.asked.pop(answer.pod)
                if answer.error:
                    log.warning("%s could not fork %s, which starts cold: %s", zygote.name, spec.name, answer.error)
                found.append(Fork(spec, answer.pid if not answer.error else None))
            elif answer.pid > 0:  # it was given up, so its pod runs elsewhere
                Process(answer.pid).signal(signal.SIGKILL)
                self._groups.append(answer.pid)
        if zygote.channel.wrong:
            self._give_up(zygote, f"answers wrong ({zygote.channel.wrong})")

    def _look(self, zygote: _Zygote, now: float) -> None:
        """See whether it lives and keeps its time."""
        if not zygote.reaped:
            try:
                if zygote.process.has_ended():
                    _, seconds = zygote.process.reap()
                    self.cpu_seconds += seconds
                    self._forget(zygote, now)
            except ChildProcessError:
                zygote.process.signal(signal.SIGKILL)
                zygote.process.forget()
                self._forget(zygote, now)
        if zygote.channel.ended:  # seen before or after its death, as it comes
            self._give_up(zygote, "has ended, its log may say why")
        oldest = min([at for _, at in zygote.asked.values()], default=None)
        since = oldest if oldest is not None else (zygote.started_at if not zygote.ready else None)
        if since is not None and now > since + self._patience:
            self._give_up(zygote, f"took more than {self._patience:g} s")
        if zygote.kill_at is not None and now >= zygote.kill_at and not zygote.reaped:
            zygote.process.signal(signal.SIGKILL)

    def _forget(self, zygote: _Zygote, now: float) -> None:
        zygote.reaped, zygote.ended_at = True, now
        self._groups.append(zygote.process.pid)
        self._give_up(zygote, "has ended, its log may say why")
        self._shares.drop(zygote.name)

    def _give_up(self, zygote: _Zygote, why: str) -> None:
        """Never ask it again; what was asked for is still answered, or the channel ends."""
        if zygote.given_up:
            return
        zygote.given_up = True
        log.warning("%s %s: pods start cold from now on", zygote.name, why)
        if not zygote.reaped:
            zygote.process.signal(signal.SIGKILL)

    def _reap_groups(self) -> None:
        for group in list(self._groups):
            gone, seconds = reap_group(group)
            self.cpu_seconds += seconds
            if gone:
                self._groups.remove(group)
