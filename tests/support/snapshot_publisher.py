"""A publisher with snapshots, whose events and losses a test controls."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses, RankAddresses
from kvatlas.events.model import EngineHash
from kvatlas.events.wire import decode_batch
from kvatlas.indexer.atlas import Atlas
from kvatlas.sim.faults import EventFaults
from kvatlas.sim.kv_events import CPU, GPU, BlockRemoved, BlockStored, Event, EventBatch
from kvatlas.sim.publisher import Publisher

BLOCK = 4
"""Tokens per block."""


def stored(prompt: int, first: int, end: int, *, medium: str = GPU) -> BlockStored:
    """Return the event that stores blocks `first` up to `end` of a prompt; on the CPU without tokens."""
    hashes = hashes_of(prompt, end)
    has_tokens = medium == GPU
    return BlockStored(
        block_hashes=tuple(hashes[first:]),
        parent_block_hash=hashes[first - 1] if first and has_tokens else None,
        token_ids=tuple(tokens_of(prompt, end)[first * BLOCK :]) if has_tokens else (),
        block_size=BLOCK if has_tokens else 0,
        lora_id=None,
        medium=medium,
        lora_name=None,
        group_idx=0,
    )


def removed(prompt: int, *blocks: int, medium: str = GPU) -> BlockRemoved:
    """Return the event that removes blocks of a prompt."""
    hashes = hashes_of(prompt, max(blocks) + 1)
    return BlockRemoved(block_hashes=tuple(hashes[block] for block in blocks), medium=medium, group_idx=0)


def hashes_of(prompt: int, n_blocks: int) -> list[EngineHash]:
    """Return engine hashes of a prompt's first blocks."""
    return [EngineHash(1_000_000 * (prompt + 1) + block) for block in range(n_blocks)]


def tokens_of(prompt: int, n_blocks: int) -> list[int]:
    """Return the tokens of a prompt's first blocks."""
    return [1000 * prompt + token for token in range(n_blocks * BLOCK)]


class Source:
    """A publisher whose batches can be lost on the way.

    Attributes:
        events: all that it has published.
    """

    def __init__(self, *, history: int, port: int = 0) -> None:
        self._chance = 1.0
        self.publisher = Publisher(
            "kv", port=port, snapshots=True, buffer_size=history, faults=EventFaults(drop=0.5),
            rng=lambda: self._chance,
        )  # fmt: skip
        self.events: list[Event] = []

    def publish(self, *events: Event, is_lost: bool = False) -> None:
        """Publish one batch."""
        self._chance = 0.0 if is_lost else 1.0
        self.events += events
        self.publisher.publish(EventBatch(ts=time.time(), events=events))
        self._chance = 1.0

    def addresses(self, *, replays: bool = False) -> EndpointAddresses:
        """Return the addresses of an endpoint with this publisher."""
        events, replay, snapshots = (
            f"tcp://127.0.0.1:{port}"
            for port in (self.publisher.port, self.publisher.replay_port, self.publisher.snapshot_port)
        )
        rank = RankAddresses(0, events, replay if replays else None, snapshots)
        return EndpointAddresses(serving=HostPort("127.0.0.1", 1), metrics=None, ranks=(rank,))

    def told(self, atlas: Atlas) -> None:
        """Add an endpoint `all` to the atlas that has got every event."""
        atlas.add("all")
        for event in self.events:
            payload = self.publisher.encoded(EventBatch(ts=1.0, events=(event,)))
            atlas.apply("all", 0, list(decode_batch(payload)))


@asynccontextmanager
async def source(*, history: int = 0, port: int = 0) -> AsyncGenerator[Source]:
    """Provide a publisher that keeps `history` batches for replay."""
    made = Source(history=history, port=port)
    tasks = [
        asyncio.create_task(served)
        for served in (made.publisher.serve_replay(), made.publisher.serve_snapshots())
    ]
    try:
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        made.publisher.close()


def held(atlas: Atlas, endpoint: str, prompts: Sequence[int], n_blocks: int = 12) -> list[object]:
    """Return what an endpoint holds: the match of each prompt by tier, and the size of each tier."""
    found: list[object] = [each.residencies for each in atlas.occupancy(endpoint)]
    for prompt in prompts:
        match = atlas.match(atlas.prefix(array("I", tokens_of(prompt, n_blocks)))).get(endpoint)
        found.append(None if match is None else match.tier_blocks)
    return found


__all__ = ["BLOCK", "CPU", "GPU", "Source", "held", "removed", "source", "stored"]
