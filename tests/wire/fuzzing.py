"""Attacks on both planes, each made from its own seed and number, so that any of them can be made again.

An attack is a function of (random, target) that says how many refusals it must have caused at least. Frames and
messages start valid and are then broken in one or a few places, for most random bytes die at the first check; those
are sent, too. What is well made and allowed to change something (a higher term, an end of a tenure) is left out.
"""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

import grpc
import numpy as np

from trimtab.core.domain.model_spec import VSHARDS, InitializerSpec, OptimizerSpec, TableSpec
from trimtab.core.errors import WireError
from trimtab.core.wire import frames, handshake
from trimtab.core.wire.commands import JobCommand
from trimtab.core.wire.encode import from_json
from trimtab.core.wire.frames import RequestHeader
from trimtab.core.wire.handshake import new_process_id
from trimtab.core.wire.messages import PROTOCOL, MoveRequest, PsSync, WorkerSync
from trimtab.core.wire.secrets import proof

# What the attacked process serves: a worker and an attacker may know all of it.
SECRET, JOB, PROCESS, SINCE, BATCHES = b"f" * 32, "job", "ab" * 16, 3, 10
EVERY = (1 << VSHARDS) - 1
TABLES = tuple(
    TableSpec(name, dim, "embedding", 0, InitializerSpec("uniform", -0.05, 0.05), OptimizerSpec("sgd"))
    for name, dim in (("a", 4), ("b", 4), ("wide", 1))
)

PATIENCE_SECONDS = 20.0  # without an answer that long the target hangs
HIGHEST_TERM = 1000
NUMBERS = (0, 1, 2, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
NOT_BITMAPS = ("", "0x1", "-1", "+f", "1_1", " f", "f\n", "zz", "١٢", "F" * 128, "f" * 129, "f" * 100_000, "\x00")
PS_SYNC, WORKER_SYNC = "/trimtab.ParameterServer/Sync", "/trimtab.Controller/WorkerSync"
JOB_COMMAND = "/trimtab.Controller/JobCommand"


@dataclass(frozen=True)
class Target:
    """Where the attacked process listens; `ps`, `workers`: channels to its two control planes."""

    data: str
    directory: str
    pod: str
    worker: str
    ps: grpc.Channel
    workers: grpc.Channel


Attack = Callable[[random.Random, Target], int]


def broken(chance: random.Random, data: bytes) -> bytes:
    """`data` with a few of its bytes changed, cut out, doubled or cut off."""
    made = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(made) + 1)
        kind = chance.randrange(5)
        if kind == 0 and at < len(made):
            made[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            made[at : at + chance.randint(1, 8)] = chance.randbytes(chance.randint(0, 8))
        elif kind == 2:
            del made[at : at + chance.randint(1, 40)]
        elif kind == 3:
            made[at:at] = made[: chance.randint(0, 60)]
        else:
            del made[at:]
    return bytes(made)


# ---- data plane


def dialled(target: Target) -> socket.socket:
    host, _, port = target.data.removeprefix("tcp:").rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE_SECONDS)


def said(line: socket.socket, data: bytes) -> bytes:
    """Send, say that this was all, and read whatever comes until the other side closes."""
    found = b""
    with line:
        try:
            line.sendall(data)
            line.shutdown(socket.SHUT_WR)
            while piece := line.recv(1 << 16):
                found = (found + piece)[-4096:]
        except TimeoutError:
            raise
        except OSError:  # it was quicker to close
            pass
    return found


def shaken(target: Target) -> socket.socket:
    """A line that has proved the secret."""
    line = dialled(target)
    handshake.connect(line, SECRET, JOB, new_process_id(), PROCESS)
    return line


def noise(chance: random.Random, target: Target) -> int:
    """Anything instead of a handshake."""
    said(dialled(target), chance.randbytes(chance.choice([0, 1, 63, 64, 98, 99, 500, 5000])))
    return 1


def false_handshake(chance: random.Random, target: Target) -> int:
    """The right form with another secret, job, version, or a proof of something else."""
    line = dialled(target)
    hello = b""
    while len(hello) < 40:
        hello += line.recv(40 - len(hello))
    magic, version, theirs, server = struct.unpack("<4sHxx16s16s", hello)
    secret, job, nonce, me = SECRET, JOB, chance.randbytes(16), chance.randbytes(16)
    fault = chance.randrange(6)
    secret = chance.randbytes(32) if fault == 0 else secret
    job = "another job" if fault == 1 else job
    version = chance.choice([0, 2, 65535]) if fault == 2 else version
    role = b"ps" if fault == 3 else b"worker"  # a reflected proof
    theirs = chance.randbytes(16) if fault == 4 else theirs  # a replayed one
    parts = (job.encode(), theirs, nonce, server, me)
    answer = struct.pack("<4sHxx16s16s", magic, version, nonce, me) + proof(secret, role, *parts)
    found = said(line, answer[: chance.randrange(len(answer))] if fault == 5 else answer)
    assert found in (b"", bytes(32)), "a false proof was answered"
    return 1


def good_frame(chance: random.Random) -> tuple[RequestHeader, bytes]:
    """A well-formed frame of any kind that changes nothing."""
    kind = chance.choice(["push", "pull", "both", "skipped", "move", "held"])
    if kind in ("move", "held"):
        body = json.dumps(question(chance, kind)).encode()
        return RequestHeader(frames.MOVE if kind == "move" else frames.HELD, len(TABLES), body_bytes=len(body)), body
    flags, parts, head = 0, b"", b""
    counts = [np.array([chance.randrange(6) for _ in TABLES], np.uint32) for _ in range(2)]
    pushes, pulls = kind != "pull", kind in ("pull", "both")
    if kind == "skipped":
        flags, counts[0] = frames.SKIPPED, np.zeros(len(TABLES), np.uint32)
    for wanted, flag, count in ((pushes, frames.PUSH, counts[0]), (pulls, frames.PULL, counts[1])):
        flags |= flag if wanted else 0
        head += count.tobytes() if wanted else b""
    parts = padded(head)
    keys = [np.array([chance.randint(-(2**63), 2**63 - 1) for _ in range(count.sum())], np.int64) for count in counts]
    if pushes:
        if kind != "skipped" and chance.random() < 0.7:
            flags |= frames.KEYS
            parts = padded(parts + keys[0].tobytes())
        floats = sum(int(n) * table.dim for n, table in zip(counts[0], TABLES, strict=True))
        parts += np.full(floats, chance.choice([1.0, float("nan"), float("inf")]), np.float32).tobytes()
        parts = padded(parts) if pulls else parts
    parts += keys[1].tobytes() if pulls else b""
    flags |= frames.DEFAULTS if pulls and chance.random() < 0.3 else 0
    token = chance.choice([0, 1, 2, 2**64 - 1])
    rate = chance.choice([0.0, 0.5, float("nan"), float("inf")])
    cover = chance.choice([EVERY, 0, chance.getrandbits(512)])
    number = chance.choice([0, 5, 9, -1, 10, 2**63 - 1, -(2**63)])
    header = RequestHeader(flags, len(TABLES), number, token, token, rate, len(parts), cover, chance.getrandbits(512))
    return header, parts


def padded(data: bytes) -> bytes:
    return data.ljust(frames.padded(len(data)), b"\0")


def question(chance: random.Random, kind: str) -> dict[str, object]:
    some = f"{chance.getrandbits(512):0128x}"
    bitmap = chance.choice([*NOT_BITMAPS, "0", some, f"{1 << chance.randrange(512):x}"])
    if kind == "held":
        return {"vshards": bitmap}
    return {
        "vshards": bitmap, "since": chance.choice([0, 4, -1, *NUMBERS[6:]]),
        "changes": chance.random() < 0.5, "final": chance.random() < 0.5,
    }  # fmt: skip


def ends_a_tenure(body: bytes) -> bool:
    try:
        request = from_json(MoveRequest, body)
    except WireError:
        return False
    return request.final and request.since == SINCE


def frame_attack(chance: random.Random, target: Target) -> int:
    """A frame of one who knows the secret, broken in its header, its body, its counts or its length."""
    header, body = good_frame(chance)
    raw = bytearray(header.pack())
    fault = chance.randrange(7)
    if fault == 0:
        struct.pack_into("<I", raw, 8, chance.choice([chance.getrandbits(32), 1 << chance.randrange(32), 96, 33, 65]))
    elif fault == 1:
        struct.pack_into("<Q", raw, 56, chance.choice(NUMBERS))
    elif fault == 2:
        struct.pack_into("<I", raw, 12, chance.choice(NUMBERS[:9]))
    elif fault == 3 and len(body) >= 4:
        made = bytearray(body)
        struct.pack_into("<I", made, 4 * chance.randrange(min(len(body) // 4, 6)), chance.choice(NUMBERS[:9]))
        body = bytes(made)
    elif fault == 4:
        body = broken(chance, body)
        if chance.random() < 0.5:
            struct.pack_into("<Q", raw, 56, len(body))
    elif fault == 5:
        raw = bytearray(broken(chance, bytes(raw)))
    if not ends_a_tenure(body):
        said(shaken(target), bytes(raw) + body)
    return 0


def oversized_frame(chance: random.Random, target: Target) -> int:
    """A body beyond every bound, or one that is promised and never comes."""
    size = chance.choice([frames.MAX_BODY_BYTES + 1, 2**63, 2**64 - 1, frames.MAX_BODY_BYTES, 1 << 20])
    said(shaken(target), RequestHeader(frames.PULL, len(TABLES), body_bytes=size).pack() + chance.randbytes(100))
    return 1


def large_pull(chance: random.Random, target: Target) -> int:
    """Allowed, and the largest that anybody would send: its memory must be given back."""
    count = chance.choice([1000, 200_000])
    counts = np.array([count] + [0] * (len(TABLES) - 1), np.uint32)
    body = padded(counts.tobytes()) + np.arange(count, dtype=np.int64).tobytes()
    header = RequestHeader(frames.PULL, len(TABLES), -1, 0, chance.getrandbits(63), 0.0, len(body), 0, EVERY)
    found = said(shaken(target), header.pack() + body)
    assert found, "a good pull was not answered"
    return 0


# ---- control planes


def call(channel: grpc.Channel, method: str, body: bytes, metadata: tuple[tuple[str, str], ...]) -> grpc.StatusCode:
    """The status of one call; a crash of the other side would be UNAVAILABLE, a fault in its handler UNKNOWN."""
    try:
        channel.unary_unary(method)(body, timeout=PATIENCE_SECONDS, metadata=metadata)
    except grpc.RpcError as error:
        code = error.code()
        assert code not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED), (code, error.details())
        return code
    return grpc.StatusCode.OK


def signed(method: str, body: bytes, secret: bytes = SECRET) -> tuple[tuple[str, str], ...]:
    mac = proof(secret, method.encode(), body).hex()
    return (("x-trimtab-proof", mac), ("x-trimtab-protocol", str(PROTOCOL)))


def planes(target: Target) -> list[tuple[grpc.Channel, str]]:
    """Whom one can call for what."""
    return [(target.ps, PS_SYNC), (target.workers, WORKER_SYNC), (target.workers, JOB_COMMAND)]


def unsigned_call(chance: random.Random, target: Target) -> int:
    """A call without, with another's, or with another body's proof, or of another protocol."""
    channel, method = chance.choice(planes(target))
    body = json.dumps(message(chance, target, method)).encode()
    right, fault = signed(method, body), chance.randrange(5)
    if fault == 0:
        metadata: tuple[tuple[str, str], ...] = ()
    elif fault == 1:
        metadata = signed(method, body, chance.randbytes(32))
    elif fault == 2:
        metadata = signed(method, body + b" ")
    elif fault == 3:
        metadata = (right[0], ("x-trimtab-protocol", chance.choice(["3", "5", "", "4.0", "x" * 1000])))
    else:
        metadata = (("x-trimtab-proof", chance.choice(["", "0" * 64, "x" * 4000])), right[1])
    code = call(channel, method, body, metadata)
    refusals = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.FAILED_PRECONDITION)
    assert code in (*refusals, grpc.StatusCode.RESOURCE_EXHAUSTED), code  # gRPC itself refuses long metadata
    return 0


def message(chance: random.Random, target: Target, method: str) -> dict[str, object]:
    """A message of the right form; what it says is refused or changes nothing."""
    odd = chance.choice([*NUMBERS, -1, 10**30, 1.5, "1", None, [], {}])
    bitmap = chance.choice([*NOT_BITMAPS, "0", "f" * 128])
    if method == PS_SYNC:
        made: dict[str, object] = {
            "job_id": chance.choice([JOB, JOB, "other"]), "term": chance.choice([1, 4, 5, odd]), "sequence": 1,
            "process": chance.choice([PROCESS, PROCESS, "", "cd" * 16, odd]),
        }  # fmt: skip
        origin = {"process": "ef" * 16, "address": "unix:/nowhere", "since": 1}
        order = {"vshards": bitmap, "since": chance.choice([0, 1, SINCE, -1]), "manifest": "/nowhere"}
        made["serve"] = chance.choice([[], [order], [{**order, "origin": origin}] * 600, odd])
        made["drop"] = chance.choice([[], [{"vshards": bitmap, "since": chance.choice([0, SINCE])}], odd])
        made["prepare"] = chance.choice([[], [{"vshards": bitmap, "origin": {**origin, "since": 0}}], odd])
        return made
    if method == JOB_COMMAND:
        return {
            "job_id": chance.choice([JOB, JOB, JOB, "other", "", odd]),
            "command": chance.choice(["status", "stop", "checkpoint", "status ", "", "x" * 5000, odd]),
            "now": chance.choice([True, False, odd]),
        }
    loss = {"number": chance.choice([0, 5, odd]), "loss": chance.choice([0.5, None, -1e308, odd]), "rows": 8}
    labels = chance.choice(["", "AAAAAAA="])
    scores = {"number": chance.choice([0, odd]), "scores": "AAAA", "labels": labels, "weights": ""}
    return {
        "job_id": JOB, "term": chance.choice([1, 1, 1, 0, odd]), "pod": chance.choice([target.pod, target.pod, "x"]),
        "process": chance.choice([target.worker, "ab"]), "want": chance.choice([0, 1, 2, odd]),
        "finished": chance.choice([[], [1, 2, 3], [odd]]), "routing_version": chance.choice([0, 1, odd]),
        "losses": chance.choice([[], [loss], [loss] * 300]), "scores": chance.choice([[], [scores]]),
        "phase_seconds": chance.choice([{}, {"compute": 0.1}, {str(n): 0.1 for n in range(chance.randrange(1000))}]),
        "max_gap_seconds": chance.choice([0.0, 1e300, odd]), "trouble": chance.choice([True, False, odd]),
    }  # fmt: skip


def signed_call(chance: random.Random, target: Target) -> int:
    """A call of one who knows the secret, with a message that is odd, broken, deep or long."""
    channel, method = chance.choice(planes(target))
    body = json.dumps(message(chance, target, method)).encode()
    fault = chance.randrange(6)
    if fault in (0, 1):
        body = broken(chance, body)
    elif fault == 2:
        depth = chance.choice([10, 5000, 200_000])
        body = body[:-1] + b', "more": ' + b"[" * depth + b"]" * chance.choice([depth, 0]) + b"}"
    elif fault == 3:
        body = chance.choice([b"", b"null", b"[]", b"{}", b'"x"', b"\xff\xfe", chance.randbytes(300), b"9" * 5000])
    if allowed(method, body):
        call(channel, method, body, signed(method, body))
    return 0


def allowed(method: str, body: bytes) -> bool:
    """Not what a controller may well say: a term so high that others are refused, or an order to do something."""
    try:
        if method == JOB_COMMAND:
            return from_json(JobCommand, body) is not None
        if method != PS_SYNC:
            return from_json(WorkerSync, body) is not None
        request = from_json(PsSync, body)
    except WireError:
        return True
    news = any(order.since > SINCE for order in (*request.serve, *request.drop))
    return request.term <= HIGHEST_TERM and request.copy is None and not news


def unknown_method(chance: random.Random, target: Target) -> int:
    method = chance.choice(["/trimtab.ParameterServer/Stop", "/x/y", WORKER_SYNC])
    code = call(target.ps, method, b"{}", signed(method, b"{}"))
    assert code is grpc.StatusCode.UNIMPLEMENTED, code
    return 0


def long_call(chance: random.Random, target: Target) -> int:
    """Longer than a parameter server takes from anybody."""
    body = b" " * (9 << 20)
    assert call(target.ps, PS_SYNC, body, signed(PS_SYNC, body)) is grpc.StatusCode.RESOURCE_EXHAUSTED
    return 0


def control_noise(chance: random.Random, target: Target) -> int:
    """No gRPC at all."""
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(PATIENCE_SECONDS)
    line.connect(f"{target.directory}/{chance.choice(['ps', 'controller'])}.sock")
    start = chance.choice([b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"])
    said(line, start + chance.randbytes(chance.randrange(600)))
    return 0


ATTACKS: tuple[tuple[Attack, int], ...] = (
    (noise, 3), (false_handshake, 5), (frame_attack, 30), (oversized_frame, 3), (large_pull, 1), (unsigned_call, 6),
    (signed_call, 20), (unknown_method, 1), (control_noise, 3),
)  # fmt: skip
RARE: tuple[Attack, ...] = (long_call,)


def attack(seed: int, number: int, target: Target) -> int:
    """Make attack `number` of `seed`; returns how many refusals by the data plane it must have caused."""
    chance = random.Random(f"{seed}/{number}")
    if number % 500 == 499:
        return chance.choice(RARE)(chance, target)
    kinds, weights = zip(*ATTACKS, strict=True)
    return chance.choices(kinds, weights)[0](chance, target)

