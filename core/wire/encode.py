"""Messages as JSON bytes and back, checked.

One codec for the control plane, the state document, configs and manifests, so that "what does it look like on disk or
on the wire" has one answer: the dataclass. msgspec checks every field's type while decoding; anything else than what
the dataclass says is a `WireError`, never a half-filled object.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from trimtab.core.errors import WireError

T = TypeVar("T")


def to_json(message: object) -> bytes:
    """`message` (a dataclass, or plain containers of them) as JSON."""
    return msgspec.json.encode(message)


def from_json(kind: type[T], data: bytes) -> T:
    """The `kind` that `data` holds.

    Raises:
        WireError: not JSON, a field missing, or of another type.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise WireError(f"{kind.__name__}: cannot be decoded: {error}") from error
    except (ValueError, RecursionError) as error:
        raise WireError(f"{kind.__name__}: refused by its own checks: {error}") from error


def read_json(kind: type[T], path: str | Path) -> T:
    """The `kind` stored in the file at `path` (raises OSError or WireError)."""
    return from_json(kind, Path(path).read_bytes())
