"""Writes the sample data set, in whichever format the path's extension names.

The rows are those of `sample_rows`, the same in every format: a hexadecimal id in text and the same number in Parquet
give the same key. A file appears under its name only when it is whole.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from trimtab.core.data.crc32c import Bytes, padded
from trimtab.core.data.sample_rows import AucCounter, SampleRows, sample_chunks
from trimtab.core.data.text import CRITEO_NAMES
from trimtab.core.data.tfrecord import frame
from trimtab.core.errors import BadInput

EXTENSIONS = (".parquet", ".tsv", ".tsv.gz", ".csv", ".csv.gz", ".tfrecord")
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_CRITEO_TYPES = [pa.int8(), *[pa.int64()] * 13, *[pa.int64()] * 26]


def write_sample(path: str, rows: int, seed: int, progress: Callable[[str, float], None] | None = None) -> None:
    """Writes `rows` rows of the sample that `seed` names; the same arguments give the same bytes.

    Args:
        path: a new file ending in .parquet, .tsv, .tsv.gz, .csv, .csv.gz or .tfrecord. A Parquet file's metadata hold
            seed, rows and the best possible AUC under "trimtab.sample".
        progress: told what is going on and the share done (0 to 1).

    Raises:
        BadInput: unknown extension, existing file, a directory that is not there, rows below 1, negative seed.
    """
    target = Path(path)
    extension = next((each for each in sorted(EXTENSIONS, key=len, reverse=True) if path.lower().endswith(each)), None)
    if extension is None:
        raise BadInput("--out", path, f"the name tells the format; end it in {', '.join(EXTENSIONS)}")
    for option, value, least in (("--rows", rows, 1), ("--seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise BadInput(option, value, f"give a whole number of at least {least}")
    if target.exists():
        raise BadInput("--out", path, "exists already; name a new file, or remove it first")
    if not target.parent.is_dir():
        raise BadInput("--out", path, f"the directory '{target.parent}' does not exist; make it first")
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            _write(file, extension, _told(sample_chunks(seed, rows), rows, path, progress), seed, rows)
            file.flush()
            os.fsync(file.fileno())
        part.rename(target)
    except OSError as error:
        raise BadInput("--out", path, f"cannot be written ({error.strerror or error}); choose another place") from None
    finally:
        part.unlink(missing_ok=True)


def _told(
    chunks: Iterable[SampleRows], rows: int, path: str, progress: Callable[[str, float], None] | None
) -> Iterator[SampleRows]:
    done = 0
    for chunk in chunks:
        yield chunk
        done += len(chunk.label)
        if progress is not None:
            progress(f"writing {path}", done / rows)


def _write(file: BinaryIO, extension: str, chunks: Iterator[SampleRows], seed: int, rows: int) -> None:
    if extension == ".parquet":
        _write_parquet(file, chunks, seed, rows)
    elif extension == ".tfrecord":
        for chunk in chunks:
            file.write(_records(chunk))
    else:
        with contextlib.ExitStack() as stack:
            if extension.endswith(".gz"):  # no name and time inside, so that equal seeds give equal bytes
                file = stack.enter_context(gzip.GzipFile("", "wb", 3, file, mtime=0))  # type: ignore[assignment]
            _write_text(file, extension, chunks)


def _write_parquet(file: BinaryIO, chunks: Iterator[SampleRows], seed: int, rows: int) -> None:
    schema = pa.schema(list(zip(CRITEO_NAMES, _CRITEO_TYPES, strict=True)))
    counter = AucCounter()
    with pq.ParquetWriter(file, schema, compression="lz4", use_dictionary=False, write_statistics=False) as writer:
        for chunk in chunks:
            counter.add(chunk.probability, chunk.label)
            writer.write_batch(pa.RecordBatch.from_arrays(_columns(chunk, chunk.keys.T), schema=schema))
        note = {"rows": rows, "seed": seed, "best_auc": counter.value()}
        writer.add_key_value_metadata({"trimtab.sample": json.dumps(note)})


def _columns(chunk: SampleRows, keys: Any) -> list[Any]:
    """Arrow arrays of label, dense and keys; `keys` holds one array (of numbers or text) per column."""
    dense = [pa.array(chunk.dense[:, at], mask=chunk.dense_missing[:, at]) for at in range(13)]
    return [pa.array(chunk.label), *dense, *(pa.array(keys[at], mask=chunk.keys_missing[:, at]) for at in range(26))]


def _write_text(file: BinaryIO, extension: str, chunks: Iterator[SampleRows]) -> None:
    criteo = extension.startswith(".tsv")
    if not criteo:
        file.write((",".join(CRITEO_NAMES) + "\n").encode())
    options = pacsv.WriteOptions(include_header=False, delimiter="\t" if criteo else ",", quoting_style="none")
    for chunk in chunks:
        buffer = io.BytesIO()
        arrays = _columns(chunk, chunk.keys.T)[:14]
        arrays += [_hex_array(chunk.keys[:, at], chunk.keys_missing[:, at]) for at in range(26)]
        pacsv.write_csv(pa.RecordBatch.from_arrays(arrays, names=list(CRITEO_NAMES)), buffer, options)
        file.write(buffer.getbuffer())


def _hex(keys: npt.NDArray[np.int64]) -> Bytes:
    """Eight lower-case hexadecimal digits per key: uint8[n, 8]."""
    digits = keys.astype(">u4").view(np.uint8).reshape(-1, 4)
    found = np.empty((len(keys), 8), np.uint8)
    found[:, 0::2] = _HEX[digits >> 4]
    found[:, 1::2] = _HEX[digits & 15]
    return found


def _hex_array(keys: npt.NDArray[np.int64], missing: npt.NDArray[np.bool_]) -> Any:
    text = _hex(keys)[~missing]
    offsets = np.concatenate([[0], np.cumsum(np.where(missing, 0, 8))]).astype(np.int32)
    return pa.Array.from_buffers(pa.string(), len(keys), [None, pa.py_buffer(offsets), pa.py_buffer(text.tobytes())])


def _records(chunk: SampleRows) -> bytes:
    """The chunk as framed Examples.

    Every feature of a row takes a fixed number of bytes or none, so a matrix of all bytes and a mask of the present
    ones is the serialised form of all rows; the two outer lengths are written as varints of two bytes.
    """
    count = len(chunk.label)
    parts: list[Bytes] = []
    present: list[npt.NDArray[np.bool_]] = []
    everywhere = np.ones(count, np.bool_)
    label = np.ascontiguousarray(chunk.label.reshape(-1, 1).view(np.uint8))
    _entry(parts, present, "label", b"\x1a\x03\x0a\x01", label, everywhere)
    for at in range(13):
        value = np.ascontiguousarray(chunk.dense[:, at].astype("<f4")).view(np.uint8).reshape(-1, 4)
        _entry(parts, present, f"I{at + 1}", b"\x12\x06\x0a\x04", value, ~chunk.dense_missing[:, at])
    for at in range(26):
        _entry(parts, present, f"C{at + 1}", b"\x0a\x0a\x0a\x08", _hex(chunk.keys[:, at]), ~chunk.keys_missing[:, at])
    entries, mask = np.concatenate(parts, axis=1), np.concatenate(present, axis=1)
    size = mask.sum(axis=1)
    outer = np.empty((count, 3), np.uint8)
    outer[:, 0] = 0x0A
    outer[:, 1] = size & 127 | 128
    outer[:, 2] = size >> 7
    whole = np.concatenate([outer, entries], axis=1)
    kept = np.concatenate([np.ones((count, 3), np.bool_), mask], axis=1)
    return frame(padded(memoryview(whole[kept])), (size + 3).astype(np.int64))


def _entry(
    parts: list[Bytes], present: list[npt.NDArray[np.bool_]], name: str, head: bytes, value: Bytes,
    given: npt.NDArray[np.bool_],
) -> None:  # fmt: skip
    """Appends one map entry: its bytes for every row, and in which rows it is."""
    inner = b"\x0a" + bytes([len(name)]) + name.encode() + b"\x12" + bytes([len(head) + value.shape[1]]) + head
    outer = b"\x0a" + bytes([len(inner) + value.shape[1]]) + inner
    fixed = np.broadcast_to(np.frombuffer(outer, np.uint8), (len(value), len(outer)))
    parts += [fixed, value]
    present.append(np.broadcast_to(given[:, None], (len(value), len(outer) + value.shape[1])))
