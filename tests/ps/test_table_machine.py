"""Any order of pushes, drops, loads and compactions equals a dictionary: rows, sums, counts, tokens and places."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from trimtab.core.domain.model_spec import InitializerSpec, OptimizerSpec, TableSpec
from trimtab.core.ps.hashing import vshards
from trimtab.core.ps.rows import VshardRows
from trimtab.core.ps.table import RowTable

SGD, ADAGRAD = OptimizerSpec("sgd"), OptimizerSpec("adagrad")
UNIFORM = InitializerSpec("uniform", -0.05, 0.05)
TABLES = (
    TableSpec("a", 3, "embedding", 0, UNIFORM, ADAGRAD),
    TableSpec("b", 3, "embedding", 0, UNIFORM, ADAGRAD),
    TableSpec("c", 1, "embedding", 0, UNIFORM, SGD),
)
WIDTHS = (6, 6, 1)
ROOM = 4 << 20
SPREAD = np.int64(0x9E3779B97F4A7)
PLACE = {
    (number, n): int(vshards(table.name, np.array([n * SPREAD]))[0])
    for number, table in enumerate(TABLES)
    for n in range(400)
}


def batch(numbers):
    """Keys of each table; `numbers` are the same small numbers for all of them."""
    keys = [np.array(sorted(numbers), np.int64) * SPREAD for _ in TABLES]
    return np.concatenate(keys), np.array([len(one) for one in keys], np.uint32)


class TableMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.table = RowTable(TABLES, 5, ROOM)
        self.rows = {}  # (table, number): the whole row
        self.tokens = []  # (vshards, generation, keys, counts, places)

    def of(self, table, numbers):
        keys, counts = batch(numbers)
        return table.find(keys, counts)

    @rule(first=st.integers(0, 399), count=st.integers(1, 120), gradient=st.sampled_from([0.5, 1.0, -2.0]))
    def push(self, first, count, gradient):
        numbers = {(first + 7 * n) % 400 for n in range(count)}
        newborn = RowTable(TABLES, 5, ROOM)  # says what rows are born with
        for number, rows in enumerate(newborn.whole_rows(newborn.bear(self.of(newborn, numbers)))):
            for n, row in zip(sorted(numbers), rows, strict=True):
                self.rows.setdefault((number, n), row)
        found = self.table.bear(self.of(self.table, numbers))
        assert found.absent == 0
        self.table.update(found, np.full(7 * len(numbers), gradient, np.float32), 0.1)
        for number, rows in enumerate(self.table.whole_rows(found)):
            for n, row in zip(sorted(numbers), rows, strict=True):
                self.rows[number, n] = stepped(number, self.rows[number, n], np.float32(gradient))
                assert np.allclose(row, self.rows[number, n], rtol=1e-6, atol=1e-7)
                self.rows[number, n] = row
        cover = {PLACE[number, n] for number in range(3) for n in numbers}
        self.tokens.append((sum(1 << v for v in cover), self.table.generation, numbers, found.places.copy()))

    @rule(stride=st.integers(2, 9), offset=st.integers(0, 8))
    def drop_many(self, stride, offset):
        gone = set(range(offset % stride, 512, stride))
        for vshard in gone:
            self.table.drop(vshard)
        self.rows = {at: row for at, row in self.rows.items() if PLACE[at] not in gone}

    @rule(n=st.integers(0, 399), number=st.integers(0, 2))
    def load(self, n, number):
        """Another server's copy of one vshard takes the place of what is here."""
        vshard = PLACE[number, n]
        content = {at: np.full(WIDTHS[at[0]], n + at[1], np.float32) for at, v in PLACE.items() if v == vshard}
        keys, rows = [], []
        for one in range(3):
            mine = sorted((m * int(SPREAD), m) for t, m in content if t == one)
            keys.append(np.array([key for key, _ in mine], np.int64))
            rows.append(np.array([content[one, m] for _, m in mine], np.float32).reshape(-1, WIDTHS[one]))
        self.table.replace(vshard, VshardRows(tuple(keys), tuple(rows)))
        self.rows = {at: row for at, row in self.rows.items() if PLACE[at] != vshard} | content

    @rule(pieces=st.integers(1, 40), slots=st.sampled_from([5, 100, 5000]))
    def compact(self, pieces, slots):
        for _ in range(pieces):
            if not self.table.compact_piece(slots):
                assert not self.table.wants_compaction
                break

    @rule()
    def compact_all(self):
        while self.table.compact_piece():
            pass
        while self.table.compact_piece():  # the first may have begun before much was dropped
            pass
        for arena in self.table._groups:
            live = arena.fresh - arena.free
            assert arena.fresh <= max(live / (1 - 0.125), live + 1)

    @invariant()
    def counts(self):
        per_table = [sum(1 for number, _ in self.rows if number == one) for one in range(3)]
        assert self.table.table_rows.tolist() == per_table
        assert self.table.row_count == len(self.rows)
        for arena in self.table._groups:
            live = sum(per_table[arena.first : arena.last])
            bits = np.unpackbits(arena.used.view(np.uint8), bitorder="little")
            assert int(bits.sum()) == live == arena.fresh - arena.free
            assert not bits[arena.fresh :].any()

    @invariant()
    def every_row_is_there_once(self):
        found = self.of(self.table, set(range(400)))
        held = np.array([(number, n) in self.rows for number in range(3) for n in range(400)])
        assert ((found.places >= 0) == held).all()
        for arena in self.table._groups:
            lo = int(found.ends[arena.first - 1]) if arena.first else 0
            places = found.places[lo : int(found.ends[arena.last - 1])]
            places = places[places >= 0]
            assert len(set(places.tolist())) == len(places)

    @invariant()
    def sums_are_those_of_the_rows(self):
        other = RowTable(TABLES, 5, ROOM)
        for number in range(3):
            mine = sorted(n for t, n in self.rows if t == number)
            counts = np.zeros(3, np.uint32)
            counts[number] = len(mine)
            rows = [np.empty((0, width), np.float32) for width in WIDTHS]
            rows[number] = np.array([self.rows[number, n] for n in mine], np.float32).reshape(-1, WIDTHS[number])
            other.write(other.find(np.array(mine, np.int64) * SPREAD, counts), rows)
        sums = [np.zeros(512, np.uint64) for _ in range(2)]
        for table, out in zip((self.table, other), sums, strict=True):
            table.add_sums(self.of(table, set(range(400))), out)
        assert (sums[0] == sums[1]).all()

    @invariant()
    def a_token_that_holds_names_the_right_places(self):
        self.tokens = [one for one in self.tokens if self.table.intact(one[0], one[1])][-6:]
        for _, _, numbers, places in self.tokens:
            assert (self.of(self.table, numbers).places == places).all()

    def teardown(self):
        for number, n in self.rows:
            content = self.table.extract(PLACE[number, n])
            at = np.searchsorted(content.keys[number], n * SPREAD)
            assert (content.rows[number][at] == self.rows[number, n]).all()


def stepped(number, row, gradient):
    """What the optimizer makes of one row."""
    dim = TABLES[number].dim
    after = row.copy()
    if number < 2:
        after[dim:] = row[dim:] + gradient * gradient
        after[:dim] = row[:dim] - np.float32(0.1) * gradient / np.sqrt(after[dim:] + np.float32(ADAGRAD.epsilon))
    else:
        after[:dim] = row[:dim] - np.float32(0.1) * gradient
    return after


TestTable = TableMachine.TestCase
TestTable.settings = settings(max_examples=15, stateful_step_count=20, deadline=None, derandomize=True)
