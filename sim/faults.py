"""Faults of a simulated server: what its event stream loses and mangles, and how its HTTP side fails.

Pure: the shells ask what to do with each message or request, and do it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

Chance = Annotated[float, Meta(ge=0, le=1)]
Seconds = Annotated[float, Meta(ge=0)]


class EventFaults(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to live event batches; replay has all it still holds, unharmed, as with a real server."""

    drop: Chance = 0.0
    """Part of the batches that is never sent."""
    duplicate: Chance = 0.0
    """Part that is sent twice."""
    reorder: Chance = 0.0
    """Part that is sent after the batch that follows."""
    corrupt: Chance = 0.0
    """Part whose payload has every bit turned."""
    truncate: Chance = 0.0
    """Part whose payload is cut in half."""
    foreign: Chance = 0.0
    """Part that names its hashes as no known version of an engine does, so that each of its events is unreadable."""
    lag_s: Seconds = 0.0
    """Delay of every batch."""


class HttpFaults(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to requests for completions."""

    refuse: Chance = 0.0
    """Part that is answered with status 503."""
    slow: Chance = 0.0
    """Part that is answered late."""
    slow_s: Seconds = 5.0
    """How late."""
    abort: Chance = 0.0
    """Part whose connection is closed without an answer."""


_HASHES, _HASHES_OF_ANOTHER_VERSION = b"block_hashes", b"block_keys_9"

NO_EVENT_FAULTS = EventFaults()
NO_HTTP_FAULTS = HttpFaults()

Message = tuple[bytes, bytes, bytes]
"""Topic, sequence number, payload."""


class FaultyStream:
    """Says what of an event stream is really sent.

    Args:
        faults: how often what goes wrong.
        rng: uniform draws, at most six a message.
    """

    def __init__(self, faults: EventFaults, rng: Callable[[], float]) -> None:
        self._faults, self._rng = faults, rng
        self._held: list[Message] = []

    def send(self, message: Message) -> list[Message]:
        """What is sent in its place, in order; what is held back comes with a later message."""
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
