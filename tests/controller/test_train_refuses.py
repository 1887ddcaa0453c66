"""Bad input of `train`: one clear error, before anything is started, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.core.controller.run import train
from trimtab.core.domain.job import JobSpec
from trimtab.core.domain.plan import Limits
from trimtab.core.errors import BadInput

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
