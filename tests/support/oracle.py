"""Naive oracles: the blocks that a publisher's events leave in each place, and a rank's match of a prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile

from kvatlas.events.model import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvatlas.indexer.match import RankLayout, RankMatch

WINDOWED = ("sliding_window",)
Place = tuple[str, int]
"""(medium, group)."""


class NaiveEngine:
    """The copies of every hash by place, counted directly from the events.

    Args:
        chunk_blocks: blocks of a token-less store; those before the named one come from the hash chain.
    """

    def __init__(self, *, chunk_blocks: int = 1) -> None:
        self.copies: dict[Place, Counter[int]] = {}
        self.parent: dict[int, int | None] = {}
        self.prompt: dict[int, tuple[int, ...]] = {}
        self._chunk_blocks = chunk_blocks
        self._tails: set[tuple[Place, int]] = set()

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case BlockStored():
                    self._stored(event)
                case BlockRemoved():
                    place: Place = (event.medium, event.group)
                    for engine_hash in event.hashes:
                        tail = (place, engine_hash) in self._tails
                        self.copies[place].subtract(self._chunk(engine_hash) if tail else [engine_hash])
                case AllBlocksCleared():
                    for place in self.copies:
                        if place[0] == "GPU":
                            self.copies[place].clear()

    def held(self, medium: str, group: int = 0) -> set[int]:
        """Return the hashes with at least one copy."""
        return {
            engine_hash
            for engine_hash, copies in self.copies.get((medium, group), Counter[int]()).items()
            if copies > 0
        }

    def _stored(self, event: BlockStored) -> None:
        place = (event.medium, event.group)
        copies = self.copies.setdefault(place, Counter())
        size = event.block_size
        if event.tokens and event.kind not in WINDOWED and event.medium == "GPU":
            before, known = event.parent, self.prompt.get(event.parent or 0, ())
            for number, engine_hash in enumerate(event.hashes):
                known += tuple(event.tokens[number * size : (number + 1) * size])
                self.parent[engine_hash], self.prompt[engine_hash], before = before, known, engine_hash
        for engine_hash in event.hashes:
            if event.tokens or event.medium == "GPU":
                copies[engine_hash] += 1
            else:
                self._tails.add((place, engine_hash))
                copies.update(self._chunk(engine_hash))

    def _chunk(self, tail: int) -> list[int]:
        chain = [tail]
        while len(chain) < self._chunk_blocks and (before := self.parent.get(chain[-1])) is not None:
            chain.append(before)
        return chain


def naive_match(blocks: Sequence[int], layout: RankLayout, *, n_tokens: int, block_size: int) -> RankMatch:
    """Match a prompt with a rank, block by block; the holders of the bit mask `blocks[i]` hold block i."""
    return _NaiveRank(blocks, layout, n_tokens, block_size).match()


@dataclass
class _NaiveRank:
    blocks: Sequence[int]
    layout: RankLayout
    n_tokens: int
    block_size: int

    def match(self) -> RankMatch:
        tiers = self.layout.tiers
        union = list(takewhile(lambda tier: tier is not None, map(self.fastest, range(len(self.blocks)))))
        runs = [(tier, len(list(run))) for tier, run in groupby(union) if tier is not None]
        return RankMatch.from_runs(tuple(map(self.leading, tiers)), runs, self.usable(len(union)))

    def has(self, holders: int, block: int) -> bool:
        return bool(holders) and block < len(self.blocks) and self.blocks[block] & holders == holders

    def fastest(self, block: int) -> int | None:
        tiers = enumerate(self.layout.tiers)
        return next((tier for tier, holders in tiers if self.has(holders, block)), None)

    def leading(self, holders: int) -> int:
        return sum(1 for _ in takewhile(lambda block: self.has(holders, block), range(len(self.blocks))))

    def is_window_whole(self, end: int) -> bool:
        return all(
            self.has(window.holders, block)
            for window in self.layout.windows
            for block in range(max(0, end - window.n_blocks), end)
        )

    def usable(self, n_union: int) -> int:
        layout, reusable = self.layout, max(self.n_tokens - 1, 0) // self.block_size
        fast = max(0, min(self.leading(layout.tiers[0]), reusable) - layout.dropped)
        if layout.one_tree:
            end = min(n_union, reusable)
            return end if (end - fast) * self.block_size >= 10 else fast
        if layout.windows:
            ends = range(fast, 0, -1)
            return self.usable_of_hybrid(next((end for end in ends if self.is_window_whole(end)), 0))
        chunk = max(layout.chunks[1:], default=1)
        end = fast // chunk * chunk
        while (end + chunk) * self.block_size <= self.n_tokens and any(
            all(self.has(holders, block) for block in range(end, end + chunk)) for holders in layout.tiers[1:]
        ):
            end += chunk
        end -= layout.dropped * chunk
        return end if end - fast >= chunk else fast

    def usable_of_hybrid(self, fast: int) -> int:
        """Return whole blocks; tokens count, since the last token is always computed."""
        size, end = self.block_size, fast
        while len(self.layout.tiers) > 1 and self.has(self.layout.tiers[1], end):
            end += 1
        best = min(self.n_tokens - 1, end * size)
        for _ in range(len(self.blocks) + 2):
            for window in self.layout.windows:
                n, last = window.n_slow_blocks, -(-best // size)
                run = [self.has(window.slow_holders, block) for block in range(last)]
                ends = [end for end in range(fast + n, last + 1) if all(run[end - n : end])]
                gap = next((block for block in range(fast, last) if not run[block]), last)
                best = min(best, max(ends, default=gap) * size)
        return -(-best // size) if best >= (fast + 1) * size else fast
