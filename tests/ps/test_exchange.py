"""The rules of a push and a pull, frame by frame. Traces are those of the protocol's model check."""

from types import SimpleNamespace

import numpy as np
import pytest
from ps_models import SGD, embedding

from trimtab.core.domain.intervals import EMPTY, IntervalSet
from trimtab.core.domain.model_spec import InitializerSpec, TableSpec
from trimtab.core.errors import WireError
from trimtab.core.ps import exchange as exchanging
from trimtab.core.ps.exchange import Exchange
from trimtab.core.ps.hashing import vshards
from trimtab.core.ps.table import RowTable
from trimtab.core.wire import frames
from trimtab.core.wire.frames import NEED_KEYS, OK, RequestHeader

TABLES = (
    TableSpec("t", 2, "embedding", 0, InitializerSpec(), SGD),
    TableSpec("u", 1, "embedding", 0, InitializerSpec(), SGD),
)
EVERY = (1 << 512) - 1
T_KEYS, U_KEYS = np.arange(40, dtype=np.int64), np.arange(7, dtype=np.int64)


def cover_of(table, keys):
    bits = 0
    for vshard in vshards(table, np.asarray(keys, np.int64)).tolist():
        bits |= 1 << vshard
    return bits


@pytest.fixture
def exchange():
    made = Exchange(RowTable(TABLES, 1, 64 << 20), batches=100, die=lambda code: pytest.fail(f"died with {code}"))
    made.served = EVERY
    made.sets.put(EVERY, EMPTY, EMPTY)
    return made


def send(exchange, *, push=None, pull=None, number=0, token=0, keep=0, cover=EVERY, keys=True, skipped=False,
         defaults=False, worker="w", ones=1.0, rate=1.0):  # fmt: skip
    """One frame; `push` and `pull` are (t keys, u keys). Returns the reply header and the pulled rows."""
    counts, body = [], []
    flags = 0
    if push is not None:
        flags |= frames.PUSH | (frames.KEYS if keys else 0) | (frames.SKIPPED if skipped else 0)
        counts += [len(push[0]), len(push[1])]
    if pull is not None:
        flags |= frames.PULL | (frames.DEFAULTS if defaults else 0)
        counts += [len(pull[0]), len(pull[1])]
    parts = [(np.array(counts, np.uint32), True)]
    if push is not None:
        if keys:
            parts.append((np.concatenate(push).astype(np.int64), True))
        parts.append((np.full(2 * len(push[0]) + len(push[1]), ones, np.float32), pull is not None))
    if pull is not None:
        parts.append((np.concatenate(pull).astype(np.int64), False))
    for array, pad in parts:
        body.append(array.tobytes())
        size = sum(map(len, body))
        body.append(bytes(frames.padded(size) - size if pad else 0))
    data = frames.aligned(sum(map(len, body)))
    data[:] = np.frombuffer(b"".join(body), np.uint8)
    header = RequestHeader(flags, 2, number, token, keep, rate, len(data), cover if push else 0, cover if pull else 0)
    reply, sections = exchange.handle(worker, header, data)
    return reply, np.concatenate([np.asarray(s, np.float32) for s in sections]) if sections else None


def values(exchange, t=T_KEYS, u=U_KEYS):
    return send(exchange, pull=(t, u))[1]


def test_a_push_is_applied_once_however_often_it_comes(exchange):
    for _ in range(3):
        reply, _ = send(exchange, push=(T_KEYS, U_KEYS), number=5)
        assert reply.push_status == OK
    assert (values(exchange) == -1).all()
    assert reply.dropped == 512
    assert exchange.counters.pushes == 1
    assert exchange.counters.duplicates == 2


def test_a_double_is_dropped_even_hours_later(exchange):
    send(exchange, push=(T_KEYS, U_KEYS), number=0)
    for number in range(1, 60):
        send(exchange, push=(T_KEYS, U_KEYS), number=number)
    send(exchange, push=(T_KEYS, U_KEYS), number=0)  # trace 2: sets do not forget
    assert (values(exchange) == -60).all()


def test_only_named_vshards_are_marked(exchange):
    """Trace 1: marking all that a server owns loses the resend of what moved to it meanwhile."""
    named = cover_of("t", T_KEYS[:20])
    mine = T_KEYS[(1 << vshards("t", T_KEYS).astype(object)) & named != 0]
    send(exchange, push=(mine, []), number=0, cover=named)
    rest = EVERY & ~named
    others = np.setdiff1d(T_KEYS, mine)
    assert len(others)
    rest_u = U_KEYS[[bool(cover_of("u", [u]) & rest) for u in U_KEYS]]
    reply, _ = send(exchange, push=(others, rest_u), number=0, cover=rest)
    assert (reply.push_status, reply.dropped) == (OK, 0)
    assert (values(exchange, u=[]) == -1).all()
    assert exchange.sets.of(0).applied == IntervalSet.span(0, 1)


def test_what_is_served_is_applied_and_the_rest_refused(exchange):
    away = cover_of("t", T_KEYS[:10])
    exchange.served = EVERY & ~away
    reply, rows = send(exchange, push=(T_KEYS, U_KEYS), pull=(T_KEYS, U_KEYS), number=3)
    assert reply.push_status == OK
    assert reply.push_refused == reply.pull_refused == away
    here = np.array([not away >> v & 1 for v in vshards("t", T_KEYS).tolist()])
    assert (rows[: 2 * len(T_KEYS)].reshape(-1, 2)[here] == -1).all()
    exchange.served = EVERY
    reply, _ = send(exchange, push=(T_KEYS, U_KEYS), number=3)  # the resend fills exactly the gap
    assert reply.push_refused == 0
    assert (values(exchange) == -1).all()


def test_a_token_replaces_the_keys_once(exchange):
    send(exchange, pull=(T_KEYS, U_KEYS), keep=9)
    assert send(exchange, push=(T_KEYS, U_KEYS), number=0, token=9, keys=False)[0].push_status == OK
    assert (values(exchange) == -1).all()
    assert send(exchange, push=(T_KEYS, U_KEYS), number=1, token=9, keys=False)[0].push_status == NEED_KEYS
    assert (values(exchange) == -1).all()


@pytest.mark.parametrize("event", ["load", "other worker", "other process"])
def test_a_token_does_not_outlive_its_generation_or_process(exchange, event):
    send(exchange, pull=(T_KEYS, U_KEYS), keep=9)
    target = exchange
    if event == "load":
        exchange.table.replace(0, exchange.table.extract(0))
    if event == "other process":
        target = Exchange(RowTable(TABLES, 1, 64 << 20), 100)
        target.served = EVERY
        target.sets.put(EVERY, EMPTY, EMPTY)
    worker = "x" if event == "other worker" else "w"
    reply, rows = send(target, push=(T_KEYS, U_KEYS), pull=(T_KEYS, U_KEYS), token=9, keys=False, worker=worker)
    assert (reply.push_status, reply.pull_status, rows) == (NEED_KEYS, NEED_KEYS, None)
    assert (values(target) == 0).all()
    assert target.sets.of(0).applied == EMPTY


def test_two_workers_may_bear_the_same_row(exchange):
    send(exchange, pull=(T_KEYS, U_KEYS), keep=1, worker="v")
    send(exchange, pull=(T_KEYS, U_KEYS), keep=1, worker="w")
    for number, worker in enumerate("vw"):
        send(exchange, push=(T_KEYS, U_KEYS), number=number, token=1, keys=False, worker=worker)
    assert (values(exchange) == -2).all()
    assert exchange.table.row_count == len(T_KEYS) + len(U_KEYS)


def test_an_empty_push_marks_and_changes_nothing(exchange):
    assert send(exchange, push=([], []), number=4, keys=False, skipped=True)[0].push_status == OK
    assert (values(exchange) == 0).all()
    assert exchange.table.row_count == 0
    assert exchange.sets.of(7).skipped == IntervalSet(((4, 5),))
    send(exchange, push=(T_KEYS, U_KEYS), number=4)  # another worker found it finite: too late for every vshard
    assert (values(exchange) == 0).all()


def test_a_pull_bears_nothing_and_evaluation_reads_defaults():
    made = Exchange(RowTable((embedding("t", 2), embedding("u", 1)), 1, 64 << 20), 100)
    made.served = EVERY
    made.sets.put(EVERY, EMPTY, EMPTY)
    assert (values(made) != 0).all()
    assert (send(made, pull=(T_KEYS, U_KEYS), defaults=True)[1] == 0).all()
    assert made.table.row_count == 0


def test_the_pull_half_sees_the_push_half(exchange):
    _, rows = send(exchange, push=(T_KEYS, U_KEYS), pull=(T_KEYS, U_KEYS), number=0)
    assert (rows == -1).all()


@pytest.mark.parametrize("number", [-1, 100, 2**62])
def test_a_number_outside_the_job_breaks_the_protocol(exchange, number):
    with pytest.raises(WireError, match="outside this job"):
        send(exchange, push=(T_KEYS, U_KEYS), number=number)


def test_keys_outside_the_named_vshards_break_the_protocol(exchange):
    with pytest.raises(WireError, match="does not name"):
        send(exchange, push=(T_KEYS, U_KEYS), cover=cover_of("t", T_KEYS[:1]))
    assert (values(exchange) == 0).all()


def test_counts_that_are_not_the_tokens_break_the_protocol(exchange):
    send(exchange, pull=(T_KEYS, U_KEYS), keep=9)
    with pytest.raises(WireError, match="counts are not those"):
        send(exchange, push=(T_KEYS[:-1], U_KEYS), token=9, keys=False)


def test_a_pull_of_keys_outside_its_cover_leaves_no_token(exchange):
    """A push by token is not checked key by key, so what the token names must have been inside."""
    cover = cover_of("t", T_KEYS[:1])
    send(exchange, pull=(T_KEYS[:3], []), keep=5, cover=cover)
    reply, _ = send(exchange, push=(T_KEYS[:3], []), number=3, token=5, keys=False, cover=cover)
    assert reply.push_status == NEED_KEYS
    assert (values(exchange) == 0).all()


@pytest.mark.parametrize("rate", [float("nan"), float("inf")])
def test_a_rate_that_is_not_finite_breaks_the_protocol(exchange, rate):
    with pytest.raises(WireError, match="not finite"):
        send(exchange, push=(T_KEYS, U_KEYS), rate=rate)
    assert (values(exchange) == 0).all()
    assert exchange.sets.of(0).applied == EMPTY


def test_what_is_missing_is_judged_when_the_rows_are_read(exchange):
    """A vshard that begins to be served right after the read must still be reported: its rows were not here."""
    away = cover_of("t", T_KEYS[:1])
    exchange.served = EVERY & ~away
    lock = exchange.lock

    class LoaderWaits:
        def __enter__(self):
            return lock.__enter__()

        def __exit__(self, *error):
            exchange.served = EVERY
            return lock.__exit__(*error)

    exchange.lock = LoaderWaits()
    reply, _ = send(exchange, pull=(T_KEYS, U_KEYS))
    assert reply.pull_refused == away


def test_a_failure_to_mark_ends_the_process_too():
    codes = []
    made = Exchange(RowTable(TABLES, 1, 64 << 20), 100, die=codes.append)
    made.served = EVERY
    made.sets.put(EVERY, EMPTY, EMPTY)
    made.sets.mark = lambda *_, **__: (_ for _ in ()).throw(MemoryError)
    with pytest.raises(MemoryError):
        send(made, push=(T_KEYS, U_KEYS))
    assert codes == [70]


def test_without_room_a_push_is_refused_whole_and_applied_once_there_is_some():
    table = RowTable(TABLES, 1, 1 << 20, 64 << 20)
    made, waited = Exchange(table, 100), []
    made.served = EVERY
    made.sets.put(EVERY, EMPTY, EMPTY)
    made.wait_for_room = lambda: waited.append(made.lock.locked())
    few = (np.arange(10, dtype=np.int64), U_KEYS)
    assert send(made, push=few, number=0)[0].push_refused == 0
    many = (np.arange(100_000, dtype=np.int64), U_KEYS)
    header, _ = send(made, push=many, pull=few, number=1)
    assert (header.push_status, header.push_refused, header.pull_refused) == (OK, EVERY, EVERY)
    assert made.sets.of(0).applied == IntervalSet.span(0, 1), "nothing is marked"
    assert table.row_count == 17 and made.counters.pushes == 1, "and nothing has changed"
    assert (made.counters.crowded, waited) == (1, [False]), "it is held a while, and keeps nobody else out"
    assert send(made, push=few, number=2)[0].push_refused == 0, "what needs no new rows goes on"
    assert table.allow(32 << 20)
    assert send(made, push=many, number=1)[0].push_refused == 0
    assert made.sets.of(0).applied == IntervalSet.span(0, 3)
    assert (made.counters.crowded, len(waited)) == (1, 1)


def test_a_failure_after_the_first_row_ends_the_process():
    codes = []
    made = Exchange(RowTable(TABLES, 1, 64 << 20), 100, die=codes.append)
    made.served = EVERY
    made.sets.put(EVERY, EMPTY, EMPTY)
    made.table.update = lambda *_: (_ for _ in ()).throw(MemoryError)
    with pytest.raises(MemoryError):
        send(made, push=(T_KEYS, U_KEYS))
    assert codes == [70]
    assert made.sets.of(0).applied == EMPTY


def test_the_time_that_a_frame_waits_for_the_lock_and_that_it_takes_are_kept_apart(exchange, monkeypatch):
    times = iter((1.0, 3.0, 3.5, 10.0, 10.0, 10.25))
    monkeypatch.setattr(exchanging, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    for number in (0, 1):
        send(exchange, number=number, push=(T_KEYS, U_KEYS))
    counters = exchange.counters
    assert (counters.queue_seconds, counters.busy_seconds) == (2.0, 0.75)
