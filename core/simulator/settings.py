"""A simulated job's settings: the product's own, with patience that is short against the job.

Seconds shrink together, so that what is compared with what stays as it is in a real job: a loan outlives a lost call, a
silence outlives a hang that ends, a round of copies outlives a slow disk.
"""

from __future__ import annotations

from trimtab.core.controller.settings import Settings
from trimtab.core.controller.spreading import BalanceRules
from trimtab.core.domain.plan import Limits
from trimtab.core.optimizer.stability.hot_ps import HotRules
from trimtab.core.optimizer.stability.stragglers import StragglerRules
from trimtab.core.simulator.schedules import STEADY, Schedule
from trimtab.core.simulator.storage import JOB
from trimtab.core.simulator.workers import ROWS

_NEVER = 1000


def settings_of(schedule: Schedule, limits: Limits) -> Settings:
    """The settings of a schedule's job under the caps of the moment."""
    steady = schedule.pace == STEADY
    patient = schedule.patient
    return Settings(
        JOB, schedule.batches, schedule.evaluation, "copies", metrics=schedule.metrics and schedule.evaluation > 0,
        batch_size=ROWS, mode=schedule.mode, limits=limits, hold_seconds=6.0, start_seconds=30.0,
        silence_seconds=20.0 if steady else 12.0, stall_seconds=40.0, copy_seconds=10.0, unserved_seconds=90.0,
        failures_in_row=_NEVER if patient else 4, failures_total=10 * _NEVER,
        checkpoint_seconds=schedule.checkpoint_seconds, settle_seconds=2.0 if steady else 0.5,
        window_seconds=3.0 if steady else 1.0, staged_seconds=2.0 if steady else 0.5,
        balance=BalanceRules(
            seconds=5.0 if steady else 2.0, pause_seconds=10.0, traffic=float(1 << 16),
            sample_seconds=2.0 if steady else 1.0,
        ),
        straggling=StragglerRules(pause_seconds=8.0), hot=HotRules(recover_seconds=15.0, pause_seconds=10.0),
    )  # fmt: skip
