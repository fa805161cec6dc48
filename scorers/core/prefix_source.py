"""Sources of cached-prefix lengths, and the settings of prefix producers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .columns import FloatArray, IntArray
from .prefix_columns import PrefixColumns


class PrefixSource(Protocol):
    """Counter of cached blocks."""

    def blocks(self, prefix: PrefixColumns) -> FloatArray | IntArray:
        """Return the cached blocks of each endpoint, from 0 to `prefix.n_blocks`."""
        ...


@dataclass(frozen=True, slots=True)
class OneTier:
    """Source that counts gap-free blocks from block 0 in one tier; `tier` is None if the fleet has no such tier."""

    tier: str | None

    def blocks(self, prefix: PrefixColumns) -> FloatArray | IntArray:
        """Return the numbers of whole blocks; 0 without a tier."""
        return prefix.blocks_in(self.tier) if self.tier in prefix.tiers else np.zeros(len(prefix))


@dataclass(frozen=True, slots=True)
class TierCredits:
    """Source that counts blocks of the union prefix by the credit of their fastest tier.

    Attributes:
        credits: credit of a block by tier, 0 to 1, fastest tier first.
    """

    credits: tuple[float, ...]

    def blocks(self, prefix: PrefixColumns) -> FloatArray | IntArray:
        """Return the sums of the credits of all blocks of the union prefix; tiers beyond `credits` have credit 0."""
        credited = np.zeros(len(prefix))
        for credit, n_blocks in zip(self.credits, prefix.union_blocks, strict=False):
            credited += credit * n_blocks
        return credited


@dataclass(frozen=True, slots=True)
class ApproxProducer:
    """An index learned from routing.

    Attributes:
        capacity: blocks per server; None takes the size that the engine reports.
    """

    capacity: int | None


@dataclass(frozen=True, slots=True)
class PreciseProducer:
    """An index learned from events.

    Attributes:
        credits: engine's word for a tier, lower case -> credit of a block in that tier.
        bind: ZMQ address to listen on if engines connect to kvatlas, None if kvatlas connects to them.
        port: port of the engines' PUB sockets, None if not given.
        replay_port: port of the engines' replay sockets, None if not given.
        topic_prefix: ZMQ subscription prefix.
        predicted_ttl: time for which the prompts of recent requests count as cached, None if they do not.
    """

    credits: Mapping[str, float]
    bind: str | None = None
    port: int | None = None
    replay_port: int | None = None
    topic_prefix: str = ""
    predicted_ttl: str | None = None


PrefixProducer = ApproxProducer | PreciseProducer
