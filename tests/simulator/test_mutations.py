"""The simulation finds broken rules, and says which promise they break; `mutations.py` has more of them."""

import mutations
import pytest


@pytest.mark.parametrize(
    ("mutation", "promise"),
    [
        (mutations.believes_reports_at_the_end, "the end is a whole manifest"),
        (mutations.deletes_what_is_in_force, "files in force stay"),
        (mutations.forgets_who_leaves, "caps hold"),
        (mutations.lends_while_it_stops, "nothing is lent out of time"),
    ],
)
def test_a_broken_rule_is_found_within_200_seeds(monkeypatch, mutation, promise):
    mutation(monkeypatch)
    found = mutations.found_by()
    assert found is not None and promise in found[1]
