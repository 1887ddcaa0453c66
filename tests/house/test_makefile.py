"""The Makefile's words: every target is listed, and a machine without a usable Python is told so."""

import os
import re
import shutil
import subprocess

import pytest


def make(*arguments, cwd, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *arguments], cwd=cwd, capture_output=True, text=True, env={**clean, "PYTHON": "", **environment}
    )


def test_help_lists_every_target(repository):
    text = (repository / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^\.PHONY: (\w+)$", text, re.M))
    assert {"help", "train", "test", "lint", "bench", "simulate", "chaos", "lock", "clean"} <= targets
    for arguments in (["help"], []):
        found = make(*arguments, cwd=repository)
        assert found.returncode == 0
        assert set(re.findall(r"^  make (\w+) ", found.stdout, re.M)) == targets


@pytest.mark.parametrize(("word", "seeds"), [("", "0-199"), ("SEEDS=0-19 42", "0-19 42"), ("SEED=7", "7")])
def test_chaos_runs_the_seeds_that_are_asked_for(repository, word, seeds):
    """The words only: `tests/integration/test_chaos_real.py` runs seeds with the same program."""
    found = make("--dry-run", "chaos", *filter(None, [word]), cwd=repository)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1].strip().endswith(f"/python tests/integration/chaos.py {seeds}")


@pytest.mark.parametrize(("word", "seeds"), [("", "0-9999"), ("SEEDS=0-99 7", "0-99 7"), ("SEED=7", "7")])
def test_simulate_runs_the_seeds_that_are_asked_for(repository, word, seeds):
    found = make("--dry-run", "simulate", *filter(None, [word]), cwd=repository)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1].strip().rstrip().endswith(f"-m trimtab.core.simulator {seeds}")


def test_a_machine_without_a_usable_python_is_told_what_to_do(repository, tmp_path):
    shutil.copy(repository / "Makefile", tmp_path)
    found = make("train", "PYTHON=/no/such/python", cwd=tmp_path)
    assert found.returncode != 0
    assert "no Python 3.11, 3.12 or 3.13" in found.stderr and "make PYTHON=" in found.stderr
    assert not (tmp_path / ".venv").exists()


def test_an_unsupported_python_is_not_taken(repository, tmp_path):
    shutil.copy(repository / "Makefile", tmp_path)
    old = tmp_path / "python3.10"
    old.write_text("#!/bin/sh\necho /old/python; exit 1\n")  # as the check ends on an unsupported version
    old.chmod(0o755)
    found = make("train", f"PYTHON={old}", cwd=tmp_path)
    assert found.returncode != 0
    assert not (tmp_path / ".venv").exists()
