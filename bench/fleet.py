"""A synthetic fleet's cache contents, the same for every index that is measured.

Every server holds system prompts that it shares with others and conversations of its own; its GPU cache holds a part
of what its CPU cache holds; some servers share one very long agent prompt. Keys are random numbers, as hashes are.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass

LONG, SHORT, AGENT = 1875, 500, 8000
"""Blocks of 16 tokens in prompts of 30k, 8k and 128k tokens."""

EVENT_BLOCKS = 512
"""Blocks of one store event: a chunk of 8k tokens in chunked prefill."""


@dataclass(frozen=True)
class Server:
    """Prompts, as keys, of one server by tier."""

    gpu: list[array[int]]
    cpu: list[array[int]]


@dataclass(frozen=True)
class Fleet:
    """All servers, and the shared prompts to ask for, by number of blocks."""

    servers: list[Server]
    prompts: dict[int, list[array[int]]]

    @property
    def n_residencies(self) -> int:
        """(server, tier, key) triples."""
        return sum(len(keys) for server in self.servers for keys in server.gpu + server.cpu)


def make_fleet(n_servers: int, *, gpu_blocks: int = 9271, cpu_blocks: int = 41_000, seed: int = 1) -> Fleet:
    """A fleet whose servers fill both caches."""
    rng = random.Random(seed)
    pools = {
        LONG: [make_keys(rng, LONG) for _ in range(32)],
        SHORT: [make_keys(rng, SHORT) for _ in range(120)],
    }
    agent = make_keys(rng, AGENT)
    servers = [
        make_server(rng, pools, [agent] if number < 8 else [], gpu_blocks=gpu_blocks, cpu_blocks=cpu_blocks)
        for number in range(n_servers)
    ]
    return Fleet(servers, {**pools, AGENT: [agent]})


def make_server(
    rng: random.Random,
    pools: dict[int, list[array[int]]],
    extra: list[array[int]],
    *,
    gpu_blocks: int,
    cpu_blocks: int,
) -> Server:
    """One server with shared prompts and, in the rest of its caches, conversations of its own."""
    long, short = rng.sample(pools[LONG], 6), rng.sample(pools[SHORT], 12)
    cpu = [*extra, *long, *short]
    gpu = [*long[:2], *short[:4]]
    n_cpu, n_gpu = sum(map(len, cpu)), sum(map(len, gpu))
    while n_cpu < cpu_blocks:
        conversation = make_keys(rng, min(rng.randint(60, 400), cpu_blocks - n_cpu))
        cpu.append(conversation)
        n_cpu += len(conversation)
        if n_gpu + len(conversation) <= gpu_blocks:
            gpu.append(conversation)
            n_gpu += len(conversation)
    return Server(gpu, cpu)


def make_keys(rng: random.Random, n_blocks: int) -> array[int]:
    """Keys of one prompt."""
    return array("Q", rng.randbytes(8 * n_blocks))


def events_of(prompts: list[array[int]]) -> list[array[int]]:
    """The prompts as engines announce them."""
    return [keys[i : i + EVENT_BLOCKS] for keys in prompts for i in range(0, len(keys), EVENT_BLOCKS)]
