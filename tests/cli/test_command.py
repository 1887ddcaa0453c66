"""The command's promises that need no training: one clear line, exit codes, near names, pure stdout."""

import json
import subprocess
import sys

import pytest

import trimtab
from trimtab.core import cli
from trimtab.core.cli_train import spec_from_options
from trimtab.core.domain.job import Mode
from trimtab.core.domain.plan import Limits


@pytest.fixture
def command(capsys):
    """Runs the command in this process: (exit code, stdout, stderr)."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


@pytest.mark.parametrize(
    "arguments", [(), ("--help",), ("-h",), ("train", "--help"), ("data",), ("data", "sample", "-h")], ids=" ".join
)
def test_help_is_for_stdout_and_no_error(command, arguments):
    code, out, err = command(*arguments)
    assert (code, err) == (0, "")
    assert "Usage: trimtab" in out


def test_help_names_every_promised_option(command):
    _, out, _ = command("train", "--help")
    for option in (
        "data", "columns", "model", "epochs", "batch-size", "workers", "ps", "max-cpu", "max-memory", "max-workers",
        "max-ps", "mode", "learning-rate", "job-name", "job-dir", "validation", "seed", "json",
        "checkpoint-dir", "init-from",
    ):  # fmt: skip
        assert f"--{option} " in out


def test_version(command):
    assert command("--version") == (0, f"trimtab {trimtab.__version__}\n", "")


WRONG = [
    (("train",), "--data: '': give a path"),
    (("trian",), "command: 'trian': there is no such name; did you mean train?"),
    (("data", "smaple"), "did you mean sample?"),
    (("xyz",), "see `trimtab --help`"),
    (("train", "--data", "x", "--epoch", "2"), "option: '--epoch': there is no such name; did you mean --epochs?"),
    (("train", "--data", "x", "--zzz"), "option: '--zzz': there is no such name; see `trimtab train --help`"),
    (("train", "--data", "x", "--epochs"), "--epochs: '': it needs a value"),
    (("train", "--data", "x", "surplus"), "surplus"),
    (("train", "--data", ""), "--data: '': give a path"),
    (("train", "--data", "x", "--epochs", "1.5"), "--epochs: '1.5': give a whole number of at least 1"),
    (("train", "--data", "x", "--batch-size", "0"), "--batch-size: '0': give a whole number of at least 1"),
    (("train", "--data", "x", "--workers", "two"), "--workers: 'two': give a whole number"),
    (("train", "--data", "x", "--ps", "-1"), "--ps: '-1': give a whole number"),
    (("train", "--data", "x", "--max-workers", "0"), "--max-workers: '0'"),
    (("train", "--data", "x", "--max-ps", "0"), "--max-ps: '0'"),
    (("train", "--data", "x", "--seed", "-1"), "--seed: '-1': give a whole number of at least 0"),
    (("train", "--data", "x", "--max-cpu", "NaN"), "--max-cpu: 'NaN': give a Kubernetes quantity"),
    (("train", "--data", "x", "--max-cpu", "0"), "--max-cpu: '0': cores must be more than 0"),
    (("train", "--data", "x", "--max-memory", "4gb"), "--max-memory: '4gb': give a Kubernetes quantity"),
    (("train", "--data", "x", "--mode", "automatic"), "--mode: 'automatic': choose auto, advise or fixed"),
    (("train", "--data", "x", "--model", "dlrn"), "--model: 'dlrn': choose dlrm, wide_deep"),
    (("train", "--data", "x", "--learning-rate", "nan"), "--learning-rate: nan: give a finite number above 0"),
    (("train", "--data", "x", "--learning-rate", "-inf"), "--learning-rate: -inf"),
    (("train", "--data", "x", "--learning-rate", "fast"), "--learning-rate: 'fast': give a finite number"),
    (("train", "--data", "x", "--job-name", "My Job"), "--job-name: 'My Job': use 1 to 50 of"),
    (("train", "--data", "x", "--job-name", "a\nb"), r"--job-name: 'a\nb': use"),
    (("train", "--data", "x", "--validation", "1"), "--validation: 1.0: give a share"),
    (("train", "--data", "x", "--validation", "nan"), "--validation: nan: give a share"),
    (("data", "sample", "--out", "x.csv"), "--rows: '': it is needed"),
    (("data", "sample", "--rows", "0", "--out", "x.csv"), "--rows: '0': give a whole number of at least 1"),
    (("data", "describe"), "path: '': give a path"),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG, ids=[" ".join(arguments)[:60] for arguments, _ in WRONG])
def test_bad_input_is_one_clear_line_and_exit_code_2(command, arguments, words):
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("trimtab: ")
    assert err.count("\n") == 1
    assert words in err


def test_bad_input_with_json_is_still_one_object_on_stdout(command):
    code, out, err = command("train", "--data", "x", "--epochs", "0", "--json")
    assert code == 2
    found = json.loads(out)
    assert found["state"] == "failed"
    assert (found["bad_input"]["field"], found["bad_input"]["value"]) == ("--epochs", "0")
    assert found["error"] in err


def test_the_exit_code_is_that_of_the_process():
    command = [sys.executable, "-m", "trimtab.core.cli", "train", "--data", "x", "--epochs", "0"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == "trimtab: --epochs: '0': give a whole number of at least 1\n"


def options(*arguments):
    """The options of `trimtab train`, parsed as typed."""
    context = cli.train.make_context("train", ["--data", "rows.csv", *arguments])
    return {name: value for name, value in context.params.items() if name != "as_json"}


def test_options_become_a_job():
    typed = """--columns c.yaml --model dcn --epochs 3 --batch-size 64 --workers 2 --ps 3 --max-cpu 1500m
        --max-memory 4Gi --max-workers 5 --max-ps 6 --mode fixed --learning-rate 1e-2 --job-name daily --job-dir jobs/1
        --validation 0.2 --seed 9 --embedding-dim 8 --checkpoint-dir s3://bucket/c --init-from 2026"""
    spec = spec_from_options(options(*typed.split()))
    assert spec.limits == Limits(cpu=1.5, memory_bytes=4 * 2**30, workers=5, ps=6)
    assert (spec.data, spec.columns, spec.model, spec.epochs, spec.batch_size) == ("rows.csv", "c.yaml", "dcn", 3, 64)
    assert (spec.workers, spec.ps, spec.mode, spec.learning_rate) == (2, 3, Mode.FIXED, 0.01)
    assert (spec.job_name, spec.job_dir, spec.validation, spec.seed) == ("daily", "jobs/1", 0.2, 9)
    assert (spec.embedding_dim, spec.checkpoint_dir, spec.init_from) == (8, "s3://bucket/c", "2026")


def test_the_defaults_are_those_of_a_job():
    assert spec_from_options(options()) == trimtab.JobSpec(data="rows.csv")


def test_validation_is_a_share_when_it_reads_as_a_number_and_a_path_otherwise():
    assert spec_from_options(options("--validation", "0")).validation == 0.0
    assert spec_from_options(options("--validation", ".25")).validation == 0.25
    assert spec_from_options(options("--validation", "day_2.csv")).validation == "day_2.csv"
