"""One publisher's ledger as a value that can be saved and loaded again."""

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


class SavedLedger(Saved, frozen=True):
    """Everything learned from one publisher's events and from routing; bounds are configuration and not included.

    Attributes:
        block_size: tokens per block, None if unknown.
        tells_extra_keys: whether the engine sends the inputs of its hashes beside tokens.
        groups: KV-cache groups by number.
        sources: source of each tier.
        hashes: keys of engine hashes.
        chunks: offload chunks.
        foreign: chunks of a cache library with its own hashes.
        pending: copies whose key is not known.
        holders: contents of every place.
        lookahead: tokens after a block that belong to its key.
        one_tree: whether the engine keeps one tree of pages over all its tiers.
        reports: whether requests have asked the engine to report what it holds.
        recomputes: whether its stores show that the last matched block is computed again.
        told_size: tokens per block by which the blocks of slower tiers are known; None if `block_size` is.
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
    lookahead: Annotated[int, Meta(ge=0, le=64)] = 0
    one_tree: bool = False
    reports: bool = False
    recomputes: bool = False
    told_size: Annotated[int, Meta(ge=1, lt=2**31)] | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if there are blocks but no block size."""
        if (
            self.block_size is None
            and self.told_size is None
            and (self.hashes.hashes or self.foreign.hashes or self.holders)
        ):
            raise ValueError("the ledger holds blocks but has no block size")

    @property
    def n_residencies(self) -> int:
        """Number of blocks in all places, without shared tiers."""
        return sum(len(contents.keys) for _, contents in self.holders)

    @property
    def tiers(self) -> set[int]:
        """Tiers that occur anywhere in the ledger."""
        return {
            *self.sources.found,
            *self.chunks.sizes,
            *(tails.place.tier for tails in self.chunks.tails),
            *self.foreign.tiers,
            *(claim.place.tier for claim in self.pending.kinds),
            *(place.tier for place, _ in self.holders),
        }
