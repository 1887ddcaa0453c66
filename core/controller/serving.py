"""Who serves which vshard, and telling them so until their reports show it done.

Every change of owner is first a compare-and-swap with a new `since`; parameter servers are told after it, with the
freshest source of rows: the server that hands them over (`moving`), else the committed manifest. A restarted parameter
server is a new process and owns nothing until routing names it. What is said is level-triggered: each call carries
everything that the process should serve.
"""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.core.controller.actions import CommitDocument, SendPs
from trimtab.core.controller.balance import keep_balance
from trimtab.core.controller.inputs import CommitResult, PsSaid
from trimtab.core.controller.moving import (
    drop_orders,
    hear_about_moves,
    next_routing,
    owned_places,
    prepare_orders,
    serve_orders,
    tenancies_after,
    watch_preparation,
)
from trimtab.core.controller.pods import end_job, lose_pod
from trimtab.core.controller.shares import table_limit
from trimtab.core.controller.spreading import spread
from trimtab.core.controller.state import MOST_FAILED_ROUNDS, Draft, Phase, Pod, Slot, State, pause_seconds
from trimtab.core.domain.job import JobState
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.domain.values import replace
from trimtab.core.wire.messages import CopyOrder, PsSync


def hear_ps(draft: Draft, said: PsSaid) -> None:
    """Take in a parameter server's report; from a pod that should not run it means nothing."""
    pod, report = draft.state.pods.get(said.pod), said.report
    if pod is None or pod.role != "ps":
        return
    if pod.process and report.process != pod.process:
        lose_pod(draft, pod, "was restarted behind the controller's back")
        return
    if report.error:
        draft.put_pod(replace(pod, report=report))
        end_job(draft, JobState.FAILED, f"{pod.name}: {report.error}", "ps" if report.full else "")
        return
    if pod.report is not None and report.sequence <= pod.report.sequence:
        return
    if report.load_error and (pod.report is None or pod.report.load_error != report.load_error):
        draft.note("load_failed", f"{pod.name}: {report.load_error}; trying again", pod=pod.name)
    if pod.report is not None and not report.vshard_rows:  # they are told now and then
        last = pod.report
        report = replace(
            report, vshard_rows=last.vshard_rows, vshard_traffic=last.vshard_traffic, table_traffic=last.table_traffic
        )
    pod = replace(
        pod, process=report.process, heard_at=draft.now, report=report,
        cpu_seconds=max(pod.cpu_seconds, report.cpu_seconds), rss_bytes=report.rss_bytes,
    )  # fmt: skip
    draft.put_pod(pod)
    ledger = draft.state.ledger.reported(report.process, report.sequence, report.served)
    draft.state = replace(draft.state, ledger=ledger)
    hear_about_moves(draft, draft.state.pods[pod.name])
    _note_service(draft)
    _note_progress(draft, draft.state.pods[pod.name])


def reroute(draft: Draft) -> None:
    """Make the processes of today's parameter servers the owners, and carry prepared moves out: one swap for all."""
    keep_balance(draft)
    moved = watch_preparation(draft)
    state = draft.state
    routing = state.document.routing
    if state.committing or draft.over or draft.now < state.commit_at:
        return
    up = {pod.slot[1]: pod for pod in state.servers() if pod.process and pod.report is not None}
    places = state.active("ps")
    owners = _first(up, places) if routing.version == 0 else _lost(state, up, places)
    names = ", ".join(up[place].name for place in sorted(set(owners.values())))
    what = f"{names} to serve from the freshest copies"
    if not owners and moved:
        owners = {vshard: one.target for one in moved for vshard in range(VSHARDS) if one.mask >> vshard & 1}
        targets = ", ".join(up[place].name for place in sorted(set(owners.values())))
        what = f"{len(owners)} of {VSHARDS} vshards move to {targets}"
    elif owners:
        moved = ()
    if not owners:
        return
    new = next_routing(routing, up, owners)
    draft.state = replace(state, coming=tenancies_after(state, new, moved), staged_at=None)
    draft.note("routing", f"routing {new.version}: {what}", version=new.version)
    commit(draft, CommitDocument(replace(state.document, routing=new)))


def _first(up: Mapping[int, Pod], places: list[int]) -> dict[int, int]:
    """The first routing names all places at once, or nobody yet."""
    if any(place not in up for place in places):
        return {}
    return dict(enumerate(spread((-1,) * VSHARDS, places)))


def _lost(state: State, up: Mapping[int, Pod], places: list[int]) -> dict[int, int]:
    """New owners of what a process that is gone had: the new process at its place, or the places that stay."""
    routing = state.document.routing
    owned = owned_places(routing)
    others = {
        place for place in owned
        if place in up and up[place].process != routing.processes[place]
    }  # fmt: skip
    gone = others & set(places)
    pods = {pod.slot[1] for pod in state.servers()}
    # A place that the plan no longer has gives what it had to those that stay, also if a new process came up there.
    left = {place for place in owned if place not in places and (place in others or place not in pods)}
    if not gone and not left:
        return {}
    owners = {vshard: place for vshard, place in enumerate(routing.owner) if place in gone}
    layout = state.layout
    if left and layout is not None and layout.places == tuple(places) and all(place in up for place in places):
        owners |= {vshard: layout.target[vshard] for vshard, place in enumerate(routing.owner) if place in left}
    return owners


def commit(draft: Draft, action: CommitDocument) -> None:
    """Send one swap on its way; the next waits for its result."""
    draft.state = replace(draft.state, committing=True, committing_since=draft.now)
    draft.act(action)


def committed(draft: Draft, result: CommitResult) -> None:
    """Take in how a swap ended."""
    coming = draft.state.coming
    draft.state = state = replace(draft.state, committing=False, committing_since=None, coming=())
    if result.document is not None and result.document.version < state.document.version:
        return  # the job's end was stored behind it
    if result.document is None:
        if result.stale:
            end_job(draft, JobState.FAILED, "another controller has taken this job over")
        else:
            _not_stored(draft, result.error)
        return
    manifest = result.manifest if result.manifest is not None else state.manifest
    ledger, tenancies = state.ledger, state.tenancies
    if result.document.routing.version != state.document.routing.version:
        ledger, tenancies = ledger.routed(result.document.routing), coming
    draft.state = replace(
        state, document=result.document, manifest=manifest, ledger=ledger, tenancies=tenancies,
        failed_commits=0, commit_at=0.0,
    )  # fmt: skip
    _note_service(draft)


def _not_stored(draft: Draft, error: str) -> None:
    """Try again later, unless that has been done often and nothing goes on without it: at the start, at the end, and
    when something is not served. While training, a later checkpoint will do.
    """
    state = draft.state
    closing = state.phase is Phase.CLOSING
    rounds, commits = state.failed_rounds + closing, state.failed_commits + 1
    draft.state = replace(
        state, failed_rounds=rounds, copied_at=draft.now if closing else state.copied_at,
        failed_commits=commits, commit_at=draft.now + pause_seconds(commits),
    )  # fmt: skip
    text = f"the job's state can't be stored: {error}"
    needed = rounds if closing else commits if not state.ledger.served else 0
    if state.phase is Phase.STARTING or needed >= MOST_FAILED_ROUNDS:
        end_job(draft, JobState.FAILED, text)
    else:
        draft.note("commit_failed", f"{text}; trying again later")


def call_servers(draft: Draft) -> None:
    """One call to each parameter server: everything that should be."""
    state = draft.state
    document, settings = state.document, state.settings
    order = None
    if state.round is not None:
        order = CopyOrder(state.round.id, settings.copies_directory)
    preparing = prepare_orders(state)
    sequence = state.sequence
    for pod in state.servers():
        sequence += 1
        serve = serve_orders(state, pod.process) if pod.process else ()
        sync = PsSync(
            settings.job_id, document.term, sequence, pod.process, serve, order if serve else None,
            prepare=preparing.get(pod.name, ()), drop=drop_orders(state, pod.process) if pod.process else (),
            memory_bytes=table_limit(state, pod),
        )  # fmt: skip
        draft.act(SendPs(pod.name, sync))
    draft.state = replace(state, sequence=sequence)


def _note_service(draft: Draft) -> None:
    """Keep since when everything has been served without a break."""
    state = draft.state
    if state.ledger.served and state.served_at is None:
        draft.state = replace(state, served_at=draft.now)
        draft.note("served", "every vshard is served", version=state.document.routing.version)
    elif not state.ledger.served and state.served_at is not None:
        draft.state = replace(state, served_at=None)


def _note_progress(draft: Draft, pod: Pod) -> None:
    """A PS has got something done once batches were applied since it began to serve all of its vshards."""
    if pod.worked or not draft.state.ledger.served:
        return
    applied = len(draft.state.ledger.applied)
    if pod.first_applied is None:
        draft.put_pod(replace(pod, first_applied=applied))
    elif applied > pod.first_applied:
        draft.put_pod(replace(pod, worked=True))
        slot: Slot = draft.state.slots[pod.slot]
        draft.put_slot(replace(slot, in_row=0))
