"""Prefix match: the blocks of a prompt that an endpoint holds, per tier and by the engine's own reuse rule.

The presence of a prompt's blocks is a Python integer, bit i for block i, so that prefixes, unions and whole chunks are
bit operations for any prompt length.
Source of the reuse rule: vLLM 0.32 KVCacheManager and OffloadingConnectorScheduler, checked against recorded
`cached_tokens`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import msgspec


@dataclass(frozen=True, slots=True)
class PresenceRun:
    """A stretch of prompt blocks with the same holders.

    Attributes:
        end: block after the last of the run.
        holders: bit h is set if holder h has every block of the run.
    """

    end: int
    holders: int


@dataclass(frozen=True, slots=True)
class TierRun:
    """A run of `n_blocks` prompt blocks whose fastest copy is in `tier` (its name)."""

    tier: str
    n_blocks: int


class RankMatch(msgspec.Struct, frozen=True, gc=False):
    """Blocks of one prompt on one rank; tuples have one entry per tier, fastest first.

    Like `PrefixMatch` a msgspec struct, since one is created per rank and request; small, since the latest decisions
    keep them.

    Attributes:
        tier_blocks: gap-free blocks from block 0 held in that tier alone.
        union_blocks: blocks of the union prefix whose fastest copy is in that tier.
        usable_blocks: blocks that the engine itself would reuse.
        interleaved: `runs` if a tier comes twice or after a slower one; else empty, since `union_blocks` defines them.
    """

    tier_blocks: tuple[int, ...]
    union_blocks: tuple[int, ...]
    usable_blocks: int
    interleaved: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_runs(
        cls, tier_blocks: tuple[int, ...], runs: Sequence[tuple[int, int]], usable_blocks: int
    ) -> RankMatch:
        """Build a match from its union prefix as (tier, blocks), in prompt order; neighbours have different tiers."""
        union = [0] * len(tier_blocks)
        for tier, n_blocks in runs:
            union[tier] += n_blocks
        in_turn = all(before < after for (before, _), (after, _) in pairwise(runs))
        return cls(tier_blocks, tuple(union), usable_blocks, () if in_turn else tuple(runs))

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """The union prefix as (tier, blocks), in prompt order."""
        return self.interleaved or tuple(
            (tier, n_blocks) for tier, n_blocks in enumerate(self.union_blocks) if n_blocks
        )


class PrefixMatch(msgspec.Struct, frozen=True, gc=False):
    """The match of one prompt with one endpoint (its best data-parallel rank).

    Attributes:
        tiers: names of the configured tiers, fastest first.
        block_size: tokens per block on this endpoint.
        n_blocks: full blocks of the prompt at that size, the denominator of prefix scores.
        held: match of the best rank.
        rank: number of the best rank.
        other_ranks: tokens usable on each other rank; ranks that hold nothing of the prompt are absent.
        predicted_blocks: blocks of the fastest tier's prefix that the endpoint does not hold yet, but will compute for a
            request sent to it.
    """

    tiers: tuple[str, ...]
    block_size: int
    n_blocks: int
    held: RankMatch
    rank: int = 0
    other_ranks: Mapping[int, int] = {}
    predicted_blocks: int = 0

    @property
    def usable_blocks(self) -> int:
        """Blocks that the engine itself would reuse."""
        return self.held.usable_blocks

    @property
    def usable_tokens(self) -> int:
        """Tokens that the engine would not compute again."""
        return self.held.usable_blocks * self.block_size

    @property
    def holds_any(self) -> bool:
        """Whether the rank holds any block of the prompt; predicted blocks do not count."""
        blocks = self.held.tier_blocks
        return blocks[0] > self.predicted_blocks or any(blocks[1:])

    def is_held_on(self, rank: int) -> bool:
        """Return whether the rank holds any block of the prompt."""
        return (rank == self.rank and self.holds_any) or rank in self.other_ranks

    @property
    def rank_usable_tokens(self) -> Mapping[int, int]:
        """Rank -> usable tokens; ranks that hold nothing of the prompt are absent."""
        return {self.rank: self.usable_tokens, **self.other_ranks} if self.holds_any else self.other_ranks

    @property
    def usable_tier_tokens(self) -> dict[str, int]:
        """Tier name -> usable tokens by the fastest tier that has them, in prompt order."""
        tokens: dict[str, int] = {}
        left = self.held.usable_blocks
        for tier, held in self.held.runs:
            n_blocks = min(left, held)
            if n_blocks:
                name = self.tiers[tier]
                tokens[name] = tokens.get(name, 0) + n_blocks * self.block_size
            left -= n_blocks
        return tokens

    @property
    def tier_blocks(self) -> dict[str, int]:
        """Tier name -> gap-free blocks from block 0 held in that tier alone, for every configured tier."""
        return dict(zip(self.tiers, self.held.tier_blocks, strict=True))

    @property
    def runs(self) -> tuple[TierRun, ...]:
        """The union prefix, each block in its fastest tier, in prompt order."""
        return tuple(TierRun(self.tiers[tier], n_blocks) for tier, n_blocks in self.held.runs)


@dataclass(frozen=True, slots=True)
class Window:
    """A sliding-window group: its holders, and the number of blocks that they need before a boundary."""

    holders: int
    n_blocks: int


@dataclass(frozen=True)
class RankLayout:
    """The holders of one rank by tier.

    Attributes:
        tiers: per tier, fastest first, the holders that must all have a block (bit mask); 0 if the tier holds nothing.
        chunks: per tier, blocks that can only be loaded together.
        windows: sliding-window groups of the fastest tier.
    """

    tiers: tuple[int, ...]
    chunks: tuple[int, ...]
    windows: tuple[Window, ...] = ()

    @property
    def slow_chunk(self) -> int:
        """Blocks that can only be loaded together from the slower tiers: the largest chunk of any."""
        return max(self.chunks[1:], default=1)

    @cached_property
    def packed(self) -> array[int]:
        """The layout as numbers, for the native core: a matcher is made from those of all ranks whenever one changes.

        They are the chunk of slower tiers, the number of tiers, that of windows; the holders of each tier, after their
        number; the blocks of each window, then its holders, after their number.
        """
        numbers = array("Q", (self.slow_chunk, len(self.tiers), len(self.windows)))
        for tier in self.tiers:
            numbers.extend(_counted(tier))
        for window in self.windows:
            numbers.append(window.n_blocks)
            numbers.extend(_counted(window.holders))
        return numbers


def measure(
    presence: Sequence[PresenceRun], layout: RankLayout, *, n_tokens: int, block_size: int
) -> RankMatch:
    """Return the match of a prompt with `presence` on a rank with `layout`.

    Cost: O(runs * tiers).
    """
    tiers = tuple(_bits(presence, holders) for holders in layout.tiers)
    return RankMatch.from_runs(
        tuple(map(leading_blocks, tiers)),
        _union_runs(tiers),
        _usable(tiers, presence, layout, n_tokens, block_size),
    )


def _counted(mask: int) -> list[int]:
    holders: list[int] = []
    while mask:
        lowest = mask & -mask
        holders.append(lowest.bit_length() - 1)
        mask ^= lowest
    return [len(holders), *holders]


def leading_blocks(bits: int) -> int:
    """Count the set bits from bit 0 up to the first clear one."""
    return (~bits & (bits + 1)).bit_length() - 1


def _bits(presence: Sequence[PresenceRun], holders: int) -> int:
    bits = start = 0
    for run in presence if holders else ():
        if run.holders & holders == holders:
            bits |= (1 << run.end) - (1 << start)
        start = run.end
    return bits


def _union_runs(tiers: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    union = faster = 0
    for bits in tiers:
        union |= bits
    position, end = 0, leading_blocks(union)
    own = [bits & ~(faster := faster | previous) for previous, bits in zip((0, *tiers), tiers, strict=False)]
    while position < end:
        tier = next(t for t, bits in enumerate(own) if bits >> position & 1)
        n_blocks = min(leading_blocks(own[tier] >> position), end - position)
        runs.append((tier, n_blocks))
        position += n_blocks
    return runs


def _usable(
    tiers: Sequence[int], presence: Sequence[PresenceRun], layout: RankLayout, n_tokens: int, block_size: int
) -> int:
    """Return the number of blocks that the engine would reuse.

    The fastest tier gives its gap-free blocks, but never the prompt's last token, which is always computed. Slower
    tiers continue from there in whole chunks, starting with the chunk that contains the boundary. They count only if
    they gain a full chunk, and may cover the last token too.
    """
    fast = min(leading_blocks(tiers[0]), max(n_tokens - 1, 0) // block_size)
    if layout.windows:
        windows = [(_bits(presence, window.holders), window.n_blocks) for window in layout.windows]
        return _windowed(fast, windows)  # slower tiers of hybrid models are not tracked
    chunk = layout.slow_chunk
    position = first = fast // chunk * chunk
    limit = n_tokens // (chunk * block_size) * chunk
    while position < limit:
        n_blocks = max((leading_blocks(bits >> position) // chunk * chunk for bits in tiers[1:]), default=0)
        if not n_blocks:
            break
        position = min(position + n_blocks, limit)
    return position if position > first and position - fast >= chunk else fast


def _windowed(longest: int, windows: Sequence[tuple[int, int]]) -> int:
    """Return the longest boundary before which every window group has its blocks, or near the start all of them."""
    for end in range(longest, 0, -1):
        if all(_all_set(bits, max(0, end - n_blocks), end) for bits, n_blocks in windows):
            return end
    return 0


def _all_set(bits: int, start: int, end: int) -> bool:
    wanted = (1 << end) - (1 << start)
    return bits & wanted == wanted
