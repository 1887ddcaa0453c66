"""What a pipeline step hands on: typed outputs, and metrics that are always finite (case 42)."""

import json
import math

from trimtab.kfp_components.outputs import METRICS, TrainOutputs, metrics_of, outputs_of

RESULT = {
    "run_id": "daily-1", "state": "finished", "batches_expected": 10, "batches_applied": 9, "batches_skipped": 1,
    "batches_duplicated": 0, "auc": 0.74, "log_loss": math.nan, "samples_per_second": 185400.0, "plans": [],
}  # fmt: skip


def test_outputs_say_who_how_and_whether_every_batch_was_accounted_for():
    assert outputs_of(RESULT) == TrainOutputs("daily-1", "finished", True)
    assert not outputs_of({**RESULT, "batches_applied": 8}).complete
    assert not outputs_of({**RESULT, "batches_duplicated": 1}).complete
    assert not outputs_of({"run_id": "x", "state": "failed"}).complete


def test_metrics_are_finite_and_what_is_left_out_is_named():
    kept, dropped = metrics_of({**RESULT, "wall_seconds": None})
    assert dropped == ("log_loss",)
    assert kept == {"auc": 0.74, "samples_per_second": 185400.0, "batches_applied": 9.0, "batches_skipped": 1.0}
    assert set(kept) <= set(METRICS)
    json.dumps(kept, allow_nan=False)
