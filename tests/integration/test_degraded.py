"""A real job on a small disk that is filled in mid-run, with its files rotated, a worker killed and the clock set
meanwhile: it trains on, says what is wrong while it lasts, recovers by itself and loses nothing."""

import json
import subprocess
from contextlib import suppress

import pytest
from jobs import WORKER, audit, pods_of

from trimtab.core.clock import SystemClock
from trimtab.core.controller.run import train
from trimtab.core.domain.job import JobSpec, JobState, Mode

DISK_BYTES = 48 << 20
EPOCHS = 60


@pytest.fixture
def disk(tmp_path):
    """A file system of its own, with little room."""
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    if subprocess.run(words, check=False, capture_output=True).returncode != 0:
        pytest.skip("a small disk cannot be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=False, capture_output=True)


class SetClock(SystemClock):
    """The machine's clock, whose wall time somebody sets."""

    shift = 0.0

    def wall(self):
        return super().wall() + self.shift


class Story:
    """Fills the disk, and once nothing leaves room there any more kills a worker and rotates the files; gives the room
    back when batches have been trained since."""

    def __init__(self, disk):
        self._disk, self._job, self.clock = disk, disk / "job", SetClock()
        self._full = 0  # looks in a row that found no room
        self.rotated_at = self.freed_at = None

    def __call__(self, progress):
        done = progress.batches_done
        if progress.phase != "training" or done < 40 or self.freed_at is not None:
            return
        self._full = self._full + 1 if self._fill() == 0 else 0
        if self.rotated_at is None and self._full >= 3:
            self.rotated_at = done
            (self._job / "events.jsonl").rename(self._disk / "events.old")
            pods_of(WORKER)[0].kill()
            self.clock.shift = -3 * 3600.0
        elif self.rotated_at is not None and done > self.rotated_at + 60:
            (self._disk / "filler").unlink()
            self.freed_at = done
            self.clock.shift = 7 * 3600.0

    def _fill(self):
        """Take what room there is; returns its bytes. What is superseded or given up leaves some."""
        taken = 0
        with suppress(OSError), (self._disk / "filler").open("ab", buffering=0) as filler:
            while True:
                taken += filler.write(bytes(4096))
        return taken


@pytest.mark.slow
def test_a_full_disk_and_rotated_files_cost_no_training(sample, disk):
    story = Story(disk)
    spec = JobSpec(
        data=str(sample), model="audit_model:build", epochs=EPOCHS, batch_size=256, workers=2, ps=1, mode=Mode.FIXED,
        validation=0.0, job_dir=str(disk / "job"),
    )  # fmt: skip
    result = train(spec, progress=story, checkpoint_seconds=1.0, clock=story.clock)
    assert result.state is JobState.FINISHED, result.error
    assert story.freed_at is not None
    assert result.batches_applied == result.batches_expected
    audit(result, EPOCHS)
    old = [json.loads(line) for line in (disk / "events.old").read_text().splitlines()]
    new = [json.loads(line) for line in (disk / "job" / "events.jsonl").read_text().splitlines()]
    for figure in ("seconds", "time"):
        told = [one[figure] for one in (*old, *new)]
        assert told == sorted(told), "all of them, in order"
    kinds = [one["kind"] for one in (*old, *new)]
    assert kinds.count("pod_lost") == 1 and kinds[-1] == "end"
    told = [one for one in (*old, *new) if one["kind"] in ("degraded", "recovered")]
    troubles = {(one["kind"], one["trouble"], one["subject"]) for one in told}
    assert ("degraded", "disk", "checkpoints") in troubles
    lasting = {subject for _, _, subject in troubles if subject.startswith("snapshots of")}  # until the next one
    for _, trouble, subject in troubles:
        assert subject in lasting or {("degraded", trouble, subject), ("recovered", trouble, subject)} <= troubles
    record = json.loads((disk / "job" / "record.json").read_text())["record"]
    assert record["state"] == "finished"
    assert record["ended_at"] - record["started_at"] == pytest.approx(result.wall_seconds, abs=60)
