"""A parameter server that everybody waits for: found with its cause, and the cheapest that helps is done about it.

Simulated servers tell times by a law that the test changes: each has a speed and a part of the traffic, and a batch
waits for the last of them. So a remedy that is right makes the waits end, and one that is wrong does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from controller_world import Worker, World, plan_of, settings

from trimtab.core.controller.actions import Action, Note, PodName, SetPods
from trimtab.core.controller.hot_servers import KIND
from trimtab.core.controller.shares import shares
from trimtab.core.controller.spreading import BalanceRules
from trimtab.core.controller.state import Phase
from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.domain.job import JobState, Mode
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.domain.plan import Limits, Plan
from trimtab.core.optimizer.stability.hot_ps import HotRules
from trimtab.core.wire.messages import from_bitmap

BATCHES = 2400
COMPUTE = 0.035  # seconds of a worker for a batch, beside the wait for servers
COST = 0.015  # seconds that a server with an even part needs for a batch
RULES = HotRules(sample_seconds=0.6, settle_seconds=0.2, recover_seconds=6.0, pause_seconds=5.0, start_seconds=4.0)
QUIET = BalanceRules(seconds=1e6)
CAPS = Limits(9.0, 2**40, 9, 9)


class HotWorld(World):
    """Servers with speeds.

    Attributes:
        speed: of a process, 1.0 where none is named. others: of any process that is not named.
        work: cores that a server with an even part uses. cost: seconds that it needs for a batch.
        traffic: of each vshard. stopped: processes that are late between requests, not while they handle them.
    """

    def __init__(self, ps: int = 3, batches: int = BATCHES, plan: Plan | None = None, **changes: object) -> None:
        self.speed: dict[str, float] = {}
        self.work, self.cost = 0.1, COST
        self.traffic: Callable[[int], float] = lambda vshard: 1e6
        self.busy: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self.credit: dict[str, float] = {}
        self.known: tuple[int, object, dict[str, float]] = (-1, None, {})
        self.notes: list[Note] = []
        self.names: set[str] = set()
        self.stopped: set[str] = set()
        self.pods: tuple[PodName, ...] = ()
        chosen = {"limits": CAPS, "balance": QUIET, "hot": RULES, "tables": ("a", "b")} | changes
        super().__init__(
            settings(batches=batches, checkpoint_seconds=1e9, **chosen), plan or plan_of(ps, 2)
        )  # fmt: skip

    def parts(self) -> dict[str, float]:
        """Each owner's part of the traffic, by process."""
        routing = self.state.document.routing
        if self.known[:2] == (routing.version, self.traffic):
            return self.known[2]
        sums: dict[str, float] = {}
        for vshard, place in enumerate(routing.owner if routing.version else ()):
            name = routing.processes[place]
            sums[name] = sums.get(name, 0.0) + self.traffic(vshard)
        total = sum(sums.values())
        found = {name: one / total for name, one in sums.items()}
        self.known = (routing.version, self.traffic, found)
        return found

    def times(self) -> dict[str, float]:
        """Seconds that each takes for a batch; more cores than the plan's make it faster."""
        parts, share, found = self.parts(), shares(self.state), {}
        plan = self.state.document.plan.ps.cpu
        for pod in self.state.servers():
            if pod.process in parts:
                able = self.speed.get(pod.process, 1.0) * (share[pod.name] / plan if self.work > 0.4 else 1.0)
                found[pod.process] = self.cost * parts[pod.process] * len(parts) / able
        return found

    def train(self, worker: Worker) -> None:
        """As many batches as there is time for in one round: as long as the last server takes, and computing."""
        self.credit[worker.pod] = self.credit.get(worker.pod, 0.0) + 0.2
        step = COMPUTE + max(self.times().values(), default=0.0)
        while self.credit[worker.pod] >= step:
            self.credit[worker.pod] -= step
            worker.work(self)

    def round(self, answers: bool = True) -> None:
        self.tick()
        for workers in (False, True):
            while self.commits:
                self.commit()
            while self.requests:
                self.deliver_request()
            while self.reports:
                self.deliver_report()
            for worker in tuple(self.workers.values()) if workers else ():
                self.train(worker)
                self.call(worker)
            while self.calls:
                self.deliver_call()
            while self.answers:
                self.deliver_answer()
        while self.commits:
            self.commit()

    def call(self, worker: Worker) -> None:
        super().call(worker)
        if worker.stopped:
            return
        done, times, parts = len(self.calls[-1].losses), self.times(), self.parts()
        waits = {}
        for name, one in times.items():
            last = max((other for process, other in times.items() if process != name), default=0.0)
            waits[name] = done * (one / 2 + max(0.0, one - last) / 2)
            self.busy[name] = self.busy.get(name, 0.0) + done * one * (0.2 if name in self.stopped else 1.0)
            cores = self.work * parts[name] * len(parts) * min(1.0, self.speed.get(name, 1.0) * 2)
            self.cpu[name] = self.cpu.get(name, 0.0) + done * (COMPUTE + COST) / 2 * cores
        self.calls[-1] = replace(self.calls[-1], ps_seconds=waits)

    def deliver_request(self, at: int = 0, again: bool = False) -> None:
        before = len(self.reports)
        super().deliver_request(at, again)
        for place, said in enumerate(self.reports[before:], before):
            report = said.report
            served = {vshard for told in report.served for vshard in from_bitmap(told.vshards)}
            self.reports[place] = replace(said, report=replace(
                report, vshard_traffic=tuple(self.traffic(v) * (v in served) for v in range(VSHARDS)),
                vshard_rows=tuple(100 * (v in served) for v in range(VSHARDS)), table_traffic=(1.0, 3.0),
                busy_seconds=self.busy.get(report.process, 0.0), cpu_seconds=self.cpu.get(report.process, 0.0),
            ))  # fmt: skip

    def feed(self, *inputs: object) -> list[Action]:
        actions = super().feed(*inputs)  # type: ignore[arg-type]
        self.notes += [one for one in actions if isinstance(one, Note) and one.kind == KIND]
        self.names |= set(self.state.pods)
        for one in actions:
            if isinstance(one, SetPods):
                self.pods = one.pods
        return actions

    def process(self, place: int) -> str:
        return next(pod.process for pod in self.state.servers() if pod.slot[1] == place)

    def told(self, words: str) -> list[Note]:
        return [note for note in self.notes if words in note.text]

    @property
    def findings(self) -> dict[str, str]:
        return {name: one.text for (kind, name), one in self.state.findings.items() if kind == KIND}

    def rest(self) -> bool:
        state = self.state
        return state.phase is Phase.TRAINING and state.ledger.served and not state.moving and not state.tenancies

    def owned(self, place: int) -> int:
        return self.state.document.routing.owner.count(place)


def until(world: HotWorld, done: Callable[[], object], rounds: int = 200) -> None:
    for _ in range(rounds):
        if done():
            return
        world.round()
    raise AssertionError(f"never: {world.state.phase}, {[note.text for note in world.notes]}, {world.findings}")


def rounds(world: HotWorld, seconds: float) -> None:
    for _ in range(round(seconds / 0.2)):
        world.round()


def trained(world: HotWorld, seconds: float = 4.0) -> HotWorld:
    until(world, world.rest)
    rounds(world, seconds)
    assert world.notes == [] and world.findings == {}, "nothing is wrong yet"
    return world


def finish(world: HotWorld) -> None:
    assert world.until_end(3000).state is JobState.FINISHED
    numbers = sorted(number for grant in world.lent if grant.kind == "train" for number in range(grant.lo, grant.hi))
    assert numbers == list(range(world.state.settings.batches)), "nothing was lent twice"
    assert world.state.manifest.applied() == IntervalSet.span(0, world.state.settings.batches)
    assert world.findings == {}, "it is over"


def test_one_whose_host_is_very_busy_gets_a_successor_that_is_up_before_it_goes() -> None:
    world = trained(HotWorld())
    slow = world.process(1)
    world.speed[slow] = 0.1
    until(world, lambda: world.told("is late"))
    (late,) = world.told("is late")
    assert late.text.startswith("ps-1-t1-g1 is late: ") and "works at 0.10 of their speed" in late.text
    assert late.data["cause"] == "host"
    until(world, lambda: world.told("takes over"))
    assert slow in world.servers and world.owned(1), "it serves until the new one does"
    until(world, lambda: world.told("a step takes"))
    assert world.owned(1) == 0 and "ps-1-t1-g1" not in world.state.pods
    assert sorted(set(world.state.document.routing.owner)) == world.state.active("ps") == [0, 2, 3]
    assert not world.told("did not help") and len(world.told("another one takes its place")) == 1
    assert world.findings == {}
    finish(world)


def test_one_that_is_somewhat_slow_gives_vshards_to_its_peers() -> None:
    world = trained(HotWorld())
    world.speed[world.process(0)] = 0.45
    until(world, lambda: world.told("vshards move;"))
    until(world, world.rest)
    assert 85 <= world.owned(0) <= 105 and world.state.active("ps") == [0, 1, 2]
    until(world, lambda: world.told("a step takes"))
    rounds(world, 10.0)
    assert len(world.told("vshards move;")) == 1 and not world.told("takes its place"), "what helps is enough"
    finish(world)


def test_one_that_is_late_without_being_at_work_gains_nothing_from_having_less_of_it() -> None:
    world = trained(HotWorld())
    slow = world.process(0)
    world.speed[slow], world.stopped = 0.45, {slow}
    until(world, lambda: world.told("takes over"))
    assert not world.told("vshards move;")


def test_where_its_peers_are_full_moves_would_only_shift_the_trouble() -> None:
    world = trained(HotWorld())
    world.work = 0.38  # of half a core
    world.speed[world.process(0)] = 0.45
    until(world, lambda: world.told("takes over"))
    assert not world.told("vshards move;")


def test_a_remedy_that_does_not_help_is_followed_by_the_next_one() -> None:
    world = trained(HotWorld())
    slow = world.process(0)
    world.speed[slow] = 0.45
    until(world, lambda: world.told("vshards move;"))
    world.speed[slow] = 0.2  # it gets worse while they move
    until(world, lambda: world.told("did not help"))
    until(world, lambda: world.told("takes over"))
    until(world, lambda: world.told("after another one took its place"))
    assert slow not in {pod.process for pod in world.state.servers()}
    assert [note.data["remedy"] for note in world.notes if "remedy" in note.data and "helped" not in note.data] == [
        "moves", "successor",
    ]  # fmt: skip
    finish(world)


def test_a_single_server_that_becomes_slow_gets_a_successor() -> None:
    world = trained(HotWorld(ps=1))
    slow = world.process(0)
    world.speed[slow] = 0.2
    until(world, lambda: world.told("is late"))
    assert "of its speed then" in world.notes[0].text
    until(world, lambda: world.told("a step takes"))
    assert world.owned(0) == 0 and slow not in {pod.process for pod in world.state.servers()}
    finish(world)


def test_too_much_traffic_moves_by_traffic_and_stays_there() -> None:
    world = trained(HotWorld(ps=2, balance=BalanceRules(seconds=3.0, sample_seconds=0.2, pause_seconds=4.0)), 1.0)
    hot = [vshard for vshard, place in enumerate(world.state.document.routing.owner) if place == 0]
    world.traffic = lambda vshard: 8e6 if vshard in hot else 1e6
    until(world, lambda: world.told("vshards move;"))
    assert world.told("is late")[0].data["cause"] == "load"
    assert "of it for table 'b'" in world.told("is late")[0].text
    until(world, world.rest)
    version = world.state.document.routing.version
    rounds(world, 30.0)
    assert world.state.document.routing.version - version <= 1, "no vshard goes to and fro"
    assert max(world.parts().values()) < 0.56
    finish(world)


def test_a_heavy_vshard_is_named_and_its_place_gets_more_cores_from_all_others() -> None:
    world = trained(HotWorld(ps=2, mode=Mode.AUTO), 1.0)
    world.work = 0.45
    world.traffic = lambda vshard: 3e9 if vshard == 7 else 1e6
    place = world.state.document.routing.owner[7]
    before = sum(shares(world.state).values())
    until(world, lambda: world.told("cores instead of"))
    (late,) = world.told("is late")
    assert "(vshard 7), 75% of it for table 'b'" in late.text and late.data["cause"] == "vshard"
    share = shares(world.state)
    names = {pod.slot[1]: pod.name for pod in world.state.servers()}
    assert share[names[place]] > 0.6 and sum(share.values()) <= before + 1e-9
    until(world, lambda: world.told("a step takes"))
    rounds(world, 10.0)
    assert len(world.told("cores instead of")) == 1, "once"


def test_whoever_fixed_the_plan_keeps_even_shares() -> None:
    world = trained(HotWorld(ps=2), 1.0)
    world.traffic = lambda vshard: 3e9 if vshard == 7 else 1e6
    until(world, lambda: "nothing more can be done" in str(world.findings))
    assert len({cpu for name, cpu in shares(world.state).items() if name.startswith("ps")}) == 1
    assert not world.state.hot.acting, "the plan may be looked at again"


def test_advice_is_only_said() -> None:
    world = trained(HotWorld(mode=Mode.ADVISE))
    version, world.speed[world.process(1)] = world.state.document.routing.version, 0.1
    until(world, lambda: world.findings)
    (text,) = world.findings.values()
    assert text.endswith("; advice only: another one would take its place")
    rounds(world, 10.0)
    assert world.state.document.routing.version == version and len(world.names) == 5
    assert len(world.told("is late")) == 1 and not world.state.hot.acting


def test_without_room_for_a_successor_everything_moves_away_from_a_very_slow_one() -> None:
    plan = plan_of(3, 2)
    world = trained(HotWorld(limits=Limits(9.0, plan.memory_bytes, 9, 9)))
    world.speed[world.process(2)] = 0.05
    until(world, lambda: world.told("vshards move;"))
    until(world, lambda: world.owned(2) == 0)
    until(world, lambda: world.told("after all its vshards moved"))
    assert not world.told("did not help") and world.state.active("ps") == [0, 1, 2]
    rounds(world, 10.0)
    assert world.owned(2) == 0
    finish(world)


def test_a_successor_begins_with_as_little_memory_as_there_is_and_gets_the_plans_when_the_old_one_is_gone() -> None:
    plan = plan_of(3, 2)
    tight = Plan(replace(plan.ps, memory_bytes=2**30), plan.worker)
    cap = tight.memory_bytes + 300 * 2**20
    world = trained(HotWorld(plan=tight, limits=Limits(9.0, cap, 9, 9)))
    world.speed[world.process(2)] = 0.05
    until(world, lambda: world.told("takes over"))
    sizes = {pod.name: pod.memory_bytes for pod in world.pods}
    assert sizes["ps-3-t1-g1"] == 300 * 2**20 and sum(sizes.values()) <= cap
    until(world, lambda: world.told("a step takes"))
    rounds(world, 1.0)
    sizes = {pod.name: pod.memory_bytes for pod in world.pods}
    assert sizes["ps-3-t1-g1"] == 2**30 and sum(sizes.values()) == tight.memory_bytes


def test_one_that_recovers_gets_its_vshards_back_once_and_not_twice() -> None:
    world = trained(HotWorld())
    slow = world.process(0)
    world.speed[slow] = 0.45
    until(world, lambda: world.told("a step takes"))
    few = world.owned(0)
    rounds(world, 8.0)
    assert world.owned(0) == few, "it is as slow as it was"
    world.speed[slow] = 1.0
    until(world, lambda: world.told("go back"))
    until(world, lambda: world.rest() and world.owned(0) > 150)
    world.speed[slow] = 0.45
    until(world, lambda: world.told("takes over"))
    assert len(world.told("go back")) == 1 and len(world.told("vshards move;")) == 1
    finish(world)


def test_a_successor_that_does_not_come_up_is_given_up() -> None:
    world = trained(HotWorld())
    world.speed[world.process(1)] = 0.1
    until(world, lambda: any(role == "ps" for role, _ in world.state.successions))
    world.born_processes = lambda: None  # type: ignore[method-assign]
    until(world, lambda: world.told("nobody takes the place"))
    assert world.state.active("ps") == [0, 1, 2] and world.owned(1)
    until(world, lambda: world.owned(1) == 0)
    assert world.told("vshards move;"), "the next thing is tried"


def test_all_that_lack_cores_are_no_hot_server() -> None:
    world = HotWorld()
    until(world, world.rest)
    world.work, world.cost = 0.52, 0.02
    until(world, lambda: world.findings)
    (subject,) = world.findings
    assert subject == "parameter servers" and "more memory would not" in world.findings[subject]
    assert world.notes == []


def test_nothing_is_begun_that_the_job_would_not_live_to_see() -> None:
    world = trained(HotWorld(batches=150), 1.0)
    world.speed[world.process(1)] = 0.1
    until(world, lambda: "over before anything could help" in str(world.findings))
    finish(world)
    assert len(world.names) == 5


def test_what_copies_cost_is_nobodys_fault() -> None:
    world = trained(HotWorld())
    world.speed[world.process(1)] = 0.1
    deliver = world.deliver_request

    def copying(at: int = 0, again: bool = False) -> None:
        before = len(world.reports)
        deliver(at, again)
        for place, said in enumerate(world.reports[before:], before):
            world.reports[place] = replace(said, report=replace(said.report, copying=True))

    world.deliver_request = copying  # type: ignore[method-assign]
    rounds(world, 10.0)
    assert world.notes == []
