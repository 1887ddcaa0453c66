"""The job's secret is nowhere but in its own file: not in any process's arguments or environment, not on any disk.

A real job that loses a worker and a parameter server on the way is looked through while it runs and afterwards: every
process below this one, every file of the job, of the private directory, of the history and of the home.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import stat
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from jobs import PS, WORKER, pods_of

from trimtab.core.controller.run import train
from trimtab.core.domain.job import JobSpec, JobState
from trimtab.core.wire.secrets import SECRET_BYTES, read_secret


def forms_of(secret: bytes) -> list[bytes]:
    """How a secret might be written down: as it is, as digits, in base64 at any of its three alignments."""
    forms = [secret, secret.hex().encode(), secret.hex().upper().encode(), repr(secret).encode()[2:-1]]
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for shift in range(3):
            whole = encode(bytes(shift) + secret)
            forms.append(whole[4 if shift else 0 : len(whole) // 4 * 4 - 4])  # what neighbours do not change
    numbers = ", ".join(str(byte) for byte in secret).encode()
    return [*forms, numbers, numbers.replace(b" ", b"")]


def holders(secret: bytes, roots: list[Path], but: Path | None = None) -> list[str]:
    """Files below `roots` in which the secret stands in any form."""
    forms, found = forms_of(secret), []
    for path in {one for root in roots for one in root.rglob("*")}:
        with suppress(OSError):  # gone meanwhile
            if path != but and path.is_file() and not path.is_symlink():
                data = path.read_bytes()
                found += [str(path)] if any(form in data for form in forms) else []
    return found


def processes_that_show(secret: bytes) -> list[str]:
    """Processes below this one (and this one) that have it in their arguments or environment."""
    forms, found = forms_of(secret), []
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        for name in ("cmdline", "environ", "comm"):
            with suppress(OSError):
                data = Path(f"/proc/{process.pid}/{name}").read_bytes()
                found += [f"{process.pid} {name}"] if any(form in data for form in forms) else []
    return found


def test_a_secret_is_found_in_every_form_that_it_may_take(tmp_path: Path) -> None:
    """Else the test below could not fail."""
    secret = bytes(range(200, 200 + SECRET_BYTES))
    texts = [secret, secret.hex().encode(), base64.b64encode(b"a" + secret + b"b"), str(list(secret)).encode(),
             base64.urlsafe_b64encode(b"ab" + secret), str({"secret": secret}).encode()]  # fmt: skip
    for number, text in enumerate(texts):
        (tmp_path / str(number)).write_bytes(b"before " + text + b" after")
    (tmp_path / "other").write_bytes(os.urandom(10_000))
    assert sorted(holders(secret, [tmp_path])) == sorted(str(tmp_path / str(n)) for n in range(len(texts)))


@pytest.mark.slow
def test_a_jobs_secret_stands_nowhere_and_goes_with_it(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRIMTAB_HISTORY")  # what is remembered is looked at, too
    secrets: list[tuple[bytes, Path]] = []
    shown: list[str] = []
    modes: set[tuple[int, int]] = set()
    killed: list[str] = []
    looked = [0, -1]
    home, job_dir = Path(os.environ["TRIMTAB_HOME"]), tmp_path / "job"

    def look(now: object) -> None:
        if now.phase != "training":  # type: ignore[attr-defined]
            return
        if not secrets:
            config = json.loads(next((job_dir / "pods").glob("*.json")).read_bytes())
            secrets.append((read_secret(config["secret_file"]), Path(config["secret_file"])))
        secret, file = secrets[-1]
        done = now.batches_done  # type: ignore[attr-defined]
        if done // 20 > looked[1]:  # by what is done, not by time
            looked[:] = looked[0] + 1, done // 20
            modes.add((stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)))
            shown.extend(processes_that_show(secret))
            shown.extend(holders(secret, [job_dir, file.parent], but=file))
        for module, after in ((WORKER, 30), (PS, 80)):
            if done > after and module not in killed:
                for victim in pods_of(module)[:1]:
                    victim.send_signal(signal.SIGKILL)
                    killed.append(module)

    spec = JobSpec(
        str(sample), model="audit_model:build", epochs=16, batch_size=128, workers=1, ps=2, job_dir=str(job_dir), seed=3
    )
    result = train(spec, progress=look, checkpoint_seconds=1.0)
    assert result.state is JobState.FINISHED, result.error
    assert killed == [WORKER, PS]
    assert looked[0] >= 5
    ((secret, file),) = secrets
    assert shown == []
    assert modes == {(0o600, 0o700)}
    assert not file.parent.exists(), "the private directory goes with the job"
    assert holders(secret, [job_dir, tmp_path, home]) == []
    logs = sorted((job_dir / "logs").glob("*.log"))
    assert len(logs) >= 5 and any(log.stat().st_size for log in logs), "there was something to look at"
    assert processes_that_show(secret) == []
