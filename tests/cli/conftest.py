"""Commands of these tests keep their records to themselves: the history has tests of its own."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # this folder's helpers


@pytest.fixture(autouse=True)
def _no_history(monkeypatch):
    monkeypatch.setenv("TRIMTAB_HISTORY", "none")
