"""How large a job's tables and workers become: keys by the rows seen, bytes by the keys, and what a worker needs.

A table grows by the keys that no row has had before. Over time that is no line, and over all columns it is no power law
either: small vocabularies are full after a minute, ids of users go on for the whole epoch. If each key comes at a rate
of its own, the keys seen after x rows are a sum of terms 1 - exp(-x / t) with non-negative weights, whatever the rates
are (a power law is such a sum, too). So the weights are fitted over a grid of t, smooth from one t to the next, because
what lies beyond the rows seen is known from its neighbours only. Few keys make a noisy curve, and then a plain power
law is better. What each way would have said earlier in this very job decides how much it counts, and how far the truth
may be from all of them.

Rows are shuffled, so the curve bends downwards, and only rows never seen before bring keys: a second epoch brings none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.core.perf.demand import checked_nnls

Floats = npt.NDArray[np.float64]

GROWTH_STEP = 1.03  # between two samples of growth: so many times the rows
LEAST_SAMPLES = 8  # below it, or where they span less than `LEAST_SPAN`, an exponent of the past is taken
LEAST_SPAN = 6.0  # times the rows
USUAL_EXPONENT = 0.73  # keys over rows of click data, as measured; 0 (all seen) to 1 (only new ones) is possible
_FIRST_SHARE = 0.02  # of the rows seen: samples before it say nothing about what comes
_MOST_SAMPLES = 40  # that are fitted
_TIMES = np.geomspace(0.005, 12.0, 24)  # t, over the rows seen so far
_SMOOTH = (0.01, 0.1)  # weight of the second differences between neighbouring terms
_CUTS = (0.5, 0.35)  # of the rows: what would have been said then about now
_LEAST_ERROR = 0.003  # of a logarithm, per e-fold of rows: nothing is surer
_Z80 = 1.2816

LOG_BYTES = 64 << 20  # of a worker's log of gradients, once it is full, whatever the batch is
_WORKER_FLAT = 520 << 20  # bytes of a worker without log and batch: TensorFlow, code, dense weights; as measured
_ROW_FLAT = 16_000  # bytes that a worker needs per row of a batch, beside what follows from its ids; as measured
_ROW_COPIES = 5.0  # times the bytes of a row's embedding values: pulled, cast, their gradients, sums, sent; as measured
_WORKER_ERROR = 0.1  # share by which workers of one batch size were seen to differ
INDEX_BYTES = 37  # of a parameter server's index per key, as measured; forecasts take the job's own where it is known


@dataclass(frozen=True)
class Growth:
    """The tables at one time.

    Attributes:
        seen: rows trained on, each counted once however many epochs there are.
        keys: rows of all growing tables on all parameter servers, weighted where their widths differ.
    """

    seen: float
    keys: float


@dataclass(frozen=True)
class Expected:
    """A forecast; low and high hold the truth in 80 % of cases."""

    middle: float
    low: float
    high: float

    def scaled(self, factor: float, more: float = 0.0) -> Expected:
        """`more` plus `factor` times each of the three."""
        return Expected(*(more + factor * one for one in (self.middle, self.low, self.high)))


def grown(samples: tuple[Growth, ...], new: Growth) -> tuple[Growth, ...]:
    """`samples` with `new`, if it is far enough from the last one; those too old to matter go.

    At most some 130 stay, however long the job is. Keys that became fewer (a copy was loaded) start it anew.
    """
    if new.seen <= 0 or not math.isfinite(new.keys) or new.keys <= 0:
        return samples
    if samples and new.keys < samples[-1].keys:
        samples = tuple(one for one in samples if one.keys <= new.keys and one.seen < new.seen)
    if samples and new.seen < samples[-1].seen * GROWTH_STEP:
        return samples
    return (*(one for one in samples if one.seen >= _FIRST_SHARE * new.seen), new)


class KeyGrowth:
    """Keys over rows seen, fitted to one job's samples.

    Attributes:
        last: the newest sample, from which forecasts start.
        fitted: False: too few samples; the usual exponent is taken, and the range is all that is possible.
        exponent: of the power law that the newest samples lie on.
        law: what forecasts rest on, in words.
    """

    def __init__(self, samples: Sequence[Growth]) -> None:
        """Needs at least one sample, by rows seen."""
        self.last = samples[-1]
        rows, keys = _chosen(samples)
        self.fitted = len(rows) >= LEAST_SAMPLES and rows[-1] >= LEAST_SPAN * rows[0]
        self._rate = 1.0
        self.exponent = USUAL_EXPONENT
        if not self.fitted:
            self.law = f"keys ~ rows^{USUAL_EXPONENT:g}, as usual"
            return
        self._members = [_mixture(rows, keys, smooth) for smooth in _SMOOTH] + [_power(rows, keys)]
        early = [_early(rows, keys, cut) for cut in _CUTS]
        # errors[i, j]: of member j at cut i, in logarithms, per e-fold of rows
        errors = np.array([
            [(math.log(max(one(at), 1e-9)) - math.log(keys[-1] / then)) / math.log(at) for one in members]
            for members, at, then in early
        ])  # fmt: skip
        weights = 1 / (np.mean(errors**2, axis=0) + 1e-4)
        self._weights = weights / weights.sum()
        said = np.sqrt(np.mean((errors @ self._weights) ** 2))
        self._rate = max(_LEAST_ERROR, float(said))
        self.exponent = min(1.0, max(0.0, math.log(self._members[2](math.e))))
        mixture = 1 - self._weights[2]
        self.law = f"keys: rates of keys {mixture:.0%}, power law rows^{self.exponent:.2f} {self._weights[2]:.0%}"

    def at(self, seen: float, most: float = math.inf) -> Expected:
        """Keys after `seen` rows.

        Args:
            seen: rows; before the newest sample: as many keys as there are now.
            most: keys that all rows together have, where that is known.
        """
        keys, times = self.last.keys, seen / self.last.seen
        if times <= 1:
            return Expected(keys, keys, keys)
        most = max(most, keys)
        if not self.fitted:
            return Expected(min(most, keys * times**USUAL_EXPONENT), keys, min(most, keys * times))
        said = np.array([one(times) for one in self._members])
        middle = float(said @ self._weights)
        spread = float(np.sqrt((np.log(said / middle) ** 2) @ self._weights))
        width = _Z80 * math.hypot(self._rate * math.log(times), spread)
        middle = min(middle, times, most / keys)
        low, high = max(1.0, middle * math.exp(-width)), min(middle * math.exp(width), times, most / keys)
        return Expected(keys * middle, keys * low, keys * max(middle, high))


_Member = Callable[[float], float]  # times the rows → times the keys


def _chosen(samples: Sequence[Growth]) -> tuple[Floats, Floats]:
    """Rows and keys of at most `_MOST_SAMPLES` samples, evenly spaced in logarithms."""
    rows = np.array([one.seen for one in samples], float)
    keys = np.array([one.keys for one in samples], float)
    kept = rows >= _FIRST_SHARE * rows[-1]
    rows, keys = rows[kept], keys[kept]
    wanted = np.geomspace(rows[0], rows[-1], _MOST_SAMPLES)
    places = np.unique(np.minimum(np.searchsorted(rows, wanted * (1 - 1e-9)), len(rows) - 1))
    return rows[places], keys[places]


def _early(rows: Floats, keys: Floats, cut: float) -> tuple[list[_Member], float, float]:
    """The members as fitted to the first `cut` of the rows, how many times these rows there are now, their keys."""
    until = max(4, int(np.searchsorted(rows, cut * rows[-1], side="right")))
    rows_then, keys_then = rows[:until], keys[:until]
    members = [_mixture(rows_then, keys_then, smooth) for smooth in _SMOOTH] + [_power(rows_then, keys_then)]
    return members, float(rows[-1] / rows_then[-1]), float(keys_then[-1])


def _mixture(rows: Floats, keys: Floats, smooth: float) -> _Member:
    """Σ w (1 - exp(-x / t)), w ≥ 0, least relative squares; second differences of w / √t cost `smooth` each."""
    terms = -np.expm1(-(rows / rows[-1])[:, None] / _TIMES) * np.sqrt(_TIMES)
    bends = smooth * np.diff(np.eye(len(_TIMES)), 2, axis=0)
    relative = keys / keys[-1]
    found = checked_nnls(
        np.vstack([terms / relative[:, None], bends]), np.append(np.ones(len(rows)), [0.0] * len(bends))
    )
    if found is None:  # no solver got there; the power law stays
        return _power(rows, keys)

    def times_keys(times: float) -> float:
        ends = -np.expm1(-np.array([[1.0], [times]]) / _TIMES) * np.sqrt(_TIMES)
        now, then = ends @ found
        return 1.0 + max(0.0, float(then - now))

    return times_keys


def _power(rows: Floats, keys: Floats) -> _Member:
    """The line through the last tenth of the rows' logarithms."""
    recent = rows >= 0.1 * rows[-1]
    recent[-2:] = True
    exponent = max(0.0, float(np.polyfit(np.log(rows[recent]), np.log(keys[recent]), 1)[0]))
    return lambda times: float(times**exponent)


def skew(nbytes: Sequence[float]) -> float:
    """The fullest parameter server's bytes over the mean of all; 0 where there are none."""
    total = sum(nbytes)
    return max(nbytes) * len(nbytes) / total if total > 0 else 0.0


def worker_bytes(batch_size: int, value_bytes: float, past: Sequence[tuple[int, int]] = ()) -> Expected:
    """Resident bytes of one worker: a flat part, the log of gradients in it, and a part that grows with the batch.

    Args:
        batch_size: rows.
        value_bytes: of the embedding values that one row looks up: ids times their dimension times 4.
        past: batch sizes and peak resident bytes of workers whose log was full, of the same model; the newest last.
    """
    known = [(float(batch), float(rss)) for batch, rss in past if batch > 0 and rss > 0]
    slope, flat = _ROW_FLAT + _ROW_COPIES * value_bytes, float(_WORKER_FLAT + LOG_BYTES)
    if known:
        sizes, peaks = np.array(known).T
        if sizes.max() >= 2 * sizes.min():  # one size says nothing about others
            slope = max(0.0, float(np.polyfit(sizes, peaks, 1)[0]))
        flat = max(0.0, float(np.max(peaks - slope * sizes)))
    middle = flat + slope * batch_size
    return Expected(middle, middle * (1 - _WORKER_ERROR), middle * (1 + _WORKER_ERROR))
