"""What the workers of one kvatlas tell each other of requests in flight, without I/O.

Each worker tells what is in flight of its own, by endpoint: soon whatever has changed, and everything once in a while, so that
a lost message, or a worker that was started again, costs a moment. Of a worker that falls silent nothing is believed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from ...scorers.core.model import IDLE, InFlightLoad

ENDPOINTS_A_MESSAGE = 500
"""Keeps a message of long names below what a Unix datagram may hold, 200 KB."""

SILENCE_S = 5.0
"""Several times the interval in which a worker tells everything."""


class _Told(msgspec.Struct, array_like=True):
    """One message: endpoint -> (requests, tokens)."""

    worker: int
    life: float
    """Tells a worker from its predecessor of the same number."""
    is_all: bool
    """Whether endpoints that are not named have nothing in flight."""
    loads: dict[str, tuple[int, int]]


class _Sibling:
    """What one other worker has told."""

    def __init__(self, life: float) -> None:
        self.life, self.heard_at = life, -math.inf
        self.loads: dict[str, InFlightLoad] = {}


class SiblingLoads:
    """One worker's view of the others. Implements `scorers.in_flight.Siblings`; times are monotonic seconds.

    Args:
        worker: its own number.
        life: differs from that of any earlier worker of this number.
    """

    def __init__(self, worker: int, *, life: float) -> None:
        self._worker, self._life = worker, life
        self._own: dict[str, InFlightLoad] = {}
        self._changed: set[str] = set()
        self._siblings: dict[int, _Sibling] = {}
        self._sums: dict[str, InFlightLoad] = {}
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(_Told).decode

    @property
    def has_news(self) -> bool:
        """Whether something changed that was not told."""
        return bool(self._changed)

    def of(self, endpoint: str) -> InFlightLoad:
        """See `Siblings.of`."""
        return self._sums.get(endpoint, IDLE)

    def tell(self, endpoint: str, load: InFlightLoad) -> None:
        """See `Siblings.tell`."""
        if load == self._own.get(endpoint, IDLE):
            return
        if load == IDLE:
            self._own.pop(endpoint, None)
        else:
            self._own[endpoint] = load
        self._changed.add(endpoint)

    def news(self) -> Iterator[bytes]:
        """Messages with what changed since the last ones."""
        changed = {name: self._own.get(name, IDLE) for name in self._changed}
        self._changed.clear()
        return self._messages(changed, is_all=False)

    def everything(self) -> Iterator[bytes]:
        """Messages with all that is in flight; one at least."""
        self._changed.clear()
        return self._messages(self._own, is_all=True)

    def heard(self, message: bytes, *, now: float) -> None:
        """Take in what another worker tells; a message that cannot be read is ignored."""
        try:
            told = self._decode(message)
        except msgspec.DecodeError:
            return
        sibling = self._siblings.get(told.worker)
        if sibling is None or sibling.life != told.life:
            self._leave_out(told.worker)
            sibling = self._siblings[told.worker] = _Sibling(told.life)
        sibling.heard_at = now
        gone = sibling.loads.keys() - told.loads.keys() if told.is_all else ()
        loads = {name: InFlightLoad(*counts) for name, counts in told.loads.items()}
        for name, load in (*loads.items(), *((name, IDLE) for name in gone)):
            self._set(sibling, name, load)

    def forget_silent(self, *, now: float) -> None:
        """Believe nothing of workers that have not told anything for a while."""
        for worker, sibling in list(self._siblings.items()):
            if now - sibling.heard_at > SILENCE_S:
                self._leave_out(worker)

    def _messages(self, loads: dict[str, InFlightLoad], *, is_all: bool) -> Iterator[bytes]:
        names = list(loads)
        for start in range(0, max(len(names), 1), ENDPOINTS_A_MESSAGE):
            part = {
                name: (loads[name].requests, loads[name].tokens)
                for name in names[start : start + ENDPOINTS_A_MESSAGE]
            }
            yield self._encode(_Told(self._worker, self._life, is_all and not start, part))

    def _leave_out(self, worker: int) -> None:
        sibling = self._siblings.pop(worker, None)
        if sibling is not None:
            for name in list(sibling.loads):
                self._set(sibling, name, IDLE)

    def _set(self, sibling: _Sibling, name: str, load: InFlightLoad) -> None:
        before, total = sibling.loads.pop(name, IDLE), self.of(name)
        if load != IDLE:
            sibling.loads[name] = load
        total = InFlightLoad(
            total.requests + load.requests - before.requests, total.tokens + load.tokens - before.tokens
        )
        if total == IDLE:
            self._sums.pop(name, None)
        else:
            self._sums[name] = total
