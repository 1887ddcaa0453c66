"""`trimtab data`: sample rows and a look at a file, each a thin call into the data room.

Kept apart from `cli` so that `trimtab --help` loads neither NumPy nor pyarrow.
"""

from __future__ import annotations

import json

from trimtab.core.cli_display import Line, say


def sample(rows: int, out: str, seed: int) -> None:
    """Write `rows` sample rows to `out` and say so on stdout.

    Raises:
        BadInput: the ending of `out` is unknown, or the place cannot be written.
    """
    from trimtab.core.data.sample import write_sample

    with Line() as line:
        write_sample(out, rows, seed, line.show)
    say(f"{out}: {rows} rows, seed {seed}")


def describe(source: str, columns: str | None, *, as_json: bool) -> None:
    """Print what is in `source` as text, or as one JSON object.

    Raises:
        BadInput: the rows cannot be read, or the columns file does not fit them.
    """
    from trimtab.core.controller.places import home
    from trimtab.core.data.describe import describe as describe_rows

    found = describe_rows(source, columns, home() / "cache" / "data")
    say(json.dumps(found.as_dict(), allow_nan=False) if as_json else found.as_text())
