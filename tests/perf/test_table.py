"""Tables: what is read, what is dropped and counted, what is refused, and what predictions say of themselves."""

import math

import numpy as np
import pytest

from trimtab.core.errors import BadInput
from trimtab.core.perf.choosing import log_errors
from trimtab.core.perf.quota import BOTTLENECK, QUOTA, fit_quota_laws
from trimtab.core.perf.table import ABSURD, BLANK, FAR_OFF, NOT_FINITE, NOT_POSITIVE, of, read_shapes, read_table
from trimtab.core.perf.table_fit import MOST_CONFIGURATIONS, NO_RANGE_NOTE, RANGE_NOTE, fit_table

SHAPES = [(w, p, c, s) for w, p in ((1, 1), (2, 1), (4, 1), (4, 2), (8, 2), (8, 4)) for c, s in ((1, 1), (2, 0.5))]


def seconds(w, p, c, s):
    return 0.008 / c + 0.004 * w / (p * s) + 0.002


def csv_of(rows, columns="workers,ps,worker_cpu,ps_cpu,throughput"):
    return "\n".join([columns, *(",".join(str(cell) for cell in row) for row in rows)])


def table(noise=0.0, repeats=1, batch=512):
    draw = np.random.default_rng(3)
    rows = [
        (w, p, c, s, batch, w * batch / (seconds(w, p, c, s) * math.exp(noise * draw.normal())))
        for w, p, c, s in SHAPES
        for _ in range(repeats)
    ]
    return read_table(csv_of(rows, "workers,ps,worker_cpu,ps_cpu,batch_size,throughput"), "t.csv")


class TestReading:
    def test_columns_in_any_order_with_any_separator_and_case(self):
        plain = read_table("workers,ps,throughput,batch_size\n2,1,1000,64\n", "t")
        for text in (
            "\ufeffThroughput; Batch Size ;PS;workers\n1000;64;1;2\n",
            "\n\nbatch-size\tps\tworkers\tthroughput\n\n64\t1\t2\t1000\n\n",
            'ps,note,workers,throughput,batch_size\r\n1,"a, b",2,"1000",64\r\n',
        ):
            found = read_table(text, "t")
            assert found.rows == plain.rows
        row = plain.rows[0]
        assert (row.plan.worker.replicas, row.plan.ps.replicas, row.batch_size) == (2, 1, 64)
        assert (row.plan.worker.cpu, row.plan.ps.cpu) == (1, 1) and row.throughput == pytest.approx(1000)
        assert row.worker_cpu is None and not plain.cpu_known
        assert "no column worker_cpu: taken as 1" in plain.notes

    def test_cpu_seconds_are_known_row_by_row_and_never_zero(self):
        text = "workers,ps,throughput,worker_cpu_seconds,ps_cpu_seconds\n1,1,9,0.1,0.2\n1,2,9,,0.1\n2,1,9,0,nan\n"
        found = read_table(text, "t")
        assert [row.worker_cpu for row in found.rows] == [0.1, None, None]
        assert [row.ps_cpu for row in found.rows] == [0.2, 0.1, None]
        assert found.cpu_known
        assert "worker_cpu_seconds: 1 not above 0: taken as unknown" in found.notes

    def test_what_is_no_evidence_is_counted_by_reason(self):
        text = (
            "workers,ps,worker_cpu,throughput\n1,1,1,10\n1,1,1,\n1,1,1,nan\n1,1,1,inf\n1,1,1,0\n1,1,1,-3\n1,1,,10\n"
            "1,1,1,1e-320\n"
        )
        found = read_table(text, "t")
        assert found.read == 8 and len(found.rows) == 1
        counts = {BLANK: 1, NOT_FINITE: 2, NOT_POSITIVE: 2, ABSURD: 1, "with a blank in worker_cpu": 1}
        assert dict(found.dropped) == counts

    def test_an_outlier_among_repeats_goes_and_its_configuration_stays(self):
        rows = [(1, 1, 100), (1, 1, 104), (1, 1, 97), (1, 1, 20), (2, 1, 20)]
        found = read_table(csv_of(rows, "workers,ps,throughput"), "t")
        assert dict(found.dropped) == {FAR_OFF: 1}
        assert found.lines == (2, 3, 4, 6), "line 5 went; another configuration may be as slow"
        pair = read_table(csv_of([(1, 1, 100), (1, 1, 20)], "workers,ps,throughput"), "t")
        assert len(pair.rows) == 2, "of two nobody knows which is wrong"

    def test_columns_that_are_not_looked_at_are_said(self):
        found = read_table("workers,ps,throughput,host,worker_cpus\n1,1,5,a,2\n", "t")
        assert found.ignored == ("host", "worker_cpus (did you mean worker_cpu?)")

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "t: 'empty': give CSV with a header"),
            ("workers,ps\n1,1\n", "t, line 1: 'throughput': this column is needed"),
            ("workers,ps,throughputs\n1,1,3\n", "did you mean throughputs?"),
            ("workers,ps,ps,throughput\n1,1,1,5\n", "t, line 1: 'ps': the column is there twice"),
            ("workers,ps,throughput\n1,1,5\n1,x,5\n", "t, line 3, column ps: 'x': give a number"),
            ("workers,ps,throughput\n1,1,fast\n", "t, line 2, column throughput: 'fast'"),
            ("workers,ps,throughput\n1.5,1,5\n", "t, line 2, column workers: '1.5': give a whole number"),
            ("workers,ps,throughput\n0,1,5\n", "column workers: '0'"),
            ("workers,ps,throughput\nnan,1,5\n", "column workers: 'nan'"),
            ("workers,ps,throughput\n1,1e300,5\n", "column ps: '1e300'"),
            ("workers,ps,ps_cpu,throughput\n1,1,-2,5\n", "column ps_cpu: '-2': give cores per pod, above 0"),
            ("workers,ps,throughput\n1,1,5,6\n", "t, line 2: '4 values': the header has 3 columns"),
            ("workers;ps;throughput\n1;1;1,5\n", "column throughput: '1,5': give a number, with a point"),
            ("workers,ps,throughput\n1,1,0\n1,1,\n", "2 rows, none usable"),
            ("workers,ps,throughput\n", "0 rows, none usable"),
            ("workers,ps,throughput\n1,1,\0\n", "NUL bytes"),
        ],
    )
    def test_what_cannot_be_read_names_file_line_column_and_value(self, text, says):
        with pytest.raises(BadInput) as refused:
            read_table(text, "t")
        assert says in str(refused.value)


class TestShapesToPredict:
    def test_a_column_with_one_value_in_the_table_may_be_missing(self):
        measured = read_table("workers,ps,worker_cpu,batch_size,throughput\n1,1,1,64,9\n2,1,2,64,9\n", "t")
        (one,) = read_shapes("ps,workers,worker_cpu\n3,2,4\n", "p", measured)
        assert [of(one, column) for column in ("workers", "ps", "worker_cpu", "ps_cpu", "batch_size")] == [
            2,
            3,
            4,
            1,
            64,
        ]
        with pytest.raises(BadInput, match="p, line 1: 'worker_cpu': it is needed: the table has several values of it"):
            read_shapes("ps,workers\n3,2\n", "p", measured)

    @pytest.mark.parametrize(
        ("text", "says"),
        [("workers,ps\n", "p: 'no row'"), ("workers,ps\n1,\n", "p, line 2, column ps: ''"), ("ps\n1\n", "'workers'")],
    )
    def test_blanks_and_nothing_are_refused(self, text, says):
        measured = read_table("workers,ps,throughput\n1,1,9\n", "t")
        with pytest.raises(BadInput) as refused:
            read_shapes(text, "p", measured)
        assert says in str(refused.value)


class TestFitting:
    def test_law_errors_and_predictions_of_a_clear_table(self):
        fitted = fit_table(table())
        assert fitted.law.name == "additive law"
        assert fitted.records[0].law == fitted.law.name and fitted.records[0].rmsle < 0.05
        assert fitted.records[0].configurations == len(fitted.compared) == len(SHAPES)
        assert len({one.law for one in fitted.records}) == len(fitted.records) > 4, "every member has its errors"
        shapes = read_shapes("workers,ps,worker_cpu,ps_cpu\n6,3,1,1\n16,1,1,1\n", "p", fitted.table)
        inside, outside = fitted.predict(shapes)
        assert inside.throughput == pytest.approx(6 * 512 / seconds(6, 3, 1, 1), rel=0.05)
        assert inside.low < inside.throughput < inside.high
        assert inside.outside == () and outside.outside == ("workers",)
        assert fitted.range_note == RANGE_NOTE and "nothing recent" in RANGE_NOTE

    def test_ranges_hold_about_eighty_percent_of_further_rows(self):
        """Over tables with 7 % noise: rows of unseen configurations, noise included."""
        held, count = 0, 0
        for seed in range(4):
            draw = np.random.default_rng(seed)

            def line(w, p, c, s, draw=draw):
                return (w, p, c, s, w / (seconds(w, p, c, s) * math.exp(0.07 * draw.normal())))

            def shape(draw=draw):
                return (int(draw.integers(1, 9)), int(draw.integers(1, 5)), *draw.choice([0.5, 1, 2, 4], 2).tolist())

            fitted = fit_table(read_table(csv_of([line(*shape()) for _ in range(12)]), "t"))
            further = read_table(csv_of([line(*shape()) for _ in range(40)]), "t")
            columns = ("workers", "ps", "worker_cpu", "ps_cpu")
            text = csv_of([[of(row, column) for column in columns] for row in further.rows], ",".join(columns))
            for row, one in zip(further.rows, fitted.predict(read_shapes(text, "p", fitted.table)), strict=True):
                held += one.low <= row.throughput <= one.high
                count += 1
        assert 0.7 <= held / count <= 0.97

    def test_without_anything_to_leave_out_there_is_no_range(self):
        fitted = fit_table(read_table("workers,ps,throughput\n2,1,100\n2,1,104\n", "t"))
        (one,) = fitted.predict(read_shapes("workers,ps\n2,1\n", "p", fitted.table))
        assert one.low is None and one.high is None and fitted.records == ()
        assert fitted.range_note == NO_RANGE_NOTE
        assert one.throughput == pytest.approx(102, rel=0.01)
        assert "seconds per step" in fitted.law.held

    def test_with_cpu_seconds_the_law_rests_on_them(self):
        """Rows of a maximum of both sides: 8 CPU ms of a worker, 5 of the servers."""
        rows = [
            (w, p, c, s, w / max(0.008 / c, w * 0.005 / (p * s)), 0.008, 0.005)
            for w, p in ((1, 1), (2, 1), (4, 1), (4, 2), (3, 3))
            for c, s in ((0.1, 0.3), (0.4, 0.1))
        ]
        columns = "workers,ps,worker_cpu,ps_cpu,throughput,worker_cpu_seconds,ps_cpu_seconds"
        fitted = fit_table(read_table(csv_of(rows, columns), "t"))
        assert fitted.law.name in (QUOTA, BOTTLENECK) and fitted.records[0].rmsle < 0.12
        assert {"additive law", QUOTA, BOTTLENECK} <= {one.law for one in fitted.records}

    def test_repeats_are_one_configuration(self):
        fitted = fit_table(table(noise=0.03, repeats=3))
        assert len(fitted.compared) == len(SHAPES)
        assert {one.repeats for one in fitted.compared} == {3}
        by_line = {one.shape.line: one.measured for one in fitted.compared}
        own = [row.throughput for row in fitted.table.rows[:3]]
        assert by_line[2] == pytest.approx(math.exp(np.mean(np.log(own))))

    def test_a_huge_table_is_thinned_and_it_is_said(self, monkeypatch):
        monkeypatch.setattr("trimtab.core.perf.table_fit.MOST_CONFIGURATIONS", 10)
        fitted = fit_table(table(noise=0.02, repeats=2))
        assert MOST_CONFIGURATIONS > 10 and len(fitted.compared) == 10
        ((reason, count),) = fitted.dropped.items()
        assert count == 2 * (len(SHAPES) - 10) and "beyond the 10" in reason


def test_the_record_is_that_of_refits_which_saw_nothing_of_a_configuration():
    """Of the law in use as well: what small shares cost is fitted anew without each."""
    lines, draw = [], np.random.default_rng(4)
    for w, p in ((1, 1), (2, 1), (2, 2), (4, 2)):
        for c, s in ((0.1, 0.2), (0.2, 0.1), (0.5, 0.4), (1.0, 0.3)):
            worker, ps = 0.02 * (1 + 0.007 / c), 0.006 * (1 + 0.007 / s)
            time = max(worker / c, w * ps / (p * s)) * math.exp(0.03 * draw.normal())
            lines.append((w, p, c, s, w * 512 / time, worker * math.exp(0.03 * draw.normal()), ps, 512))
    columns = "workers,ps,worker_cpu,ps_cpu,throughput,worker_cpu_seconds,ps_cpu_seconds,batch_size"
    found = fit_table(read_table(csv_of(lines, columns), "t"))
    assert found.law.name in (QUOTA, BOTTLENECK)
    misses = []
    for row in found.table.rows:
        laws = fit_quota_laws([one for one in found.table.rows if one != row], (), found.setting)
        misses += log_errors(next(one for one in laws if one.name == found.law.name), [row], found.setting)
    assert found.records[0].law == found.law.name
    assert found.records[0].rmsle == pytest.approx(math.sqrt(np.mean(np.square(misses))), rel=1e-9)


def test_absurd_speeds_are_left_out_and_counted():
    rows = list(zip((1, 2, 4, 4, 8, 8), (1, 1, 1, 2, 2, 4), (1e-200, 1e200) * 3, strict=True))
    with pytest.raises(BadInput, match="6 with a step of less than a picosecond or more"):
        read_table(csv_of(rows, "workers,ps,throughput"), "t")
    found = read_table(csv_of([*rows, (1, 1, 10.0)], "workers,ps,throughput"), "t")
    assert len(found.rows) == 1 and found.dropped == {ABSURD: 6}
