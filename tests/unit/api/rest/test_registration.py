"""`/register`, `/unregister`, `/workers` and `/query` for registered instances, without a running process."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from kvatlas.api.rest.errors import install_error_handlers
from kvatlas.api.rest.metrics import RestMetrics
from kvatlas.api.rest.registration import registration_routes
from kvatlas.api.rest.standard import ModelNames, StandardQueries, standard_routes
from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses, RankAddresses
from kvatlas.configs.schema import KVAtlasConfig
from kvatlas.events.model import BlockStored, EngineHash
from kvatlas.events.options import SubscriberOptions
from kvatlas.events.subscriber import Subscriber
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.metrics import FleetMetrics
from kvatlas.fleet.registered import Registry
from kvatlas.fleet.scrape.loads import LoadTable
from kvatlas.fleet.scrape.schedule import Intervals
from kvatlas.fleet.scrape.scraper import Scraper
from kvatlas.fleet.scrape.target import ScrapeSettings
from kvatlas.fleet.settings import fleet_settings
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import REFERENCE
from kvatlas.indexer.tiers import TierSpec, TierTable
from kvatlas.tokenization.reading import Reader
from support.waiting import until

NOWHERE = "tcp://127.0.0.1:1"
TOKENS = list(range(40))
CONFIGURED = EndpointAddresses(HostPort("10.0.0.1", 8000), None, (RankAddresses(0, NOWHERE, None),))


@dataclass
class Rest:
    """The standard routes over a fleet of their own."""

    client: httpx.AsyncClient
    fleet: Fleet

    async def post(self, path: str, **body: Any) -> tuple[int, Any]:
        answer = await self.client.post(path, json=body)
        return answer.status_code, answer.json()

    async def register(self, **fields: Any) -> tuple[int, Any]:
        return await self.post("/register", **make_registration(**fields))

    async def workers(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (await self.client.get("/workers")).json()
        return rows

    async def held(self, **query: Any) -> dict[str, dict[str, int]]:
        """Return the longest match per tenant and instance."""
        status, answer = await self.post("/query", **{"token_ids": TOKENS} | query)
        assert status == 200
        return {
            tenant: {name: found["longest_matched"] for name, found in instances.items()}
            for tenant, instances in answer.items()
        }


def make_registration(**fields: Any) -> dict[str, Any]:
    return {"instance_id": "node-1", "endpoint": NOWHERE, "modelname": "llama", "block_size": 16} | fields


def store(fleet: Fleet, endpoint: str, rank: int = 0, *, n_blocks: int = 2, salt: str | None = None) -> None:
    """Store the first blocks of `TOKENS`."""
    hashes = tuple(EngineHash(100 + block) for block in range(n_blocks))
    extra_keys = ((salt,), *[None] * (n_blocks - 1)) if salt else None
    event = BlockStored(hashes, None, array("I", TOKENS[: 16 * n_blocks]), 16, extra_keys=extra_keys)
    fleet.atlas.apply(endpoint, rank, [event])


@pytest.fixture
def model_names() -> frozenset[str]:
    return frozenset({"qwen", "qwen-alias"})


@pytest.fixture
async def rest(model_names: frozenset[str]) -> AsyncGenerator[Rest]:
    tiers = TierTable([TierSpec("gpu", ("GPU",)), TierSpec("cpu", ("CPU",))])
    loads = LoadTable(stale_after_s=2)
    subscriber = Subscriber(SubscriberOptions(max_sockets=50))
    fleet = Fleet(
        atlas=Atlas(tiers=tiers, seed=0, core=REFERENCE),
        subscriber=subscriber,
        scraper=Scraper(
            loads=loads,
            settings=ScrapeSettings(Intervals(1, 1), timeout_s=1),
            clock=lambda: 0,
            rng=lambda: 0,
        ),
        loads=loads,
        metrics=FleetMetrics(CollectorRegistry()),
        settings=fleet_settings(KVAtlasConfig(api_version="kvatlas/v1")),
    )
    registry = Registry(fleet, max_ranks=100)
    app = FastAPI()
    install_error_handlers(app)
    app.include_router(
        registration_routes(
            fleet, registry, allowed=(), model_names=frozenset(), metrics=RestMetrics(CollectorRegistry())
        )
    )
    app.include_router(standard_routes(StandardQueries(fleet, ModelNames(model_names, registry), Reader())))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        yield Rest(client, fleet)
    for endpoint in list(fleet):
        await fleet.remove(endpoint.name)
    await subscriber.close()


# -- registering ------------------------------------------------------------------------------------------------------


async def test_instance_is_created_shown_and_matched(rest: Rest) -> None:
    assert await rest.register(type="vLLM", replay_endpoint=NOWHERE) == (
        201,
        {"status": "registered successfully", "instance_id": "node-1"},
    )
    assert await rest.held() == {"default": {"node-1": 0}}
    store(rest.fleet, "node-1")
    assert await rest.held() == {"default": {"node-1": 32}}
    (worker,) = await rest.workers()
    listener = {"endpoint": NOWHERE, "replay_endpoint": NOWHERE, "status": "pending", "trust": "dark"}
    assert worker == {
        "instance_id": "node-1",
        "tenant_id": "default",
        "source": "zmq",
        "status": "pending",
        "registered": True,
        "type": "vLLM",
        "model_name": "llama",
        "lora_name": None,
        "block_size": 16,
        "endpoints": {"0": NOWHERE},
        "listeners": {"0": listener},
    }


@pytest.mark.parametrize("name", ["model", "model_name", "modelname"])
async def test_model_goes_by_every_name_the_peers_use(rest: Rest, name: str) -> None:
    body = make_registration() | {name: "llama"}
    if name != "modelname":
        del body["modelname"]
    assert (await rest.post("/register", **body))[0] == 201
    assert await rest.held(**{name: "llama"}) == {"default": {"node-1": 0}}
    assert await rest.held(**{name: "qwen"}) == {"default": {}}


async def test_same_registration_again_is_accepted_and_changes_nothing(rest: Rest) -> None:
    await rest.register()
    store(rest.fleet, "node-1")
    assert (await rest.register(type="SGLang"))[0] == 200
    assert await rest.held() == {"default": {"node-1": 32}}


@pytest.mark.parametrize(
    "change",
    [
        {"endpoint": "tcp://127.0.0.1:2"},
        {"replay_endpoint": "tcp://127.0.0.1:2"},
        {"block_size": 32},
        {"modelname": "other"},
        {"lora_name": "adapter"},
        {"additionalsalt": "w8a8"},
        {"dp_rank": 1, "modelname": "other"},
        {"dp_rank": 1, "additional_salt": "w8a8"},
    ],
    ids=str,
)
async def test_other_values_for_a_registered_rank_are_a_conflict(rest: Rest, change: dict[str, Any]) -> None:
    await rest.register()
    status, answer = await rest.register(**change)
    assert (status, answer["error"]["code"]) == (409, "Conflict")
    assert "unregister" in answer["error"]["message"]
    assert [worker["endpoints"] for worker in await rest.workers()] == [{"0": NOWHERE}]


async def test_configured_endpoint_is_neither_replaced_nor_removed(rest: Rest) -> None:
    rest.fleet.add("node-1", CONFIGURED, {})
    status, answer = await rest.register()
    assert (status, "is configured" in answer["error"]["message"]) == (409, True)
    status, answer = await rest.post("/unregister", instance_id="node-1")
    assert (status, "configuration" in answer["error"]["message"]) == (404, True)
    (worker,) = await rest.workers()
    assert (worker["registered"], worker["model_name"], worker["block_size"]) == (False, None, None)


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        pytest.param({"endpoint": "http://x"}, 400, "endpoint: found 'http://x'", id="no_zmq"),
        pytest.param({"endpoint": "tcp://*:5557"}, 400, "'tcp://*:5557'", id="engine_side"),
        pytest.param({"endpoint": ""}, 400, "endpoint: found ''", id="empty"),
        pytest.param({"replay_endpoint": "x"}, 400, "replay_endpoint: found 'x'", id="replay"),
        pytest.param({"endpoint": "ipc:///" + "x" * 200}, 400, "found an ipc path", id="ipc"),
        pytest.param({"endpoint": "tcp://" + "x" * 600 + ":1"}, 422, "at most 512 characters", id="too_long"),
        pytest.param({"instance_id": 10**30}, 422, "instance_id", id="instance_is_a_huge_number"),
        pytest.param({"block_size": 0}, 422, "block_size", id="block_size"),
        pytest.param({"dp_rank": -1}, 422, "dp_rank", id="rank"),
        pytest.param({"instance_id": True}, 422, "instance_id", id="instance_is_no_truth_value"),
        pytest.param({"instance_id": ""}, 422, "instance_id", id="instance_is_empty"),
        pytest.param({"instance_id": "a\nb"}, 422, "instance_id", id="instance_forges_log_lines"),
        pytest.param({"tenant_id": "x" * 300}, 422, "tenant_id", id="tenant_too_long"),
        pytest.param({"modelname": None}, 422, "model", id="no_model"),
    ],
)
async def test_impossible_registration_is_refused_and_leaves_nothing(
    rest: Rest, change: dict[str, Any], status: int, said: str
) -> None:
    answered, answer = await rest.register(**change)
    assert (answered, said in answer["error"]["message"]) == (status, True)
    assert "ipc://" not in answer["error"]["message"], "advice that is refused"
    assert await rest.workers() == []
    assert (await rest.register())[0] == 201


async def test_impossible_second_rank_leaves_the_first(rest: Rest) -> None:
    await rest.register()
    assert (await rest.register(dp_rank=1, endpoint="ipc:///tmp/x"))[0] == 400
    assert [[*worker["listeners"]] for worker in await rest.workers()] == [["0"]]
    assert (await rest.register(dp_rank=1))[0] == 201


async def test_registering_past_the_sockets_there_are_is_refused_and_ends_when_some_leave(rest: Rest) -> None:
    statuses = [(await rest.register(instance_id=number))[0] for number in range(30)]
    refused = statuses.index(503)
    assert set(statuses[:refused]) == {201}
    assert set(statuses[refused:]) == {503}
    assert len(await rest.workers()) == refused
    await rest.post("/unregister", instance_id=0)

    async def registers() -> bool:
        return (await rest.register(instance_id=99))[0] == 201

    await until(registers, what="a free socket: ZMQ frees it some time after it is closed")


# -- ranks, tenants, ids ----------------------------------------------------------------------------------------------


async def test_ranks_come_and_go_one_by_one(rest: Rest) -> None:
    for rank in (0, 3):
        assert (await rest.register(dp_rank=rank, endpoint=f"tcp://127.0.0.1:{rank + 1}"))[0] == 201
    store(rest.fleet, "node-1", 0, n_blocks=1)
    store(rest.fleet, "node-1", 3, n_blocks=2)
    _, answer = await rest.post("/query", token_ids=TOKENS)
    assert answer["default"]["node-1"]["DP"] == {"0": 16, "3": 32}
    assert await rest.post("/unregister", instance_id="node-1", dp_rank=3) == (
        200,
        {"status": "unregistered successfully", "removed_instances": ["node-1|default|3"]},
    )
    _, answer = await rest.post("/query", token_ids=TOKENS)
    assert answer["default"]["node-1"] == {
        "longest_matched": 16,
        "GPU": 16,
        "CPU": 0,
        "DISK": 0,
        "DP": {"0": 16},
    }
    assert (await rest.post("/unregister", instance_id="node-1", dp_rank=3))[0] == 404
    assert (await rest.post("/unregister", instance_id="node-1", dp_rank=0))[0] == 200
    assert await rest.workers() == []


async def test_all_ranks_go_at_once_and_a_new_one_starts_clean(rest: Rest) -> None:
    for rank in (0, 1):
        await rest.register(dp_rank=rank)
        store(rest.fleet, "node-1", rank)
    _, answer = await rest.post("/unregister", instance_id="node-1")
    assert answer["removed_instances"] == ["node-1|default|0", "node-1|default|1"]
    assert await rest.held() == {"default": {}}
    await rest.register()
    assert await rest.held() == {"default": {"node-1": 0}}


async def test_tenants_do_not_see_each_other(rest: Rest) -> None:
    await rest.register()
    await rest.register(tenant_id="acme")
    store(rest.fleet, "node-1@acme")
    assert await rest.held() == {"default": {"node-1": 0}, "acme": {"node-1": 32}}
    assert await rest.held(tenant_id="acme") == {"acme": {"node-1": 32}}
    assert await rest.held(tenant_id="default") == {"default": {"node-1": 0}}
    assert await rest.held(tenant_id="nobody") == {}
    assert await rest.held(tenant_id="acme", instance_id="other") == {}
    await rest.post("/unregister", instance_id="node-1")
    assert await rest.held() == {"default": {}, "acme": {"node-1": 32}}
    assert (await rest.post("/unregister", instance_id="node-1"))[0] == 404


async def test_instances_of_two_tenants_with_one_endpoint_name_are_kept_apart(rest: Rest) -> None:
    await rest.register(instance_id="node-1", tenant_id="acme")
    status, answer = await rest.register(instance_id="node-1@acme")
    assert (status, "instance 'node-1' of tenant 'acme'" in answer["error"]["message"]) == (409, True)
    assert (await rest.post("/unregister", instance_id="node-1@acme"))[0] == 404
    assert len(await rest.workers()) == 1


async def test_number_and_text_are_one_id_and_come_back_as_they_were_given(rest: Rest) -> None:
    assert (await rest.register(instance_id=7))[1]["instance_id"] == 7
    assert (await rest.register(instance_id="7"))[0] == 200
    assert [worker["instance_id"] for worker in await rest.workers()] == [7]
    assert await rest.held(instance_id=7) == await rest.held(instance_id="7") == {"default": {"7": 0}}
    assert (await rest.post("/unregister", instance_id="7"))[0] == 200


# -- queries ----------------------------------------------------------------------------------------------------------


async def test_query_for_a_model_leaves_out_instances_of_others(rest: Rest) -> None:
    rest.fleet.add("vllm-0", CONFIGURED, {})
    await rest.register(instance_id="llama-1", modelname="llama")
    await rest.register(instance_id="qwen-1", modelname="qwen")

    async def found(model: str | None) -> set[str]:
        return set((await rest.held(model=model))["default"])

    assert await found(None) == {"vllm-0", "llama-1", "qwen-1"}
    assert await found("llama") == {"llama-1"}
    assert await found("qwen") == await found("qwen-alias") == {"vllm-0", "qwen-1"}
    assert await found("sql-adapter") == {"vllm-0"}


@pytest.mark.parametrize("model_names", [frozenset[str]()], ids=["no_names_configured"])
async def test_configured_endpoints_answer_for_every_model_when_theirs_is_not_known(rest: Rest) -> None:
    rest.fleet.add("vllm-0", CONFIGURED, {})
    await rest.register(modelname="llama")
    store(rest.fleet, "vllm-0")
    assert await rest.held(model="anything") == {"default": {"vllm-0": 32}}
    assert await rest.held(model="llama") == {"default": {"vllm-0": 32, "node-1": 0}}


async def test_name_of_no_model_is_an_adapter(rest: Rest) -> None:
    rest.fleet.add("vllm-0", CONFIGURED, {})
    store(rest.fleet, "vllm-0")
    assert await rest.held(model="qwen") == {"default": {"vllm-0": 32}}
    assert await rest.held(model="sql-adapter") == {"default": {"vllm-0": 0}}
    await rest.register(modelname="sql-adapter")
    store(rest.fleet, "node-1")
    assert await rest.held(model="sql-adapter") == {"default": {"node-1": 32}}


async def test_additional_salt_of_an_instance_means_its_own_blocks(rest: Rest) -> None:
    await rest.register(instance_id="salted", additionalsalt="w8a8")
    await rest.register(instance_id="plain")
    await rest.register(instance_id="asked", additional_salt="w8a8")
    for name in ("salted", "plain"):
        store(rest.fleet, name)
    store(rest.fleet, "asked", salt="request")
    assert await rest.held(cache_salt="w8a8") == {"default": {"salted": 32, "plain": 0, "asked": 0}}
    assert await rest.held() == {"default": {"salted": 32, "plain": 32, "asked": 0}}
    assert await rest.held(cache_salt="request") == {"default": {"salted": 0, "plain": 0, "asked": 32}}


async def test_query_by_hash_takes_the_same_filters(rest: Rest) -> None:
    await rest.register(tenant_id="acme")
    store(rest.fleet, "node-1@acme")
    ask = {"block_hashes": [1], "tenant_id": "acme", "instance_id": "node-1", "model_name": "llama"}
    assert [*(await rest.post("/query_by_hash", **ask))[1]["acme"]] == ["node-1"]
    assert (await rest.post("/query_by_hash", **ask | {"model_name": "qwen"}))[1] == {}


async def test_registered_instance_takes_no_requests(rest: Rest) -> None:
    await rest.register()
    rest.fleet.add("vllm-0", CONFIGURED, {})
    assert [candidate.name for candidate in rest.fleet.candidates(None, now=0.0)] == ["vllm-0"]
    assert not list(rest.fleet.candidates(None, now=0.0, subset=frozenset({"None"})))


async def test_worker_without_events_is_paused(rest: Rest) -> None:
    rest.fleet.add("vllm-0", EndpointAddresses(HostPort("h", 1), None, (RankAddresses(0, None, None),)), {})
    (worker,) = await rest.workers()
    assert (worker["status"], worker["endpoints"], worker["listeners"]) == ("paused", {}, {})


# -- ordering ---------------------------------------------------------------------------------------------------------


async def test_instance_registered_while_its_last_life_is_being_closed_starts_clean(rest: Rest) -> None:
    await rest.register()
    store(rest.fleet, "node-1")
    closing = asyncio.create_task(rest.fleet.remove("node-1"))
    await asyncio.sleep(0)
    assert not closing.done()
    rest.fleet.add("node-1", CONFIGURED, {})
    store(rest.fleet, "node-1", n_blocks=1)
    await closing
    assert await rest.held() == {"default": {"node-1": 16}}
