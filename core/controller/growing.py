"""How large the tables become: samples of their growth while a job trains, and what a question says about memory.

Keys are counted only while every vshard is served by one parameter server and nothing moves, because a move holds rows
twice. The memory of a parameter server is what the fullest one needs, not the mean (case 11): traffic decides where
vshards lie, so some hold more rows than others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.core.controller.settings import Settings
from trimtab.core.controller.state import Draft, Phase, State
from trimtab.core.data.columns import Columns
from trimtab.core.domain.model_spec import ModelSpec
from trimtab.core.domain.records import Sample
from trimtab.core.domain.values import replace
from trimtab.core.optimizer.past_memory import (
    EXPONENT_FIGURE,
    MEMORY_FIGURES,
    TABLE_FIGURE,
    WORKER_FIGURE,
    RowBytes,
    peak_worker,
)
from trimtab.core.perf.memory import INDEX_BYTES, Growth, grown, skew
from trimtab.core.ps.layout import layout_of
from trimtab.core.wire.messages import PsReport

SURE_TIMES = 2.0  # times the rows seen: how far the high end of a forecast decides, not the middle alone


@dataclass(frozen=True)
class TableMemory:
    """What a question says of the tables; see `Question`."""

    now: int
    at_end: int = 0
    high: int = 0
    skew: float = 0.0


def watch_growth(draft: Draft) -> None:
    """One more sample of the tables' growth, if they can be counted and have trained on enough more rows."""
    state = draft.state
    if state.phase is not Phase.TRAINING or not state.ledger.served or state.moving or state.tenancies:
        return
    reports = [pod.report for pod in state.servers()]
    if not reports or any(one is None for one in reports):
        return
    keys = sum(_keys(state.settings, one) for one in reports if one is not None)
    seen = _rows(state.settings, len(state.ledger.applied))
    growth = grown(state.growth, Growth(seen, keys))
    if growth is not state.growth:
        draft.state = replace(state, growth=growth)


def growth_before(samples: Sequence[Sample], settings: Settings) -> tuple[Growth, ...]:
    """Growth as an earlier controller's timeline tells it: bytes instead of keys, and these from the usual index."""
    found: tuple[Growth, ...] = ()
    each = _widest(settings) + INDEX_BYTES
    for one in samples:
        keys = (one.table_bytes - _fixed(settings)) / each
        found = grown(found, Growth(_rows(settings, one.batches_done), keys))
    return found


def table_memory(state: State) -> TableMemory:
    """Bytes of all tables now, at the job's end, and at most soon; 0 where they cannot be forecast."""
    settings = state.settings
    reports = [pod.report for pod in state.servers() if pod.report is not None]
    now = sum(one.table_bytes for one in reports)
    uneven = skew([one.table_bytes for one in reports]) if len(reports) > 1 and not state.moving else 0.0
    growing, fixed = sum(_keys(settings, one) for one in reports), _fixed(settings)
    if not state.growth or growing <= 0 or now <= fixed:
        return TableMemory(now, skew=uneven)
    fit, end = state.key_growth, _rows(settings, settings.batches)
    if not fit.fitted:
        return TableMemory(now, skew=uneven)
    each = (now - fixed) / growing  # bytes per key with its share of the index, as measured
    at_end = fit.at(end).scaled(each, fixed)
    seen = _rows(settings, len(state.ledger.applied))
    soon = fit.at(min(end, SURE_TIMES * seen)).scaled(each, fixed)
    return TableMemory(now, int(at_end.middle), int(soon.high), uneven)


def row_bytes(model: ModelSpec, columns: Columns) -> RowBytes | None:
    """What a row of these columns means in memory, if each table is looked up by as many ids as columns have.

    None for data or models without ids.
    """
    tables = [one for one in model.tables if not one.rows]
    single, many = len(columns.single), [one.length for one in columns.multi]
    if not tables or not single + len(many):
        return None
    share = 1 / (single + len(many))
    values = sum(4 * one.dim for one in tables) * (single + sum(many)) * share
    return RowBytes(values, sum(4 * layout_of(one).stride + INDEX_BYTES for one in tables) * share)


def memory_figures(state: State, samples: Sequence[Sample]) -> dict[str, float]:
    """Figures of the job's record from which the next job's memory is forecast."""
    found = {WORKER_FIGURE: float(peak_worker(samples))}
    found[TABLE_FIGURE] = float(next((one.table_bytes for one in reversed(samples) if one.table_bytes), 0))
    if state.growth and (fit := state.key_growth).fitted:
        found[EXPONENT_FIGURE] = fit.exponent
    for slot in state.slots.values():  # only of places that were given more than the plan says
        name = MEMORY_FIGURES[slot.role]
        found[name] = max(found.get(name, 0.0), float(slot.memory_bytes))
    return {name: value for name, value in found.items() if value > 0}


def _rows(settings: Settings, batches: int) -> float:
    """Rows that so many batches have trained on, each counted once: in a second epoch no row is new."""
    rows = float(batches * settings.batch_size)
    return min(rows, float(settings.epoch_rows)) if settings.epoch_rows else rows


def _keys(settings: Settings, report: PsReport) -> float:
    """Rows of the tables that grow, weighted by their bytes (1 the widest)."""
    if not settings.widths or len(report.table_rows) != len(settings.widths):
        return float(report.rows)
    pairs = zip(report.table_rows, settings.widths, strict=True)
    return sum(rows * width for rows, (width, limit) in pairs if not limit) / _widest(settings)


def _widest(settings: Settings) -> int:
    return max((width for width, limit in settings.widths if not limit), default=1)


def _fixed(settings: Settings) -> float:
    """Bytes of the tables that do not grow."""
    return float(sum(width * rows for width, rows in settings.widths))
