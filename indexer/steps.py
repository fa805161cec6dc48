"""Work in steps, so that a caller can do other work between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias, TypeVar

ItemT = TypeVar("ItemT")

Steps: TypeAlias = Iterator[int]
"""Work that is done as it is iterated; each item is the cost of the step before it, in microseconds as a rough guess.

A guess from counts does not depend on the machine's load, so that tests and both cores do the same steps."""

EVENT_COST = 10
"""Cost of an event that Python applies."""

BLOCK_COST = 2
"""Cost of a block that Python applies."""

BLOCKS_PER_COST = 8
"""Blocks that the native core applies in a microsecond."""

BYTES_PER_COST = 16
"""Bytes of an event that Python decodes in a microsecond."""

PIECE = 256
"""Blocks per step in Python, half a millisecond."""


def pieces(items: Sequence[ItemT]) -> Iterator[Sequence[ItemT]]:
    """Yield runs of at most `PIECE` items."""
    if len(items) <= PIECE:
        yield items
        return
    for begin in range(0, len(items), PIECE):
        yield items[begin : begin + PIECE]
