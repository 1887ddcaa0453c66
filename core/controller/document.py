"""The state document: the one small thing that a controller's successor needs.

It is changed by compare-and-swap only and carries term, routing and manifest together, so a stale controller cannot
change any of them. Everything else (the ledger, who serves what) is learned again from parameter servers and the
manifest; handing out a data shard writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from trimtab.core.domain.job import JobSpec, JobState
from trimtab.core.domain.plan import Plan
from trimtab.core.domain.records import Decision
from trimtab.core.errors import BadInput, StaleState, WireError
from trimtab.core.ps.manifest import ManifestRef
from trimtab.core.wire.encode import from_json, to_json
from trimtab.core.wire.messages import Routing

FORMAT = 1  # of the document; rises when a field changes meaning
MOST_DECISIONS = 50


@dataclass(frozen=True)
class Document:
    """A job's state.

    Attributes:
        job_id, spec: fixed for the job.
        plan: in force. term: of the controller in charge.
        manifest: the committed checkpoint. routing: who serves what.
        decisions: the last 50.
        state, reason: where the job is, and why if it did not end well.
        version: of this document; raised by the store with each change. 0: not stored yet.
        format: of its fields.
    """

    job_id: str
    spec: JobSpec
    plan: Plan
    manifest: ManifestRef
    term: int = 0
    routing: Routing = field(default_factory=Routing)
    decisions: tuple[Decision, ...] = ()
    state: JobState = JobState.RUNNING
    reason: str = ""
    version: int = 0
    format: int = FORMAT

    def decided(self, decision: Decision) -> Document:
        """This document with one more decision; the oldest is dropped when there are too many."""
        return replace(self, decisions=(*self.decisions, decision)[-MOST_DECISIONS:])


@dataclass(frozen=True)
class _Header:
    """What is read first, so that a newer document is refused by its number and not by a strange field."""

    format: int


def encode_document(document: Document) -> bytes:
    """The document as stored."""
    return to_json(document)


def decode_document(data: bytes) -> Document:
    """The document that `data` holds.

    Raises:
        BadInput: written by a newer trimtab. WireError: not a state document.
    """
    header = from_json(_Header, data)
    if header.format > FORMAT:
        raise BadInput("state document format", header.format, f"this trimtab reads up to {FORMAT}; use a newer one")
    if header.format < 1:
        raise WireError(f"state document format {header.format} does not exist")
    return from_json(Document, data)


def check_swap(present: Document | None, expected: int) -> None:
    """The comparison of every store's compare-and-swap.

    Raises:
        StaleState: the stored version is not `expected`.
    """
    version = present.version if present is not None else 0
    if version != expected:
        raise StaleState(f"state document is at version {version}, not {expected}: another controller has changed it")
