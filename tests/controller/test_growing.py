"""Growth of the tables as the controller counts it, and what it asks the optimizer with."""

from dataclasses import replace

import pytest
from controller_world import new_state, plan_of, settings

from trimtab.core.controller.growing import growth_before, memory_figures, row_bytes, table_memory, watch_growth
from trimtab.core.controller.state import Draft, Phase, Pod
from trimtab.core.data.columns import CategoricalColumn, Columns
from trimtab.core.domain.intervals import IntervalSet
from trimtab.core.domain.model_spec import InitializerSpec, ModelSpec, OptimizerSpec, TableSpec
from trimtab.core.domain.records import PodSample, Sample
from trimtab.core.wire.messages import PsReport

WIDTHS = ((128, 0), (1024, 100))  # a table of keys, and 100 dense blocks
FIXED = 102_400


class Served:
    """A ledger of a job that is served, as far as growth looks at it."""

    served = True

    def __init__(self, batches):
        self.applied = IntervalSet(((0, batches),)) if batches else IntervalSet(())


def keys_after(rows):
    return 40 * rows**0.7


def job(batches=10_000, share=(0.5, 0.5), **more):
    chosen = settings(batches=batches, batch_size=100, widths=WIDTHS, **more)
    return replace(new_state(chosen, plan=plan_of(len(share), 1)), phase=Phase.TRAINING), share


def at(state, share, done):
    """The state when `done` batches are applied."""
    rows = min(done * 100, state.settings.epoch_rows or done * 100)
    pods = {}
    for place, part in enumerate(share):
        keys = int(keys_after(rows) * part)
        held = int(keys * 165 + FIXED * part)
        report = PsReport(f"p{place}", f"unix:p{place}", 1, rows=keys, table_bytes=held,
                          table_rows=(keys, int(100 * part)))  # fmt: skip
        pods[f"ps-{place}"] = Pod(f"ps-{place}", ("ps", place), 0.0, report=report)
    return replace(state, pods=pods, ledger=Served(done))


def trained(state, share, until):
    for done in range(10, until + 1, 10):
        draft = Draft(at(state, share, done), float(done))
        watch_growth(draft)
        state = draft.state
    return at(state, share, until)


def test_a_running_job_knows_what_its_tables_become():
    state = trained(*job(), 2000)
    memory = table_memory(state)
    assert memory.now == pytest.approx(keys_after(200_000) * 165 + FIXED, rel=1e-3)
    assert memory.at_end == pytest.approx(keys_after(1_000_000) * 165 + FIXED, rel=0.03)
    soon = keys_after(400_000) * 165 + FIXED
    assert soon < memory.high < 1.1 * soon, "at most, when twice as many rows have been seen"
    assert memory.skew == pytest.approx(1.0, abs=0.01)


def test_later_epochs_bring_no_keys():
    state = trained(*job(epoch_rows=200_000), 3000)
    memory = table_memory(state)
    assert state.growth[-1].seen <= 200_000
    assert memory.at_end == pytest.approx(memory.now, rel=0.02) and memory.high < 1.05 * memory.now


def test_the_fullest_server_is_what_counts():
    assert table_memory(trained(*job(share=(0.6, 0.2, 0.2)), 500)).skew == pytest.approx(1.8, abs=0.01)
    assert table_memory(trained(*job(share=(1.0,)), 500)).skew == 0.0, "one says nothing of two"


def test_nothing_is_forecast_from_too_little():
    state, share = job()
    early = table_memory(trained(state, share, 10))
    assert early.now > 0 and (early.at_end, early.high) == (0, 0)


@pytest.mark.parametrize("change", [{"moving": True}, {"phase": Phase.STARTING}])
def test_moving_tables_are_not_counted(change):
    state, share = job()
    draft = Draft(replace(at(state, share, 100), **change), 0.0)
    watch_growth(draft)
    assert draft.state.growth == ()


def test_a_server_that_has_not_spoken_is_waited_for():
    state, share = job()
    state = at(state, share, 100)
    pods = {**state.pods, "ps-1": replace(state.pods["ps-1"], report=None)}
    draft = Draft(replace(state, pods=pods), 0.0)
    watch_growth(draft)
    assert draft.state.growth == ()


def test_a_resumed_job_goes_on_with_the_growth_in_its_record():
    state, share = job()
    samples = tuple(
        Sample(float(done), None, None, (), done, int(keys_after(done * 100) * 165 + FIXED))
        for done in range(10, 2001, 10)
    )
    resumed = replace(state, growth=growth_before(samples, state.settings))
    for done in range(2010, 2101, 10):
        draft = Draft(at(resumed, share, done), 0.0)
        watch_growth(draft)
        resumed = draft.state
    memory = table_memory(at(resumed, share, 2100))
    assert memory.at_end == pytest.approx(keys_after(1_000_000) * 165 + FIXED, rel=0.03)


def test_the_record_says_what_the_next_job_needs():
    pod = PodSample("worker-0", "worker", 1.0, 700)
    samples = [Sample(1.0, None, None, (pod,), 5, 1000), Sample(2.0, None, None, (replace(pod, rss_bytes=600),), 9, 0)]
    figures = memory_figures(trained(*job(), 2000), samples)
    assert figures["worker_peak_bytes"] == 700 and figures["table_bytes"] == 1000
    assert figures["table_exponent"] == pytest.approx(0.7, abs=0.01)
    state = job()[0]
    assert memory_figures(state, []) == {}
    slots = {**state.slots, ("ps", 1): replace(state.slots["ps", 1], memory_bytes=2**29)}
    assert memory_figures(replace(state, slots=slots), []) == {"ps_memory_bytes": 2**29}


def test_what_a_row_means_in_memory_follows_from_model_and_columns():
    rule = OptimizerSpec("adagrad")
    widths = (16, 16, 1, 1)
    embeddings = [TableSpec(f"t{n}", dim, "embedding", 0, InitializerSpec(), rule) for n, dim in enumerate(widths)]
    dense = TableSpec("dense", 256, "dense", 40, InitializerSpec(), rule)
    columns = Columns("label", categorical=(CategoricalColumn("a"), CategoricalColumn("b")))
    found = row_bytes(ModelSpec("deepfm", (*embeddings, dense), 10_000, "", ""), columns)
    assert found.values == 2 * 4 * (16 + 1), "each column is looked up in a wide and in a narrow table"
    assert found.key == 128 + 8 + 2 * 37
    assert row_bytes(ModelSpec("m", (dense,), 10_000, "", ""), columns) is None
    assert row_bytes(ModelSpec("m", tuple(embeddings), 0, "", ""), Columns("label")) is None
