"""A replica that gives its snapshot to a sibling that starts, without I/O: one transfer at a time, in pieces, at a bounded rate."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .warm_letters import PIECE_BYTES, Ask, Done, End, More, Piece, Probe, Stage, Staged, Stop, encoded

WINDOW_BYTES = 8 * PIECE_BYTES
"""Most bytes of a snapshot that are sent and not confirmed, and kept to be sent again."""

BURST_BYTES, BYTES_PER_S = 32 * 2**20, 24 * 2**20
"""Most bytes sent at once, and per second afterwards: in no second more than siblings take (`sibling.MAX_BYTES_PER_S`)."""

SILENT_NS = 2_000_000_000
"""A taker that confirms nothing for this long has gone."""

Letters = Sequence[tuple[str, bytes]]
"""(id of a sibling, letter to it)."""


@dataclass(slots=True)
class _Transfer:
    """A transfer.

    Attributes:
        n_confirmed: pieces that the taker has.
        unsent: pieces that wait for the window or the rate.
        kept: sent pieces that are not confirmed, from `n_confirmed` on.
        n_pieces: how many there are in all, None before the end.
    """

    taker: str
    number: int
    heard_ns: int
    n_confirmed: int = 0
    unsent: deque[bytes] = field(default_factory=deque[bytes])
    kept: deque[bytes] = field(default_factory=deque[bytes])
    n_pieces: int | None = None


class Giver:
    """Gives snapshots. Its shell makes the pieces while `has_room`, for the taker of `taker`.

    Attributes:
        stage: of this replica; set by its shell.
        n_given: snapshots that were given and confirmed.
        n_broken: transfers that ended otherwise.
    """

    def __init__(self) -> None:
        self.stage = Stage.UNDECIDED
        self.n_given = self.n_broken = 0
        self._transfer: _Transfer | None = None
        self._budget, self._budget_ns = BURST_BYTES, 0

    @property
    def taker(self) -> tuple[str, int] | None:
        """Return the sibling that a snapshot is given to, with the number of the transfer; None if there is none."""
        return (self._transfer.taker, self._transfer.number) if self._transfer is not None else None

    @property
    def has_room(self) -> bool:
        """Return whether the next pieces may be made: those that wait are fewer than the window."""
        transfer = self._transfer
        return transfer is None or sum(map(len, transfer.unsent)) < WINDOW_BYTES

    def received(self, sender: str, letter: Probe | Ask | More | Done | Stop, now_ns: int) -> Letters:
        """Take a letter; return letters to send."""
        transfer = self._transfer
        match letter:
            case Probe():
                return [(sender, encoded(Staged(self._stage)))]
            case Ask(number) if self.taker == (sender, number):
                return (
                    self._confirmed(transfer, More(number, 0, again=True), now_ns)
                    if transfer is not None
                    else []
                )
            case Ask(number):
                is_again = transfer is not None and transfer.taker == sender
                if self.stage is not Stage.READY or (transfer is not None and not is_again):
                    return [(sender, encoded(Staged(self._stage)))]
                self._transfer = _Transfer(sender, number, now_ns)
            case More(number) if transfer is not None and self.taker == (sender, number):
                return self._confirmed(transfer, letter, now_ns)
            case Done(number) if self.taker == (sender, number):
                self._end(is_given=True)
            case Stop(number) if self.taker == (sender, number):
                self._end(is_given=False)
            case _:  # of a transfer that has ended
                pass
        return []

    def push(self, data: bytes, now_ns: int) -> Letters:
        """Add bytes of the snapshot; return letters to send."""
        transfer = self._transfer
        if transfer is None:
            return []
        transfer.unsent.extend(
            data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)
        )
        return self._sent(transfer, now_ns)

    def finish(self, now_ns: int) -> Letters:
        """Complete the snapshot; return letters to send."""
        transfer = self._transfer
        if transfer is None:
            return []
        transfer.n_pieces = transfer.n_confirmed + len(transfer.kept) + len(transfer.unsent)
        return self._sent(transfer, now_ns) or self._ended(transfer)

    def abandon(self) -> Letters:
        """End the transfer, because the snapshot cannot be made; return letters to send."""
        transfer = self._transfer
        if transfer is None:
            return []
        self._end(is_given=False)
        return [(transfer.taker, encoded(Stop(transfer.number)))]

    def tick(self, now_ns: int) -> Letters:
        """Send what the rate allows now, and end the transfer to a taker that has gone; return letters to send."""
        transfer = self._transfer
        if transfer is None:
            return []
        if now_ns - transfer.heard_ns > SILENT_NS:
            return self.abandon()
        return self._sent(transfer, now_ns)

    @property
    def _stage(self) -> Stage:
        return Stage.BUSY if self.stage is Stage.READY and self._transfer is not None else self.stage

    def _confirmed(self, transfer: _Transfer, more: More, now_ns: int) -> Letters:
        transfer.heard_ns = now_ns
        for _ in range(min(more.n_received - transfer.n_confirmed, len(transfer.kept))):
            transfer.kept.popleft()
            transfer.n_confirmed += 1
        if more.again and transfer.kept:
            transfer.unsent.extendleft(reversed(transfer.kept))
            transfer.kept.clear()
        elif more.again:
            return self._ended(transfer)
        return self._sent(transfer, now_ns)

    def _ended(self, transfer: _Transfer) -> list[tuple[str, bytes]]:
        """Return the end, if nothing has to be sent before it."""
        if transfer.n_pieces is None or transfer.unsent:
            return []
        return [(transfer.taker, encoded(End(transfer.number, transfer.n_pieces)))]

    def _sent(self, transfer: _Transfer, now_ns: int) -> Letters:
        """Send pieces that the window and the rate have room for, and the end after the last one."""
        self._budget = min(BURST_BYTES, self._budget + (now_ns - self._budget_ns) * BYTES_PER_S // 10**9)
        self._budget_ns = now_ns
        letters: list[tuple[str, bytes]] = []
        n_kept_bytes = sum(map(len, transfer.kept))
        while transfer.unsent and n_kept_bytes < WINDOW_BYTES and self._budget >= len(transfer.unsent[0]):
            data = transfer.unsent.popleft()
            number = transfer.n_confirmed + len(transfer.kept)
            letters.append((transfer.taker, encoded(Piece(transfer.number, number, data))))
            transfer.kept.append(data)
            n_kept_bytes += len(data)
            self._budget -= len(data)
        return [*letters, *self._ended(transfer)] if letters else []

    def _end(self, *, is_given: bool) -> None:
        self._transfer = None
        if is_given:
            self.n_given += 1
        else:
            self.n_broken += 1
