"""How often a change of plan that was made is truly for the worse, and how much of the possible gain is kept.

Made-up jobs with true laws that are not the fitted one (the largest of three bounds, a p-norm of them with exponents
from 3 to 24, the paper's sum, a queueing network), 2 to 64 cores, demands spread over a decade, noise of 4 to 10 % per
window, a machine that drifts by 10 % and sometimes jumps, 20 seconds to half an hour of work, one in seven without CPU
figures, one in ten without enforced shares, half of them balanced, the others as fast or as cheap as possible. Each is
led by the product's `decide`, asked after every settled window of 3 seconds. `slower_share` is the share of accepted
changes (steps to look and ways back included) after which the work that was left takes longer in the objective's
measure, the pause of the change paid: seconds for fastest, money for cheapest, seconds times the root of the price for
balanced. `blind_slower_share` is the same for a loop that goes to the best prediction of the same law after every
window. `gain_kept_share` is what the jobs gain together over never changing, each as a share of its own loss, over what
an oracle gains that knows the law and goes to the best plan at once, paying the pause. `unseen_slower_share` is of jobs
apart: a link that all workers share bounds them, and neither CPU nor time shows it until it is reached. The full run
has three sets of jobs with other seeds, and the table says each set's figures; a quick run has 24 jobs.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from figures import Figure, options, report
from guard_job import LAWS, UNSEEN, make_job

from trimtab.core.domain.records import Decision
from trimtab.core.optimizer.choice import make_choice
from trimtab.core.optimizer.decide import decide
from trimtab.core.optimizer.guard import changes
from trimtab.core.optimizer.question import Question
from trimtab.core.perf.fit import fit
from trimtab.core.perf.iteration import Setting

SETS, JOBS, QUICK_JOBS, UNSEEN_JOBS = (1000, 2000, 3000), 200, 24, 40


@dataclass(frozen=True)
class Outcome:
    """What became of one job; gains are shares of the loss of never changing."""

    seed: int
    law: str
    objective: str
    stay: float
    gained: float
    possible: float
    gains: tuple[float, ...]
    kinds: tuple[str, ...]
    blind: tuple[float, ...]
    blind_gained: float

    @property
    def slower(self) -> int:
        """Accepted changes that made it worse."""
        return sum(one < 0 for one in self.gains)


def blind(question: Question) -> Decision:
    """What a loop does that believes every prediction."""
    setting = Setting(question.cpu_enforced, question.limits.cpu or math.inf, question.period_seconds)
    fitted = fit(
        question.observations, (), question.plan, question.batch_size, question.time_seconds, changes(question), setting
    )
    plan = question.plan
    if fitted is not None:
        choice = make_choice(question, fitted)
        best = choice.best(np.isfinite(choice.throughput))
        plan = choice.lattice.plan(best) if best is not None else plan
    kind = "hold" if plan == question.plan else "replace"
    return Decision(question.time_seconds, kind, plan, ".", before=question.plan)


def one_job(seed: int, law: str = "", with_blind: bool = True) -> Outcome:
    """Lead the job of a seed by the product, and blindly."""
    job = make_job(seed, law)
    stay, oracle = job.bounds()
    loss = job.run(decide)
    kinds = tuple(_kind(one.decision) for one in job.accepted)
    gains = tuple(one.gain for one in job.accepted)
    job.accepted = []
    blind_loss = job.run(blind) if with_blind else stay
    return Outcome(
        seed, job.truth.law + ("" if job.truth.knows_cpu else ", no CPU"), job.objective.value, stay, 1 - loss / stay,
        1 - oracle / stay, gains, kinds, tuple(one.gain for one in job.accepted), 1 - blind_loss / stay,
    )  # fmt: skip


def _kind(decision: Decision) -> str:
    return "step to look" if decision.probe else "back" if "Back to" in decision.reason else "change"


def share(outcomes: list[Outcome], of: Callable[[Outcome], tuple[float, ...]]) -> float:
    """Of accepted changes, those for the worse."""
    gains = [one for each in outcomes for one in of(each)]
    return sum(one < 0 for one in gains) / max(1, len(gains))


def kept(outcomes: list[Outcome]) -> float:
    """Gained over possible, each job as much as its share of its own loss."""
    return sum(one.gained for one in outcomes) / max(1e-12, sum(one.possible for one in outcomes))


def show(groups: dict[str, list[Outcome]]) -> None:
    """One line per group."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column in ("jobs", "number", "changes", "worse", "share", "blind share", "gain kept", "blind kept"):
        table.add_column(column, justify="left" if column == "jobs" else "right")
    for name, each in groups.items():
        led = [one for one in each if one.blind]
        blind_kept = sum(one.blind_gained for one in led) / max(1e-12, sum(one.possible for one in led))
        table.add_row(
            name, str(len(each)), str(sum(len(one.gains) for one in each)), str(sum(one.slower for one in each)),
            f"{share(each, lambda one: one.gains):.3f}", f"{share(led, lambda one: one.blind):.3f}" if led else "",
            f"{kept(each):.2f}", f"{blind_kept:.2f}" if led else "",
        )  # fmt: skip
    Console(width=120).print(table)


def main() -> None:
    """Run the jobs on the cores there are; the figures don't depend on how fast that is."""
    chosen = options(__doc__ or "")
    sets = {f"set {start}": range(start, start + JOBS) for start in SETS}
    if chosen.quick:
        sets = {f"set {SETS[0]}": range(SETS[0], SETS[0] + QUICK_JOBS)}
    wanted = [(seed, "", seed < SETS[0] + JOBS) for each in sets.values() for seed in each]
    if not chosen.quick:
        wanted += [(seed, UNSEEN, False) for seed in range(UNSEEN_JOBS)]
    with ProcessPoolExecutor(min(2, len(os.sched_getaffinity(0)))) as pool:
        every = list(pool.map(one_job, *zip(*wanted, strict=True), chunksize=4))
    found = [one for one in every if one.law.split(",")[0] != UNSEEN]
    unseen = [one for one in every if one not in found]
    by_set = {name: [one for one in found if one.seed in each] for name, each in sets.items()}
    groups = {law: [one for one in found if one.law.split(",")[0] == law] for law in LAWS}
    groups["without CPU figures"] = [one for one in found if "no CPU" in one.law]
    groups |= {name: [one for one in found if one.objective == name] for name in ("balanced", "fastest", "cheapest")}
    show(by_set | groups | ({UNSEEN: unseen} if unseen else {}))
    asked_blindly = [one for one in found if one.blind]
    total, worse = Counter(), Counter()
    for one in found:
        total.update(one.kinds)
        worse.update(kind for kind, gain in zip(one.kinds, one.gains, strict=True) if gain < 0)
    said = "; ".join(f"{worse[kind]} of {total[kind]} by kind {kind}" for kind in sorted(total))
    shares = [share(each, lambda one: one.gains) for each in by_set.values()]
    parts = [kept(each) for each in by_set.values()]
    blindly = f"{len(asked_blindly)} jobs, {sum(len(one.blind) for one in asked_blindly)} changes"
    absolute = sum(one.gained * one.stay for one in found) / max(1e-12, sum(one.possible * one.stay for one in found))
    report(
        "The guard",
        [
            Figure(
                "slower_share", share(found, lambda one: one.gains), "", 0.02, "lower",
                f"{len(found)} jobs; sets of jobs {min(shares):.3f} to {max(shares):.3f}; {said}",
            ),
            Figure(
                "gain_kept_share", kept(found), "", 0.7, "higher",
                f"sets of jobs {min(parts):.2f} to {max(parts):.2f}; weighted by the jobs' losses {absolute:.2f}",
            ),
            Figure("blind_slower_share", share(asked_blindly, lambda one: one.blind), "", None, "lower", blindly),
            Figure(
                "unseen_slower_share", share(unseen, lambda one: one.gains) if unseen else None, "", None, "lower",
                f"{len(unseen)} jobs; gain kept {kept(unseen):.2f}" if unseen else "not in a quick run",
            ),
        ],
        chosen.json,
    )  # fmt: skip


if __name__ == "__main__":
    main()
