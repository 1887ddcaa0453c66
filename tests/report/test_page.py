"""The page is complete without scripts, asks nobody for anything, and lets no text out of its place."""

import hashlib
import json
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files

import pytest
import report_records
from hypothesis import HealthCheck, given, settings

from trimtab.core.domain.records import Decision
from trimtab.core.report.data import report_data
from trimtab.core.report.page import page, write_page

HOSTILE = "</script><script>alert(1)</script><!--<script><img src=x onerror=alert(2)>\"' & \x00\x1b[31m"
VOID = {"meta", "link", "br", "img", "input", "path", "rect", "circle", "line"}


class Reader(HTMLParser):
    """Visible text, elements and attributes, and whether every element was closed where it was opened."""

    def __init__(self):
        super().__init__()
        self.text, self.tags, self.attributes, self.open, self.scripts = [], [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif not self.open or self.open[-1] != "style":
            self.text.append(data)


def read(record):
    reader = Reader()
    reader.feed(page(record))
    reader.close()
    assert reader.open == []
    return reader, " ".join(" ".join(reader.text).replace("\u202f", " ").replace("\u00a0", " ").split())


def test_all_is_there_without_scripts():
    job = report_records.grown()
    reader, text = read(job)
    for decision in job.decisions:
        assert decision.action in text and decision.reason in text
        for fact in (*decision.evidence, *(one.why_not for one in decision.considered)):
            assert fact in text
    wanted = (
        "Finished in 2 min 31 s.", "20.4 k", "36.2 k", "AUC 0.7893", "31.0–37.2 k", "inside range",
        "outside range", "12 % under the predicted 41.0 k", "Every batch was applied exactly once.",
        "20261129-201758-a1b2c3", "trimtab explain 20261130-201758-0a1b2c", "512Mi per PS",
        "worker-1-2",
    )  # fmt: skip
    assert [one for one in wanted if one not in text] == []
    for _, speed in ((one.time_seconds, one.throughput) for one in job.samples[::2] if one.throughput):
        assert f"{round(speed):,}".replace(",", " ") in text
    assert reader.tags.count("h1") == 1 and reader.tags.count("article") == 5


def test_nothing_is_asked_of_anybody():
    reader, _ = read(report_records.grown())
    addresses = [value for name, value in reader.attributes if name in ("src", "href", "action", "poster", "data")]
    assert addresses == ["data:,"]
    policy = next(value for name, value in reader.attributes if name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none';")
    assert "@import" not in page(report_records.grown()) and "url(" not in files("trimtab.core.report").joinpath(
        "static", "trimtab.css").read_text(encoding="utf-8")  # fmt: skip


def test_text_of_others_stays_text():
    job = report_records.grown()
    stop = Decision(1.0, "stop", report_records.FIRST, HOSTILE, 1, HOSTILE, evidence=(HOSTILE,))
    tags = dict.fromkeys(job.tags, HOSTILE)
    hostile = replace(job, job_name=HOSTILE, run_id=HOSTILE, reason=HOSTILE, decisions=(stop,), tags=tags,
                      warm_start=replace(job.warm_start, note=HOSTILE, floors=(HOSTILE,)))  # fmt: skip
    quiet, _ = read(job)
    reader, text = read(hostile)
    assert reader.tags.count("script") == quiet.tags.count("script")
    assert "img" not in reader.tags and not [one for one in reader.attributes if one[0].startswith("on")]
    assert "alert(1)" in text and "\x00" not in text and "\x1b" not in text
    inline = next(one for one in reader.scripts if one.startswith("{"))
    assert "<" not in inline
    assert json.loads(inline) == json.loads(json.dumps(report_data(hostile)))


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(report_records.records)
def test_any_record_makes_a_whole_page(record):
    reader, text = read(record)
    assert reader.tags.count("h1") == 1 and reader.tags.count("article") == len(record.decisions)
    assert text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ("No decision yet", "Too short to measure", "Past runs were not looked at.", "Training has begun.")),
        ({"tags": {"mode": "fixed"}}, ("The plan was fixed",)),
        ({"plans": ()}, ("No plan yet",)),
    ],
)
def test_what_is_empty_says_why(change, said):
    _, text = read(replace(report_records.just_begun(), **change))
    for one in said:
        assert one in text
    assert "None" not in text and "nan" not in text


def test_a_file_is_replaced_whole(tmp_path):
    target = tmp_path / "report.html"
    target.write_text("old")
    write_page(report_records.grown(), target)
    assert target.read_text(encoding="utf-8") == page(report_records.grown())
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(OSError):
        write_page(report_records.grown(), tmp_path / "no" / "report.html")


def test_the_vendored_library_is_the_one_that_is_named():
    static = files("trimtab.core.report").joinpath("static")
    stated, name = static.joinpath("SHA256SUMS").read_text(encoding="utf-8").split()
    assert hashlib.sha256(static.joinpath(name).read_bytes()).hexdigest() == stated
    assert "Apache License" in static.joinpath("echarts.LICENSE.txt").read_text(encoding="utf-8")
    notice = static.joinpath("echarts.NOTICE.txt").read_text(encoding="utf-8").split()
    assert " ".join(notice) in page(report_records.just_begun())
