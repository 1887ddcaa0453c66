"""How each kind of event of a schedule is brought about in the simulated world.

A fault touches what the real one would touch: a process, the cluster, the wires, the store, the clock. Nothing is put
into the controller's state; it has to find out. What a schedule asks for and does not find (a pod that is not there) is
left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from trimtab.core.controller.caps import least_plan
from trimtab.core.controller.changing import servers_needed
from trimtab.core.controller.inputs import CapsChanged, CheckpointRequested, Decided, StopRequested
from trimtab.core.controller.state import Phase
from trimtab.core.domain.job import Mode
from trimtab.core.domain.plan import Limits, Plan, within
from trimtab.core.domain.records import Decision
from trimtab.core.domain.values import replace
from trimtab.core.simulator.network import Weather
from trimtab.core.simulator.processes import Process
from trimtab.core.simulator.schedules import Event

if TYPE_CHECKING:
    from trimtab.core.simulator.job_world import JobWorld

Words = dict[str, Any]
TRY_AGAIN_SECONDS, MOST_TRIES = 1.0, 20
STOP_SECONDS = 60.0  # that a stop with a last checkpoint may take at most, whatever else is wrong


def carry_out(world: JobWorld, event: Event) -> None:
    """Let an event happen now."""
    world.tell("EVENT", str(event))
    world.promises.thrash.stimulus()
    _KINDS[event.kind](world, event.words)


def _weather(world: JobWorld, words: Words) -> None:
    fate = Weather(words["lost"], words["doubled"], words["late"], words["late_seconds"])
    mine = dict.fromkeys(words["planes"], fate)
    world.network.weather = {**world.network.weather, **mine}
    world.disturb(words["seconds"] + words["late_seconds"])

    def clear() -> None:
        kept = {plane: one for plane, one in world.network.weather.items() if mine.get(plane) is not one}
        world.network.weather = kept

    world.loop.after(words["seconds"], clear)


def _some(world: JobWorld, words: Words, role: str = "") -> Process | None:
    """The process that an event is about."""
    pods = world.living(role or words["role"])
    return world.process_in(pods[words["which"] % len(pods)]) if pods else None


def _kill(world: JobWorld, words: Words) -> None:
    found = _some(world, words)
    if found is not None and world.life is not None:
        world.life.cluster.kill(found.pod)
        world.bury(found)


def _kill_all_ps(world: JobWorld, words: Words) -> None:
    for _ in world.living("ps"):
        _kill(world, {"role": "ps", "which": 0})


def _zombie(world: JobWorld, words: Words) -> None:
    """The cluster says that a pod is gone, and its process lives on."""
    found = _some(world, words)
    if found is not None and world.life is not None:
        world.life.cluster.evict(found.pod)
        world.forget(found.pod)
        world.loop.after(world.loop.random.uniform(2.0, 20.0), partial(world.bury, found))


def _hang(world: JobWorld, words: Words) -> None:
    found = _some(world, words)
    if found is not None:
        found.hung_until = world.loop.clock.now() + words["seconds"]
        world.disturb(words["seconds"])


def _spawn_fails(world: JobWorld, words: Words) -> None:
    world.failing[f"spawn_{words['role']}"] = words["times"]
    _kill(world, {"role": words["role"], "which": 0})


def _spawn_slow(world: JobWorld, words: Words) -> None:
    world.spawn_seconds = words["seconds"]
    _for_a_while(world, 20.0, lambda: setattr(world, "spawn_seconds", 0.0))


def _stale_view(world: JobWorld, words: Words) -> None:
    world.view_seconds = words["seconds"] / 4
    _for_a_while(world, words["seconds"], lambda: setattr(world, "view_seconds", 0.0))


def _for_a_while(world: JobWorld, seconds: float, then: Callable[[], None]) -> None:
    def over() -> None:
        then()
        world.promises.thrash.stimulus()

    world.disturb(seconds)
    world.loop.after(seconds, over)


def _commit_hangs(world: JobWorld, words: Words) -> None:
    world.commits_hang_until = world.loop.clock.now() + words["seconds"]
    world.disturb(words["seconds"])


def _copy_hangs(world: JobWorld, words: Words) -> None:
    world.hanging_until = world.loop.clock.now() + words["seconds"]
    world.disturb(words["seconds"])


def _fails(kind: str) -> Callable[[JobWorld, Words], None]:
    def fail(world: JobWorld, words: Words) -> None:
        world.failing[kind] = words["times"]

    return fail


def _slow(role: str) -> Callable[[JobWorld, Words], None]:
    """A place's host is busy: whatever runs there takes so many times as long, also what comes after it."""

    def slow(world: JobWorld, words: Words) -> None:
        found = _some(world, words, role)
        if found is None:
            return
        place = role, int(found.pod.split("-")[1])
        world.slow[place] = found.slow = words["times"]

        def recover() -> None:
            world.slow.pop(place, None)
            for pod in world.living(role):
                process = world.process_in(pod)
                if process is not None and int(pod.split("-")[1]) == place[1]:
                    process.slow = 1.0

        if words["seconds"] < 1e5:
            _for_a_while(world, words["seconds"], recover)

    return slow


def _hot_ps(world: JobWorld, words: Words) -> None:
    """Vshards that lie at one place now get more traffic than the others."""
    routing = world.life.state.document.routing if world.life is not None else None
    if routing is None or not routing.version:
        world.make_hot(range(words["vshards"]), words["times"])
        return
    places = sorted(set(routing.owner))
    place = places[words["which"] % len(places)]
    mine = [vshard for vshard, owner in enumerate(routing.owner) if owner == place]
    world.make_hot(mine[: words["vshards"]], words["times"])


def _oom(world: JobWorld, words: Words) -> None:
    """The kernel kills a pod over its memory, so many times in a row at the same place."""
    found = _some(world, words)
    if found is None:
        return
    role, place = words["role"], int(found.pod.split("-")[1])

    def strike(left: int) -> None:
        for pod in world.living(role):
            if int(pod.split("-")[1]) == place and left:
                world.out_of_memory(pod)
                left -= 1
        if left:
            world.disturb(2 * world.schedule.boot_seconds)
            world.loop.after(world.schedule.boot_seconds, lambda: strike(left if tries() else 0))

    left_tries = iter(range(8 * words["times"]))

    def tries() -> bool:
        return next(left_tries, None) is not None

    strike(words["times"])


def _growth(world: JobWorld, words: Words) -> None:
    """The schedule's tables grow from the start on; nothing more is to be done."""


def _clock_step(world: JobWorld, words: Words) -> None:
    """The machine stood still: everybody finds that time has passed."""
    world.loop.clock.advance(words["seconds"])
    world.disturb(0.0)


def _change(world: JobWorld, words: Words) -> None:
    """Pods and maybe shares as an optimizer might want them; copies may be asked for in the same moment."""
    if words["copies"]:
        world.loop.after(world.schedule.tick_seconds, partial(_checkpoint, world, {}))
    _decide(world, lambda plan: Plan(
        replace(plan.ps, replicas=words["ps"]), replace(plan.worker, replicas=words["workers"]),
    ), MOST_TRIES, whole=words["whole"])  # fmt: skip


def _cores(world: JobWorld, words: Words) -> None:
    _decide(
        world, lambda plan: Plan(replace(plan.ps, cpu=words["ps"]), replace(plan.worker, cpu=words["worker"])),
        MOST_TRIES,
    )  # fmt: skip


def _decide(world: JobWorld, other: Callable[[Plan], Plan], tries: int, *, whole: bool = False) -> None:
    """Decide as an optimizer might, as soon as a decision can be taken, and within the caps."""
    life = world.life
    if life is None or life.state.phase is not Phase.TRAINING or life.state.wish is not None:
        if tries:
            world.disturb(TRY_AGAIN_SECONDS)
            world.loop.after(TRY_AGAIN_SECONDS, lambda: _decide(world, other, tries - 1, whole=whole))
        return
    present = life.state.document.plan
    plan = other(present)
    cap = life.state.settings.limits.cpu or 0.0
    if plan.cpu > cap or whole:
        share = math.floor(cap / plan.cpu * 1000) / 1000
        plan = Plan(replace(plan.ps, cpu=plan.ps.cpu * share), replace(plan.worker, cpu=plan.worker.cpu * share))
    if plan != present and within(plan, life.state.settings.limits):
        now = life.state.seconds(world.loop.clock.now())
        life.feed(Decided(Decision(now, "replace", plan, "as scheduled", action=f"To {plan}", before=present)))


def _caps(world: JobWorld, words: Words) -> None:
    """Others come to this machine, or go; only a job that may change its plan is asked for room."""
    if world.schedule.mode is not Mode.AUTO:
        return
    whole, life = world.limits, world.life
    if life is None:
        return
    least = least_plan(life.state, servers_needed(life.state, world.loop.clock.now())).cpu
    cpu = max(least, round(world.schedule.cpu * words["share"], 3))
    _set_caps(world, replace(whole, cpu=cpu))
    if words["seconds"] < 1e5:
        _for_a_while(world, words["seconds"], lambda: _set_caps(world, replace(whole, cpu=world.schedule.cpu)))


def _set_caps(world: JobWorld, limits: Limits) -> None:
    world.limits = limits
    world.promises.caps_changed(limits)
    if world.life is not None:
        world.life.feed(CapsChanged(limits))


def _checkpoint(world: JobWorld, words: Words) -> None:
    if world.life is not None:
        world.life.feed(CheckpointRequested())


def _stop(world: JobWorld, words: Words) -> None:
    """A stop in order; the job goes on later."""
    world.resume_seconds = words["pause"]
    if world.life is not None:
        world.promises.stop_asked()
        world.disturb(STOP_SECONDS)
        world.life.feed(StopRequested("stopped by the schedule"))


def _stop_now(world: JobWorld, words: Words) -> None:
    world.resume_seconds = words["pause"]
    if world.life is not None:
        world.life.feed(StopRequested("stopped at once by the schedule", now=True))


def _controller_dies(world: JobWorld, words: Words) -> None:
    """Its processes live on for a while, and somebody goes on with the job."""
    life = world.life
    if life is None:
        return
    life.die()
    world.life = None
    for role in ("ps", "worker"):
        for pod in world.living(role):
            orphan = world.forget(pod)
            if orphan is not None:
                world.loop.after(world.loop.random.uniform(0.0, words["orphans"]), partial(world.bury, orphan))
    world.disturb(words["pause"] + words["orphans"])
    world.loop.after(words["pause"], world.resume)


_KINDS: dict[str, Callable[[JobWorld, Words], None]] = {
    "weather": _weather, "kill": _kill, "kill_all_ps": _kill_all_ps, "zombie": _zombie, "hang": _hang,
    "spawn_fails": _spawn_fails, "spawn_slow": _spawn_slow, "stale_view": _stale_view,
    "commit_fails": _fails("commit_fails"), "commit_hangs": _commit_hangs, "copy_fails": _fails("copy_fails"),
    "copy_hangs": _copy_hangs, "slow_worker": _slow("worker"), "slow_ps": _slow("ps"), "hot_ps": _hot_ps,
    "oom": _oom, "growth": _growth, "clock_step": _clock_step, "change": _change, "cores": _cores, "caps": _caps,
    "checkpoint": _checkpoint, "stop": _stop, "stop_now": _stop_now, "controller_dies": _controller_dies,
}  # fmt: skip
