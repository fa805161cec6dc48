"""Sources of cached-prefix lengths, and the settings of prefix producers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .bursts import BurstRules
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
        whole: whether the sums are cut down to whole blocks, as the reference does.
    """

    credits: tuple[float, ...]
    whole: bool = False

    def blocks(self, prefix: PrefixColumns) -> FloatArray | IntArray:
        """Return the sums of the credits of all blocks of the union prefix; tiers beyond `credits` have credit 0."""
        credited = np.zeros(len(prefix))
        for credit, n_blocks in zip(self.credits, prefix.union_blocks, strict=False):
            credited += credit * n_blocks
        return np.floor(credited) if self.whole else credited


@dataclass(frozen=True, slots=True)
class ApproxProducer:
    """An index learned from routing.

    Attributes:
        capacity: blocks per server; None takes the size that the engine reports.
        default_capacity: blocks per server if the engine reports none.
        block_size: tokens per block; with a `capacity` of None only if the engine reports none.
        max_tokens: longest prefix that is matched, in tokens; 0 for `max_blocks`.
        max_blocks: the same in blocks; 0 for no limit.
        min_block_size: least estimated tokens per block, in a fleet without tokenizer.
    """

    capacity: int | None
    default_capacity: int = 31_250
    block_size: int = 16
    max_tokens: int = 131_072
    max_blocks: int = 2048
    min_block_size: int = 64


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


@dataclass(frozen=True, slots=True)
class MediaProducer:
    """A memory of the media that each server was sent.

    Attributes:
        n_items: media items per server.
    """

    n_items: int


@dataclass(frozen=True, slots=True)
class BurstProducer:
    """An assignment of requests that arrive together.

    Attributes:
        window_s: time for which requests are collected.
        block_size: tokens per block by which prompts are compared.
        max_blocks: leading blocks by which they are compared.
        max_requests: requests collected at one time, None for no limit.
        rules: of the assignment.
    """

    window_s: float
    block_size: int
    max_blocks: int
    max_requests: int | None
    rules: BurstRules

    def blocks(self, prefix: PrefixColumns) -> FloatArray:
        """Return 0 for every endpoint: what is assigned is no cached prefix. Implements `PrefixSource`."""
        return np.zeros(len(prefix))


PrefixProducer = ApproxProducer | PreciseProducer | MediaProducer | BurstProducer
