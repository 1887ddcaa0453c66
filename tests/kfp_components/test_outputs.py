"""What a pipeline step hands on: typed outputs, and metrics that are always finite (case 42)."""

import json
import math
from typing import get_type_hints

from trimtab.kfp_components.outputs import METRICS, TrainOutputs, metrics_of, outputs_of

PLAN = {"ps": {"replicas": 1}, "worker": {"replicas": 2}}
RESULT = {
    "run_id": "daily-1", "state": "finished", "batches_expected": 10, "batches_applied": 9, "batches_skipped": 1,
    "batches_duplicated": 0, "auc": 0.74, "log_loss": math.nan, "samples_per_second": 185400.0,
    "plans": [{"plan": {"ps": {}}}, {"plan": PLAN}],
    "warm_start": {"note": "warm start from 1 run", "runs": [{"run_id": "daily-0"}], "plan": PLAN},
}  # fmt: skip


def test_outputs_say_who_how_and_whether_every_batch_was_accounted_for():
    expected = TrainOutputs("daily-1", "finished", True, ["daily-0"], "warm start from 1 run", PLAN)
    assert outputs_of(RESULT) == expected
    assert not outputs_of({**RESULT, "batches_applied": 8}).complete
    assert not outputs_of({**RESULT, "batches_duplicated": 1}).complete
    assert outputs_of({"run_id": "x", "state": "failed"}) == TrainOutputs("x", "failed", False, [], "", {})


def test_a_cold_start_is_one_from_no_run():
    for warm in (None, {}, {"note": "", "runs": [], "plan": None}, {"runs": None}):
        assert outputs_of({**RESULT, "warm_start": warm}).warm_from == []
    assert outputs_of({**RESULT, "warm_start": {"runs": ["a", "b"]}}).warm_from == ["a", "b"]


def test_metrics_are_finite_and_what_is_left_out_is_named():
    kept, dropped = metrics_of({**RESULT, "wall_seconds": None})
    assert dropped == ("log_loss",)
    assert kept == {"auc": 0.74, "samples_per_second": 185400.0, "batches_applied": 9.0, "batches_skipped": 1.0}
    assert set(kept) <= set(METRICS)
    json.dumps(kept, allow_nan=False)


def test_the_component_declares_these_outputs():
    """KFP wants them written out in the component itself."""
    from trimtab.kfp_components.train import train_dlrm

    declared = get_type_hints(train_dlrm.python_func)["return"]
    assert declared.__name__ == "TrainOutputs"
    assert declared._fields == TrainOutputs._fields
