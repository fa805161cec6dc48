"""Doubt in a publisher's life, from batches that can neither follow the applied ones nor be proven duplicates."""

from __future__ import annotations

from dataclasses import dataclass

LIVES_S = 60.0
"""Time in which a publisher cannot begin two lives by the stamps of its replays alone: an engine takes longer to start."""


@dataclass(slots=True)
class Doubt:
    """Doubtful batches of one life.

    Attributes:
        max_in_a_row: batches without a usual one between them that are dropped before something is done.
        n_in_a_row: their number since the last usual one.
        asked: whether the publisher's history was requested because of them, and has not settled it.
        other_life_at: when a replay last showed another life by its time stamps, monotonic seconds; None if never.
    """

    max_in_a_row: int
    n_in_a_row: int = 0
    asked: bool = False
    other_life_at: float | None = None

    def is_ripe(self) -> bool:
        """Count one more batch; return whether to do something about them, then count anew."""
        self.n_in_a_row += 1
        if self.n_in_a_row < self.max_in_a_row:
            return False
        self.n_in_a_row = 0
        return True

    def stamps_lie(self, now: float) -> bool:
        """Note that a replay shows another life by its time stamps; return whether that comes too soon after the last one."""
        before, self.other_life_at = self.other_life_at, now
        return before is not None and now - before < LIVES_S

    def settle(self) -> None:
        """Handle proof that the life is the same: late duplicates, of which twice as many may follow."""
        if self.asked:
            self.asked, self.max_in_a_row = False, 2 * self.max_in_a_row
