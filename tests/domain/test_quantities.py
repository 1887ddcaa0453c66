"""The whole Kubernetes grammar and nothing else (case 28)."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.domain.quantities import (
    format_cpu,
    format_memory,
    parse_cpu,
    parse_duration,
    parse_memory,
    parse_quantity,
)
from trimtab.core.errors import BadInput

GOOD = {
    "0": "0", "1": "1", "+1": "1", "-1": "-1", "007": "7", "1.5": "1.5", ".5": "0.5", "5.": "5", "-.5": "-0.5",
    "1e3": "1000", "1E3": "1000", "1e+3": "1000", "1e-3": "0.001", "129e6": "129000000", "5.e2": "500", "9E": "9e18",
    "-9E": "-9e18", "1k": "1e3", "1M": "1e6", "1G": "1e9", "1T": "1e12", "1P": "1e15", "1E": "1e18",
    "1Ki": "1024", "1Mi": "1048576", "1.5Gi": "1610612736", "1Ti": "1099511627776", "2Pi": "2251799813685248",
    "1Ei": "1152921504606846976", "100m": "0.1", "0.1m": "0.0001", "3u": "0.000003", "7n": "0.000000007",
    "9223372036854775807": "9223372036854775807",
}  # fmt: skip

BAD = [
    "", " ", "1 ", " 1", "1 Gi", "NaN", "nan", "Inf", "infinity", "-", "+", ".", "--1", "1K", "1gi", "1GI", "1Kib",
    "1GB", "1ki", "1mi", "1e", "1e1.5", "1e3Gi", "1Gi1", "0x10", "1_000", "1,000", "1.2.3", "e3", "Gi", "１", "1e99999",
    "9223372036854775808", "12E", "-12E", "1e19", "8Ei", "1\n", "1\u2009Gi",
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), GOOD.items())
def test_each_form_of_the_grammar_has_its_exact_value(text, value):
    assert parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize("text", BAD)
def test_everything_else_is_refused_with_a_remedy(text):
    with pytest.raises(BadInput, match=r"--max-memory.*Kubernetes quantity"):
        parse_quantity(text, "--max-memory")


@pytest.mark.parametrize("value", [None, 1, 1.5, True, b"1"])
def test_what_is_no_text_is_refused(value):
    with pytest.raises(BadInput):
        parse_quantity(value)


def test_finer_than_the_unit_is_rounded_up():
    assert parse_cpu("0.1m") == 0.001
    assert parse_cpu("1.0001") == 1.001
    assert parse_memory("0.1") == 1
    assert parse_memory("1500m") == 2


@pytest.mark.parametrize("text", ["0", "-1", "-500m", "0Gi"])
def test_nothing_and_less_are_no_amount(text):
    with pytest.raises(BadInput, match="more than 0"):
        parse_cpu(text)
    with pytest.raises(BadInput, match="more than 0"):
        parse_memory(text)


def test_canonical_forms():
    assert [format_cpu(cores) for cores in (2, 1.5, 0.25, 0.0001)] == ["2", "1500m", "250m", "1m"]
    assert [format_memory(size) for size in (1000, 1024, 1536 * 2**20, 2**31, 2**60)] == [
        "1000", "1Ki", "1536Mi", "2Gi", "1Ei"
    ]  # fmt: skip


@given(st.integers(1, 10**9))
def test_cores_survive_the_round_trip(milli):
    assert parse_cpu(format_cpu(milli / 1000)) == milli / 1000


@given(st.integers(1, 2**62))
def test_bytes_survive_the_round_trip(size):
    assert parse_memory(format_memory(size)) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("45m", 2700), ("2h", 7200), ("1.5h", 5400), ("1h30m", 5400), ("1d", 86400), (30, 30)],
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5m", "m", "soon", "1m1h", "nan", "1e3", "inf", "h1"])
def test_what_is_no_duration(text):
    with pytest.raises(BadInput, match=r"--deadline.*1h30m"):
        parse_duration(text, "--deadline")
