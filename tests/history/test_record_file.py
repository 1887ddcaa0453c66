"""A record as a file: whole or not at all, versioned, finite."""

import json
import math
from dataclasses import replace

import pytest
from history_records import START, full, job, sample
from hypothesis import given
from hypothesis import strategies as some

from trimtab.core.domain.records import Considered, Range
from trimtab.core.errors import BadInput, CorruptCopy
from trimtab.core.history.record_file import decode_record, encode_record, read_record, write_record
from trimtab.core.history.sieve import sieve

NUMBERS = some.floats(allow_nan=True, allow_infinity=True)


def test_a_whole_record_comes_back_as_it_was(tmp_path):
    path = tmp_path / "record.json"
    write_record(path, job("a"))
    write_record(path, full())
    assert read_record(path) == full()
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


def test_the_file_is_json_with_its_format(tmp_path):
    found = json.loads(encode_record(full()))
    assert found["format"] == 1
    assert found["record"]["run_id"] == full().run_id
    assert found["record"]["state"] == "finished"
    assert found["record"]["plans"][1]["plan"]["worker"] == {"replicas": 2, "cpu": 0.75, "memory_bytes": 2**30}


def test_a_newer_format_is_refused_with_the_remedy():
    data = encode_record(full()).replace(b'"format":1', b'"format":2', 1)
    with pytest.raises(BadInput, match="use a newer trimtab"):
        decode_record(data, "record.json")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"format":1}', b'{"format":"1","record":{}}', b"\xff"])
def test_what_is_no_record_is_refused(data):
    with pytest.raises(CorruptCopy, match=r"x\.json"):
        decode_record(data, "x.json")


def test_a_cut_file_is_refused():
    data = encode_record(full())
    for end in range(0, len(data), 97):
        with pytest.raises(CorruptCopy):
            decode_record(data[:end], "x.json")


def test_fields_of_later_versions_are_passed_over():
    data = encode_record(full()).replace(b'{"format":1,"record":{', b'{"format":1,"more":1,"record":{"later":[2],', 1)
    assert decode_record(data, "x.json") == full()


def test_a_record_of_the_version_before_is_read():
    """What it did not know yet has its default; so the next version must not ask for more either."""
    page = json.loads(encode_record(full()))
    for name in ("budget", "deadline_seconds", "front", "asked"):
        del page["record"][name]
    for window in page["record"]["observations"]:
        del window["ps_skew"], window["slowest_worker"]
    for decision in page["record"]["decisions"]:
        del decision["law"]
    found = decode_record(json.dumps(page).encode(), "record.json")
    assert (found.budget, found.front, found.asked) == (None, (), ())
    assert found.plans == full().plans and found.figures == full().figures
    assert {one.law for one in found.decisions} == {""} and len(found.observations) == len(full().observations)


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "record.json"
    path.mkdir()
    with pytest.raises(OSError):
        write_record(path, full())
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


def test_the_sieve_takes_out_what_is_not_finite_wherever_it_is():
    nan, inf = math.nan, math.inf
    clean = full()
    first, second = clean.decisions
    dirty = replace(
        clean,
        figures={"auc": 0.7, "log_loss": nan, "gap": inf},
        samples=(sample(0.5, nan, -inf), sample(nan), sample(2.5, 9.0)),
        observations=(replace(clean.observations[0], throughput=nan), clean.observations[0]),
        decisions=(
            replace(first, predicted=Range(nan)),
            replace(second, predicted=Range(1.0, nan, inf), measured=nan,
                    considered=(Considered(first.plan, Range(inf), 1.0), *second.considered)),
        ),
        ended_at=inf, started_at=nan,
    )  # fmt: skip
    kept, dropped = sieve(dirty)
    json.loads(encode_record(dirty), parse_constant=pytest.fail)
    assert kept.figures == {"auc": 0.7}
    assert kept.samples == (sample(0.5, None, None), sample(2.5, 9.0))
    assert kept.observations == clean.observations
    assert kept.decisions[0].predicted is None
    assert kept.decisions[1].predicted == Range(1.0, None, None)
    assert kept.decisions[1].measured is None
    assert kept.decisions[1].considered == second.considered
    assert (kept.started_at, kept.ended_at) == (0.0, None)
    assert {"log_loss", "gap", "samples.1.time_seconds", "decisions.0.predicted.middle"} <= set(dropped)
    assert len(dropped) == 13


def test_a_clean_record_is_not_copied():
    clean = full()
    assert sieve(clean) == (clean, ())
    assert sieve(clean)[0] is clean


@given(some.lists(some.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=5), some.dictionaries(some.text(), NUMBERS))
def test_whatever_is_not_finite_the_file_is_sound(points, figures):
    record = job("a", figures=figures, samples=tuple(sample(at, is_, was) for at, is_, was in points))
    found = decode_record(encode_record(record), "x.json")
    assert found == sieve(record)[0]
    assert all(math.isfinite(value) for value in found.figures.values())
    assert len(found.samples) == sum(math.isfinite(at) for at, _, _ in points)


def test_a_huge_whole_number_is_not_finite():
    kept, dropped = sieve(job("a", figures={"rows": 10**400, "auc": 1}))
    assert kept.figures == {"auc": 1}
    assert dropped == ("rows",)


def test_times_keep_their_digits():
    assert decode_record(encode_record(full()), "x.json").started_at == START
