"""Streams of publishers that have snapshots: a loss is mended by the whole present state, not by the history."""

from __future__ import annotations

from .actions import Action, ItemT
from .stream import PublisherStream


class RecoverableStream(PublisherStream[ItemT]):
    """A stream that can continue after a snapshot. Batches that come while it waits for one are held, within its limits."""

    @property
    def wants_snapshot(self) -> bool:
        """Whether history of this life is lost, and the publisher has snapshots: then it sends an id."""
        is_free = self._connected and self._replay is None and not self._waits
        return is_free and bool(self.life) and (self._order.lost or self._unverified)

    @property
    def awaits_snapshot(self) -> bool:
        """Whether batches are held for a snapshot."""
        return self._waits

    def identified(self, life: bytes) -> list[Action[ItemT]]:
        """Note the publisher's id, which came with a live batch that is yet to be handled; another one means another life."""
        before, self.life = self.life, life
        self._order.counts_from_0 = bool(life)
        return self.restarted("its publisher has another id") if before and life and life != before else []

    def await_snapshot(self) -> None:
        """Hold all batches from now on, until `recovered` or `not_recovered`."""
        self._waits = True

    def follows_from(self, seq: int) -> bool:
        """Return whether the state before batch `seq` contains every batch that was applied."""
        return seq >= (self._order.next_seq or 0)

    def recovered(self, seq: int) -> list[Action[ItemT]]:
        """Continue with batch `seq`, since a snapshot of the state before it has replaced what was known."""
        self._waits = self._unverified = False
        self._has_received = True
        self._order.resume(seq)
        return self._go_on()

    def not_recovered(self) -> list[Action[ItemT]]:
        """Continue without a snapshot."""
        self._waits = False
        return self._go_on()
