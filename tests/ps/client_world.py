"""A client's surroundings in one process: real servers without a control plane, and a planner without kernels."""

from dataclasses import replace

import numpy as np
from ps_models import SGD

from trimtab.core.domain.intervals import EMPTY
from trimtab.core.domain.model_spec import InitializerSpec, OptimizerSpec, TableSpec
from trimtab.core.ps import held
from trimtab.core.ps.exchange import Exchange
from trimtab.core.ps.hashing import vshards
from trimtab.core.ps.sheet import Sheet, cuts_of, sections_of
from trimtab.core.ps.table import RowTable
from trimtab.core.wire import frames
from trimtab.core.wire.handshake import new_process_id
from trimtab.core.wire.messages import Routing
from trimtab.core.wire.sockets import DataServer

SECRET = b"s" * 32
TABLES = (
    TableSpec("a", 4, "embedding", 0, InitializerSpec(), SGD),
    TableSpec("b", 4, "embedding", 0, InitializerSpec(), SGD),
    TableSpec("w", 1, "embedding", 0, InitializerSpec(), SGD),
)
ADAGRAD_TABLES = tuple(replace(one, optimizer=OptimizerSpec("adagrad")) for one in TABLES)
SECTIONS = sections_of(TABLES)
EVERY = (1 << 512) - 1
KEYS = {"a": np.arange(60, dtype=np.int64), "b": np.arange(5, dtype=np.int64), "w": np.arange(33, dtype=np.int64)}


class Server:
    """One parameter server without a control plane."""

    def __init__(self, memory=64 << 20, tables=TABLES, most=0):
        self.process = new_process_id()
        self.exchange = Exchange(RowTable(tables, 1, memory, most), 1000)
        self.since = [0] * 512
        self.data = DataServer("tcp:127.0.0.1:0", SECRET, "job", self.process, self.handle)

    def handle(self, worker, header, body):
        if header.flags & frames.HELD:
            return held.answer(self.exchange, self.since, body)
        return self.exchange.handle(worker, header, body)

    def serve(self, bits, sets=EMPTY):
        with self.exchange.lock:
            self.exchange.served |= bits
            self.exchange.sets.put(bits & ~self.exchange.sets.members(), sets, EMPTY)

    def move(self, bits, other):
        """Everything of `bits` to `other`, as a finished move leaves it."""
        with self.exchange.lock, other.exchange.lock:
            self.exchange.served &= ~bits
            for vshard in range(512):
                if bits >> vshard & 1:
                    sets = self.exchange.sets.of(vshard)
                    other.exchange.table.replace(vshard, self.exchange.table.extract(vshard))
                    other.exchange.sets.put(1 << vshard, sets.applied, sets.skipped)
                    self.exchange.table.drop(vshard)
            self.exchange.sets.remove(bits)
            other.exchange.served |= bits


def regroup(sheet, view):
    """A plain grouping by owner, table after table: what the planner does with kernels."""
    servers = max(1, len(view.covers))
    owner = np.maximum(view.owner, 0)
    sheet.counts = np.zeros((servers, len(TABLES)), np.int64)
    for number, section in enumerate(SECTIONS):
        pieces = []
        for server in range(servers):
            for table in range(section.first, section.last):
                keys = KEYS[TABLES[table].name]
                mine = keys[owner[vshards(TABLES[table].name, keys)] == server]
                sheet.counts[server, table] = len(mine)
                pieces.append(mine)
        sheet.keys[number] = np.concatenate(pieces)
    sheet.cuts = cuts_of(sheet.counts, SECTIONS)
    sheet.routing_version = view.version


def sheet_of(number, token=None):
    sizes = [65, 33]
    values = [np.zeros((n, s.dim), np.float32) for n, s in zip(sizes, SECTIONS, strict=True)]
    gradients = [np.ones((n, s.dim), np.float32) for n, s in zip(sizes, SECTIONS, strict=True)]
    keys = [np.zeros(n, np.int64) for n in sizes]
    token = number + 1 if token is None else token
    return Sheet(number, token, [], -1, np.zeros((1, 3), np.int64), [], keys, values, gradients, [])


def routing_of(version, *servers, owner=None):
    owner = tuple(v % len(servers) for v in range(512)) if owner is None else owner
    processes, addresses = tuple(s.process for s in servers), tuple(s.data.address for s in servers)
    for server in servers:
        server.since[:] = [version] * 512  # as a move or a load leaves them
    return Routing(version, processes, addresses, owner, (version,) * 512)


def start(client, *servers):
    routing = routing_of(1, *servers)
    for number, server in enumerate(servers):
        server.serve(sum(1 << v for v in range(512) if v % len(servers) == number))
    client.update(routing)
