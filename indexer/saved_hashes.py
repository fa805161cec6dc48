"""One publisher's engine hashes as a saved value."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

from ..events.model import BlockStored, EngineHash, ExtraKey
from .columns import Column, Saved, check_columns
from .hash_table import HashColumns


class ParkedStore(Saved, frozen=True):
    """A store event with an unknown parent, and the inputs of its keys; fields as in `BlockStored`."""

    hashes: Column
    parent: Annotated[int, Meta(ge=0)]
    tokens: Column
    block_size: Annotated[int, Meta(ge=1, lt=2**31)]
    lora_name: str | None
    extra_keys: tuple[tuple[ExtraKey, ...] | None, ...] | None
    lookahead: Column | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for wrong columns, and if the number of tokens does not match the blocks."""
        check_columns(hashes=(self.hashes, "Q"))
        check_columns(tokens=(self.tokens, "I"))
        if self.lookahead is not None:
            check_columns(lookahead=(self.lookahead, "I"))
        n_blocks, n_tokens = len(self.hashes), len(self.tokens)
        if not n_blocks or n_tokens != n_blocks * self.block_size:
            raise ValueError(f"{n_tokens} tokens are not {n_blocks} blocks of {self.block_size}")

    @classmethod
    def of(cls, parent: EngineHash, event: BlockStored) -> ParkedStore:
        """Build the value of an event that waits for `parent`."""
        return cls(
            hashes=array("Q", event.hashes),
            parent=parent,
            tokens=event.tokens,
            block_size=event.block_size,
            lora_name=event.lora_name,
            extra_keys=event.extra_keys,
            lookahead=event.lookahead,
        )

    def event(self) -> BlockStored:
        """Return the event with the fields that its keys depend on."""
        return BlockStored(
            hashes=tuple(map(EngineHash, self.hashes)),
            parent=EngineHash(self.parent),
            tokens=self.tokens,
            block_size=self.block_size,
            lora_name=self.lora_name,
            extra_keys=self.extra_keys,
            lookahead=self.lookahead,
        )


class SavedHashes(Saved, frozen=True):
    """All learned hashes, as in `HashColumns`, and the events that wait for their parents.

    Attributes:
        hashes: u64.
        keys: u64.
        depths: u32.
        parents: u64.
        parked: in the order in which they are dropped.
    """

    hashes: Column
    keys: Column
    depths: Column
    parents: Column
    parked: tuple[ParkedStore, ...]

    def __post_init__(self) -> None:
        """Raise ValueError for wrong columns."""
        check_columns(
            hashes=(self.hashes, "Q"),
            keys=(self.keys, "Q"),
            depths=(self.depths, "I"),
            parents=(self.parents, "Q"),
        )

    @classmethod
    def of(cls, columns: HashColumns, parked: Iterable[tuple[EngineHash, BlockStored]]) -> SavedHashes:
        """Build the value from the rows of a table, and events with the hashes that they wait for."""
        waiting = tuple(ParkedStore.of(parent, event) for parent, event in parked)
        return cls(**columns._asdict(), parked=waiting)

    @property
    def columns(self) -> HashColumns:
        """All rows of the table."""
        return HashColumns(self.hashes, self.keys, self.depths, self.parents)
