"""Data that cannot be used is named with file and place, in one line (case 58 among them)."""

import gzip
import re

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trimtab.core.data.prepare import prepare
from trimtab.core.errors import BadInput, DataError


def failure(load, source, columns=None):
    with pytest.raises(BadInput) as caught:
        load(source, columns)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_file(load, tmp_path):
    assert "no such file or directory" in failure(load, tmp_path / "no.csv")
    assert failure(load, tmp_path / "no.csv").startswith("--data: ")


def test_unknown_protocol(load):
    assert "nosuch://x" in failure(load, "nosuch://x")


def test_missing_url(load):
    assert "no such file" in failure(load, "memory://nothing/there.csv")


def test_glob_without_match(load, tmp_path):
    assert "matches no file" in failure(load, tmp_path / "*.csv")


@pytest.mark.parametrize("names", [[], ["README.md"], ["_x.csv"]])
def test_directory_without_data(load, tmp_path, names):
    folder = tmp_path / "rows"
    folder.mkdir()
    for name in names:
        (folder / name).write_text("a,b\n1,2\n")
    assert "the directory has no data files" in failure(load, folder)


@pytest.mark.parametrize("extension", [".csv", ".tsv", ".parquet", ".tfrecord", ""])
def test_empty_file(load, write, extension):
    text = failure(load, write(f"t{extension}", ""))
    assert f"t{extension}" in text
    assert "the file is empty" in text


@pytest.mark.parametrize("text", ["label,a\n", "\n\n", "label,a"])
def test_file_without_rows(load, write, text):
    assert "no rows" in failure(load, write("t.csv", text))


def test_empty_gzip(load, tmp_path):
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b""))
    assert "t.csv.gz: '0 rows'" in failure(load, tmp_path / "t.csv.gz")


def test_parquet_and_records_without_rows(load, tmp_path):
    pq.write_table(pa.table({"label": pa.array([], pa.int8()), "x": pa.array([], pa.int8())}), tmp_path / "t.parquet")
    assert "there are no rows" in failure(load, tmp_path / "t.parquet")


def test_mixed_formats(load, write):
    write("d/a.csv", "label,x\n0,1\n1,2\n")
    path = write("d/b.parquet", "x").parent
    assert "mixes formats" in failure(load, path)
    write("e/a.tsv", "\t".join(["0"] + ["1"] * 13 + ["aaaaaaaa"] * 26) + "\n")
    path = write("e/b.csv", "label,x\n0,1\n1,2\n").parent
    assert "b.csv: 'another layout'" in failure(load, path)


def test_unknown_contents(load, tmp_path):
    (tmp_path / "rows.bin").write_bytes(bytes(range(256)))
    assert "neither the name nor the contents tell the format" in failure(load, tmp_path / "rows.bin")


def criteo_lines(count):
    return ["\t".join([str(at % 2)] + ["1"] * 13 + ["aaaaaaaa"] * 26) for at in range(count)]


@pytest.mark.parametrize("row", [2, 400])  # within and beyond what detection looks at
@pytest.mark.parametrize("extra", [1, -1])
def test_wrong_number_of_columns(load, write, row, extra, monkeypatch):
    monkeypatch.setattr("trimtab.core.data.text._HEAD", 4096)
    lines = criteo_lines(500)
    lines[row - 1] = lines[row - 1] + "\tx" if extra > 0 else lines[row - 1].rsplit("\t", 1)[0]
    path = write("train.tsv", "\n".join(lines) + "\n")
    assert re.search(rf"train\.tsv: row {row}: '{40 + extra} columns': expected 40", failure(load, path))


def test_wrong_number_of_columns_in_csv_counts_lines(load, write):
    path = write("t.csv", 'label,a,b\n0,"x,y",1\n\n1,x\n')
    assert "t.csv: row 4: '2 columns': expected 3" in failure(load, path)


def test_text_without_header(load, write):
    assert "is no header" in failure(load, write("t.csv", "0,1,2\n1,2,3\n"))
    assert "is in the header twice" in failure(load, write("u.csv", "label,a,a\n0,1,2\n"))


@pytest.mark.parametrize("share", [0.9, 0.01])
def test_truncated_gzip_names_file_and_offset(load, sample_files, tmp_path, share):
    whole = sample_files[".tsv.gz"].read_bytes()
    path = tmp_path / "cut.tsv.gz"
    path.write_bytes(whole[: int(len(whole) * share)])
    text = failure(load, path)
    assert f"cut.tsv.gz: byte {int(len(whole) * share)}: 'truncated gzip data'" in text


def test_damaged_gzip(load, sample_files, tmp_path):
    whole = bytearray(sample_files[".tsv.gz"].read_bytes())
    whole[len(whole) // 2] ^= 0xFF
    (tmp_path / "bad.tsv.gz").write_bytes(whole)
    assert re.search(r"bad\.tsv\.gz: (byte \d+|row \d+): ", failure(load, tmp_path / "bad.tsv.gz"))


def test_gzip_of_several_members_is_read_whole(load, tmp_path):
    lines = criteo_lines(100)
    parts = (lines[:50], lines[50:])
    (tmp_path / "t.tsv.gz").write_bytes(b"".join(gzip.compress(("\n".join(part) + "\n").encode()) for part in parts))
    assert load(tmp_path / "t.tsv.gz").rows == 100


def test_parquet_damage_names_file_and_offset(load, sample_files, tmp_path):
    whole = sample_files[".parquet"].read_bytes()
    cases = {
        "cut": (whole[: len(whole) // 2], rf"byte {len(whole) // 2}: 'truncated Parquet data'"),
        "short": (whole[:9], "byte 9: 'truncated Parquet data'"),
        "head": (b"XXXX" + whole[4:], "byte 0: .*is no Parquet data"),
        "footer": (whole[:-40] + b"\xff" * 32 + whole[-8:], r"byte \d+: "),
        "page": (whole[:4] + b"\xff" * 2000 + whole[2004:], r"row group 0 at byte 4: "),
    }
    for name, (data, message) in cases.items():
        (tmp_path / f"{name}.parquet").write_bytes(data)
        assert re.search(rf"{name}\.parquet: {message}", failure(load, tmp_path / f"{name}.parquet"))


def test_a_column_missing_in_a_later_file(load, write):
    write("d/a.csv", "label,x,z\n0,1,1\n1,2,1\n")
    path = write("d/b.csv", "label,y,z\n0,1,1\n").parent
    assert re.search(r"--columns: 'x': .*b\.csv has no such column", failure(load, path))


def test_the_option_that_named_the_data_is_named(tmp_path):
    with pytest.raises(DataError, match=r"--validation: '.*no such file"):
        prepare(str(tmp_path / "no.csv"), None, tmp_path / "cache", field="--validation")


def test_nothing_is_left_in_the_cache_after_a_failure(load, write, tmp_path):
    failure(load, write("t.csv", "label,x\n0,1\n2,1\n"))
    assert [each.name for each in (tmp_path / "cache").iterdir()] == ["locks"]


def test_cache_that_cannot_be_written(sample_files, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"data cache: .*cannot be written"):
        prepare(str(sample_files[".tsv"]), None, tmp_path / "file" / "cache")


def test_a_source_that_cannot_be_read_further(monkeypatch, tmp_path):
    system = fsspec.filesystem("memory")
    system.pipe("/broken/t.csv", b"label,x\n" + b"0,1\n1,2\n" * 10)
    opened = system.open("/broken/t.csv", "rb")

    def fail(*_):
        raise OSError("the network is gone")

    monkeypatch.setattr(type(opened), "read", fail)
    with pytest.raises(DataError, match=r"t\.csv: byte 0: 'the network is gone'"):
        prepare("memory://broken/t.csv", None, tmp_path / "cache")
