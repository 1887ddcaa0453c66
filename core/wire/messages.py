"""The control plane's words: what controller, parameter servers and workers say to each other.

Plain frozen dataclasses, encoded as JSON by msgspec, which checks every type on arrival and refuses unknown shapes:
no pickle on a wire, no generated code, and a captured message can be read by eye. Every order is level-triggered: it
says what should be, is repeated until a report shows it done, and may arrive late, twice or never.

Three calls exist: the controller's `PsSync` to each parameter server, each worker's `WorkerSync` to the controller, and
a person's, in `commands.py`. `MoveRequest` travels between parameter servers on the data plane. Sets of vshards
travel as hexadecimal bitmaps (bit v of the little-endian integer = vshard v). Bounds of bitmaps, vshard numbers and
counts stand in the types, so that decoding refuses what breaks them and nobody behind it has to ask again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from trimtab.core.domain.intervals import Interval
from trimtab.core.domain.model_spec import VSHARDS
from trimtab.core.errors import Refused, WireError

PROTOCOL = 4  # rises when a message changes meaning; a peer with another number is refused

_BITMAP = rf"^[0-9a-f]{{1,{VSHARDS // 4}}}\Z"
Bitmap = Annotated[str, Meta(pattern=_BITMAP, max_length=VSHARDS // 4)]
MaybeBitmap = Annotated[str, Meta(pattern=rf"^\Z|{_BITMAP}", max_length=VSHARDS // 4)]  # "" for none
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
VshardNumber = Annotated[int, Meta(ge=0, lt=VSHARDS)]
MOST_FIGURES = 256  # entries of a dictionary of measurements: a peer can't make the controller's grow
Figures = Annotated[dict[str, float], Meta(max_length=MOST_FIGURES)]


def to_bitmap(vshards: list[int] | tuple[int, ...] | range) -> str:
    """Vshard numbers as the bitmap that messages carry."""
    bits = 0
    for vshard in vshards:
        bits |= 1 << vshard
    return f"{bits:0{VSHARDS // 4}x}"


def from_bitmap(text: str) -> list[int]:
    """The vshard numbers of a bitmap, ascending.

    Raises:
        WireError: no bitmap; `int` alone would take signs, spaces, underscores, prefixes and any length.
    """
    if not re.match(_BITMAP, text):
        raise WireError(f"bitmap of vshards {text[:40]!r} is not 1 to {VSHARDS // 4} lower-case hexadecimal digits")
    bits = int(text, 16)
    return [vshard for vshard in range(VSHARDS) if bits >> vshard & 1]


@dataclass(frozen=True)
class Routing:
    """Who serves which vshard: part of the state document, changed by compare-and-swap only.

    Attributes:
        version: rises with every change.
        processes: random ids of the parameter-server processes that own something, "" for an owner to be.
        addresses: data-plane address of each process (``tcp:HOST:PORT`` or ``unix:PATH``).
        owner: for each vshard, the place of its owner in `processes`, -1 for none.
        since: for each vshard, the routing version that made the owner its owner.
    """

    version: int = 0
    processes: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    owner: tuple[int, ...] = (-1,) * VSHARDS
    since: tuple[int, ...] = (0,) * VSHARDS


@dataclass(frozen=True)
class Origin:
    """A parameter server that holds vshards: process, data-plane address, and the tenure (since) of its rows."""

    process: str
    address: str
    since: int


@dataclass(frozen=True)
class ServeOrder:
    """Serve `vshards` since routing version `since`.

    Attributes:
        manifest: where the rows come from, unless `origin` names a parameter server that has fresher ones.
        origin: takes no more pushes for these vshards once it is asked, and hands them over.
    """

    vshards: Bitmap
    since: int
    manifest: str
    origin: Origin | None = None


@dataclass(frozen=True)
class PrepareOrder:
    """Keep a copy of `vshards` aside, fresh from `origin`, which goes on serving them. It grants nothing."""

    vshards: Bitmap
    origin: Origin


@dataclass(frozen=True)
class DropOrder:
    """Others serve `vshards` since `since` or later: rows of older tenures may go."""

    vshards: Bitmap
    since: int


@dataclass(frozen=True)
class Staged:
    """Vshards that are kept aside, from whom, and how many rows the last refresh brought."""

    vshards: Bitmap
    process: str
    since: int
    refreshed_rows: int


@dataclass(frozen=True)
class CopyOrder:
    """Write a copy of every vshard served since what `vshards` and the routing say into `directory`, once per id."""

    id: int
    directory: str


@dataclass(frozen=True)
class PsSync:
    """Controller to parameter server, several times a second: what should be.

    Attributes:
        job_id, term: lower terms and other jobs are refused.
        sequence: rises with each request; the report repeats it, so that the controller knows what it had seen.
        process: the process that is meant, "" when its id is not known yet.
        serve: everything that this process should serve.
        copy: copies to write, or None.
        prepare: vshards that it will get soon. drop: vshards that it has handed over.
        stop: leave in order.
        memory_bytes: the table may grow so far from now on, 0: as it was told before.
    """

    job_id: str
    term: Count
    sequence: Count
    process: str
    serve: tuple[ServeOrder, ...] = ()
    copy: CopyOrder | None = None
    stop: bool = False
    prepare: tuple[PrepareOrder, ...] = ()
    drop: tuple[DropOrder, ...] = ()
    memory_bytes: Count = 0


@dataclass(frozen=True)
class Served:
    """Vshards with one tenure and one applied set.

    Attributes:
        vshards: bitmap; since: the tenure.
        applied: batch numbers in the rows, skipped ones included; skipped: those that changed nothing.
    """

    vshards: Bitmap
    since: Count
    applied: tuple[Interval, ...]
    skipped: tuple[Interval, ...]


@dataclass(frozen=True)
class CopyEntry:
    """Where one vshard's copy lies: `length` bytes at `offset` of `file`, with its checksum and its sets.

    `set_index` is a place in the list of sets that the entry's container (`CopiesWritten`, manifest) carries.
    """

    vshard: VshardNumber
    since: Count
    file: str
    offset: Count
    length: Count
    checksum: str
    set_index: Count


@dataclass(frozen=True)
class CopySet:
    """Applied and skipped numbers that several copies share."""

    applied: tuple[Interval, ...]
    skipped: tuple[Interval, ...]


@dataclass(frozen=True)
class CopiesWritten:
    """The copies that a `CopyOrder` made (all of them durable), or the reason why not."""

    id: int
    entries: tuple[CopyEntry, ...] = ()
    sets: tuple[CopySet, ...] = ()
    error: str = ""

    def __post_init__(self) -> None:
        """Refuse entries whose set is not there (decoding makes a WireError of it)."""
        if self.entries and max(entry.set_index for entry in self.entries) >= len(self.sets):
            raise ValueError("an entry names a set that is not there")


@dataclass(frozen=True)
class PsReport:
    """Parameter server's answer to `PsSync`: what is.

    Attributes:
        process: this process's random id; address: where its data plane listens.
        sequence: of the request that this answers.
        served: all that is served, by tenure and set.
        loading: orders to serve that are still being carried out. writing: so is an order to write copies.
        load_error: why rows could not be read for the time being, "" once they could; the order may be given again.
        copies: result of the latest copy order, kept until the next one.
        rows, table_bytes: what the table holds (rows and index in use).
        pushes, duplicates: applied and dropped pushes (per message).
        slow_pushes: pushes that needed keys again or were only partly for this process.
        full: the table has no room: with an `error` for good; without one, new rows that workers push or that are to be
            loaded wait until it has.
        staged: what is kept aside. missing: ordered vshards (bitmap) whose named origin does not hold them.
        move_error: why what should be prepared can't be (no room, an origin out of reach), "" otherwise.
        cpu_seconds, rss_bytes: of the process, since its start and now.
        table_rows: rows of each table of the model. vshard_rows: of each vshard (512), () as last told.
        vshard_traffic: bytes of pushes per second to each vshard, lately, () as last told. table_traffic: likewise to
            each table.
        copying: copies or a snapshot are being written, which takes some of its cores.
        refused: connections and frames that were refused since the start.
        snapshots, snapshot_seconds: how many were written, and what the last one took.
        snapshot_error: why the last one was not, "" when it was.
        freeze_seconds: the longest time that vshards which this process took over were served by nobody.
        memory_bytes: how far the table may grow, 0: not told.
        busy_seconds: wall time since the start in which frames of workers were handled, all connections together;
            queue_seconds: in which they had arrived and waited for the lock.
    """

    process: str
    address: str
    sequence: Count
    served: tuple[Served, ...] = ()
    loading: bool = False
    copies: CopiesWritten | None = None
    rows: Count = 0
    table_bytes: Count = 0
    pushes: Count = 0
    duplicates: Count = 0
    slow_pushes: Count = 0
    cpu_seconds: float = 0.0
    rss_bytes: Count = 0
    error: str = ""
    full: bool = False
    staged: tuple[Staged, ...] = ()
    missing: MaybeBitmap = ""
    move_error: str = ""
    table_rows: tuple[int, ...] = ()
    vshard_rows: tuple[int, ...] = ()
    vshard_traffic: tuple[float, ...] = ()
    refused: int = 0
    snapshots: int = 0
    snapshot_seconds: float = 0.0
    snapshot_error: str = ""
    freeze_seconds: float = 0.0
    writing: bool = False
    load_error: str = ""
    memory_bytes: Count = 0
    busy_seconds: float = 0.0
    queue_seconds: float = 0.0
    table_traffic: tuple[float, ...] = ()
    copying: bool = False


@dataclass(frozen=True)
class HeldRequest:
    """Worker to parameter server, on the data plane: which batches are in the rows of `vshards`?"""

    vshards: Bitmap


@dataclass(frozen=True)
class HeldReply:
    """What of the asked vshards is served, by tenure and set; what is missing is not served."""

    served: tuple[Served, ...]


@dataclass(frozen=True)
class MoveRequest:
    """One parameter server to another, on the data plane: send rows of `vshards`, of the tenure `since`.

    Attributes:
        changes: only rows that changed since this process asked last; the reply covers what it was staging.
        final: end the tenure first (no more pushes are taken), and tell sets and sums.
    """

    vshards: Bitmap
    since: Count
    changes: bool = False
    final: bool = False


@dataclass(frozen=True)
class VshardSum:
    """What a vshard's copy must come to: how many rows, and the sum (modulo 2^64) of all rows' hashes."""

    vshard: VshardNumber
    rows: Count
    total: int


@dataclass(frozen=True)
class MoveReply:
    """The answer's head; keys (i64) and whole rows (f32) of each table follow it as they lie in memory.

    Attributes:
        vshards: those of the request that this is about; the others are not held in that tenure, or not tracked.
        counts: rows of each table. served: sets of the vshards; sums: of each vshard (both only when final).
        changed: keys in the list of changes that nobody has asked for yet: when it is long it is time to ask.
    """

    vshards: Bitmap
    counts: tuple[int, ...]
    served: tuple[Served, ...] = ()
    sums: tuple[VshardSum, ...] = ()
    changed: Count = 0


TRAIN, EVALUATE, METRICS = "train", "evaluate", "metrics"


@dataclass(frozen=True)
class Grant:
    """A data shard lent to a worker: batch numbers lo .. hi-1 of one kind of work.

    Attributes:
        id: names the loan in "finished".
        kind: train | evaluate | metrics (compute the compiled metrics over the merged scores at `path`).
        least_routing: the least routing version that the worker must use.
    """

    id: int
    kind: str
    lo: int
    hi: int
    least_routing: int
    path: str = ""


@dataclass(frozen=True)
class BatchLoss:
    """Loss of one batch: mean over its `rows` real rows; counted once per number. None: not finite."""

    number: Count
    loss: float | None
    rows: Count


@dataclass(frozen=True)
class BatchScores:
    """Scores of one evaluation batch: float32 little-endian arrays, equally long."""

    number: Count
    scores: bytes
    labels: bytes
    weights: bytes


@dataclass(frozen=True)
class WorkerSync:
    """Worker to controller: what was done since the last call, and how many data shards are wanted.

    Attributes:
        process: random id; pod: name; term: as started (or last heard).
        finished: ids of grants that are done with, whatever came of them.
        routing_version: of the routing in use.
        phase_seconds: seconds per phase since the last call (read, pull, compute, push, wait).
        max_gap_seconds: longest time between two finished steps since the last call.
        failure: a reason that no repetition mends (user code raised, ...); ends the job.
        trouble: something was not where the routing says: newer routing is needed now.
        ps_seconds: since the last call, how long answers of each parameter server (by process id) were waited for.
        cache_bytes: gradients that are kept to be sent again.
    """

    job_id: str
    term: Count
    pod: str
    process: str
    want: Count = 0
    finished: tuple[Count, ...] = ()
    routing_version: Count = 0
    losses: tuple[BatchLoss, ...] = ()
    scores: tuple[BatchScores, ...] = ()
    metrics: Figures | None = None
    phase_seconds: Figures = field(default_factory=dict)
    max_gap_seconds: float = 0.0
    cpu_seconds: float = 0.0
    rss_bytes: Count = 0
    failure: str = ""
    trouble: bool = False
    ps_seconds: Figures = field(default_factory=dict)
    cache_bytes: Count = 0


@dataclass(frozen=True)
class WorkerOrders:
    """Controller's answer to a worker.

    Attributes:
        routing: the present one when it is newer than the worker's, else None.
        grants: new data shards.
        stop: finish nothing more, leave.
        taken_back: ids of grants of which nothing more should be begun: others train these batches.
    """

    term: int
    routing: Routing | None = None
    grants: tuple[Grant, ...] = ()
    stop: bool = False
    taken_back: tuple[int, ...] = ()


@dataclass(frozen=True)
class PsConfig:
    """A parameter server's start: read from the file named by its one argument.

    Attributes:
        controller_address: the controller's Unix socket; its directory is the job's private one.
        log: file that standard output and error go to, "" when that is nobody's business here.
        control_address: Unix socket path for gRPC; data_address: ``tcp:127.0.0.1:0`` or ``unix:PATH``.
        batches: N; numbers outside 0 .. N-1 are refused. model: path of the ModelSpec as JSON.
        memory_bytes: the table may not grow beyond it.
        snapshots: directory of this node for snapshots, "" for none: read for fresh copies, written now and then.
        snapshot_seconds, snapshot_bytes: one is due after so long, or so many bytes of pushes, whichever comes first.
        snapshot_deadline_seconds: a child that takes longer is killed.
        snapshot_share: of the time, that writing snapshots takes at most.
    """

    job_id: str
    pod: str
    term: int
    secret_file: str
    control_address: str
    data_address: str
    model: str
    seed: int
    batches: int
    memory_bytes: int
    orphan_grace_seconds: float
    controller_address: str = ""
    snapshots: str = ""
    snapshot_seconds: float = 20.0
    snapshot_bytes: int = 64 << 20
    snapshot_deadline_seconds: float = 120.0
    snapshot_share: float = 0.2
    log: str = ""
    protocol: int = PROTOCOL


@dataclass(frozen=True)
class WorkerConfig:
    """A worker's start: read from the file named by its one argument.

    Attributes:
        controller_address: Unix socket path of the controller's gRPC.
        spec: path of the job's spec as JSON (`JobSpec`); model: path of the ModelSpec as JSON.
        dataset: path of the converted dataset; validation_dataset: of other rows to evaluate on, or "".
        threads: intra-op threads for TensorFlow. log: as of a parameter server.
    """

    job_id: str
    pod: str
    term: int
    secret_file: str
    controller_address: str
    spec: str
    model: str
    dataset: str
    validation_dataset: str
    threads: int
    orphan_grace_seconds: float
    log: str = ""
    protocol: int = PROTOCOL


def check_protocol(config: PsConfig | WorkerConfig) -> None:
    """Refuse a configuration that another version of the protocol wrote.

    Raises:
        Refused: names both versions.
    """
    if config.protocol != PROTOCOL:
        raise Refused(f"configuration of protocol {config.protocol}; this process speaks {PROTOCOL}")
