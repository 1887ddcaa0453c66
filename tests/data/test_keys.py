"""Golden vectors of what keys are: a change here would retrain every embedding under another name."""

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.data.columns import CategoricalColumn
from trimtab.core.data.keys import MISSING_KEY, finish_keys, hex_keys, mix, splitmix64, text_key, text_keys
from trimtab.core.data.raw import raw_keys


def keys_of(values, *, read="text", buckets=None, type_=None):
    keys, missing = raw_keys(pa.array(values, type_), CategoricalColumn("c", buckets, 1, read))
    return finish_keys(keys, missing, buckets).tolist()


def test_splitmix64_is_the_published_one():
    # The first outputs of splitmix64 seeded with 0 and 1234567 (Vigna's reference, Rosetta Code).
    states = np.array([0, 1234567], np.uint64)
    assert splitmix64(states).tolist() == [16294208416658607535, 6457827717110365317]


def test_mix_is_frozen():
    assert mix(0) == 16294208416658607535
    assert mix(0, 1) == int(splitmix64(np.array([mix(0) ^ 1], np.uint64))[0])
    assert mix(-1) == mix(2**64 - 1)


def test_text_is_hashed_by_blake2b_of_eight_bytes():
    assert text_key(b"") == -5426141060434712860
    assert text_key("Zürich".encode()) == 636548684707296368
    digest = hashlib.blake2b(b"a", digest_size=8).digest()
    assert text_key(b"a") == int.from_bytes(digest, "little", signed=True)
    assert text_keys([b"a", b"b"]).tolist() == [text_key(b"a"), text_key(b"b")]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("68fd1e64", 0x68FD1E64),
        ("ffffffff", 4294967295),  # above 2^31
        ("80000000", 2**31),
        ("E5BA7672", 0xE5BA7672),
        ("0", 0),
        ("abc", 0xABC),
        ("123456789", 0x123456789),
        ("7fffffffffffffff", 2**63 - 1),
        ("ffffffffffffffff", -1),  # 64 bits wrap to the signed twin
        ("8000000000000001", -(2**63) + 1),
    ],
)
def test_hexadecimal_is_used_as_it_is(text, key):
    assert keys_of([text], read="hex") == [key]


def test_a_mixed_column_of_hexadecimal():
    values = ["68fd1e64", None, "", "ffffffffffffffff", "xyz", "12345678901234567", "a", "05db9164"]
    found = keys_of(values, read="hex")
    assert found == [
        0x68FD1E64, MISSING_KEY, MISSING_KEY, -1, text_key(b"xyz"), text_key(b"12345678901234567"), 10, 0x05DB9164,
    ]  # fmt: skip


@given(st.lists(st.one_of(st.none(), st.text("0123456789abcdefABCDEFgz", max_size=18)), min_size=1))
def test_hexadecimal_equals_python(values):
    keys, valid = hex_keys(pa.array(values, pa.string()))
    for value, key, good in zip(values, keys.tolist(), valid.tolist(), strict=True):
        right = bool(value) and len(value) <= 16 and not set(value) & set("gz")
        assert good == right
        if right:
            assert key % 2**64 == int(value, 16)


def test_a_slice_of_an_array_is_read_at_its_place():
    array = pa.array(["aa", "bb", None, "cc", "dd"])[1:4]
    keys, valid = hex_keys(array)
    assert (keys.tolist(), valid.tolist()) == ([0xBB, 0, 0xCC], [True, False, True])


def test_whole_numbers_are_used_as_they_are_in_every_form():
    assert keys_of([5, None, -3], type_=pa.int64()) == [5, MISSING_KEY, -3]
    assert keys_of([5, 2**64 - 1], type_=pa.uint64()) == [5, -1]
    assert keys_of([5.0, None, float("nan"), float("inf")], type_=pa.float64()) == [5] + [MISSING_KEY] * 3
    assert keys_of(["5", "-3", "+7", "", "007"], read="integer") == [5, -3, 7, MISSING_KEY, 7]
    assert keys_of([True, False, None]) == [1, 0, MISSING_KEY]


def test_what_is_no_number_in_a_column_of_numbers_is_hashed_as_text():
    assert keys_of(["5", "five", "5.0"], read="integer") == [5, text_key(b"five"), text_key(b"5.0")]


def test_dictionary_and_plain_text_give_the_same_keys():
    plain = pa.array(["a", "b", None, "a"])
    both = [raw_keys(array, CategoricalColumn("c", values="text")) for array in (plain, plain.dictionary_encode())]
    assert both[0][0].tolist() == both[1][0].tolist()
    assert both[0][1].tolist() == both[1][1].tolist() == [False, False, True, False]


def test_a_genuine_value_never_equals_the_reserved_key():
    (moved,) = keys_of(["8000000000000000"], read="hex")
    assert moved != MISSING_KEY
    assert keys_of([MISSING_KEY], type_=pa.int64()) == [moved]


def test_buckets_are_an_unsigned_remainder_and_keep_missing_apart():
    assert keys_of(["ffffffffffffffff", "", "0000000a"], read="hex", buckets=7) == [
        (2**64 - 1) % 7, MISSING_KEY, 3,
    ]  # fmt: skip


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.integers(1, 2**40))
def test_bucketed_keys_are_below_the_number_of_buckets(values, buckets):
    found = keys_of(values, type_=pa.int64(), buckets=buckets)
    assert all(0 <= key < buckets for key in found)
