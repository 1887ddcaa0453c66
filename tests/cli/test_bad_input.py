"""Everything the issue calls bad input, through the real command: one clear line, exit code 2, nothing left behind."""

import gzip
import os
import re

import psutil
import pytest

from trimtab.core import cli


def row(label, key="68fd1e64"):
    """One line as Criteo ships it: label, 13 counts, 26 ids."""
    return "\t".join([str(label), *(str(at) for at in range(13)), *([key] * 26)])


def rows(count, label=None):
    return [row(at % 2 if label is None else label, f"{at:08x}") for at in range(count)]


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "rows.tsv"
    path.write_text("\n".join(rows(200)) + "\n")
    return path


@pytest.fixture
def refused(capsys, tmp_path, monkeypatch):
    """Runs `trimtab train` and checks that it was refused in order; returns the line."""
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "home"))

    def run(*arguments):
        before = {child.pid for child in psutil.Process().children(recursive=True)}
        with pytest.raises(SystemExit) as ended:
            cli.main(["train", *map(str, arguments)])
        out, err = capsys.readouterr()
        last = err.splitlines()[-1]
        assert ended.value.code == 2, err
        assert out == ""
        assert last.startswith("trimtab: ")
        assert "Traceback" not in err
        left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
        assert left == [], "nothing is left running"
        jobs = tmp_path / "home" / "jobs"
        assert not jobs.exists() or list(jobs.iterdir()) == [], "no half-made job is left"
        return last

    return run


def test_a_missing_file(refused, tmp_path):
    line = refused("--data", tmp_path / "nowhere.csv")
    assert "nowhere.csv" in line


def test_a_glob_without_a_match(refused, tmp_path):
    assert "*.parquet" in refused("--data", tmp_path / "*.parquet")


def test_an_unknown_scheme(refused):
    assert "nosuch" in refused("--data", "nosuch://bucket/rows.csv")


def test_an_empty_file(refused, tmp_path):
    (tmp_path / "empty.tsv").write_text("")
    assert "empty.tsv" in refused("--data", tmp_path / "empty.tsv")


def test_a_header_without_rows(refused, tmp_path):
    (tmp_path / "head.csv").write_text("label,I1,C1\n")
    assert "head.csv" in refused("--data", tmp_path / "head.csv")


def test_a_directory_without_data(refused, tmp_path):
    (tmp_path / "folder").mkdir()
    assert "folder" in refused("--data", tmp_path / "folder")


def test_a_wrong_column_count_names_the_row(refused, tmp_path):
    lines = rows(50)
    lines[36] = lines[36].rsplit("\t", 3)[0]
    (tmp_path / "short.tsv").write_text("\n".join(lines) + "\n")
    line = refused("--data", tmp_path / "short.tsv")
    assert "short.tsv" in line and "37" in line and "40" in line


def test_all_labels_equal(refused, tmp_path):
    (tmp_path / "one.tsv").write_text("\n".join(rows(100, label=1)) + "\n")
    line = refused("--data", tmp_path / "one.tsv", "--batch-size", 10)
    assert "label" in line.lower() and "one.tsv" in line


def test_a_truncated_gz_names_file_and_offset(refused, tmp_path):
    whole = gzip.compress(("\n".join(rows(3000)) + "\n").encode())
    (tmp_path / "cut.tsv.gz").write_bytes(whole[: int(len(whole) * 0.9)])
    line = refused("--data", tmp_path / "cut.tsv.gz")
    assert re.search(r"cut\.tsv\.gz: byte \d+", line)


def test_an_unknown_column(refused, good, tmp_path):
    source = tmp_path / "named.csv"
    source.write_text("click,age,city\n" + "".join(f"{at % 2},{at},c{at}\n" for at in range(100)))
    columns = tmp_path / "columns.yaml"
    columns.write_text("label: click\ndense: [age]\ncategorical: [town]\n")
    assert "town" in refused("--data", source, "--columns", columns, "--batch-size", 10)


def test_a_missing_columns_file(refused, good, tmp_path):
    assert "none.yaml" in refused("--data", good, "--columns", tmp_path / "none.yaml")


def test_an_unknown_model(refused, good):
    assert "'dlrn'" in refused("--data", good, "--model", "dlrn")


def test_a_module_that_is_not_there(refused, good):
    line = refused("--data", good, "--batch-size", 10, "--model", "no_such_module_here:build")
    assert "--model" in line and "no_such_module_here" in line


def test_a_function_that_returns_no_keras_model(refused, good, tmp_path, monkeypatch):
    (tmp_path / "users_models.py").write_text("def build(*arguments, **options):\n    return 'not a model'\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]]))
    line = refused("--data", good, "--batch-size", 10, "--model", "users_models:build")
    assert "--model" in line and "users_models:build" in line


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (("--max-cpu", "50m"), "--max-cpu"),
        (("--max-memory", "100Mi"), "--max-memory"),
        (("--max-cpu", "1", "--workers", "30"), "--max-cpu"),
        (("--workers", "3", "--max-workers", "2"), "--workers"),
        (("--ps", "3", "--max-ps", "2"), "--ps"),
    ],
)
def test_limits_below_the_smallest_plan(refused, good, options, field):
    assert refused("--data", good, "--batch-size", 10, *options).startswith(f"trimtab: {field}: ")


def test_a_batch_size_above_the_rows(refused, good):
    line = refused("--data", good, "--batch-size", 1000)
    assert line.startswith("trimtab: --batch-size: 1000: ")


def test_a_used_job_dir(refused, good, tmp_path):
    used = tmp_path / "used"
    used.mkdir()
    (used / "state.json").write_text("{}")
    line = refused("--data", good, "--batch-size", 10, "--job-dir", used)
    assert line.startswith("trimtab: --job-dir: ")
    assert [path.name for path in used.iterdir()] == ["state.json"], "what was there is left as it was"


def test_a_job_dir_that_cannot_be_written(refused, good):
    line = refused("--data", good, "--batch-size", 10, "--job-dir", "/proc/trimtab-job")
    assert line.startswith("trimtab: --job-dir: ")


@pytest.mark.parametrize("place", ["/proc/trimtab", "nosuch://bucket/checkpoints", ""])
def test_a_checkpoint_dir_that_cannot_be_written(refused, good, place):
    assert refused("--data", good, "--batch-size", 10, "--checkpoint-dir", place).startswith(
        "trimtab: --checkpoint-dir: "
    )


@pytest.mark.parametrize("source", ["20260101", "nosuch://bucket/run", "/proc", "", "/proc/cpuinfo"])
def test_a_source_that_is_none(refused, good, tmp_path, source):
    line = refused("--data", good, "--batch-size", 10, "--init-from", source, "--checkpoint-dir", tmp_path / "c")
    assert line.startswith(f"trimtab: --init-from: '{source}': ")
    assert not (tmp_path / "c").exists(), "no folder for checkpoints is left"


def test_missing_rows_for_validation(refused, good, tmp_path):
    assert "none.tsv" in refused("--data", good, "--batch-size", 10, "--validation", tmp_path / "none.tsv")


@pytest.mark.parametrize("rate", ["nan", "inf", "0", "-0.1"])
def test_a_learning_rate_that_is_not_finite_and_above_zero(refused, good, rate):
    assert refused("--data", good, "--learning-rate", rate).startswith("trimtab: --learning-rate: ")


@pytest.mark.parametrize("name", ["", "My Job", "a/b", "-x"])
def test_a_name_that_is_no_name(refused, good, name):
    assert refused("--data", good, "--job-name", name).startswith("trimtab: --job-name: ")


def test_a_sample_that_cannot_be_written(capsys, tmp_path):
    for out in (tmp_path / "no" / "such" / "rows.csv", tmp_path / "rows.xlsx"):
        with pytest.raises(SystemExit) as ended:
            cli.main(["data", "sample", "--rows", "10", "--out", str(out)])
        assert ended.value.code == 2
        assert capsys.readouterr().err.startswith("trimtab: --out: ")


def test_describing_what_is_not_there(capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        cli.main(["data", "describe", str(tmp_path / "none.csv")])
    assert ended.value.code == 2
    assert "none.csv" in capsys.readouterr().err
