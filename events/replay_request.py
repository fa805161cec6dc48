"""The replay request that a stream has open."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(slots=True)
class ReplayRequest:
    """State of one request for missing batches, over all its attempts."""

    last_reply_at: float = inf
    """Time of the latest reply, or of sending; infinite until the request is sent."""
    start: int = 0
    next_before: int = 0
    """First missing batch when the request was sent; a later one shows that the reply made progress."""
    attempts: int = 0
    wait_until: float | None = None
    """Time of the next attempt during backoff, None while a request is open."""
    probing: bool = False
    """The request begins with the last applied batch, and that batch has not come yet."""
    routine: bool = False
    """The request only looks for missed batches; it lowers trust only if some were missed."""
    same_connection: bool = False
    """The publisher cannot have started a new life since the last applied batch."""
    empty: bool = True
    """No batch has come in reply to the last request."""
    useful: bool = False
    """A batch that was missing has come in reply to the last request."""
    has_witness: bool = False
    """The last applied batch has come in reply to the last request, so the publisher's history reaches back to it."""
    newest: int = 0
    """Highest number that has come in reply to the last request."""
    pages: int = 0
    """Requests that continued where the reply to another one ended."""

    @property
    def verifying(self) -> bool:
        """Whether the publisher may be in another life; until that is settled nothing is applied."""
        return self.probing and not self.routine
