"""Missing batches of a publisher that its stream has asked for."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(slots=True)
class ReplayRequest:
    """What a stream has asked for, from the first request for a hole to the last."""

    heard_at: float = inf
    """Time of the last sign of life; in the future until the request is sent."""
    start: int = 0
    next_before: int = 0
    """First missing batch when the request went out; what shows whether the answer brought anything."""
    attempts: int = 0
    wait_until: float | None = None
    """Time of the next request while backing off, None while a request is out."""
    probing: bool = False
    """The request begins with the last applied batch, and that batch has not come yet."""
    routine: bool = False
    """Only looks whether something was missed; does not lower trust unless something was."""
    same_connection: bool = False
    """The publisher cannot have begun a new life since the last applied batch."""
    empty: bool = True
    """No batch has come in answer to the last request."""

    @property
    def verifying(self) -> bool:
        """Whether it is open that the publisher is still in the same life; until it is settled nothing is applied."""
        return self.probing and not self.routine
