"""What a user's code raised, as one line he can act on.

Tracebacks through Keras and TensorFlow are hundreds of lines, of which one names the user's file and one says what is
wrong. Keras also wraps errors into messages that begin with a line without content and are coloured for a terminal.
"""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path

from trimtab.core.errors import ModelError
from trimtab.core.training.rules import FIELD

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_WRAPPED = re.compile(r"^(Exception encountered when calling|in user code)")
_OWN = str(Path(__file__).resolve().parent)


def first_line(error: BaseException) -> str:
    """The first line of an error's text that says something, with the error's type."""
    lines = [line.strip() for line in _COLOURS.sub("", str(error)).splitlines() if line.strip()]
    if len(lines) > 1 and _WRAPPED.match(lines[0]):
        lines = [f"{lines[0].rstrip(':.')}: {lines[1]}"]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def user_error(name: str, error: BaseException, what: str) -> ModelError:
    """An exception of the user's code: what failed, his file and line if any, the error's own first line."""
    place = place_in_user_code(error)
    return ModelError(FIELD, name, f"{what}{f' at {place}' if place else ''}: {first_line(error)}")


def place_in_user_code(error: BaseException) -> str:
    """file:line of the innermost frame that is neither Python's, an installed package's nor trimtab's; or ""."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = str(Path(frame.filename).resolve())
        foreign = frame.filename.startswith("<") or "site-packages" in path or path.startswith((sys.base_prefix, _OWN))
        if not foreign:
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return ""
