"""Frozen bytes of docs/formats.md: the handshake, and the keys of every JSON that outlives or crosses a process.

The proofs were computed apart from the product, from the page's words alone.
"""

import json

import pytest

from trimtab.core.controller.document import FORMAT, Document, encode_document
from trimtab.core.domain.job import JobSpec
from trimtab.core.domain.plan import Plan, RolePlan
from trimtab.core.ps.manifest import ManifestRef
from trimtab.core.wire.encode import to_json
from trimtab.core.wire.handshake import accept, connect
from trimtab.core.wire.messages import PROTOCOL, PsConfig, WorkerConfig

SECRET, JOB, SERVER, WORKER = b"s" * 32, "job", "11" * 16, "22" * 16
HELLO = "54544853" "0100" "0000"
FROM_SERVER = HELLO + "aa" * 16 + SERVER
FROM_WORKER = HELLO + "bb" * 16 + WORKER + "02703746db9912f61b9b9cffafc6e70158849ac38045e8cb8a1e47695e9f1a71"
ACCEPTED = "831b37fdd3f0feac07cd0af70ed3add277268d1f89fe1defbf4f2dac09bc8ba6"


class Scripted:
    """A stream whose other end says what it was told to."""

    def __init__(self, given):
        self.given, self.sent = bytes.fromhex(given), b""

    def sendall(self, data):
        self.sent += data

    def recv(self, size):
        piece, self.given = self.given[:size], self.given[size:]
        return piece


@pytest.mark.parametrize(
    ("side", "me", "other", "nonce", "given", "said"),
    [
        (accept, SERVER, WORKER, b"\xaa", FROM_WORKER, FROM_SERVER + ACCEPTED),
        (connect, WORKER, SERVER, b"\xbb", FROM_SERVER + ACCEPTED, FROM_WORKER),
    ],
)
def test_the_handshake_is_frozen(monkeypatch, side, me, other, nonce, given, said):
    monkeypatch.setattr("secrets.token_bytes", lambda size: nonce * size)
    stream = Scripted(given)
    assert side(stream, SECRET, JOB, me) == other
    assert stream.sent.hex() == said
    assert stream.given == b""


def test_configs_have_their_keys():
    ps = json.loads(to_json(PsConfig("job", "ps-0", 1, "s", "c", "d", "m", 0, 1, 1, 1.0)))
    assert list(ps) == [
        "job_id", "pod", "term", "secret_file", "control_address", "data_address", "model", "seed", "batches",
        "memory_bytes", "orphan_grace_seconds", "controller_address", "snapshots",
        "snapshot_seconds", "snapshot_bytes", "snapshot_deadline_seconds", "snapshot_share",
        "log", "protocol",
    ]  # fmt: skip
    worker = json.loads(to_json(WorkerConfig("job", "worker-0", 1, "s", "c", "spec", "m", "d", "", 1, 1.0)))
    assert list(worker) == [
        "job_id", "pod", "term", "secret_file", "controller_address", "spec", "model", "dataset", "validation_dataset",
        "threads", "orphan_grace_seconds", "log", "protocol",
    ]  # fmt: skip
    assert ps["protocol"] == worker["protocol"] == PROTOCOL == 4


def test_the_state_document_has_its_keys():
    plan = Plan(RolePlan(1, 0.5, 2**28), RolePlan(2, 1.0, 2**30))
    document = json.loads(encode_document(Document("job", JobSpec("rows.csv"), plan, ManifestRef("m.json", "00ff"))))
    assert list(document) == [
        "job_id", "spec", "plan", "manifest", "term", "routing", "decisions", "state", "reason", "version", "format",
    ]  # fmt: skip
    assert list(document["manifest"]) == ["path", "checksum"]
    assert list(document["routing"]) == ["version", "processes", "addresses", "owner", "since"]
    assert document["format"] == FORMAT == 1
