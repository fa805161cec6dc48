"""Whether an engine computes the last matched block of a prompt again, as what it stores in its fastest tier shows.

vLLM with an EAGLE or MTP drafter does so unless its block hashes have a lookahead. The blocks that a request computes then begin with
one that is held already, which other engines would have reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ..events.model import BlockStored, EngineHash
from .hash_table import Known
from .holders import Place, RankHolders

GAIN, LOSS = 4, 1
"""Weight of a store that begins with one held block, and of one that continues held blocks. Engines with a drafter send some of the
second kind too, when they compute a long prompt in parts or load blocks from a slower tier. Other engines send few of the first:
prompts that are computed at the same time."""

SHOWN, LEAST = 2 * GAIN, -4 * GAIN
"""Bounds of the sum, which starts at zero. The upper one shows the rule, until the sum is below zero again; the lower one
denies what metrics alone have made a guess, until it is back at zero."""


class Recomputed:
    """Evidence of one publisher.

    Args:
        shown: what a saved state has shown.

    Attributes:
        shown: whether the last matched block is computed again.
        denied: whether it is not, if nothing but a guess says so.
    """

    def __init__(self, *, shown: bool = False) -> None:
        self.shown, self.denied = shown, False
        self._sum = SHOWN if shown else 0

    def learn(self, evidence: Iterable[bool | int]) -> bool:
        """Learn from stores in order, true: one that begins with a held block; return whether it shows something else."""
        before = self.shown, self.denied
        for is_again in evidence:
            self._sum = min(self._sum + GAIN, SHOWN) if is_again else max(self._sum - LOSS, LEAST)
            self.shown = self._sum == SHOWN or (self.shown and self._sum >= 0)
            self.denied = self._sum == LEAST or (self.denied and self._sum < 0)
        return (self.shown, self.denied) != before


def evidence_of(
    event: BlockStored, place: Place, known: Callable[[EngineHash], Known | None], holders: RankHolders | None
) -> Iterator[bool]:
    """Yield whether a store begins with one held block instead of continuing held ones; nothing if it does neither.

    Args:
        event: a store in the fastest tier, before it is applied.
        place: tier and group of the event.
        known: the key of an engine hash, None if it is unknown.
        holders: the rank's blocks, None if it has none.
    """
    if holders is None or len(event.hashes) <= 1:
        return

    def has(engine_hash: EngineHash) -> bool:
        found = known(engine_hash)
        return holders.has_all(place, (found.key if found else None,))

    if event.parent is not None and not has(event.parent):
        return
    if not has(event.hashes[0]):
        if event.parent is not None:
            yield False
    elif not has(event.hashes[1]):
        yield True
