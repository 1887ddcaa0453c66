"""Bad input of `train`: one clear error, before anything is started, and nothing is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.core.controller.run import train
from trimtab.core.domain.job import JobSpec
from trimtab.core.domain.plan import Limits
from trimtab.core.errors import BadInput, Interrupted, JobFailed

HEADER = "label,price,shop\n"


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., JobSpec]:
    """A job on 40 rows of a small CSV file; changes by keyword."""
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "home"))
    rows = "".join(f"{n % 2},{n}.5,s{n % 5}\n" for n in range(40))
    (tmp_path / "rows.csv").write_text(HEADER + rows)
    (tmp_path / "ones.csv").write_text(HEADER + "1,2.5,a\n" * 40)
    (tmp_path / "wide.csv").write_text(HEADER + rows.replace("\n", ",x\n"))
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "result.json").write_text("{}")

    def make(data: str = "rows.csv", **changes: object) -> JobSpec:
        changes.setdefault("batch_size", 8)
        changes = {key: str(tmp_path / value[1:]) if str(value)[:1] == "@" else value for key, value in changes.items()}  # type: ignore[index]
        return JobSpec(str(tmp_path / data), **changes)  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": "none.csv"}, "none.csv"),
        ({"data": "empty.csv"}, "empty.csv"),
        ({"data": "ones.csv"}, "both 0 and 1"),
        ({"data": "wide.csv"}, "wide.csv"),
        ({"batch_size": 41}, "--batch-size"),
        ({"validation": 0.999}, "--validation"),
        ({"validation": "@none.csv"}, "--validation"),
        ({"job_dir": "@used"}, "--job-dir"),
        ({"job_dir": "@rows.csv/below"}, "--job-dir"),
        ({"limits": Limits(cpu=0.1)}, "--max-cpu"),
        ({"limits": Limits(memory_bytes=1000)}, "--max-memory"),
        ({"workers": 3, "limits": Limits(workers=2)}, "--workers"),
        ({"columns": "@none.yaml"}, "none.yaml"),
        ({"init_from": "nothing"}, "--init-from"),
        ({"checkpoint_dir": "@rows.csv/below"}, "--checkpoint-dir"),
        ({"checkpoint_dir": "nosuchstore://bucket/x"}, "--checkpoint-dir"),
    ],
)
def test_bad_input_names_its_field_and_leaves_nothing(
    given: Callable[..., JobSpec], tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        train(given(**changes))
    jobs = tmp_path / "home" / "jobs"
    assert not jobs.exists() or list(jobs.iterdir()) == []
    assert (tmp_path / "used" / "result.json").read_text() == "{}"


def test_what_the_system_refuses_is_one_line_and_leaves_nothing(
    given: Callable[..., JobSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trimtab.core.controller.preparing.prepare", full)
    with pytest.raises(JobFailed, match="No space left on device") as caught:
        train(given())
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "home" / "jobs").iterdir()) == []


@pytest.mark.parametrize(("error", "said"), [(OSError(28, "No space"), JobFailed), (KeyboardInterrupt(), Interrupted)])
def test_a_job_whose_files_cannot_be_written_leaves_nothing(
    given: Callable[..., JobSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, said: type
) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr("trimtab.core.controller.run._prepare", lambda *_: None)
    monkeypatch.setattr("trimtab.core.controller.run._set_up", broken)
    with pytest.raises(said):
        train(given())
    assert list((tmp_path / "home" / "jobs").iterdir()) == []


def test_a_checkpoint_directory_of_a_job_that_was_not_begun_is_removed(
    given: Callable[..., JobSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def full(*_: object, **__: object) -> Path:
        made.extend((tmp_path / "copies").iterdir())
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trimtab.core.controller.preparing.prepare", full)
    with pytest.raises(JobFailed):
        train(given(checkpoint_dir="@copies"))
    assert len(made) == 1, "it is known that it can be written before anything else is done"
    assert list((tmp_path / "copies").iterdir()) == []


def test_a_stop_while_the_job_is_prepared_is_heard(given: Callable[..., JobSpec], tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Interrupted, match="before anything was started"):
        train(given(), stop=stop)
    assert list((tmp_path / "home" / "jobs").iterdir()) == []
