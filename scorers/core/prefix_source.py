"""Sources of cached-prefix lengths, and the settings of prefix producers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ...indexer.match import PrefixMatch


class PrefixSource(Protocol):
    """Counter of cached blocks in a match."""

    def blocks(self, prefix: PrefixMatch) -> float:
        """Return the cached blocks, from 0 to `prefix.n_blocks`."""
        ...


@dataclass(frozen=True, slots=True)
class OneTier:
    """Source that counts gap-free blocks from block 0 in one tier; `tier` is None if the fleet has no such tier."""

    tier: str | None

    def blocks(self, prefix: PrefixMatch) -> float:
        """Return the number of whole blocks; 0 without a tier."""
        return prefix.blocks_in(self.tier) if self.tier is not None else 0


@dataclass(frozen=True, slots=True)
class TierCredits:
    """Source that counts blocks of the union prefix by the credit of their fastest tier.

    Attributes:
        credits: credit of a block by tier, 0 to 1, fastest tier first.
    """

    credits: tuple[float, ...]

    def blocks(self, prefix: PrefixMatch) -> float:
        """Return the sum of the credits of all blocks of the union prefix."""
        return prefix.credited_blocks(self.credits)


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
