"""The state of one publisher as it is saved, loaded, and replaced by another."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import cast

from .groups import LEARNED_GROUP
from .holders import FASTEST, Place, SavedShared
from .keys import BlockKey
from .rank_state import RankState
from .recomputed import Recomputed
from .saved import SavedLedger
from .sources import SavedSources
from .tiers import TierSource


class SavedRank(RankState):
    """State of one publisher that can be saved."""

    def dump(self, *, now: float) -> SavedLedger:
        """Return everything learned, to be saved; `now` in monotonic seconds. Cost: O(hashes + residencies)."""
        size = self._blocks.size
        block_size = size.certain or size.assumed
        is_keyed = bool(len(self.hashes) or self.hashes.n_parked or self._foreign.tiers)
        told_size = size.expected if block_size is None and is_keyed else None
        return SavedLedger(
            block_size=block_size,
            told_size=told_size,
            tells_extra_keys=self._tells_extra_keys,
            lookahead=self.lookahead,
            one_tree=self._one_tree,
            reports=self._reports,
            recomputes=self._recomputed.shown,
            groups=dict(self._groups),
            sources=self.sources.dump(now=now),
            hashes=self.hashes.dump(),
            chunks=self._chunks.dump(),
            foreign=self._foreign.dump(),
            pending=self._pending.dump(),
            holders=() if block_size is None and told_size is None else self._blocks.known.dump(),
        )

    def load(self, saved: SavedLedger, *, now: float) -> None:
        """Load a dump into this ledger, which must be empty, within its own bounds."""
        for change in self.sources.load(saved.sources, now=now):
            self._note(change)
        self._assume()
        if saved.block_size is None and saved.told_size is not None:
            self.use_block_size(saved.told_size)
        elif saved.block_size is not None and saved.block_size != self._blocks.size.assumed:
            self._blocks.settle(saved.block_size)
        self._tells_extra_keys, self._one_tree = saved.tells_extra_keys, saved.one_tree
        self.lookahead, self._reports = saved.lookahead, saved.reports
        self._recomputed = Recomputed(shown=saved.recomputes)
        self._groups.update(saved.groups)
        self.hashes.load(saved.hashes)
        self._chunks.load(saved.chunks)
        self._foreign.load(saved.foreign)
        self._pending.load(saved.pending)
        self._expect_pending()
        if saved.holders:
            self._blocks.known.load(saved.holders)

    def replace(self, saved: SavedLedger, shared: Sequence[SavedShared], *, now: float) -> None:
        """Replace the present state by a dump; tiers without events keep what was inferred.

        Args:
            saved: the new state.
            shared: blocks that it has in tiers that belong to no server.
            now: monotonic seconds.
        """
        sources = self.sources.dump(now=now)
        inferred = {
            tier: array("Q", self._blocks.known.keys(tier))
            for tier, source in sources.found.items()
            if source is TierSource.INFERRED and tier not in saved.sources.found
            and self._blocks.holders is not None
        }  # fmt: skip
        self.reset()
        self.load(saved, now=now)
        self._blocks.load_shared(shared)
        if not inferred or self._blocks.holders is None:
            return
        found = dict.fromkeys(inferred, TierSource.INFERRED)
        for change in self.sources.load(
            SavedSources(found=found, offloading_s=sources.offloading_s), now=now
        ):
            self._note(change)
        for tier, keys in inferred.items():
            self._blocks.keep(Place(tier, LEARNED_GROUP), cast("Sequence[BlockKey]", keys))
        self._infer(list(self._blocks.holders.keys(FASTEST)))
