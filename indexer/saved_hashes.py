"""What one publisher's engine hashes mean, as it is saved."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from ..events.model import BlockStored, EngineHash, ExtraKey
from .columns import Column, Saved, check_columns
from .hash_table import HashColumns


class ParkedStore(Saved, frozen=True):
    """A store event whose parent is not known, with what makes its keys; fields as in `BlockStored`."""

    hashes: Column
    parent: int
    tokens: Column
    block_size: int
    lora_name: str | None
    extra_keys: tuple[tuple[ExtraKey, ...] | None, ...] | None

    def __post_init__(self) -> None:
        """Raises ValueError for other columns, and for tokens that are not those of the blocks."""
        check_columns(hashes=(self.hashes, "Q"))
        check_columns(tokens=(self.tokens, "I"))
        n_blocks, n_tokens = len(self.hashes), len(self.tokens)
        if not n_blocks or n_tokens != n_blocks * self.block_size:
            raise ValueError(f"{n_tokens} tokens are not {n_blocks} blocks of {self.block_size}")

    @classmethod
    def of(cls, parent: EngineHash, event: BlockStored) -> ParkedStore:
        """The event that waits for `parent`."""
        return cls(
            hashes=array("Q", event.hashes),
            parent=parent,
            tokens=event.tokens,
            block_size=event.block_size,
            lora_name=event.lora_name,
            extra_keys=event.extra_keys,
        )

    def event(self) -> BlockStored:
        """The event as far as keys depend on it."""
        return BlockStored(
            hashes=tuple(map(EngineHash, self.hashes)),
            parent=EngineHash(self.parent),
            tokens=self.tokens,
            block_size=self.block_size,
            lora_name=self.lora_name,
            extra_keys=self.extra_keys,
        )


class SavedHashes(Saved, frozen=True):
    """Every learned hash, as in `HashColumns`, and the events that wait for their parents.

    Attributes:
        hashes: u64.
        keys: u64.
        depths: u32.
        parents: u64.
        parked: those that would be given up first in front.
    """

    hashes: Column
    keys: Column
    depths: Column
    parents: Column
    parked: tuple[ParkedStore, ...]

    def __post_init__(self) -> None:
        """Raises ValueError for other columns."""
        check_columns(
            hashes=(self.hashes, "Q"),
            keys=(self.keys, "Q"),
            depths=(self.depths, "I"),
            parents=(self.parents, "Q"),
        )

    @classmethod
    def of(cls, columns: HashColumns, parked: Iterable[tuple[EngineHash, BlockStored]]) -> SavedHashes:
        """The rows of a table, and events with the hashes they wait for."""
        waiting = tuple(ParkedStore.of(parent, event) for parent, event in parked)
        return cls(**columns._asdict(), parked=waiting)

    @property
    def columns(self) -> HashColumns:
        """The rows."""
        return HashColumns(self.hashes, self.keys, self.depths, self.parents)
