"""The log of pushes: what it keeps is what was pushed, and it never keeps more than it may."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ps_models import SGD, UNIFORM

from trimtab.core.domain.model_spec import InitializerSpec, TableSpec
from trimtab.core.ps.gradient_log import GradientLog
from trimtab.core.ps.hashing import vshards
from trimtab.core.ps.sheet import FlatPush, Push, sections_of

TABLES = (
    TableSpec("a", 4, "embedding", 0, UNIFORM, SGD),
    TableSpec("b", 4, "embedding", 0, UNIFORM, SGD),
    TableSpec("wide", 16, "embedding", 0, UNIFORM, SGD),
    TableSpec("dense", 8, "dense", 5, InitializerSpec(), SGD),
)
SECTIONS = sections_of(TABLES)
KIB = 1024


def push_of(number, rows, servers=2, skipped=False, spare=3):
    """A push with made-up keys; its arrays are longer than its counts say, as a planner's are."""
    random = np.random.default_rng(number)
    counts = random.multinomial(rows, np.ones(servers * len(TABLES)) / (servers * len(TABLES)))
    counts = counts.reshape(servers, len(TABLES))
    keys, gradients = [], []
    for section in SECTIONS:
        n = int(counts[:, section.first : section.last].sum()) + spare
        keys.append(random.integers(-(2**62), 2**62, n))
        gradients.append(random.standard_normal((n, section.dim)).astype(np.float32))
    return Push(number, 0.1 * number, skipped, counts, keys, gradients)


def same(kept, pushed):
    assert (kept.number, kept.rate, kept.skipped) == (pushed.number, pushed.rate, pushed.skipped)
    assert (kept.counts == pushed.counts).all()
    if pushed.skipped:
        return
    for number, section in enumerate(SECTIONS):
        n = int(pushed.counts[:, section.first : section.last].sum())
        assert kept.keys[number].tolist() == pushed.keys[number][:n].tolist()
        assert (kept.gradients[number] == pushed.gradients[number][:n]).all()


def overwrite(push):
    """What becomes of a sheet's arrays two batches later."""
    for one in (push.counts, *push.keys, *push.gradients):
        one[:] = -1


def test_what_is_kept_outlives_the_sheet():
    log = GradientLog(len(TABLES), SECTIONS, 1 << 20)
    for number in range(5):
        push = push_of(number, 40)
        log.add(push)
        overwrite(push)
    assert log.numbers() == (0, 1, 2, 3, 4)
    for kept, number in zip(log, range(5), strict=True):
        same(kept, push_of(number, 40))
        same(log.get(number), push_of(number, 40))
    assert log.get(5) is None and 5 not in log


def test_the_oldest_go_first_and_the_ring_is_never_larger_than_it_may_be():
    log = GradientLog(len(TABLES), SECTIONS, 64 * KIB)
    for number in range(200):
        log.add(push_of(number, 30 + number % 7))
        kept = log.numbers()
        assert kept == tuple(range(kept[0], number + 1))
    assert len(log._ring) == 64 * KIB
    assert 60 * KIB < log.touched_bytes <= 64 * KIB, "what it costs of memory"
    held = [array for kept in log for array in (kept.counts, *kept.keys, *kept.gradients)]
    assert all(np.shares_memory(array, log._ring) for array in held if array.size)
    assert 12 <= len(log) <= 32  # of 30 to 36 rows of 8 + 4 × (4 to 16) bytes, 2 KiB and more each


def test_a_push_larger_than_the_log_is_not_kept_and_costs_nobody_his_place():
    log = GradientLog(len(TABLES), SECTIONS, 16 * KIB)
    log.add(push_of(0, 10))
    log.add(push_of(1, 1000))
    assert log.numbers() == (0,)


def test_small_pushes_are_bounded_in_number_too():
    log = GradientLog(len(TABLES), SECTIONS, 64 * KIB)
    for number in range(1000):
        log.add(push_of(number, 0, skipped=True))
    assert len(log) == 32
    same(log.get(999), push_of(999, 0, skipped=True))


def test_a_number_that_comes_again_keeps_its_first_gradients():
    log = GradientLog(len(TABLES), SECTIONS, 64 * KIB)
    log.add(push_of(7, 20))
    again = push_of(8, 20)
    log.add(Push(7, 9.0, False, again.counts, again.keys, again.gradients))
    assert log.numbers() == (7,)
    same(log.get(7), push_of(7, 20))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(4 * KIB, 40 * KIB),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 250), st.integers(1, 3), st.booleans()), max_size=60),
)
def test_it_is_a_queue_of_what_was_pushed(limit, pushes):
    """Against a plain dictionary: whatever is kept is right, and what is kept are the latest ones."""
    log, model = GradientLog(len(TABLES), SECTIONS, limit), {}
    for number, rows, servers, skipped in pushes:
        push = push_of(number, rows, servers, skipped)
        known = number in log
        log.add(push)
        if not known:
            model.pop(number, None)
            if number in log:
                model[number] = (rows, servers, skipped)
        kept = log.numbers()
        assert kept == tuple(model)[len(model) - len(kept) :]
        for one in kept:
            same(log.get(one), push_of(one, *model[one]))


@pytest.mark.parametrize("servers", [1, 3])
def test_a_flat_push_is_cut_by_vshards_whatever_it_was_grouped_for(servers):
    push = push_of(3, 300, servers)
    flat = FlatPush(push, TABLES, SECTIONS)
    cover = int.from_bytes(np.random.default_rng(1).bytes(64), "little")
    one, other = flat.part(cover), flat.part(((1 << 512) - 1) & ~cover)
    assert (one[0].astype(int) + other[0] == push.counts.sum(axis=0)).all()
    expected = [{} for _ in TABLES]  # by table: key to gradient, from the layout's own words
    for number, section in enumerate(SECTIONS):
        at = 0
        for server in range(servers):
            for table in range(section.first, section.last):
                for _ in range(push.counts[server, table]):
                    expected[table][int(push.keys[number][at])] = push.gradients[number][at].tolist()
                    at += 1
    for (counts, keys, gradients), wanted in ((one, 1), (other, 0)):
        for table, spec in enumerate(TABLES):
            assert len(keys[table]) == len(gradients[table]) == counts[table]
            assert all(cover >> v & 1 == wanted for v in vshards(spec.name, keys[table]).tolist())
            for key, gradient in zip(keys[table].tolist(), gradients[table].tolist(), strict=True):
                assert expected[table][key] == gradient
