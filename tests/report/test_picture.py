"""The picture has its size, shows what was measured, and leaves the process as it was."""

import struct
import warnings
from dataclasses import replace

import numpy as np
import pytest
import report_records
from hypothesis import HealthCheck, given, settings

from trimtab.core.domain.records import Decision, JobEvent
from trimtab.core.report import picture
from trimtab.core.report.picture import write_picture


def size(path):
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", head[16:24])


def share(path, colour):
    """Share of the pixels that have this colour (#RRGGBB)."""
    from matplotlib.image import imread

    found = np.round(imread(path)[:, :, :3] * 255).astype(int)
    wanted = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    return float((np.abs(found - wanted).max(axis=2) <= 1).mean())


@pytest.mark.parametrize("dark", [False, True])
def test_it_shows_the_measured_line_on_its_ground(tmp_path, dark):
    colours = picture.DARK if dark else picture.LIGHT
    full, bare = tmp_path / "full.png", tmp_path / "bare.png"
    write_picture(report_records.grown(), full, dark=dark)
    write_picture(replace(report_records.grown(), samples=(), decisions=()), bare, dark=dark)
    assert size(full) == size(bare) == (1200, 600)
    assert share(full, colours["surface"]) > 0.5
    assert share(full, colours["measured"]) > 2 * share(bare, colours["measured"]) + 0.001


def test_a_record_without_anything_has_a_picture_too(tmp_path):
    for job in (report_records.just_begun(), replace(report_records.just_begun(), plans=()), report_records.failed()):
        write_picture(job, tmp_path / "p.png")
        assert size(tmp_path / "p.png") == (1200, 600)
    assert [one.name for one in tmp_path.iterdir()] == ["p.png"]


def test_neither_settings_nor_figures_of_the_process_change(tmp_path):
    import matplotlib
    from matplotlib import _pylab_helpers

    with matplotlib.rc_context({"text.usetex": True, "figure.dpi": 31, "savefig.dpi": 17}):
        before = dict(matplotlib.rcParams)
        write_picture(report_records.grown(), tmp_path / "p.png")
        assert dict(matplotlib.rcParams) == before
    assert size(tmp_path / "p.png") == (1200, 600)
    assert _pylab_helpers.Gcf.get_all_fig_managers() == []


def test_names_are_no_formulas_and_strange_signs_no_warning(tmp_path):
    stop = Decision(9.0, "stop", report_records.FIRST, "no $memory_{ left$ \\frac 执")
    job = replace(report_records.failed(), job_name="$\\alpha_{", reason="$x^{ 执 \x1b", decisions=(stop,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_picture(job, tmp_path / "p.png")


def test_a_crowd_of_decisions_and_events_still_makes_a_picture(tmp_path):
    job = report_records.grown()
    many = tuple(Decision(t / 10, "hold" if t % 3 else "grow", report_records.SECOND, "r", t + 1) for t in range(1500))
    events = tuple(JobEvent(t / 2, "pod_lost", "t") for t in range(300))
    write_picture(replace(job, decisions=many, events=events), tmp_path / "p.png")
    assert size(tmp_path / "p.png") == (1200, 600)


@settings(max_examples=8, deadline=None,
          suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large,
                                 HealthCheck.function_scoped_fixture])  # fmt: skip
@given(report_records.records)
def test_any_record_makes_a_picture(tmp_path, record):
    write_picture(record, tmp_path / "p.png")
    assert size(tmp_path / "p.png") == (1200, 600)
