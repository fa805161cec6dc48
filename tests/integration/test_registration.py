"""Registration at run time in a real `kvatlas serve`, by a client that knows only the published contract."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from xxhash import xxh3_64_intdigest

from support.publishing import stored
from support.recording import Parts, Player, player
from support.serve import Served, serving
from support.waiting import until

PROMPT = [7 * position % 1000 for position in range(100)]
OTHER = [11 * position % 1000 for position in range(100)]
BLOCK_SIZE = 16


@dataclass
class ContractClient:
    """A gateway's client, written from the contract alone: fields, hashes, matches per tenant and instance."""

    session: aiohttp.ClientSession
    base: str
    model: str = "deepseek"

    async def register(self, instance: str | int, endpoint: str, **more: Any) -> tuple[int, dict[str, Any]]:
        body = {
            "endpoint": endpoint,
            "type": "vLLM",
            "modelname": self.model,
            "tenant_id": "default",
            "instance_id": instance,
            "block_size": BLOCK_SIZE,
            "dp_rank": 0,
        }
        return await self._post("/register", body | more)

    async def unregister(self, instance: str | int, **more: Any) -> tuple[int, dict[str, Any]]:
        body = {"type": "vLLM", "modelname": self.model, "instance_id": instance, "block_size": BLOCK_SIZE}
        return await self._post("/unregister", body | more)

    async def query(self, tokens: Sequence[int], **more: Any) -> dict[str, Any]:
        body = {"model": self.model, "token_ids": list(tokens), "block_size": BLOCK_SIZE}
        return (await self._post("/query", body | more))[1]

    async def query_by_hash(self, tokens: Sequence[int], **more: Any) -> dict[str, Any]:
        body = {"model": self.model, "seq_hashes": rolling_hashes(tokens), "block_size": BLOCK_SIZE}
        return (await self._post("/query_by_hash", body | more))[1]

    async def longest(self, tokens: Sequence[int], instance: str, tenant: str = "default") -> int | None:
        """Return the instance's longest match of the prompt, None if the response lacks the instance."""
        found = (await self.query(tokens)).get(tenant, {}).get(instance)
        return found["longest_matched"] if found else None

    async def _post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        async with self.session.post(self.base + path, json=body) as answer:
            return answer.status, await answer.json()


def rolling_hashes(tokens: Sequence[int]) -> list[int]:
    """Return the contract's sequence hashes with seed 0."""
    hashes: list[int] = []
    for start in range(0, len(tokens) - BLOCK_SIZE + 1, BLOCK_SIZE):
        local = xxh3_64_intdigest(struct.pack(f"<{BLOCK_SIZE}I", *tokens[start : start + BLOCK_SIZE]), 0)
        hashes.append(xxh3_64_intdigest(struct.pack("<QQ", hashes[-1], local), 0) if hashes else local)
    return hashes


def client_of(served: Served) -> ContractClient:
    return ContractClient(served.session, f"http://127.0.0.1:{served.ports['rest']}")


async def until_longest(client: ContractClient, tokens: Sequence[int], instance: str, wanted: int) -> None:
    async def has_it() -> bool:
        return await client.longest(tokens, instance) == wanted

    await until(has_it, what=f"{wanted} tokens on {instance}")


async def test_instance_lives_from_register_to_unregister_and_comes_back_empty(tmp_path: Path) -> None:
    async with player() as engine, serving({}, tmp_path) as served:
        client = client_of(served)
        await engine.publish(stored(0, PROMPT))
        assert await client.register("node-1", engine.events, replay_endpoint=engine.replay) == (
            201,
            {"status": "registered successfully", "instance_id": "node-1"},
        )
        await until_longest(client, PROMPT, "node-1", 96)  # published before the subscription: by replay
        await engine.publish(stored(1, OTHER))
        await until_longest(client, OTHER, "node-1", 96)  # live
        await served.until_applied("node-1", 1)
        wanted = {"longest_matched": 96, "GPU": 96, "CPU": 0, "DISK": 0, "DP": {"0": 96}}
        assert await client.query(PROMPT) == {"default": {"node-1": wanted}}
        assert await client.query_by_hash(PROMPT) == {"default": {"node-1": wanted}}
        (row,) = (await served.get("/v1/endpoints"))["endpoints"]
        assert (row["name"], row["address"], row["publishers"][0]["trust"]) == ("node-1", None, "live")

        assert await client.unregister("node-1", dp_rank=0) == (
            200,
            {"status": "unregistered successfully", "removed_instances": ["node-1|default|0"]},
        )
        assert await client.query(PROMPT) == {"default": {}}
        assert await served.get("/workers") == []
        assert (await client.unregister("node-1"))[0] == 404
        assert 'endpoint="node-1"' not in await served.metrics()

        engine.history.clear()  # the engine has no blocks now: any match would be a leftover
        assert (await client.register("node-1", engine.events, replay_endpoint=engine.replay))[0] == 201
        await until(lambda: is_active(served), what="the registered instance heard")
        assert await client.longest(PROMPT, "node-1") == 0


async def is_active(served: Served) -> bool:
    return bool((await served.get("/workers"))[0]["status"] == "active")


async def test_ranks_of_one_instance_are_followed_each_by_itself(tmp_path: Path) -> None:
    async with player() as zero, player() as one, serving({}, tmp_path) as served:
        client = client_of(served)
        await zero.publish(stored(0, PROMPT[:48]))
        await one.publish(stored(0, PROMPT, rank=1))
        for rank, engine in enumerate((zero, one)):
            status, _ = await client.register(5, engine.events, replay_endpoint=engine.replay, dp_rank=rank)
            assert status == 201

        async def both() -> bool:
            found = (await client.query(PROMPT))["default"]["5"]
            return bool(found["DP"] == {"0": 48, "1": 96})

        await until(both, what="both ranks")
        assert (await client.unregister(5, dp_rank=1))[0] == 200
        assert (await client.query(PROMPT))["default"]["5"]["DP"] == {"0": 48}
        (worker,) = await served.get("/workers")
        assert (worker["instance_id"], worker["endpoints"]) == (5, {"0": zero.events})


async def test_refusals_name_the_fault_and_change_nothing(tmp_path: Path) -> None:
    configured = {"name": "vllm-0", "address": "127.0.0.1:1", "events": "", "metrics": ""}
    async with player() as engine, serving({"endpoints": {"static": [configured]}}, tmp_path) as served:
        client = client_of(served)
        await engine.publish(stored(0, PROMPT))
        await client.register("node-1", engine.events, replay_endpoint=engine.replay)
        await until_longest(client, PROMPT, "node-1", 96)
        before = await served.get("/workers")
        assert (await client.register("node-1", engine.events, replay_endpoint=engine.replay))[0] == 200
        for status, said, answer in (
            (409, engine.events, await client.register("node-1", "tcp://127.0.0.1:1")),
            (409, "'vllm-0' is configured", await client.register("vllm-0", "tcp://127.0.0.1:1")),
            (400, "endpoint: found '10.0.0.1:5557'", await client.register("node-2", "10.0.0.1:5557")),
            (404, "'node-2' of tenant 'default'", await client.unregister("node-2")),
            (404, "rank 1 of instance 'node-1'", await client.unregister("node-1", dp_rank=1)),
            (404, "of tenant 'acme'", await client.unregister("node-1", tenant_id="acme")),
        ):
            assert (answer[0], said in answer[1]["error"]["message"]) == (status, True), answer
        assert await served.get("/workers") == before
        assert await client.longest(PROMPT, "node-1") == 96


@pytest.mark.slow
async def test_events_in_transit_do_not_outlive_their_instance(tmp_path: Path) -> None:
    async with player() as engine, serving({}, tmp_path) as served:
        client = client_of(served)
        saying = asyncio.create_task(keep_publishing(engine))
        try:
            for _ in range(10):
                assert (await client.register("node-1", engine.events, replay_endpoint=engine.replay))[
                    0
                ] == 201
                await until_longest(client, PROMPT, "node-1", 96)
                assert (await client.unregister("node-1"))[0] == 200
                assert await client.query(PROMPT) == {"default": {}}
        finally:
            saying.cancel()
        errors = [line for line in served.log if "Traceback" in line or "ERROR" in line]
        assert errors == []


async def keep_publishing(engine: Player) -> None:
    seq = 0
    while True:
        await engine.publish(stored(seq, PROMPT))
        seq += 1
        await asyncio.sleep(0.001)


async def test_engines_that_connect_to_us_are_found_by_topic_and_registered_ones_beside_them(
    tmp_path: Path,
) -> None:
    static = [
        {"name": "a", "address": "127.0.0.1:1", "metrics": "", "replay": ""},
        {"name": "b", "address": "127.0.0.1:2", "metrics": "", "replay": ""},
    ]
    config = {"endpoints": {"static": static}, "events": {"mode": "bind", "bind": "tcp://127.0.0.1:0"}}
    async with serving(config, tmp_path, ready=False) as served:
        await until(lambda: "events" in served.ports, what="the bound event socket")
        address = f"tcp://127.0.0.1:{served.ports['events']}"
        client = client_of(served)
        async with player(connect=address) as a, player(connect=address) as b, player() as c:
            await asyncio.gather(
                repeat_until_held(client, a, "kv@127.0.0.1:1@org/m@v2", PROMPT, "a"),
                repeat_until_held(client, b, "kv@b@m", OTHER, "b"),
            )
            assert (await client.longest(PROMPT, "b"), await client.longest(OTHER, "a")) == (0, 0)
            await a.publish(stored(0, PROMPT, topic="kv@127.0.0.1@m"))
            await served.until_metric('kvatlas_messages_unrouted_total{reason="ambiguous_host"} 1.0')
            await c.publish(stored(0, PROMPT))
            await client.register("c", c.events, replay_endpoint=c.replay)
            await until_longest(client, PROMPT, "c", 96)
        workers = {worker["instance_id"]: worker["endpoints"] for worker in await served.get("/workers")}
        assert workers == {"a": {"0": address}, "b": {"0": address}, "c": {"0": c.events}}


async def repeat_until_held(
    client: ContractClient, engine: Player, topic: str, tokens: list[int], instance: str
) -> None:
    """Publish until the blocks are held: without replay, nothing signals that the subscription is in place."""

    async def held() -> bool:
        await engine.publish(stored(0, tokens, topic=topic))
        return await client.longest(tokens, instance) == 96

    await until(held, what=f"events of {instance}")


@pytest.mark.slow
async def test_memory_of_an_unregistered_instance_is_freed_without_further_events(tmp_path: Path) -> None:
    """Hold more blocks than the native index drops at once, while another instance keeps the index in use."""
    prompts = [[position + 8000 * number for position in range(8000)] for number in range(40)]
    async with player() as stays, player() as goes, serving({}, tmp_path) as served:
        client = client_of(served)
        await stays.publish(stored(0, PROMPT))
        await goes.publish(*(stored(seq, prompt) for seq, prompt in enumerate(prompts)))
        for name, engine in (("stays", stays), ("goes", goes)):
            assert (await client.register(name, engine.events, replay_endpoint=engine.replay))[0] == 201
        await served.until_metric("kvatlas_index_residencies 20006.0")
        assert (await client.unregister("goes"))[0] == 200
        for line in (
            "kvatlas_index_residencies 6.0",
            "kvatlas_index_unswept_keys 0.0",
            "kvatlas_index_keys 6.0",
        ):
            await served.until_metric(line)
        assert await client.longest(PROMPT, "stays") == 96


def envelope(kind: str, *, seq: int, **fields: object) -> Parts:
    """Return a message with one event of a store, in the standard envelope."""
    event = {
        "event_type": kind,
        "tenant_id": "default",
        "backend_id": "daemon-0",
        "medium": "cpu",
        "dp_rank": 0,
    }
    payload = msgspec.msgpack.encode([1795360000000 + seq, [event | fields], 0])
    return (b"", seq.to_bytes(8, "big"), payload)


async def test_store_tells_its_blocks_by_standard_hashes(tmp_path: Path) -> None:
    async with player() as store, serving({}, tmp_path) as served:
        client = client_of(served)
        hashes = rolling_hashes(PROMPT)
        await store.send(envelope("stored", seq=0, seq_hashes=hashes[:4], token_ids=None))
        more = {"type": "Mooncake", "lora_name": "", "additionalsalt": "", "replay_endpoint": store.replay}
        status, _ = await client.register("node-1", store.events, **more)
        assert status == 201
        await until_longest(client, PROMPT, "node-1", 64)
        wanted = {"longest_matched": 64, "GPU": 0, "CPU": 64, "DISK": 0, "DP": {"0": 64}}
        assert await client.query_by_hash(PROMPT) == {"default": {"node-1": wanted}}
        (worker,) = await served.get("/workers")
        assert (worker["type"], worker["lora_name"], worker["block_size"]) == ("Mooncake", None, BLOCK_SIZE)
        await store.send(envelope("removed", seq=1, seq_hashes=hashes[2:4]))
        await until_longest(client, PROMPT, "node-1", 32)
        await store.send(envelope("cleared", seq=2, medium=None))
        await until_longest(client, PROMPT, "node-1", 0)
