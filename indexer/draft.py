"""State of a rank that is built from a snapshot of its publisher, in an index of its own."""

from __future__ import annotations

from .atlas import Atlas
from .holders import SharedHolders
from .index import BlockIndex
from .ledger import RankLedger


class RankDraft:
    """A state of a rank, empty at first, that matches do not see.

    Args:
        atlas: of the rank.
        like: the ledger of the rank.

    Attributes:
        ledger: gets the events of the snapshot.
    """

    def __init__(self, atlas: Atlas, like: RankLedger) -> None:
        self._like, self._core = like, atlas.core
        self._indexes: dict[int, BlockIndex] = {}
        self._shared = SharedHolders(atlas.tiers, self._index_for)
        self.ledger = atlas.core.ledger(
            tiers=atlas.tiers,
            seed=atlas.seed,
            make_keys=atlas.core.prefix_keys,
            index_for=self._index_for,
            shared=self._shared,
            on_source=lambda _: None,
            on_layout=lambda: None,
        )
        self.ledger.tenant, self.ledger.own_salt = like.tenant, like.own_salt
        self.ledger.is_store, self.ledger.may_share = like.is_store, like.may_share
        if like.told_block_size is not None:
            self.ledger.use_block_size(like.told_block_size)

    def adopt(self, *, now: float) -> None:
        """Replace the rank's state by this one; `now` in monotonic seconds. Cost: O(hashes + residencies)."""
        self._like.replace(self.ledger.dump(now=now), self._shared.dump(), now=now)
        self._like.sessions.take(self.ledger.sessions)

    def _index_for(self, block_size: int) -> BlockIndex:
        return self._indexes.setdefault(block_size, self._core.make_index())
