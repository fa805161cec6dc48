"""Doubt in a publisher's life, from batches that can neither follow the applied ones nor be proven duplicates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Doubt:
    """Doubtful batches of one life.

    Attributes:
        max_in_a_row: batches without a usual one between them that are dropped before something is done.
        n_in_a_row: their number since the last usual one.
        asked: whether the publisher's history was requested because of them, and has not settled it.
    """

    max_in_a_row: int
    n_in_a_row: int = 0
    asked: bool = False

    def is_ripe(self) -> bool:
        """Count one more batch; return whether to do something about them, then count anew."""
        self.n_in_a_row += 1
        if self.n_in_a_row < self.max_in_a_row:
            return False
        self.n_in_a_row = 0
        return True

    def settle(self) -> None:
        """Handle proof that the life is the same: late duplicates, of which twice as many may follow."""
        if self.asked:
            self.asked, self.max_in_a_row = False, 2 * self.max_in_a_row
