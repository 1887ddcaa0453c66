"""Vshards follow what is measured: level when it pays, still while a move is prepared, never for noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from controller_world import World, plan_of, settings

from trimtab.core.controller.actions import Action, Note
from trimtab.core.controller.moving import transfers
from trimtab.core.controller.spreading import BalanceRules, loads, unevenness, weights
from trimtab.core.controller.state import Phase, first_state
from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.domain.job import JobState, Mode
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.domain.plan import Limits
from trimtab.core.wire.messages import from_bitmap

BATCHES = 2400
RULES = BalanceRules(seconds=2.0, pause_seconds=8.0, sample_seconds=0.2)
MEGABYTE = 1e6


class LoadedWorld(World):
    """A world whose parameter servers tell rows and traffic of what they serve, by laws that the test may change."""

    def __init__(self, ps: int = 2, rules: BalanceRules = RULES, batches: int = BATCHES) -> None:
        caps = Limits(9.0, 2**40, 9, 9)
        chosen = settings(batches=batches, checkpoint_seconds=1e9, limits=caps, balance=rules)
        self.traffic: Callable[[int], float] = lambda vshard: MEGABYTE
        self.rows: Callable[[int], int] = lambda vshard: 10_000
        self.notes: list[Note] = []
        self.slow = False  # nothing that is being prepared gets done
        super().__init__(chosen, plan_of(ps, 1))

    def deliver_request(self, at: int = 0, again: bool = False) -> None:
        before = len(self.reports)
        super().deliver_request(at, again)
        for place, said in enumerate(self.reports[before:], before):
            served = {vshard for told in said.report.served for vshard in from_bitmap(told.vshards)}
            traffic = tuple(self.traffic(vshard) if vshard in served else 0.0 for vshard in range(VSHARDS))
            rows = tuple(self.rows(vshard) if vshard in served else 0 for vshard in range(VSHARDS))
            report = replace(said.report, vshard_traffic=traffic, vshard_rows=rows)
            self.reports[place] = replace(said, report=replace(report, staged=()) if self.slow else report)

    def feed(self, *inputs: object) -> list[Action]:
        actions = super().feed(*inputs)  # type: ignore[arg-type]
        self.notes += [one for one in actions if isinstance(one, Note) and one.kind == "balance"]
        return actions

    @property
    def ratio(self) -> float:
        """The fullest place's true load over the mean."""
        owner = self.state.document.routing.owner
        weight = weights([self.rows(v) for v in range(VSHARDS)], [self.traffic(v) for v in range(VSHARDS)])
        assert weight is not None
        return unevenness(loads(owner, weight, self.state.active("ps")))

    def rest(self) -> bool:
        state = self.state
        return state.phase is Phase.TRAINING and state.ledger.served and not state.moving and not state.tenancies


def until(world: LoadedWorld, done: Callable[[], object], rounds: int = 150) -> None:
    for _ in range(rounds):
        if done():
            return
        world.round()
    state = world.state
    raise AssertionError(f"never: {state.document.plan}, {state.phase}, moving {state.moving}, {world.notes}")


def rounds(world: LoadedWorld, seconds: float) -> None:
    for _ in range(round(seconds / 0.2)):
        world.round()


def hot_half(world: LoadedWorld, place: int = 0, times: int = 4) -> None:
    """What lies at a place now has four times the traffic of the rest, from now on."""
    hot = {vshard for vshard, at in enumerate(world.state.document.routing.owner) if at == place}
    world.traffic = lambda vshard: MEGABYTE * (times if vshard in hot else 1)


def finish(world: LoadedWorld) -> None:
    assert world.until_end(1500).state is JobState.FINISHED
    numbers = sorted(number for grant in world.lent if grant.kind == "train" for number in range(grant.lo, grant.hi))
    assert numbers == list(range(world.state.settings.batches)), "nobody lost anything, so nothing was lent twice"
    assert world.state.manifest.applied() == IntervalSet.span(0, world.state.settings.batches)


def test_a_place_that_takes_most_of_the_traffic_gives_some_away_and_says_why():
    world = LoadedWorld(batches=1000)
    until(world, world.rest)
    hot_half(world)
    before = world.state.document.routing.owner
    assert world.ratio > 1.25
    until(world, lambda: world.notes)
    until(world, lambda: world.rest() and world.state.document.routing.owner != before)
    assert world.ratio < 1.02
    after = world.state.document.routing.owner
    moved = [vshard for vshard in range(VSHARDS) if after[vshard] != before[vshard]]
    assert {before[vshard] for vshard in moved} == {0}, "who has little gives nothing"
    (note,) = world.notes
    assert note.text == f"PS 0 takes 80% of the traffic: {len(moved)} vshards move"
    rounds(world, 3 * RULES.pause_seconds)
    assert len(world.notes) == 1, "level is level"
    finish(world)


def test_rows_count_as_much_as_traffic():
    world = LoadedWorld()
    until(world, world.rest)
    full = {vshard for vshard, place in enumerate(world.state.document.routing.owner) if place == 1}
    world.rows = lambda vshard: 40_000 if vshard in full else 10_000
    until(world, lambda: world.notes)
    assert world.notes[0].text.startswith("PS 1 holds 80% of the rows: ")
    until(world, lambda: world.rest() and world.ratio < 1.02)


def slightly(world: LoadedWorld) -> None:
    hot = {vshard for vshard, place in enumerate(world.state.document.routing.owner) if place == 0}
    world.traffic = lambda vshard: MEGABYTE * (2.0 if vshard in hot else 1)  # half of it counts: ratio 1.17


def tiny(world: LoadedWorld) -> None:
    hot = {vshard for vshard, place in enumerate(world.state.document.routing.owner) if place == 0}
    world.rows = lambda vshard: 10_000 if vshard in hot else 100
    world.traffic = lambda vshard: 2000 if vshard in hot else 20  # half a megabyte a second in all


def idle(world: LoadedWorld) -> None:
    tiny(world)
    world.traffic = lambda vshard: 0.0


def few_rows(world: LoadedWorld) -> None:
    """The first rows of a job, and the first pushes."""
    hot = {vshard for vshard, place in enumerate(world.state.document.routing.owner) if place == 0}
    world.rows = lambda vshard: 3 if vshard in hot else 1
    world.traffic = lambda vshard: 2500.0


@pytest.mark.parametrize("law", [slightly, tiny, idle, few_rows])
def test_what_is_slight_tiny_or_idle_moves_nothing(law: Callable[[LoadedWorld], None]):
    world = LoadedWorld()
    until(world, world.rest)
    law(world)
    version = world.state.document.routing.version
    rounds(world, 4 * RULES.seconds)
    assert world.notes == [] and world.state.document.routing.version == version
    assert world.state.balance.samples > 5, "it was looked at"


def test_a_burst_moves_nothing():
    world = LoadedWorld(rules=replace(RULES, seconds=4.0))
    until(world, world.rest)
    rounds(world, 6.0)
    for _ in range(3):
        hot_half(world)
        rounds(world, 2.0)
        assert world.state.balance.hot_since is not None
        world.traffic = lambda vshard: MEGABYTE
        rounds(world, 4.0)
        assert world.state.balance.hot_since is None
    assert world.notes == []


def test_traffic_that_a_new_owner_has_not_seen_yet_is_not_believed():
    world = LoadedWorld(ps=1)
    until(world, world.rest)
    world.wish(plan_of(2, 1))
    until(world, lambda: world.rest() and len(set(world.state.document.routing.owner)) == 2)
    version, seen = world.state.document.routing.version, world.clock.now()
    told = world.traffic
    world.traffic = lambda vshard: (
        told(vshard) if world.clock.now() > seen + 1.5 * RULES.seconds
        or world.state.document.routing.owner[vshard] == 0 else 0.0
    )  # fmt: skip
    rounds(world, 4 * RULES.seconds)
    assert world.state.document.routing.version == version and world.notes == []


def test_the_layout_holds_still_while_a_move_is_prepared_whatever_is_measured():
    world = LoadedWorld(ps=1, rules=replace(RULES, seconds=0.4))
    until(world, world.rest)
    world.wish(plan_of(3, 1))
    until(world, lambda: transfers(world.state))
    wanted, layout = transfers(world.state), world.state.layout
    world.slow = True
    for turn in range(20):
        world.traffic = lambda vshard, turn=turn: MEGABYTE * (1 + (vshard * 7 + turn * 31) % 64)  # type: ignore[misc]
        world.round()
        assert transfers(world.state) == wanted and world.state.layout is layout
    world.slow = False
    until(world, lambda: world.rest() and world.state.layout.target == world.state.document.routing.owner)
    assert world.state.layout is layout


def test_a_third_place_takes_a_third_of_the_load_not_of_the_count():
    world = LoadedWorld(rules=replace(RULES, ratio=100.0), batches=600)  # never levels by itself
    world.traffic = lambda vshard: MEGABYTE * (30 if vshard < 40 else 1)
    until(world, world.rest)
    until(world, lambda: world.state.balance.samples > 2)
    world.wish(plan_of(3, 1))
    until(world, lambda: world.rest() and len(set(world.state.document.routing.owner)) == 3)
    assert world.ratio < 1.03
    counts = [world.state.document.routing.owner.count(place) for place in range(3)]
    assert max(counts) - min(counts) > 20, "few hot ones weigh as much as many cold ones"
    world.wish(plan_of(1, 1))
    until(world, lambda: set(world.state.document.routing.owner) == {0})
    finish(world)


def test_a_levelling_without_room_is_given_up_and_the_plan_stays():
    world = LoadedWorld()
    until(world, world.rest)
    hot_half(world)
    plan, owner = world.state.document.plan, world.state.document.routing.owner
    for server in world.servers.values():
        server.move_error = "table has no room"
    until(world, lambda: len(world.notes) == 2)
    assert world.notes[1].text.endswith("table has no room") and world.rest()
    for server in world.servers.values():
        server.move_error = ""
    rounds(world, 2.0)
    assert world.state.document.plan == plan and world.state.decisions == ()
    assert world.state.document.routing.owner == owner
    until(world, lambda: world.rest() and world.ratio < 1.02, 300)  # tried again after the doubled pause


def test_one_vshard_that_is_too_hot_for_any_place_stays_and_is_told_now_and_then():
    world = LoadedWorld()
    until(world, world.rest)
    world.traffic = lambda vshard: 0.0 if vshard else 9 * MEGABYTE
    world.rows = lambda vshard: 0 if vshard else 1_000_000
    rounds(world, 15.0)
    assert len(world.notes) >= 1 and "moves would not help: a single vshard is 9" in world.notes[0].text
    assert world.state.document.routing.version == 1
    rounds(world, 30.0)
    assert len(world.notes) == 3, "after 8 and 16 seconds more"


def test_levellings_keep_a_growing_distance():
    world = LoadedWorld(rules=replace(RULES, seconds=0.4))
    until(world, world.rest)
    times: list[float] = []
    while len(times) < 4:
        hot_half(world, len(times) % 2, 20)
        count = len(world.notes)
        until(world, lambda count=count: len(world.notes) > count, 300)  # type: ignore[misc]
        times.append(world.clock.now())
        until(world, world.rest)
    gaps = [round(later - before) for before, later in pairwise(times)]
    assert gaps == [8, 16, 32]


@pytest.mark.parametrize("victim", ["ps-0-t1-g1", "ps-1-t1-g1"])
@pytest.mark.parametrize("moment", ["prepared", "swapped"])
def test_a_server_that_dies_while_loads_are_levelled_costs_only_repairs(victim: str, moment: str):
    world = LoadedWorld(batches=600)
    until(world, world.rest)
    hot_half(world)
    world.slow = True
    until(world, lambda: world.state.moving)
    layout = world.state.layout
    if moment == "swapped":
        world.slow = False
        while not world.state.tenancies:
            world.tick()
            while world.requests and not world.state.tenancies:
                world.deliver_request()
            while world.reports:
                world.deliver_report()
            while world.commits:
                world.commit()
        world.requests.clear()
    world.kill(victim)
    world.slow = False
    until(world, lambda: world.rest() and world.state.document.routing.owner == layout.target)
    until(world, lambda: world.rest() and world.ratio < 1.02)
    assert world.until_end(1500).state is JobState.FINISHED
    assert world.state.manifest.applied() == IntervalSet.span(0, world.state.settings.batches)


def test_a_new_controller_takes_the_owners_as_they_are():
    world = LoadedWorld()
    until(world, world.rest)
    hot_half(world)
    until(world, lambda: world.rest() and world.ratio < 1.02)
    document = world.state.document
    counts = {document.routing.owner.count(place) for place in (0, 1)}
    assert max(counts) - min(counts) > 2
    world.state = first_state(world.state.settings, document, world.state.manifest)
    for kind in (world.requests, world.reports, world.calls, world.answers, world.commits):
        kind.clear()
    rounds(world, 1.0)  # everything is given to the places' new processes; nothing goes elsewhere
    until(world, world.rest)
    assert world.state.document.routing.owner == document.routing.owner


def test_in_mode_advise_it_is_only_said() -> None:
    world = LoadedWorld()
    world.state = replace(world.state, settings=replace(world.state.settings, mode=Mode.ADVISE))
    until(world, world.rest)
    hot_half(world)
    version = world.state.document.routing.version
    until(world, lambda: world.notes)
    rounds(world, 3 * RULES.seconds)
    assert world.notes[0].text.endswith("vshards would move: advice only")
    assert world.state.document.routing.version == version and len(world.notes) == 1


class StagedWorld(LoadedWorld):
    """Moves are prepared, and their refreshes bring what the test says, one value with each report."""

    refreshed: list[int]
    given = 0

    def deliver_request(self, at: int = 0, again: bool = False) -> None:
        before = len(self.reports)
        super().deliver_request(at, again)
        for place, said in enumerate(self.reports[before:], before):
            if said.report.staged and self.refreshed:
                rows = self.refreshed.pop(0) if len(self.refreshed) > 1 else self.refreshed[0]
                self.given += self.state.document.routing.version == 1
                staged = tuple(replace(one, refreshed_rows=rows) for one in said.report.staged)
                self.reports[place] = replace(said, report=replace(said.report, staged=staged))


@pytest.mark.parametrize(
    ("refreshed", "reports"),
    [
        ([10_000], 1),  # little is left
        ([400_000, 200_000, 100_000, 50_000, 25_000], 5),  # less each time: worth waiting for
        ([400_000, 200_000, 190_000, 10], 3),  # hardly less: it will not become less
        ([400_000], 10),  # nothing new: in time all the same
    ],
)
def test_a_prepared_move_waits_as_long_as_that_makes_it_shorter(refreshed: list[int], reports: int) -> None:
    world = StagedWorld(ps=1)
    world.refreshed = list(refreshed)
    until(world, world.rest)
    world.wish(plan_of(2, 1))
    until(world, lambda: world.state.document.routing.version > 1)
    assert world.given == reports
