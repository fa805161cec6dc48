"""What carries messages between replicas, whichever network it uses."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ...fleet.replicas.replica import Outgoing

LAST_WORDS_S = 0.2
"""Longest wait for the last messages at the end of the process."""

OnMessage = Callable[[bytes], None]
"""Takes one message of a sibling."""

MAX_QUEUED_BYTES = 16 << 20
"""Messages that wait for one sibling, or for the server between the replicas: one second of a saturated core's changes."""

MAX_QUEUED = 4096
"""As above, in messages: 20 s of batches, 5 ms apart."""


@dataclass(slots=True)
class Traffic:
    """Counts of one transport since its start.

    Attributes:
        sent, received: messages.
        sent_bytes, received_bytes: their payloads.
        dropped: messages that were not sent, by reason: `queue_full`, or `not_connected`.
        refused: connections and messages that were refused, by reason.
        connections: connections that succeeded; more than one shows reconnects.
        failures: connections to their server that failed or broke, by reason.
        problem: why nobody, or not everybody, is reached, in words; empty if there is no problem.
    """

    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    received_bytes: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    connections: int = 0
    failures: Counter[str] = field(default_factory=Counter[str])
    problem: str = ""

    def __add__(self, other: Traffic) -> Traffic:
        """Return the sums of both."""
        return Traffic(
            sent=self.sent + other.sent,
            sent_bytes=self.sent_bytes + other.sent_bytes,
            received=self.received + other.received,
            received_bytes=self.received_bytes + other.received_bytes,
            dropped=self.dropped + other.dropped,
            refused=self.refused + other.refused,
            connections=self.connections + other.connections,
            failures=self.failures + other.failures,
            problem=self.problem or other.problem,
        )

    def count_sent(self, n_bytes: int) -> None:
        """Count a message that was given to the network."""
        self.sent += 1
        self.sent_bytes += n_bytes

    def count_received(self, n_bytes: int) -> None:
        """Count a message of a sibling."""
        self.received += 1
        self.received_bytes += n_bytes


class Transport(Protocol):
    """Carries messages to and from the siblings."""

    @property
    def traffic(self) -> Traffic:
        """Counts since the start."""
        ...

    async def run(self) -> None:
        """Carry messages until cancelled; connect again by itself after each failure."""
        ...

    async def close(self) -> None:
        """Send what waits, for a moment at most, and close for good. Call it after `run` has ended."""
        ...

    def send(self, outgoing: Outgoing) -> None:
        """Queue a message; never blocks. A full queue drops its oldest message, which is counted and healed by the core."""
        ...


class SendQueue:
    """Messages that wait to be sent, bounded in number and bytes; the oldest are dropped.

    Args:
        traffic: counts what is dropped.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        self._n_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def n_bytes(self) -> int:
        """Payload bytes that wait."""
        return self._n_bytes

    def push(self, to: bytes, payload: bytes) -> None:
        """Append a message; drop the oldest until the queue is within its bounds."""
        self._waiting.append((to, payload))
        self._n_bytes += len(payload)
        while len(self._waiting) > MAX_QUEUED or self._n_bytes > MAX_QUEUED_BYTES:
            self.pop()
            self._traffic.dropped["queue_full"] += 1

    def head(self) -> tuple[bytes, bytes]:
        """Return the oldest message: its destination and payload. The queue must not be empty."""
        return self._waiting[0]

    def pop(self) -> tuple[bytes, bytes]:
        """Remove and return the oldest message. The queue must not be empty."""
        message = self._waiting.popleft()
        self._n_bytes -= len(message[1])
        return message

    def clear(self) -> None:
        """Drop everything, because its destination is gone."""
        self._traffic.dropped["not_connected"] += len(self._waiting)
        self._waiting.clear()
        self._n_bytes = 0
