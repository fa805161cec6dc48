"""What counts as cached prefix, and what a producer of the configuration says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ...indexer.match import PrefixMatch


class PrefixSource(Protocol):
    """Reads a number of cached blocks out of a match."""

    def blocks(self, prefix: PrefixMatch) -> float:
        """Cached blocks, from 0 to `prefix.n_blocks`."""
        ...


@dataclass(frozen=True, slots=True)
class OneTier:
    """Gap-free blocks from block 0 in one tier alone; `tier` is None where the fleet has no such tier."""

    tier: str | None

    def blocks(self, prefix: PrefixMatch) -> float:
        """Whole blocks; 0 without a tier."""
        return prefix.blocks_in(self.tier) if self.tier is not None else 0


@dataclass(frozen=True, slots=True)
class TierCredits:
    """Blocks of the union prefix, each worth the credit of its fastest tier.

    Attributes:
        credits: worth of a block by tier, 0 to 1, fastest tier first.
    """

    credits: tuple[float, ...]

    def blocks(self, prefix: PrefixMatch) -> float:
        """Sum of the credits of all blocks of the union prefix."""
        return prefix.credited_blocks(self.credits)


@dataclass(frozen=True, slots=True)
class ApproxProducer:
    """An index learned from routing.

    Attributes:
        capacity: blocks a server holds; None to take the size the engine tells.
    """

    capacity: int | None


@dataclass(frozen=True, slots=True)
class PreciseProducer:
    """An index learned from events.

    Attributes:
        credits: engine's word for a tier, lower case -> worth of a block there.
        bind: ZMQ address to listen on where engines connect to us, None where we connect to them.
        port: port of the engines' PUB sockets, None when not named.
        replay_port: port of the engines' replay sockets, None when not named.
        topic_prefix: ZMQ subscription prefix.
        predicted_ttl: duration for which prompts just routed count as held, None when they do not.
    """

    credits: Mapping[str, float]
    bind: str | None = None
    port: int | None = None
    replay_port: int | None = None
    topic_prefix: str = ""
    predicted_ttl: str | None = None


PrefixProducer = ApproxProducer | PreciseProducer
