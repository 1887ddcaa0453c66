"""The house rules that no linter knows: sizes, opening words, and one way to import."""

import ast
import subprocess
import sys

import pytest

ROOMS = ("core", "kfp_components", "airflow_plugin", "pipelines")
LONGEST = 500


def sources(repository, *folders):
    return sorted(path for folder in folders for path in (repository / folder).rglob("*.py"))


def test_there_is_something_to_check(repository):
    assert len(sources(repository, *ROOMS)) > 40
    for room in ROOMS:
        link = repository / "src" / "trimtab" / room
        assert link.is_symlink() and link.resolve() == repository / room


def test_every_module_opens_with_why_it_is_as_it_is(repository):
    thin = []
    for path in [*sources(repository, *ROOMS), repository / "src" / "trimtab" / "__init__.py"]:
        words = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split()
        if len(words) < 6:
            thin.append(f"{path.relative_to(repository)}: {' '.join(words)!r}")
    assert thin == []


def test_no_file_is_longer_than_a_person_reads(repository):
    folders = (*ROOMS, "tests", "benchmarks")
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources(repository, *folders)}
    assert {str(path): length for path, length in lengths.items() if length > LONGEST} == {}


def test_entering_a_room_loads_nothing(repository):
    doors = [repository / room / "__init__.py" for room in ROOMS] + sorted(repository.glob("core/*/__init__.py"))
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in doors}
    kinds = (ast.Import, ast.ImportFrom)
    assert [path for path, tree in trees.items() if any(isinstance(node, kinds) for node in tree.body)] == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_one_name_only(repository, room):
    """From the checkout's root `import core` would make every class a second time."""
    command = [sys.executable, "-c", f"import {room}"]
    found = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert found.returncode != 0
    assert f"import trimtab.{room}, not {room}" in found.stderr


def test_lock_and_sources_name_no_machine(repository):
    """Pins only: a registry's address or a folder of one machine would not be there for others."""
    lock = (repository / "requirements.lock").read_text(encoding="utf-8")
    for sign in ("://", " @ ", "--index", "--find-links", str(repository)):
        assert sign not in lock
    home = str(repository.parent) + "/"
    others = [repository / name for name in ("Makefile", "README.md", "setup.cfg", ".ci/run")]
    for path in (*sources(repository, *ROOMS, "tests", "benchmarks"), *others):
        assert home not in path.read_text(encoding="utf-8"), path
