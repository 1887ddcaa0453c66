"""The question which batches a server holds: a true answer, no change, and no trust in what comes back."""

import threading

import numpy as np
import pytest

from trimtab.core.clock import SystemClock
from trimtab.core.domain.intervals import EMPTY, IntervalSet
from trimtab.core.errors import WireError
from trimtab.core.ps import held
from trimtab.core.ps.initial import write_initial
from trimtab.core.ps.server import ParameterServer
from trimtab.core.ps.table import RowTable
from trimtab.core.wire import frames
from trimtab.core.wire.encode import to_json
from trimtab.core.wire.frames import RequestHeader
from trimtab.core.wire.messages import HeldReply, PsSync, Served, ServeOrder, to_bitmap

EVERY = (1 << 512) - 1
LOW = (1 << 100) - 1


@pytest.fixture
def server(model, tmp_path):
    """Serves vshards 0 to 399 since 3 and holds batches 0 to 4, vshards below 100 also 7."""
    manifest = write_initial(tmp_path / "checkpoint", "job", model)
    made = ParameterServer("job", "p" * 32, 2, model, RowTable(model.tables, 1, 64 << 20), 50, SystemClock())
    order, pause = ServeOrder(to_bitmap(range(400)), 3, manifest.path), threading.Event()
    for attempt in range(6000):  # a minute: only a fault takes that long
        if not made.sync(PsSync("job", 2, attempt, made.process, (order,))).loading:
            break
        pause.wait(0.01)
    for number in (0, 1, 2, 3, 4):
        made.exchange.sets.mark(number, (1 << 400) - 1, skipped=number == 2)
    made.exchange.sets.mark(7, LOW, skipped=False)
    return made


def ask(server, body):
    data = np.frombuffer(body, np.uint8)
    header = RequestHeader(frames.HELD, len(server.exchange.table.dims), body_bytes=len(data))
    reply, sections = server.handle("w" * 32, header, data)
    assert (reply.push_status, reply.pull_status, reply.push_refused, reply.pull_refused) == (0, frames.OK, 0, 0)
    assert reply.body_bytes == sum(len(one) for one in sections)
    return b"".join(sections)


def since(value):
    return np.full(512, value, np.int64)


def test_the_answer_is_what_is_served_by_set_and_tenure_and_nothing_changes(server):
    before = server.exchange.sets.classes(), server.exchange.served, server.exchange.table.row_count
    told = held.told(ask(server, held.question(EVERY)), EVERY, since(3))
    assert (server.exchange.sets.classes(), server.exchange.served, server.exchange.table.row_count) == before
    assert told.vshards == (1 << 400) - 1
    assert set(told.since[:400].tolist()) == {3}
    assert told.lacking(2) == 0 and told.lacking(5) == (1 << 400) - 1
    assert told.lacking(7) == ((1 << 400) - 1) & ~LOW
    assert told.common() == IntervalSet.span(0, 5)


def test_only_what_was_asked_for_is_told(server):
    asked = 1 << 3 | 1 << 150 | 1 << 450
    told = held.told(ask(server, held.question(asked)), asked, since(3))
    assert told.vshards == 1 << 3 | 1 << 150
    assert told.lacking(7) == 1 << 150
    nothing = held.told(ask(server, held.question(1 << 450)), 1 << 450, since(3))
    assert nothing.vshards == 0 and nothing.lacking(0) == 0 and nothing.common() == EMPTY


def test_what_is_served_in_an_older_tenure_is_not_served_yet(server):
    data = ask(server, held.question(EVERY))
    assert held.told(data, EVERY, since(4)).vshards == 0
    mixed = since(3)
    mixed[5] = 4
    assert held.told(data, EVERY, mixed).vshards == ((1 << 400) - 1) & ~(1 << 5)
    assert held.told(data, EVERY, since(1)).since[0] == 3  # a newer one counts, and is kept as what it is


def test_what_is_held_but_not_served_is_not_told(server):
    server.exchange.served &= ~LOW
    assert held.told(ask(server, held.question(EVERY)), EVERY, since(3)).vshards == ((1 << 400) - 1) & ~LOW


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[1]", b'{"vshards": 7}']
    + [b'{"vshards": "%s"}' % text for text in (b"", b"-1", b"0x1", b"zz", b" 1", b"f" * 129)],
)
def test_a_question_that_is_none_is_refused(server, body):
    with pytest.raises(WireError):
        ask(server, body)


@pytest.mark.parametrize(
    "served",
    [
        (Served(to_bitmap([8]), 3, ((0, 1),), ()),),  # not asked for
        (Served(to_bitmap([1, 2]), 3, ((0, 1),), ()), Served(to_bitmap([2]), 3, (), ())),  # named twice
    ],
)
def test_an_answer_to_another_question_is_refused(served):
    with pytest.raises(WireError, match="vshards"):
        held.told(to_json(HeldReply(served)), 0b111, since(0))


def test_an_answer_that_is_none_is_refused():
    for data in (b"", b"{", b"{}", b'{"served": [{"vshards": "1", "since": "x", "applied": [], "skipped": []}]}'):
        with pytest.raises(WireError):
            held.told(data, 1, since(0))


def test_bitmaps_go_there_and_back():
    for bits in (0, 1, 1 << 511, LOW, 0x5A5A << 77):
        assert int(held.bitmap(bits), 16) == bits and len(held.bitmap(bits)) == 128
        assert held.bits_of(bits) == [vshard for vshard in range(512) if bits >> vshard & 1]
