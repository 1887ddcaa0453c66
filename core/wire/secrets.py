"""The job's secret: 32 random bytes in a file that only its owner can read.

Every call on both planes proves knowledge of it. It never stands in the environment, in arguments, in the state
document, in tags or in logs: processes get the file's path.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets as random_secrets
import stat
from pathlib import Path

from trimtab.core.errors import Refused

SECRET_BYTES = 32


def new_secret(path: Path) -> bytes:
    """Make a secret and store it at `path` with mode 0600; the file must not exist."""
    secret = random_secrets.token_bytes(SECRET_BYTES)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(handle, secret)
        os.fsync(handle)
    finally:
        os.close(handle)
    return secret


def read_secret(path: Path | str) -> bytes:
    """The secret at `path`.

    Raises:
        Refused: the file is readable by others, or is not a secret.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        if mode & 0o077:
            raise Refused(f"secret file has mode {mode:o}; it must be readable by its owner only (600)")
        secret = os.read(handle, SECRET_BYTES + 1)
    finally:
        os.close(handle)
    if len(secret) != SECRET_BYTES:
        raise Refused(f"secret file holds {len(secret)} bytes, not {SECRET_BYTES}")
    return secret


def proof(secret: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 over the parts, each preceded by its length, so that no two part lists look alike."""
    mac = hmac.new(secret, digestmod=hashlib.sha256)
    for part in parts:
        mac.update(len(part).to_bytes(8, "little"))
        mac.update(part)
    return mac.digest()


def same(one: bytes, other: bytes) -> bool:
    """Whether two proofs are equal, in constant time."""
    return hmac.compare_digest(one, other)
