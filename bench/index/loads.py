"""Events of publishers: the caches of a whole fleet, and the streams of the ingest section."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Literal

from .fleet import EVENT_BLOCKS, Blocks, Shape, make_blocks, make_fleet
from .publisher import PHASES, Phase, Removed, WireEvent, stored

Mix = Literal["bulk", "churn"]

CONVERSATIONS = 32
"""Conversations that a publisher decodes at one time in the churn mix; each message stores and removes a block of each."""

BASE_BLOCKS = 4
"""Blocks that a conversation has before its churning one."""

_MEDIA = ("GPU", "CPU")


@dataclass(frozen=True)
class FleetLoad:
    """The whole fleet's caches in the measured phase, one publisher per endpoint. Implements `Load`."""

    shape: Shape

    @property
    def n_publishers(self) -> int:
        """See `Load.n_publishers`."""
        return self.shape.n_endpoints

    def n_messages(self, phase: Phase) -> int:
        """See `Load.n_messages`."""
        n_stores = sum(1 for _ in make_fleet(self.shape).stores()) if phase == "measured" else 0
        return n_stores + self.n_publishers

    def messages(self, publisher: int, phase: Phase) -> list[list[WireEvent]]:
        """See `Load.messages`."""
        tiers = make_fleet(self.shape).endpoints[publisher].tiers if phase == "measured" else ()
        batches: list[list[WireEvent]] = [
            [stored(event, medium)]
            for medium, contents in zip(_MEDIA, tiers, strict=False)
            for blocks in contents
            for event in blocks.events()
        ]
        return [*batches, [stored(self.last_block(phase))]]

    def last_block(self, phase: Phase) -> Blocks:
        """See `Load.last_block`."""
        return _prompt(f"end of {phase}", 1)


@dataclass(frozen=True)
class IngestLoad:
    """One kind of traffic. Implements `Load`.

    Attributes:
        mix: bulk: whole prompts, every second one shared by all publishers; churn: blocks that come and go.
        n_publishers: see `Load.n_publishers`.
        n_batches: measured messages of each publisher.
    """

    mix: Mix
    n_publishers: int
    n_batches: int

    @property
    def n_block_events(self) -> int:
        """Blocks that the measured messages store and remove, over all publishers."""
        blocks = EVENT_BLOCKS if self.mix == "bulk" else 2 * CONVERSATIONS
        return self.n_publishers * (self.n_batches * blocks + 1)

    @property
    def residencies(self) -> int:
        """Blocks each publisher holds in the end."""
        if self.mix == "bulk":
            return EVENT_BLOCKS * (1 + self.n_batches) + len(PHASES)
        return CONVERSATIONS * (BASE_BLOCKS + 1) + len(PHASES)

    @property
    def is_long(self) -> bool:
        """Whether tables grow, and are swept, while it is measured: each ledger keeps some 16,000 hashes before it sweeps."""
        return self.mix == "churn" and self.n_batches * CONVERSATIONS > 20_000

    @property
    def probe(self) -> Blocks:
        """A prompt that every publisher holds whole."""
        return _prompt("shared-0", EVENT_BLOCKS if self.mix == "bulk" else BASE_BLOCKS)

    def n_messages(self, phase: Phase) -> int:
        """See `Load.n_messages`."""
        return self.n_publishers * (self.n_batches if phase == "measured" else 1)

    def messages(self, publisher: int, phase: Phase) -> list[list[WireEvent]]:
        """See `Load.messages`."""
        batches = self._bulk(publisher, phase) if self.mix == "bulk" else self._churn(publisher, phase)
        batches[-1] = [*batches[-1], stored(self.last_block(phase))]
        return batches

    def last_block(self, phase: Phase) -> Blocks:
        """See `Load.last_block`."""
        return _prompt(f"end of {phase}", 1)

    def _bulk(self, publisher: int, phase: Phase) -> list[list[WireEvent]]:
        if phase == "warm":
            return [[stored(self.probe)]]
        numbers = range(1, self.n_batches + 1)
        names = [f"shared-{n}" if (publisher + n) % 2 else f"{publisher}-{n}" for n in numbers]
        return [[stored(_prompt(name, EVENT_BLOCKS))] for name in names]

    def _churn(self, publisher: int, phase: Phase) -> list[list[WireEvent]]:
        """Return conversations, half of them shared, whose last block is replaced by another with every message."""
        names = [f"shared-{n}" if n % 2 == 0 else f"{publisher}-{n}" for n in range(CONVERSATIONS)]
        bases = [_prompt(name, BASE_BLOCKS) for name in names]
        rng = random.Random(f"leaves of {publisher}")
        leaves = [[_leaf(rng, base) for base in bases] for _ in range(self.n_batches + 1)]
        if phase == "warm":
            return [[*map(stored, bases), *map(stored, leaves[0])]]
        return [
            [
                event
                for before, after in zip(old, new, strict=True)
                for event in (_removed(before), stored(after))
            ]
            for old, new in pairwise(leaves)
        ]


@cache
def _prompt(name: str, n_blocks: int) -> Blocks:
    return make_blocks(random.Random(name), n_blocks)


def _leaf(rng: random.Random, base: Blocks) -> Blocks:
    return make_blocks(rng, 1, parent=base.last_key)


def _removed(blocks: Blocks) -> Removed:
    return Removed(list(blocks.keys))
