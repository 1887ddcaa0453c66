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


@pytest.mark.parametrize(
    "flags",
    [128, 1 << 31, frames.KEYS, frames.SKIPPED, frames.DEFAULTS, frames.PUSH | frames.DEFAULTS,
     frames.PULL | frames.KEYS, frames.PULL | frames.SKIPPED, frames.MOVE | frames.HELD, frames.MOVE | frames.PUSH,
     frames.HELD | frames.PULL, frames.MOVE | 128],
)  # fmt: skip
def test_flags_that_have_no_meaning_together_are_refused(flags):
    with pytest.raises(WireError, match="flags"):
        RequestHeader.unpack(RequestHeader(flags, 4).pack())


@pytest.mark.parametrize("flag", [frames.MOVE, frames.HELD])
def test_a_question_is_short(flag):
    most = RequestHeader(flag, 4, body_bytes=frames.MAX_QUESTION_BYTES)
    assert RequestHeader.unpack(most.pack()) == most
    with pytest.raises(WireError, match="question of 4097 bytes"):
        RequestHeader.unpack(RequestHeader(flag, 4, body_bytes=frames.MAX_QUESTION_BYTES + 1).pack())


@pytest.mark.parametrize("at", [24, 31, 52, 55])
def test_reserved_fields_of_a_request_are_empty(at):
    packed = bytearray(RequestHeader(1, 4).pack())
    packed[at] = 1
    with pytest.raises(WireError, match="reserved"):
        RequestHeader.unpack(packed)


def test_a_skipped_push_has_no_rows():
    header, body = body_of([1, 0, 3, 2], None)
    skipped = RequestHeader(frames.PUSH | frames.SKIPPED, len(DIMS), 7, body_bytes=len(body))
    with pytest.raises(WireError, match="only mark"):
        parse_body(skipped, body, DIMS)
    assert parse_body(header, body, DIMS).gradients is not None


@pytest.mark.parametrize(("at", "value"), [(8, 4), (11, 1), (24, 1), (63, 1)])
def test_a_reply_of_no_known_status_is_refused(at, value):
    packed = bytearray(ReplyHeader(1, 1).pack())
    packed[at] = value
    with pytest.raises(WireError, match="status"):
        ReplyHeader.unpack(packed)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([RequestHeader, ReplyHeader]), st.lists(st.tuples(st.integers(0, 191), st.binary(min_size=1, max_size=9))))  # fmt: skip # noqa: E501
def test_headers_of_a_hostile_peer_are_whole_or_refused(kind, changes):
    """Also a reply: a worker believes a server no more than a server believes a worker."""
    packed = bytearray((RequestHeader(3, 4, 7) if kind is RequestHeader else ReplyHeader(1, 1, 64)).pack())
    for at, data in changes:
        packed[at : at + len(data)] = data[: 192 - at]
    try:
        header = kind.unpack(packed)
    except WireError:
        return
    assert 0 <= header.body_bytes <= frames.MAX_BODY_BYTES
    if kind is ReplyHeader:
        assert header.push_status <= frames.FAILED >= header.pull_status
