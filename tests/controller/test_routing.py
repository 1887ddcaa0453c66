"""Routing under any restarts: one owner a vshard, and a new tenure exactly where the owner is a new process."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.controller.serving import _routing
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.ps.client import ALL_VSHARDS, RoutingView
from trimtab.core.wire.encode import from_json, to_json
from trimtab.core.wire.messages import Routing


def pod(process):
    return SimpleNamespace(process=process, report=SimpleNamespace(address=f"unix:{process}"))


@given(st.integers(1, 7), st.lists(st.sets(st.integers(0, 6)), max_size=8))
def test_tenures_change_exactly_with_their_owner(count, restarts):
    born = {place: f"process-{place}-0" for place in range(count)}
    pods = {place: pod(name) for place, name in born.items()}
    routing = _routing(Routing(), pods, set(range(count)), count)
    for round_, wanted in enumerate(restarts, 1):
        changed = {place for place in wanted if place < count}
        for place in changed:
            born[place] = f"process-{place}-{round_}"
            pods[place] = pod(born[place])
        before, routing = routing, _routing(routing, pods, changed, count)
        assert routing.version == before.version + 1
        for vshard in range(VSHARDS):
            mine, was = routing.processes[routing.owner[vshard]], before.processes[before.owner[vshard]]
            assert mine == born[routing.owner[vshard]]
            if mine == was:
                assert routing.since[vshard] == before.since[vshard]
            else:
                assert routing.since[vshard] == routing.version
    view = RoutingView.of(routing)
    assert view.whole
    union = 0
    for cover in view.covers:
        assert cover and not union & cover
        union |= cover
    assert union == ALL_VSHARDS
    sizes = [cover.bit_count() for cover in view.covers]
    assert max(sizes) - min(sizes) <= 1
    assert from_json(Routing, to_json(routing)) == routing
