"""Traces of the protocol's model check that concern parameter servers, as regression tests; see the table in
tests/controller/test_traces.py.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from test_exchange import EVERY, T_KEYS, U_KEYS, cover_of, exchange, send, values  # noqa: F401 (exchange is a fixture)
from test_moves import HALF, Node, Pusher, nodes, prepared  # noqa: F401 (nodes is a fixture)

from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.errors import Refused
from trimtab.core.ps.hashing import vshards
from trimtab.core.wire.frames import OK
from trimtab.core.wire.messages import DropOrder, PrepareOrder, PsSync, ServeOrder, to_bitmap

MOVED = int(to_bitmap(HALF), 16)
pause = threading.Event()


def taken_over(first: Node, second: Node, since: int = 2) -> ServeOrder:
    """Half of the vshards go from the first to the second server."""
    order = ServeOrder(to_bitmap(HALF), since, first.manifest, first.origin())
    second.until(lambda report: second.served(since) == MOVED, order)
    return order


def applied(node: Node) -> set[tuple[tuple[int, int], ...]]:
    return {one.applied for one in node.sync().served}


def test_trace_1_a_push_marks_only_what_it_names(exchange):  # noqa: F811
    """v0 moves to this server while a worker with old routing pushes for v1 only: the resend for v0 must count."""
    for vshard in range(512):
        mine = T_KEYS[vshards("t", T_KEYS) == vshard]
        other = U_KEYS[vshards("u", U_KEYS) == vshard]
        reply, _ = send(exchange, push=(mine, other), number=7, cover=1 << vshard)
        assert (reply.push_status, reply.dropped) == (OK, 0), "an earlier push has marked it, too"
    assert (values(exchange) == -1).all()
    assert exchange.sets.of(0).applied == IntervalSet(((7, 8),))


def test_trace_2_a_double_of_a_closed_batch_is_dropped(model, nodes):  # noqa: F811
    """Also by the server that got the vshard from another one's hands: the set travels whole."""
    first, second = nodes
    pusher = Pusher(model, first, second)
    for number in range(30):
        pusher.push(number)
    taken_over(first, second)
    before = first.rows(), second.rows()
    again = Pusher(model, second, first)
    for number in range(30):
        again.push(number)  # every one is dropped, wherever its vshard lies now
    assert (first.rows(), second.rows()) == before
    assert applied(first) == applied(second) == {((0, 30),)}


def test_trace_3_what_is_loaded_replaces_left_over_rows(model, nodes):  # noqa: F811
    """A row born by batch 0 must not stay when the vshard comes back from a copy without batch 0."""
    first, second = nodes
    Pusher(model, first).push(0)
    born = first.rows(HALF)
    assert born
    again = ServeOrder(to_bitmap(HALF), 2, first.manifest)  # the copy of the start, which is empty
    first.until(lambda report: first.served(2) == MOVED, again)
    left = first.rows(HALF)
    assert {key for key in left if key[0] < 3} == set(), "rows of embeddings are born by pushes only"
    Pusher(model, first, second).push(0)
    assert first.rows(HALF) == born, "the batch that comes again is applied once"


def test_trace_7_an_ended_tenure_is_taken_back_by_a_newer_one(model, nodes):  # noqa: F811
    """The new owner dies between the freeze and its first word; nobody needs to say "go on" to the old one."""
    first, second = nodes
    Pusher(model, first).push(0)
    rows = first.rows()
    taken_over(first, second)
    assert first.served() == EVERY & ~MOVED, "the old owner has frozen them, and still has the rows"
    second.data.close()
    back = ServeOrder(to_bitmap(HALF), 3, first.manifest, first.origin(since=1))
    first.until(lambda report: first.served(3) == MOVED, back)
    assert first.rows() == rows and first.served() == EVERY


def test_trace_8_a_rolling_move_refuses_no_push_as_a_whole(exchange):  # noqa: F811
    """A third of all vshards frozen one after the other: each push is applied for the rest, and answered at once."""
    for number, frozen in enumerate(range(0, 510, 30)):
        away = 1 << frozen
        exchange.served = EVERY & ~away
        reply, _ = send(exchange, push=(T_KEYS, U_KEYS), number=number)
        assert (reply.push_status, reply.push_refused) == (OK, away)
        assert not exchange.sets.lacking(number, EVERY & ~away), "what is served has it"
        exchange.served = EVERY
        reply, _ = send(exchange, push=(T_KEYS, U_KEYS), number=number)  # the resend fills the gap
        assert reply.push_refused == 0
    assert (values(exchange) == -17).all()


def test_trace_9_late_and_doubled_orders_of_a_tenure_change_nothing(model, nodes):  # noqa: F811
    """A second "serve" of the same tenure, or a copy staged for an older one, must not overwrite newer rows."""
    first, second = nodes
    pusher = Pusher(model, first, second)
    pusher.push(0)
    order = taken_over(first, second)
    pusher.push(1)
    rows = second.rows(HALF)
    late = PrepareOrder(to_bitmap(HALF), first.origin())
    for again in (order, replace(order, origin=None), replace(order, since=1)):
        for _ in range(3):
            report = second.sync(again, prepare=[late])
            pause.wait(0.02)
        assert (report.staged, report.loading) == ((), False)
    assert second.rows(HALF) == rows
    assert applied(second) == {((0, 2),)}


def test_trace_10_each_attempt_to_move_is_a_tenure_of_its_own(model, nodes):  # noqa: F811
    """Attempt 1 is taken back; what was staged for it, and a request in its name, mean nothing in attempt 2."""
    first, second = nodes
    pusher = Pusher(model, first, second)
    pusher.push(0)
    first_try = PrepareOrder(to_bitmap(HALF), first.origin(since=1))
    second.until(lambda report: prepared(report) == MOVED, prepare=[first_try])
    back = ServeOrder(to_bitmap(HALF), 2, first.manifest, first.origin(since=1))
    first.until(lambda report: first.served(2) == MOVED, back)  # taken back by a new tenure of the origin
    pusher.push(1)
    late = ServeOrder(to_bitmap(HALF), 3, first.manifest, first.origin(since=1))
    report = second.until(lambda report: report.missing != "" and not report.loading, late)
    assert int(report.missing, 16) == MOVED and second.served() == 0
    assert first.served() == EVERY, "a request of the old attempt has ended nothing"
    assert second.sync(prepare=[first_try]).staged == (), "an acknowledgement of the old attempt is none of the new"
    true = ServeOrder(to_bitmap(HALF), 4, first.manifest, first.origin(since=2))
    second.until(lambda report: second.served(4) == MOVED, true)
    assert applied(second) == {((0, 2),)}


def test_trace_12_an_order_to_a_predecessor_is_refused(model, nodes):  # noqa: F811
    first, _ = nodes
    order = ServeOrder(to_bitmap(HALF), 9, first.manifest)
    with pytest.raises(Refused, match="process"):
        first.server.sync(PsSync("job", 1, 99, "d" * 32, (order,)))
    first.sync()
    assert first.served(9) == 0


def test_a_lower_term_ends_no_tenure_and_drops_nothing(model, nodes):  # noqa: F811
    first, second = nodes
    Pusher(model, first).push(0)
    taken_over(first, second)
    rows = first.rows(HALF)
    first.server.sync(PsSync("job", 5, 50, first.process))
    stale = PsSync("job", 4, 51, first.process, drop=(DropOrder(to_bitmap(HALF), 2),), stop=True)
    with pytest.raises(Refused, match="term 4 is over"):
        first.server.sync(stale)
    pause.wait(0.05)
    assert first.rows(HALF) == rows and not first.server.stopping.is_set()


def test_a_named_cover_is_what_a_cover_is_made_of():
    """The helper that these tests trust: bit v of a cover is vshard v."""
    assert cover_of("t", T_KEYS) == sum(1 << int(v) for v in np.unique(vshards("t", T_KEYS)))
