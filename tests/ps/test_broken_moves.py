"""Moves that break in the middle: nothing that is served is touched, nothing waits for ever, nothing hangs silently."""

import threading
from dataclasses import replace

import numpy as np
import pytest
from test_moves import HALF, Node, Pusher, nodes, prepared  # noqa: F401 (nodes is a fixture)

from trimtab.core.ps.initial import write_initial
from trimtab.core.ps.server import UNREACHABLE_SECONDS
from trimtab.core.ps.table import RowTable
from trimtab.core.ps.watch import Watch
from trimtab.core.wire.messages import DropOrder, PrepareOrder, ServeOrder, to_bitmap

MOVED = int(to_bitmap(HALF), 16)
pause = threading.Event()


def breaking(monkeypatch, server, broken):
    """Let the `n`-th request to the origin fail where `broken(n)`."""
    incoming = server._incoming
    real, asked = incoming._ask, []

    def ask(origin, request):
        asked.append(request)
        if broken(len(asked)):
            raise OSError("the line broke")
        return real(origin, request)

    monkeypatch.setattr(incoming, "_ask", ask)


def test_a_take_over_whose_origin_dies_half_way_is_completed_from_the_checkpoint(model, nodes, monkeypatch):  # noqa: F811
    first, second = nodes
    pusher = Pusher(model, first, second)
    for number in range(20):
        pusher.push(number)
    breaking(monkeypatch, second.server, lambda asked: asked >= 5)
    order = ServeOrder(to_bitmap(HALF), 2, first.manifest, first.origin())
    for _ in range(5):  # the controller repeats the order until it learns what became of it
        second.sync(order)
        pause.wait(0.05)
    part = second.served(2)
    assert 0 < part.bit_count() < len(HALF)
    rows = second.rows([vshard for vshard in HALF if part >> vshard & 1])
    second.until(lambda report: second.served(2) == MOVED, replace(order, origin=None))
    assert second.rows([vshard for vshard in HALF if part >> vshard & 1]) == rows


def test_one_broken_line_costs_nothing_that_was_applied_meanwhile(model, nodes, monkeypatch):  # noqa: F811
    first, second = nodes
    pusher = Pusher(model, first, second)
    for number in range(20):
        pusher.push(number)
    breaking(monkeypatch, second.server, lambda asked: asked == 5)
    order = ServeOrder(to_bitmap(HALF), 2, first.manifest, first.origin())
    second.sync(order)
    while second.served(2) == 0:
        pause.wait(0.01)
    pause.wait(0.1)
    pusher.nodes = (second, first)
    here = second.served(2)
    keys = [np.arange(40, dtype=np.int64)] * 3 + [np.arange(3, dtype=np.int64)]
    gradients = [np.ones((len(k), table.dim), np.float32) for k, table in zip(keys, model.tables, strict=True)]
    assert pusher.send(second, 20, keys, gradients, here) == 0
    second.until(lambda report: second.served(2) == MOVED, order)
    for vshard in HALF:
        if here >> vshard & 1:
            assert second.server.exchange.sets.of(vshard).applied.intervals == ((0, 21),)


def test_an_order_thread_that_meets_a_fault_tells_it(nodes, monkeypatch):  # noqa: F811
    first, second = nodes
    monkeypatch.setattr(second.server._incoming, "prepare", lambda order: 1 // 0)
    order = PrepareOrder(to_bitmap(HALF), first.origin())
    for _ in range(600):
        report = second.sync(prepare=[order])
        if report.error:
            break
        pause.wait(0.01)
    assert "ZeroDivisionError" in report.error


def test_why_nothing_could_be_prepared_is_forgotten_with_the_order(model, tmp_path):
    manifest = write_initial(tmp_path / "checkpoint", "job", model)
    first, small = Node(model, "a", tmp_path), Node(model, "b", tmp_path, memory_bytes=1 << 15)
    first.until(lambda report: not report.loading, ServeOrder(to_bitmap(range(512)), 1, manifest.path))
    pusher = Pusher(model, first)
    for number in range(50):
        pusher.push(number)
    order = PrepareOrder(to_bitmap(range(512)), first.origin())
    small.until(lambda report: report.move_error != "", prepare=[order])
    small.until(lambda report: report.move_error == "" and report.staged == ())
    for node in (first, small):
        node.data.close()


def test_training_keeps_its_room_while_others_rows_are_kept_aside(model, tmp_path):
    manifest = write_initial(tmp_path / "checkpoint", "job", model)
    odd = tuple(range(1, 512, 2))
    first, small = Node(model, "a", tmp_path), Node(model, "b", tmp_path, memory_bytes=200_000)
    first.until(lambda report: not report.loading, ServeOrder(to_bitmap(HALF), 1, manifest.path))
    small.until(lambda report: not report.loading, ServeOrder(to_bitmap(odd), 1, manifest.path))
    pusher = Pusher(model, first, small)
    for number in range(60):
        pusher.push(number)
    order = PrepareOrder(to_bitmap(HALF), first.origin())
    small.until(lambda report: report.move_error != "", prepare=[order])
    assert small.server.exchange.table.bytes_used <= 0.95 * 200_000
    for number in range(60, 64):
        pusher.push(number)  # asserts that each was applied
    assert small.sync().error == ""
    for node in (first, small):
        node.data.close()


def test_bytes_held_follow_the_rows_and_not_the_arena(model, nodes):  # noqa: F811
    first, second = nodes
    pusher = Pusher(model, first, second)
    for number in range(300):
        pusher.push(number)
    before = first.sync()
    order = PrepareOrder(to_bitmap(HALF), first.origin())
    second.until(lambda report: prepared(report) == MOVED, prepare=[order])
    serve = ServeOrder(to_bitmap(HALF), 2, first.manifest, first.origin())
    second.until(lambda report: second.served(2) == MOVED, serve)
    first.until(lambda report: not first.rows(HALF), drop=[DropOrder(to_bitmap(HALF), 2)])
    after = (first.sync(), second.sync())
    assert sum(report.rows for report in after) == before.rows
    assert sum(report.table_bytes for report in after) == pytest.approx(before.table_bytes, rel=0.1)


def test_the_list_of_changes_names_watched_vshards_only(model):
    table = RowTable(model.tables, 1, 64 << 20)
    counts = np.array([4000, 0, 0, 0], np.uint32)
    found = table.bear(table.find(np.arange(4000, dtype=np.int64), counts))
    watch = Watch(table)
    for vshard in (1, 2):
        watch.begin(vshard)
    touched = watch.before(found, None)
    watch.after(touched)
    watch.end(1 << 1)
    mine, rest = watch.sorted_out(watch.take(), 1 << 2)
    assert set(table.vshards_of(0, mine.keys).tolist()) == {2}
    assert set(table.vshards_of(0, rest.keys).tolist()) == {1}


def test_what_is_prepared_anew_counts_as_refreshed_only_when_it_was(model, nodes, monkeypatch):  # noqa: F811
    first, second = nodes
    Pusher(model, first).push(0)
    order = PrepareOrder(to_bitmap(HALF), first.origin())
    second.until(lambda report: prepared(report) == MOVED, prepare=[order])
    second.until(lambda report: report.staged == ())
    monkeypatch.setattr(second.server._incoming, "_refresh", lambda order: None)
    for _ in range(100):
        report = second.sync(prepare=[order])
        pause.wait(0.005)
    assert second.rows(HALF) == first.rows(HALF), "it is all there"
    assert report.staged == ()


def test_an_origin_that_stays_out_of_reach_is_told(nodes):  # noqa: F811
    first, second = nodes
    first.data.close()
    incoming, tried = second.server._incoming, []
    dial = incoming._dial
    incoming._dial = lambda *given: tried.append(given) or dial(*given)
    order = PrepareOrder(to_bitmap(HALF), first.origin())
    for _ in range(2):
        tried.clear()
        second.until(lambda report: len(tried) > 3, prepare=[order])
        assert second.sync(prepare=[order]).move_error == "", "for a moment that may happen"
        second.server._clock.advance(UNREACHABLE_SECONDS / 2 - 1)
    second.server._clock.advance(2)
    second.until(lambda report: report.move_error != "", prepare=[order])
    second.until(lambda report: report.move_error == "")
