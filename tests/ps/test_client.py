"""The client against real servers: routing changes, servers that die, tokens that end, in the middle of work."""

import threading

import numpy as np
import pytest
from client_world import EVERY, SECRET, TABLES, Server, regroup, routing_of, sheet_of, start

from trimtab.core.clock import SystemClock
from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.errors import Interrupted
from trimtab.core.ps.client import PsClient, RoutingView
from trimtab.core.wire.handshake import new_process_id
from trimtab.core.wire.messages import Routing


@pytest.fixture
def servers():
    made = [Server(), Server(), Server()]
    yield made
    for server in made:
        server.data.close()


@pytest.fixture
def client():
    made = PsClient(TABLES, SECRET, "job", new_process_id(), regroup, SystemClock(), threading.Event(), 5.0)
    yield made
    made.close()


def check_applied(servers, batches):
    for vshard in range(512):
        owner = [s for s in servers if s.exchange.served >> vshard & 1]
        assert len(owner) == 1
        assert owner[0].exchange.sets.of(vshard).applied == IntervalSet.span(0, batches)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_push_and_pull_in_one_message_per_server(client, servers, count):
    start(client, *servers[:count])
    sheet = sheet_of(0)
    client.exchange(None, sheet)
    for number in range(1, 5):
        following = sheet_of(number)
        client.exchange(sheet, following, rate=1.0)
        assert all((one == -number).all() for one in following.values)
        sheet = following
    client.exchange(sheet, None, rate=1.0)
    assert client.slow_exchanges == 0
    assert all(s.exchange.counters.slow == 0 for s in servers)
    check_applied(servers[:count], 5)


def test_moves_between_batches_lose_and_double_nothing(client, servers):
    start(client, servers[0])
    generator = np.random.default_rng(1)
    owner, version = [0] * 512, 1
    sheet = sheet_of(0)
    client.exchange(None, sheet)
    for number in range(1, 40):
        if number % 3 == 0:  # vshards move; the client hears of it before, after, or not before the next move
            target = int(generator.integers(3))
            chosen = generator.choice(512, 100, replace=False).tolist()
            for source in range(3):
                bits = sum(1 << v for v in chosen if owner[v] == source)
                if bits and source != target:
                    servers[source].move(bits, servers[target])
            for v in chosen:
                owner[v] = target
            version += 1
            later = threading.Timer(0.02, client.update, [routing_of(version, *servers, owner=tuple(owner))])
            later.start()
        following = sheet_of(number)
        client.exchange(sheet, following, rate=1.0)
        assert all((one == -number).all() for one in following.values)
        sheet = following
        later.join() if number >= 3 else None
    client.exchange(sheet, None, rate=1.0)
    check_applied(servers, 40)
    assert 13 <= client.slow_exchanges < 40  # the slow path ends with its cause: it must not be sticky


def test_a_server_that_dies_is_replaced_and_the_push_goes_to_its_successor(client, servers):
    one, two, spare = servers
    start(client, one, two)
    sheet, following = sheet_of(0), sheet_of(1)
    client.exchange(None, sheet)
    two.data.close()  # crash: all it had is lost, here before the first push
    lost = sum(1 << v for v in range(512) if v % 2)
    spare.serve(lost)
    threading.Timer(0.05, client.update, [routing_of(2, one, spare)]).start()
    client.exchange(sheet, following, rate=1.0)
    assert all((x == -1).all() for x in following.values)
    check_applied([one, spare], 1)


def test_a_lost_answer_is_not_a_second_update(client, servers):
    start(client, servers[0])
    sheet = sheet_of(0)
    client.exchange(None, sheet)
    handle = servers[0].handle

    def broken(worker, header, body):
        servers[0].data._handler = handle
        handle(worker, header, body)
        raise OSError("the answer is lost")

    servers[0].data._handler = broken
    following = sheet_of(1)
    client.exchange(sheet, following, rate=1.0)
    assert all((x == -1).all() for x in following.values)
    assert servers[0].exchange.counters.duplicates == 1


def test_another_process_on_the_same_address_is_not_taken_for_the_dead_one(client, servers):
    start(client, servers[0])
    servers[1].serve(EVERY)
    routing = Routing(2, ("f" * 32,), (servers[1].data.address,), (0,) * 512, (2,) * 512)
    client.update(routing)
    stop = threading.Timer(0.1, client._stopping.set)
    stop.start()
    with pytest.raises(Interrupted):
        client.exchange(None, sheet_of(0))
    assert servers[1].exchange.counters.pushes == 0


def test_a_skipped_batch_is_marked_everywhere(client, servers):
    start(client, *servers)
    sheet, following = sheet_of(0), sheet_of(1)
    client.exchange(None, sheet)
    client.exchange(sheet, following, rate=1.0, skipped=True)
    assert all((x == 0).all() for x in following.values)
    check_applied(servers, 1)
    assert all(s.exchange.sets.classes()[0].skipped == IntervalSet.span(0, 1) for s in servers)


def test_no_routing_yet_means_waiting_not_wrong_rows(client, servers):
    threading.Timer(0.05, start, [client, servers[0]]).start()
    sheet = sheet_of(0)
    sheet.values[0][:] = 7
    client.exchange(None, sheet)
    assert all((x == 0).all() for x in sheet.values)


def test_stopping_ends_every_wait(client):
    client._stopping.set()
    with pytest.raises(Interrupted):
        client.exchange(None, sheet_of(0))


def test_a_full_server_is_waited_for_until_it_has_room(client):
    full = Server(memory=2000, most=1 << 24)
    try:
        start(client, full)
        sheet, following = sheet_of(0), sheet_of(1)
        client.exchange(None, sheet)
        more = threading.Timer(0.1, full.exchange.table.allow, [1 << 24])
        more.start()
        client.exchange(sheet, following, rate=1.0)
        assert full.exchange.counters.crowded > 1
        assert all((one == -1).all() for one in following.values)
        check_applied([full], 1)
    finally:
        full.data.close()


def test_stopping_ends_the_wait_for_room(client):
    full = Server(memory=2000)
    try:
        start(client, full)
        sheet = sheet_of(0)
        client.exchange(None, sheet)
        threading.Timer(0.1, client._stopping.set).start()
        with pytest.raises(Interrupted):
            client.exchange(sheet, None, rate=1.0)
        assert full.exchange.table.row_count == 0
    finally:
        full.data.close()


def test_a_view_knows_whether_every_vshard_has_an_owner():
    assert not RoutingView.of(Routing()).whole
    assert RoutingView.of(Routing(1, ("p",), ("x",), (0,) * 512, (1,) * 512)).whole


def test_what_was_waited_for_is_told_by_server_and_told_once(client, servers):
    start(client, *servers)
    late = servers[1].exchange
    handle, pause = late.handle, threading.Event()

    def slowly(*frame):
        pause.wait(0.02)
        return handle(*frame)

    late.handle = slowly
    sheet = sheet_of(0)
    client.exchange(None, sheet)
    client.take_waits()
    for number in range(1, 10):
        following = sheet_of(number)
        client.exchange(sheet, following, rate=1.0)
        sheet = following
    waits = client.take_waits()
    assert set(waits) == {server.process for server in servers}
    others = [waits[server.process] for server in servers if server is not servers[1]]
    assert waits[servers[1].process] > 2 * max(others), "what it makes the others wait stands in its name"
    assert client.take_waits() == {}
