"""The frame layout is frozen, and the parser believes nobody."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.core.errors import WireError
from trimtab.core.wire import frames
from trimtab.core.wire.frames import ReplyHeader, RequestHeader, parse_body

DIMS = np.array([4, 4, 2, 256], np.int64)


def body_of(push_counts, pull_counts, keys=False):
    """A well-formed body and its header for the given counts."""
    parts, flags, size = [], 0, 0

    def put(data, pad):
        nonlocal size
        parts.append(data)
        size += len(data)
        if pad:
            gap = frames.padded(size) - size
            parts.append(bytes(gap))
            size += gap

    counts = b""
    for counted, flag in ((push_counts, frames.PUSH), (pull_counts, frames.PULL)):
        if counted is not None:
            flags |= flag
            counts += np.array(counted, np.uint32).tobytes()
    put(counts, True)
    if push_counts is not None:
        if keys:
            flags |= frames.KEYS
            put(np.arange(sum(push_counts), dtype=np.int64).tobytes(), True)
        floats = int(np.array(push_counts, np.int64) @ DIMS)
        put(np.arange(floats, dtype=np.float32).tobytes(), pull_counts is not None)
    if pull_counts is not None:
        put(np.arange(sum(pull_counts), dtype=np.int64).tobytes(), False)
    body = frames.aligned(size)
    body[:] = np.frombuffer(b"".join(parts), np.uint8)
    return RequestHeader(flags, len(DIMS), 7, 3, 4, 0.5, size, 1, 1), body


def test_request_header_is_frozen():
    packed = RequestHeader(5, 28, 11, 2, 3, 0.25, 640, 1 << 511 | 1, 2).pack()
    assert packed.hex() == (
        "54545251010001000500000" "01c0000000b00000000000000"
        "0000000000000000" "0200000000000000" "0300000000000000" "0000803e" "00000000" "8002000000000000"
        "01" + "00" * 62 + "80" "02" + "00" * 63
    )
    assert RequestHeader.unpack(packed) == RequestHeader(5, 28, 11, 2, 3, 0.25, 640, 1 << 511 | 1, 2)


def test_reply_header_is_frozen():
    packed = ReplyHeader(1, 2, 640, 3, 1, 1 << 8).pack()
    assert packed.hex() == (
        "5454525001000100" "01000200" "03000000" "8002000000000000" + "00" * 40 + "01" + "00" * 63 + "0001" + "00" * 62
    )
    assert ReplyHeader.unpack(packed) == ReplyHeader(1, 2, 640, 3, 1, 1 << 8)


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("push", [None, [1, 0, 3, 2]])
@pytest.mark.parametrize("pull", [None, [0, 5, 1, 1]])
def test_sections_are_found(push, pull, keys):
    header, body = body_of(push, pull, keys)
    parsed = parse_body(header, body, DIMS)
    if push is not None:
        assert parsed.push_counts.tolist() == push
        assert parsed.gradients.tolist() == list(range(4 + 6 + 512))
        assert parsed.gradients.ctypes.data % 64 == 0
        assert (parsed.push_keys is not None) == keys
    if pull is not None:
        assert parsed.pull_keys.tolist() == list(range(7))


def test_a_count_beyond_the_body_is_refused():
    header, body = body_of([1, 0, 3, 2], None)
    body[:4].view(np.uint32)[0] = 4_000_000_000
    with pytest.raises(WireError, match="counts ask for"):
        parse_body(header, body, DIMS)


def test_other_tables_are_refused():
    header, body = body_of([1, 0, 3, 2], None)
    with pytest.raises(WireError, match="4 tables; this job has 3"):
        parse_body(header, body, DIMS[:3])


def test_a_pull_whose_answer_would_be_too_large_is_refused():
    many = frames.MAX_BODY_BYTES // 1024 + 1
    header, body = body_of(None, [0, 0, 0, many])
    with pytest.raises(WireError, match="bytes of rows"):
        parse_body(header, body, DIMS)


@pytest.mark.parametrize(("at", "value", "text"), [(0, 88, "magic"), (4, 9, "version 9"), (63, 255, "beyond")])
def test_a_foreign_header_is_refused(at, value, text):
    packed = bytearray(RequestHeader(1, 4).pack())
    packed[at] = value
    with pytest.raises(WireError, match=text):
        RequestHeader.unpack(packed)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 31), st.binary(max_size=700))
def test_random_bodies_are_parsed_within_bounds_or_refused(flags, data):
    body = frames.aligned(len(data))
    body[:] = np.frombuffer(data, np.uint8)
    header = RequestHeader(flags, len(DIMS), body_bytes=len(data))
    try:
        parsed = parse_body(header, body, DIMS)
    except WireError:
        return
    for view in (parsed.push_counts, parsed.pull_counts, parsed.push_keys, parsed.gradients, parsed.pull_keys):
        assert view is None or view.size == 0 or np.shares_memory(view, body)
