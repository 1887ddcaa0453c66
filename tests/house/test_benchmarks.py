"""Each benchmark runs as it says it does, and writes the figures that its issue names."""

import json
import os
import subprocess
import sys

import pytest

NAMED = {
    "step.py": {"cpu_ms_per_step", "steps_per_second"},
    "main_job.py": {"train_seconds", "samples_per_second", "help_seconds"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NAMED))
def test_a_quick_run_writes_its_figures(repository, tmp_path, name):
    target = tmp_path / "figures.json"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, f"benchmarks/{name}", "--quick", "--json", str(target)],
        cwd=repository, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads(target.read_text())["figures"]
    assert {one["name"] for one in figures} >= NAMED[name]
    for one in figures:
        assert set(one) == {"name", "value", "unit", "goal", "better"}
        assert one["better"] in ("lower", "higher")
        assert one["name"] in done.stdout
    if name == "main_job.py":  # the generator plants a signal: no score knows it better than 0.805, a constant has 0.5
        assert 0.6 < next(one["value"] for one in figures if one["name"] == "auc") < 0.81


def test_every_benchmark_is_known_here(repository):
    helpers = {"figures.py", "run_all.py"}
    assert {path.name for path in (repository / "benchmarks").glob("*.py")} - helpers == set(NAMED)
