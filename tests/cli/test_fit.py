"""`trimtab fit`: as the page shows it, as JSON, from stdin, and what is refused."""

import io
import json
import re
import shlex
import sys

import pytest

from trimtab.core import cli, cli_fit

PAGE = ".venv/bin/trimtab fit measured.csv --predict plans.csv"


@pytest.fixture
def place(repository, tmp_path, monkeypatch):
    """A folder with the two files of docs/fit.md."""
    blocks = re.findall(
        r"^```csv\n(.*?)^```", (repository / "docs" / "fit.md").read_text(encoding="utf-8"), re.M | re.S
    )
    for name, text in zip(("measured.csv", "plans.csv"), blocks, strict=True):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trimtab(*arguments):
    with pytest.raises(SystemExit) as left:
        cli.main(["fit", *map(str, arguments)])
    return left.value.code


def test_the_command_of_the_page(repository, place, capsys):
    assert PAGE in (repository / "docs" / "fit.md").read_text(encoding="utf-8")
    assert trimtab(*shlex.split(PAGE)[2:]) == cli.DONE
    shown = capsys.readouterr()
    assert shown.err == ""
    assert re.match(r"measured\.csv: .* law.*, from 12 rows of 12 configurations\n", shown.out)
    assert "RMSLE" in shown.out and "Optimus law" in shown.out
    assert "ranges (80 %) hold for the conditions of the table" in shown.out
    lines = [line.split() for line in shown.out.splitlines()]
    assert any(line[:5] == ["6", "2", "1", "1", "1"] and line[-1] == "–" for line in lines)
    assert any(line[:4] == ["8", "3", "2", "1"] for line in lines)


def test_speeds_are_written_out(place, capsys):
    assert trimtab("measured.csv") == cli.DONE
    out = capsys.readouterr().out
    assert "404,500" in out and "e+0" not in out


def test_as_json(place, capsys):
    assert trimtab("measured.csv", "--predict", "plans.csv", "--json") == cli.DONE
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == cli_fit.SCHEMA
    assert found["rows"] == {"read": 12, "used": 12, "configurations": 12, "dropped": {}}
    assert found["left_out"][0]["law"] == found["law"] and len(found["configurations"]) == 12
    assert set(found["held"]) <= set(found["coefficients"])
    first, second = found["predictions"]
    assert (first["workers"], first["ps"], first["worker_cpu"], first["line"]) == (6, 2, 1.0, 2)
    assert first["low"] < first["throughput"] < first["high"]
    assert second["outside"] == []


def test_without_predict_the_worst_configurations_are_shown(place, capsys):
    assert trimtab("measured.csv") == cli.DONE
    out = capsys.readouterr().out
    assert "predicted left out" in out and "Predictions" not in out


@pytest.mark.parametrize("stdin", ["table", "plans"])
def test_stdin_may_be_either_file(place, capsys, monkeypatch, stdin):
    file = place / ("measured.csv" if stdin == "table" else "plans.csv")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    given = ("-", "--predict", "plans.csv") if stdin == "table" else ("measured.csv", "--predict", "-")
    assert trimtab(*given, "--json") == cli.DONE
    found = json.loads(capsys.readouterr().out)
    assert len(found["predictions"]) == 2 and found["table"] == ("stdin" if stdin == "table" else "measured.csv")


def test_dropped_rows_and_other_columns_are_said(place, capsys):
    (place / "odd.csv").write_text("workers,ps,throughput,hots\n1,1,9,a\n2,1,17,b\n4,1,,c\n4,1,0,d\n")
    assert trimtab("odd.csv") == cli.DONE
    out = capsys.readouterr().out
    assert "left out of 4: 1 without a throughput, 1 throughput zero or negative" in out
    assert "columns not looked at: hots" in out and "the table cannot tell" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "table: '': it is needed"),
        (("nope.csv",), "TABLE: 'nope.csv': cannot be read (No such file or directory)"),
        ((".",), "TABLE: '.': cannot be read"),
        (("-", "--predict", "-"), "--predict: '-': stdin is taken by the table"),
        (("bad.csv",), "bad.csv, line 2, column throughput: 'fast': give a number"),
        (("latin.csv",), "TABLE: 'latin.csv': byte 2 is no UTF-8"),
        (("measured.csv", "--predict", "nope.csv"), "--predict: 'nope.csv': cannot be read"),
        (("measured.csv", "--predict", "bad.csv"), "bad.csv, line 1: 'worker_cpu': it is needed"),
        (("measured.csv", "--predikt", "x"), "did you mean --predict?"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_what_cannot_be_used_is_refused_in_one_line(place, capsys, arguments, says, as_json):
    (place / "bad.csv").write_text("workers,ps,throughput\n1,1,fast\n")
    (place / "latin.csv").write_bytes(b"wo\xe9")
    assert trimtab(*arguments, *(["--json"] if as_json else [])) == cli.BAD_INPUT
    shown = capsys.readouterr()
    assert says in shown.err and shown.err.count("\n") == 1
    if as_json:
        assert json.loads(shown.out)["state"] == "failed"
    else:
        assert shown.out == ""


def test_a_terminal_sees_lines(place, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert trimtab("measured.csv", "--predict", "plans.csv") == cli.DONE
    assert "┃" in capsys.readouterr().out
