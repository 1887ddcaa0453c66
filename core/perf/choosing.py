"""Which law, and how far off it is: every member is asked about configurations that its fit did not see.

In-sample residuals flatter whatever has more coefficients (their ranges covered 20 to 74 % where 80 % was meant), and
leaving single rows out flatters too, because repeats of a configuration give it away. So whole configurations are
left out, each member is refitted without each of them, and the member with the least left-out error is used. Members
stand in an order of preference, which measurements of real jobs gave: a later one must be clearly better, because with
few configurations the best of several is mostly the luckiest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimtab.core.perf.iteration import Setting, Shapes
from trimtab.core.perf.law import Law
from trimtab.core.perf.quota import QuotaLaw, fit_quota_laws
from trimtab.core.perf.rows import Row
from trimtab.core.perf.time_laws import fit_time_laws

_CLEARLY_BETTER = 0.9  # of the preferred member's left-out error: what a later one must reach
_ANOTHER_FAMILY = 0.7  # the same, for laws on time alone where CPU is known
_FEWEST_CONFIGURATIONS = 5  # below that nothing is left out to choose a member by
_GOOD_ENOUGH = 0.12  # left-out error of a law on CPU that leaves nothing to look for: half of it is noise of windows
_LEAST_ERROR = 0.02  # differences below that are noise of the measurement

Configuration = tuple[object, int]


@dataclass(frozen=True)
class Chosen:
    """A law with its record.

    Attributes:
        law: the member that is used.
        left_out: per row ln(measured / predicted) seconds of a refit without its configuration; None where nothing
            was left to fit.
        scores: by member, the root mean square of these over its configurations (RMSLE); empty where there were too
            few configurations to compare.
    """

    law: Law
    left_out: tuple[float | None, ...]
    scores: dict[str, float]


def choose(
    rows: Sequence[Row], past: Sequence[Row], setting: Setting, anchor: Row | None = None, trust: float = 0.0
) -> Chosen | None:
    """The law for these rows; None where no member can be fitted.

    Args:
        rows: of this job (or table), oldest first.
        past: of similar past jobs: they give demands their shape, never their level.
        setting: what holds pods back.
        anchor: the row that predictions are anchored on: what a refit misses it by is taken off what it misses others
            by, times `trust` (0 to 1). Its own configuration is not left out.
    """
    configurations = list(dict.fromkeys(configuration(row) for row in rows))
    if anchor is not None:
        configurations = [one for one in configurations if one != configuration(anchor)]
    enough = len(configurations) >= _FEWEST_CONFIGURATIONS
    members: tuple[Law, ...] = fit_quota_laws(rows, past, setting)
    misses = _left_out(members, rows, past, setting, configurations, anchor, trust)
    score = rmsle(misses[members[0].name]) if members else None
    if not members or (enough and score is not None and score > _GOOD_ENOUGH):
        others = fit_time_laws(rows or past, setting)
        misses |= _left_out(others, rows, past, setting, configurations, anchor, trust)
        members = (*members, *others)
    if not members:
        return None
    if not enough:
        return Chosen(members[0], _per_row(rows, misses[members[0].name]), {})
    scores = {one.name: score for one in members if (score := rmsle(misses[one.name])) is not None}
    law = _best(members, misses)
    return Chosen(law, _per_row(rows, misses[law.name]), scores)


def preferred(rows: Sequence[Row], past: Sequence[Row], setting: Setting) -> Law | None:
    """The member that stands until something speaks for another: of quota laws where CPU is known, else time alone."""
    members: Sequence[Law] = fit_quota_laws(rows, past, setting) or fit_time_laws(rows or past, setting)
    return members[0] if members else None


def configuration(row: Row) -> Configuration:
    """What is left out together: a plan with its batch size."""
    return (row.plan, row.batch_size)


def rmsle(misses: dict[Configuration, list[tuple[int, float]]]) -> float | None:
    """Root mean square of log errors, every configuration with the same weight; None without one."""
    squares = [sum(miss**2 for _, miss in found) / len(found) for found in misses.values() if found]
    return math.sqrt(sum(squares) / len(squares)) if squares else None


def log_errors(law: Law, rows: Sequence[Row], setting: Setting) -> list[float]:
    """ln(measured / predicted) seconds of each row."""
    found = []
    for row in rows:
        predicted = float(law.seconds(Shapes.of([row.plan]), row.batch_size, setting)[0])
        found.append(math.log(row.seconds) - math.log(predicted))  # of absurd values the ratio may not be a number
    return found


_Misses = dict[Configuration, list[tuple[int, float]]]


def _left_out(
    members: Sequence[Law], rows: Sequence[Row], past: Sequence[Row], setting: Setting,
    configurations: Sequence[Configuration], anchor: Row | None, trust: float,
) -> dict[str, _Misses]:  # fmt: skip
    """By member of one family: per configuration the rows' numbers with their log errors in refits without it."""
    found: dict[str, _Misses] = {one.name: {} for one in members}
    first = members[0] if members else None
    overheads = None
    if isinstance(first, QuotaLaw):
        overheads = (first.worker.overhead_seconds, first.ps.overhead_seconds)
    for one in configurations:
        kept = [row for row in rows if configuration(row) != one]
        left = [(at, row) for at, row in enumerate(rows) if configuration(row) == one]
        if not kept and not past:
            continue
        refitted: Sequence[Law] = fit_quota_laws(kept, past, setting, overheads) if overheads else ()
        for law in refitted if overheads else fit_time_laws(kept or past, setting):
            if law.name in found:
                off = trust * log_errors(law, [anchor], setting)[0] if anchor is not None else 0.0
                errors = [error - off for error in log_errors(law, [row for _, row in left], setting)]
                found[law.name][one] = [(at, error) for (at, _), error in zip(left, errors, strict=True)]
    return found


def _per_row(rows: Sequence[Row], misses: _Misses) -> tuple[float | None, ...]:
    known = {at: miss for found in misses.values() for at, miss in found}
    return tuple(known.get(at) for at in range(len(rows)))


def _best(members: Sequence[Law], misses: Mapping[str, _Misses]) -> Law:
    """The member with the least error, each pair compared over the configurations that both could be refitted without.

    Without some configurations the rows are not enough for every member, and those are the ones hard to predict.
    """
    best = members[0]
    for one in members[1:]:
        shared = [at for at in misses[one.name] if at in misses[best.name]]
        mine, its = (rmsle({at: misses[name][at] for at in shared}) for name in (one.name, best.name))
        other = isinstance(best, QuotaLaw) and not isinstance(one, QuotaLaw)
        factor = _ANOTHER_FAMILY if other else _CLEARLY_BETTER
        if mine is not None and its is not None:
            better = mine < factor * its - _LEAST_ERROR * (1 - factor)
        else:  # nothing is known of the preferred one
            better = not misses[best.name] and bool(misses[one.name])
        best = one if better else best
    return best
