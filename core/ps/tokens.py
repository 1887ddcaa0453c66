"""Row tokens: where a pull found its rows, kept until the push of the same batch.

With a token a push carries no keys and probes nothing. A token holds for one parameter-server process (it lives in its
memory), one worker process and as long as no vshard that its pull named is loaded or dropped: rows keep their places
until then. Another one is answered with "send keys".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from trimtab.core.ps.table import Found

_MOST_BYTES = 128 << 20  # of all tokens: a pull of a worker has less than one MiB
_PER_WORKER = 4  # a worker has at most the batch in work and the next one; more are left-overs of dead exchanges


@dataclass(frozen=True)
class Token:
    """A pull's result: its rows' places, the vshards it named, and the table generation it saw."""

    found: Found
    cover: int
    generation: int


class TokenStore:
    """Tokens of all workers; the oldest of a worker go first, and workers that never come back go with them.

    Args:
        workers: how many are known at most. most_bytes: of all tokens; beyond, those of the longest silent worker go.
    """

    def __init__(self, workers: int = 1024, most_bytes: int = _MOST_BYTES) -> None:
        self._workers, self._most_bytes = workers, most_bytes
        self._tokens: OrderedDict[str, OrderedDict[int, Token]] = OrderedDict()
        self.bytes_held = 0

    def put(self, worker: str, token: int, value: Token) -> None:
        """Keep `value` under the worker's number."""
        mine = self._tokens.setdefault(worker, OrderedDict())
        self._tokens.move_to_end(worker)
        self._forget(mine.pop(token, None))
        mine[token] = value
        self.bytes_held += _size(value)
        while len(mine) > _PER_WORKER:
            self._forget(mine.popitem(last=False)[1])
        while len(self._tokens) > self._workers or self.bytes_held > self._most_bytes:
            for old in self._tokens.popitem(last=False)[1].values():
                self._forget(old)

    def take(self, worker: str, token: int, holds: Callable[[Token], bool]) -> Token | None:
        """The token if `holds` says so; it is used up either way."""
        held = self._tokens.get(worker, OrderedDict()).pop(token, None)
        self._forget(held)
        return held if held is not None and holds(held) else None

    def _forget(self, gone: Token | None) -> None:
        self.bytes_held -= _size(gone) if gone is not None else 0


def _size(token: Token) -> int:
    return token.found.keys.nbytes + token.found.places.nbytes
