"""The KV-cache groups of one publisher, learned from its store events."""

from __future__ import annotations

from ..events.model import BlockStored
from .holders import Group

MAX_GROUPS = 64
"""KV-cache groups tracked per publisher; engines have one per kind of layer. Each costs a holder."""

LEARNED_GROUP = -1
"""Group of blocks without events: inferred from stores in the fastest tier, or from routing."""


MAX_CHANGES = 256
"""Groups learned or changed per publisher; each changes the layout of the rank, from which the whole fleet's is made. An
engine names each group once."""


class Groups(dict[int, Group]):
    """Groups by number; bounded, since engines choose the numbers."""

    n_changes = 0

    def learn(self, event: BlockStored) -> bool:
        """Learn the group of a store event; return whether it is new. Groups beyond the bound are ignored."""
        known = self.get(event.group)
        group = Group(event.kind, event.window)
        if known == group or (known is not None and event.kind is None):
            return False
        if (known is None and len(self) == MAX_GROUPS) or self.n_changes == MAX_CHANGES:
            return False
        self.n_changes += 1
        self[event.group] = group
        self._compare_windows()
        return True

    def _compare_windows(self) -> None:
        """Take groups for sliding windows that send a window without their kind, smaller than another's (TensorRT-LLM).

        The largest is the longest prompt that the engine takes.
        """
        told = {number: each.window for number, each in self.items() if each.kind is None and each.window}
        for number, window in told.items():
            if window < max(told.values()):
                self[number] = Group("sliding_window", window)

    def clear(self) -> None:
        """Drop all groups: the publisher started a new life."""
        super().clear()
        self.n_changes = 0

    def matters(self, number: int) -> bool:
        """Return whether the group is tracked and affects which blocks are reusable."""
        group = self.get(number)
        return group is not None and group.matters
