"""Tokens are a cache with bounds: per worker, in all, and in bytes."""

import numpy as np

from trimtab.core.ps.table import Found
from trimtab.core.ps.tokens import Token, TokenStore


def token(rows: int) -> Token:
    keys = np.zeros(rows, np.int64)
    return Token(Found(keys, np.array([rows]), keys.copy(), 0), 1, 1)


def held(store: TokenStore, worker: str, number: int) -> bool:
    return store.take(worker, number, lambda _: True) is not None


def test_the_oldest_of_a_worker_go_first() -> None:
    store = TokenStore()
    for number in range(6):
        store.put("w", number, token(1))
    assert [held(store, "w", number) for number in range(6)] == [False, False, True, True, True, True]
    assert store.bytes_held == 0


def test_workers_that_are_silent_longest_go_when_bytes_or_workers_are_too_many() -> None:
    store = TokenStore(workers=3, most_bytes=16 * 100)
    for number, worker in enumerate("abcd"):
        store.put(worker, number, token(10))
    assert not held(store, "a", 0) and held(store, "b", 1)
    store.put("c", 7, token(80))  # c speaks again: d is the one that is silent longest
    assert store.bytes_held == 16 * 100
    store.put("e", 8, token(1))
    assert not held(store, "d", 3)
    assert held(store, "c", 7) and held(store, "c", 2) and held(store, "e", 8)
    assert store.bytes_held == 0


def test_one_that_is_larger_than_all_may_be_is_not_kept_and_the_same_number_counts_once() -> None:
    store = TokenStore(most_bytes=16 * 100)
    store.put("a", 1, token(50))
    store.put("a", 1, token(60))
    assert store.bytes_held == 16 * 60
    store.put("b", 1, token(200))
    assert store.bytes_held == 0 and not held(store, "b", 1)
