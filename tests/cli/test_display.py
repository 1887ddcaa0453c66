"""What a person sees: pure texts, plain lines in a log, a line redrawn on a terminal."""

import io
import os
import subprocess
import sys

import pytest

from trimtab.core.cli_display import PLAIN_LINE_SECONDS, Line, TrainDisplay, bar, closing_table, progress_text, say
from trimtab.core.clock import ManualClock
from trimtab.core.controller.progress import Progress
from trimtab.core.domain.plan import Plan, RolePlan

PLAN = Plan(RolePlan(1, 0.5, 2**30), RolePlan(2, 0.75, 2**30))
RESULT = {
    "run_id": "train-7", "state": "finished", "auc": 0.78123, "log_loss": None, "samples_per_second": 51234.5,
    "batches_expected": 12000, "batches_applied": 12000, "batches_duplicated": 0, "batches_skipped": 0,
    "max_worker_gap_seconds": 0.42, "wall_seconds": 61.0, "model": "/jobs/train-7/manifest.json",
    "job_dir": "/jobs/train-7",
}  # fmt: skip


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def progress(done=0, phase="training", loss=0.5, message=""):
    return Progress(done, 1000, 51234.5, loss, PLAN, phase, message)


def test_progress_shows_batches_throughput_loss_plan_and_phase():
    text = progress_text(progress(250, message="worker 1 started"))
    assert text.splitlines() == [
        "training  250 of 1,000 batches  51,234 samples/s  loss 0.5000",
        "plan 2 × 0.75 + 1 × 0.5 (workers × cores + PSs × cores)  worker 1 started",
    ]


@pytest.mark.parametrize("loss", [None, float("nan"), float("inf")])
def test_a_loss_that_is_not_known_is_left_out(loss):
    assert "loss" not in progress_text(progress(loss=loss))


def test_a_log_gets_plain_lines_now_and_then_and_each_new_phase():
    stream, clock = io.StringIO(), ManualClock()
    with TrainDisplay(stream, clock) as display:
        for done in range(0, 1000):
            clock.advance(PLAIN_LINE_SECONDS / 100)
            display.progress(progress(done))
        display.progress(progress(1000, "evaluating"))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 11, "1,000 reports over 50 s: one line each 5 s, and one for the new phase"
    assert "\x1b" not in stream.getvalue()
    assert lines[0].startswith("training  0 of 1,000 batches") and lines[-1].startswith("evaluating  1,000 of 1,000")
    assert all("plan 2 × 0.75 + 1 × 0.5" in line for line in lines)


def test_a_terminal_gets_a_bar_and_is_left_clean():
    stream = Terminal()
    with TrainDisplay(stream, ManualClock()) as display:
        display.progress(progress(500))
    assert "█" in stream.getvalue() and "500 of 1,000" in stream.getvalue()


def test_a_line_with_a_share_says_it_in_percent_in_a_log():
    stream = io.StringIO()
    with Line(stream, ManualClock()) as line:
        line.show("reading rows.csv", 0.25)
    assert stream.getvalue() == "reading rows.csv: 25%\n"


def test_a_bar_is_as_full_as_its_share():
    assert bar(0.0).count("█") == 0 and bar(1.0).count("░") == 0
    assert bar(0.5).count("█") == bar(0.5).count("░")
    assert bar(-1.0) == bar(0.0) and bar(2.0) == bar(1.0)


def test_the_closing_table_has_what_the_run_promised():
    table = closing_table(RESULT)
    found = {line[2:28].strip(): line[28:].strip() for line in table.splitlines()[1:]}
    assert table.splitlines()[0] == "train-7: finished"
    assert found["AUC (held-out rows)"] == "0.7812"
    assert found["log loss (held-out rows)"] == "–", "not known is a dash, never a zero"
    assert found["throughput"] == "51,234 samples/s"
    counts = [found[f"batches {word}"] for word in ("expected", "applied", "repeated", "skipped")]
    assert counts == ["12,000", "12,000", "0", "0"]
    assert found["model"] == "/jobs/train-7/manifest.json"
    assert found["record"] == "/jobs/train-7"


class Gone(io.StringIO):
    """A stream whose reader went away; `tries` to write it."""

    tries = 0

    def __init__(self, error, terminal=False):
        super().__init__()
        self.error, self.terminal = error, terminal

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.tries += 1
        raise self.error


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(5, "EIO"), ValueError("closed")], ids=repr)
def test_a_line_whose_reader_went_away_goes_silent(error, terminal):
    stream = Gone(error, terminal)
    with TrainDisplay(stream, ManualClock()) as display:
        display.progress(progress(1, "training"))
        display.progress(progress(2, "closing"))
    assert stream.tries == 1


def test_no_stderr_at_all_is_a_silent_one(monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    with Line() as line:
        line.show("reading", now=True)
    say("nobody hears it", err=True)


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_pipe_that_nobody_reads_changes_no_exit_code(closed):
    reader, writer = os.pipe()
    os.close(reader)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | {closed: writer}
    arguments = ["train", "--data", "/no/such/rows.csv", "--json", "--epochs", "0"]
    found = subprocess.run([sys.executable, "-m", "trimtab.core.cli", *arguments], **streams)
    os.close(writer)
    assert found.returncode == 2
    assert b"Traceback" not in (found.stderr or b"") and b"Exception" not in (found.stderr or b"")


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_what_the_columns_were_taken_for_stays_on_the_screen(stream):
    out = stream()
    with TrainDisplay(out, ManualClock()) as display:
        display.progress(progress(phase="columns", message="label y; 2 dense (a, b)"))
        display.progress(progress(phase="starting"))
    assert "columns: label y; 2 dense (a, b)\n" in out.getvalue()


def test_what_others_wrote_can_do_nothing_to_a_terminal(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    say("a\ttab\nü \x1b]0;title\x07 \x9b2J")
    assert stream.getvalue() == "a\ttab\nü \\x1b]0;title\\x07 \\x9b2J\n"
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stdout", pipe)
    say("raw \x07")
    assert pipe.getvalue() == "raw \x07\n", "a file has what was written"
