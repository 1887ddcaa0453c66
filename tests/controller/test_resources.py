"""How a job begins: what the store says, and what it could not say."""

import pytest

from trimtab.core.clock import SystemClock
from trimtab.core.controller import resources as module
from trimtab.core.controller.resources import HISTORY_SETTING, Memory, resources_of
from trimtab.core.domain.job import JobSpec
from trimtab.core.domain.plan import Limits
from trimtab.core.history.memory import InMemoryHistory
from trimtab.core.history.outline import Outlines

SPEC = JobSpec("rows", limits=Limits(2.0, 6 * 2**30, 4, 4))
TAGS = {"model": "dlrm", "columns": "c", "batch_size": "1024"}


class Cut(InMemoryHistory):
    """A store with runs that nobody can read."""

    def outlines(self, tags, limit):
        return Outlines(super().outlines(tags, limit).records, 2)


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """How a job begins beside a store."""

    def begin(history):
        monkeypatch.delenv(HISTORY_SETTING, raising=False)
        monkeypatch.setattr(module, "open_history", lambda home: history)
        return Memory(tmp_path, SystemClock()).begin(SPEC, resources_of(SPEC), TAGS)

    return begin


def test_runs_that_could_not_be_read_are_said_in_the_reason_of_the_first_plan(begun):
    found = begun(Cut())
    note = "cold start, there is no past run; 2 runs of the history could not be read"
    assert found.warm.note == note and found.warm.runs == ()
    assert found.decision.reason.startswith(f"C{note[1:]}: start small with ")


def test_a_store_without_runs_is_a_cold_start(begun):
    assert begun(InMemoryHistory()).warm.note == "cold start, there is no past run"
