"""Messages say what they may say and nothing else: bounds stand in the types, and decoding holds them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from trimtab.core.errors import WireError
from trimtab.core.wire.commands import JobAnswer, JobCommand
from trimtab.core.wire.encode import from_json, to_json
from trimtab.core.wire.messages import (
    MOST_FIGURES,
    BatchLoss,
    CopiesWritten,
    CopyEntry,
    CopySet,
    HeldRequest,
    MoveReply,
    MoveRequest,
    PsReport,
    PsSync,
    VshardSum,
    WorkerSync,
    from_bitmap,
    to_bitmap,
)

KINDS = (PsSync, PsReport, WorkerSync, MoveRequest, MoveReply, HeldRequest, JobCommand, JobAnswer)
NO_BITMAPS = ("", "0x1", "-1", "+f", "1_1", " f", "f\n", "zz", "١٢", "F" * 8, "f" * 129, "f" * 100_000, "\x00")


@pytest.mark.parametrize("text", NO_BITMAPS)
def test_what_is_no_bitmap_is_refused_wherever_it_stands(text: str) -> None:
    with pytest.raises(WireError, match="bitmap"):
        from_bitmap(text)
    order = {"vshards": text, "since": 1}
    sync = {"job_id": "j", "term": 1, "sequence": 1, "process": ""}
    origin = {"process": "p", "address": "a", "since": 1}
    report = {"process": "p", "address": "a", "sequence": 1}
    served = {**order, "applied": [], "skipped": []}
    shapes: list[tuple[type, dict[str, object]]] = [
        (HeldRequest, {"vshards": text}), (MoveRequest, order), (MoveReply, {"vshards": text, "counts": []}),
        (MoveReply, {"vshards": "0", "counts": [], "served": [served]}),
        (PsSync, {**sync, "serve": [{**order, "manifest": ""}]}), (PsSync, {**sync, "drop": [order]}),
        (PsSync, {**sync, "prepare": [{"vshards": text, "origin": origin}]}),
        (PsReport, {**report, "served": [served]}),
        (PsReport, {**report, "staged": [{**order, "process": "p", "refreshed_rows": 1}]}),
    ]  # fmt: skip
    if text:  # nothing missing is said by an empty text
        shapes.append((PsReport, {**report, "missing": text}))
    for kind, shape in shapes:
        with pytest.raises(WireError, match=r"vshards|missing"):
            from_json(kind, json.dumps(shape).encode())


@given(st.sets(st.integers(0, 511)))
def test_a_bitmap_comes_back(vshards: set[int]) -> None:
    text = to_bitmap(sorted(vshards))
    assert from_bitmap(text) == sorted(vshards)
    assert from_json(HeldRequest, to_json(HeldRequest(text))).vshards == text


@pytest.mark.parametrize("value", [-1, 2**63, 10**30, 1.5, None, "1", True])
def test_counts_are_whole_numbers_of_64_bits(value: object) -> None:
    for kind, shape in (
        (BatchLoss, {"number": value, "loss": 0.5, "rows": 8}), (BatchLoss, {"number": 1, "loss": 0.5, "rows": value}),
        (WorkerSync, {"job_id": "j", "term": 1, "pod": "w", "process": "p", "finished": [value]}),
        (MoveRequest, {"vshards": "0", "since": value}),
    ):  # fmt: skip
        with pytest.raises(WireError):
            from_json(kind, json.dumps(shape).encode())


def test_vshards_and_sets_that_do_not_exist_are_refused() -> None:
    for vshard in (-1, 512):
        with pytest.raises(WireError):
            from_json(VshardSum, json.dumps({"vshard": vshard, "rows": 1, "total": 1}).encode())
    good = CopiesWritten(1, (CopyEntry(3, 1, "f", 0, 1, "c", 0),), (CopySet((), ()),))
    data = json.loads(to_json(good))
    assert from_json(CopiesWritten, json.dumps(data).encode()) == good
    for change in ({"vshard": 512}, {"set_index": 1}, {"set_index": -1}, {"offset": -1}):
        broken = {**data, "entries": [{**data["entries"][0], **change}]}
        with pytest.raises(WireError):
            from_json(CopiesWritten, json.dumps(broken).encode())


def test_figures_of_a_worker_are_few() -> None:
    shape = {"job_id": "j", "term": 1, "pod": "w", "process": "p"}
    for name in ("phase_seconds", "metrics"):
        many = {str(number): 0.1 for number in range(MOST_FIGURES + 1)}
        with pytest.raises(WireError, match=name):
            from_json(WorkerSync, json.dumps({**shape, name: many}).encode())
        many.popitem()
        from_json(WorkerSync, json.dumps({**shape, name: many}).encode())


@pytest.mark.parametrize("depth", [10, 5_000, 1_000_000])
@pytest.mark.parametrize("end", ["]", ""])
def test_json_that_is_deep_is_skipped_or_refused(depth: int, end: str) -> None:
    body = b'{"vshards": "1", "since": 1, "more": ' + b"[" * depth + end.encode() * depth + b"}"
    try:
        assert from_json(MoveRequest, body).since == 1
    except WireError:
        assert depth > 10 or not end


@hypothesis_settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(KINDS))
def test_random_bytes_are_refused(data: bytes, kind: type) -> None:
    with pytest.raises(WireError):
        from_json(kind, data)
