"""A job whose parameter servers don't come back: it goes on with fewer, or it ends and says which are missing.

Single pods that fail are replaced, and a place that keeps failing is given up (`pods`). What is left for here is that
nothing seems to fail and yet somebody is missing: pods that can't be placed, that hang while they start, that never
become owners. Nothing rests on the time but the end of the waiting.
"""

from __future__ import annotations

from trimtab.core.controller.pods import end_job, lose_pod, without_place
from trimtab.core.controller.state import Draft, Phase, Slot, State
from trimtab.core.domain.job import JobState
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.domain.values import replace

MOST_LOADING = 20  # times unserved_seconds, an hour: the largest tables load within minutes


def watch_service(draft: Draft) -> None:
    """Keep since when something is served by nobody and nobody loads; do something about it when that was too long.

    A server that only writes copies loads nothing: one that is gone for good is not waited for meanwhile.
    """
    state = draft.state
    if draft.over:
        return
    loading = any(pod.report is not None and pod.report.loading for pod in state.servers())
    unserved = None if state.ledger.served or loading else draft.now if state.unserved_at is None else state.unserved_at
    # Not put back by a moment without loading: a load that fails and is tried again for ever is no progress.
    since = None if state.ledger.served else draft.now if loading and state.loading_at is None else state.loading_at
    if (state.unserved_at, state.loading_at) != (unserved, since):
        draft.state = state = replace(state, unserved_at=unserved, loading_at=since)
    if since is not None and draft.now - since > MOST_LOADING * state.settings.unserved_seconds:
        names = ", ".join(_name(state, place) for place in _missing(state))
        text = f"what was lost could not be loaded within {draft.now - since:.0f} s by {names}: see to its storage"
        said = {pod.report.load_error for pod in state.servers() if pod.report is not None} - {""}
        text += "".join(f"; {one}" for one in sorted(said))
        end_job(draft, JobState.FAILED, text)
        return
    if unserved is None:
        return
    settings = state.settings
    patience = settings.unserved_seconds + (settings.start_seconds if state.phase is Phase.STARTING else 0.0)
    waited = draft.now - unserved
    if waited < patience:
        return
    places = _missing(state)
    names = ", ".join(_name(state, place) for place in places)
    for place in places:
        slot = state.slots.get(("ps", place))
        if slot is not None and slot.active and without_place(draft, slot, f"{names}: unserved for {waited:.0f} s"):
            draft.state = replace(draft.state, unserved_at=draft.now, loading_at=None)
            _lose(draft, slot, waited)
            return
    count = state.ledger.missing.bit_count()
    text = f"{count} of {VSHARDS} vshards were served by nobody for {waited:.0f} s: {names} is missing"
    end_job(draft, JobState.FAILED, text if len(places) == 1 else text.replace(" is missing", " are missing"))


def _lose(draft: Draft, slot: Slot, waited: float) -> None:
    """A place that is given up keeps no pod, and gets no other one before the plan is without it."""
    for pod in draft.state.servers():
        if pod.slot == (slot.role, slot.index):
            lose_pod(draft, pod, f"served nothing for {waited:.0f} s")
    draft.put_slot(replace(draft.state.slots[slot.role, slot.index], starts_at=draft.now + waited))


def _missing(state: State) -> list[int]:
    """Places whose vshards are not served; before the first routing those that are not there."""
    routing = state.document.routing
    if routing.version == 0:
        up = {pod.slot[1] for pod in state.servers() if pod.process}
        return [place for place in state.active("ps") if place not in up]
    mask = state.ledger.missing
    return sorted({place for vshard, place in enumerate(routing.owner) if mask >> vshard & 1})


def _name(state: State, place: int) -> str:
    """The pod at a place, and how far it has come."""
    for pod in state.servers():
        if pod.slot[1] == place:
            return f"{pod.name} ({'serves too little' if pod.process else 'said nothing'})"
    return f"ps-{place} (no pod)"
