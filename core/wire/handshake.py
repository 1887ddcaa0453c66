"""How a data-plane connection begins: both sides prove the job's secret and say who they are.

Three small fixed messages over a fresh socket. The proof covers both nonces and both process ids, so it can neither be
replayed to another process nor reflected. A peer of another protocol version, job or secret is refused before it can
send a frame.

server -> client   magic, version, nonce[16], ps process id[16]
client -> server   magic, version, nonce[16], worker process id[16], proof(secret, "worker", job, both nonces, both ids)
server -> client   proof(secret, "ps", job, both nonces, both ids), or 32 zero bytes to refuse
"""

from __future__ import annotations

import secrets
import struct
from typing import Protocol

from trimtab.core.errors import Refused, WireError
from trimtab.core.wire.frames import VERSION
from trimtab.core.wire.secrets import proof, same

ID_BYTES = 16
_MAGIC = b"TTHS"
_HELLO = struct.Struct(f"<4sHxx16s{ID_BYTES}s")
_PROOF_BYTES = 32


class Stream(Protocol):
    """The two calls of a socket that a handshake needs."""

    def sendall(self, data: bytes, /) -> None:
        """Send everything."""
        ...

    def recv(self, size: int, /) -> bytes:
        """Receive up to `size` bytes; empty at the end."""
        ...


def new_process_id() -> str:
    """A random process id as 32 hexadecimal digits."""
    return secrets.token_hex(ID_BYTES)


def accept(stream: Stream, secret: bytes, job_id: str, process: str) -> str:
    """The server's side; returns the worker's process id.

    Raises:
        Refused: wrong secret, job or version. WireError: the peer broke off.
    """
    nonce, me = secrets.token_bytes(16), bytes.fromhex(process)
    stream.sendall(_HELLO.pack(_MAGIC, VERSION, nonce, me))
    magic, version, theirs, worker = _HELLO.unpack(_exactly(stream, _HELLO.size))
    given = _exactly(stream, _PROOF_BYTES)
    parts = (job_id.encode(), nonce, theirs, me, worker)
    if magic != _MAGIC or version != VERSION or not same(given, proof(secret, b"worker", *parts)):
        stream.sendall(bytes(_PROOF_BYTES))
        raise Refused("data connection refused: wrong secret, job or version")
    stream.sendall(proof(secret, b"ps", *parts))
    return bytes(worker).hex()


def connect(stream: Stream, secret: bytes, job_id: str, process: str, expected: str = "") -> str:
    """The client's side; returns the parameter server's process id.

    Raises:
        Refused: wrong secret, job or version, on either side.
        WireError: the peer broke off, or is not `expected` (a dead process's address was given to another).
    """
    magic, version, theirs, server = _HELLO.unpack(_exactly(stream, _HELLO.size))
    if expected and bytes(server).hex() != expected:
        raise WireError(f"another process than {expected[:12]} answers there")
    if magic != _MAGIC or version != VERSION:
        raise Refused(f"parameter server speaks version {version}; this worker speaks {VERSION}")
    nonce, me = secrets.token_bytes(16), bytes.fromhex(process)
    parts = (job_id.encode(), theirs, nonce, server, me)
    stream.sendall(_HELLO.pack(_MAGIC, VERSION, nonce, me) + proof(secret, b"worker", *parts))
    if not same(_exactly(stream, _PROOF_BYTES), proof(secret, b"ps", *parts)):
        raise Refused("parameter server did not accept or could not prove the job's secret")
    return bytes(server).hex()


def _exactly(stream: Stream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = stream.recv(size - len(data))
        if not piece:
            raise WireError("peer closed the connection during the handshake")
        data += piece
    return data
