"""Vshards move between two parameter servers while pushes go on: same rows, same sets, nothing lost, nothing twice."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from trimtab.core.clock import ManualClock
from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.errors import WireError
from trimtab.core.ps import incoming, outgoing
from trimtab.core.ps.initial import write_initial
from trimtab.core.ps.server import ParameterServer
from trimtab.core.ps.table import RowTable
from trimtab.core.wire import frames
from trimtab.core.wire.encode import to_json
from trimtab.core.wire.frames import ReplyHeader, RequestHeader
from trimtab.core.wire.messages import (
    DropOrder,
    MoveRequest,
    Origin,
    PrepareOrder,
    PsSync,
    ServeOrder,
    from_bitmap,
    to_bitmap,
)
from trimtab.core.wire.sockets import DataConnection, DataServer

SECRET = b"s" * 32
EVERY = (1 << 512) - 1
HALF = tuple(range(0, 512, 2))
BATCHES = 400


class Node:
    """A parameter server with a real data plane."""

    def __init__(self, model, name, directory, memory_bytes=64 << 20):
        self.process = name * 32
        table = RowTable(model.tables, 1, memory_bytes)
        self.server = ParameterServer("job", self.process, 1, model, table, BATCHES, ManualClock(), self.dial)
        self.data = DataServer(f"unix:{directory}/{name}.data", SECRET, "job", self.process, self.server.handle)
        self.sequence = 0

    def dial(self, address, process):
        return DataConnection(address, SECRET, "job", self.process, 10.0, expected=process)

    def sync(self, *serve, prepare=(), drop=()):
        self.sequence += 1
        return self.server.sync(
            PsSync("job", 1, self.sequence, self.process, tuple(serve), prepare=tuple(prepare), drop=tuple(drop))
        )

    def until(self, done, *serve, **more):
        pause = threading.Event()
        for _ in range(6000):
            report = self.sync(*serve, **more)
            assert not report.error, report.error
            if done(report):
                return report
            pause.wait(0.005)
        pytest.fail(f"never done: {report}")

    def served(self, since=None):
        return sum(int(one.vshards, 16) for one in self.sync().served if since in (None, one.since))

    def rows(self, vshards=range(512)):
        """Every row as {(table, key): bytes}."""
        found = {}
        for vshard in vshards:
            content = self.server.exchange.table.extract(vshard)
            for number, (keys, rows) in enumerate(zip(content.keys, content.rows, strict=True)):
                found |= {(number, int(key)): row.tobytes() for key, row in zip(keys, rows, strict=True)}
        return found

    def origin(self, since=1):
        return Origin(self.process, self.data.address, since)


class Pusher:
    """Pushes batches straight into servers, as a worker's slow path does: until each vshard has it."""

    def __init__(self, model, *nodes):
        self.model, self.nodes = model, nodes
        self.random = np.random.default_rng(3)

    def push(self, number):
        dims = [table.dim for table in self.model.tables]
        keys = [np.unique(self.random.integers(0, 3000, 40)).astype(np.int64) for _ in dims[:-1]]
        keys.append(np.arange(3, dtype=np.int64))
        shapes = [(len(one), dim) for one, dim in zip(keys, dims, strict=True)]
        gradients = [self.random.normal(size=shape).astype(np.float32) for shape in shapes]
        left, tries = EVERY, 0
        while left:
            tries += 1
            assert tries < 20_000
            for node in self.nodes:
                refused = self.send(node, number, keys, gradients, left)
                left &= refused

    def send(self, node, number, keys, gradients, cover):
        table = node.server.exchange.table
        keep = [np.array([cover >> int(v) & 1 for v in table.vshards_of(n, k)], bool) for n, k in enumerate(keys)]
        counts = np.array([mask.sum() for mask in keep], np.uint32)
        parts = [counts.tobytes(), *(k[m].tobytes() for k, m in zip(keys, keep, strict=True))]
        head = counts.nbytes
        body = bytearray(parts[0].ljust(frames.padded(head), b"\0"))
        body += b"".join(parts[1:])
        body = bytearray(bytes(body).ljust(frames.padded(len(body)), b"\0"))
        body += b"".join(g[m].tobytes() for g, m in zip(gradients, keep, strict=True))
        raw = frames.aligned(len(body))
        raw[:] = np.frombuffer(body, np.uint8)
        flags = frames.PUSH | frames.KEYS
        header = RequestHeader(flags, len(keys), number, 0, 0, 0.1, len(raw), cover, 0)
        reply, _ = node.server.handle("w", header, raw)
        assert reply.push_status == frames.OK
        return reply.push_refused


@pytest.fixture
def nodes(model, tmp_path):
    manifest = write_initial(tmp_path / "checkpoint", "job", model)
    made = [Node(model, name, tmp_path) for name in "ab"]
    everything = ServeOrder(to_bitmap(range(512)), 1, manifest.path)
    made[0].until(lambda report: not report.loading, everything)
    made[0].manifest = manifest.path
    yield made
    for node in made:
        node.data.close()


def prepared(report):
    return sum(int(one.vshards, 16) for one in report.staged)


def test_half_of_all_vshards_move_while_pushes_go_on(model, nodes, tmp_path):
    first, second = nodes
    pusher, reference = Pusher(model, first, second), Pusher(model, first)
    for number in range(50):
        pusher.push(number)
    trained = threading.Event()

    def train():
        for number in range(50, BATCHES):
            pusher.push(number)
        trained.set()

    thread = threading.Thread(target=train)
    thread.start()
    moved = to_bitmap(HALF)
    order = PrepareOrder(moved, first.origin())
    second.until(lambda report: prepared(report) == int(moved, 16), prepare=[order])
    assert second.served() == 0, "keeping aside grants nothing"
    serve = ServeOrder(moved, 2, first.manifest, first.origin())
    report = second.until(lambda report: second.served(2) == int(moved, 16), serve)
    assert report.missing == ""
    thread.join(120)
    assert trained.is_set()
    first.until(lambda report: not first.rows(HALF), drop=[DropOrder(moved, 2)])
    assert first.served() == EVERY & ~int(moved, 16)
    whole = IntervalSet.span(0, BATCHES)
    assert {one.applied for node in nodes for one in node.sync().served} == {whole.intervals}
    joined = first.rows() | second.rows()
    assert set(first.rows()) & set(second.rows()) == set()

    quiet = Node(model, "c", tmp_path)
    quiet.data.close()
    quiet.until(lambda report: not report.loading, ServeOrder(to_bitmap(range(512)), 1, first.manifest))
    reference.nodes = (quiet,)
    for number in range(BATCHES):
        reference.push(number)
    assert joined == quiet.rows(), "bit for bit what an undisturbed server has"


def test_what_was_not_prepared_is_handed_over_whole(model, nodes):
    first, second = nodes
    pusher = Pusher(model, first, second)
    for number in range(20):
        pusher.push(number)
    before = first.rows(HALF)
    serve = ServeOrder(to_bitmap(HALF), 2, first.manifest, first.origin())
    second.until(lambda report: second.served(2) == int(serve.vshards, 16), serve)
    assert second.rows(HALF) == before
    assert {one.applied for one in second.sync().served} == {((0, 20),)}


def test_a_copy_that_does_not_come_to_its_sum_is_thrown_away_and_made_whole(model, nodes):
    first, second = nodes
    pusher = Pusher(model, first)
    for number in range(20):
        pusher.push(number)
    order = PrepareOrder(to_bitmap(HALF), first.origin())
    second.until(lambda report: prepared(report) == int(order.vshards, 16), prepare=[order])
    table = second.server.exchange.table
    for vshard in HALF[:5]:  # rows that were damaged while they lay aside
        found = table.rows_in(vshard)
        rows = [part + 1 for part in table.whole_rows(found)]
        table.write(found, rows)
        second.server._incoming._sums[vshard] += np.uint64(1)
    for number in range(20, 30):
        pusher.push(number)
    serve = ServeOrder(order.vshards, 2, first.manifest, first.origin())
    second.until(lambda report: second.served(2) == int(serve.vshards, 16), serve)
    assert second.rows(HALF) == first.rows(HALF)


def test_an_origin_of_another_tenure_hands_nothing_over(nodes):
    """A request means nothing outside the tenure that it names: the origin goes on serving, and that is told."""
    first, second = nodes
    serve = ServeOrder(to_bitmap(HALF), 3, first.manifest, first.origin(since=2))
    report = second.until(lambda report: report.missing != "" and not report.loading, serve)
    assert int(report.missing, 16) == int(serve.vshards, 16)
    assert first.served() == EVERY and second.served() == 0
    again = replace(serve, origin=None)
    report = second.until(lambda report: second.served(3) == int(serve.vshards, 16), again)
    assert report.missing == ""


def test_an_origin_that_died_is_replaced_by_the_checkpoint(nodes):
    first, second = nodes
    order = PrepareOrder(to_bitmap(HALF), first.origin())
    second.until(lambda report: prepared(report) == int(order.vshards, 16), prepare=[order])
    first.data.close()
    serve = ServeOrder(order.vshards, 2, first.manifest, first.origin())
    pause = threading.Event()
    for _ in range(40):
        second.sync(serve)
        pause.wait(0.005)
    assert second.served() == 0
    second.until(lambda report: second.served(2) == int(serve.vshards, 16), replace(serve, origin=None))
    assert {one.applied for one in second.sync().served} == {()}


def test_a_move_is_taken_back_by_a_newer_tenure_of_the_origin(model, nodes):
    """The new owner died after the origin had ended its tenure: the origin still has the freshest rows."""
    first, second = nodes
    pusher = Pusher(model, first)
    for number in range(10):
        pusher.push(number)
    rows = first.rows()
    second.until(
        lambda report: second.served(2) == int(to_bitmap(HALF), 16),
        ServeOrder(to_bitmap(HALF), 2, first.manifest, first.origin()),
    )
    assert first.served() == EVERY & ~int(to_bitmap(HALF), 16)
    back = ServeOrder(to_bitmap(HALF), 3, first.manifest, first.origin())
    first.until(lambda report: first.served(3) == int(to_bitmap(HALF), 16), back)
    assert first.rows() == rows
    assert first.served() == EVERY


def test_a_late_order_to_prepare_leaves_newer_rows_alone(model, nodes):
    first, second = nodes
    serve = ServeOrder(to_bitmap(HALF), 2, first.manifest, first.origin())
    second.until(lambda report: second.served(2) == int(serve.vshards, 16), serve)
    before = second.rows(HALF)
    late = PrepareOrder(to_bitmap(HALF), first.origin())
    for _ in range(20):
        report = second.sync(prepare=[late])
    assert report.staged == () and second.rows(HALF) == before and second.served(2) == int(serve.vshards, 16)


def test_what_is_no_longer_to_be_prepared_is_thrown_away(model, nodes):
    first, second = nodes
    Pusher(model, first).push(0)
    order = PrepareOrder(to_bitmap(HALF), first.origin())
    second.until(lambda report: prepared(report) == int(order.vshards, 16), prepare=[order])
    assert second.rows()
    second.until(lambda report: report.staged == () and not second.rows())
    assert second.sync().rows == 0


def test_a_table_without_room_says_so_and_harms_nobody(model, tmp_path):
    manifest = write_initial(tmp_path / "checkpoint", "job", model)
    first, small = Node(model, "a", tmp_path), Node(model, "b", tmp_path, memory_bytes=1 << 15)
    first.until(lambda report: not report.loading, ServeOrder(to_bitmap(range(512)), 1, manifest.path))
    pusher = Pusher(model, first)
    for number in range(50):
        pusher.push(number)
    order = PrepareOrder(to_bitmap(range(512)), first.origin())
    report = small.until(lambda report: report.move_error != "", prepare=[order])
    assert "no room" in report.move_error and first.served() == EVERY
    first.data.close()
    small.data.close()


def test_row_tokens_survive_the_move_of_other_vshards(model, nodes):
    first, _ = nodes
    table = first.server.exchange.table
    before = table.generation
    table.drop(3)
    assert table.intact(1 << 5, before) and not table.intact(1 << 3 | 1 << 5, before)
    assert table.intact(1 << 3, table.generation)


def test_a_request_that_is_no_move_is_refused(nodes):
    first, second = nodes
    line = second.dial(first.data.address, first.process)
    line.send(RequestHeader(frames.MOVE, 4, body_bytes=7), [b"{nope}!"])
    with pytest.raises(Exception, match="closed"):
        line.receive_header()
    assert first.data.refused == 1 and first.served() == EVERY


def test_headers_know_moves():
    header = RequestHeader(frames.MOVE, 4, body_bytes=7)
    assert RequestHeader.unpack(header.pack()) == header
    assert ReplyHeader.unpack(ReplyHeader(frames.NONE, frames.OK, 9).pack()).body_bytes == 9
    assert from_bitmap(to_bitmap(HALF)) == list(HALF)


def test_lines_to_servers_that_nothing_is_to_come_from_are_closed(model, nodes):
    first, second = nodes
    lines = second.server._incoming._connections
    order = PrepareOrder(to_bitmap(HALF), first.origin())
    second.until(lambda report: prepared(report) == int(order.vshards, 16), prepare=[order])
    (line,) = lines.values()
    serve = ServeOrder(order.vshards, 2, first.manifest, first.origin())
    second.until(lambda report: second.served(2) == int(serve.vshards, 16), serve)
    second.until(lambda report: not lines)
    with pytest.raises(OSError, match=r"closed|descriptor"):
        line.send(RequestHeader(frames.MOVE, 4, body_bytes=2), [b"{}"])
    second.until(lambda report: report.staged == ())


def watched(second, during=lambda: None):
    """Every answer of a move: its request, and how many rows it brought; `during` is called after each."""
    asked, ask = [], second.server._incoming._ask

    def seen(origin, request):
        answer = ask(origin, request)
        asked.append((request, len(answer[1].keys)))
        during()
        return answer

    second.server._incoming._ask = seen
    return asked


def test_a_small_table_moves_in_few_turns_and_what_changes_all_the_time_goes_last(model, nodes):
    """A busy server's lock comes by turns, so turns are what a move takes; a refresh on the way would be in vain."""
    first, second = nodes
    pusher, numbers = Pusher(model, first), iter(range(BATCHES))
    for _ in range(30):
        pusher.push(next(numbers))
    rows, turns = sum(len(first.rows([vshard])) for vshard in HALF), []
    give_way = first.server.exchange.give_way
    first.server.exchange.give_way = lambda: (turns.append(1), give_way())
    asked = watched(second, lambda: pusher.push(next(numbers)))
    order = PrepareOrder(to_bitmap(HALF), first.origin())
    second.until(lambda report: prepared(report) == int(order.vshards, 16), prepare=[order])
    whole = [count for request, count in asked if not request.changes]
    assert len(whole) == len(HALF) // 64 and sum(whole) >= rows
    assert not any(request.changes for request, _ in asked[: len(whole)])
    assert len(turns) <= 2 * len(asked)


def test_a_long_list_of_changes_is_asked_for_before_all_is_copied(model, nodes, monkeypatch):
    first, second = nodes
    monkeypatch.setattr(incoming, "_MOST_CHANGED", 5)
    pusher, numbers = Pusher(model, first), iter(range(BATCHES))
    pusher.push(next(numbers))
    over = threading.Event()
    asked = watched(second, lambda: over.is_set() or pusher.push(next(numbers)))
    order = PrepareOrder(to_bitmap(HALF), first.origin())
    second.until(lambda report: prepared(report) == int(order.vshards, 16), prepare=[order])
    over.set()  # who pushed on would wait for the new owner
    kinds = [request.changes for request, _ in asked]
    assert True in kinds[: kinds.count(False)], "one of the first answers is a refresh"
    serve = ServeOrder(order.vshards, 2, first.manifest, first.origin())
    second.until(lambda report: second.served(2) == int(serve.vshards, 16), serve)
    assert second.rows(HALF) == first.rows(HALF)


def test_a_large_table_moves_in_pieces(model, nodes, monkeypatch):
    first, second = nodes
    monkeypatch.setattr(outgoing, "_SLICE", 20)
    monkeypatch.setattr(outgoing, "_MOST_ROWS", 60)
    pusher = Pusher(model, first)
    for number in range(60):
        pusher.push(number)
    asked = watched(second)
    order = PrepareOrder(to_bitmap(HALF), first.origin())
    second.until(lambda report: prepared(report) == int(order.vshards, 16), prepare=[order])
    pieces = [count for request, count in asked if not request.changes]
    largest = max(len(first.rows([vshard])) for vshard in HALF)
    assert len(pieces) > 10 and max(pieces) < 60 + 20 + largest
    assert second.rows(HALF) == first.rows(HALF)


def test_no_more_than_a_few_tenures_end_with_one_request(model, nodes):
    first, _ = nodes
    body = np.frombuffer(to_json(MoveRequest(to_bitmap(range(9)), 1, final=True)), np.uint8)
    with pytest.raises(WireError, match="9 vshards at once; 8 are the most"):
        first.server._outgoing.handle(body)
    assert first.served() == EVERY
