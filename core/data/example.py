"""Reads many serialised ``tf.train.Example`` messages at once, without TensorFlow or a protobuf runtime.

Parsing message by message costs a Python loop per feature. Here all messages advance together: one pass finds the next
field of every message at once, level by level (Example, Features, map entry, Feature, list). The wire format is
protobuf's, the layout that of tensorflow/core/example; unknown fields are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trimtab.core.data.crc32c import Bytes
from trimtab.core.data.keys import Int64s, UInt64s, splitmix64

BYTES, FLOATS, INTEGERS = 1, 2, 3  # field numbers of the lists in a Feature
_TOO_LONG = np.uint64(2**40)
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


class Malformed(Exception):
    """Message `index` is not what it should be."""

    def __init__(self, index: int, what: str) -> None:
        super().__init__(what)
        self.index = index


@dataclass(frozen=True)
class Fields:
    """Fields found in messages: whose, number, wire type, and where the value lies."""

    owner: Int64s
    number: Int64s
    wire: Int64s
    start: Int64s
    end: Int64s

    def take(self, chosen: npt.NDArray[Any]) -> Fields:
        """A selection."""
        return Fields(
            self.owner[chosen], self.number[chosen], self.wire[chosen], self.start[chosen], self.end[chosen]
        )


@dataclass(frozen=True)
class Feature:
    """All values of one feature, message by message.

    Attributes:
        kind: BYTES, FLOATS or INTEGERS. counts: values in each message, int64[messages].
        values: Arrow array of all of them, in message order.
    """

    kind: int
    counts: Int64s
    values: Any

    def scalar(self) -> Any:
        """One value per message, null where there is none.

        Raises:
            Malformed: a message has more.
        """
        many = np.flatnonzero(self.counts > 1)
        if len(many):
            raise Malformed(int(many[0]), f"has {int(self.counts[many[0]])} values where one is expected")
        if (self.counts == 1).all():
            return self.values
        places = np.cumsum(self.counts) - 1
        return self.values.take(pa.array(places, mask=self.counts == 0))

    def lists(self) -> Any:
        """A list per message."""
        offsets = np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), self.values)


def parse_examples(data: Bytes, starts: Int64s, ends: Int64s) -> dict[str, Feature]:
    """The features of the messages data[starts[i] : ends[i]], by name. `data` is padded (`crc32c.padded`).

    Raises:
        Malformed: a message cannot be read, or holds a feature with a type that another has not.
    """
    features = _only(scan(data, starts, ends), 1)
    entries = _nested(data, features)
    record = entries.owner
    name_start, name_end, items, kinds = _contents(data, entries)
    _, first, column = np.unique(_name_hashes(data, name_start, name_end), return_index=True, return_inverse=True)
    found: dict[str, Feature] = {}
    for kind in (BYTES, FLOATS, INTEGERS):
        owner, values_of = _values(data, items.take(np.flatnonzero(kinds == kind)), kind, record)
        columns = column[owner].astype(np.int64)
        order = np.argsort(columns * len(starts) + record[owner], kind="stable")
        edges = np.searchsorted(columns[order], np.arange(len(first) + 1))
        for at, example in enumerate(first):
            places = order[edges[at] : edges[at + 1]]
            if not len(places):
                continue
            name = data[name_start[example] : name_end[example]].tobytes().decode("utf-8", "replace")
            if name in found:
                raise Malformed(int(record[owner[places[0]]]), f"has feature {name} with another type than before")
            counts = np.bincount(record[owner[places]], minlength=len(starts)).astype(np.int64)
            found[name] = Feature(kind, counts, values_of.take(pa.array(places)))
    return found


def _contents(data: Bytes, entries: Fields) -> tuple[Int64s, Int64s, Fields, Int64s]:
    """Names and values of map entries: each name's start and end, items owned by entries, and each item's kind.

    Nearly all entries have one shape (name, then a list with one short item), in which every byte's place is known
    from the lengths; only the others are scanned.
    """
    start, end = entries.start, entries.end
    at = start + 2 + data[start + 1]  # where the value begins if the name is a short one
    at = np.minimum(at, end)
    plain = (
        (data[start] == 0x0A) & (data[start + 1] < 128) & (end - at >= 6) & (end - at < 128)
        & (data[at] == 0x12) & (data[at + 1] == end - at - 2)
        & ((data[at + 2] == 0x0A) | (data[at + 2] == 0x12) | (data[at + 2] == 0x1A)) & (data[at + 3] == end - at - 4)
        & (data[at + 4] == 0x0A) & (data[at + 5] == end - at - 6)
    )  # fmt: skip
    owner = np.flatnonzero(plain)
    kinds = (data[at[owner] + 2] >> 3).astype(np.int64)
    ones = np.ones(len(owner), np.int64)
    items = Fields(owner, ones, ones * _LENGTH, at[owner] + 6, end[owner])
    name_start, name_end = start + 2, at
    rest = np.flatnonzero(~plain)
    if not len(rest):
        return name_start, name_end, items, kinds
    record = entries.owner[rest]
    parts = scan(data, start[rest], end[rest], record)
    names, values = _last(parts, 1, len(rest)), _last(parts, 2, len(rest))
    bad = np.flatnonzero((names.owner < 0) | (values.owner < 0))
    if len(bad):
        raise Malformed(int(record[bad[0]]), "has a feature without name or value")
    name_start[rest], name_end[rest] = names.start, names.end
    lists = scan(data, values.start, values.end, record)
    lists = lists.take(np.flatnonzero((lists.number >= BYTES) & (lists.number <= INTEGERS) & (lists.wire == _LENGTH)))
    found = scan(data, lists.start, lists.end, record[lists.owner])
    found = found.take(np.flatnonzero(found.number == 1))
    found = found.take(np.argsort(found.owner, kind="stable"))
    more = Fields(rest[lists.owner[found.owner]], found.number, found.wire, found.start, found.end)
    together = [np.concatenate([getattr(items, key), getattr(more, key)]) for key in Fields.__annotations__]
    return name_start, name_end, Fields(*together), np.concatenate([kinds, lists.number[found.owner]])


def scan(data: Bytes, starts: Int64s, ends: Int64s, blame: Int64s | None = None) -> Fields:
    """All fields of the messages; `owner` is the message's place. Fields of one message keep their order.

    Args:
        blame: for each message, the index that `Malformed` names; its own place if None.
    """
    cursor = starts.astype(np.int64)
    live = np.flatnonzero(cursor < ends)
    rounds: list[tuple[Int64s, ...]] = []
    while len(live):
        limit = ends[live]
        tag, at = varints(data, cursor[live])
        wire = (tag & np.uint64(7)).astype(np.int64)
        length, start = varints(data, at)
        if (wire == _LENGTH).all():  # nearly always
            end = start + np.minimum(length, _TOO_LONG).astype(np.int64)
        else:
            size = np.minimum(length, _TOO_LONG).astype(np.int64)
            end = np.select(
                [wire == _LENGTH, wire == _VARINT, wire == _FIXED32, wire == _FIXED64],
                [start + size, start, at + 4, at + 8],
                np.int64(_TOO_LONG),
            )
            start = np.where(wire == _LENGTH, start, at)
        bad = np.flatnonzero(end > limit)
        if len(bad):
            message = int(live[bad[0]])
            raise Malformed(message if blame is None else int(blame[message]), "is no tf.train.Example")
        rounds.append((live, (tag >> np.uint64(3)).astype(np.int64), wire, start, end))
        cursor[live] = end
        live = live[end < limit]
    if not rounds:
        return Fields(*(np.zeros(0, np.int64) for _ in range(5)))
    if len(rounds) == 1:
        return Fields(*rounds[0])
    return Fields(*(np.concatenate(each) for each in zip(*rounds, strict=True)))


def varints(data: Bytes, at: Int64s) -> tuple[UInt64s, Int64s]:
    """The varint at each place and the place after it; far beyond the data if it does not end within ten bytes."""
    byte = data[np.minimum(at, len(data) - 1)]  # a place beyond the data follows a varint that never ended
    value = byte.astype(np.uint64)
    after = at + 1
    more = np.flatnonzero(byte > 127)
    if len(more):
        value[more] &= np.uint64(127)
    for shift in range(7, 70, 7):
        if not len(more):
            break
        byte = data[after[more]]
        value[more] |= (byte & 127).astype(np.uint64) << np.uint64(shift)
        after[more] += 1
        more = more[byte > 127]
    after[more] += int(_TOO_LONG)
    return value, after


def _only(fields: Fields, number: int) -> Fields:
    return fields.take(np.flatnonzero((fields.number == number) & (fields.wire == _LENGTH)))


def _nested(data: Bytes, parents: Fields) -> Fields:
    """Sub-messages number 1 of `parents`, owned by the parents' owners."""
    fields = _only(scan(data, parents.start, parents.end, parents.owner), 1)
    return Fields(parents.owner[fields.owner], fields.number, fields.wire, fields.start, fields.end)


def _last(fields: Fields, number: int, count: int) -> Fields:
    """For each of `count` owners its last field `number` (protobuf's rule); owner -1 where there is none."""
    chosen = _only(fields, number)
    found = Fields(np.full(count, -1, np.int64), *(np.zeros(count, np.int64) for _ in range(4)))
    found.owner[chosen.owner] = chosen.owner
    found.start[chosen.owner] = chosen.start
    found.end[chosen.owner] = chosen.end
    return found


def _name_hashes(data: Bytes, starts: Int64s, ends: Int64s) -> UInt64s:
    """A hash of each name, eight bytes at a time."""
    words = np.ndarray((len(data) - 7,), "<u8", buffer=data, strides=(1,))
    left = ends - starts
    found = splitmix64(left)
    for step in range(0, int(left.max()) if len(left) else 0, 8):
        lanes = np.flatnonzero(left > step)
        word = words[starts[lanes] + step]
        spare = np.maximum(8 - (left[lanes] - step), 0).astype(np.uint64) * np.uint64(8)
        found[lanes] = splitmix64(found[lanes] ^ ((word << spare) >> spare))
    return found


def _values(data: Bytes, items: Fields, kind: int, record: Int64s) -> tuple[Int64s, Any]:
    """Owner (map entry) and value of everything in items of one kind, in order within each owner."""
    owner = items.owner
    if kind == BYTES:
        return owner, _binary(data, items.start, items.end)
    size = items.end - items.start
    if kind == FLOATS:
        if (size % 4).any():
            raise Malformed(int(record[owner[np.flatnonzero(size % 4)[0]]]), "has a damaged list of floats")
        counts = size // 4
        first = np.repeat(items.start, counts) + 4 * _within(counts)
        words = np.ndarray((len(data) - 3,), "<f4", buffer=data, strides=(1,))
        return np.repeat(owner, counts), pa.array(words[first])
    bad = np.flatnonzero((size > 0) & (data[items.end - 1] > 127))
    if len(bad):
        raise Malformed(int(record[owner[bad[0]]]), "has a damaged list of whole numbers")
    flat = _bytes_of(data, items.start, size)
    last = flat < 128  # of each varint
    group = np.cumsum(last) - last
    starts = np.concatenate([[0], np.flatnonzero(last) + 1])[:-1] if last.any() else np.zeros(0, np.int64)
    shift = np.arange(len(flat)) - starts[np.minimum(group, max(0, len(starts) - 1))] if len(starts) else flat
    parts = (flat & 127).astype(np.uint64) << np.minimum(7 * shift, 63).astype(np.uint64)
    values = np.bitwise_or.reduceat(parts, starts) if len(starts) else np.zeros(0, np.uint64)
    return np.repeat(owner, size)[last], pa.array(values.view(np.int64))


def _binary(data: Bytes, starts: Int64s, ends: Int64s) -> Any:
    """An Arrow binary array of the given ranges."""
    sizes = ends - starts
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    flat = np.ascontiguousarray(_bytes_of(data, starts, sizes))
    return pa.Array.from_buffers(
        pa.large_binary(), len(starts), [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(flat)]
    )


def _bytes_of(data: Bytes, starts: Int64s, sizes: Int64s) -> Bytes:
    found: Bytes = data[np.repeat(starts, sizes) + _within(sizes)]
    return found


def _within(counts: Int64s) -> Int64s:
    """0 .. count-1 for each count, one after another."""
    found: Int64s = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return found
