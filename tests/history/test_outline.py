"""Outlines: what a warm start reads of a record is the same in its outline, and the outline fits a tag."""

import itertools
import math
import random
from dataclasses import replace

import pytest
from history_records import LARGE, SMALL, START, full, sample
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.domain.job import JobState, PlanChange
from trimtab.core.domain.records import Decision, Observation, Sample
from trimtab.core.errors import BadInput, CorruptCopy
from trimtab.core.history import outline as module
from trimtab.core.history.outline import LONGEST, MOST_WINDOWS, decode_outline, encode_outline, outline
from trimtab.core.optimizer.past_memory import memory_need
from trimtab.core.optimizer.warm_start import final_plan, warm_start


def windows(count, chance):
    def some(value):
        return value * chance.lognormvariate(0, 0.3)

    return tuple(
        Observation(LARGE, some(1e5), some(0.02), some(0.004), 1024, 3.0 * at, some(3.0), 300,
                    {name: some(0.01) for name in ("read", "compute", "exchange")})
        for at in range(count)
    )  # fmt: skip


def test_what_is_long_is_left_out_and_the_rest_is_kept():
    record = full(out_of_memory="ps", reason="because " * 100, samples=(replace(sample(1.0), table_bytes=2_100_000),))
    found = outline(record)
    assert (found.events, found.front, found.warm_start, found.asked) == ((), (), None, ())
    assert found.samples == (Sample(1.0, None, None, (), 10, 2_100_000),)
    assert (found.run_id, found.tags, found.state, found.out_of_memory) == (
        record.run_id, record.tags, record.state, "ps",
    )  # fmt: skip
    assert (found.started_at, found.ended_at) == (record.started_at, record.ended_at)
    assert found.figures == {**record.figures, "table_bytes": 2.1e6, "worker_peak_bytes": 1.07374e9}
    assert len(found.reason) == 200
    assert [change.plan for change in found.plans] == [SMALL, LARGE]
    assert outline(found) == found


def test_windows_are_thinned_evenly_and_the_last_one_stays():
    record = full(observations=windows(500, random.Random(1)))
    times = [one.time_seconds for one in outline(record).observations]
    assert MOST_WINDOWS / 2 < len(times) <= MOST_WINDOWS and times[-1] == 3.0 * 499
    assert len({after - before for before, after in itertools.pairwise(times)}) == 1
    whole = full(observations=windows(MOST_WINDOWS, random.Random(1)))
    for kept, given_ in zip(outline(whole).observations, whole.observations, strict=True):
        assert kept.throughput == pytest.approx(given_.throughput, rel=1e-5)
        assert kept.phase_seconds == pytest.approx(given_.phase_seconds, rel=1e-5)


def test_the_growth_of_the_tables_is_kept_in_steps_and_speaks_like_the_whole_timeline():
    def grown(at):
        done = 10 * (at + 1)
        return replace(sample(float(at)), batches_done=done, table_bytes=int(1e6 + 3e5 * done**0.6))

    tags = {"batch_size": "1024", "rows": str(1024 * 20_000), "embedding_dim": "16"}
    record = full(samples=tuple(map(grown, range(1000))), tags=tags, figures={"batches_expected": 10_000.0})
    found = outline(record)
    assert 8 <= len(found.samples) <= 24 and found.samples[-1].batches_done == 10_000
    assert outline(found) == found
    whole, short = (memory_need([one], {**tags, "rows": str(1024 * 40_000)}).table for one in (record, found))
    assert short.middle == pytest.approx(whole.middle, rel=0.03)


@pytest.mark.parametrize("count", [0, 1, MOST_WINDOWS, 5000])
def test_it_fits_a_tag_and_comes_back(count):
    chance = random.Random(2)
    figures = {f"figure_{at}": chance.lognormvariate(0, 5) for at in range(25)}
    timeline = tuple(replace(sample(1.0 * at), batches_done=at * 7, table_bytes=at * 1001 + 1) for at in range(2000))
    record = full(observations=windows(count, chance), figures=figures, plans=full().plans * 500, samples=timeline)
    text = encode_outline(record)
    assert len(text) <= LONGEST and text.isascii()
    assert decode_outline(text, "x") == outline(record)


def test_where_it_would_not_fit_windows_go_first_and_then_all():
    noise = random.Random(3)
    tags = {f"tag{at}": f"{noise.getrandbits(400):x}" for at in range(30)}
    record = full(observations=windows(MOST_WINDOWS, noise), tags=tags)
    text = encode_outline(record)
    found = decode_outline(text, "x")
    assert len(text) <= LONGEST and found.tags == tags
    assert 0 < len(found.observations) < MOST_WINDOWS and found.observations[-1] == outline(record).observations[-1]
    assert encode_outline(full(tags={f"tag{at}": f"{noise.getrandbits(400):x}" for at in range(200)})) == ""


def test_nothing_that_is_not_finite():
    record = full(figures={"auc": math.nan, "gap": 1.0})
    assert decode_outline(encode_outline(record), "x").figures == {
        "gap": 1.0, "table_bytes": 1.04858e6, "worker_peak_bytes": 1.07374e9,
    }  # fmt: skip


WHOLE = encode_outline(full())


@pytest.mark.parametrize("text", ["", "nonsense", "ü", WHOLE[:200], WHOLE[:-4] + "AAA="])
def test_what_was_cut_is_refused(text):
    with pytest.raises(CorruptCopy, match="x: "):
        decode_outline(text, "x")


def test_a_bomb_and_a_newer_format_are_refused(monkeypatch):
    record = full(run_id="a" * 3_000_000)
    with pytest.raises(CorruptCopy, match="too long"):
        decode_outline(encode_outline(record), "x")
    monkeypatch.setattr(module, "FORMAT", 2)
    newer = encode_outline(full())
    monkeypatch.setattr(module, "FORMAT", 1)
    with pytest.raises(BadInput, match="newer trimtab"):
        decode_outline(newer, "x")


TIMES = st.lists(st.tuples(st.floats(-50, 100), st.sampled_from([SMALL, LARGE])), max_size=6)


@given(TIMES, st.floats(1, 200), st.sampled_from(list(JobState)), st.booleans())
def test_a_warm_start_from_an_outline_is_that_from_its_record(changes, wall, state, measured):
    plans = tuple(PlanChange(time, plan, "why") for time, plan in changes)
    decisions = (Decision(1.0, "grow", LARGE, "why", 1, measured=10.0 if measured else None),)
    record = full(plans=plans, state=state, decisions=decisions, figures={"wall_seconds": wall})
    assert final_plan(outline(record)) == final_plan(record)
    now = START + 1e6
    mine, whole = (warm_start([one], record.tags, now) for one in (outline(record), record))
    assert (mine.plan, mine.note, mine.floors) == (whole.plan, whole.note, whole.floors)
