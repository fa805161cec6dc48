"""Warm starts of one replica: it takes a sibling's snapshot at its start, and gives its own to others later."""

from __future__ import annotations

from .warm_giver import Giver, Letters
from .warm_letters import Ask, Done, More, Probe, Stop, decoded
from .warm_taker import Taker


class WarmStart:
    """Receives the letters about snapshots. Implements `channel.Letters`.

    Attributes:
        giver: gives this replica's snapshot.
        taker: takes a sibling's; None before and after the start.
    """

    def __init__(self) -> None:
        self.giver = Giver()
        self.taker: Taker | None = None

    def received(self, sender: str, payload: bytes, now_ns: int) -> Letters:
        """See `channel.Letters.received`."""
        letter = decoded(payload, sender)
        match letter:
            case Probe() | Ask() | More() | Done():
                return self.giver.received(sender, letter, now_ns)
            case Stop() if self.giver.taker == (sender, letter.transfer):
                return self.giver.received(sender, letter, now_ns)
            case _ if self.taker is not None:
                return self.taker.received(sender, letter, now_ns)
            case _:
                return []
