"""The laws on the points of the paper's figure, read off the picture: a check on data that nobody here measured.

A curve is one panel and series: one of workers, servers, cores per worker and cores per server varies. Every point is
predicted by a fit of the other points of its curve, whose law is chosen among them alone. RMSLE and mean absolute
percentage error are taken over all points of a panel's curves; the median is over the six panels. What the figure does
not say (cores per pod, batch size) is one of each.
"""

import csv
import math
from statistics import median

import pytest

from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.perf.choosing import choose
from trimtab.core.perf.iteration import Setting, Shapes
from trimtab.core.perf.rows import Row

NAMES = {"n_worker": "workers", "n_ps": "ps", "worker": "workers", "ps": "ps"}


@pytest.fixture(scope="module")
def panels(shared_data):
    found = {}
    with (shared_data / "paper" / "model_fit_points.csv").open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            if line["suspect"] == "1":
                continue
            shape = {"workers": 1.0, "ps": 1.0, "worker_cpu": 1.0, "ps_cpu": 1.0}
            for name, value in ((line["x_name"], line["x"]), (line["series_name"], line["series"])):
                shape[NAMES.get(name, name)] = float(value)
            plan = Plan(
                RolePlan(int(shape["ps"]), shape["ps_cpu"], 0), RolePlan(int(shape["workers"]), shape["worker_cpu"], 0)
            )
            seconds = plan.worker.replicas / float(line["throughput_samples_per_s"])
            row = Row(plan, 1, seconds, None, None, 10.0, 1, 0.0, 10.0, 0.0)
            found.setdefault(line["panel"], {}).setdefault(line["series"], []).append(row)
    return found


def left_out(rows):
    """ln(predicted / measured) of each row's throughput by the law that the others choose."""
    for at, row in enumerate(rows):
        law = choose([*rows[:at], *rows[at + 1 :]], (), Setting()).law
        yield math.log(row.seconds / float(law.seconds(Shapes.of([row.plan]), row.batch_size, Setting())[0]))


def test_points_of_the_papers_curves_are_predicted_from_the_others(panels):
    assert len(panels) == 6 and sum(len(rows) for series in panels.values() for rows in series.values()) == 139
    rmsles, mapes = [], []
    for series in panels.values():
        misses = [miss for rows in series.values() for miss in left_out(rows)]
        rmsles.append(math.sqrt(sum(one**2 for one in misses) / len(misses)))
        mapes.append(sum(abs(math.expm1(one)) for one in misses) / len(misses))
    assert median(rmsles) <= 0.065
    assert median(mapes) <= 0.05
