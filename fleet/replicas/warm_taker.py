"""A replica that starts and takes the snapshot of a sibling, without I/O.

It looks for siblings for a while, and asks one that is ready. If that one fails, it asks another, and without any it starts
by itself. Of several that start together, the one with the smallest id fetches the engines' history, and the others wait
for its snapshot: so each engine is asked for its history once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from .warm_giver import Letters
from .warm_letters import Ask, Done, End, More, Piece, Probe, Stage, Staged, Stop, encoded

LOOK_NS = 1_000_000_000
"""Longest look for siblings: several heartbeats."""

PROBE_NS = 50_000_000
"""Interval of asking siblings for their stage."""

ANSWER_NS = 2_000_000_000
"""A sibling that has not told its stage for this long is not waited for. One that is heard may still have to connect to this
replica before it can reply."""

WAIT_NS = 10_000_000_000
"""Longest wait for siblings that are busy or start themselves."""

AGAIN_NS, STUCK_NS = 200_000_000, 2_000_000_000
"""Time without a new piece after which it is asked for again, and after which the sibling is given up."""

MAX_SNAPSHOT_BYTES = 2 * 1024**3
"""Largest snapshot that is taken, of 60 million residencies. It is held in memory twice until it is read."""


@dataclass(slots=True)
class _Transfer:
    giver: str
    number: int
    progress_ns: int
    asked_ns: int
    pieces: list[bytes] = field(default_factory=list[bytes])
    n_bytes: int = 0
    is_complete: bool = False


class Taker:
    """Takes one snapshot.

    Args:
        replica: id of this replica.
        siblings: returns the ids of the siblings that live.
        now_ns: monotonic time of the start.

    Attributes:
        is_done: whether it has ended: with `taken`, or with none.
        why: why it ended without a snapshot, for people.
    """

    def __init__(self, replica: str, siblings: Callable[[], Collection[str]], *, now_ns: int) -> None:
        self._replica, self._siblings, self._began_ns = replica, siblings, now_ns
        self._probed_ns: int | None = None
        self._stages: dict[str, Stage] = {}
        self._seen_ns: dict[str, int] = {}
        """Sibling -> when it was first seen."""
        self._failed: dict[str, str] = {}
        """Sibling -> why it is asked no more."""
        self._n_transfers = 0
        self._transfer: _Transfer | None = None
        self.is_done, self.why = False, ""

    @property
    def taken(self) -> tuple[str, Sequence[bytes]] | None:
        """Return the sibling and the pieces of its complete snapshot, to be checked; None if there is none."""
        transfer = self._transfer
        return (transfer.giver, transfer.pieces) if transfer is not None and transfer.is_complete else None

    def refuse(self, why: str) -> None:
        """Give up the snapshot that was taken, because it cannot be used, and look for another."""
        if self._transfer is not None:
            self._failed[self._transfer.giver] = why
        self._transfer, self.is_done = None, False

    def received(self, sender: str, letter: Staged | Piece | End | Stop, now_ns: int) -> Letters:
        """Take a letter; return letters to send."""
        if self.is_done:
            # a giver that has not heard that all is here sends the end again
            return [(sender, encoded(Done(letter.transfer)))] if isinstance(letter, End) else []
        match letter, self._transfer:
            case Staged(stage), transfer:
                self._stages[sender] = stage
                is_asked = transfer is not None and transfer.giver == sender and not transfer.pieces
                if is_asked and stage is not Stage.READY:
                    self._transfer = None  # another was faster
                return self._decided(now_ns)
            case ((Piece(number) | End(number) | Stop(number)), _Transfer() as transfer) if (
                transfer.giver == sender and transfer.number == number
            ):
                return self._taken(transfer, letter, now_ns)
            case _:  # of a transfer that was given up
                return []

    def tick(self, now_ns: int) -> Letters:
        """Return letters that are due; to be called every `PROBE_NS` at least."""
        if self.is_done:
            return []
        letters: list[tuple[str, bytes]] = []
        transfer = self._transfer
        if transfer is not None:
            stuck_ns = now_ns - transfer.progress_ns
            if transfer.giver not in self._siblings() or stuck_ns > STUCK_NS:
                letters += self._given_up(transfer, "the transfer stopped")
            elif now_ns - max(transfer.progress_ns, transfer.asked_ns) > AGAIN_NS:
                return self._more(transfer, now_ns, again=True)
            else:
                return letters
        living = self._siblings()
        for sibling in living:
            self._seen_ns.setdefault(sibling, now_ns)
        if self._probed_ns is None or now_ns - self._probed_ns >= PROBE_NS:
            self._probed_ns = now_ns
            letters += [(sibling, encoded(Probe())) for sibling in living if sibling not in self._failed]
        return [*letters, *self._decided(now_ns)]

    def _decided(self, now_ns: int) -> Letters:
        """Ask a sibling, wait, or end without a snapshot."""
        if self._transfer is not None:
            return []
        living = [each for each in self._siblings() if each not in self._failed]
        waited_ns = now_ns - self._began_ns
        stages = {each: self._stages[each] for each in living if each in self._stages}
        ready = sorted(each for each, stage in stages.items() if stage is Stage.READY)
        unknown = [each for each in living if each not in stages and self._is_new(each, now_ns)]
        if ready:
            return self._ask(ready[sum(self._replica.encode()) % len(ready)], now_ns)  # not all the same
        if not living:
            if self._failed:
                reasons = "; ".join(f"{each}: {why}" for each, why in self._failed.items())
                self._end(f"no sibling gave a snapshot that can be used ({reasons})")
            elif waited_ns > LOOK_NS:
                self._end("no sibling was found")
        elif waited_ns > WAIT_NS:
            self._end(f"no sibling was ready within {WAIT_NS // 10**9} s")
        elif not unknown and not stages:
            self._end(f"no sibling answered: {', '.join(living)}")
        elif not unknown and set(stages.values()) == {Stage.UNDECIDED} and self._replica < min(stages):
            self._end("all siblings start too, and this one is the first of them")
        return []

    def _is_new(self, sibling: str, now_ns: int) -> bool:
        return now_ns - self._seen_ns.setdefault(sibling, now_ns) < ANSWER_NS

    def _ask(self, sibling: str, now_ns: int) -> Letters:
        self._n_transfers += 1
        self._transfer = _Transfer(sibling, self._n_transfers, now_ns, now_ns)
        return [(sibling, encoded(Ask(self._n_transfers)))]

    def _taken(self, transfer: _Transfer, letter: Piece | End | Stop, now_ns: int) -> Letters:
        match letter:
            case Piece(_, number, data) if number == len(transfer.pieces):
                transfer.pieces.append(data)
                transfer.n_bytes += len(data)
                transfer.progress_ns = now_ns
                if transfer.n_bytes > MAX_SNAPSHOT_BYTES:
                    return self._given_up(transfer, f"it has more than {MAX_SNAPSHOT_BYTES} bytes")
                return self._more(transfer, now_ns, again=False)
            case Piece(_, number) if number > len(transfer.pieces):
                # the missing piece may be asked for once; the pieces behind it come again with it
                is_asked = transfer.asked_ns > transfer.progress_ns
                return [] if is_asked else self._more(transfer, now_ns, again=True)
            case End(_, n_pieces) if n_pieces == len(transfer.pieces):
                transfer.is_complete = self.is_done = True
                return [(transfer.giver, encoded(Done(transfer.number)))]
            case Stop():
                return self._given_up(transfer, "it ended the transfer")
            case _:
                return []

    def _more(self, transfer: _Transfer, now_ns: int, *, again: bool) -> Letters:
        if again:
            transfer.asked_ns = now_ns
            if not transfer.pieces:  # the request itself may be lost
                return [(transfer.giver, encoded(Ask(transfer.number)))]
        return [(transfer.giver, encoded(More(transfer.number, len(transfer.pieces), again)))]

    def _given_up(self, transfer: _Transfer, why: str) -> Letters:
        self._failed[transfer.giver] = why
        self._transfer = None
        return [(transfer.giver, encoded(Stop(transfer.number)))]

    def _end(self, why: str) -> None:
        self.is_done, self.why = True, why
