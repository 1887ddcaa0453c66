"""Commands of these tests keep their records to themselves: the history has tests of its own."""

import pytest


@pytest.fixture(autouse=True)
def _no_history(monkeypatch):
    monkeypatch.setenv("TRIMTAB_HISTORY", "none")
