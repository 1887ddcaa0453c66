"""Only finite numbers leave the house, and what is left out is named (cases 42, 47)."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.domain.figures import finite


def test_numbers_are_kept_or_named_and_the_rest_is_no_figure():
    numbers = {"auc": 0.75, "n": 3, "loss": math.nan, "gap": -math.inf, "huge": 10**400}
    kept, dropped = finite({**numbers, "none": None, "text": "1", "flag": True})
    assert kept == {"auc": 0.75, "n": 3.0}
    assert dropped == ("loss", "gap", "huge")


@given(st.dictionaries(st.text(), st.floats() | st.integers() | st.none() | st.text()))
def test_what_is_kept_is_valid_json(figures):
    kept, dropped = finite(figures)
    json.dumps(kept, allow_nan=False)
    assert not set(kept) & set(dropped)
