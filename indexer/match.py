"""Prefix match: the blocks of a prompt that an endpoint holds, per tier and by the engine's own reuse rule.

The presence of a prompt's blocks is a Python integer, bit i for block i, so that prefixes, unions and whole chunks are
bit operations for any prompt length.
Source of the reuse rules: vLLM 0.33 KVCacheManager and OffloadingConnectorScheduler, and SGLang 0.5.23's radix cache,
checked against recorded `cached_tokens`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import msgspec

LOAD_BACK_TOKENS = 10
"""Tokens in slower tiers that SGLang loads back at least. Source: its `load_back_threshold`."""


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
        computed_tokens: tokens at the end of the usable blocks that the engine computes again: the last one of a prompt that a
            hybrid model has as a whole.
    """

    tiers: tuple[str, ...]
    block_size: int
    n_blocks: int
    held: RankMatch
    rank: int = 0
    other_ranks: Mapping[int, int] = {}
    predicted_blocks: int = 0
    computed_tokens: int = 0

    @property
    def usable_blocks(self) -> int:
        """Blocks that the engine itself would reuse."""
        return self.held.usable_blocks

    @property
    def usable_tokens(self) -> int:
        """Tokens that the engine would not compute again."""
        return self.held.usable_blocks * self.block_size - self.computed_tokens

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
    """A sliding-window group.

    Attributes:
        holders: its holders in the fastest tier.
        n_blocks: blocks that they need before a boundary.
        slow_holders: its holders in the next tier, 0 if it has none.
        n_slow_blocks: blocks that these need before a boundary.
    """

    holders: int
    n_blocks: int
    slow_holders: int = 0
    n_slow_blocks: int = 1


@dataclass(frozen=True)
class RankLayout:
    """The holders of one rank by tier.

    Attributes:
        tiers: per tier, fastest first, the holders that must all have a block (bit mask); 0 if the tier holds nothing.
        chunks: per tier, blocks that can only be loaded together.
        windows: sliding-window groups.
        dropped: blocks, or chunks of slower tiers, at the end of a match that the engine computes again (drafters).
        one_tree: whether the engine keeps one tree of pages over all its tiers (SGLang), without chunks.
    """

    tiers: tuple[int, ...]
    chunks: tuple[int, ...]
    windows: tuple[Window, ...] = ()
    dropped: int = 0
    one_tree: bool = False

    @property
    def slow_chunk(self) -> int:
        """Blocks that can only be loaded together from the slower tiers: the largest chunk of any."""
        return max(self.chunks[1:], default=1)

    @cached_property
    def packed(self) -> array[int]:
        """The layout as numbers, for the native core: a matcher is made from those of all ranks whenever one changes.

        They are the chunk of slower tiers, `dropped`, `one_tree`, the number of tiers, that of windows; the holders of each
        tier, after their number; the blocks of each window, then its holders, after their number, and the same of the next
        tier.
        """
        counts = (self.slow_chunk, self.dropped, self.one_tree, len(self.tiers), len(self.windows))
        numbers = array("Q", counts)
        for tier in self.tiers:
            numbers.extend(_counted(tier))
        for window in self.windows:
            numbers.append(window.n_blocks)
            numbers.extend(_counted(window.holders))
            numbers.append(window.n_slow_blocks)
            numbers.extend(_counted(window.slow_holders))
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


def usable_when_computed(
    n_blocks: int, layout: RankLayout, *, n_tokens: int, block_size: int, copies: bool
) -> int:
    """Return the blocks of a prompt that a rank would reuse once it has computed the first `n_blocks` of it.

    Args:
        n_blocks: full blocks of the prompt, or fewer.
        layout: of the rank.
        n_tokens: tokens of the prompt.
        block_size: tokens per block.
        copies: whether a slower tier gets a copy of what is computed. The last block of a prompt that ends with it can then be
            reused from there; the fastest tier's own is always computed again.
    """
    held = (1 << n_blocks) - 1
    if layout.windows:
        return max(min(n_blocks, max(n_tokens - 1, 0) // block_size) - layout.dropped, 0)
    return _usable((held, held) if copies else (held,), (), layout, n_tokens, block_size)


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
    they gain a full chunk, and may cover the last token too. A drafter needs the last block of either computed again.
    """
    reusable = max(n_tokens - 1, 0) // block_size
    fast = max(min(leading_blocks(tiers[0]), reusable) - layout.dropped, 0)
    if layout.one_tree:
        return _usable_of_tree(tiers, fast, reusable, block_size)
    if layout.windows:
        windows = [(_bits(presence, window.holders), window.n_blocks) for window in layout.windows]
        fast = _windowed(fast, windows)
        slow = [(_bits(presence, window.slow_holders), window.n_slow_blocks) for window in layout.windows]
        return _usable_of_hybrid(tiers[1:2], slow, fast, max(n_tokens - 1, 0), block_size)
    chunk = layout.slow_chunk
    position = first = fast // chunk * chunk
    limit = n_tokens // (chunk * block_size) * chunk
    while position < limit:
        n_blocks = max((leading_blocks(bits >> position) // chunk * chunk for bits in tiers[1:]), default=0)
        if not n_blocks:
            break
        position = min(position + n_blocks, limit)
    position -= layout.dropped * chunk
    return position if position > first and position - fast >= chunk else fast


def _usable_of_hybrid(
    tier: Sequence[int], windows: Sequence[tuple[int, int]], fast: int, n_reusable: int, block_size: int
) -> int:
    """Return the blocks that a hybrid model would reuse, with those of the next tier; a last one in part counts as one.

    Args:
        tier: blocks of the full group in the next tier; empty without such a tier.
        windows: blocks of each window group in the next tier, and how many before a boundary it needs.
        fast: blocks that the fastest tier gives.
        n_reusable: tokens that may be reused at most.
        block_size: tokens per block.
    Source: vLLM 0.33 OffloadingConnectorScheduler.
    """
    if not tier:
        return fast
    best = min(n_reusable, (fast + leading_blocks(tier[0] >> fast)) * block_size)
    shrank = True
    while shrank:
        shrank = False
        for bits, n_blocks in windows:
            end = _last_run_end(bits, fast, -(-best // block_size), n_blocks)
            if end * block_size < best:
                best, shrank = end * block_size, True
    return -(-best // block_size) if best >= (fast + 1) * block_size else fast


def _last_run_end(bits: int, begin: int, end: int, n_blocks: int) -> int:
    """Return where the last run of `n_blocks` within [begin, end) ends; without one, where the run from `begin` on ends."""
    for last in range(end, begin + n_blocks - 1, -1):
        if _all_set(bits, last - n_blocks, last):
            return last
    return min(begin + leading_blocks(bits >> begin), end)


def _usable_of_tree(tiers: Sequence[int], fast: int, reusable: int, block_size: int) -> int:
    """Return the pages that SGLang would reuse: those of all tiers together, but never the prompt's last token.

    Few tokens are not worth loading back for it.
    """
    union = 0
    for bits in tiers:
        union |= bits
    n_blocks = min(leading_blocks(union), reusable)
    return n_blocks if (n_blocks - fast) * block_size >= LOAD_BACK_TOKENS else fast


def _windowed(longest: int, windows: Sequence[tuple[int, int]]) -> int:
    """Return the longest boundary before which every window group has its blocks, or near the start all of them."""
    for end in range(longest, 0, -1):
        if all(_all_set(bits, max(0, end - n_blocks), end) for bits, n_blocks in windows):
            return end
    return 0


def _all_set(bits: int, start: int, end: int) -> bool:
    wanted = (1 << end) - (1 << start)
    return bits & wanted == wanted
