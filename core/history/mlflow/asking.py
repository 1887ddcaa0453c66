"""Questions to MLflow and what its answers mean, made by pure functions.

Its search language cannot say everything (quotes of both kinds, an empty value), so a search finds at least what is
wanted, and whoever asked compares afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trimtab.core.history.mlflow import rows

if TYPE_CHECKING:
    from mlflow.entities import Run


def equalities(tags: Mapping[str, str]) -> list[str]:
    """A search that finds at least what carries `tags`; what the store's language can't say is compared afterwards."""
    known = [equals(key, rows.tag_value(value)) for key, value in tags.items() if rows.searchable(key)]
    return [one for one in known if one is not None]


def half_made(run: Run) -> bool:
    """Whether a run of ours is just being made: it is neither there yet nor broken."""
    return rows.RUN_ID in run.data.tags and rows.WRITTEN not in run.data.tags


def equals(key: str, value: str) -> str | None:
    """A condition of a search, None where its language cannot say it."""
    if not value or "\\" in value or ("'" in value and '"' in value):
        return None
    quote = '"' if "'" in value else "'"
    return f"tags.`{key}` = {quote}{value}{quote}"


def whole_number(text: str | None, default: int) -> int:
    """The number in a tag, `default` where there is none."""
    try:
        return int(text) if text is not None else default
    except ValueError:
        return default


def first_line(error: BaseException) -> str:
    """What a person can use of a library's message: its first line, shortened."""
    lines: list[Any] = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= 200 else text[:199] + "…"
