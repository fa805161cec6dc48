"""Requests in flight of the siblings, added to this replica's own by endpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from ...scorers.core.model import IDLE, InFlightLoad
from .entries import Entries

MAX_ENDPOINTS = 16_384
"""Most endpoints of one owner."""

_Number = Annotated[int, Meta(ge=0, le=2**40)]


class Bookings:
    """What the replicas have in flight per endpoint, token-exact. Implements `fleet.in_flight.Siblings`.

    Each owner publishes its sums, not its bookings: a message that is lost or repeated cannot shift them, and what an owner
    that is gone had in flight goes with it.

    Args:
        on_pick: called with the endpoint of each request that this replica books.

    Attributes:
        channel: carries them; endpoint -> the fields of `InFlightLoad`.
    """

    def __init__(self, on_pick: Callable[[str], None] | None = None) -> None:
        self._on_pick = on_pick
        self.channel = Entries(tuple[_Number, ...], self._changed, max_entries=MAX_ENDPOINTS)
        self._sums: dict[str, InFlightLoad] = {}
        self._listeners: list[Callable[[str], None]] = []

    def of(self, endpoint: str) -> InFlightLoad:
        """See `Siblings.of`."""
        return self._sums.get(endpoint, IDLE)

    def publish(self, endpoint: str, load: InFlightLoad) -> None:
        """See `Siblings.publish`."""
        if self._on_pick is not None:
            before = self.channel.own().get(endpoint)
            if load.requests > (before[0] if before else 0):
                self._on_pick(endpoint)
        self.channel.put(endpoint, None if load == IDLE else msgspec.structs.astuple(load))

    def listen(self, on_change: Callable[[str], None]) -> None:
        """See `Siblings.listen`."""
        self._listeners.append(on_change)

    def _changed(
        self, _: str, endpoint: str, before: tuple[int, ...] | None, after: tuple[int, ...] | None
    ) -> None:
        numbers = list(msgspec.structs.astuple(self.of(endpoint)))
        for sign, each in ((-1, before), (1, after)):
            # a sibling of another version may know more numbers, or fewer
            for place, number in enumerate((each or ())[: len(numbers)]):
                numbers[place] += sign * number
        total = InFlightLoad(*numbers)
        if total == IDLE:
            self._sums.pop(endpoint, None)
        else:
            self._sums[endpoint] = total
        for listener in self._listeners:
            listener(endpoint)
