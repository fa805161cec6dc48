"""A synthetic fleet's caches, the same for every column of the benchmark, and the prompts to ask for.

Every endpoint holds system prompts that it shares with others, and conversations that go on from them; its GPU cache
holds a part of what its CPU cache holds, and some endpoints share one very long agent prompt. Keys and tokens are
random, as hashes are.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from kvatlas.indexer.factory import index_core
from kvatlas.indexer.keys import BlockKey

BLOCK_SIZE = 16
SEED = 1337
"""The seed of Dynamo, so that its sequence hashes are our block keys."""

LONG, SHORT, AGENT = 1875, 500, 8000
"""Blocks of prompts of 30k, 8k and 128k tokens."""

EVENT_BLOCKS = 512
"""Blocks of one store event: a chunk of 8k tokens in chunked prefill."""

N_TIERS = 2
_AGENT_ENDPOINTS = 8
_NEW_BLOCKS = 20
_FILLED = (0.8, 1.2)
_LONG_SHARE, _SHORT_SHARE = 6800, 3400
"""Blocks of CPU cache for every long and every short system prompt that an endpoint holds."""


@dataclass(frozen=True)
class Blocks:
    """Consecutive full blocks of one prompt.

    Attributes:
        parent: key of the block before them, None at the start of the prompt.
        keys: their keys.
        tokens: their token ids.
    """

    parent: BlockKey | None
    keys: array[int]
    tokens: array[int]

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def last_key(self) -> BlockKey:
        """The parent of blocks that follow these."""
        return BlockKey(self.keys[-1])

    @property
    def n_tokens(self) -> int:
        """Tokens of a prompt that ends with these blocks and one token more, so that every block may be reused."""
        return len(self.tokens) + 1

    def then(self, other: Blocks) -> Blocks:
        """Return these blocks and `other`, which follows them."""
        return Blocks(self.parent, self.keys + other.keys, self.tokens + other.tokens)

    def events(self) -> Iterator[Blocks]:
        """Yield the blocks in store events, as an engine announces them."""
        parent = self.parent
        for start in range(0, len(self.keys), EVENT_BLOCKS):
            keys = self.keys[start : start + EVENT_BLOCKS]
            yield Blocks(parent, keys, self.tokens[start * BLOCK_SIZE : (start + EVENT_BLOCKS) * BLOCK_SIZE])
            parent = BlockKey(keys[-1])


@dataclass(frozen=True)
class Shape:
    """Size of a fleet: endpoints, and average blocks in the caches of each; they hold 80 % to 120 % of it."""

    n_endpoints: int
    gpu_blocks: int = 9271
    cpu_blocks: int = 41_000


@dataclass(frozen=True)
class Caches:
    """The contents of one endpoint; blocks come after those that they follow."""

    gpu: list[Blocks]
    cpu: list[Blocks]

    @property
    def tiers(self) -> tuple[list[Blocks], list[Blocks]]:
        """The contents by tier, fastest first."""
        return self.gpu, self.cpu


@dataclass(frozen=True)
class Fleet:
    """All caches, and prompts to match, by kind."""

    endpoints: list[Caches]
    prompts: dict[str, list[Blocks]]

    @property
    def n_residencies(self) -> int:
        """The number of (endpoint, tier, key) triples."""
        return sum(len(blocks) for caches in self.endpoints for blocks in caches.gpu + caches.cpu)

    def stores(self) -> Iterator[tuple[int, Blocks]]:
        """Yield every store event as (holder, blocks); holder is `N_TIERS * endpoint + tier`."""
        tiers = (tier for caches in self.endpoints for tier in caches.tiers)
        for holder, contents in enumerate(tiers):
            for blocks in contents:
                for event in blocks.events():
                    yield holder, event


HIT = f"hit, {LONG} blocks"


@cache
def make_fleet(shape: Shape) -> Fleet:
    """Return the fleet of that size, the same in every process. Cost: about 0.2 s per million residencies."""
    rng = random.Random(1)
    longs = [make_blocks(rng, LONG) for _ in range(32)]
    shorts = [make_blocks(rng, SHORT) for _ in range(120)]
    agent = make_blocks(rng, AGENT)
    endpoints: list[Caches] = []
    turns: list[Blocks] = []
    for number in range(shape.n_endpoints):
        caches, turn = _make_caches(rng, shape, longs, shorts, [agent] if number < _AGENT_ENDPOINTS else [])
        endpoints.append(caches)
        turns.append(turn)
    held = {id(blocks) for caches in endpoints for blocks in caches.cpu}
    prompts = {
        f"hit, {SHORT} blocks": [blocks for blocks in shorts if id(blocks) in held],
        HIT: [blocks for blocks in longs if id(blocks) in held],
        f"hit, {AGENT} blocks": [agent],
        "typical: next turn of a chat": turns,
        f"miss, {LONG} blocks": [make_blocks(rng, LONG) for _ in range(20)],
    }
    return Fleet(endpoints, prompts)


def make_blocks(rng: random.Random, n_blocks: int, *, parent: BlockKey | None = None) -> Blocks:
    """Return blocks of random tokens below 131,072, the size of a vocabulary."""
    raw = bytearray(rng.randbytes(4 * BLOCK_SIZE * n_blocks))
    raw[3::4] = bytes(BLOCK_SIZE * n_blocks)
    raw[2::4] = raw[2::4].translate(_LOWEST_BIT)
    tokens = array("I", bytes(raw))
    return Blocks(parent, index_core().prefix_keys(tokens, BLOCK_SIZE, seed=SEED, parent=parent), tokens)


_LOWEST_BIT = bytes(byte & 1 for byte in range(256))


def _make_caches(
    rng: random.Random, shape: Shape, longs: list[Blocks], shorts: list[Blocks], extra: list[Blocks]
) -> tuple[Caches, Blocks]:
    """Return one endpoint's caches, and a prompt that continues one of its conversations."""
    share = rng.uniform(*_FILLED)
    gpu_blocks, cpu_blocks = int(share * shape.gpu_blocks), int(share * shape.cpu_blocks)
    n_long, n_short = max(1, shape.cpu_blocks // _LONG_SHARE), max(1, shape.cpu_blocks // _SHORT_SHARE)
    long, short = rng.sample(longs, n_long), rng.sample(shorts, n_short)
    systems = [*long, *short]
    on_gpu = [*long[: max(1, n_long // 3)], *short[: max(1, n_short // 3)]]
    gpu, cpu = list(on_gpu), [*extra, *systems]
    n_cpu, n_gpu = sum(map(len, cpu)), sum(map(len, gpu))
    turn = systems[0]
    while n_cpu < cpu_blocks:
        system = rng.choice(systems)
        n_blocks = min(rng.randint(60, 400), cpu_blocks - n_cpu)
        conversation = make_blocks(rng, n_blocks, parent=system.last_key)
        cpu.append(conversation)
        n_cpu += n_blocks
        turn = system.then(conversation)
        if system in on_gpu and n_gpu + n_blocks <= gpu_blocks:
            gpu.append(conversation)
            n_gpu += n_blocks
    return Caches(gpu, cpu), turn.then(make_blocks(rng, _NEW_BLOCKS, parent=turn.last_key))
