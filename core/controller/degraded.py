"""What does not work around a job, and what the job goes on without.

A disk fills up, a store goes away, a control group is taken back: none of that is a reason to stop training, and all of
it is something that somebody should know as long as it lasts. So each is a finding from the moment it is seen until it
is over, with an event at both ends. What lies outside is told by the driver, which looks every second (`troubles_of`
makes words of what it sees); what pods report, and what takes too long, is seen here.

The controller's own delays belong here, too: whoever was not listened to has not been silent.
"""

from __future__ import annotations

from collections.abc import Iterator

from trimtab.core.controller.inputs import Late, Noticed, Trouble
from trimtab.core.controller.state import Draft, State
from trimtab.core.domain.records import Finding
from trimtab.core.domain.values import replace

SLOW_COMMIT_SECONDS = 10.0
SLOW_ROUND_SECONDS = 60.0  # or the time between two checkpoints, if that is longer


def troubles_of(
    *, events: str = "", files: str = "", history: str = "", cpu: str = "", memory: str = "", said: str = "",
    machine: str = "",
) -> tuple[Trouble, ...]:  # fmt: skip
    """What is wrong outside, from what each part says of itself; "" for nothing.

    Args:
        events: why the events file is not written. files: why other files of the job's directory are not.
        history: why the history does not have the run yet.
        cpu, memory: why pods are not held to what they get. said: what was told of that before the job began.
        machine: why the machine is not shared with other jobs.
    """
    found = []
    if events:
        found.append(Trouble("events", "events.jsonl", f"events wait in memory: {events}"))
    if files:
        found.append(Trouble("disk", "job directory", files))
    if history:
        found.append(Trouble("history", "history", history))
    if cpu:
        found.append(Trouble("cpu", "shares", cpu, said=cpu == said))
    if memory:
        found.append(Trouble("memory", "limits", memory, said=True))
    if machine:
        found.append(Trouble("machine", "capacity", machine))
    return tuple(found)


def take_troubles(draft: Draft, noticed: Noticed) -> None:
    """Keep what is wrong outside; `watch_troubles` makes findings of it."""
    draft.state = replace(draft.state, noticed=noticed.troubles)


def watch_troubles(draft: Draft) -> None:
    """Bring the findings up to date, and tell what is new and what is over."""
    state = draft.state
    wanted = {(one.kind, one.subject): one for one in (*state.noticed, *_seen(state, draft.now))}
    known = {key: state.findings[key].text for key in state.degraded if key in state.findings}
    if known == {key: one.text for key, one in wanted.items()}:
        return
    findings, seconds = dict(state.findings), state.seconds(draft.now)
    for key in sorted(state.degraded - wanted.keys()):
        over = findings.pop(key, None)
        if over is not None:
            text = f"over after {seconds - over.since_seconds:.0f} s: {over.text}"
            draft.note("recovered", text, trouble=over.kind, subject=over.subject)
    for key, one in wanted.items():
        before = findings.get(key)
        since = before.since_seconds if before is not None else seconds
        findings[key] = Finding(one.kind, one.subject, one.text, since)
        if before is None and not one.said:
            draft.note("degraded", one.text, trouble=one.kind, subject=one.subject)
    draft.state = replace(state, findings=findings, degraded=frozenset(wanted))


def _seen(state: State, now: float) -> Iterator[Trouble]:
    """What the state itself tells."""
    settings, error = state.settings, state.checkpoints.error
    if error:
        held = f"the one before holds {len(state.manifest.applied())} of {settings.batches} batches"
        yield Trouble("disk", "checkpoints", f"the last checkpoint could not be written: {error}; {held}")
    if state.committing_since is not None and now - state.committing_since > SLOW_COMMIT_SECONDS:
        text = f"the job's state is on its way to its store for more than {SLOW_COMMIT_SECONDS:g} s"
        yield Trouble("disk", "state", f"{text}; checkpoints, moves and changes of the plan wait for it")
    slow = max(SLOW_ROUND_SECONDS, settings.checkpoint_seconds)
    if state.round is not None and now - state.round.began_at > slow:
        text = f"copies for a checkpoint take more than {slow:g} s to write"
        yield Trouble("disk", "copies", f"{text}; the next checkpoint waits for them")
    for pod in state.servers():
        if pod.report is not None and pod.report.snapshot_error:
            text = f"{pod.name} can't write snapshots: {pod.report.snapshot_error}"
            yield Trouble("disk", f"snapshots of {pod.role}-{pod.slot[1]}", f"{text}; checkpoints are all there is")


def catch_up(draft: Draft, late: Late) -> None:
    """Nobody was silent while the controller did not listen: what was waited for gets the same time once more."""
    state, now = draft.state, draft.now

    def later(at: float | None) -> float | None:
        return None if at is None else min(now, at + late.seconds)

    pods = {
        name: replace(
            pod, wanted_at=min(now, pod.wanted_at + late.seconds), heard_at=later(pod.heard_at),
            worked_at=min(now, pod.worked_at + late.seconds),
        )
        for name, pod in state.pods.items()
    }  # fmt: skip
    coming = {
        key: replace(one, began_at=min(now, one.began_at + late.seconds)) for key, one in state.successions.items()
    }
    running, stop = state.round, state.stop
    draft.state = replace(
        state, pods=pods, successions=coming, unserved_at=later(state.unserved_at), loading_at=later(state.loading_at),
        committing_since=later(state.committing_since),
        round=None if running is None else replace(running, began_at=min(now, running.began_at + late.seconds)),
        stop=None if stop is None else replace(stop, unserved_at=later(stop.unserved_at)),
    )  # fmt: skip
    draft.note("late", f"the controller could not look at anything for {late.seconds:.1f} s", seconds=late.seconds)
