"""What is fixed for a job's life, as its controller needs it: what was asked for, resolved caps, and all patience.

Every threshold and every waiting time of the controller is here, so that a test can make a job's life short, and a
reader finds what "too long" means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from trimtab.core.controller.spreading import BalanceRules
from trimtab.core.domain.job import Mode, Objective
from trimtab.core.domain.plan import Limits, Prices
from trimtab.core.domain.records import Observation
from trimtab.core.optimizer.stability.hot_ps import HotRules
from trimtab.core.optimizer.stability.memory import MemoryRules
from trimtab.core.optimizer.stability.stragglers import StragglerRules


@dataclass(frozen=True)
class Settings:
    """What is fixed for the job's life. Seconds are chosen so that a healthy but busy machine never meets a limit.

    Attributes:
        job_id, batches (N), evaluation_batches (M, 0: none).
        copies_directory: where parameter servers write copies.
        batch_size: rows per batch.
        mode, objective, prices, budget, deadline_seconds: as asked for. limits: resolved caps, all given.
        cpu_enforced: whether the cluster holds pods to their shares. prior: observations of similar past runs.
        began_at: the clock's seconds at the job's start.
        epoch_rows: training rows of one epoch, 0: not told. widths: for each table of the model, in wire order, bytes
            per row in memory and its rows (0: as many as keys come), () for not told.
        metrics: whether the model has compiled metrics to evaluate.
        hold_seconds: a worker not heard of for so long loses its data shards.
        silence_seconds: a pod not heard of for so long, though it runs, is replaced; start_seconds: before its first
            word. stall_seconds: a worker that holds work and gets nothing done for so long is replaced.
        checkpoint_seconds: between periodic checkpoints. copy_seconds: deadline of one round of copies.
        failures_in_row, failures_total: a pod's place that fails so often (without getting anything done; in all)
            fails the job, unless it can go on without the place.
        unserved_seconds: so long may a vshard be served by nobody, while nobody loads one (at the start
            `start_seconds` more); then the job goes on without the places that are missing, or fails.
        settle_seconds: after a change everything runs for so long before it is measured. window_seconds: of one
            observation. staged_seconds: a prepared move waits at most so long for a moment with little left to send.
        balance: when vshards are moved because one place carries more than others.
        straggling: when a worker is slow, and how far one goes for it.
        memory: when something is done about memory.
        hot: when a parameter server is called hot, and how far one goes for it. tables: names of the model's tables.
    """

    job_id: str
    batches: int
    evaluation_batches: int
    copies_directory: str
    metrics: bool = False
    batch_size: int = 1
    mode: Mode = Mode.FIXED
    objective: Objective = Objective.BALANCED
    prices: Prices = field(default_factory=Prices)
    budget: float | None = None
    deadline_seconds: float | None = None
    limits: Limits = field(default_factory=lambda: Limits(math.inf, 1 << 62, 1 << 20, 1 << 20))
    cpu_enforced: bool = True
    prior: tuple[Observation, ...] = ()
    began_at: float = 0.0
    epoch_rows: int = 0
    widths: tuple[tuple[int, int], ...] = ()
    hold_seconds: float = 20.0
    silence_seconds: float = 60.0
    start_seconds: float = 180.0
    stall_seconds: float = 180.0
    checkpoint_seconds: float = 60.0
    copy_seconds: float = 300.0
    unserved_seconds: float = 180.0
    failures_in_row: int = 5
    failures_total: int = 50
    settle_seconds: float = 2.0
    window_seconds: float = 3.0
    staged_seconds: float = 2.0
    balance: BalanceRules = field(default_factory=BalanceRules)
    straggling: StragglerRules = field(default_factory=StragglerRules)
    memory: MemoryRules = field(default_factory=MemoryRules)
    hot: HotRules = field(default_factory=HotRules)
    tables: tuple[str, ...] = ()
