"""Compiled loops of the table: find rows, insert rows, read rows, list a vshard, move rows together.

A step touches some ten thousand rows; per-row Python or even per-array NumPy would cost more than TensorFlow's own
step (docs/design.md has the figures). Signatures are explicit: importing this module compiles or loads all of it, and a
call with another array type is an error instead of a silent second compilation. All kernels release the GIL.

The index is one arena of 16-byte slots, a segment per vshard: (key, table << 40 | place + 1), zero meaning empty, so
that fresh memory of the operating system is an empty index. Places are row numbers within the arena
of the table's width. `used` has a bit per place; `state` of an arena is [FRESH, FREE, HINT] (core/ps/arena.py).
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from trimtab.core.ps import kernel_cache

kernel_cache.use()

_PLACE_BITS = 40
_C1, _C2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S40, _S55 = (np.uint64(n) for n in (27, 30, 31, 40, 55))
_S32, _LOW = np.uint64(32), np.uint64(2**32 - 1)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_PLACE_MASK = np.int64((1 << _PLACE_BITS) - 1)

FRESH, FREE, HINT = range(3)  # end of all places ever given out, unused ones below it, no unused one in words below it
_ONE, _FULL_WORD = np.uint64(1), np.uint64(2**64 - 1)

ZEROS, CONSTANT, UNIFORM, NORMAL, TRUNCATED_NORMAL = range(5)
INITIALIZERS = {"zeros": ZEROS, "constant": CONSTANT, "uniform": UNIFORM, "normal": NORMAL,
                "truncated_normal": TRUNCATED_NORMAL}  # fmt: skip


@njit(inline="always")
def mix(x):
    """splitmix64's finaliser on one uint64."""
    x = (x ^ (x >> _S30)) * _C1
    x = (x ^ (x >> _S27)) * _C2
    return x ^ (x >> _S31)


@njit(inline="always")
def _slot_of(x, size):
    """Where a key of hash `x` is looked for first in a segment of `size` slots, any number below 2^31."""
    return np.int64(((x & _LOW) * np.uint64(size)) >> _S32)


@njit(inline="always")
def _unit(x):
    """A float32 in [0, 1) from the top 24 bits."""
    return np.float32(x >> _S40) * np.float32(1.0 / 16777216.0)


@njit("float32(uint64, int64, int64, float32, float32)", cache=True, nogil=True)
def initial_value(row_seed, column, kind, a, b):
    """Value of one column of an absent row: a function of (seed, table, key, column) and nothing else."""
    if kind == ZEROS:
        return np.float32(0.0)
    if kind == CONSTANT:
        return np.float32(a)
    x = mix(row_seed + np.uint64(column + 1) * _GOLDEN)
    if kind == UNIFORM:
        return np.float32(a + (b - a) * _unit(x))
    for _ in range(64):
        u = 1.0 - np.float64(_unit(x))  # (0, 1]: the logarithm is finite
        x = mix(x + _GOLDEN)
        z = math.sqrt(-2.0 * math.log(u)) * math.cos(2.0 * math.pi * np.float64(_unit(x)))
        if kind == NORMAL or abs(z) <= 2.0:
            return np.float32(a + b * z)
        x = mix(x + _GOLDEN)
    return np.float32(a)


@njit("int64(int64[::1], int64[::1], uint64[::1], int64[::1], int64[::1], int64[:,::1], int64[::1])",
      cache=True, nogil=True)  # fmt: skip
def find(keys, ends, salts, base, sizes, index, places):
    """Place of each key, -1 where absent; returns how many are absent.

    keys: table after table; ends[t]: end of table t's keys; base, sizes: first slot and slots of each vshard's segment.
    """
    absent = 0
    start = 0
    for table in range(ends.shape[0]):
        for i in range(start, ends[table]):
            key = keys[i]
            x = mix(np.uint64(key) ^ salts[table])
            v = np.int64(x >> _S55)
            size = sizes[v]
            h = _slot_of(x, size)
            places[i] = -1
            while size > 0:
                slot = base[v] + h
                word = index[slot, 1]
                if word == 0:
                    break
                if index[slot, 0] == key and word >> _PLACE_BITS == table:
                    places[i] = (word & _PLACE_MASK) - 1
                    break
                h = h + 1 if h + 1 < size else 0
            if places[i] < 0:
                absent += 1
        start = ends[table]
    return absent


@njit("void(int64[::1], int64[::1], uint64[::1], int64[::1], int64[::1], int64[::1], int64[::1])",
      cache=True, nogil=True)  # fmt: skip
def count_absent(keys, ends, salts, places, groups, per_vshard, per_group):
    """How many absent keys (place -1) each vshard and each group would get."""
    start = 0
    for table in range(ends.shape[0]):
        for i in range(start, ends[table]):
            if places[i] < 0:
                v = np.int64(mix(np.uint64(keys[i]) ^ salts[table]) >> _S55)
                per_vshard[v] += 1
                per_group[groups[table]] += 1
        start = ends[table]


@njit("void(int64[::1], int64[::1], uint64[::1], uint16[::1])", cache=True, nogil=True)
def vshards_of(keys, ends, salts, out):
    """The vshard of each key."""
    start = 0
    for table in range(ends.shape[0]):
        for i in range(start, ends[table]):
            out[i] = np.uint16(mix(np.uint64(keys[i]) ^ salts[table]) >> _S55)
        start = ends[table]


@njit("void(int64[::1], int64[::1], uint64[::1], float64[::1], float64[::1])", cache=True, nogil=True)
def add_weights(keys, ends, salts, weights, out):
    """Add weights[t] of each key's table to out[its vshard]."""
    start = 0
    for table in range(ends.shape[0]):
        for i in range(start, ends[table]):
            out[np.int64(mix(np.uint64(keys[i]) ^ salts[table]) >> _S55)] += weights[table]
        start = ends[table]


@njit(inline="always")
def _lowest_unused(used, state):
    """The lowest unused place below state[FRESH], where there is one."""
    word = state[HINT]
    while used[word] == _FULL_WORD:
        word += 1
    state[HINT] = word
    rest = ~used[word]
    return word * 64 + math.frexp(np.float64(rest & (~rest + _ONE)))[1] - 1  # of a power of two: exact


@njit("int64(int64[::1], int64, int64, int64, uint64, int64[::1], int64[::1], int64[:,::1], int64[::1], int64[::1],"
      " uint64[::1], int64[::1])", cache=True, nogil=True)  # fmt: skip
def insert(keys, start, end, table, salt, base, sizes, index, counts, places, used, state):
    """Give each absent key of keys[start:end] the lowest unused place; returns how many were absent.

    Room in segments and rows was made before.
    """
    born = 0
    for i in range(start, end):
        if places[i] >= 0:
            continue
        key = keys[i]
        x = mix(np.uint64(key) ^ salt)
        v = np.int64(x >> _S55)
        size = sizes[v]
        h = _slot_of(x, size)
        while True:
            slot = base[v] + h
            word = index[slot, 1]
            if word == 0:
                if state[FREE] > 0:
                    place = _lowest_unused(used, state)
                    state[FREE] -= 1
                else:
                    place = state[FRESH]
                    state[FRESH] += 1
                used[place >> 6] |= _ONE << np.uint64(place & 63)
                born += 1
                index[slot, 0] = key
                index[slot, 1] = (table << _PLACE_BITS) | (place + 1)
                counts[v] += 1
                places[i] = -2 - place  # marks a newborn: its row is not filled yet
                break
            if index[slot, 0] == key and word >> _PLACE_BITS == table:
                places[i] = (word & _PLACE_MASK) - 1
                break
            h = h + 1 if h + 1 < size else 0
    return born


@njit("void(int64[::1], int64[::1], int64[::1], int64, uint64[::1], int64[::1])", cache=True, nogil=True)
def free_places(places, tables, groups, group, used, state):
    """Take back the places of rows whose table belongs to `group`."""
    for i in range(places.shape[0]):
        if groups[tables[i]] == group:
            word = places[i] >> 6
            used[word] &= ~(_ONE << np.uint64(places[i] & 63))
            state[FREE] += 1
            if word < state[HINT]:
                state[HINT] = word


@njit("int64(int64[:,::1], int64, int64, int64[::1], int64, int64, float32[:,::1], uint64[::1], int64[::1])",
      cache=True, nogil=True)  # fmt: skip
def move_down(index, start, end, groups, group, target, rows, used, state):
    """Move the rows that slots start .. end name from places at or above `target` to unused ones below it.

    Returns how many; fewer than there are when the places below `target` are all used.
    """
    moved = 0
    for s in range(start, end):
        word = index[s, 1]
        if word == 0 or groups[word >> _PLACE_BITS] != group:
            continue
        old = (word & _PLACE_MASK) - 1
        if old < target:
            continue
        if state[FREE] == 0:
            break
        new = _lowest_unused(used, state)
        if new >= target:
            break
        for j in range(rows.shape[1]):
            rows[new, j] = rows[old, j]
        used[new >> 6] |= _ONE << np.uint64(new & 63)
        used[old >> 6] &= ~(_ONE << np.uint64(old & 63))
        index[s, 1] = (word & ~_PLACE_MASK) | (new + 1)
        moved += 1
    return moved


@njit("int64(uint64[::1], int64)", cache=True, nogil=True)
def end_of_used(used, fresh):
    """One more than the highest used place below `fresh`."""
    while fresh > 0 and not used[(fresh - 1) >> 6] >> np.uint64((fresh - 1) & 63) & _ONE:
        if fresh & 63 == 0 and used[(fresh >> 6) - 1] == 0:
            fresh -= 64
        else:
            fresh -= 1
    return fresh


@njit("void(int64[::1], int64[::1], int64, int64, uint64, uint64, int64, float32, float32, float32[:,::1], int64,"
      " int64, float32)", cache=True, nogil=True)  # fmt: skip
def fill_newborn(keys, places, start, end, salt, seed, kind, a, b, rows, dim, slots, slot_value):
    """Initialise the rows that `insert` marked, and turn the marks into places."""
    for i in range(start, end):
        if places[i] <= -2:
            place = -2 - places[i]
            places[i] = place
            row_seed = mix(mix(np.uint64(keys[i]) ^ salt) ^ seed)
            for j in range(dim):
                rows[place, j] = initial_value(row_seed, j, kind, a, b)
            for j in range(dim, dim + slots):
                rows[place, j] = slot_value
            for j in range(dim + slots, rows.shape[1]):
                rows[place, j] = 0


@njit("void(int64[::1], int64[::1], int64, int64, uint64, uint64, int64, float32, float32, float32[:,::1], int64,"
      " boolean, float32[:,::1])", cache=True, nogil=True)  # fmt: skip
def gather(keys, places, start, end, salt, seed, kind, a, b, rows, dim, defaults, out):
    """Values of keys[start:end] into out[start - start:]; an absent row is computed, or zeros when `defaults`."""
    for i in range(start, end):
        place = places[i]
        o = i - start
        if place >= 0:
            for j in range(dim):
                out[o, j] = rows[place, j]
        elif defaults:
            for j in range(dim):
                out[o, j] = 0
        else:
            row_seed = mix(mix(np.uint64(keys[i]) ^ salt) ^ seed)
            for j in range(dim):
                out[o, j] = initial_value(row_seed, j, kind, a, b)


@njit("void(int64[:,::1], int64, int64, int64[:,::1], int64, int64, uint64[::1])", cache=True, nogil=True)
def rehash(old, old_base, old_size, new, new_base, new_size, salts):
    """Move one segment's entries into a larger, empty segment."""
    for s in range(old_base, old_base + old_size):
        word = old[s, 1]
        if word == 0:
            continue
        h = _slot_of(mix(np.uint64(old[s, 0]) ^ salts[word >> _PLACE_BITS]), new_size)
        while new[new_base + h, 1] != 0:
            h = h + 1 if h + 1 < new_size else 0
        new[new_base + h, 0] = old[s, 0]
        new[new_base + h, 1] = word


@njit("int64(int64[:,::1], int64, int64, int64[::1], int64[::1], int64[::1])", cache=True, nogil=True)
def list_segment(index, base, size, tables, keys, places):
    """Table, key and place of every row of one vshard; returns how many."""
    n = 0
    for s in range(base, base + size):
        word = index[s, 1]
        if word != 0:
            tables[n] = word >> _PLACE_BITS
            keys[n] = index[s, 0]
            places[n] = (word & _PLACE_MASK) - 1
            n += 1
    return n


@njit("void(int64[::1], int64, int64, float32[:,::1], int64, float32[:,::1])", cache=True, nogil=True)
def read_rows(places, start, end, rows, width, out):
    """Whole rows (values, slots, counter) of places[start:end]."""
    for i in range(start, end):
        for j in range(width):
            out[i - start, j] = rows[places[i], j]


@njit("void(int64[::1], int64, int64, float32[:,::1], int64, float32[:,::1])", cache=True, nogil=True)
def write_rows(places, start, end, rows, width, values):
    """Overwrite whole rows; `places` may carry the marks of `insert`, which become places."""
    for i in range(start, end):
        place = places[i]
        if place <= -2:
            place = -2 - place
            places[i] = place
        for j in range(width):
            rows[place, j] = values[i - start, j]


@njit("void(int64[::1], int64[::1], int64, int64, uint64, uint32[:,::1], int64, boolean, uint64[::1])",
      cache=True, nogil=True)  # fmt: skip
def add_sums(keys, places, start, end, salt, words, width, negative, sums):
    """Add the hash of each present row of places[start:end] to its vshard's sum (take it away when `negative`)."""
    for i in range(start, end):
        place = places[i]
        if place < 0:
            continue
        x = mix(np.uint64(keys[i]) ^ salt)
        v = np.int64(x >> _S55)
        for j in range(width):
            x = (x ^ np.uint64(words[place, j])) * _GOLDEN
            x ^= x >> _S27
        if negative:
            sums[v] -= mix(x)
        else:
            sums[v] += mix(x)
