"""From ids to sheets and back: against plain NumPy, for any owners."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.core.domain.model_spec import InitializerSpec, OptimizerSpec, TableSpec
from trimtab.core.ps.client import RoutingView
from trimtab.core.ps.hashing import vshards
from trimtab.core.training.planner import BatchPlanner
from trimtab.core.wire.messages import Routing

SGD = OptimizerSpec("sgd")
TABLES = (
    TableSpec("narrow", 1, "embedding", 0, InitializerSpec(), SGD),
    TableSpec("a", 4, "embedding", 0, InitializerSpec(), SGD),
    TableSpec("b", 4, "embedding", 0, InitializerSpec(), SGD),
    TableSpec("dense", 256, "dense", 7, InitializerSpec(), SGD),
    TableSpec("state", 256, "state", 3, InitializerSpec(), OptimizerSpec("add")),
)
B = 5
# narrow: one look-up; then "b" before "a", and "a" a second time as multi-hot with two ids a row
LOOKUPS = [[(0, 0, B)], [(2, 0, B), (1, B, B), (1, 2 * B, 2 * B)]]
TABLE_OF = [np.zeros(B, int), np.array([2] * B + [1] * 3 * B)]


def view_of(owner, servers, version=1):
    processes = tuple(f"p{n}" for n in range(servers))
    return RoutingView.of(Routing(version, processes, ("",) * servers, tuple(owner), (1,) * 512))


def grouped(ids, owner, servers):
    planner = BatchPlanner(TABLES, LOOKUPS)
    sheet = planner.sheet(3, [np.array(one, np.int64) for one in ids])
    view = view_of(owner, servers)
    planner.regroup(sheet, view)
    return planner, sheet, view


keys = st.integers(-3, 6) | st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_batch_for_any_owners_equals_numpy(data):
    servers = data.draw(st.integers(1, 4))
    owner = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, servers, 512)
    ids = [data.draw(st.lists(keys, min_size=n, max_size=n)) for n in (B, 4 * B)]
    planner, sheet, _ = grouped(ids, owner.tolist(), servers)
    for number, (section, where) in enumerate(zip(planner.sections[:2], TABLE_OF, strict=True)):
        expected = []
        for server in range(servers):
            for table in range(section.first, section.last):
                mine = {k for k, t in zip(ids[number], where, strict=True) if t == table}
                home = {k for k in mine if owner[vshards(TABLES[table].name, np.array([k], np.int64))[0]] == server}
                assert sheet.counts[server, table] == len(home)
                expected.append((table, home))
        at, rows = 0, {}
        for table, home in expected:
            piece = sheet.keys[number][at : at + len(home)].tolist()
            assert set(piece) == home
            rows.update({(table, key): at + place for place, key in enumerate(piece)})
            at += len(home)
        assert sheet.cuts[number][-1] == at
        assert sheet.places[number].tolist() == [rows[t, k] for k, t in zip(ids[number], where, strict=True)]


def test_gradients_of_equal_ids_are_summed_and_blocks_follow_their_owner():
    owner = np.random.default_rng(1).integers(0, 3, 512).tolist()
    planner, sheet, _ = grouped([[7, 7, 8, 7, 9], [1] * 5 + [1] * 5 + [2, 3] * 5], owner, 3)
    rows = [np.ones((B, 1), np.float32), np.arange(4 * B, dtype=np.float32)[:, None] * np.ones((1, 4), np.float32)]
    dense, state = (np.arange(n * 256, dtype=np.float32) for n in (7, 3))
    for one in (*rows, dense, state):
        one.setflags(write=False)  # as TensorFlow's results are
    assert planner.put_gradients(sheet, rows, {"dense": dense, "state": state})
    narrow = dict(zip(sheet.keys[0][:3].tolist(), sheet.gradients[0][:3, 0].tolist(), strict=True))
    assert narrow == {7: 3.0, 8: 1.0, 9: 1.0}
    total = sheet.gradients[1][: sheet.cuts[1][-1]].sum(axis=0)
    assert total.tolist() == [sum(range(20))] * 4
    for place, values in ((2, dense), (3, state)):
        assert sorted(sheet.keys[place].tolist()) == list(range(len(values) // 256))
        assert (sheet.gradients[place] == values.reshape(-1, 256)[sheet.keys[place]]).all()
        sheet.values[place][:] = values.reshape(-1, 256)[sheet.keys[place]]
    assert (planner.blocks(sheet, "dense") == dense).all()
    assert (planner.blocks(sheet, "state") == state).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["row", "dense", "state"])
def test_one_number_that_is_not_finite_is_seen(bad, where):
    planner, sheet, _ = grouped([[1] * 5, [1] * 20], [0] * 512, 1)
    rows = [np.ones((B, 1), np.float32), np.ones((4 * B, 4), np.float32)]
    blocks = {"dense": np.ones(7 * 256, np.float32), "state": np.ones(3 * 256, np.float32)}
    assert planner.put_gradients(sheet, rows, blocks)
    if where == "row":
        rows[1][7, 2] = bad
    else:
        blocks[where][300] = bad
    assert not planner.put_gradients(sheet, rows, blocks)


def test_a_sheet_is_laid_out_anew_for_another_routing():
    planner, sheet, view = grouped([[7, 7, 8, 7, 9], [1] * 20], [0] * 512, 1)
    assert sheet.routing_version == view.version
    planner.regroup(sheet, view_of([v % 2 for v in range(512)], 2, version=2))
    assert sheet.routing_version == 2
    assert sheet.counts.sum(axis=0).tolist() == [3, 1, 1, 7, 3]
    assert len(sheet.cuts[0]) == 3


def test_vshards_without_an_owner_harm_nothing():
    planner, sheet, _ = grouped([[7, 7, 8, 7, 9], [1] * 20], [-1] * 512, 2)
    assert sheet.counts[0].tolist() == [3, 1, 1, 7, 3]
    planner.regroup(sheet, RoutingView.of(Routing()))
    assert sheet.counts.shape == (1, 5)


def test_buffers_are_shared_with_tensorflow_and_rest_two_batches():
    planner = BatchPlanner(TABLES, LOOKUPS)
    ids = [np.arange(B, dtype=np.int64), np.arange(4 * B, dtype=np.int64)]
    sheets = [planner.sheet(number, ids) for number in range(4)]
    assert sheets[0] is sheets[3] and len({id(one) for one in sheets}) == 3
    assert [one.token for one in sheets[1:3]] == [2, 3]
    assert planner.sheet(9, ids, read_only=True).token == 0
    for one in sheets[1].values + sheets[1].places:
        assert one.ctypes.data % 64 == 0 and one.flags.writeable
