"""The table against a dictionary: find, bear, update, extract, replace, and no room."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ps_models import SGD, embedding

from trimtab.core.domain.model_spec import InitializerSpec, OptimizerSpec, TableSpec
from trimtab.core.ps import arena, index
from trimtab.core.ps.hashing import vshards
from trimtab.core.ps.space import reserve
from trimtab.core.ps.table import RowTable, TableFull

TABLES = (embedding("a"), embedding("b"), embedding("wide", 1))
ROOM = 64 << 20


def batch(*keys_per_table):
    keys = np.array([key for keys in keys_per_table for key in keys], np.int64)
    return keys, np.array([len(keys) for keys in keys_per_table], np.uint32)


def read(table, *keys_per_table, defaults=False):
    keys, counts = batch(*keys_per_table)
    out = np.zeros(int(counts.astype(np.int64) @ table.dims), np.float32)
    table.read(table.find(keys, counts), defaults, out)
    return out


def test_a_pull_changes_nothing_and_an_absent_row_is_a_function_of_seed_table_and_key():
    one, other = RowTable(TABLES, 7, ROOM), RowTable(TABLES, 7, ROOM)
    values = read(one, [1, 2], [1], [9])
    assert one.row_count == 0
    assert (read(other, [1, 2], [1], [9]) == values).all()
    assert (read(RowTable(TABLES, 8, ROOM), [1, 2], [1], [9]) != values).any()
    assert len(set(values.tolist())) == len(values)  # another table or column is another draw
    assert (read(one, [1, 2], [1], [9], defaults=True) == 0).all()


def test_a_row_is_born_with_the_values_that_a_pull_saw():
    table = RowTable(TABLES, 7, ROOM)
    before = read(table, [5, -3], [5], [0])
    found = table.bear(table.find(*batch([5, -3], [5], [0])))
    assert (found.places >= 0).all()
    assert (read(table, [5, -3], [5], [0]) == before).all()
    assert table.row_count == 4


def test_equal_keys_of_two_tables_are_two_rows():
    table = RowTable(TABLES, 7, ROOM)
    found = table.bear(table.find(*batch([5], [5], [])))
    table.update(found, np.array([1] * 4 + [2] * 4, np.float32), 1.0)
    before = read(RowTable(TABLES, 7, ROOM), [5], [5], [])
    assert np.allclose(read(table, [5], [5], []), before - np.repeat([1, 2], 4))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_history_of_updates_equals_a_dictionary(data):
    table, held = RowTable(TABLES, 1, ROOM), {}
    key = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 20)
    for _ in range(data.draw(st.integers(1, 6))):
        lists = [data.draw(st.lists(key, unique=True, max_size=40)) for _ in TABLES]
        keys, counts = batch(*lists)
        gradients = np.arange(int(counts.astype(np.int64) @ table.dims), dtype=np.float32)
        start = read(RowTable(TABLES, 1, ROOM), *lists)
        at = 0
        for number, mine in enumerate(lists):
            for one in mine:
                dim = TABLES[number].dim
                old = held.get((number, one), start[at : at + dim])
                held[number, one] = (old - np.float32(0.5) * gradients[at : at + dim]).astype(np.float32)
                at += dim
        table.update(table.bear(table.find(keys, counts)), gradients, 0.5)
        if data.draw(st.booleans()):
            victim = data.draw(st.integers(0, 511))
            table.drop(victim)
            held = {k: v for k, v in held.items() if vshards(TABLES[k[0]].name, np.array([k[1]]))[0] != victim}
    assert table.row_count == len(held)
    for (number, one), value in held.items():
        assert (read(table, *[[one] if n == number else [] for n in range(3)]) == value).all()


def test_growth_keeps_every_row():
    table = RowTable(TABLES, 1, 256 << 20)
    keys = np.arange(200_000, dtype=np.int64) * 7919
    for start in range(0, len(keys), 10_000):
        part = keys[start : start + 10_000]
        table.bear(table.find(part, np.array([len(part), 0, 0], np.uint32)))
    found = table.find(keys, np.array([len(keys), 0, 0], np.uint32))
    assert found.absent == 0
    assert sorted(found.places.tolist()) == list(range(len(keys)))


def test_several_vshards_are_replaced_together_as_one_by_one():
    source, one, other = (RowTable(TABLES, 7, ROOM) for _ in range(3))
    keys = list(range(4000))
    source.update(source.bear(source.find(*batch(keys, keys[:2000], keys[:500]))), np.ones(24_500, np.float32), 0.5)
    for table in (one, other):  # left-overs of the same vshards and of others
        table.bear(table.find(*batch(keys[::7], keys[5::11], [9_999])))
    contents = {vshard: source.extract(vshard) for vshard in range(0, 512, 3)}
    for vshard, content in contents.items():
        one.replace(vshard, content)
    other.replace_all(contents)
    assert one.row_count == other.row_count and (one.table_rows == other.table_rows).all()
    for vshard in range(512):
        mine, same = one.extract(vshard), other.extract(vshard)
        for number in range(3):
            assert (mine.keys[number] == same.keys[number]).all() and (mine.rows[number] == same.rows[number]).all()


def test_a_vshard_goes_to_another_table_and_replaces_what_was_there():
    optimizer = OptimizerSpec("adagrad")
    tables = tuple(TableSpec(t.name, t.dim, t.kind, 0, t.initializer, optimizer) for t in TABLES)
    one, other = RowTable(tables, 1, ROOM), RowTable(tables, 1, ROOM)
    keys, counts = batch(list(range(3000)), list(range(2000)), list(range(1000)))
    for table, rate in ((one, 0.1), (other, 0.3)):
        found = table.bear(table.find(keys, counts))
        table.update(found, np.ones(int(counts.astype(np.int64) @ table.dims), np.float32), rate)
    extra, extra_counts = batch([10**9], [], [])
    other.bear(other.find(extra, extra_counts))
    generation = other.generation
    for vshard in range(512):
        content = one.extract(vshard)
        other.replace(vshard, content)
        back = other.extract(vshard)
        for a, b in zip((*content.keys, *content.rows), (*back.keys, *back.rows), strict=True):
            assert (a == b).all()
    assert other.row_count == one.row_count == 6000  # the extra row is gone: a load replaces
    assert other.generation > generation
    found = other.find(keys, counts)
    assert found.absent == 0


def test_dropped_rows_are_used_again():
    table = RowTable(TABLES, 1, ROOM)
    keys, counts = batch(list(range(20_000)), [], [])
    table.bear(table.find(keys, counts))
    size = table.bytes_used
    for vshard in range(512):
        table.drop(vshard)
    assert table.row_count == 0
    table.bear(table.find(*batch(list(range(10**6, 10**6 + 20_000)), [], [])))
    assert table.bytes_used <= size * 1.1


def test_no_room_is_found_before_anything_changes():
    table = RowTable(TABLES, 1, 1 << 20)
    keys, counts = batch(list(range(1000)), [], [])
    table.bear(table.find(keys, counts))
    size = table.bytes_used
    many, many_counts = batch(list(range(500, 100_000)), [5], [])
    with pytest.raises(TableFull, match="more memory"):
        table.bear(table.find(many, many_counts))
    assert table.row_count == 1000
    assert table.bytes_used == size
    assert table.find(keys, counts).absent == 0


@pytest.mark.parametrize(
    ("kind", "a", "b", "check"),
    [
        ("zeros", 0, 0, lambda v: (v == 0).all()),
        ("constant", 0.5, 0, lambda v: (v == 0.5).all()),
        ("uniform", -0.05, 0.05, lambda v: abs(v).max() <= 0.05 and abs(v.mean()) < 1e-3 and v.std() > 0.028),
        ("normal", 1.0, 2.0, lambda v: abs(v.mean() - 1) < 0.05 and abs(v.std() - 2) < 0.05),
        ("truncated_normal", 0, 1, lambda v: abs(v).max() <= 2 and abs(v.mean()) < 0.02 and abs(v.std() - 0.88) < 0.02),
    ],
)
def test_initializers_have_their_distribution(kind, a, b, check):
    table = RowTable((TableSpec("t", 4, "embedding", 0, InitializerSpec(kind, a, b), SGD),), 3, ROOM)
    assert check(read(table, list(range(5000))))


def test_a_limit_that_rises_makes_room_at_once_and_moves_nothing():
    table = RowTable(TABLES, 1, 1 << 20, 64 << 20)
    keys, counts = batch(list(range(1000)), [], [])
    born = table.bear(table.find(keys, counts))
    many, many_counts = batch(list(range(500, 100_000)), [5], [])
    with pytest.raises(TableFull):
        table.bear(table.find(many, many_counts))
    assert table.allow(32 << 20) and not table.allow(32 << 20)
    table.bear(table.find(many, many_counts))
    assert table.row_count == 100_001
    assert (table.find(keys, counts).places == born.places).all()
    assert table.allow(1 << 40) and table.memory_bytes == table.most_bytes == 64 << 20, "as far as addresses go"


def test_a_system_that_gives_no_addresses_keeps_the_limit_where_it_is(monkeypatch):
    def stingy(nbytes, **more):
        if nbytes > 16 << 20:
            raise OSError(12, "Cannot allocate memory")
        return reserve(nbytes, **more)

    monkeypatch.setattr(arena, "reserve", stingy)
    monkeypatch.setattr(index, "reserve", stingy)
    table = RowTable(TABLES, 1, 1 << 20, 1 << 40)
    assert table.most_bytes == 1 << 20
    assert not table.allow(1 << 30)
    keys, counts = batch(list(range(1000)), [], [])
    assert table.bear(table.find(keys, counts)).absent == 0
