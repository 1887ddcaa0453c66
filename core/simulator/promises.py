"""What must hold after every step of a simulated job, checked against what really is, not against what is believed.

The rows, the files and the cluster's own account are the witnesses; the controller's state is only asked what it lends
and commits. A promise that is broken ends the run with its name, the time and the figures, so that a seed tells what is
wrong and not only that something is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trimtab.core.cluster.base import PodStatus
from trimtab.core.controller.actions import Action, CommitDocument, FinishJob, Note, SendPs, SetPods
from trimtab.core.controller.document import Document
from trimtab.core.controller.inputs import CommitResult, Input, PsSaid, Tick, WorkerSaid
from trimtab.core.controller.state import Phase, State
from trimtab.core.domain.intervals import EMPTY, IntervalSet
from trimtab.core.domain.job import JobState
from trimtab.core.domain.plan import Limits
from trimtab.core.errors import TrimtabError
from trimtab.core.ps.manifest import Manifest
from trimtab.core.simulator.thrash import Thrash
from trimtab.core.simulator.workers import ROWS
from trimtab.core.wire.messages import TRAIN, Routing

if TYPE_CHECKING:
    from trimtab.core.simulator.job_world import JobWorld
    from trimtab.core.simulator.life import Life

STOP_SECONDS = 60.0  # from a request to stop to the end, whatever else is wrong
GIVE_WAY_TICKS = 3  # from lower caps to shares within them
ROUNDING = 1e-6  # of summed shares
DISTURBS = ("pod_started", "pod_lost", "pod_left", "routing", "plan")  # events after which a measurement begins anew
VERDICTS = ("slow_worker", "straggler", "balance")  # about speed and traffic: measured since the last change
CHANGES = ("routing", "plan")
_EVALUATES = (Phase.EVALUATING, Phase.METRICS)


class PromiseBroken(TrimtabError):
    """Something that must hold did not.

    Attributes:
        promise: its name.
    """

    def __init__(self, promise: str, text: str) -> None:
        self.promise = promise
        super().__init__(f"{promise}: {text}")


class Promises:
    """Watches one run; `steps` counts."""

    def __init__(self, world: JobWorld) -> None:
        self._world = world
        self.steps = 0
        self._wanted: set[str] = set()
        self._gone: set[str] = set()
        self._shares: dict[str, float] = {}
        self._limits: dict[str, int] = {}
        self._shares_seen = self._limits_seen = 0
        self._swapping = False
        self._routing = Routing()
        self._manifest: Manifest | None = None
        self._closed = EMPTY
        self._disturbed_at = self._changed_at = self._routed_at = 0.0
        self._least: dict[str, float] = {}
        self._sequence = 0
        self._allowed = world.schedule.cpu
        self._lowered: int | None = None  # ticks since the caps fell and are not kept
        self._stop_at: float | None = None
        self._calm_stop = False
        self.thrash = Thrash(self._say)

    def _say(self, promise: str, holds: bool, text: str) -> None:
        if not holds:
            at = self._world.loop.clock.now()
            raise PromiseBroken(promise, f"at {at:.3f} s, step {self.steps}: {text}")

    # ---- steps

    def began(self, life: Life) -> None:
        """Another controller begins; processes of the last one may still serve."""
        self._shares, self._limits, self._shares_seen, self._limits_seen = {}, {}, 0, 0
        self._swapping, self._sequence = False, 0
        self._allowed, self._lowered = self._world.limits.cpu or 0.0, None
        self._disturbed_at, self._stop_at = self._world.loop.clock.now(), None
        self._new_manifest(life.state.manifest)
        self.thrash.stimulus()
        pace, balance = life.state.settings.straggling, life.state.settings.balance
        seconds = pace.settle_seconds + pace.samples * pace.sample_seconds
        self._least = {"slow_worker": seconds, "straggler": seconds, "balance": balance.seconds}

    def stepped(self, life: Life, before: State, inputs: Sequence[Input], actions: Sequence[Action]) -> None:
        """After one step."""
        self.steps += 1
        state = life.state
        for entry in inputs:
            if isinstance(entry, CommitResult):
                self._swapping = False
            elif isinstance(entry, PsSaid):
                self._one_owner()
        if state.document.routing is not before.document.routing:
            self._new_routing(state.document.routing)
        if state.decisions is not before.decisions and state.document.plan != before.document.plan:
            self.thrash.decided(before.document.plan, state.decisions[-1])
        if state.manifest is not before.manifest:
            self._new_manifest(state.manifest)
        if state.ledger.holds is not before.ledger.holds or state.evaluation.holds is not before.evaluation.holds:
            self._lending(before, state)
        if state.losses is not before.losses:
            counted = ROWS * len(state.losses.counted)
            self._say("each batch counts once", state.losses.all_rows == counted,
                      f"{state.losses.all_rows} rows are counted, of batches with {counted}")  # fmt: skip
        for action in actions:
            self._acted(state, action)
        if state.observations is not before.observations or state.marks is not before.marks:
            self._fresh(before, state)
        if any(isinstance(one, WorkerSaid) for one in inputs):
            return
        now = self._world.loop.clock.now()
        if self._stop_at is not None and state.phase is not Phase.OVER:
            waited = now - self._stop_at
            self._say("a stop ends", waited <= STOP_SECONDS, f"{waited:.0f} s after it was asked")
        if self._lowered is not None and any(isinstance(one, Tick) for one in inputs):
            self._lowered += 1
            self._say("caps that fall are kept soon", self._lowered <= GIVE_WAY_TICKS,
                      f"{self._world.limits.cpu} cores for {self._lowered} ticks, now {self._shares}")  # fmt: skip

    def _acted(self, state: State, action: Action) -> None:
        if isinstance(action, SetPods):
            names = {pod.name for pod in action.pods}
            self._say("names are used once", not names & self._gone, f"{sorted(names & self._gone)} had gone")
            self._gone |= self._wanted - names
            self._wanted = names
        elif isinstance(action, CommitDocument):
            self._say("one swap at a time", not self._swapping, "another one is on its way")
            self._swapping = True
            self._from_owners(state, action)
        elif isinstance(action, SendPs):
            fine = action.sync.sequence > self._sequence and action.sync.term == state.document.term
            self._say("requests are numbered", fine, f"{action.sync.sequence} after {self._sequence}")
            self._sequence = action.sync.sequence
        elif isinstance(action, Note):
            self._noted(action)

    def _noted(self, note: Note) -> None:
        """A change voids measurements; a verdict on somebody's speed rests on some that were taken since."""
        now = self._world.loop.clock.now()
        if note.kind in VERDICTS and "can't be made" not in note.text:
            since = now - (self._routed_at if note.kind == "balance" else self._changed_at)
            self._say("no stale sample", since >= self._least[note.kind], f"{note.text}: {since:.1f} s after a change")
        elif note.kind in DISTURBS:
            self._disturbed_at = now
            if note.kind in CHANGES:
                self._changed_at = now
            if note.kind == "routing":
                self._routed_at = now
            if note.kind == "pod_lost":
                self.thrash.stimulus()

    def _lending(self, before: State, state: State) -> None:
        """What is lent is to be trained, by a pod that there is, and to one (two where nothing else is left)."""
        for ledger, phases in ((state.ledger, (Phase.TRAINING,)), (state.evaluation, _EVALUATES)):
            old = (before.ledger if ledger is state.ledger else before.evaluation).holds.by_id
            fresh = [hold for key, hold in ledger.holds.by_id.items() if key not in old]
            for hold in fresh:
                self._say("nothing is lent out of time", before.phase in phases, f"{hold} while {before.phase}")
                self._say("loans are of pods", hold.pod in state.pods, f"{hold}")
                self._say("loans are of batches", 0 <= hold.lo < hold.hi, f"{hold}")
                if hold.kind != TRAIN:
                    continue
                self._say("loans are of batches", hold.hi <= state.settings.batches, f"{hold}")
                mine = IntervalSet.span(hold.lo, hold.hi)
                self._say("what is closed stays closed", not mine & self._closed, f"{hold} is lent again")
                others = [one for key, one in old.items() if one.hi > hold.lo and one.lo < hold.hi and key in
                          ledger.holds.by_id]  # fmt: skip
                if others:
                    self._lent_twice(state, hold.pod, mine, [IntervalSet.span(one.lo, one.hi) for one in others],
                                     {one.pod for one in others})  # fmt: skip

    def _lent_twice(
        self, after: State, pod: str, mine: IntervalSet, others: Sequence[IntervalSet], pods: set[str]
    ) -> None:
        """A second loan of the same numbers is for the end of the job, once, and not to who has them."""
        fine = not after.ledger.todo and pod not in pods and not any(
            one & other for at, one in enumerate(others) for other in others[:at]
        )  # fmt: skip
        self._say("a batch is lent once", fine, f"{mine} to {pod}, and to {sorted(pods)}; to do {after.ledger.todo}")

    def _fresh(self, before: State, state: State) -> None:
        """No measurement reaches back before the last change: what was then says nothing of now (case 32)."""
        if state.marks is not before.marks:
            for name, mark in state.marks.items():
                text = f"{name} is measured from {mark.at:.3f} s, changed at {self._disturbed_at:.3f} s"
                self._say("no stale sample", mark.at >= self._disturbed_at, text)
        last = before.observations[-1].time_seconds if before.observations else -1.0
        if state.observations and state.observations[-1].time_seconds > last:
            plan = state.observations[-1].plan
            present = state.document.plan
            self._say("no stale sample", plan == present, f"{plan} was observed under {present}")

    # ---- what is stored

    def stored(self, document: Document) -> None:
        """A swap was stored; every file that its manifest names must be there."""
        self.removed(document)

    def removed(self, document: Document | None = None) -> None:
        """Files were deleted: the manifest in force still has all of its own."""
        present = document if document is not None else self._world.store.read()
        assert present is not None
        missing = [file for file, _ in self._world.storage.masks(present.manifest.path)
                   if file not in self._world.storage.files]  # fmt: skip
        self._say("files in force stay", not missing, f"{missing} of {present.manifest.path}")

    def _new_routing(self, routing: Routing) -> None:
        old, self._routing = self._routing, routing
        self.thrash.moved(old, routing)
        self._say("routing only rises", routing.version > old.version, f"{routing.version} after {old.version}")
        for vshard, since in enumerate(routing.since):
            before = old.since[vshard]
            same = routing.owner[vshard] == old.owner[vshard] and _process(routing, vshard) == _process(old, vshard)
            self._say("a new owner has a new tenure", since > before or (since == before and same),
                      f"vshard {vshard}: since {before}, then {since}")  # fmt: skip

    def _from_owners(self, state: State, action: CommitDocument) -> None:
        """A copy enters the manifest only if its writer owns its vshard under the tenure in which it was written."""
        if action.manifest is None:
            return
        routing = state.document.routing
        for old, new in zip(state.manifest.entries, action.manifest.entries, strict=True):
            if new.file != old.file:
                writer, owner = new.file.rsplit("-", 1)[0], _process(routing, new.vshard)
                fine = writer == owner and new.since == routing.since[new.vshard]
                self._say("copies come from owners", fine, f"vshard {new.vshard} of {new.file}, owned by {owner}")

    def _new_manifest(self, manifest: Manifest) -> None:
        """It says what its files hold, and nothing that was closed is lost with it."""
        old, self._manifest = self._manifest, manifest
        told: dict[tuple[str, int], int] = {}
        for entry in manifest.entries:
            key = entry.file, entry.set_index
            told[key] = told.get(key, 0) | 1 << entry.vshard
        for (file, index), mask in told.items():
            applied, left = IntervalSet(manifest.sets[index].applied), mask
            for copy in self._world.storage.files.get(file, ()):
                if copy.mask & mask:
                    left &= ~copy.mask
                    self._say("a copy is true", copy.applied == applied, f"{file}: {copy.applied}, told {applied}")
            self._say("a copy is true", not left, f"{file} lacks {left.bit_count()} vshards that it is named for")
        if old is not None:
            pairs = {(one.set_index, other.set_index) for one, other in zip(old.entries, manifest.entries, strict=True)}
            for one, other in pairs:
                fine = IntervalSet(manifest.sets[other].applied).issuperset(IntervalSet(old.sets[one].applied))
                self._say("what is closed stays closed", fine, f"{old.sets[one]}, then {manifest.sets[other]}")
        self._closed = manifest.applied()

    def _one_owner(self) -> None:
        """Nobody serves a vshard under the tenure under which somebody else does."""
        seen: dict[int, int] = {}
        for server in self._world.servers.values():
            for part in server.rows.parts:
                if part.served:
                    twice = seen.get(part.since, 0) & part.mask
                    text = f"{twice.bit_count()} vshards since {part.since} are served twice"
                    self._say("one owner", not twice, text)
                    seen[part.since] = seen.get(part.since, 0) | part.mask

    # ---- caps

    def caps_changed(self, limits: Limits) -> None:
        """The job may use more, or should use less as soon as it can."""
        assert limits.cpu is not None
        if limits.cpu >= self._allowed:
            self._allowed, self._lowered = limits.cpu, None
        else:
            self._lowered = 0

    def applied(self, life: Life, before: Sequence[PodStatus], after: Sequence[PodStatus]) -> None:
        """The cluster has been told what should be: at no instant on the way was there too much.

        Args:
            life: its cluster's account is believed. before, after: the pods just before, and now.
        """
        cap = self._allowed + ROUNDING
        ended = {one.name for one in before if one.ended}
        alive = {one.name for one in before} - ended
        self._shares = {name: cpu for name, cpu in self._shares.items() if name in alive}
        for name, cpu in life.cluster.shares[self._shares_seen :]:
            if name in ended:
                continue
            self._shares[name] = cpu
            total = sum(self._shares.values())
            self._say("caps hold", total <= cap, f"{total:.3f} of {self._allowed} cores: {self._shares}")
        self._shares_seen = len(life.cluster.shares)
        self._limits = {name: size for name, size in self._limits.items() if name in alive}
        for name, size in life.cluster.limits[self._limits_seen :]:
            if name in ended:
                continue
            self._limits[name] = size
            used = sum(self._limits.values())
            self._say("caps hold", used <= (self._world.limits.memory_bytes or 0), f"{used} bytes: {self._limits}")
        self._limits_seen = len(life.cluster.limits)
        there = [status.name for status in after if not status.ended]
        cores = sum(self._shares.get(name, 0.0) for name in there)
        if self._lowered is not None and cores <= (self._world.limits.cpu or 0.0) + ROUNDING:
            self._allowed, self._lowered = self._world.limits.cpu or 0.0, None

    # ---- answers, and the end

    def answered(self, answers: int) -> None:
        """A worker's call has one answer."""
        self._say("one answer to a call", answers == 1, f"{answers} answers")

    def stop_asked(self) -> None:
        """Somebody wants the job to stop in order."""
        world, now = self._world, self._world.loop.clock.now()
        self._stop_at = now
        calm = world.quiet_at <= now and not any(world.failing.values()) and not world.network.weather
        calm = calm and not world.slow  # batches of a slow place are not waited for
        life = world.life
        self._calm_stop = calm and life is not None and life.state.phase is Phase.TRAINING and life.state.ledger.served

    def ended(self, life: Life, action: FinishJob) -> None:
        """The job is over, for good or until it is resumed."""
        state, storage = life.state, self._world.storage
        self._say("an end has a reason", bool(action.reason) or action.state is JobState.FINISHED, str(action.state))
        if action.state is JobState.FAILED:
            self._say("a job that can go on does", self._world.schedule.may_fail(action.reason), action.reason)
        if action.state is JobState.STOPPED and self._calm_stop and self._stop_at is not None:
            self._kept(state)
        if action.state is not JobState.FINISHED:
            return
        whole = IntervalSet.span(0, state.settings.batches)
        self._say("the end is a whole manifest", state.manifest.complete(state.settings.batches), "it lacks batches")
        for file, mask in storage.masks(state.document.manifest.path):
            for copy in storage.files[file]:
                fine = not copy.mask & mask or copy.applied == whole
                self._say("the end is a whole manifest", fine, f"{file}: {copy}")
        self._say("every row held out is scored", state.evaluation.complete, f"{state.evaluation.done}")

    def _kept(self, state: State) -> None:
        """A stop in order loses nothing that was trained."""
        for process, tenures in state.ledger.tenures.items():
            server = self._world.servers.get(process)
            for part in server.rows.parts if server is not None else ():
                mask = part.mask & tenures.get(part.since, 0)
                for vshard in (mask.bit_length() - 1,) if mask else ():
                    lost = part.applied - state.manifest.applied_of(vshard)
                    text = f"{server.pod if server else process}: {lost} is in no copy"
                    self._say("a stop keeps what was trained", not lost, text)

    def in_time(self, limit: float) -> None:
        """The job has ended by then."""
        life = self._world.life
        about = "no controller"
        if life is not None:
            state = life.state
            about = (
                f"{state.phase}, {len(state.ledger.applied)} of {state.settings.batches} applied, to do "
                f"{state.ledger.todo}, held {[*state.ledger.holds.by_id.values()]}, settling {state.ledger.settling}, "
                f"served {state.ledger.served}, committing {state.committing}, round {state.round}, "
                f"pods {sorted(state.pods)}, plan {state.document.plan}"
            )
        self._say("the job ends", self._world.loop.clock.now() <= limit, about)


def _process(routing: Routing, vshard: int) -> str:
    place = routing.owner[vshard]
    return routing.processes[place] if 0 <= place < len(routing.processes) else ""
