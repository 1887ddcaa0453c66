"""The import contracts hold, and they would notice: each kind of break is tried on a copy of the house."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BREAKS = {
    "A room imports only from lower floors": ("core/perf/broken.py", "from trimtab.core.optimizer import front"),
    "Only the command line imports the package's front door": ("core/report/broken.py", "from trimtab import JobSpec"),
    "Training's rooms know nothing": ("core/cluster/broken.py", "import trimtab.core.perf.iteration"),
    "No chain of imports leads": ("core/history/broken.py", "import trimtab.core.report.broken\nimport keras"),
    "TensorFlow and Keras": ("core/data/broken.py", "import tensorflow"),
    "gRPC and raw sockets": ("core/controller/broken.py", "import socket"),
    "Nothing is pickled": ("core/data/broken.py", "import pickle"),
    "Processes start each other by command line": ("core/cluster/broken.py", "from trimtab.core.ps import main"),
    "The controller's decisions": ("core/controller/holds.py", "import time"),
    "numba is imported": ("core/training/broken.py", "import numba"),
    "kubernetes is imported": ("core/cluster/broken.py", "import kubernetes"),
    "mlflow is imported": ("core/report/broken.py", "import mlflow"),
    "pymoo is imported": ("core/optimizer/broken.py", "import pymoo"),
    "airflow is imported": ("kfp_components/broken.py", "import airflow"),
    "kfp is imported": ("core/brain/broken.py", "import kfp"),
}


@pytest.fixture(scope="module")
def house(repository, tmp_path_factory):
    """A copy of the sources that may be broken."""
    copy = tmp_path_factory.mktemp("house")
    for name in ("core", "kfp_components", "airflow_plugin", "pipelines", "src"):
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(repository / name, copy / name, symlinks=True, ignore=ignore)
    shutil.copy(repository / ".importlinter", copy)
    return copy


def contracts(house):
    """Contract name → KEPT | BROKEN."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    found = subprocess.run(command, cwd=house, capture_output=True, text=True, env={"PYTHONPATH": str(house / "src")})
    words = {line.rsplit(" (", 1)[0] for line in found.stdout.splitlines()}
    return {name: state for name, _, state in (word.rpartition(" ") for word in words) if state in ("KEPT", "BROKEN")}


def test_all_contracts_hold(house):
    found = contracts(house)
    assert len(found) == len(BREAKS)
    assert {name for name, state in found.items() if state != "KEPT"} == set()


def test_all_breaks_are_noticed(house):
    before = {house / path: (house / path).exists() and (house / path).read_text() for path, _ in BREAKS.values()}
    try:
        for path, code in BREAKS.values():
            with (house / path).open("a") as file:
                file.write(code + "\n")
        found = contracts(house)
    finally:
        for path, text in before.items():
            if text is False:
                path.unlink(missing_ok=True)
            else:
                path.write_text(text)
    broken = {name for name, state in found.items() if state == "BROKEN"}
    assert {start for start in BREAKS if not any(name.startswith(start) for name in broken)} == set()


def test_every_room_has_a_floor(repository):
    """A room that no floor names would be free to import anything."""
    text = (repository / ".importlinter").read_text(encoding="utf-8")
    floors = text.split("layers =\n", 1)[1].split("\n\n", 1)[0]
    named = set(floors.replace("|", " ").replace(":", " ").split())
    core = [path for path in (repository / "core").iterdir() if not path.name.startswith("__")]
    rooms = {f"trimtab.core.{path.stem}" for path in core if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms <= named
