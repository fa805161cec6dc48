"""Messages of engines that cost far more than their bytes: the running server survives them, and serves others meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from hostile.generators import events as generated
from kvatlas.events.errors import WireError
from kvatlas.events.wire import MAX_EVENTS, MAX_PAYLOAD_BYTES
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.chunks import MAX_CHUNK_BLOCKS
from kvatlas.indexer.factory import IndexCore
from kvatlas.indexer.ledger import RankLedger
from kvatlas.indexer.tiers import TierId, TierSpec, TierTable
from support.cores import CORES
from support.fleets import make_endpoint
from support.recording import Frame, Player, player
from support.serve import Served, serving
from support.waiting import until

BLOCK = 16
encode = msgspec.msgpack.encode

TIERS = [
    TierSpec("gpu", ("GPU",)),
    TierSpec("cpu", ("CPU",)),
    TierSpec("storage", ("FS",), shared=True),
    TierSpec("disk", ("DISK",), cleared_on_reset=True),
]
LARGEST_STEP = 40_000
"""Cost of one step: that of the largest event's decoding."""
COST_PER_BYTE = 40
"""Highest cost of a message per byte, over one life of a publisher: what earlier messages have parked included."""


def dump(ledger: RankLedger) -> object:
    return ledger.dump(now=0), ledger.counters, ledger.n_pending, ledger.layout()


def apply(ledger: RankLedger, core: IndexCore, payload: bytes) -> tuple[list[int], str]:
    """Apply a message; return the costs of its steps, and the reason if it was refused."""
    try:
        return list(ledger.steps(core.decode_batch(payload))), ""
    except WireError as error:
        return [], error.reason


@pytest.mark.parametrize("seed", range(12))
def test_any_message_costs_little_per_byte_and_teaches_all_cores_the_same(seed: int) -> None:
    atlases = [(Atlas(tiers=TierTable(TIERS), seed=7, core=core), core) for core in CORES.values()]
    for atlas, _ in atlases:
        atlas.add("e")
    n_bytes = n_cost = 0
    for payload in islice(generated.inputs(Random(seed)), 25):
        outcomes = [apply(atlas.ledger("e", 0), core, payload) for atlas, core in atlases]
        assert len({reason for _, reason in outcomes}) == 1
        costs = outcomes[0][0]
        n_bytes, n_cost = n_bytes + len(payload), n_cost + sum(costs)
        assert max(costs, default=0) < LARGEST_STEP
        assert n_cost < COST_PER_BYTE * n_bytes
        first, *others = [dump(atlas.ledger("e", 0)) for atlas, _ in atlases]
        assert all(other == first for other in others)
    assert all(atlas.ledger("e", 0).residencies(TierId(0)) >= 0 for atlas, _ in atlases)


def stored(first: int, n_blocks: int) -> dict[str, object]:
    """Return a prompt's blocks, hashed by number."""
    return {
        "type": "BlockStored",
        "block_hashes": list(range(first, first + n_blocks)),
        "parent_block_hash": first - 1 if first > 1 else None,
        "token_ids": [number & 0xFFFF for number in range(first * BLOCK, (first + n_blocks) * BLOCK)],
        "block_size": BLOCK,
        "medium": "GPU",
    }


def message(seq: int, events: list[Any], *, rank: int | None = 0) -> Frame:
    return Frame(0.0, "", (b"kv@e@m", seq.to_bytes(8, "big"), encode([1000.0 + seq, events, rank])))


@contextlib.asynccontextmanager
async def engines(folder: Path) -> AsyncGenerator[tuple[Served, Player, Player]]:
    """Run a server with the engines `hostile` and `honest`."""
    async with player() as hostile, player() as honest:
        static = [
            make_endpoint("hostile", 1, events=hostile.events, replay=hostile.replay),
            make_endpoint("honest", 2, events=honest.events, replay=honest.replay),
        ]
        async with serving({"endpoints": {"static": static}}, folder) as served:
            yield served, hostile, honest


async def held(served: Served, endpoint: str) -> dict[str, int]:
    row = await served.get(f"/v1/endpoints/{endpoint}")
    return {tier["name"]: tier["residencies"] for tier in row["tiers"]}


async def until_held(served: Served, endpoint: str, tier: str, n_blocks: int) -> None:
    async def has_them() -> bool:
        return (await held(served, endpoint)).get(tier) == n_blocks

    await until(has_them, what=f"{n_blocks} blocks of {endpoint} in {tier}")


def rejections(reason: str, n: int) -> str:
    return f'kvatlas_events_rejected_total{{endpoint="hostile",reason="{reason}"}} {n}.0'


async def test_tails_at_the_end_of_a_long_chain_store_a_bounded_chunk(tmp_path: Path) -> None:
    async with engines(tmp_path) as (served, hostile, honest):
        chain = [stored(first, 500) for first in range(1, 100_001, 500)]
        tail: list[object] = ["BlockStored", [100_000], None, [], 0, None, "CPU"]
        await hostile.publish(message(0, chain), message(1, [tail] * 300))
        await honest.publish(message(0, [stored(1, 3)]))
        await until_held(served, "honest", "gpu", 3)
        await until_held(served, "hostile", "gpu", 100_000)
        await until_held(served, "hostile", "cpu", MAX_CHUNK_BLOCKS)


async def test_events_of_unknown_kinds_are_counted_and_harmless(tmp_path: Path) -> None:
    async with engines(tmp_path) as (served, hostile, _):
        await hostile.publish(message(0, [["X"]] * MAX_EVENTS), message(1, [stored(1, 3)]))
        await until_held(served, "hostile", "gpu", 3)
        await served.until_metric(rejections("unknown_tag", MAX_EVENTS))
        row = await served.get("/v1/endpoints/hostile")
        assert row["publishers"][0]["trust"] == "live"
    assert sum("unknown_tag" in line for line in served.log) == 1


@pytest.mark.parametrize(
    ("events", "reason"),
    [([None] * (MAX_EVENTS + 1), "too_many_events"), ([bytes(MAX_PAYLOAD_BYTES)], "too_large")],
    ids=["events", "bytes"],
)
async def test_message_past_a_limit_is_counted_and_makes_the_publisher_partial(
    tmp_path: Path, events: list[Any], reason: str
) -> None:
    async with engines(tmp_path) as (served, hostile, _):
        await hostile.publish(message(0, [stored(1, 3)]), message(1, events), message(2, [stored(4, 3)]))
        await until_held(served, "hostile", "gpu", 6)

        async def is_partial() -> bool:
            row = await served.get("/v1/endpoints/hostile")
            return bool(row["publishers"][0]["trust"] == "partial")

        await until(is_partial, what="trust partial")
        assert f'reason="{reason}"' in await served.metrics()


async def test_media_windows_clears_and_orphans_leave_both_engines_served(tmp_path: Path) -> None:
    async with engines(tmp_path) as (served, hostile, honest):
        media: list[Any] = [["BlockRemoved", [1], f"m{number}"] for number in range(40_000)]
        windows: list[Any] = [
            stored(1, 1) | {"kv_cache_spec_sliding_window": number} for number in range(3000)
        ]
        waiting: list[object] = ["BlockStored", list(range(10**6, 10**6 + 60_000)), None, [], 0, None, "CPU"]
        clears: list[Any] = [["AllBlocksCleared"], ["BlockStored", [5], None, [], 0]]
        orphans: list[Any] = [stored(number, 1) for number in range(4000, 1, -1)]
        batches: list[list[Any]] = [
            [stored(1, 3)],
            media,
            windows,
            [waiting],
            clears * 2000,
            [stored(1, 1)],
            orphans,
        ]
        await hostile.publish(*(message(seq, events) for seq, events in enumerate(batches)))
        await honest.publish(message(0, [stored(1, 3)]))
        await until_held(served, "honest", "gpu", 3)
        await until_held(served, "hostile", "gpu", 4000)


async def test_all_events_replayed_at_once_are_applied_while_others_are_served(tmp_path: Path) -> None:
    async with player() as hostile, player() as honest:
        for seq in range(200):
            hostile.history.append(
                message(seq, [stored(seq * 100 + number, 1) for number in range(100, 0, -1)]).parts
            )
        static = [
            make_endpoint("hostile", 1, events=hostile.events, replay=hostile.replay),
            make_endpoint("honest", 2, events=honest.events, replay=honest.replay),
        ]
        async with serving({"endpoints": {"static": static}}, tmp_path, ready=False) as served:
            most = before = served.resident_mib()
            await honest.publish(message(0, [stored(1, 3)]))
            await until_held(served, "honest", "gpu", 3)
            while (await held(served, "hostile")).get("gpu") != 20_000:
                most = max(most, served.resident_mib())
            most = max(most, served.resident_mib())
    assert most - before < 100, f"{before:.0f} to {most:.0f} MiB for 2 MiB of events"
