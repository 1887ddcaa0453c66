"""Who serves which vshard, and telling them so until their reports show it done.

Every change of owner is first a compare-and-swap with a new `since`; parameter servers are told after it, with the
committed manifest as the source of rows. A restarted parameter server is a new process and owns nothing until routing
names it. What is said is level-triggered: each call carries everything that the process should serve.
"""

from __future__ import annotations

from dataclasses import replace

from trimtab.core.controller.actions import CommitDocument, SendPs
from trimtab.core.controller.inputs import CommitResult, PsSaid
from trimtab.core.controller.pods import end_job, lose_pod
from trimtab.core.controller.state import MOST_FAILED_ROUNDS, Draft, Phase, Pod, Slot, pause_seconds
from trimtab.core.domain.job import JobState
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.wire.messages import CopyOrder, PsSync, Routing, ServeOrder


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
        end_job(draft, JobState.FAILED, f"{pod.name}: {report.error}")
        return
    if pod.report is not None and report.sequence <= pod.report.sequence:
        return
    pod = replace(
        pod, process=report.process, heard_at=draft.now, report=report,
        cpu_seconds=max(pod.cpu_seconds, report.cpu_seconds), rss_bytes=report.rss_bytes,
    )  # fmt: skip
    draft.put_pod(pod)
    ledger = draft.state.ledger.reported(report.process, report.sequence, report.served)
    draft.state = replace(draft.state, ledger=ledger)
    _note_service(draft)
    _note_progress(draft, draft.state.pods[pod.name])


def reroute(draft: Draft) -> None:
    """Make the processes of today's parameter-server pods the owners, by one swap for all that changed."""
    state = draft.state
    routing = state.document.routing
    if state.committing or draft.over or draft.now < state.commit_at:
        return
    processes = {pod.slot[1]: pod for pod in state.servers() if pod.process and pod.report is not None}
    count = state.settings.ps
    first = len(routing.processes) != count
    if first and len(processes) < count:
        return  # the first routing of these places names all of them at once
    changed = {
        slot for slot, pod in processes.items()
        if first or routing.processes[slot] != pod.process
    }  # fmt: skip
    if not changed:
        return
    new = _routing(routing, processes, changed, count)
    names = ", ".join(processes[slot].name for slot in sorted(changed))
    draft.note("routing", f"routing {new.version}: {names} to serve from the committed checkpoint", version=new.version)
    commit(draft, CommitDocument(replace(state.document, routing=new)))


def commit(draft: Draft, action: CommitDocument) -> None:
    """Send one swap on its way; the next waits for its result."""
    draft.state = replace(draft.state, committing=True)
    draft.act(action)


def committed(draft: Draft, result: CommitResult) -> None:
    """Take in how a swap ended."""
    draft.state = state = replace(draft.state, committing=False)
    if result.document is None:
        if result.stale:
            end_job(draft, JobState.FAILED, "another controller has taken this job over")
        else:
            _not_stored(draft, result.error)
        return
    manifest = result.manifest if result.manifest is not None else state.manifest
    ledger = state.ledger
    if result.document.routing.version != state.document.routing.version:
        ledger = ledger.routed(result.document.routing)
    draft.state = replace(
        state, document=result.document, manifest=manifest, ledger=ledger, committing=False,
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
    sequence = state.sequence
    for pod in state.servers():
        sequence += 1
        tenures = state.ledger.tenures.get(pod.process, {}) if pod.process else {}
        serve = tuple(
            ServeOrder(f"{mask:0{VSHARDS // 4}x}", since, document.manifest.path)
            for since, mask in sorted(tenures.items())
        )
        copy = order if tenures else None
        draft.act(SendPs(pod.name, PsSync(settings.job_id, document.term, sequence, pod.process, serve, copy)))
    draft.state = replace(state, sequence=sequence)


def _routing(old: Routing, servers: dict[int, Pod], changed: set[int], count: int) -> Routing:
    """The next routing: vshard v belongs to place v mod `count`; places in `changed` begin a new tenure."""
    version = old.version + 1
    owner, since = [], []
    for vshard in range(VSHARDS):
        slot = vshard % count
        fresh = slot in changed
        owner.append(slot if fresh else old.owner[vshard])
        since.append(version if fresh else old.since[vshard])

    def of(place: int, known: tuple[str, ...], new: str) -> str:
        return new if place in changed else known[place] if place < len(known) else ""

    pods = [servers.get(place) for place in range(count)]
    process = tuple(of(place, old.processes, pod.process if pod else "") for place, pod in enumerate(pods))
    address = tuple(
        of(place, old.addresses, pod.report.address if pod and pod.report else "") for place, pod in enumerate(pods)
    )
    return Routing(version, process, address, tuple(owner), tuple(since))


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
