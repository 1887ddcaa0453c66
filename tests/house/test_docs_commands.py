"""Every command that the pages show is run: here, or by a step that is named and found where it should be.

A command is a line of a fenced block marked `sh`, never an indented line. The cheap ones run always; those that train
run in the slow suite, and `make` is run by the checks around pytest, because pytest itself stands inside of it. Jobs in
a directory called `monday` belong together: one is stopped and resumed, looked at, and another starts with its rows.
The commands about `nightly` are run in the order of their page.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trimtab.core import cli

# Command → the file and the text in it that runs this command.
RUN_ELSEWHERE = {
    "make train": (".ci/run", 'newcomer "$main" "$main_python" SAMPLE_ROWS="$SMOKE_ROWS"'),
    "make train DATA=path/to/rows.parquet": (".ci/run", 'newcomer "python-${pair%%=*}" "${pair#*=}" DATA="$rows"'),
    "make test": (".ci/run", "TRIMTAB_REQUIRE=$REQUIRE make test"),
    "make lint": ("Makefile", "test: lint"),
    "make chaos SEED=7": ("tests/house/test_makefile.py", '("SEED=7", "7")'),
    "make simulate": ("tests/house/test_makefile.py", '("", "0-9999")'),
    "make simulate SEED=7": ("tests/house/test_makefile.py", '("SEED=7", "7")'),
    "make ui": (".ci/run", 'make -C "$place/trimtab" ui'),
    ".venv/bin/trimtab history": (".ci/run", ".venv/bin/trimtab history"),
    ".venv/bin/trimtab fit measured.csv --predict plans.csv": ("tests/cli/test_fit.py", "shlex.split(PAGE)"),
    ".venv/bin/trimtab explain RUN_ID": ("tests/cli/test_explain.py", 'cli.main(["explain", *map(str, arguments)])'),
    ".venv/bin/trimtab export RUN --out exported": ("tests/training/test_export_job.py", '"export", str(moved)'),
    ".venv/bin/airflow db migrate": ("tests/pipelines/test_train_dag.py", '"airflow", "db", "migrate"'),
}
TRIMTAB = ".venv/bin/trimtab "
MONDAY, NIGHTLY = " monday", " nightly"
JOBS = ("submit ", "status ", "events ", "logs ", "checkpoint ", "stop ", "resume ", "jobs")
OWN_MODEL = ".venv/bin/trimtab train --data visits.parquet --columns columns.yaml --model my_models:two_towers"


def blocks(repository, language):
    pages = [repository / "README.md", repository / "CONTRIBUTING.md", *sorted((repository / "docs").glob("*.md"))]
    for page in pages:
        for block in re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            yield page.name, block


def commands(repository):
    """Each shown command once, in the order of the pages."""
    lines = [line.strip() for _, block in blocks(repository, "sh") for line in block.replace("\\\n", " ").splitlines()]
    return list(dict.fromkeys(line for line in lines if line and not line.startswith("#")))


def shown(repository, start):
    return [command for command in commands(repository) if command.startswith(TRIMTAB + start)]


@pytest.fixture(scope="module")
def place(repository, tmp_path_factory):
    """A reader's folder, after the commands that make and show rows; what they printed lies beside."""
    folder = tmp_path_factory.mktemp("reader")
    said = {command: run(command, folder) for command in shown(repository, "data ")}
    (folder / "said.json").write_text(json.dumps(said))
    return folder


def run(command, place):
    """The command as shown, with this interpreter's trimtab."""
    arguments = shlex.split(command.removeprefix(TRIMTAB))
    found = subprocess.run(
        [sys.executable, "-m", "trimtab.core.cli", *arguments], cwd=place, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def own_model(repository, place):
    """The page's own model, and rows with the columns that it asks for."""
    (program,) = [block for page, block in blocks(repository, "python") if page == "models.md"]
    (place / "my_models.py").write_text(program)
    draw = np.random.default_rng(1)
    users = draw.integers(0, 50, 3000)
    tags = [list(range(1, 1 + length)) for length in draw.integers(1, 4, 3000)]  # none empty: the page says why
    bought = (draw.random(3000) < users / 50).astype(int)
    rows = {"bought": bought, "age": draw.random(3000), "user": users, "item": draw.integers(0, 90, 3000), "tags": tags}
    pq.write_table(pa.table(rows), place / "visits.parquet")
    (place / "columns.yaml").write_text(
        "label: bought\ndense: [age]\ncategorical: [user, item]\nmulti_hot: [{name: tags, length: 3}]\n"
    )


def test_every_shown_command_is_run_somewhere(repository):
    found = commands(repository)
    assert len(found) > 6
    starts = ("data ", "plan ", "train ", "ps ", *JOBS)
    here = {command for start in starts for command in shown(repository, start)}
    assert [command for command in found if command not in here and command not in RUN_ELSEWHERE] == []
    for command, (file, text) in RUN_ELSEWHERE.items():
        assert command in found, f"{command}: no page shows it any more"
        assert text in (repository / file).read_text(encoding="utf-8"), f"{command}: {file} does not run it"


def test_every_block_has_a_language(repository):
    """A command in an unmarked block would escape the check above."""
    pages = [repository / "README.md", repository / "CONTRIBUTING.md", *sorted((repository / "docs").glob("*.md"))]
    for page in pages:
        fences = re.findall(r"^```(.*)$", page.read_text(encoding="utf-8"), re.M)
        assert all(fences[::2]), f"{page.name}: mark each block with its language"


def test_no_command_is_merely_indented(repository):
    """An indented command would escape the check above, too."""
    for page in (repository / "README.md", repository / "CONTRIBUTING.md", *sorted((repository / "docs").glob("*.md"))):
        prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        command = r"^(?: {4,}|\t)\s*(?:\$ )?(?:\S*/)?(?:trimtab|make|python3?|pip|git|uv) .*$"
        assert re.findall(command, prose, re.M) == [], page.name


def test_options_that_pages_name_exist(repository):
    found = (
        cli.train, cli.plan, cli.explain, cli.fit, cli.resume, cli.stats, cli.sample, cli.describe, cli.history, cli.ui,
        cli.submit, *cli.COMMANDS, *cli.COMMANDS[-1].commands.values(),
    )  # fmt: skip
    options = [option for command in found for option in command.params]
    known = {name for option in options for name in option.opts}
    names = ("run_on_one_machine", "jobs", "capacity", "metrics", "tune", "plan", "fit", "read_a_report", "mlflow",
             "optimizer")  # fmt: skip
    for page in (repository / "README.md", *(repository / "docs" / f"{name}.md" for name in names)):
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text(encoding="utf-8")))
        assert named <= known, page.name


def test_data_commands_do_what_the_page_says(repository, place):
    said = json.loads((place / "said.json").read_text())
    assert any("data sample" in command for command in said) and any("data describe" in command for command in said)
    assert all(text.strip() for text in said.values())
    assert (place / "rows.parquet").stat().st_size > 0


@pytest.mark.slow
def test_plan_commands_start_nothing(repository, place, monkeypatch, tmp_path):
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    monkeypatch.setenv("TRIMTAB_HISTORY", "none")
    shown_ones = shown(repository, "plan ")
    assert shown_ones
    for command in shown_ones:
        out = run(command, place)
        assert out.startswith("Would start with ") and "What this rests on" in out
        assert ("Whether the deadline can be kept is not known" in " ".join(out.split())) == ("--deadline" in command)
    assert (place / "front.png").stat().st_size > 0
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


@pytest.mark.slow
def test_train_commands_finish_with_every_batch_applied_once(repository, place):
    own_model(repository, place)
    assert OWN_MODEL in commands(repository)
    for command in shown(repository, "train "):
        if MONDAY in command:
            continue
        out = run(command, place)
        if "--json" in command:
            result = json.loads(out)
            assert result["state"] == "finished"
            assert result["batches_applied"] == result["batches_expected"] > 0
            assert result["batches_duplicated"] == 0
            continue
        all_applied(out)


def all_applied(out):
    words = [line.split() for line in out.splitlines()]
    counts = {line[1]: line[2] for line in words if line[:1] == ["batches"]}
    assert counts["applied"] == counts["expected"] != "0" and counts["repeated"] == "0"


def stop(command, place):
    """The command as shown, and Ctrl-C as soon as it trains."""
    arguments = shlex.split(command.removeprefix(TRIMTAB))
    with subprocess.Popen(
        [sys.executable, "-m", "trimtab.core.cli", *arguments], cwd=place, stderr=subprocess.PIPE, text=True
    ) as job:
        for line in job.stderr:
            if line.startswith("training "):
                job.send_signal(signal.SIGINT)
                break
        said = job.stderr.read()
    assert job.returncode == 130, said


@pytest.mark.slow
def test_a_stopped_job_goes_on_is_looked_at_and_another_starts_from_it(repository, place, monkeypatch):
    monkeypatch.setenv("TRIMTAB_HISTORY", "none")
    begun, further = [command for command in shown(repository, "train ") if MONDAY in command]
    stop(begun, place)
    (resume,) = [command for command in shown(repository, "resume ") if MONDAY in command]
    all_applied(run(resume, place))
    (stats,) = shown(repository, "ps ")
    lines = run(stats, place).splitlines()
    assert ": finished " in lines[0] and {"Parameter servers", "Tables", "Hottest vshards"} <= set(lines)
    assert any(line.startswith("ps-0-t2-g1 ") for line in lines), "the second controller's"
    all_applied(run(further, place))
    (checkpoint,) = (place / "checkpoints").iterdir()
    assert {"model.json", "metadata.json"} < {file.name for file in checkpoint.iterdir()}


@pytest.mark.slow
def test_commands_about_a_job_without_a_shell_do_what_the_page_says(repository, place, monkeypatch, tmp_path):
    monkeypatch.setenv("TRIMTAB_HISTORY", "none")
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path))
    known = [command for start in JOBS for command in shown(repository, start)]
    of_page = [command for command in commands(repository) if command in known and MONDAY not in command]
    submit, *later = of_page
    assert [command.removeprefix(TRIMTAB).split()[0] for command in of_page] == [
        "submit", "status", "events", "logs", "checkpoint", "stop", "resume", "jobs", "jobs",
    ]  # fmt: skip
    run_id = run(submit, place).strip()
    try:
        for _ in range(600):
            if json.loads(run(f"{TRIMTAB}status nightly --json", place))["batches_done"]:
                break
        said = {command.removeprefix(TRIMTAB): run(command, place) for command in later}
    finally:
        run(f"{TRIMTAB}stop nightly --now", place)
    status = said["status nightly"]
    assert status.startswith(f"{run_id} (nightly): training for ") and "\nPods\n" in status
    assert " phase " in said["events nightly"] and "worker-0-t1-g1 | " in said["logs nightly worker-0"]
    assert "its checkpoint holds " in said["checkpoint nightly"] and f"{run_id}: stopped" in said["stop nightly"]
    assert said["resume nightly --detach"] == f"{run_id}\n"
    assert said["jobs"].startswith("no jobs in ")
    assert said["jobs prune --older-than 30d --dry-run"].startswith("0 jobs would go")


@pytest.mark.slow
def test_the_shown_program_runs(repository, place):
    programs = [block for _, block in blocks(repository, "python") if "trimtab.train(" in block]
    assert programs
    for at, program in enumerate(programs):
        (place / f"program_{at}.py").write_text(program)
        found = subprocess.run(
            [sys.executable, f"program_{at}.py"], cwd=place, capture_output=True, text=True, env=os.environ
        )
        assert found.returncode == 0, found.stderr
        _, applied, expected = found.stdout.split()
        assert applied == expected


def test_pictures_are_there_and_nothing_waits_to_be_filled_in(repository):
    pages = [repository / "README.md", repository / "CONTRIBUTING.md", *sorted((repository / "docs").glob("*.md"))]
    shown = 0
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"@[A-Z]+@|TODO|FIXME", text), page.name
        for target in re.findall(r'(?:src|srcset)="([^"]+)"', text):
            assert (page.parent / target).is_file(), f"{page.name}: {target}"
            shown += 1
    assert shown


def test_links_between_pages_lead_somewhere(repository):
    pages = [repository / "README.md", repository / "CONTRIBUTING.md", *sorted((repository / "docs").glob("*.md"))]
    for page in pages:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if "://" in target:
                continue
            name, _, anchor = target.partition("#")
            found = (page.parent / name).resolve() if name else page
            assert found.exists(), f"{page.name}: {target}"
            if anchor:
                heads = re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), re.M)
                assert anchor in {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}, target
