"""Counts come from the committed manifest, and the JSON has every key."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from controller_world import empty_manifest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.controller.result import JobResult, RowCounts, no_result, tally
from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.domain.job import JobState, PlanChange
from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.ps.manifest import Manifest
from trimtab.core.wire.messages import CopySet

PLAN = Plan(RolePlan(1, 0.5, 2**28), RolePlan(2, 1.0, 2**30))


def manifest(*sets: CopySet) -> Manifest:
    """Vshard v has set v mod len(sets)."""
    plain = empty_manifest()
    entries = tuple(replace(entry, set_index=entry.vshard % len(sets)) for entry in plain.entries)
    return replace(plain, entries=entries, sets=sets)


@given(train_rows=st.integers(1, 40), batch_size=st.integers(1, 8), epochs=st.integers(1, 4), seed=st.integers(0, 99))
def test_rows_of_batches_count_short_ends_of_epochs(train_rows: int, batch_size: int, epochs: int, seed: int) -> None:
    per_epoch = -(-train_rows // batch_size)
    sizes = [min(batch_size, train_rows - at * batch_size) for at in range(per_epoch)] * epochs
    chosen = np.flatnonzero(np.random.default_rng(seed).random(len(sizes)) < 0.5)
    counts = RowCounts(batch_size, per_epoch, epochs, train_rows)
    assert counts.rows(IntervalSet((int(n), int(n) + 1) for n in chosen)) == sum(sizes[n] for n in chosen)
    assert counts.rows(IntervalSet.span(0, len(sizes))) == train_rows * epochs


def test_applied_is_what_all_copies_hold_without_what_any_skipped() -> None:
    held = manifest(CopySet(((0, 10),), ((2, 3),)), CopySet(((0, 8),), ((5, 6),)))
    found = tally(held, RowCounts(4, 10, 1, 38))
    assert (found.batches_applied, found.batches_skipped, found.batches_duplicated) == (6, 2, 0)
    assert (found.rows_applied, found.rows_skipped) == (24, 8)


def test_applied_and_skipped_rows_make_all_rows_of_a_complete_manifest() -> None:
    found = tally(manifest(CopySet(((0, 10),), ((9, 10),))), RowCounts(4, 10, 1, 38))
    assert (found.rows_applied, found.rows_skipped) == (36, 2)


def test_a_number_in_two_intervals_of_one_set_is_a_duplicate() -> None:
    assert tally(manifest(CopySet(((0, 6), (4, 8)), ())), RowCounts(4, 8, 1, 32)).batches_duplicated == 2


def test_the_json_has_every_key_and_no_number_that_is_not_finite() -> None:
    result = JobResult(
        "run", JobState.FINISHED, 10, 9, 0, 1, 3, 40, 36, 4, float("nan"), None, {"good": 1.0, "bad": float("inf")},
        1234.5678, (PlanChange(0.0, PLAN, "as asked for"),), 0.25, 12.3456, 20.0, "/job", "/job/manifest",
    )  # fmt: skip
    found = result.as_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert set(found) == {
        "run_id", "state", "batches_expected", "batches_applied", "batches_duplicated", "batches_skipped",
        "resends_dropped", "rows_expected", "rows_applied", "rows_skipped", "auc", "log_loss", "metrics",
        "samples_per_second", "plans", "warm_start", "max_worker_gap_seconds", "wall_seconds", "cpu_seconds", "job_dir",
        "model", "error", "bad_input", "objective", "decisions", "report", "mlflow", "history_problem",
    }  # fmt: skip
    refused = no_result(JobState.FAILED, "--epochs: 0: ...", {"field": "--epochs", "value": "0", "remedy": "..."})
    assert list(refused) == list(found), "one shape, whatever happens"
    assert (found["auc"], found["metrics"], found["warm_start"]) == (None, {"good": 1.0}, None)
    assert found["plans"] == [{"time": 0.0, "plan": PLAN.as_dict(), "reason": "as asked for"}]
