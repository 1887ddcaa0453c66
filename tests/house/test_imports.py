"""`import trimtab` and `trimtab --help` load nothing heavy: they run in every Airflow process and before every look."""

import subprocess
import sys

import pytest

import trimtab

HEAVY = (
    "numpy", "pyarrow", "numba", "tensorflow", "keras", "grpc", "fsspec", "rich", "yaml", "psutil", "mlflow", "kfp",
    "airflow", "kubernetes", "scipy",
)  # fmt: skip


def loaded_by(code):
    """Top-level modules in a new process after `code` (its own output goes to stderr)."""
    report = "import sys; print(*{name.partition('.')[0] for name in sys.modules}, file=sys.__stdout__)"
    found = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True)
    return set(found.stdout.split())


def test_the_front_door_loads_nothing_heavy():
    assert loaded_by("import trimtab") & set(HEAVY) == set()


def test_help_loads_nothing_heavy():
    code = """
import sys
sys.stdout = sys.stderr
from trimtab.core import cli
for arguments in (["--help"], ["train", "--help"], ["--version"], ["train", "--data", "x", "--epochs", "0"]):
    try:
        cli.main(arguments)
    except SystemExit:
        pass
"""
    loaded = loaded_by(code)
    assert loaded & set(HEAVY) == set()
    assert "click" in loaded, "the check would see what is loaded"


@pytest.mark.parametrize("room", ["kfp_components.outputs", "airflow_plugin.naming", "pipelines.steps"])
def test_what_other_systems_import_is_light(room):
    assert loaded_by(f"import trimtab.{room}") & set(HEAVY) == set()


def test_training_is_never_loaded_by_what_starts_it():
    loaded = loaded_by("import trimtab.core.controller.run, trimtab.core.cli_train, trimtab.core.cli_data")
    assert loaded & {"tensorflow", "keras", "keras_rs", "mlflow"} == set()


def test_every_public_name_can_be_had():
    for name in trimtab.__all__:
        assert getattr(trimtab, name) is not None
    assert dir(trimtab) == sorted(trimtab.__all__)
    assert trimtab.JobSpec(data="rows.csv").model == "dlrm"
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = trimtab.trian
