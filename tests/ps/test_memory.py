"""Memory of the table: growth is spread over pushes, and what is dropped goes back."""

import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from ps_models import SGD, embedding

from trimtab.core.domain.model_spec import InitializerSpec, TableSpec
from trimtab.core.ps.space import give_back, reserve
from trimtab.core.ps.table import RowTable, TableFull
from trimtab.core.ps.traffic import Traffic

MIB = 1 << 20
WIDE = TableSpec("wide", 256, "embedding", 0, InitializerSpec("constant", 1.0), SGD)  # 1024 bytes per row
HALF = range(0, 512, 2)


def fill(table, start, end):
    keys = np.arange(start, end, dtype=np.int64)
    counts = np.zeros(len(table.tables), np.uint32)
    counts[0] = len(keys)
    return table.bear(table.find(keys, counts))


def compact(table):
    pieces = 0
    while table.wants_compaction:
        table.compact_piece()
        pieces += 1
    return pieces


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def values(table, start, end):
    keys = np.arange(start, end, dtype=np.int64)
    out = np.empty(len(keys) * table.tables[0].dim, np.float32)
    table.read(table.find(keys, np.array([len(keys)], np.uint32)), True, out)
    return out.reshape(len(keys), -1)


def test_no_push_makes_many_segments_grow():
    table = RowTable((embedding("t", 1),), 1, 1 << 30)
    step = 26_000
    for push in range(60):
        before, rows = table.index.sizes.copy(), table.index.counts.copy()
        fill(table, push * step, (push + 1) * step)
        moved = int(rows[(table.index.sizes != before) & (before > 0)].sum())
        if push >= 5:  # smaller tables are cheap to move whole
            assert moved <= 6 * step, push
    assert table.index.bytes_used <= 45 * table.row_count


def test_an_index_that_grew_costs_what_its_segments_cost():
    table = RowTable((embedding("t", 1),), 1, 1 << 30)
    for start in range(0, 400_000, 20_000):
        fill(table, start, start + 20_000)
    assert table.index.bytes_used - table.index.bytes_held <= 3 * MIB  # segments below a page wait for reuse
    used, of_half = table.index.bytes_used, int(table.index.sizes[HALF].sum()) * 16
    for vshard in HALF:
        table.drop(vshard)
    assert table.index.bytes_used == used - of_half


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_dropped_rows_give_their_memory_back():
    table = RowTable((WIDE,), 1, 256 * MIB)
    for start in range(0, 80_000, 10_000):
        fill(table, start, start + 10_000)
    found = fill(table, 0, 80_000)
    table.update(found, np.repeat(np.arange(80_000, dtype=np.float32), 256), 1.0)
    kept = values(table, 0, 80_000)
    used, before = table.bytes_used, resident()
    for vshard in HALF:
        table.drop(vshard)
    assert table.wants_compaction
    present = table.find(found.keys, np.array([80_000], np.uint32)).places >= 0
    assert compact(table) > 4
    assert table.bytes_used <= 0.55 * used
    assert table.bytes_used <= 1.1 * table.bytes_held + 2 * MIB
    assert before - resident() >= 30 * MIB
    assert (values(table, 0, 80_000)[present] == kept[present]).all()
    fill(table, 100_000, 130_000)  # places that were given back are used again
    assert (values(table, 100_000, 130_000) == 1).all()


def test_room_that_was_given_back_is_room_for_others():
    table = RowTable((WIDE, embedding("b", 4)), 1, 50 * MIB)
    fill(table, 0, 40_000)
    small = np.arange(600_000, dtype=np.int64)
    counts = np.array([0, len(small)], np.uint32)
    for vshard in range(0, 512, 4):
        table.drop(vshard)
        table.drop(vshard + 1)
        table.drop(vshard + 2)
    with pytest.raises(TableFull):
        table.bear(table.find(small, counts))
    compact(table)
    assert table.bear(table.find(small, counts)).absent == 0


def test_rows_that_are_born_meanwhile_do_not_keep_the_end():
    table = RowTable((WIDE,), 1, 256 * MIB)
    fill(table, 0, 80_000)
    for vshard in HALF:
        table.drop(vshard)
    at = 10**6
    while table.wants_compaction:
        table.compact_piece(2000)
        fill(table, at, at + 20)
        at += 20
    assert at > 10**6 + 400
    assert (values(table, 10**6, at) == 1).all()
    assert table.bytes_used <= 1.15 * table.bytes_held


def test_tokens_of_vshards_whose_rows_moved_end_and_no_others():
    table = RowTable((WIDE,), 1, 256 * MIB)
    found = fill(table, 0, 60_000)
    for vshard in HALF:
        table.drop(vshard)
    generation = table.generation
    places = table.find(found.keys, np.array([60_000], np.uint32)).places
    homes = table.vshards(found)
    compact(table)
    after = table.find(found.keys, np.array([60_000], np.uint32)).places
    moved = set(homes[places != after].tolist())
    assert moved
    assert {v for v in range(512) if not table.intact(1 << v, generation)} == moved


def test_little_that_is_free_is_left_alone():
    table = RowTable((WIDE,), 1, 256 * MIB)
    fill(table, 0, 80_000)
    for vshard in range(0, 512, 5):
        table.drop(vshard)
    assert not table.wants_compaction  # a fifth is free
    small = RowTable((WIDE,), 1, 256 * MIB)
    fill(small, 0, 10_000)
    for vshard in HALF:
        small.drop(vshard)
    assert not small.wants_compaction  # half of it, which is 5 MB
    assert not RowTable((WIDE,), 1, MIB).compact_piece()


def test_memory_that_was_given_back_reads_as_zero():
    space = reserve(8 * mmap.PAGESIZE)
    view = np.frombuffer(space, np.uint8)
    view[:] = 7
    give_back(space, 100, 3 * mmap.PAGESIZE)
    give_back(space, 5 * mmap.PAGESIZE + 8, 16)
    zero = np.flatnonzero(view == 0)
    expected = [*range(100, 100 + 3 * mmap.PAGESIZE), *range(5 * mmap.PAGESIZE + 8, 5 * mmap.PAGESIZE + 24)]
    assert zero.tolist() == expected


def test_traffic_is_counted_by_vshard_and_table_and_width_and_its_sum_is_exact():
    table = RowTable((embedding("a", 4), embedding("b", 1)), 1, 64 * MIB)
    traffic = Traffic(table)
    keys = np.concatenate([np.arange(500), np.arange(300)]).astype(np.int64)
    found = table.bear(table.find(keys, np.array([500, 300], np.uint32)))
    homes = table.vshards(found)
    expected = np.bincount(homes, np.repeat([16.0, 4.0], [500, 300]), 512)
    for pushes in (1, 40):
        for _ in range(pushes):
            traffic.add(found, 500 * 16 + 300 * 4)
        of_vshards, of_tables = traffic.take()
        assert of_vshards == pytest.approx(expected * pushes)
        assert of_tables == pytest.approx([500 * 16.0 * pushes, 300 * 4.0 * pushes])
    assert not any(one.any() for one in traffic.take())
