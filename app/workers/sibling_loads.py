"""Requests in flight of the workers of one kvatlas, without I/O.

Each worker sends its own requests in flight per endpoint: changes soon, and everything periodically, so that a lost
message or a restarted worker is made good. The load of a worker that falls silent is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import msgspec

from ...scorers.core.model import IDLE, InFlightLoad
from .request_reply import UNDECODABLE

ENDPOINTS_PER_MESSAGE = 500
"""Endpoints per message, so that no message of long names holds the loop."""

SILENCE_S = 5.0
"""A worker without a message for this long is taken for gone: several intervals of full states."""


class _Message(msgspec.Struct, array_like=True):
    """One message: endpoint -> (requests, tokens)."""

    worker: int
    life: float
    """Distinguishes a worker from its predecessor of the same number."""
    is_all: bool
    """Whether endpoints that are not named are idle."""
    loads: dict[str, tuple[int, int]]


class _Sibling:
    """Last known load of one other worker."""

    def __init__(self, life: float) -> None:
        self.life, self.received_at = life, -math.inf
        self.loads: dict[str, InFlightLoad] = {}


class SiblingLoads:
    """One worker's view of the others. Implements `fleet.in_flight.Siblings`; times are monotonic seconds.

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
        self._listeners: list[Callable[[str], None]] = []
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(_Message).decode

    @property
    def has_changes(self) -> bool:
        """Whether a change was not sent yet."""
        return bool(self._changed)

    def of(self, endpoint: str) -> InFlightLoad:
        """See `Siblings.of`."""
        return self._sums.get(endpoint, IDLE)

    def listen(self, on_change: Callable[[str], None]) -> None:
        """See `Siblings.listen`."""
        self._listeners.append(on_change)

    def publish(self, endpoint: str, load: InFlightLoad) -> None:
        """See `Siblings.publish`."""
        if load == self._own.get(endpoint, IDLE):
            return
        if load == IDLE:
            self._own.pop(endpoint, None)
        else:
            self._own[endpoint] = load
        self._changed.add(endpoint)

    def changes(self) -> Iterator[bytes]:
        """Return messages with the changes since the last ones."""
        changed = {name: self._own.get(name, IDLE) for name in self._changed}
        self._changed.clear()
        return self._messages(changed, is_all=False)

    def full_state(self) -> Iterator[bytes]:
        """Return messages with everything in flight; at least one. Changes stay to be sent."""
        return self._messages(self._own, is_all=True)

    def receive(self, data: bytes, *, now: float) -> None:
        """Take in a message of another worker; one that cannot be decoded is ignored."""
        try:
            message = self._decode(data)
        except UNDECODABLE:
            return
        sibling = self._siblings.get(message.worker)
        if sibling is None or sibling.life != message.life:
            self._leave_out(message.worker)
            sibling = self._siblings[message.worker] = _Sibling(message.life)
        sibling.received_at = now
        gone = sibling.loads.keys() - message.loads.keys() if message.is_all else ()
        loads = {name: InFlightLoad(*counts) for name, counts in message.loads.items()}
        for name, load in (*loads.items(), *((name, IDLE) for name in gone)):
            self._set(sibling, name, load)

    def forget_silent(self, *, now: float) -> None:
        """Drop the load of workers that have been silent for `SILENCE_S`."""
        for worker, sibling in list(self._siblings.items()):
            if now - sibling.received_at > SILENCE_S:
                self._leave_out(worker)

    def _messages(self, loads: dict[str, InFlightLoad], *, is_all: bool) -> Iterator[bytes]:
        names = list(loads)
        for start in range(0, max(len(names), 1), ENDPOINTS_PER_MESSAGE):
            part = {
                name: (loads[name].requests, loads[name].tokens)
                for name in names[start : start + ENDPOINTS_PER_MESSAGE]
            }
            yield self._encode(_Message(self._worker, self._life, is_all and not start, part))

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
        for listener in self._listeners:
            listener(name)
