"""TFRecord: framing, checksums and Examples, against known bytes and against damage."""

import gzip
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.data.columns import MISSING_KEY
from trimtab.core.data.crc32c import crc32c_ranges, masked, padded
from trimtab.core.data.example import BYTES, FLOATS, INTEGERS, Malformed, parse_examples
from trimtab.core.data.keys import text_key
from trimtab.core.data.tfrecord import frame
from trimtab.core.errors import DataError

# --- a slow and plain encoder of tf.train.Example, so that the reader is not tested against itself


def varint(value):
    value %= 2**64
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number, payload):
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def feature(kind, values, packed=True):
    if kind == BYTES:
        inner = b"".join(field(1, value) for value in values)
    elif kind == FLOATS:
        floats = [struct.pack("<f", value) for value in values]
        inner = field(1, b"".join(floats)) if packed else b"".join(varint(1 << 3 | 5) + each for each in floats)
    else:
        numbers = [varint(value) for value in values]
        inner = field(1, b"".join(numbers)) if packed else b"".join(varint(1 << 3) + each for each in numbers)
    return field(kind, inner)


def example(features, packed=True):
    entries = [
        field(1, field(1, name.encode()) + field(2, feature(kind, values, packed)))
        for name, (kind, values) in features.items()
    ]
    return field(1, b"".join(entries))


def parsed(messages):
    data = padded(b"".join(messages))
    ends = np.cumsum([len(message) for message in messages]).astype(np.int64)
    return parse_examples(data, np.concatenate([[0], ends[:-1]]), ends)


def records(messages):
    lengths = np.array([len(message) for message in messages], np.int64)
    return frame(padded(b"".join(messages)), lengths)


def crc32c_bitwise(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def crc(data):
    return int(crc32c_ranges(padded(data), np.zeros(1, np.int64), np.array([len(data)], np.int64))[0])


def test_known_checksums():
    # RFC 3720, appendix B.4, and the usual check value.
    assert crc(b"123456789") == 0xE3069283
    assert crc(bytes(32)) == 0x8A9136AA
    assert crc(b"\xff" * 32) == 0x62A8AB43
    assert crc(bytes(range(32))) == 0x46DD794E
    assert crc(b"") == 0


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=8))
def test_many_ranges_at_once_equal_one_by_one(parts):
    lengths = np.array([len(part) for part in parts], np.int64)
    found = crc32c_ranges(padded(b"".join(parts)), np.cumsum(lengths) - lengths, lengths)
    assert found.tolist() == [crc32c_bitwise(part) for part in parts]


def test_a_frame_as_tensorflow_writes_it():
    # tf.io.TFRecordWriter(path).write(b"foo")
    length = "0300000000000000"
    assert records([b"foo"]).hex() == length + masked_hex(bytes.fromhex(length)) + "666f6f" + masked_hex(b"foo")
    assert masked(np.array([0], np.uint32))[0] == 0xA282EAD8


def masked_hex(data):
    value = crc32c_bitwise(data)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) % 2**32).hex()


numbers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(width=32, allow_nan=False)


def few(values):
    return st.lists(values, max_size=3)


@given(
    st.lists(st.tuples(few(numbers), few(floats), few(st.binary(max_size=12))), min_size=1, max_size=6),
    st.booleans(),
)
def test_examples_equal_what_was_encoded(rows, packed):
    messages = [
        example({"number": (INTEGERS, a), "a_longer_name": (FLOATS, b), "text": (BYTES, c)}, packed) for a, b, c in rows
    ]
    found = parsed(messages)
    for name, column in zip(("number", "a_longer_name", "text"), zip(*rows, strict=True), strict=True):
        if any(column):
            assert found[name].lists().to_pylist() == [list(values) for values in column]
        else:
            assert name not in found


def test_unknown_fields_are_skipped():
    extra = varint(9 << 3) + varint(300) + varint(10 << 3 | 1) + bytes(8) + varint(11 << 3 | 5) + bytes(4)
    message = extra + example({"a": (INTEGERS, [7])}) + field(12, b"more")
    assert parsed([message])["a"].scalar().to_pylist() == [7]


def test_absent_features_are_null_and_several_values_are_no_scalar():
    found = parsed([example({"a": (INTEGERS, [1])}), example({}), example({"a": (INTEGERS, [3])})])
    assert found["a"].scalar().to_pylist() == [1, None, 3]
    with pytest.raises(Malformed, match="has 2 values") as caught:
        parsed([example({"a": (INTEGERS, [1])}), example({"a": (INTEGERS, [1, 2])})])["a"].scalar()
    assert caught.value.index == 1


def test_a_number_that_does_not_end_is_refused():
    broken = field(1, field(1, field(1, b"a") + field(2, field(INTEGERS, field(1, b"\x80")))))
    with pytest.raises(Malformed, match="damaged list of whole numbers") as caught:
        parsed([example({"a": (INTEGERS, [1])}), broken, example({"a": (INTEGERS, [1])})])
    assert caught.value.index == 1


@given(st.binary(min_size=1, max_size=60))
def test_garbage_is_refused_or_empty_but_never_crashes(garbage):
    good = example({"a": (INTEGERS, [1])})
    try:
        found = parsed([good, garbage])
    except Malformed as error:
        assert error.index in (0, 1)  # another type for a feature may be noticed at either
    else:
        assert found["a"].counts[0] == 1


def test_one_feature_of_two_types_is_refused():
    with pytest.raises(Malformed, match="feature a with another type"):
        parsed([example({"a": (INTEGERS, [1])}), example({"a": (FLOATS, [1.0])})])


ROWS = [
    example({"label": (INTEGERS, [at % 2]), "x": (FLOATS, [at + 0.5]), "tags": (BYTES, [b"p", b"q"][: at % 3]),
             "shop": (BYTES, [b"s%d" % (at % 3)])})
    for at in range(60)
]  # fmt: skip
COLUMNS = "label: label\ndense: [{name: x, transform: none}]\ncategorical: [shop]\nmulti_hot: {tags: {length: 2}}\n"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_own_features(load, tmp_path, pack):
    (tmp_path / "t.tfrecord").write_bytes(pack(records(ROWS)))
    rows = load(tmp_path / "t.tfrecord", COLUMNS).read(np.arange(4))
    assert rows.label.tolist() == [0, 1, 0, 1]
    assert rows.dense.tolist() == [[0.5], [1.5], [2.5], [3.5]]
    p, q = text_key(b"p"), text_key(b"q")
    gap = MISSING_KEY
    assert rows.multi["tags"].tolist() == [[gap, gap], [p, gap], [p, q], [gap, gap]]
    assert rows.keys[:, 0].tolist() == [text_key(b"s%d" % (at % 3)) for at in range(4)]


def test_small_reads_give_the_same(load, tmp_path, monkeypatch):
    (tmp_path / "t.tfrecord").write_bytes(records(ROWS))
    whole = load(tmp_path / "t.tfrecord", COLUMNS).read(np.arange(60))
    monkeypatch.setattr("trimtab.core.data.tfrecord._PIECE", 100)  # records straddle every read
    monkeypatch.setattr("trimtab.core.data.tfrecord._AT_ONCE", 7)
    (tmp_path / "u.tfrecord").write_bytes(records(ROWS) + records(ROWS[:1]))
    again = load(tmp_path / "u.tfrecord", COLUMNS)
    assert again.rows == 61
    np.testing.assert_array_equal(again.read(np.arange(60)).keys, whole.keys)
    np.testing.assert_array_equal(again.read(np.arange(60)).dense, whole.dense)


def offset_of(row):
    return len(records(ROWS[:row]))


@pytest.mark.parametrize(
    ("row", "inside", "what"),
    [(3, 0, "damaged record length|checksum is wrong"), (3, 9, "damaged record length|checksum is wrong"),
     (59, 20, "checksum is wrong"), (0, 14, "checksum is wrong")],
)  # fmt: skip
def test_damage_names_the_record(load, tmp_path, row, inside, what):
    data = bytearray(records(ROWS))
    data[offset_of(row) + inside] ^= 1
    (tmp_path / "t.tfrecord").write_bytes(data)
    with pytest.raises(DataError, match=rf"t\.tfrecord: byte {offset_of(row)}: .*({what})"):
        load(tmp_path / "t.tfrecord", COLUMNS)


@pytest.mark.parametrize("cut", [1, 20])
def test_truncation_names_the_record(load, tmp_path, cut):
    data = records(ROWS)
    (tmp_path / "t.tfrecord").write_bytes(data[:-cut])
    with pytest.raises(DataError, match=rf"t\.tfrecord: byte {offset_of(59)}: 'truncated record'"):
        load(tmp_path / "t.tfrecord", COLUMNS)


def test_records_that_are_no_examples(load, tmp_path):
    (tmp_path / "t.tfrecord").write_bytes(records([*ROWS[:2], b"\xff\xff\xff hello"]))
    with pytest.raises(DataError, match=rf"byte {offset_of(2)}: 'the record is no tf.train.Example'"):
        load(tmp_path / "t.tfrecord", COLUMNS)


def test_several_values_in_a_single_column_name_the_row(load, tmp_path):
    (tmp_path / "t.tfrecord").write_bytes(records(ROWS))
    with pytest.raises(DataError, match=r"t\.tfrecord: row 3: 'has 2 values.*multi_hot"):
        load(tmp_path / "t.tfrecord", "label: label\ncategorical: [tags]\n")


def test_a_bad_label_names_the_row(load, tmp_path):
    rows = [*ROWS[:2], example({"label": (INTEGERS, [5]), "x": (FLOATS, [1.0])})]
    (tmp_path / "t.tfrecord").write_bytes(records(rows))
    with pytest.raises(DataError, match=r"row 3: 5: label column label takes 0 or 1"):
        load(tmp_path / "t.tfrecord", "label: label\ndense: [x]\n")


def test_scalar_arrays_have_one_value_per_row():
    found = parsed([example({}), example({"a": (BYTES, [b"x"])})])["a"].scalar()
    assert isinstance(found, pa.Array)
    assert found.to_pylist() == [None, b"x"]
