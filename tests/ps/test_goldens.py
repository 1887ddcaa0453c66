"""Frozen values of docs/formats.md: rows that were never pushed, and the manifest's bytes.

They were computed once. A test that fails here says that old checkpoints, or servers of two versions, would disagree.
"""

import numpy as np
import pytest
from ps_models import SGD

from trimtab.core.domain.model_spec import InitializerSpec, TableSpec
from trimtab.core.ps.copies import checksum
from trimtab.core.ps.manifest import VERSION, Manifest, write_manifest
from trimtab.core.ps.table import RowTable
from trimtab.core.wire.messages import CopyEntry, CopySet

KEYS = [0, -(2**63), 0x68FD1E64]  # the missing value's row among them
ABSENT = {  # rows of table "users", 4 floats wide, seed 7
    ("zeros", 0.0, 0.0): [[0.0] * 4] * 3,
    ("constant", 0.25, 0.0): [[0.25] * 4] * 3,
    ("uniform", -0.05, 0.05): [
        [0.032257956, -0.023967981, 0.03318486, 0.016546112],
        [-0.021104712, -0.041889507, -0.023940075, -0.047569554],
        [0.0050338693, 0.02712049, -0.018359542, -0.035036355],
    ],
    ("normal", 0.0, 0.01): [
        [-0.0016495609, -0.0017248299, -0.004357925, -0.0062135085],
        [0.0048552114, -0.0034840477, 0.004063895, 0.00214544],
        [0.012064111, -0.00638442, -0.00813155, 0.0053372374],
    ],
    ("truncated_normal", 1.0, 0.5): [
        [0.91752195, 0.9137585, 0.7821037, 0.68932456],
        [1.2427605, 0.8257976, 1.2031947, 1.107272],
        [1.6032056, 0.680779, 0.5934225, 1.2668619],
    ],
}


@pytest.mark.parametrize("initializer", ABSENT, ids=lambda one: one[0])
def test_absent_rows_are_frozen(initializer):
    table = RowTable((TableSpec("users", 4, "embedding", 0, InitializerSpec(*initializer), SGD),), 7, 16 << 20)
    out = np.full(12, np.nan, np.float32)
    table.read(table.find(np.array(KEYS, np.int64), np.array([3], np.uint32)), False, out)
    expected = np.array(ABSENT[initializer], np.float32)
    np.testing.assert_array_max_ulp(out.reshape(3, 4), expected, maxulp=1)  # a libm may round the last bit otherwise


MANIFEST = (
    b'{"version":1,"job_id":"job","fingerprint":"f","vshards":1,"entries":[{"vshard":0,"since":2,"file":"/c/a.ttc",'
    b'"offset":64,"length":128,"checksum":"00ff","set_index":0}],"sets":[{"applied":[[0,5],[7,9]],"skipped":[[2,3]]}]}'
)


def test_the_manifest_is_frozen(tmp_path):
    entry = CopyEntry(0, 2, "/c/a.ttc", 64, 128, "00ff", 0)
    manifest = Manifest(VERSION, "job", "f", 1, (entry,), (CopySet(((0, 5), (7, 9)), ((2, 3),)),))
    ref = write_manifest(tmp_path, manifest)
    assert (tmp_path / f"manifest-{ref.checksum}.json").read_bytes() == MANIFEST
    assert ref.checksum == checksum(MANIFEST) == "d8d9948da3fbb6f5b71dea5a233aa022"
