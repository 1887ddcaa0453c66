"""Compiled loops of the worker: from the ids of a batch to unique keys per parameter server, and gradients back.

A batch of 1024 rows and 26 columns has 26,624 ids, of which a third are distinct; finding them, grouping them by
owner and summing the gradients per distinct id costs 0.4 ms here and several in array operations.
"""

from __future__ import annotations

import numpy as np
from numba import boolean, float32, int32, int64, njit, types

from trimtab.core.ps import kernel_cache
from trimtab.core.ps.kernels import mix

kernel_cache.use()

_S55 = np.uint64(55)
_READ_ONLY = types.Array(float32, 2, "C", readonly=True)  # TensorFlow's results; writeable arrays match it too


@njit("int64(int64[::1], int64[::1], int64[::1], int64[::1], uint64[::1], int64[::1], int64[::1], int64[::1],"
      " int32[::1], int32[::1], int32, int64[::1], int32[::1], int64[:,::1], int64[::1], int64[::1], int32[::1],"
      " int64[::1])", cache=True, nogil=True)  # fmt: skip
def unique(ids, offsets, lengths, tables, salts, owner, hash_keys, hash_tables, hash_places, hash_generation,
           generation, unique_keys, places, counts, found, bucket, order, cursor):  # fmt: skip
    """Distinct (table, key) pairs of a batch, ordered by (parameter server, table); returns how many.

    ids: all lookups' ids, lookup l at offsets[l] : offsets[l] + lengths[l] with table tables[l] (within the group).
    owner: parameter server of each vshard. hash_*: scratch of a power of two > 2 * len(ids), tagged by `generation`,
    so that it is never cleared. unique_keys, places[i] (of id i in unique_keys), counts[ps, table]: results.
    found, bucket, order, cursor: scratch.
    """
    mask = np.uint64(hash_keys.shape[0] - 1)
    n_tables = salts.shape[0]
    counts[:] = 0
    n = 0
    for lookup in range(offsets.shape[0]):
        table = tables[lookup]
        for i in range(offsets[lookup], offsets[lookup] + lengths[lookup]):
            key = ids[i]
            x = mix(np.uint64(key) ^ salts[table])
            h = np.int64(x & mask)
            while True:
                if hash_generation[h] != generation:
                    hash_generation[h] = generation
                    hash_keys[h] = key
                    hash_tables[h] = table
                    hash_places[h] = n
                    p = owner[np.int64(x >> _S55)]
                    found[n] = key
                    bucket[n] = p * n_tables + table
                    counts[p, table] += 1
                    places[i] = n
                    n += 1
                    break
                if hash_keys[h] == key and hash_tables[h] == table:
                    places[i] = hash_places[h]
                    break
                h = np.int64((np.uint64(h) + np.uint64(1)) & mask)
    at = 0
    for p in range(counts.shape[0]):
        for t in range(n_tables):
            cursor[p * n_tables + t] = at
            at += counts[p, t]
    for i in range(n):
        b = bucket[i]
        order[i] = cursor[b]
        unique_keys[cursor[b]] = found[i]
        cursor[b] += 1
    for i in range(ids.shape[0]):
        places[i] = order[places[i]]
    return n


@njit(boolean(_READ_ONLY, int32[::1], float32[:, ::1], int64), cache=True, nogil=True)
def sum_by_place(gradients, places, out, n):
    """out[places[i]] = sum of gradients[i] over the first n rows of out; returns whether every sum is finite."""
    dim = out.shape[1]
    for i in range(n):
        for j in range(dim):
            out[i, j] = 0
    for i in range(places.shape[0]):
        r = places[i]
        for j in range(dim):
            out[r, j] += gradients[i, j]
    wrong = np.float32(0.0)
    for i in range(n):
        for j in range(dim):
            x = out[i, j]
            wrong += x - x  # 0 for a finite number, NaN for infinities and NaN
    return wrong == np.float32(0.0)
