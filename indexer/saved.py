"""One publisher's books as values that can be saved and loaded again."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .chunks import SavedChunks
from .columns import HolderColumns, Saved
from .foreign import ForeignColumns
from .holders import Group, Place
from .pending import PendingColumns
from .saved_hashes import SavedHashes
from .sources import SavedSources


class SavedBooks(Saved, frozen=True):
    """All that one publisher's events and our own routing have taught; bounds are configuration and not in it.

    Attributes:
        block_size: tokens a block, None while not known.
        tells_extra_keys: whether the engine tells what enters its hashes beside tokens.
        groups: KV-cache groups by number.
        sources: where knowledge of each tier comes from.
        hashes: what engine hashes mean.
        chunks: offload chunks.
        foreign: chunks with hashes of their own.
        pending: copies whose key is not known.
        holders: contents of every place.
    """

    block_size: Annotated[int, Meta(ge=1, lt=2**31)] | None
    tells_extra_keys: bool
    groups: dict[int, Group]
    sources: SavedSources
    hashes: SavedHashes
    chunks: SavedChunks
    foreign: ForeignColumns
    pending: PendingColumns
    holders: tuple[tuple[Place, HolderColumns], ...]

    def __post_init__(self) -> None:
        """Raises ValueError when something is known that cannot be without a block size."""
        if self.block_size is None and (self.hashes.hashes or self.foreign.hashes or self.holders):
            raise ValueError("the books hold blocks and no block size")

    @property
    def n_residencies(self) -> int:
        """Blocks in all places, shared tiers left out."""
        return sum(len(contents.keys) for _, contents in self.holders)

    @property
    def tiers(self) -> set[int]:
        """Tiers that anything in the books is of."""
        return {
            *self.sources.found,
            *self.chunks.sizes,
            *(tails.place.tier for tails in self.chunks.tails),
            *(claim.place.tier for claim in self.pending.kinds),
            *(place.tier for place, _ in self.holders),
        }
