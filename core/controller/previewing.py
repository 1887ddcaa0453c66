"""`trimtab plan`: a job put together up to its first plan, and what it would bring. Nothing is started.

It goes the way that `train` goes (rows, model, past runs, first plan) and stops there. What the model's probe writes
lies in a directory that is removed; the history is only read, and not even made where there is none. Only the converted
rows stay, in the cache where `train` will look for them.
"""

from __future__ import annotations

import logging
import math
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab.core.clock import Clock, SystemClock
from trimtab.core.controller.capacity import Capacity
from trimtab.core.controller.looking import Looked, begin, look, source_of
from trimtab.core.controller.places import home, look_at_job_dir
from trimtab.core.controller.progress import Progress, Showing
from trimtab.core.controller.resources import Beginning, Memory, Resources
from trimtab.core.controller.sharing import Sharing
from trimtab.core.domain.job import JobSpec, Mode
from trimtab.core.domain.records import Considered, Decision, WarmStart
from trimtab.core.errors import Interrupted, JobFailed
from trimtab.core.optimizer.feasible import check_feasible
from trimtab.core.optimizer.outlook import Preview, WhatIf
from trimtab.core.optimizer.preview import front_considered, preview, start_considered
from trimtab.core.optimizer.question import Question
from trimtab.core.optimizer.start import first_plan

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Previewed:
    """A job before its start.

    Attributes:
        spec: of the job. preview: what it would bring. warm: the past runs that the first plan rests on.
        batches: that it would apply.
    """

    spec: JobSpec
    preview: Preview
    warm: WarmStart
    batches: int


def preview_job(
    spec: JobSpec,
    what_ifs: Sequence[WhatIf] = (),
    progress: Callable[[Progress], None] | None = None,
    clock: Clock | None = None,
    stop: threading.Event | None = None,
) -> Previewed:
    """What `train` would start this job with, what it would bring, and what else it could have.

    Args:
        spec: the job. what_ifs: plans to predict beside the first one.
        progress: hears what is being looked at. clock: the machine's by default. stop: ends it.

    Raises:
        BadInput: something given cannot be used, or budget or deadline cannot be kept.
        Interrupted: `stop` was set. JobFailed: the machine refused something (no space, no process).
    """
    clock = clock if clock is not None else SystemClock()
    show = Showing(progress)
    with ExitStack() as cleaning:
        look_at_job_dir(spec)
        sharing = Sharing(Capacity(home(), clock), spec, "", clock)
        resources = sharing.whole()
        first_plan(spec, resources.caps, None, not resources.not_enforced)  # refuses what can never be started
        resources = sharing.outlook()
        memory = Memory(home(), clock, only_look=True)
        cleaning.callback(memory.close)
        try:
            place = Path(cleaning.enter_context(tempfile.TemporaryDirectory(prefix="trimtab-plan-")))
            looked = look(spec, source_of(spec), place, show, stop if stop is not None else threading.Event())
            _, beginning = begin(looked, resources, memory)
        except OSError as error:
            raise JobFailed(f"the job could not be looked at: {' '.join(str(error).split())}") from error
        except KeyboardInterrupt:
            raise Interrupted("interrupted; nothing was started") from None
    found = foresee(looked, resources, beginning, what_ifs)
    check_feasible(found, spec.mode is Mode.AUTO)
    return Previewed(looked.spec, found, beginning.warm, looked.rows.batches)


def foresee(
    looked: Looked, resources: Resources, beginning: Beginning, what_ifs: Sequence[WhatIf] = ()
) -> Preview:  # fmt: skip
    """What the job would bring with its first plan and the others that it may grow to."""
    spec, decision, table = looked.spec, beginning.decision, beginning.need.table
    question = Question(
        time_seconds=0.0, plan=decision.plan, batch_size=spec.batch_size, batches_left=looked.rows.batches,
        observations=(), prior=beginning.prior, limits=resources.for_pods, objective=spec.objective,
        prices=spec.prices, decisions=(), switch_seconds={}, cpu_enforced=not resources.not_enforced,
        budget=spec.budget, deadline_seconds=spec.deadline_seconds, not_started=True,
        table_bytes_at_end=math.ceil(table.high) if table is not None else 0,
    )  # fmt: skip
    runs = beginning.prior_runs or tuple(run.run_id for run in beginning.warm.runs)
    return preview(question, decision, looked.rows.expected, runs, what_ifs)


def explained(
    looked: Looked, resources: Resources, beginning: Beginning
) -> tuple[Decision, tuple[Considered, ...]]:  # fmt: skip
    """The first decision of a job that begins, with its candidates and what they rest on; and the front at the start.

    A preview that fails costs the explanation, not the job.

    Raises:
        BadInput: past runs make it certain that budget or deadline cannot be kept.
    """
    decision = beginning.decision
    try:
        found = foresee(looked, resources, beginning)
    except Exception:
        log.warning("what the job will bring could not be predicted", exc_info=True)
        return decision, ()
    check_feasible(found, looked.spec.mode is Mode.AUTO)
    if found.relative:
        return decision, ()
    predicted = decision.predicted if decision.predicted is not None else found.first.throughput
    considered = start_considered(found, looked.spec.mode is Mode.AUTO)
    return replace(
        decision, considered=considered, predicted=predicted, held=found.held, law=found.law,
        evidence=(*decision.evidence, f"{found.tried} plans within the caps were compared", *found.rests_on),
    ), front_considered(found)  # fmt: skip
