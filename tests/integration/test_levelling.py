"""Loads are levelled on real processes: traffic that is told moves real vshards, nothing is lost, and it is shown."""

import json
from dataclasses import replace
from functools import partial

import pytest
from jobs import audit, pods_of

from trimtab.core import cli
from trimtab.core.controller import running
from trimtab.core.controller.run import train
from trimtab.core.controller.spreading import BalanceRules
from trimtab.core.domain.job import JobSpec, JobState, Mode
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.history.record_file import read_record
from trimtab.core.wire.control import PsStub
from trimtab.core.wire.messages import from_bitmap

RULES = BalanceRules(seconds=0.5, sample_seconds=0.1)


class HotServers:
    """A stub whose answers tell five times the traffic for even vshards, which the first of two servers gets first."""

    def __init__(self, *arguments):
        self._stub = PsStub(*arguments)

    def sync(self, request, timeout_seconds):
        report = self._stub.sync(request, timeout_seconds)
        served = {vshard for told in report.served for vshard in from_bitmap(told.vshards)}
        traffic = tuple((1e6 if v % 2 else 5e6) * (v in served) for v in range(VSHARDS))
        rows = tuple(int(v in served) for v in range(VSHARDS))
        return replace(report, vshard_traffic=traffic, vshard_rows=rows)

    def close(self):
        self._stub.close()


@pytest.mark.slow
def test_a_hot_server_gives_vshards_away_while_it_trains(sample, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(running, "PsStub", HotServers)
    monkeypatch.setattr(running, "Settings", partial(running.Settings, balance=RULES))
    spec = JobSpec(
        str(sample), model="audit_model:build", epochs=20, batch_size=64, job_dir=str(tmp_path / "job"), seed=3,
        workers=1, ps=2, mode=Mode.FIXED,
    )  # fmt: skip
    seen = []

    def look(progress):
        file = tmp_path / "job" / "ps.json"
        if progress.phase == "training" and file.exists():
            seen.append(json.loads(file.read_text())["state"])

    result = train(spec, progress=look)
    assert result.state is JobState.FINISHED, result.error
    assert result.batches_expected == result.batches_applied == audit(result, epochs=20).batches
    assert result.batches_duplicated == result.resends_dropped == 0
    assert pods_of("trimtab.core") == []
    events = read_record(tmp_path / "job" / "record.json").events
    (why,) = [event.text for event in events if event.kind == "balance"]
    assert why.startswith("PS 0 takes 83% of the traffic: ")
    moves = [event.text for event in events if event.kind == "routing"]
    assert len(moves) == 2 and f"of {VSHARDS} vshards move to ps-" in moves[1]
    assert set(seen) == {"running"}
    with pytest.raises(SystemExit) as left:
        cli.main(["ps", "stats", str(tmp_path / "job"), "--json"])
    assert left.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["live"], told["moving"]) == ("finished", False, False)
    first, second = told["servers"]
    assert first["vshards"] + second["vshards"] == VSHARDS and first["vshards"] != second["vshards"]
    # Rows count as much, and each vshard has as many: who has more traffic has fewer vshards.
    assert 0.6 < first["traffic_share"] < 0.65 and told["load_ratio"] < 1.05
    assert first["pushes"] and first["rows"] and len(told["hottest"]) == 10
