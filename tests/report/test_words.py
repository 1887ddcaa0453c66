"""Numbers and times are written in one way, and what is not known is a dash."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.domain.records import Range
from trimtab.core.report import words


def plain(text):
    return text.replace("\u202f", " ").replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (words.clock(41.9), "0:41"), (words.clock(3723), "1:02:03"), (words.clock(-1), "–"), (words.clock(None), "–"),
        (words.samples(185_400), "185 k"), (words.samples(34_180), "34.2 k"), (words.samples(940.4), "940"),
        (words.samples(99_960), "100 k"), (words.samples(0), "0"), (words.samples(math.nan), "–"),
        (words.bounds(Range(1, 31_000, 37_200)), "31.0–37.2 k"), (words.bounds(Range(1, 900, 1200)), "900–1.2 k"),
        (words.bounds(Range(1)), ""), (words.bounds(Range(1, 5.0, math.inf)), ""), (words.bounds(None), ""),
        (words.signed(0.719), "+71 %"), (words.signed(-0.032), "\u22124 %"), (words.signed(0.0), "±0 %"),
        (words.signed(12.0), "+1 200 %"), (words.percent(0.2), "20 %"), (words.percent(None), "–"),
        (words.money(5.1, "$"), "$5.10"), (words.money(0.0034, "$"), "$0.0034"), (words.money(0, "$"), "$0"),
        (words.money(1234.5, "EUR"), "1 234.50 EUR"), (words.money(None, "$"), "–"),
        (words.gib(1.5 * 2**30), "1.5 GiB"), (words.cores(0.75), "0.75"), (words.cores(12.0), "12"),
        (words.exact_duration(2472), "41 min 12 s"), (words.exact_duration(3720), "1 h 2 min"),
        (words.exact_duration(4.25), "4.2 s"), (words.exact_duration(-2), "–"),
        (words.age(-5), "just now"), (words.age(7200), "2 h ago"), (words.age(200_000), "2 days ago"),
        (words.plan_text(Plan(RolePlan(1, 0.5, 1), RolePlan(2, 0.75, 1))), "2 × 0.75 + 1 × 0.5"),
        (words.plan_text(None), "–"), (words.plural(1, "plan"), "1 plan"), (words.plural(2, "plan"), "2 plans"),
    ],
)  # fmt: skip
def test_how_it_is_written(made, text):
    assert plain(made) == text


@given(st.one_of(st.none(), st.floats(), st.integers(), st.text(), st.booleans()))
def test_anything_can_be_written(value):
    """A record may hold what no arithmetic likes; a report of it must still be made."""
    for write in (words.whole, words.duration, words.exact_duration, words.clock, words.age, words.samples,
                  words.percent, words.signed, words.gib, words.cores):  # fmt: skip
        said = write(value)
        assert said and "nan" not in said and "inf" not in said
    assert words.money(value, "$")


@given(st.floats(-0.99, 50))
def test_a_gain_is_never_said_larger_than_it_is(share):
    said = plain(words.signed(share)).replace("\u2212", "-").replace("±", "").replace(" ", "").rstrip("%")
    assert int(said) / 100 <= share + 1e-7
