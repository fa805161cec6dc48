"""The KV-cache groups of one publisher, as its stores tell them."""

from __future__ import annotations

from ..events.model import BlockStored
from .holders import Group

MAX_GROUPS = 64
"""KV-cache groups followed per publisher; engines have one for each kind of layer. Each costs a holder."""

LEARNED_GROUP = -1
"""Group of blocks that no event named: inferred from stores in a faster tier, or from routing."""


class Groups(dict[int, Group]):
    """What each group is, by its number; bounded, since numbers come from outside."""

    def learn(self, event: BlockStored) -> bool:
        """Take in what a store says of its group; returns whether that is new. Nothing is noted of one group too many."""
        known = self.get(event.group)
        group = Group(event.kind, event.window)
        if known == group or (known is not None and event.kind is None):
            return False
        if known is None and len(self) == MAX_GROUPS:
            return False
        self[event.group] = group
        return True

    def matters(self, number: int) -> bool:
        """Whether the group is followed and has a say in what is reusable."""
        group = self.get(number)
        return group is not None and group.matters
