"""Forecasts of parameter servers' memory, held against tables that real streams of keys have grown.

Each stream goes row by row into the tables of three parameter servers (dimension 16, Adagrad), which share the vshards
as a job's do; nothing is computed, so only memory grows. At several times a forecast is made as a running job makes it,
from the keys counted so far on the way, and compared with the fullest server's bytes when twice as many rows have been
seen. Streams that a job reads are shuffled by the product's own numbering of batches: the Criteo-like sample (26
columns, vocabularies of 3 to 200,000), Zipf laws of several exponents over 20 million keys, even draws from bounded
vocabularies, words of Python's own library, and days whose popular keys shift. Three come in the order of the data as
well, which no job reads: they show what shuffling is worth to a forecast, and count like the others. `error_at_2x` is
the median over streams of each one's median |error|, `worst_error_at_2x` the worst single one of the shuffled streams.
"""

from __future__ import annotations

import re
import statistics
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from figures import Figure, options, report

SERVERS = 3
SEED = 5
BATCH = 8192
HORIZONS = 5  # forecasts per stream: from 1/32 to 1/2 of all rows
LEAST_ROWS = 65_536  # seen before a first forecast: one block of the data


@dataclass
class Stream:
    """Rows of keys, one column per table. `keys(numbers)` gives the rows of these numbers."""

    name: str
    rows: int
    columns: int
    keys: Callable[[np.ndarray], np.ndarray]
    shuffled: bool = True


@dataclass
class Grown:
    """A stream's tables as they grew: rows seen, keys of all, bytes of all and of the fullest."""

    seen: list[float] = field(default_factory=list)
    keys: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    fullest: list[float] = field(default_factory=list)


def zipf(rng: np.random.Generator, exponent: float, vocabulary: int, count: int) -> np.ndarray:
    """Ranks by a bounded Zipf law."""
    shares = np.cumsum(np.arange(1, vocabulary + 1, dtype=float) ** -exponent)
    return np.searchsorted(shares, rng.random(count) * shares[-1])


def words(most: int) -> np.ndarray:
    """Words of Python's standard library in the order of its files, as numbers."""
    numbers: dict[str, int] = {}
    found: list[int] = []
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        if "site-packages" in path.parts or len(found) > most:
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        found += [numbers.setdefault(one, len(numbers)) for one in re.findall(r"\w+", text)]
    return np.array(found[:most], np.int64)


def sample(rows: int) -> Stream:
    """The Criteo-like sample."""
    from trimtab.core.data.keys import MISSING_KEY
    from trimtab.core.data.sample_rows import sample_rows

    chunk = 65_536
    kept = np.empty((rows, 26), np.int64)
    for first in range(0, rows, chunk):
        found = sample_rows(SEED, first, min(chunk, rows - first))
        kept[first : first + chunk] = np.where(found.keys_missing, MISSING_KEY, found.keys)
    return Stream("sample of Criteo's shape", rows, 26, lambda numbers: kept[numbers])


def streams(quick: bool) -> Iterator[Stream]:
    """All of them, one after the other: each is made when it is wanted."""
    rng = np.random.default_rng(SEED)
    rows, vocabulary = (1_000_000, 2_000_000) if quick else (6_000_000, 20_000_000)

    def one(name: str, keys: np.ndarray, shuffled: bool = True) -> Stream:
        return Stream(name, len(keys), 1, lambda numbers: keys[numbers][:, None], shuffled)

    yield sample(200_000 if quick else 3_000_000)
    for exponent in (1.05, 1.2) if quick else (0.8, 1.05, 1.2, 1.5):
        yield one(f"Zipf {exponent:g}", zipf(rng, exponent, vocabulary, rows))
    for keys in (200_000,) if quick else (50_000, 500_000, 3_000_000):
        yield one(f"{keys:,} keys drawn evenly", rng.integers(0, keys, rows))
    days = np.concatenate([zipf(rng, 1.1, 200_000, rows // 6) + 60_000 * day for day in range(6)])
    yield one("days", days)
    if quick:
        return
    text = words(rows)
    yield one("words", text)
    yield one("words in their order", text, shuffled=False)
    yield one("days in their order", days, shuffled=False)
    new = np.cumsum(rng.random(rows) < 0.05)
    recent = (new * (1 - rng.random(rows) ** 3)).astype(np.int64)
    yield one("new users in their order", np.maximum(recent, 0), shuffled=False)


def grow(stream: Stream) -> Grown:
    """Push the whole stream's keys into the tables of all servers."""
    from trimtab.core.data.numbering import Numbering
    from trimtab.core.domain.model_spec import VSHARDS, InitializerSpec, OptimizerSpec, TableSpec
    from trimtab.core.perf.memory import GROWTH_STEP
    from trimtab.core.ps.table import RowTable

    initial, rule = InitializerSpec("uniform", -0.05, 0.05), OptimizerSpec("adagrad")
    specs = tuple(TableSpec(f"t{n}", 16, "embedding", 0, initial, rule) for n in range(stream.columns))
    servers = [RowTable(specs, 1, 8 << 30) for _ in range(SERVERS)]
    owner = np.arange(VSHARDS) * SERVERS // VSHARDS
    batch = max(256, BATCH // stream.columns)
    numbering = Numbering(stream.rows, batch, seed=SEED)
    grown, next_at = Grown(), 0.0
    for number in range(numbering.batches):
        at = number * batch
        rows = numbering.rows_of(number) if stream.shuffled else np.arange(at, min(at + batch, stream.rows))
        push(servers, owner, stream.keys(rows))
        seen = min(at + batch, stream.rows)
        if seen >= next_at or number == numbering.batches - 1:
            next_at = seen * GROWTH_STEP
            held = [float(one.bytes_held) for one in servers]
            grown.seen.append(float(seen))
            grown.keys.append(float(sum(one.row_count for one in servers)))
            grown.total.append(sum(held))
            grown.fullest.append(max(held))
    return grown


def push(servers: list, owner: np.ndarray, keys: np.ndarray) -> None:
    """The keys of one batch, each born where its vshard lies."""
    parts: list[list[np.ndarray]] = [[] for _ in servers]
    for table in range(keys.shape[1]):
        distinct = np.unique(keys[:, table])
        place = owner[servers[0].vshards_of(table, distinct)]
        for number, part in enumerate(parts):
            part.append(distinct[place == number])
    for server, part in zip(servers, parts, strict=True):
        server.bear(server.find(np.concatenate(part), np.array([len(one) for one in part], np.uint32)))


@dataclass
class Judged:
    """What forecasts of one stream were worth: signed errors, those of the old rule, whether the range held."""

    stream: Stream
    errors: list[float]
    power: list[float]
    held: list[bool]
    law: str
    megabytes: float


def judge(stream: Stream, grown: Grown, times: float = 2.0) -> Judged:
    """Forecasts at several horizons, each from what was counted until then."""
    from trimtab.core.perf.memory import USUAL_EXPONENT, Growth, KeyGrowth
    from trimtab.core.perf.memory import grown as more

    seen = np.array(grown.seen)
    judged = Judged(stream, [], [], [], "", grown.total[-1] / 2**20)
    first = max(LEAST_ROWS if stream.rows > 8 * LEAST_ROWS else stream.rows / 8, stream.rows / 32)
    for horizon in np.geomspace(first, stream.rows / times, HORIZONS):
        here = int(np.searchsorted(seen, horizon * (1 + 1e-9), side="right")) - 1
        then = int(np.argmin(np.abs(seen - times * seen[here])))
        samples: tuple[Growth, ...] = ()
        for rows, keys in zip(grown.seen[: here + 1], grown.keys[: here + 1], strict=True):
            samples = more(samples, Growth(rows, keys))
        fit = KeyGrowth(samples)
        each = grown.fullest[here] / grown.keys[here]  # bytes of the fullest per key of all
        said, truth = fit.at(float(seen[then])).scaled(each), grown.fullest[then]
        judged.errors.append(said.middle / truth - 1)
        judged.power.append(grown.fullest[here] * (seen[then] / seen[here]) ** USUAL_EXPONENT / truth - 1)
        judged.held.append(said.low <= truth <= said.high)
        judged.law = fit.law
    return judged


def main() -> int:
    chosen = options(__doc__ or "")
    found: list[Judged] = []
    further: list[float] = []
    for stream in streams(chosen.quick):
        grown = grow(stream)
        judged = judge(stream, grown)
        further.append(statistics.median(map(abs, judge(stream, grown, 4.0).errors)))
        found.append(judged)
        shown = ", ".join(f"{100 * one:+.1f}" for one in judged.errors)
        print(f"{stream.name}: {judged.megabytes:.0f} MB at the end; errors at 2x {shown} %; {judged.law}", flush=True)
    medians = [statistics.median(map(abs, one.errors)) for one in found]
    job = [one for one in found if one.stream.shuffled]
    worst = max(job, key=lambda one: max(map(abs, one.errors)))
    disordered = [max(map(abs, one.errors)) for one in found if not one.stream.shuffled]
    held = [one for each in job for one in each.held]
    unshuffled = f"; worst in the order of the data {max(disordered):.3f}" if disordered else ""
    each = [abs(error) for one in job for error in one.errors]
    over = sum(one > 0.03 for one in each)
    figures = [
        Figure("error_at_2x", statistics.median(medians), "1", 0.03, "lower",
               f"of the fullest server's bytes; {len(found)} streams, {min(medians):.4f} to {max(medians):.4f} each"),
        Figure("worst_error_at_2x", max(map(abs, worst.errors)), "1", None, "lower",
               f"{worst.stream.name}; {over} of {len(each)} forecasts of shuffled streams are off by more than 0.03"
               f"{unshuffled}"),
        Figure("error_at_4x", statistics.median(further), "1", None, "lower", "the same, four times the rows"),
        Figure("memory_coverage_80", statistics.mean(held), "1", None, "higher",
               f"of {len(held)} ranges, shuffled streams"),
        Figure("fixed_power_error_at_2x", statistics.median(abs(e) for one in found for e in one.power), "1", None,
               "lower", "with rows^0.73 for every stream"),
    ]  # fmt: skip
    report("Forecasts of parameter servers' memory", figures, chosen.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
