"""`trimtab ps stats`: what the controller wrote, live and afterwards, as tables and as JSON."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from trimtab.core import cli, cli_ps
from trimtab.core.clock import ManualClock
from trimtab.core.controller.document import Document
from trimtab.core.controller.lost import close_lost, disown, own
from trimtab.core.controller.ps_stats import FILE, PsStatsFile, ps_stats
from trimtab.core.controller.settings import Settings
from trimtab.core.controller.spreading import Balance
from trimtab.core.controller.state import Phase, Pod, State, first_state
from trimtab.core.domain.job import JobSpec, JobState
from trimtab.core.domain.model_spec import VSHARDS, InitializerSpec, ModelSpec, OptimizerSpec, TableSpec
from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.ps.manifest import Manifest, ManifestRef
from trimtab.core.wire.messages import CopyEntry, CopySet, PsReport, Routing

RUN = "20261130-201758-0a1b2c"
MODEL = ModelSpec(
    "dlrm",
    (
        TableSpec("users", 16, "embedding", 0, InitializerSpec(), OptimizerSpec("adagrad")),
        TableSpec("dense", 256, "dense", 40, InitializerSpec(), OptimizerSpec("adam")),
    ),
    10_000, "", "f",
)  # fmt: skip


def report(place: int, **changes: object) -> PsReport:
    """The vshards of one half: number v has v + 1 rows, and v kilobytes of traffic a second."""
    mine = [vshard % 2 == place for vshard in range(VSHARDS)]
    plain = PsReport(
        f"p{place}", f"unix:p{place}", 3, rows=1000 + place, table_bytes=3 << 20, pushes=70 + place, rss_bytes=5 << 20,
        table_rows=(990, 10 + place), refused=2 * place, snapshots=4, snapshot_seconds=1.25,
        vshard_rows=tuple((vshard + 1) * mine[vshard] for vshard in range(VSHARDS)),
        vshard_traffic=tuple(1000.0 * vshard * mine[vshard] for vshard in range(VSHARDS)),
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


def state(*reports: PsReport, phase: Phase = Phase.TRAINING) -> State:
    plan = Plan(RolePlan(2, 0.5, 2**28), RolePlan(1, 1.0, 2**30))
    routing = Routing(7, ("p0", "p1"), ("unix:p0", "unix:p1"), tuple(v % 2 for v in range(VSHARDS)), (7,) * VSHARDS)
    document = Document(RUN, JobSpec("data.csv"), plan, ManifestRef("m", "0"), 1, routing)
    entries = tuple(CopyEntry(v, 0, "initial", 0, 0, "", 0) for v in range(VSHARDS))
    manifest = Manifest(1, RUN, "model", VSHARDS, entries, (CopySet((), ()),))
    pods = {
        f"ps-{one.process[1:]}-t1-g1": Pod(
            f"ps-{one.process[1:]}-t1-g1", ("ps", int(one.process[1:])), 0.0, process=one.process, report=one
        )
        for one in reports
    }  # fmt: skip
    return replace(first_state(Settings(RUN, 100, 0, "copies"), document, manifest), pods=pods, phase=phase)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a job that has not begun to train."""
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    folder = tmp_path / "jobs" / RUN
    folder.mkdir(parents=True)
    return folder


def trimtab(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(["ps", "stats", *map(str, arguments)])
    return int(left.value.code or 0)


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert trimtab(*arguments) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def cells(text: str, start: str) -> list[str]:
    """The cells of the line that begins so."""
    (line,) = [line for line in text.splitlines() if line.split()[:1] == [start]]
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_what_is_told_of_servers_tables_and_vshards():
    reports = (report(0), report(1))
    traffic = {one.process: one.vshard_traffic for one in reports}
    found = ps_stats(RUN, state(*reports), MODEL, traffic, 5.0, ended=False)
    zero, one = found["servers"]  # type: ignore[misc]
    assert (zero["pod"], zero["vshards"], zero["rows"], zero["bytes"], zero["pushes"]) == (
        "ps-0-t1-g1", 256, 1000, 3 << 20, 70,
    )  # fmt: skip
    total = 1000.0 * sum(range(VSHARDS))
    assert found["traffic_bytes_per_second"] == total
    assert one["traffic_bytes_per_second"] == 1000.0 * sum(range(1, VSHARDS, 2))
    assert zero["traffic_share"] + one["traffic_share"] == pytest.approx(1)
    users, dense = found["tables"]  # type: ignore[misc]
    # Adagrad: value and one slot are 32 floats; Adam: 3 × 256 and a counter, in whole cache lines.
    assert (users["rows"], users["bytes"]) == (1980, 1980 * 128) and (dense["rows"], dense["bytes"]) == (21, 21 * 3136)
    assert dense["servers"] == [
        {"pod": "ps-0-t1-g1", "rows": 10, "bytes": 31360}, {"pod": "ps-1-t1-g1", "rows": 11, "bytes": 34496},
    ]  # fmt: skip
    hottest = found["hottest"]
    assert [one["vshard"] for one in hottest] == list(range(511, 501, -1))  # type: ignore[attr-defined]
    first = hottest[0]  # type: ignore[index]
    assert (first["pod"], first["rows"], first["traffic_share"]) == ("ps-1-t1-g1", 512, pytest.approx(511_000 / total))


def test_a_process_that_routing_does_not_name_owns_nothing():
    reports = (report(0), report(1, process="p1b"))
    now = state(report(0))
    late = replace(next(iter(state(report(1)).pods.values())), process="p1b", report=reports[1])
    now = replace(now, pods={**now.pods, late.name: late})
    found = ps_stats(RUN, now, MODEL, {one.process: one.vshard_traffic for one in reports}, 5.0, ended=False)
    assert [one["vshards"] for one in found["servers"]] == [256, 0]  # type: ignore[attr-defined]
    assert {one["pod"] for one in found["hottest"]} == {"ps-0-t1-g1"}  # type: ignore[attr-defined]


def test_nothing_that_is_not_finite_is_written(job: Path):
    broken = report(0, vshard_traffic=(float("nan"), float("inf"), *(1.0,) * 510), snapshot_seconds=float("inf"))
    file = PsStatsFile(job, RUN, MODEL, ManualClock())
    file.watch(state(broken), 0.0)
    found = json.loads((job / FILE).read_text(), parse_constant=lambda word: pytest.fail(word))
    assert found["servers"][0]["traffic_bytes_per_second"] == 255.0


def test_the_file_follows_the_job_every_two_seconds_and_keeps_the_last_traffic(job: Path):
    file = PsStatsFile(job, RUN, MODEL, ManualClock())
    file.watch(state(report(0)), 0.0)
    file.watch(state(report(0), report(1)), 1.9)
    assert len(json.loads((job / FILE).read_text())["servers"]) == 1
    file.watch(state(report(0), report(1)), 2.0)
    seen = json.loads((job / FILE).read_text())
    assert len(seen["servers"]) == 2 and seen["state"] == "running"
    quiet = [report(place, vshard_traffic=(0.0,) * VSHARDS) for place in (0, 1)]
    file.watch(state(*quiet, phase=Phase.CLOSING), 4.0)
    over = state(*quiet, phase=Phase.OVER)
    file.finish(replace(over, document=replace(over.document, state=JobState.FINISHED)))
    last = json.loads((job / FILE).read_text())
    assert last["state"] == "finished" and last["hottest"] == seen["hottest"]
    assert sorted(one.name for one in job.iterdir()) == [FILE]


def test_a_disk_without_room_ends_nothing(tmp_path: Path):
    file = PsStatsFile(tmp_path / "gone", RUN, MODEL, ManualClock())
    file.watch(state(report(0)), 0.0)
    file.finish(state(report(0)))
    assert not (tmp_path / "gone").exists()


def test_a_running_job_is_shown_by_id_by_its_beginning_and_by_path(job: Path, capsys: pytest.CaptureFixture[str]):
    balance = Balance(rows=(1.0,) * VSHARDS, traffic=(1.0,) * VSHARDS)
    PsStatsFile(job, RUN, MODEL, ManualClock()).watch(replace(state(report(0), report(1)), balance=balance), 0.0)
    own(job)
    try:
        by_id, by_path = shown(capsys, RUN), shown(capsys, job)
        by_beginning = shown(capsys, RUN[:12])
        live = json.loads(shown(capsys, RUN, "--json"))["live"]
    finally:
        disown(job)
    assert live is True
    assert by_id.splitlines()[1:] == by_path.splitlines()[1:] == by_beginning.splitlines()[1:]
    assert by_id.startswith(f"{RUN}: running (training), as of ")
    assert "fullest PS: 1.00 × the mean load" in by_id
    zero = cells(by_id, "ps-0-t1-g1")
    assert zero == ["ps-0-t1-g1", "256", "1,000", "3.0 MiB", "5.0 MiB", "70", "65.28", "49.9%", "4 (1.2 s)", "0"]
    assert cells(by_id, "users") == ["users", "embedding", "16", "1,980", "247.5 KiB", "990", "990"]
    assert cells(by_id, "511") == ["511", "ps-1-t1-g1", "0.51", "0.4%", "512"]
    assert "\x1b" not in by_id, "plain where it is piped"


def test_a_job_that_has_ended_says_so(job: Path, capsys: pytest.CaptureFixture[str]):
    file = PsStatsFile(job, RUN, MODEL, ManualClock())
    over = state(report(0, snapshot_error="no room"), report(1), phase=Phase.OVER)
    file.finish(replace(over, document=replace(over.document, state=JobState.FINISHED)))
    text = shown(capsys, RUN)
    assert text.startswith(f"{RUN}: finished ") and "this is how it ended" in text
    assert "Hottest vshards: no traffic was measured" in text
    assert "Snapshots that failed" in text and "\nps-0-t1-g1  no room\n" in text
    assert json.loads(shown(capsys, RUN, "--json"))["live"] is False


def test_a_job_whose_controller_died_says_so(job: Path, capsys: pytest.CaptureFixture[str]):
    PsStatsFile(job, RUN, MODEL, ManualClock()).watch(state(report(0)), 0.0)
    own(job)
    told = json.loads((job / "controller.json").read_text())
    disown(job)
    (job / "controller.json").write_text(json.dumps({**told, "pid": os.getpid(), "began": told["began"] - 100}))
    assert "its controller ended without a word" in shown(capsys, RUN)
    assert json.loads(shown(capsys, RUN, "--json"))["live"] is False
    close_lost(job.parent, job.parent / "outbox")
    assert not (job / "controller.json").exists()
    assert "its controller ended without a word" in shown(capsys, RUN), "also when somebody has noticed"
    assert json.loads(shown(capsys, RUN, "--json"))["live"] is False


def test_before_the_first_report(job: Path, capsys: pytest.CaptureFixture[str]):
    PsStatsFile(job, RUN, MODEL, ManualClock()).watch(state(phase=Phase.STARTING), 0.0)
    assert "no parameter server has reported yet" in shown(capsys, RUN)


def test_a_terminal_gets_lines(job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    PsStatsFile(job, RUN, MODEL, ManualClock()).watch(state(report(0), report(1)), 0.0)
    monkeypatch.setattr(cli_ps.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    text = shown(capsys, RUN)
    assert "│" in text and "ps-1-t1-g1" in text


@pytest.mark.parametrize("name", ["", "20991231", "no/such/place"])
def test_an_unknown_job_is_bad_input(job: Path, capsys: pytest.CaptureFixture[str], name: str):
    assert trimtab(name) == cli.BAD_INPUT
    assert "JOB" in capsys.readouterr().err


def test_what_cannot_be_shown_says_why(job: Path, capsys: pytest.CaptureFixture[str]):
    assert trimtab(RUN) == cli.BAD_INPUT
    assert "has not begun to train" in capsys.readouterr().err
    (job / FILE).write_text('{"schema": "trimtab.ps/9"}')
    assert trimtab(RUN) == cli.BAD_INPUT
    assert "trimtab.ps/9" in capsys.readouterr().err
    (job / FILE).write_text('{"schema"')
    assert trimtab(RUN) == cli.FAILED
    assert "is no JSON" in capsys.readouterr().err


def test_the_beginning_of_two_runs_names_both(job: Path, capsys: pytest.CaptureFixture[str]):
    (job.parent / f"{RUN[:-1]}f").mkdir()
    assert trimtab(RUN[:15]) == cli.BAD_INPUT
    said = capsys.readouterr().err
    assert RUN in said and f"{RUN[:-1]}f" in said
