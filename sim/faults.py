"""Faults of a simulated server: lost and damaged events, and failing HTTP requests.

Pure functions: the shells apply the returned faults to each message or request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

Chance = Annotated[float, Meta(ge=0, le=1)]
Seconds = Annotated[float, Meta(ge=0)]


class EventFaults(msgspec.Struct, frozen=True, kw_only=True):
    """Faults of live event batches; replayed batches are undamaged, as with a real server."""

    drop: Chance = 0.0
    """Fraction of the batches that is never sent."""
    duplicate: Chance = 0.0
    """Fraction that is sent twice."""
    reorder: Chance = 0.0
    """Fraction that is sent after the next batch."""
    corrupt: Chance = 0.0
    """Fraction with all bits of the payload inverted."""
    truncate: Chance = 0.0
    """Fraction with half of the payload cut off."""
    foreign: Chance = 0.0
    """Fraction with an unknown name of the hash field, as of an unknown engine version; all its events are unreadable."""
    lag_s: Seconds = 0.0
    """Delay of every batch."""


class HttpFaults(msgspec.Struct, frozen=True, kw_only=True):
    """Faults of completion requests."""

    refuse: Chance = 0.0
    """Fraction with a response of status 503."""
    slow: Chance = 0.0
    """Fraction with a delayed response."""
    slow_s: Seconds = 5.0
    """Delay of these responses."""
    abort: Chance = 0.0
    """Fraction whose connection is closed without a response."""


_HASHES, _HASHES_OF_ANOTHER_VERSION = b"block_hashes", b"block_keys_9"

NO_EVENT_FAULTS = EventFaults()
NO_HTTP_FAULTS = HttpFaults()

Message = tuple[bytes, bytes, bytes]
"""Topic, sequence number, payload."""


class FaultyStream:
    """Event stream with faults.

    Args:
        faults: probability of each fault.
        rng: uniform random numbers, at most six per message.
    """

    def __init__(self, faults: EventFaults, rng: Callable[[], float]) -> None:
        self._faults, self._rng = faults, rng
        self._held: list[Message] = []

    def send(self, message: Message) -> list[Message]:
        """Return the messages to send instead, in order; a delayed message is returned by a later call."""
        faults = self._faults
        if self._happens(faults.drop):
            return []
        topic, seq, payload = message
        if self._happens(faults.corrupt):
            payload = bytes(byte ^ 0xFF for byte in payload)
        if self._happens(faults.truncate):
            payload = payload[: len(payload) // 2]
        if self._happens(faults.foreign):
            payload = payload.replace(_HASHES, _HASHES_OF_ANOTHER_VERSION)
        message = (topic, seq, payload)
        copies = [message] * (2 if self._happens(faults.duplicate) else 1)
        if self._happens(faults.reorder):
            self._held += copies
            return []
        held, self._held = self._held, []
        return copies + held

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._rng() < chance
