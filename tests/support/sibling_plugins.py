"""Plugins of several processes that receive what the others share, on one clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from kvatlas.fleet.replicas.sums import Sums
from kvatlas.scorers.core.shared import SharedSums


class Sibling:
    """One process with what its plugins share."""

    now: ClassVar[float] = 0.0
    """The clock of all."""

    def __init__(self, name: str, shares: Mapping[str, SharedSums]) -> None:
        self.name, self.sums = name, Sums(lambda: Sibling.now)
        self.sums.use(shares)


def exchange(siblings: Sequence[Sibling]) -> None:
    """Deliver all messages at once."""
    for sender in siblings:
        for payload in sender.sums.drain():
            for receiver in siblings:
                if receiver is not sender:
                    receiver.sums.apply(sender.name, payload)
