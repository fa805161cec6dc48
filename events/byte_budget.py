"""A bound of the bytes that several queues hold together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ByteBudget:
    """Bytes that all queues of one kind hold.

    Attributes:
        common_bytes: bytes past which a queue may only grow within its own share.
        own_bytes: share of each queue that the others cannot take, so that each makes progress.
        n_bytes: held by all of them.
    """

    common_bytes: int
    own_bytes: int = 0
    n_bytes: int = 0

    @classmethod
    def shared(cls, max_bytes: int, n_queues: int) -> ByteBudget:
        """Return a budget in which `n_queues` hold `max_bytes` at most, and a message each."""
        return cls(common_bytes=max_bytes // 2, own_bytes=max_bytes // 2 // n_queues)

    def is_full(self, n_held: int) -> bool:
        """Return whether a queue that holds `n_held` bytes may not grow."""
        return self.n_bytes >= self.common_bytes and n_held >= self.own_bytes
