"""Hashes are frozen: another value here is another checkpoint format."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.ps import kernels
from trimtab.core.ps.hashing import mix, salt, vshards


def test_golden_values():
    assert salt("dense") == 8988237268459974508
    assert mix(np.array([0, 1, 2**64 - 1], np.uint64)).tolist() == [0, 6238072747940578789, 13029008266876403067]
    keys = np.array([0, 1, -1, 2**31, -(2**63)], np.int64)
    assert vshards("C1", keys).tolist() == [376, 504, 23, 177, 43]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=50))
def test_the_compiled_twin_agrees(keys):
    keys = np.array(keys, np.int64)
    out = np.zeros(len(keys), np.uint16)
    kernels.vshards_of(keys, np.array([len(keys)], np.int64), np.array([salt("C1")], np.uint64), out)
    assert out.tolist() == vshards("C1", keys).tolist()
    assert out.max() < 512
